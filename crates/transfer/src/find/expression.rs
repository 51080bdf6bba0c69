//! The expression of find: tests, joined by -a, -o, ! and parentheses, and the actions -print and -prune.
//!
//! Main types: [`Expression`], [`Outcome`] (the result of its actions). As in find(1), `!` binds most tightly, then
//! -a, which may be omitted, then -o. An expression without -print prints the files for which it is true.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};

use extant_fs::Error;
use extant_ondisk::time::Timestamp;

use super::test::{Candidate, Number, Spot, Test, glob, kind, mode, size};

/// Nesting depth of parentheses.
const DEPTH_MAX: usize = 100;

/// A condition with actions in it.
#[derive(Debug)]
pub enum Expression {
    /// All of them hold; the first that does not ends it.
    All(Vec<Expression>),
    /// One of them holds, which ends it.
    Any(Vec<Expression>),
    /// The expression does not hold.
    Not(Box<Expression>),
    /// One test.
    Test(Test),
    /// Print the file.
    Print,
    /// Leave out what is below the file.
    Prune,
}

/// The effects of an expression on a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How often the file is to be printed.
    pub prints: usize,
    /// The walk skips everything below it.
    pub pruned: bool,
}

impl Expression {
    /// Whether the expression holds for a file; adds to its `outcome`.
    ///
    /// # Errors
    /// The file system cannot answer a test.
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

/// An expression, and the options among its words.
#[derive(Debug)]
pub struct Search {
    /// The expression.
    pub expression: Expression,
    /// The deepest files that it is applied to; the top has 0.
    pub depth_max: usize,
    /// The first depth that it is applied to.
    pub depth_min: usize,
    /// The places on the device that tests name.
    pub spots: Vec<Spot>,
}

/// The surroundings of an expression, to which its words refer.
pub trait Words {
    /// The error for a file that does not exist.
    type Error;

    /// The last change of the file that a word names, for `-newer`.
    ///
    /// # Errors
    /// There is no such file.
    fn modified(&mut self, file: &OsStr) -> Result<Timestamp, Self::Error>;
    /// The number of a user.
    fn user(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn group(&self, name: &str) -> Option<u32>;
    /// Takes an option of the caller's own, which holds for every file. False: it is no such option.
    fn takes(&mut self, word: &str) -> bool;
    /// The names of such options, for the message about an unknown word.
    fn known(&self) -> &'static str;
    /// The error for words that are no expression.
    fn wrong(&self, why: String) -> Self::Error;
}

impl Search {
    /// Parses the words of an expression; without any, it prints every file.
    ///
    /// # Errors
    /// The words are no expression, or name a file that does not exist.
    pub fn parse<W: Words>(words: &[OsString], context: &mut W) -> Result<Search, W::Error> {
        let search =
            Search { expression: Expression::All(Vec::new()), depth_max: usize::MAX, depth_min: 0, spots: Vec::new() };
        let mut parser = Parser { words: words.iter(), search, context, depth: 0 };
        let given = if words.is_empty() { Expression::All(Vec::new()) } else { parser.any()? };
        if let Some(word) = parser.words.next() {
            return Err(parser.context.wrong(format!("'{}' is not expected there", word.display())));
        }
        let expression = if given.prints() { given } else { Expression::All(vec![given, Expression::Print]) };
        Ok(Search { expression, ..parser.search })
    }
}

struct Parser<'a, W> {
    words: std::slice::Iter<'a, OsString>,
    search: Search,
    context: &'a mut W,
    depth: usize,
}

impl<W: Words> Parser<'_, W> {
    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, W::Error> {
        Err(self.context.wrong(why.into()))
    }

    fn peek(&self) -> Option<&str> {
        self.words.as_slice().first().map(|word| word.to_str().unwrap_or_default())
    }

    fn any(&mut self) -> Result<Expression, W::Error> {
        let mut any = vec![self.all()?];
        while matches!(self.peek(), Some("-o" | "-or")) {
            self.words.next();
            any.push(self.all()?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Expression::Any(any) })
    }

    fn all(&mut self) -> Result<Expression, W::Error> {
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

    fn one(&mut self) -> Result<Expression, W::Error> {
        let mut holds = true;
        while matches!(self.peek(), Some("!" | "-not")) {
            self.words.next();
            holds = !holds;
        }
        let one = match self.peek() {
            None => return self.wrong("a test is missing at the end"),
            Some(word @ (")" | "-o" | "-or" | "-a" | "-and")) => {
                let why = format!("a test is missing before '{word}'");
                return self.wrong(why);
            }
            Some("(") => {
                self.words.next();
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return self.wrong(format!("more than {DEPTH_MAX} nested parentheses"));
                }
                let inner = self.any()?;
                self.depth -= 1;
                if self.words.next().is_none_or(|word| word != ")") {
                    return self.wrong("a parenthesis without its pair");
                }
                inner
            }
            Some(_) => self.primary()?,
        };
        Ok(if holds { one } else { Expression::Not(Box::new(one)) })
    }

    /// A test, an action, or an option, which is always true.
    fn primary(&mut self) -> Result<Expression, W::Error> {
        let word = self.words.next().and_then(|word| word.to_str()).unwrap_or_default();
        let holds = || Ok(Expression::All(Vec::new()));
        match word {
            "-print" => return Ok(Expression::Print),
            "-prune" => return Ok(Expression::Prune),
            "-empty" => return Ok(Expression::Test(Test::Empty)),
            "-true" => return holds(),
            "-print0" if self.context.takes(word) => return Ok(Expression::Print),
            word if self.context.takes(word) => return holds(),
            _ => {}
        }
        let known = "-name -iname -path -type -size -links -inum -inode -block -sector -uid -gid -user -group -perm -mtime -newer -maxdepth \
                     -mindepth";
        if !known.split(' ').any(|k| k == word) {
            let all = format!("{known} -empty -true -not ! -a -o ( ) -prune -print{}", self.context.known());
            return self.wrong(format!("'{word}' is not a test of find; the tests are: {all}"));
        }
        let Some(value) = self.words.next() else { return self.wrong(format!("{word} needs a value")) };
        let wrong = format!("'{}' is not a value for {word}", value.display());
        if let "-maxdepth" | "-mindepth" = word {
            let Some(depth) = value.to_str().and_then(|text| text.parse().ok()) else { return self.wrong(wrong) };
            let limit = if word == "-maxdepth" { &mut self.search.depth_max } else { &mut self.search.depth_min };
            *limit = depth;
            return holds();
        }
        match self.test(word, value)? {
            Some(test) => Ok(Expression::Test(test)),
            None => self.wrong(wrong),
        }
    }

    /// The test `word` with a value; `None`: it is no value for it.
    fn test(&mut self, word: &str, value: &OsStr) -> Result<Option<Test>, W::Error> {
        let text = value.to_str().unwrap_or_default();
        let number = || Number::parse(text);
        let named = |id: Option<u32>| number().or(id.map(|id| Number::Is(id.into())));
        Ok(match word {
            "-name" | "-iname" | "-path" => match glob(value, word == "-iname") {
                Ok(glob) if word == "-path" => Some(Test::Path(glob)),
                Ok(glob) => Some(Test::Name(glob)),
                Err(why) => return self.wrong(why),
            },
            "-type" => text.split(',').map(kind).collect::<Option<_>>().map(Test::Kind),
            "-size" => size(text),
            "-links" => number().map(Test::Links),
            "-inum" | "-inode" => number().map(Test::Inode),
            "-uid" => number().map(Test::Uid),
            "-gid" => number().map(Test::Gid),
            "-user" => named(self.context.user(text)).map(Test::Uid),
            "-group" => named(self.context.group(text)).map(Test::Gid),
            "-block" | "-sector" => text.parse().ok().map(|number| {
                let spot = if word == "-block" { Spot::Block(number) } else { Spot::Sector(number) };
                self.search.spots.push(spot);
                Test::Lies(spot)
            }),
            "-mtime" => number().map(Test::Modified),
            "-newer" => Some(Test::Newer(self.context.modified(value)?)),
            _ => mode(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;

    impl Words for Plain {
        type Error = String;

        fn modified(&mut self, file: &OsStr) -> Result<Timestamp, String> {
            Err(format!("no {}", file.display()))
        }

        fn user(&self, name: &str) -> Option<u32> {
            (name == "me").then_some(7)
        }

        fn group(&self, _name: &str) -> Option<u32> {
            None
        }

        fn takes(&mut self, word: &str) -> bool {
            word == "-0"
        }

        fn known(&self) -> &'static str {
            " -0"
        }

        fn wrong(&self, why: String) -> String {
            why
        }
    }

    fn parse(words: &str) -> Result<Search, String> {
        Search::parse(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>(), &mut Plain)
    }

    #[test]
    fn options_and_tests_are_parsed_and_mistakes_are_named() {
        let search = parse("-maxdepth 3 ( -name a -o -user me ) -mindepth 1 ! -type d,l -block 9 -0").expect("parsed");
        assert_eq!((search.depth_max, search.depth_min, search.spots.len()), (3, 1, 1));
        assert!(search.expression.prints());
        for (words, why) in [
            ("-name", "-name needs a value"),
            ("-name [", "'[' is not a pattern"),
            ("-size x", "'x' is not a value for -size"),
            ("-maxdepth -1", "'-1' is not a value for -maxdepth"),
            ("-newer f", "no f"),
            ("( -true", "a parenthesis without its pair"),
            ("-true )", "')' is not expected there"),
            ("-o -true", "a test is missing before '-o'"),
            ("!", "a test is missing at the end"),
            ("-exec x", "the tests are: -name"),
        ] {
            let said = parse(words).expect_err(words);
            assert!(said.contains(why), "{words}: {said}");
        }
    }
}
