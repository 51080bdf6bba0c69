//! One test of find: [`Test`], and the file to which it applies, a [`Candidate`].
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use extant_fs::{Attr, Filesystem, InodeRef};
use extant_ondisk::BlockNr;
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use globset::{GlobBuilder, GlobMatcher};

use crate::failure::{Failure, Result};

/// A file that the walk found.
pub struct Candidate<'a> {
    pub fs: &'a Filesystem,
    pub path: &'a [u8],
    pub name: &'a [u8],
    pub inode: &'a InodeRef,
    pub attr: Attr,
    /// The file system's first byte on the disk.
    pub start: u64,
}

/// One condition.
pub enum Test {
    Name(GlobMatcher),
    Path(GlobMatcher),
    Kind(Vec<FileType>),
    /// In units of this many bytes, rounded up.
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
    /// Changed later than this.
    Newer(Timestamp),
    /// Age of the last change, in whole days.
    Modified(Number),
    Empty,
    /// Its content, map or attributes lie in this place.
    Lies(Spot),
}

/// A place on the device.
#[derive(Clone, Copy)]
pub enum Spot {
    /// A block of the file system.
    Block(u64),
    /// A sector of 512 bytes of the whole disk.
    Sector(u64),
}

impl Spot {
    /// The block in a file system that begins at byte `start` of the disk; `None`: in front of it.
    pub fn block(self, fs: &Filesystem, start: u64) -> Option<BlockNr> {
        Some(BlockNr(match self {
            Spot::Block(block) => block,
            Spot::Sector(sector) => {
                sector.saturating_mul(512).checked_sub(start)? / u64::from(fs.geometry().block_size)
            }
        }))
    }
}

#[derive(Clone, Copy)]
pub enum Modes {
    Exactly,
    All,
    Any,
}

/// `N`, `+N` (more), `-N` (less).
pub enum Number {
    Is(u64),
    More(u64),
    Less(u64),
}

impl Number {
    pub fn parse(text: &str) -> Option<Number> {
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

pub fn glob(pattern: &OsStr, any_case: bool) -> Result<GlobMatcher> {
    let wrong = |e: String| Failure::usage(format!("'{}' is not a pattern: {e}", pattern.display()));
    let text = pattern.to_str().ok_or_else(|| wrong("not UTF-8".into()))?;
    let built = GlobBuilder::new(&without_alternates(text))
        .literal_separator(false)
        .backslash_escape(true)
        .case_insensitive(any_case)
        .build();
    Ok(built.map_err(|e| wrong(e.kind().to_string()))?.compile_matcher())
}

/// find(1) gives braces no meaning.
fn without_alternates(pattern: &str) -> String {
    let mut out = String::new();
    // Position in a class: its first character belongs to it, even if it is a bracket.
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

pub fn kind(letter: &str) -> Option<FileType> {
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

pub fn size(text: &str) -> Option<Test> {
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

pub fn mode(text: &str) -> Option<Test> {
    let (digits, how) = match text.as_bytes().first()? {
        b'-' => (&text[1..], Modes::All),
        b'/' => (&text[1..], Modes::Any),
        _ => (text, Modes::Exactly),
    };
    Some(Test::Mode { bits: u16::from_str_radix(digits, 8).ok().filter(|bits| *bits <= 0o7777)?, how })
}

impl Test {
    pub fn fits(&self, of: &Candidate<'_>) -> std::result::Result<bool, extant_fs::Error> {
        let Candidate { fs, path, name, inode, attr, start } = of;
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
            Test::Newer(time) => attr.mtime > *time,
            Test::Modified(number) => {
                let now = jiff::Timestamp::now().as_second();
                number.fits((now.saturating_sub(attr.mtime.seconds) / 86400).max(0) as u64)
            }
            Test::Lies(spot) => match spot.block(fs, *start) {
                Some(block) => fs.part_in(inode, block)?.is_some(),
                None => false,
            },
            Test::Empty if inode.is_dir() => fs.list_after(inode, None)?.names.is_empty(),
            Test::Empty => inode.file_type() == Some(FileType::Regular) && attr.size == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_find() {
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
