//! Walking a directory tree, for embedding programs and tools.
//!
//! Main types: [`Walk`] (depth first, with sorted names, and every directory once before and once after its content),
//! [`Visit`], [`Name`]. [`Filesystem::list_after`] reads one directory. [`Descent`] is the same for copies, which walk
//! two trees at once. It enforces the bounds of memory, depth and number.
//!
//! # Locking
//! No lock is held between calls.

mod descent;

use std::collections::BTreeMap;

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::ops::DirItem;

pub use self::descent::{Bound, DEPTH_MAX, Descent, Left, REACHED_AGAIN_MAX, Tree};

/// The memory for one batch of a directory's names, in bytes: 200,000 names of ordinary length.
const BATCH_BYTES: usize = 24 << 20;
/// The maximum number of names that a directory may repeat. If a map or an index refers to one block many times, its
/// names are repeated as often, so a small image could take unlimited time.
const REPEATED_MAX: usize = 65_536;
/// The number of directories on the path that stay open. One further up is loaded again by its number.
const OPEN_MAX: usize = 64;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name: 1 to 255 bytes, without slash and NUL.
    pub name: Vec<u8>,
    /// The inode that the name refers to.
    pub ino: InodeNr,
    /// The type in the entry; `None` if the directory does not store it.
    pub kind: Option<FileType>,
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.name
    }
}

impl Name {
    /// The memory that the name takes, including its place in a tree.
    fn bytes(&self) -> usize {
        2 * size_of::<Name>() + self.name.len()
    }
}

/// The names of a directory, sorted by their bytes.
#[derive(Debug)]
pub struct Names {
    /// The first of the requested names.
    pub names: Vec<Name>,
    /// Whether more names follow.
    pub more: bool,
}

/// The first names after a given one, collected while a directory is read completely.
struct Batch<'a> {
    after: Option<&'a Name>,
    names: BTreeMap<(Vec<u8>, InodeNr), Option<FileType>>,
    bytes: usize,
    bytes_max: usize,
    more: bool,
    /// The number of names seen, and the number of repeated ones among them.
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
    /// All entries of `dir`, sorted by their bytes, without `.` and `..`. For directories of any size, use
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

    /// The first entries of `dir` after `after`, sorted by their bytes, without `.` and `..`: as many as fit in 24 MiB.
    /// A repeated entry appears once.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the listing cannot continue, or most of its names are repeated.
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

    /// Calls `f` for every entry of `dir`, in the directory's order.
    fn each_item(&self, dir: &InodeRef, mut f: impl FnMut(&DirItem<'_>) -> Result<()>) -> Result<()> {
        let mut cookie = 0;
        loop {
            // Unlock the directory from time to time.
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
            // This is the end: no entries are left. The second check prevents an endless loop if the cookie does not
            // advance.
            if left > 0 || next == cookie {
                return Ok(());
            }
            cookie = next;
        }
    }
}

/// One step of a [`Walk`].
#[derive(Clone, Debug)]
pub enum Visit {
    /// A name. If it is a directory, the walk enters it next, unless the caller calls [`Walk::skip`].
    Name(InodeRef),
    /// A directory, or the top, whose content has been visited.
    Left(InodeRef),
}

/// The directories of a file system.
struct Inodes<'f>(&'f Filesystem);

/// A directory on the path of a walk, open or not.
struct Mark {
    ino: InodeNr,
    /// The length of its path.
    path_len: usize,
}

impl Tree for Inodes<'_> {
    type Dir = InodeRef;
    type Mark = Mark;
    type Name = Name;
    type Error = Error;
    const OPEN_MAX: usize = OPEN_MAX;

    fn id(&self, dir: &InodeRef, _mark: &Mark) -> (u64, u64) {
        (0, dir.ino.0.into())
    }

    fn names(&self, dir: &InodeRef, after: Option<&Name>) -> Result<(Vec<Name>, bool)> {
        let Names { names, more } = self.0.list_after(dir, after)?;
        Ok((names, more))
    }

    fn reopen(&self, _below: &InodeRef, mark: &Mark) -> Result<InodeRef> {
        self.0.iget(mark.ino)
    }

    fn refused(&self, dir: &InodeRef, _mark: &Mark, bound: Bound) -> Error {
        let tree = |detail: String| Error::corrupt(Damage::Tree, detail).of(dir.ino);
        match bound {
            Bound::ReachedAgain => tree("a directory that is reached a second time".into()),
            Bound::GivenUp => {
                tree(format!("more than {REACHED_AGAIN_MAX} directories are reached a second time; given up"))
            }
            Bound::TooMany => {
                let detail = "more directories than can be remembered; visit a smaller part of the tree".into();
                Error::NoMemory { detail }
            }
            Bound::TooDeep => {
                let detail = format!("deeper than {DEPTH_MAX} directories; name one further down");
                Error::NoMemory { detail }
            }
        }
    }
}

/// A walk in progress. It is not an iterator, because callers use [`Walk::path`], [`Walk::name`] and [`Walk::dir`]
/// between steps.
pub struct Walk<'f> {
    fs: Inodes<'f>,
    descent: Descent<Inodes<'f>>,
    path: Vec<u8>,
    /// The start of the last name in `path`.
    name_at: usize,
    /// The directory to enter next.
    below: Option<InodeRef>,
}

impl<'f> Walk<'f> {
    /// Walks the content of `top`, whose path is `path`. A file has no content to walk.
    pub fn new(fs: &'f Filesystem, path: &[u8], top: InodeRef) -> Walk<'f> {
        let below = Some(top).filter(|top| top.is_dir());
        Walk { fs: Inodes(fs), descent: Descent::new(), path: path.to_vec(), name_at: path.len(), below }
    }

    /// The path of the last visit.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The name of the last visit.
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// The directory that contains the last visit; `None` for the top.
    pub fn dir(&self) -> Option<&InodeRef> {
        self.descent.current().map(|(dir, _)| dir)
    }

    /// The depth of the last visit below the top: 1 for the content of the top.
    pub fn depth(&self) -> usize {
        self.descent.depth()
    }

    /// For each directory from the top down to [`Walk::dir`], whether it has further names to visit.
    pub fn more(&self) -> impl Iterator<Item = bool> {
        self.descent.more()
    }

    /// Skips the content of the directory just visited.
    pub fn skip(&mut self) {
        self.below = None;
    }

    /// The next step. An error applies to [`Walk::path`], and the walk then continues without the unreadable part. Only
    /// an error of a directory on the way back ends the walk. This is not an [`Iterator`], because a `for` loop would
    /// borrow the walk.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Visit>> {
        if let Some(dir) = self.below.take() {
            let mark = Mark { ino: dir.ino, path_len: self.path.len() };
            if let Err(e) = self.descent.enter(&self.fs, dir, mark) {
                return Some(Err(e));
            }
        }
        match self.descent.advance(&self.fs) {
            Ok(true) => {}
            Ok(false) => return self.leave(),
            Err(e) => return Some(Err(e)),
        }
        let ((dir, mark), name) = self.descent.current().zip(self.descent.name())?;
        self.path.truncate(mark.path_len);
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.name_at = self.path.len();
        self.path.extend_from_slice(&name.name);
        Some(self.fs.0.lookup(dir, &name.name).map(|inode| {
            self.below = inode.is_dir().then(|| inode.clone());
            Visit::Name(inode)
        }))
    }

    fn leave(&mut self) -> Option<Result<Visit>> {
        let done_len = self.descent.current()?.1.path_len;
        let left = self.descent.leave(&self.fs);
        self.path.truncate(done_len);
        self.name_at = match self.descent.current() {
            Some((_, up)) if up.path_len < done_len => {
                let slash = usize::from(self.path.get(up.path_len) == Some(&b'/'));
                up.path_len + slash
            }
            _ => done_len,
        };
        left.transpose().map(|left| left.map(|(dir, _)| Visit::Left(dir)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Cred, MountOptions, NewNode};

    /// For any batch size, every name appears once, in order.
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

    /// A walk that has dropped the names of every directory on its path reads them again, without those that it has
    /// visited.
    #[test]
    fn a_walk_that_drops_names_visits_each_once() {
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
                    walk.descent.forget();
                }
            }
            assert_eq!(walk.descent.held(), 0);
            paths
        };
        let all = visited(false);
        assert_eq!((all.len(), visited(true)), (61, all));
        drop(dir);
        fs.unmount().expect("unmounted");
    }
}
