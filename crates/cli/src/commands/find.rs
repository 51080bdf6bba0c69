//! `extant find`: searches for files by name, kind, size and the like.
//!
//! Main types: [`Search`] (the command line, parsed), [`Test`]. The words are those of find(1); all tests must hold,
//! `!` turns the next one round. There is no `-o`, and nothing is executed: `-print0` is for xargs.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;
use globset::{GlobBuilder, GlobMatcher};

use super::verb::{File, Images, Report};
use crate::args::FindArgs;
use crate::failure::{Failure, Result};
use crate::image;
use crate::record::{self, Format, Records};

/// One condition.
enum Test {
    Name(GlobMatcher),
    Path(GlobMatcher),
    Kind(Vec<FileType>),
    /// In units of so many bytes, rounded up.
    Size {
        unit: u64,
        number: Number,
    },
    Links(Number),
    Inode(Number),
    Uid(Number),
    Gid(Number),
    Mode {
        bits: u16,
        how: Modes,
    },
    /// Days since the last change, in whole days.
    Modified(Number),
    Empty,
}

#[derive(Clone, Copy)]
enum Modes {
    Exactly,
    All,
    Any,
}

/// `N`, `+N` (more), `-N` (less).
enum Number {
    Is(u64),
    More(u64),
    Less(u64),
}

impl Number {
    fn parse(text: &str) -> Option<Number> {
        Some(match text.as_bytes().first()? {
            b'+' => Number::More(text[1..].parse().ok()?),
            b'-' => Number::Less(text[1..].parse().ok()?),
            _ => Number::Is(text.parse().ok()?),
        })
    }

    fn fits(&self, n: u64) -> bool {
        match self {
            Number::Is(m) => n == *m,
            Number::More(m) => n > *m,
            Number::Less(m) => n < *m,
        }
    }
}

/// What was asked for.
struct Search {
    paths: Vec<OsString>,
    /// With whether it must hold.
    tests: Vec<(bool, Test)>,
    depth_max: usize,
    depth_min: usize,
    format: Format,
}

pub fn run(args: &FindArgs, images: &mut Images) -> Result<()> {
    let mut search = Search::parse(&args.words)?;
    search.format = Format { json: args.json || search.format.json, null: args.null || search.format.null };
    let mut records = Records::new(search.format)?;
    let mut report = Report::default();
    for path in &search.paths {
        // One that cannot be opened does not cut the list short.
        let searched = images.file_or_image(path).and_then(|file| search.file(&file, &mut records, &mut report));
        report.note(searched)?;
    }
    records.end()?;
    report.end()
}

fn glob(pattern: &OsStr, any_case: bool) -> Result<GlobMatcher> {
    let wrong = |e: String| Failure::usage(format!("'{}' is no pattern: {e}", pattern.display()));
    let text = pattern.to_str().ok_or_else(|| wrong("not UTF-8".into()))?;
    let built = GlobBuilder::new(&without_alternates(text))
        .literal_separator(false)
        .backslash_escape(true)
        .case_insensitive(any_case)
        .build();
    Ok(built.map_err(|e| wrong(e.kind().to_string()))?.compile_matcher())
}

/// Braces mean nothing to find(1).
fn without_alternates(pattern: &str) -> String {
    let mut out = String::new();
    // Where in a class: its first character is one of it, whatever it is.
    let mut class = None;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match (c, class) {
            ('\\', None) => {
                out.push(c);
                out.extend(chars.next());
                continue;
            }
            ('{' | '}', None) => out.push('\\'),
            ('[', None) => class = Some(0),
            ('!' | '^', Some(0)) => {}
            (']', Some(1..)) => class = None,
            (_, Some(n)) => class = Some(n + 1),
            _ => {}
        }
        out.push(c);
    }
    out
}

impl Search {
    fn parse(words: &[OsString]) -> Result<Search> {
        let begins = |word: &OsString| word.as_bytes().starts_with(b"-") || word == "!";
        let paths: Vec<OsString> = words.iter().take_while(|word| !begins(word)).cloned().collect();
        if paths.is_empty() {
            return Err(Failure::usage("find needs an image: IMAGE or IMAGE:PATH"));
        }
        let mut rest = words[paths.len()..].iter();
        let mut search =
            Search { paths, tests: Vec::new(), depth_max: usize::MAX, depth_min: 0, format: Format::default() };
        let mut holds = true;
        while let Some(word) = rest.next() {
            let word = word.to_str().unwrap_or_default();
            match word {
                "!" | "-not" => {
                    holds = !holds;
                    continue;
                }
                "-print" => continue,
                "-print0" | "-0" => {
                    search.format.null = true;
                    continue;
                }
                "--json" => {
                    search.format.json = true;
                    continue;
                }
                "-empty" => {
                    search.tests.push((holds, Test::Empty));
                    holds = true;
                    continue;
                }
                _ => {}
            }
            let known =
                "-name -iname -path -type -size -links -inum -uid -gid -user -group -perm -mtime -maxdepth -mindepth";
            if !known.split(' ').any(|k| k == word) {
                let all = format!("{known} -empty -not ! -print -print0 --json");
                return Err(Failure::usage(format!("'{word}' is no test of find; there are: {all}")));
            }
            let value = rest.next().ok_or_else(|| Failure::usage(format!("{word} needs a value")))?;
            let text = value.to_str().unwrap_or_default();
            let wrong = || Failure::usage(format!("'{}' is no value for {word}", value.display()));
            let number = || Number::parse(text).ok_or_else(wrong);
            let test = match word {
                "-maxdepth" => {
                    search.depth_max = text.parse().map_err(|_| wrong())?;
                    continue;
                }
                "-mindepth" => {
                    search.depth_min = text.parse().map_err(|_| wrong())?;
                    continue;
                }
                "-name" | "-iname" => Test::Name(glob(value, word == "-iname")?),
                "-path" => Test::Path(glob(value, false)?),
                "-type" => Test::Kind(text.split(',').map(kind).collect::<Option<_>>().ok_or_else(wrong)?),
                "-size" => size(text).ok_or_else(wrong)?,
                "-links" => Test::Links(number()?),
                "-inum" => Test::Inode(number()?),
                "-uid" | "-user" => Test::Uid(number()?),
                "-gid" | "-group" => Test::Gid(number()?),
                "-mtime" => Test::Modified(number()?),
                _ => mode(text).ok_or_else(wrong)?,
            };
            search.tests.push((holds, test));
            holds = true;
        }
        Ok(search)
    }

    fn file(&self, file: &File, records: &mut Records, report: &mut Report) -> Result<()> {
        let fs = &file.fs;
        let top = file.walk(false)?;
        let name = file.name().unwrap_or(b"/");
        self.visit(fs, &file.path, name, 0, &top, records, report)?;
        let mut walk = Walk::new(fs, &file.path, top);
        if self.depth_max == 0 {
            walk.skip();
        }
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => {
                    if walk.depth() >= self.depth_max {
                        walk.skip();
                    }
                    self.visit(fs, walk.path(), walk.name(), walk.depth(), &inode, records, report)?;
                }
                Ok(Visit::Left(_)) => {}
                Err(e) => report.note(Err(image::at(fs, walk.path(), e)))?,
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one file, and where it goes
    fn visit(
        &self,
        fs: &Filesystem,
        path: &[u8],
        name: &[u8],
        depth: usize,
        inode: &InodeRef,
        records: &mut Records,
        report: &mut Report,
    ) -> Result<()> {
        let attr = fs.getattr(inode);
        if depth < self.depth_min {
            return Ok(());
        }
        for (holds, test) in &self.tests {
            match test.fits(fs, path, name, &attr, inode) {
                Ok(fits) if fits == *holds => {}
                Ok(_) => return Ok(()),
                Err(e) => return report.note(Err(image::at(fs, path, e))),
            }
        }
        if self.format.json {
            return match record::file(fs, path, inode) {
                Ok(record) => records.value(&record.into()),
                Err(e) => report.note(Err(image::at(fs, path, e))),
            };
        }
        records.path(path)
    }
}

fn kind(letter: &str) -> Option<FileType> {
    Some(match letter {
        "f" => FileType::Regular,
        "d" => FileType::Directory,
        "l" => FileType::Symlink,
        "c" => FileType::CharDevice,
        "b" => FileType::BlockDevice,
        "p" => FileType::Fifo,
        "s" => FileType::Socket,
        _ => return None,
    })
}

fn size(text: &str) -> Option<Test> {
    let (number, unit) = match text.as_bytes().last()? {
        b'c' => (&text[..text.len() - 1], 1),
        b'w' => (&text[..text.len() - 1], 2),
        b'b' => (&text[..text.len() - 1], 512),
        b'k' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 512),
    };
    Some(Test::Size { unit, number: Number::parse(number)? })
}

fn mode(text: &str) -> Option<Test> {
    let (digits, how) = match text.as_bytes().first()? {
        b'-' => (&text[1..], Modes::All),
        b'/' => (&text[1..], Modes::Any),
        _ => (text, Modes::Exactly),
    };
    Some(Test::Mode { bits: u16::from_str_radix(digits, 8).ok().filter(|bits| *bits <= 0o7777)?, how })
}

impl Test {
    fn fits(
        &self,
        fs: &Filesystem,
        path: &[u8],
        name: &[u8],
        attr: &Attr,
        inode: &InodeRef,
    ) -> std::result::Result<bool, extant_fs::Error> {
        Ok(match self {
            Test::Name(glob) => glob.is_match(OsStr::from_bytes(name)),
            Test::Path(glob) => glob.is_match(OsStr::from_bytes(path)),
            Test::Kind(kinds) => inode.file_type().is_some_and(|kind| kinds.contains(&kind)),
            Test::Size { unit, number } => number.fits(attr.size.div_ceil(*unit)),
            Test::Links(number) => number.fits(attr.nlink.into()),
            Test::Inode(number) => number.fits(attr.ino.0.into()),
            Test::Uid(number) => number.fits(attr.uid.into()),
            Test::Gid(number) => number.fits(attr.gid.into()),
            Test::Mode { bits, how: Modes::Exactly } => attr.mode & 0o7777 == *bits,
            Test::Mode { bits, how: Modes::All } => attr.mode & bits == *bits,
            Test::Mode { bits, how: Modes::Any } => *bits == 0 || attr.mode & bits != 0,
            Test::Modified(number) => {
                let now = jiff::Timestamp::now().as_second();
                number.fits((now.saturating_sub(attr.mtime.seconds) / 86400).max(0) as u64)
            }
            Test::Empty if inode.is_dir() => fs.list(inode)?.is_empty(),
            Test::Empty => inode.file_type() == Some(FileType::Regular) && attr.size == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_as_find_has_them() {
        for (pattern, name, fits) in [
            ("{a,b}", "{a,b}", true),
            ("{a,b}", "a", false),
            ("[{]x", "{x", true),
            ("[]}]x", "}x", true),
            ("[!{]x", "{x", false),
            ("\\{x", "{x", true),
            ("\\[{a", "[{a", true),
            ("x}", "x}", true),
        ] {
            let glob = glob(OsStr::new(pattern), false).expect("a pattern");
            assert_eq!(glob.is_match(name), fits, "{pattern} {name}");
        }
    }
}
