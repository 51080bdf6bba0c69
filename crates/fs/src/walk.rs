//! Walking a directory tree, for embedding programs and tools.
//!
//! Main types: [`Walk`] (depth first, names sorted, every directory once before and once after what is in it),
//! [`Visit`], [`Name`]. [`Filesystem::list_after`] reads one directory.
//!
//! Neither the size of a tree nor a damaged image, in which a directory contains itself or has many names, decides
//! about our memory: there is one path, a few open directories, and of the others the number and names that are still
//! to come, up to a bound: of a directory with more names a part is read, and it is read again when that is used up.
//!
//! # Locking
//! None held between calls.

use std::collections::BTreeMap;

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::number_set::NumberSet;
use crate::ops::DirItem;

/// The memory that the names of a directory take which are read at a time: 200,000 names of ordinary length.
const BATCH_BYTES: usize = 24 << 20;
/// The memory that the names of all directories on the way down take, besides those of the last one.
const HELD_BYTES: usize = 16 << 20;
/// So many names may come a second time in a directory. A map that leads to one block many times gives its names as
/// often, and an index that leads to one leaf: a small image could take any time.
const REPEATED_MAX: usize = 65_536;
/// So many directories may be reached a second time, before a walk ends: one block of names may belong to many
/// directories, which it names.
pub const REACHED_AGAIN_MAX: usize = 4096;
/// Directories further down are not entered: no tree that a program has made is deeper, for its paths would be sixteen
/// times as long as Linux allows.
pub const DEPTH_MAX: usize = 32_768;

/// Directories on the way down that stay in use; one further up is got again by its number.
const OPEN_MAX: usize = 64;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Any bytes but slash and NUL, 1 to 255 of them.
    pub name: Vec<u8>,
    /// What it stands for.
    pub ino: InodeNr,
    /// `None` where the directory does not say.
    pub kind: Option<FileType>,
}

impl Name {
    /// What it takes in memory, its place in a tree included.
    fn bytes(&self) -> usize {
        2 * size_of::<Name>() + self.name.len()
    }
}

/// Names of a directory, in the order of their bytes.
#[derive(Debug)]
pub struct Names {
    /// The first of those that were asked for.
    pub names: Vec<Name>,
    /// Whether others follow.
    pub more: bool,
}

/// The first names behind one that was given, while a directory is read from its beginning to its end.
struct Batch<'a> {
    after: Option<&'a Name>,
    names: BTreeMap<(Vec<u8>, InodeNr), Option<FileType>>,
    bytes: usize,
    bytes_max: usize,
    more: bool,
    /// Names that were offered, and those among them that came before.
    offered: usize,
    repeated: usize,
}

impl Batch<'_> {
    fn offer(&mut self, item: &DirItem<'_>) {
        if item.name == b"." || item.name == b".." {
            return;
        }
        if self.after.is_some_and(|after| (item.name, item.ino) <= (&after.name[..], after.ino)) {
            return;
        }
        self.offered += 1;
        if self.more
            && let Some(((last, ino), _)) = self.names.last_key_value()
            && (item.name, item.ino) > (&last[..], *ino)
        {
            return;
        }
        let name = Name { name: item.name.to_vec(), ino: item.ino, kind: item.kind };
        let bytes = name.bytes();
        if self.names.insert((name.name, name.ino), name.kind).is_some() {
            self.repeated += 1;
            return;
        }
        self.bytes += bytes;
        while self.bytes > self.bytes_max && self.names.len() > 1 {
            if let Some(((name, ino), kind)) = self.names.pop_last() {
                self.bytes -= Name { name, ino, kind }.bytes();
                self.more = true;
            }
        }
    }
}

impl Filesystem {
    /// All entries of `dir`, sorted by their bytes, without `.` and `..`. For directories of any size:
    /// [`Filesystem::list_after`].
    ///
    /// # Errors
    /// As [`Filesystem::list_after`].
    pub fn list(&self, dir: &InodeRef) -> Result<Vec<Name>> {
        let Names { mut names, mut more } = self.list_after(dir, None)?;
        while more {
            let next = self.list_after(dir, names.last())?;
            more = next.more;
            names.extend(next.names);
        }
        Ok(names)
    }

    /// The first entries of `dir` behind `after`, sorted by their bytes, without `.` and `..`: as many as fit in 24
    /// MiB. An entry that is there twice comes once.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the listing cannot go on, or most of its names are repeated.
    pub fn list_after(&self, dir: &InodeRef, after: Option<&Name>) -> Result<Names> {
        self.list_within(dir, after, BATCH_BYTES)
    }

    fn list_within(&self, dir: &InodeRef, after: Option<&Name>, bytes_max: usize) -> Result<Names> {
        let names = BTreeMap::new();
        let mut batch = Batch { after, names, bytes: 0, bytes_max, more: false, offered: 0, repeated: 0 };
        self.each_item(dir, |item| {
            batch.offer(item);
            if batch.repeated > REPEATED_MAX && batch.repeated > batch.names.len() {
                let detail = format!("{} entries with {} names", batch.offered, batch.names.len());
                return Err(Error::corrupt(Damage::Directory, detail).of(dir.ino));
            }
            Ok(())
        })?;
        let names = batch.names.into_iter().map(|((name, ino), kind)| Name { name, ino, kind }).collect();
        Ok(Names { names, more: batch.more })
    }

    /// Calls `f` for every entry of `dir`, in the order in which the directory has them.
    fn each_item(&self, dir: &InodeRef, mut f: impl FnMut(&DirItem<'_>) -> Result<()>) -> Result<()> {
        let mut cookie = 0;
        loop {
            // The directory is not locked all the time.
            let mut left = 4096;
            let mut done = Ok(());
            let next = self.read_dir(dir, cookie, |item| {
                if left == 0 || done.is_err() {
                    return false;
                }
                left -= 1;
                done = f(&item);
                true
            })?;
            done?;
            // The end: nothing was held back. A cookie that does not move would be a loop.
            if left > 0 || next == cookie {
                return Ok(());
            }
            cookie = next;
        }
    }
}

/// What a [`Walk`] has come to.
#[derive(Clone, Debug)]
pub enum Visit {
    /// A name. If it is a directory, the walk goes on in it, unless told to [`Walk::skip`] it.
    Name(InodeRef),
    /// A directory, the top among them, with everything in it visited.
    Left(InodeRef),
}

/// A directory that is being walked.
#[derive(Debug)]
struct Level {
    ino: InodeNr,
    /// `None` far up.
    dir: Option<InodeRef>,
    /// The names that come next, and the memory that they had in the beginning.
    rest: std::vec::IntoIter<Name>,
    rest_bytes: usize,
    /// The name that was visited last: those behind it that are not in `rest` are read again.
    at: Option<Name>,
    more: bool,
    /// The length of its path.
    path_len: usize,
}

impl Level {
    fn take(&mut self, names: Names) {
        self.rest_bytes = names.names.iter().map(Name::bytes).sum();
        (self.rest, self.more) = (names.names.into_iter(), names.more);
    }

    /// Forgets the names that come next, which can be read again.
    fn forget(&mut self) {
        self.more |= self.rest.len() > 0;
        (self.rest, self.rest_bytes) = (Vec::new().into_iter(), 0);
    }
}

/// A walk under way. Not an iterator, because what it has come to is best asked of it: [`Walk::path`], [`Walk::name`],
/// [`Walk::dir`].
pub struct Walk<'f> {
    fs: &'f Filesystem,
    levels: Vec<Level>,
    path: Vec<u8>,
    /// Where the last name in `path` begins.
    name_at: usize,
    /// To be entered next.
    below: Option<InodeRef>,
    seen: NumberSet,
    reached_again: usize,
    /// The memory of all names in `levels`.
    held: usize,
}

impl<'f> Walk<'f> {
    /// Walks what is in `top`, whose path is `path`; a file contains nothing.
    pub fn new(fs: &'f Filesystem, path: &[u8], top: InodeRef) -> Walk<'f> {
        let below = Some(top).filter(|top| top.is_dir());
        let (seen, levels) = (NumberSet::new(), Vec::new());
        Walk { fs, levels, path: path.to_vec(), name_at: path.len(), below, seen, reached_again: 0, held: 0 }
    }

    /// The path of what was visited last.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// The directory that has it; none for the top.
    pub fn dir(&self) -> Option<&InodeRef> {
        self.levels.last().and_then(|level| level.dir.as_ref())
    }

    /// How far below the top it is: 1 for what the top contains.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// For each directory from the top down to [`Walk::dir`], whether it has further names to visit.
    pub fn more(&self) -> impl Iterator<Item = bool> {
        self.levels.iter().map(|level| level.more || level.rest.len() > 0)
    }

    /// Leaves out what is in the directory that was just visited.
    pub fn skip(&mut self) {
        self.below = None;
    }

    /// Goes on. After an error, which concerns [`Walk::path`], too, leaving out what cannot be read; only an error of a
    /// directory on the way back ends the walk. Not an [`Iterator`]: a `for` would keep the walk from being asked.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Visit>> {
        if let Some(dir) = self.below.take()
            && let Err(e) = self.enter(dir)
        {
            return Some(Err(e));
        }
        if let Err(e) = self.read_on() {
            return Some(Err(e));
        }
        let level = self.levels.last_mut()?;
        let path_len = level.path_len;
        match level.rest.next() {
            Some(entry) => {
                self.point_at(path_len, &entry.name);
                let found = match level_dir(&self.levels) {
                    Ok(dir) => self.fs.lookup(dir, &entry.name),
                    Err(e) => Err(e),
                };
                if let Some(level) = self.levels.last_mut() {
                    level.at = Some(entry);
                }
                Some(found.map(|inode| {
                    self.below = inode.is_dir().then(|| inode.clone());
                    Visit::Name(inode)
                }))
            }
            None => Some(self.leave()),
        }
    }

    /// Reads further names of the directory at hand, if those that were read are used up.
    fn read_on(&mut self) -> Result<()> {
        let Some(level) = self.levels.last_mut().filter(|level| level.more && level.rest.len() == 0) else {
            return Ok(());
        };
        self.held -= level.rest_bytes;
        level.forget();
        // Whatever becomes of it: it is not tried again.
        level.more = false;
        let dir = level.dir.clone().ok_or(Error::NotFound)?;
        level.take(self.fs.list_after(&dir, level.at.as_ref())?);
        self.held += level.rest_bytes;
        Ok(())
    }

    fn point_at(&mut self, path_len: usize, name: &[u8]) {
        self.path.truncate(path_len);
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.name_at = self.path.len();
        self.path.extend_from_slice(name);
    }

    fn enter(&mut self, dir: InodeRef) -> Result<()> {
        let ino = dir.ino;
        match self.seen.insert(ino.0.into()) {
            Some(true) => {}
            // Directories have one name.
            Some(false) if self.reached_again < REACHED_AGAIN_MAX => {
                self.reached_again += 1;
                return Err(Error::corrupt(Damage::Tree, "a directory that is reached a second time").of(ino));
            }
            Some(false) => {
                self.levels.clear();
                let detail = format!("more than {REACHED_AGAIN_MAX} directories are reached a second time; given up");
                return Err(Error::corrupt(Damage::Tree, detail).of(ino));
            }
            None => {
                let detail = "more directories than can be remembered; visit a smaller part of the tree".into();
                return Err(Error::NoMemory { detail });
            }
        }
        if self.levels.len() >= DEPTH_MAX {
            let detail = format!("deeper than {DEPTH_MAX} directories; name one further down");
            return Err(Error::NoMemory { detail });
        }
        let names = self.fs.list_after(&dir, None)?;
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX) {
            self.levels[far].dir = None;
        }
        for level in &mut self.levels {
            if self.held <= HELD_BYTES {
                break;
            }
            self.held -= level.rest_bytes;
            level.forget();
        }
        let rest = Vec::new().into_iter();
        let path_len = self.path.len();
        let mut level = Level { ino, dir: Some(dir), rest, rest_bytes: 0, at: None, more: false, path_len };
        level.take(names);
        self.held += level.rest_bytes;
        self.levels.push(level);
        Ok(())
    }

    fn leave(&mut self) -> Result<Visit> {
        let done = self.levels.pop().ok_or(Error::NotFound)?;
        self.held -= done.rest_bytes;
        self.path.truncate(done.path_len);
        self.name_at = match self.levels.last() {
            Some(up) if up.path_len < done.path_len => {
                let slash = usize::from(self.path.get(up.path_len) == Some(&b'/'));
                up.path_len + slash
            }
            _ => done.path_len,
        };
        if let Some(up) = self.levels.last_mut()
            && up.dir.is_none()
        {
            match self.fs.iget(up.ino) {
                Ok(dir) => up.dir = Some(dir),
                Err(e) => {
                    self.levels.clear();
                    return Err(e);
                }
            }
        }
        done.dir.map(Visit::Left).ok_or(Error::NotFound)
    }
}

fn level_dir(levels: &[Level]) -> Result<&InodeRef> {
    levels.last().and_then(|level| level.dir.as_ref()).ok_or(Error::NotFound)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Cred, MountOptions, NewNode};

    /// However little is remembered at a time, every name comes once, in order.
    #[test]
    fn names_read_in_parts_are_those_read_at_once() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-N", "512"], "8M"));
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let fs = Filesystem::mount(dev, options).expect("mounted");
        let root = fs.root().expect("root");
        for i in 0..300 {
            let name = format!("{:03}", i * 7 % 300);
            fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created");
        }
        let all = fs.list(&root).expect("listed");
        assert!(all.len() == 301 && all.is_sorted_by(|a, b| a.name < b.name));
        for bytes_max in [1, 1000, 10_000] {
            let (mut parts, mut more) = (Vec::new(), true);
            while more {
                let names = fs.list_within(&root, parts.last(), bytes_max).expect("listed");
                assert!(names.names.iter().map(Name::bytes).sum::<usize>() <= bytes_max.max(100));
                more = names.more;
                parts.extend(names.names);
            }
            assert_eq!(parts, all, "{bytes_max} bytes at a time");
        }
        drop(root);
        fs.unmount().expect("unmounted");
    }

    /// A walk that has forgotten the names of every directory on its way reads them again, without the visited ones.
    #[test]
    fn a_walk_that_forgets_names_visits_each_once() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-N", "512"], "8M"));
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let fs = Filesystem::mount(dev, options).expect("mounted");
        let mut dir = fs.root().expect("root");
        for _ in 0..20 {
            for name in [&b"a"[..], b"m", b"z"] {
                fs.create(&dir, name, NewNode::directory(0o755), Cred::default()).expect("created");
            }
            dir = fs.lookup(&dir, b"m").expect("there");
        }
        let visited = |forgets: bool| {
            let mut walk = Walk::new(&fs, b"/", fs.root().expect("root"));
            let mut paths = Vec::new();
            while let Some(visit) = walk.next() {
                if let Visit::Name(_) = visit.expect("readable") {
                    paths.push((walk.path().to_vec(), walk.more().collect::<Vec<_>>()));
                }
                if forgets {
                    walk.levels.iter_mut().for_each(|level| walk.held -= std::mem::take(&mut level.rest_bytes));
                    walk.levels.iter_mut().for_each(Level::forget);
                }
            }
            assert_eq!(walk.held, 0);
            paths
        };
        let all = visited(false);
        assert_eq!((all.len(), visited(true)), (61, all));
        drop(dir);
        fs.unmount().expect("unmounted");
    }
}
