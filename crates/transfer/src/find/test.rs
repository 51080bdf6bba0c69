//! One test of find: [`Test`], and the file to which it applies, a [`Candidate`].
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::time::{SystemTime, UNIX_EPOCH};

use extant_fs::{Attr, Filesystem, InodeRef};
use extant_ondisk::BlockNr;
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use globset::{GlobBuilder, GlobMatcher};

/// A file that the walk found.
pub struct Candidate<'a> {
    /// Its file system.
    pub fs: &'a Filesystem,
    /// Its path, as the walk gives it.
    pub path: &'a [u8],
    /// The last name of the path.
    pub name: &'a [u8],
    /// The file.
    pub inode: &'a InodeRef,
    /// Its attributes.
    pub attr: Attr,
    /// The file system's first byte on the disk.
    pub start: u64,
}

/// One condition.
#[derive(Debug)]
pub enum Test {
    /// The name matches.
    Name(GlobMatcher),
    /// The path matches.
    Path(GlobMatcher),
    /// It is of one of these kinds.
    Kind(Vec<FileType>),
    /// Its size.
    Size {
        /// It counts in units of this many bytes, rounded up.
        unit: u64,
        /// The number of units.
        number: Number,
    },
    /// The number of its names.
    Links(Number),
    /// Its number.
    Inode(Number),
    /// Its owner.
    Uid(Number),
    /// Its group.
    Gid(Number),
    /// Its permissions.
    Mode {
        /// The bits that are compared.
        bits: u16,
        /// How they are compared.
        how: Modes,
    },
    /// Changed later than this.
    Newer(Timestamp),
    /// Age of the last change, in whole days.
    Modified(Number),
    /// A file without content, or a directory without names.
    Empty,
    /// Its content, map or attributes lie in this place.
    Lies(Spot),
}

/// A place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How permissions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// All bits are these.
    Exactly,
    /// All of these are set.
    All,
    /// One of these is set, if there are any.
    Any,
}

/// `N`, `+N` (more), `-N` (less).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Exactly.
    Is(u64),
    /// More than.
    More(u64),
    /// Less than.
    Less(u64),
}

impl Number {
    pub(super) fn parse(text: &str) -> Option<Number> {
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

/// The matcher of a pattern of the shell, or why the pattern is invalid.
pub(super) fn glob(pattern: &OsStr, any_case: bool) -> Result<GlobMatcher, String> {
    let wrong = |e: String| format!("'{}' is not a pattern: {e}", pattern.display());
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

pub(super) fn kind(letter: &str) -> Option<FileType> {
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

pub(super) fn size(text: &str) -> Option<Test> {
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

pub(super) fn mode(text: &str) -> Option<Test> {
    let (digits, how) = match text.as_bytes().first()? {
        b'-' => (&text[1..], Modes::All),
        b'/' => (&text[1..], Modes::Any),
        _ => (text, Modes::Exactly),
    };
    Some(Test::Mode { bits: u16::from_str_radix(digits, 8).ok().filter(|bits| *bits <= 0o7777)?, how })
}

impl Test {
    pub(super) fn fits(&self, of: &Candidate<'_>) -> Result<bool, extant_fs::Error> {
        let Candidate { fs, path, name, inode, attr, start } = of;
        Ok(match self {
            Test::Name(glob) => matches(glob, name),
            Test::Path(glob) => matches(glob, path),
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
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
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

#[cfg(unix)]
fn matches(glob: &GlobMatcher, name: &[u8]) -> bool {
    glob.is_match(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
}

/// This system has no word for a name that is not UTF-8.
#[cfg(not(unix))]
fn matches(glob: &GlobMatcher, name: &[u8]) -> bool {
    glob.is_match(String::from_utf8_lossy(name).as_ref())
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
