//! The expression of find: tests, joined by -a, -o, ! and parentheses, and the actions -print and -prune.
//!
//! Main types: [`Expression`], [`Outcome`] (the result of its actions). As in find(1), `!` binds most tightly, then
//! -a, which may be omitted, then -o. An expression without -print prints the files for which it is true.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_fs::Error;
use extant_ondisk::time::Timestamp;
use nix::unistd::{Group, User};

use super::Search;
use super::test::{Candidate, Number, Spot, Test, glob, kind, mode, size};
use crate::commands::verb::Images;
use crate::failure::{Failure, Result};
use crate::place::Place;
use crate::record::Format;

/// Nesting depth of parentheses.
const DEPTH_MAX: usize = 100;

pub enum Expression {
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    Test(Test),
    Print,
    Prune,
}

/// The effects of an expression on a file.
#[derive(Default)]
pub struct Outcome {
    pub prints: usize,
    /// The walk skips everything below it.
    pub pruned: bool,
}

impl Expression {
    pub fn holds(&self, file: &Candidate<'_>, outcome: &mut Outcome) -> std::result::Result<bool, Error> {
        match self {
            Expression::All(all) => {
                for one in all {
                    if !one.holds(file, outcome)? {
                        return Ok(false);
                    }
                }
            }
            Expression::Any(any) => {
                for one in any {
                    if one.holds(file, outcome)? {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            Expression::Not(one) => return Ok(!one.holds(file, outcome)?),
            Expression::Test(test) => return test.fits(file),
            Expression::Print => outcome.prints += 1,
            Expression::Prune => outcome.pruned = true,
        }
        Ok(true)
    }

    fn prints(&self) -> bool {
        match self {
            Expression::All(some) | Expression::Any(some) => some.iter().any(Expression::prints),
            Expression::Not(one) => one.prints(),
            Expression::Print => true,
            Expression::Test(_) | Expression::Prune => false,
        }
    }
}

/// Parses all words after the paths.
pub fn parse(words: &[OsString], images: &mut Images) -> Result<Search> {
    let search = Search {
        expression: Expression::All(Vec::new()),
        depth_max: usize::MAX,
        depth_min: 0,
        spots: Vec::new(),
        format: Format::default(),
    };
    let mut parser = Parser { words: words.iter(), search, images, depth: 0 };
    let given = if words.is_empty() { Expression::All(Vec::new()) } else { parser.any()? };
    if let Some(word) = parser.words.next() {
        return Err(Failure::usage(format!("'{}' is not expected there", word.display())));
    }
    let expression = if given.prints() { given } else { Expression::All(vec![given, Expression::Print]) };
    Ok(Search { expression, ..parser.search })
}

struct Parser<'a> {
    words: std::slice::Iter<'a, OsString>,
    search: Search,
    images: &'a mut Images,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.as_slice().first().map(|word| word.to_str().unwrap_or_default())
    }

    fn any(&mut self) -> Result<Expression> {
        let mut any = vec![self.all()?];
        while matches!(self.peek(), Some("-o" | "-or")) {
            self.words.next();
            any.push(self.all()?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Expression::Any(any) })
    }

    fn all(&mut self) -> Result<Expression> {
        let mut all = vec![self.one()?];
        loop {
            match self.peek() {
                None | Some(")" | "-o" | "-or") => break,
                Some("-a" | "-and") => {
                    self.words.next();
                }
                Some(_) => {}
            }
            all.push(self.one()?);
        }
        Ok(Expression::All(all))
    }

    fn one(&mut self) -> Result<Expression> {
        let mut holds = true;
        while matches!(self.peek(), Some("!" | "-not")) {
            self.words.next();
            holds = !holds;
        }
        let one = match self.peek() {
            None => return Err(Failure::usage("a test is missing at the end")),
            Some(word @ (")" | "-o" | "-or" | "-a" | "-and")) => {
                return Err(Failure::usage(format!("a test is missing before '{word}'")));
            }
            Some("(") => {
                self.words.next();
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Err(Failure::usage(format!("more than {DEPTH_MAX} nested parentheses")));
                }
                let inner = self.any()?;
                self.depth -= 1;
                if self.words.next().is_none_or(|word| word != ")") {
                    return Err(Failure::usage("a parenthesis without its pair"));
                }
                inner
            }
            Some(_) => self.primary()?,
        };
        Ok(if holds { one } else { Expression::Not(Box::new(one)) })
    }

    /// A test, an action, or an option, which is always true.
    fn primary(&mut self) -> Result<Expression> {
        let word = self.words.next().and_then(|word| word.to_str()).unwrap_or_default();
        let holds = || Ok(Expression::All(Vec::new()));
        match word {
            "-print" => return Ok(Expression::Print),
            "-prune" => return Ok(Expression::Prune),
            "-empty" => return Ok(Expression::Test(Test::Empty)),
            "-true" => return holds(),
            "-print0" => {
                self.search.format.null = true;
                return Ok(Expression::Print);
            }
            "-0" => {
                self.search.format.null = true;
                return holds();
            }
            "--json" => {
                self.search.format.json = true;
                return holds();
            }
            _ => {}
        }
        let known = "-name -iname -path -type -size -links -inum -inode -block -sector -uid -gid -user -group -perm -mtime -newer -maxdepth \
                     -mindepth";
        if !known.split(' ').any(|k| k == word) {
            let all = format!("{known} -empty -true -not ! -a -o ( ) -prune -print -print0 --json");
            return Err(Failure::usage(format!("'{word}' is not a test of find; the tests are: {all}")));
        }
        let value = self.words.next().ok_or_else(|| Failure::usage(format!("{word} needs a value")))?;
        let text = value.to_str().unwrap_or_default();
        let wrong = || Failure::usage(format!("'{}' is not a value for {word}", value.display()));
        let number = || Number::parse(text).ok_or_else(wrong);
        let named = |id: Option<u32>| Number::parse(text).or(id.map(|id| Number::Is(id.into()))).ok_or_else(wrong);
        let test = match word {
            "-maxdepth" => {
                self.search.depth_max = text.parse().map_err(|_| wrong())?;
                return holds();
            }
            "-mindepth" => {
                self.search.depth_min = text.parse().map_err(|_| wrong())?;
                return holds();
            }
            "-name" | "-iname" => Test::Name(glob(value, word == "-iname")?),
            "-path" => Test::Path(glob(value, false)?),
            "-type" => Test::Kind(text.split(',').map(kind).collect::<Option<_>>().ok_or_else(wrong)?),
            "-size" => size(text).ok_or_else(wrong)?,
            "-links" => Test::Links(number()?),
            "-inum" | "-inode" => Test::Inode(number()?),
            "-uid" => Test::Uid(number()?),
            "-gid" => Test::Gid(number()?),
            "-user" => Test::Uid(named(User::from_name(text).ok().flatten().map(|user| user.uid.as_raw()))?),
            "-group" => Test::Gid(named(Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw()))?),
            "-block" | "-sector" => {
                let number = text.parse().map_err(|_| wrong())?;
                let spot = if word == "-block" { Spot::Block(number) } else { Spot::Sector(number) };
                self.search.spots.push(spot);
                Test::Lies(spot)
            }
            "-mtime" => Test::Modified(number()?),
            "-newer" => self.newer(value)?,
            _ => mode(text).ok_or_else(wrong)?,
        };
        Ok(Expression::Test(test))
    }

    /// Newer than a file of an image, or of the host.
    fn newer(&mut self, than: &OsString) -> Result<Test> {
        if Place::parse(than).is_in_image() {
            let file = self.images.file(than)?;
            return Ok(Test::Newer(file.fs.getattr(&file.walk(false)?).mtime));
        }
        let path = Path::new(than);
        let modified = path.symlink_metadata().map_err(|e| Failure::io(path, e))?;
        let (seconds, nanos) = (modified.mtime(), modified.mtime_nsec());
        Ok(Test::Newer(Timestamp { seconds, nanos: nanos as u32 }))
    }
}
