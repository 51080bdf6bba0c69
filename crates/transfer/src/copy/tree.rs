//! The copy: one source after the other, trees without recursion.
//!
//! Main types: [`struct@Copy`] (the state of a whole copy), [`Tree`] (one tree in progress), [`Pair`] (its two sides,
//! which an `extant_fs::walk::Descent` goes down at once). So depth costs no descriptors and little memory. Files with
//! several names are stored by number until all their names were met, so that the copy has the same links.
//!
//! # Locking
//! None.

use std::collections::HashMap;
use std::io::{self, Read};
use std::rc::Rc;

use extant_fs::Error as FsError;
use extant_fs::number_set::FileSet;
use extant_fs::walk::{self, Bound, DEPTH_MAX, Descent, REACHED_AGAIN_MAX};
use extant_image::shown;
use extant_ondisk::inode::FileType;

use super::side::{Content, Id, Node, Sink, Source};
use crate::attributes::Xattrs;
use crate::content::CHUNK_BYTES;
use crate::error::{Cause, Error, Place as ErrorPlace, Result, Step};
use crate::path::{joined, push, split, split_last};
use crate::watch::Watch;

/// How many directories on the way down stay open; for those further up only the number is stored.
const OPEN_MAX: usize = 16;
/// The maximum of stored files with several names; they take 40 MiB.
pub const LINKS_MAX: usize = 1 << 18;

/// Zeroes of this length, aligned to it, become a hole if holes are made.
const HOLE_BYTES: usize = 64 << 10;

/// Rules for both sides of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Directories are copied with all their content; symbolic links that the user names are copied, not followed.
    pub recursive: bool,
    /// A file that exists already is left as it is.
    pub no_clobber: bool,
    /// A symbolic link to a directory stands for that directory in the destination.
    pub keep_directory_symlink: bool,
    /// Long runs of zeroes become holes, too.
    pub makes_holes: bool,
    /// A device, a fifo or a socket is an error.
    pub no_specials: bool,
}

/// The place of a directory in the destination.
struct Spot {
    /// None for the path that the user named.
    parent: Option<Rc<Spot>>,
    /// A name, or the path that the user named.
    name: Vec<u8>,
}

impl Drop for Spot {
    /// In a loop: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.parent.take();
        while let Some(mut place) = above.and_then(|place| Rc::try_unwrap(place).ok()) {
            above = place.parent.take();
        }
    }
}

/// A file with several names, copied once.
struct CopiedFile {
    id: Id,
    place: Rc<Spot>,
    name: Box<[u8]>,
    /// How many of its names the copy has not met yet.
    left: u64,
}

/// The error for a set of files that is full.
fn full() -> Cause {
    Cause::refused("more files than can be remembered; copy a smaller part of the tree")
}

/// A copy in progress.
pub struct Copy<'a, S: Sink> {
    sink: &'a S,
    options: Options,
    watch: &'a dyn Watch,
    /// Files with several names, by source file system and file.
    links: HashMap<(Option<usize>, Id), CopiedFile>,
    /// Copied files with several names, and symbolic links: a later source must not reach them by name.
    made: FileSet,
    symlinks: FileSet,
    /// Files copied without their links, because there were too many files with several names.
    parted: u64,
}

/// The two sides of a tree.
struct Pair<'p, R, S> {
    source: &'p R,
    sink: &'p S,
}

/// An error of one of the sides.
enum Fault {
    Source(Cause),
    Sink(Cause),
}

/// A directory on the path of a copy, open or not.
struct Mark {
    node: Node,
    to_id: Id,
    place: Rc<Spot>,
    /// The lengths of the paths.
    from_len: usize,
    to_len: usize,
}

impl<R: Source, S: Sink> walk::Tree for Pair<'_, R, S> {
    type Dir = (R::Entry, S::Dir);
    type Mark = Mark;
    type Name = Vec<u8>;
    type Error = Fault;
    const OPEN_MAX: usize = OPEN_MAX;

    fn id(&self, _dir: &Self::Dir, mark: &Mark) -> Id {
        mark.node.id
    }

    fn names(
        &self,
        (from, _): &Self::Dir,
        after: Option<&Vec<u8>>,
    ) -> std::result::Result<(Vec<Vec<u8>>, bool), Fault> {
        self.source.names(from, after.map(Vec::as_slice)).map_err(Fault::Source)
    }

    fn reopen(&self, (from, to): &Self::Dir, mark: &Mark) -> std::result::Result<Self::Dir, Fault> {
        let from = self.source.parent(from, mark.node.id).map_err(Fault::Source)?;
        Ok((from, self.sink.parent(to, mark.to_id).map_err(Fault::Sink)?))
    }

    fn refused(&self, _dir: &Self::Dir, _mark: &Mark, bound: Bound) -> Fault {
        Fault::Source(match bound {
            Bound::ReachedAgain => Cause::refused("directory is reached a second time"),
            Bound::GivenUp => {
                Cause::refused(format!("more than {REACHED_AGAIN_MAX} directories are reached a second time; given up"))
            }
            Bound::TooMany => full(),
            Bound::TooDeep => Cause::refused(format!("deeper than {DEPTH_MAX} directories; copy one further down")),
        })
    }
}

/// A tree that is being copied.
struct Tree<'p, R: Source, S: Sink> {
    sides: Pair<'p, R, S>,
    descent: Descent<Pair<'p, R, S>>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl<'p, R: Source, S: Sink> Tree<'p, R, S> {
    fn new(source: &'p R, sink: &'p S, from: &[u8], to: Vec<u8>) -> Tree<'p, R, S> {
        Tree { sides: Pair { source, sink }, descent: Descent::new(), from: from.to_vec(), to }
    }

    fn failed(&self, fault: Fault) -> Error {
        match fault {
            Fault::Source(cause) => cause.at(|| self.sides.source.place(&self.from)),
            Fault::Sink(cause) => cause.at(|| self.sides.sink.place(&self.to)),
        }
    }

    /// Enters the directories at the paths `from` and `to`.
    fn enter(&mut self, from: R::Entry, node: Node, to: S::Dir, place: Rc<Spot>) -> Result<()> {
        let to_id = self.sides.sink.id(&to).map_err(|e| self.failed(Fault::Sink(e)))?;
        let mark = Mark { node, to_id, place, from_len: self.from.len(), to_len: self.to.len() };
        let entered = self.descent.enter(&self.sides, (from, to), mark);
        entered.map_err(|e| self.failed(e))
    }
}

/// The destination of one name.
struct Item<'i, D> {
    parent: &'i D,
    place: &'i Rc<Spot>,
    name: &'i [u8],
    from: &'i [u8],
    to: &'i [u8],
    /// The user named the destination.
    named: bool,
}

impl<'a, S: Sink> Copy<'a, S> {
    /// A copy of one source or several into `sink`.
    pub fn new(sink: &'a S, options: Options, watch: &'a dyn Watch) -> Copy<'a, S> {
        Copy {
            sink,
            options,
            watch,
            links: HashMap::new(),
            made: FileSet::default(),
            symlinks: FileSet::default(),
            parted: 0,
        }
    }

    /// How many files with several names were copied once for each name: more than [`LINKS_MAX`] had names to come.
    pub fn parted(&self) -> u64 {
        self.parted
    }

    /// The path of a copied file.
    fn path(made: &CopiedFile) -> Vec<&[u8]> {
        let mut path = vec![&*made.name];
        let mut at = Some(&made.place);
        while let Some(place) = at {
            path.push(&place.name);
            at = place.parent.as_ref();
        }
        path.reverse();
        path
    }

    /// Copies one source. An error of one file in a tree goes to [`Watch::failed`].
    ///
    /// # Errors
    /// The source cannot be copied at all, or the watch ends the copy.
    pub fn source<R: Source>(&mut self, source: &R, path: &[u8], to: &[u8], into_dir: bool) -> Result<()> {
        let here = |e: Cause| e.at(|| source.place(path));
        let top = source.top(path, !self.options.recursive).map_err(here)?;
        let node = source.node(&top).map_err(here)?;
        let (_, name) = split_last(path);
        let whole_tree = node.is_dir() && matches!(name, b"" | b"." | b"..");
        if node.is_dir() && !self.options.recursive {
            return Err(here(Cause::Directory));
        }
        // The content of "/" or "." goes into the existing directory; anything else becomes a name in it.
        let (parent_path, name) = match into_dir {
            true if whole_tree => (to.to_vec(), Vec::new()),
            true => (to.to_vec(), name.to_vec()),
            false => split(to)?,
        };
        if !into_dir && !node.is_dir() {
            no_directory(to)?;
        }
        let whole_path = if name.is_empty() { to.to_vec() } else { joined(&parent_path, &name) };
        let there = |e: Cause| e.at(|| self.sink.place(&parent_path));
        let parent = self.sink.top(&parent_path).map_err(there)?;
        if node.is_dir() && self.shares(source) && self.sink.is_within(&parent, node.id).map_err(there)? {
            return Err(here(Cause::IntoItself(self.sink.place(&whole_path))));
        }
        let place = Rc::new(Spot { parent: None, name: parent_path.clone() });
        if name.is_empty() {
            return self.tree(Tree::new(source, self.sink, path, whole_path), top, node, parent, place);
        }
        let item = Item { parent: &parent, place: &place, name: &name, from: path, to: &whole_path, named: true };
        if !node.is_dir() {
            return self.file(source, &top, &node, &item);
        }
        let dir = self.directory(source, &node, &item)?;
        drop(parent);
        let place = Rc::new(Spot { parent: Some(place), name });
        self.tree(Tree::new(source, self.sink, path, whole_path), top, node, dir, place)
    }

    /// Copies a stream, whose length is known at its end, into the file `to` with the attributes `node`.
    ///
    /// # Errors
    /// The stream cannot be read, `to` cannot be written, or the watch ends the copy.
    pub fn stream(&mut self, from: &mut dyn Read, name: &ErrorPlace, node: &Node, to: &[u8]) -> Result<()> {
        no_directory(to)?;
        let (parent, file_name) = split(to)?;
        let at = |e: Cause| e.at(|| self.sink.place(to));
        let parent = self.sink.top(&parent).map_err(at)?;
        if self.options.no_clobber && self.sink.look(&parent, &file_name).map_err(at)?.is_some() {
            return Ok(());
        }
        let file = self.sink.file(&parent, &file_name, true, None).map_err(at)?;
        let mut buf = vec![0; CHUNK_BYTES];
        let mut size = 0;
        loop {
            let read = from.read(&mut buf);
            self.go_on()?;
            match read {
                Ok(0) => break,
                Ok(n) => {
                    self.sink.write(&file, size, &buf[..n]).map_err(at)?;
                    size += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Cause::Host(e).at(|| name.clone())),
            }
        }
        self.sink.finish_file(file, &Node { size, ..node.clone() }, &Vec::new()).map_err(at)?;
        self.say(|| name.clone(), to)
    }

    /// Fails once the watch has stopped the copy.
    fn go_on(&self) -> Result<()> {
        if self.watch.is_stopped() { Err(Cause::Stopped.at(|| ErrorPlace::host(b""))) } else { Ok(()) }
    }

    /// Whether both sides lie in one image.
    fn shares<R: Source>(&self, source: &R) -> bool {
        source.image().is_some() && source.image() == self.sink.image()
    }

    fn tree<R: Source>(
        &mut self,
        mut tree: Tree<'_, R, S>,
        from: R::Entry,
        node: Node,
        to: S::Dir,
        place: Rc<Spot>,
    ) -> Result<()> {
        let image = tree.sides.source.image();
        tree.enter(from, node, to, place)?;
        while let Some((_, mark)) = tree.descent.current() {
            tree.from.truncate(mark.from_len);
            tree.to.truncate(mark.to_len);
            let done = match tree.descent.advance(&tree.sides) {
                Ok(true) => self.step(&mut tree),
                Ok(false) => self.leave(&mut tree)?,
                Err(e) => Err(tree.failed(e)),
            };
            self.went_well(image, done)?;
        }
        Ok(())
    }

    /// Copies the current name of the current directory.
    fn step<R: Source>(&mut self, tree: &mut Tree<'_, R, S>) -> Result<()> {
        let source = tree.sides.source;
        let Some((((dir, parent), mark), name)) = tree.descent.current().zip(tree.descent.name()) else {
            return Ok(());
        };
        if name.contains(&b'/') || name.contains(&0) || matches!(&name[..], b"" | b"." | b"..") {
            let cause = Cause::refused(format!("refusing the name '{}'", shown(name)));
            return Err(cause.at(|| source.place(&tree.from)));
        }
        push(&mut tree.from, name);
        push(&mut tree.to, name);
        let here = |e: Cause| e.at(|| source.place(&tree.from));
        let entry = source.child(dir, name).map_err(here)?;
        let node = source.node(&entry).map_err(here)?;
        let item = Item { parent, place: &mark.place, name, from: &tree.from, to: &tree.to, named: false };
        if !node.is_dir() {
            return self.file(source, &entry, &node, &item);
        }
        let to = self.directory(source, &node, &item)?;
        let place = Rc::new(Spot { parent: Some(mark.place.clone()), name: name.clone() });
        tree.enter(entry, node, to, place)
    }

    /// Finishes the current directory. The outer error: the parent directory cannot be reached.
    fn leave<R: Source>(&mut self, tree: &mut Tree<'_, R, S>) -> Result<Result<()>> {
        let source = tree.sides.source;
        // Opens the one above before this one has its mode, which may deny access.
        let left = tree.descent.leave(&tree.sides).map_err(|e| tree.failed(e))?;
        let Some(((from, to), Mark { node, .. })) = left else { return Ok(Ok(())) };
        // Last, because adding files changes its times.
        let (xattrs, missed) = source.xattrs(&from);
        let missed = missed.map_err(|e| e.at(|| source.place(&tree.from)));
        let node = if missed.is_err() { node.guarded() } else { node };
        let finished = self.sink.finish_directory(to, &node, &xattrs).map_err(|e| e.at(|| self.sink.place(&tree.to)));
        Ok(finished.and(missed))
    }

    fn directory<R: Source>(&mut self, source: &R, node: &Node, item: &Item<'_, S::Dir>) -> Result<S::Dir> {
        self.go_on()?;
        let at = |e: Cause| e.at(|| self.sink.place(item.to));
        if self.shares(source) {
            let there = self.sink.look(item.parent, item.name).map_err(at)?;
            if there.is_some_and(|(_, id)| id == node.id) {
                return Err(at(Cause::refused("it is the same file")));
            }
        }
        let mut follow = self.options.keep_directory_symlink;
        if follow && let Some((FileType::Symlink, id)) = self.sink.look(item.parent, item.name).map_err(at)? {
            // A symbolic link from the sources may lead anywhere.
            follow = !self.symlinks.contains(id);
        }
        let dir = self.sink.directory(item.parent, item.name, follow).map_err(at)?;
        if follow && self.shares(source) && self.sink.is_within(&dir, node.id).map_err(at)? {
            return Err(at(Cause::refused("it leads into the directory that is copied")));
        }
        self.say(|| source.place(item.from), item.to)?;
        Ok(dir)
    }

    /// Copies a file that is not a directory, and counts it if it is whole.
    fn file<R: Source>(&mut self, source: &R, entry: &R::Entry, node: &Node, item: &Item<'_, S::Dir>) -> Result<()> {
        self.any_file(source, entry, node, item)?;
        self.watch.is_whole(source.image());
        Ok(())
    }

    fn any_file<R: Source>(
        &mut self,
        source: &R,
        entry: &R::Entry,
        node: &Node,
        item: &Item<'_, S::Dir>,
    ) -> Result<()> {
        self.go_on()?;
        let here = |e: Cause| e.at(|| source.place(item.from));
        if source.image().is_none() && self.watch.is_written_image(node.id) {
            return Err(here(Cause::refused("is the image that is written")));
        }
        if self.options.no_specials && !matches!(node.kind, FileType::Regular | FileType::Symlink) {
            return Err(here(FsError::NotSupported("a device, a pipe or a socket cannot be copied").into()));
        }
        let at = |e: Cause| e.at(|| self.sink.place(item.to));
        let there = self.sink.look(item.parent, item.name).map_err(at)?;
        if let Some((kind, id)) = there {
            if self.shares(source) && id == node.id {
                return Err(at(Cause::refused("it is the same file")));
            }
            if self.options.no_clobber {
                return Ok(());
            }
            if kind == FileType::Symlink && self.symlinks.contains(id) && node.kind == FileType::Regular {
                return Err(at(Cause::refused("not written through a symbolic link that was just copied")));
            }
            if self.made.remove(id) {
                self.links.retain(|_, made| made.id != id);
            }
        }
        let several = node.links > 1;
        let key = (source.image(), node.id);
        if several && let Some(made) = self.links.get_mut(&key) {
            made.left = made.left.saturating_sub(1);
            let (met_all, path) = (made.left == 0, Self::path(made));
            let linked = self.sink.link(made.id, &path, item.parent, item.name).map_err(at)?;
            if met_all {
                self.links.remove(&key);
            }
            if linked {
                return self.say(|| source.place(item.from), item.to);
            }
        }
        // The file is worth copying even without its attributes.
        let (xattrs, missed) = source.xattrs(entry);
        let missed = missed.map_err(here);
        let guarded;
        let node = if missed.is_err() {
            guarded = node.guarded();
            &guarded
        } else {
            node
        };
        let made = match node.kind {
            FileType::Regular => Some(self.regular(source, entry, node, &xattrs, item)?),
            kind => {
                let target = if kind == FileType::Symlink { source.target(entry).map_err(here)? } else { Vec::new() };
                let made = self.sink.special(item.parent, item.name, node, &target, &xattrs).map_err(at)?;
                if kind == FileType::Symlink {
                    made.map_or(Some(true), |id| self.symlinks.insert(id)).ok_or_else(full).map_err(at)?;
                }
                made
            }
        };
        if let Some(id) = made.filter(|_| several) {
            self.made.insert(id).ok_or_else(full).map_err(at)?;
            if self.links.len() < LINKS_MAX || self.links.contains_key(&key) {
                let left = node.links - 1;
                self.links.insert(key, CopiedFile { id, place: item.place.clone(), name: item.name.into(), left });
            } else {
                self.parted += 1;
            }
        }
        if made.is_some() {
            self.say(|| source.place(item.from), item.to)?;
        }
        missed.and(source.doubt(entry).map_err(here))
    }

    fn regular<R: Source>(
        &self,
        source: &R,
        entry: &R::Entry,
        node: &Node,
        xattrs: &Xattrs,
        item: &Item<'_, S::Dir>,
    ) -> Result<Id> {
        let here = |e: Cause| e.at(|| source.place(item.from));
        let at = |e: Cause| e.at(|| self.sink.place(item.to));
        self.watch.begins(item.name, node.size);
        let same = self.shares(source).then_some(node.id);
        let file = self.sink.file(item.parent, item.name, item.named, same).map_err(at)?;
        let read = source.read(entry, &mut |offset, data| {
            self.go_on()?;
            self.watch.advances(offset + data.len() as u64);
            self.write(&file, offset, data).map_err(at)
        });
        let Content { size, shrank, missing } = read.map_err(here)?;
        let id = self.sink.finish_file(file, &Node { size, ..node.clone() }, xattrs).map_err(at)?;
        match missing {
            Some(missing) => Err(here(Cause::Missing(missing))),
            None if shrank => Err(here(Cause::Shrank(size))),
            None => Ok(id),
        }
    }

    fn write(&self, file: &S::File, mut offset: u64, mut data: &[u8]) -> Step<()> {
        if !self.options.makes_holes {
            return self.sink.write(file, offset, data);
        }
        while !data.is_empty() {
            let until_aligned = HOLE_BYTES - (offset % HOLE_BYTES as u64) as usize;
            let (piece, rest) = data.split_at(data.len().min(until_aligned));
            if piece.len() < HOLE_BYTES || piece.iter().any(|byte| *byte != 0) {
                self.sink.write(file, offset, piece)?;
            }
            (offset, data) = (offset + piece.len() as u64, rest);
        }
        Ok(())
    }

    /// Reports the copy.
    fn say(&self, from: impl FnOnce() -> ErrorPlace, to: &[u8]) -> Result<()> {
        let to = self.sink.place(to);
        self.watch.copied(&from(), &to).map_err(|e| Cause::Output(e).at(|| to))
    }

    /// Passes on the error of one file; returns an error that ends the copy. `image`: of the source.
    fn went_well(&self, image: Option<usize>, result: Result<()>) -> Result<()> {
        match result {
            Err(e) if e.is_of_one() => self.watch.failed(image, e),
            other => other,
        }
    }
}

/// A path that ends in a slash names a directory; no other file can have it.
fn no_directory(path: &[u8]) -> Result<()> {
    if path.ends_with(b"/") { Err(Cause::Image(FsError::NotDirectory).at(|| ErrorPlace::host(path))) } else { Ok(()) }
}
