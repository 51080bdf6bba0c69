//! The owners of a tree's entries: numbers that replace others, and owners of some paths.
//!
//! Main type: [`Owners`], parsed from a file of lines:
//!
//! ```text
//! # a comment
//! uid FROM TO [COUNT]       owners FROM .. FROM+COUNT become TO .. TO+COUNT; COUNT is 1
//! gid FROM TO [COUNT]       the same for groups
//! PATH UID[:GID]            the owner of an entry; :GID alone is its group
//! PATH/** UID[:GID]         the same with everything below it
//! ```
//!
//! Numbers are replaced first, once. If several lines have the same path, the later one is used. Names may be used
//! instead of numbers, except in COUNT. A path called `uid` or `gid` is written as `./uid`.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use crate::error::shown;
use crate::{Error, Result};

/// The kind of a number or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// An owner.
    User,
    /// A group.
    Group,
}

/// A line with a path.
#[derive(Clone, Debug)]
pub(super) struct OwnedPath {
    pub path: Box<[u8]>,
    pub below: bool,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The file and the line.
    pub place: Box<str>,
}

/// By the first number of a range in the source: its length, and the first number in the image.
type Map = BTreeMap<u32, (u32, u32)>;

/// The content of an owners' file.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    users: Map,
    groups: Map,
    pub(super) paths: Vec<OwnedPath>,
}

impl Owners {
    /// Parses a file called `file`. `resolve` finds the number for a name.
    ///
    /// # Errors
    /// A line has none of these forms, or a name has no number. The message contains the line.
    pub fn parse(file: &str, text: &[u8], resolve: &dyn Fn(IdKind, &str) -> Option<u32>) -> Result<Owners> {
        let mut owners = Owners::default();
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let place = format!("{}: line {number}", shown(file.as_bytes()));
            owners.line(line.trim_ascii(), &place, resolve).map_err(|why| Error::Options(format!("{place}: {why}")))?;
        }
        Ok(owners)
    }

    fn line(
        &mut self,
        line: &[u8],
        place: &str,
        resolve: &dyn Fn(IdKind, &str) -> Option<u32>,
    ) -> std::result::Result<(), String> {
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let id = |kind, word: &[u8]| parse_id(kind, word, resolve);
        let map = match words[0] {
            b"uid" => Some((IdKind::User, &mut self.users)),
            b"gid" => Some((IdKind::Group, &mut self.groups)),
            _ => None,
        };
        if let Some((kind, map)) = map {
            let (from, to, count) = match words[1..] {
                [from, to] => (id(kind, from)?, id(kind, to)?, 1),
                [from, to, count] => {
                    let count = number(count).filter(|count| *count > 0);
                    (id(kind, from)?, id(kind, to)?, count.ok_or("COUNT is not a number above 0")?)
                }
                _ => return Err(format!("expected {} FROM TO [COUNT]", shown(words[0]))),
            };
            let last = count - 1;
            if from.checked_add(last).is_none() || to.checked_add(last).is_none() {
                return Err(format!("{count} numbers from {} on reach beyond {}", from.max(to), u32::MAX));
            }
            let before = map.range(..=from + last).next_back();
            if let Some((start, (length, _))) = before.filter(|(start, (length, _))| *start + (length - 1) >= from) {
                return Err(format!(
                    "{from} to {} overlap {start} to {} of a line above",
                    from + last,
                    start + (length - 1)
                ));
            }
            map.insert(from, (count, to));
            return Ok(());
        }
        let [.., owner] = words[..] else { return Err("expected PATH UID[:GID]".into()) };
        // Spaces within a path are part of it.
        let path = line[..line.len() - owner.len()].trim_ascii_end();
        if path.is_empty() {
            return Err("expected PATH UID[:GID], or uid or gid FROM TO [COUNT]".into());
        }
        let (path, below) = match path.strip_suffix(b"/**") {
            Some(path) => (if path.is_empty() { b"." } else { path }, true),
            None if path == b"**" => (&b"."[..], true),
            None => (path, false),
        };
        let colon = owner.iter().position(|byte| *byte == b':');
        let (uid, gid) = match colon {
            Some(at) => (&owner[..at], Some(&owner[at + 1..])),
            None => (owner, None),
        };
        let uid = match uid {
            b"" if gid.is_some() => None,
            uid => Some(id(IdKind::User, uid)?),
        };
        let gid = gid.map(|gid| id(IdKind::Group, gid)).transpose()?;
        self.paths.push(OwnedPath { path: path.into(), below, uid, gid, place: place.into() });
        Ok(())
    }

    /// The number in the image for a number of the source.
    pub(super) fn mapped(&self, kind: IdKind, id: u32) -> u32 {
        let map = match kind {
            IdKind::User => &self.users,
            IdKind::Group => &self.groups,
        };
        match map.range(..=id).next_back() {
            Some((from, (count, to))) if id - from < *count => to + (id - from),
            _ => id,
        }
    }
}

fn number(word: &[u8]) -> Option<u32> {
    // `parse()` would also accept a sign.
    let text = std::str::from_utf8(word).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}

fn parse_id(
    kind: IdKind,
    word: &[u8],
    resolve: &dyn Fn(IdKind, &str) -> Option<u32>,
) -> std::result::Result<u32, String> {
    let what = match kind {
        IdKind::User => "user",
        IdKind::Group => "group",
    };
    let name = || std::str::from_utf8(word).ok().filter(|name| !name.is_empty());
    number(word)
        .or_else(|| {
            name().filter(|name| !name.bytes().all(|b| b.is_ascii_digit())).and_then(|name| resolve(kind, name))
        })
        .ok_or_else(|| format!("{} is not a number and no {what}'s name", shown(word)))
}
