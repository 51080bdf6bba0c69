//! The copy: one source after the other, trees without recursion.
//!
//! Main types: [`struct@Copy`] (the state of a whole command), [`Tree`] (one tree in progress). A tree has two paths,
//! a few open directories on either side, and for each directory on the way its number and its remaining names.
//! Beyond a bound, names are dropped and read again. So depth costs no descriptors and little memory. Files with
//! several names are stored by number until all their names were met, so that the copy has the same links.
//!
//! # Locking
//! None.

use std::collections::HashMap;
use std::rc::Rc;

use extant_fs::number_set::NumberSet;
use extant_fs::walk::{DEPTH_MAX, REACHED_AGAIN_MAX};
use extant_ondisk::inode::FileType;

use super::progress::Progress;
use super::side::{Content, Id, Node, Sink, Source, Step, Trouble, Xattrs};
use super::stream;
use crate::args::CpArgs;
use crate::failure::{Failure, Report, Result};
use crate::opened;
use crate::rescued::{Did, Tally};
use crate::server::signals::Stop;
use crate::text::{Output, shown, split_last};

/// How many directories on the way down stay open; for those further up only the number is stored.
const OPEN_MAX: usize = 16;
/// The memory of the remaining names, in all directories but the last.
const HELD_BYTES: usize = 16 << 20;
/// The maximum of stored files with several names; they take 40 MiB.
const LINKS_MAX: usize = 1 << 18;

/// The place of a directory in the destination.
struct Place {
    /// None for the path that the user named.
    parent: Option<Rc<Place>>,
    /// A name, or the path that the user named.
    name: Vec<u8>,
}

impl Drop for Place {
    /// In a loop: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.parent.take();
        while let Some(mut place) = above.and_then(|place| Rc::try_unwrap(place).ok()) {
            above = place.parent.take();
        }
    }
}

/// A file with several names, copied once.
struct Made {
    id: Id,
    place: Rc<Place>,
    name: Box<[u8]>,
    /// How many of its names were not met yet.
    left: u64,
}

/// A set of files on one side.
#[derive(Default)]
struct Files(HashMap<u64, NumberSet>);

impl Files {
    /// Whether the file is new in the set. Fails if there are too many.
    fn insert(&mut self, (device, number): Id) -> Step<bool> {
        let full = || Trouble::here("more files than can be remembered; copy a smaller part of the tree");
        self.0.entry(device).or_default().insert(number).ok_or_else(full)
    }

    fn contains(&self, (device, number): Id) -> bool {
        self.0.get(&device).is_some_and(|numbers| numbers.contains(number))
    }

    fn remove(&mut self, (device, number): Id) -> bool {
        self.0.get_mut(&device).is_some_and(|numbers| numbers.remove(number))
    }
}

/// A copy in progress.
pub struct Copy<'a, S: Sink> {
    sink: &'a S,
    args: &'a CpArgs,
    recursive: bool,
    stop: &'a Stop,
    progress: Progress,
    /// Directories entered, for the current source.
    seen: Files,
    /// How often one of them was reached again.
    again: usize,
    /// By source file system and file.
    links: HashMap<(Option<usize>, Id), Made>,
    /// Copied files with several names, and symbolic links: a later source must not reach them by name.
    made: Files,
    symlinks: Files,
    /// Files copied without their links, because there were too many files with several names.
    parted: u64,
    report: Report,
    tally: Tally,
}

/// A directory that is being copied.
struct Level<E, D> {
    node: Node,
    /// `None` far above.
    from: Option<E>,
    to: Option<D>,
    to_id: Id,
    place: Rc<Place>,
    /// The next names, and their memory at the start.
    names: std::vec::IntoIter<Vec<u8>>,
    names_bytes: usize,
    /// The last name copied: the names after it that are not in `names` are read again.
    at: Option<Vec<u8>>,
    more: bool,
    /// The lengths of the paths.
    from_len: usize,
    to_len: usize,
}

/// A tree that is being copied.
struct Tree<E, D> {
    levels: Vec<Level<E, D>>,
    /// The memory of all names in `levels`.
    held: usize,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl<E, D> Tree<E, D> {
    fn new(from: &[u8], to: Vec<u8>) -> Tree<E, D> {
        Tree { levels: Vec::new(), held: 0, from: from.to_vec(), to }
    }
}

/// The destination of one name.
struct Item<'i, D> {
    parent: &'i D,
    place: &'i Rc<Place>,
    name: &'i [u8],
    from: &'i [u8],
    to: &'i [u8],
    /// The user named the destination.
    named: bool,
}

impl<'a, S: Sink> Copy<'a, S> {
    pub fn new(sink: &'a S, args: &'a CpArgs, stop: &'a Stop) -> Copy<'a, S> {
        Copy {
            sink,
            args,
            recursive: args.recursive || args.archive,
            stop,
            progress: Progress::new(),
            seen: Files::default(),
            again: 0,
            links: HashMap::new(),
            made: Files::default(),
            symlinks: Files::default(),
            parted: 0,
            report: Report::default(),
            tally: Tally::new(Did::Read),
        }
    }

    /// The result of the whole copy.
    pub fn end(mut self) -> (Tally, Result<()>) {
        self.progress.end();
        if self.parted > 0 {
            let parted = self.parted;
            self.report.complain(Failure::op(format!(
                "{parted} files with several names were copied once for each name: of more than {LINKS_MAX} files some \
                 names were still to come; copy smaller parts of the tree"
            )));
        }
        (self.tally, self.report.end())
    }

    /// The path of a copied file.
    fn path(made: &Made) -> Vec<&[u8]> {
        let mut path = vec![&*made.name];
        let mut at = Some(&made.place);
        while let Some(place) = at {
            path.push(&place.name);
            at = place.parent.as_ref();
        }
        path.reverse();
        path
    }

    /// Copies one source. Prints an error for each part that fails.
    pub fn source<R: Source>(&mut self, source: &R, path: &[u8], to: &[u8], into_dir: bool) -> Result<()> {
        (self.seen, self.again) = (Files::default(), 0);
        let here = |e: Trouble| e.at(|| source.show(path));
        let top = source.top(path, !self.recursive).map_err(here)?;
        let node = source.node(&top).map_err(here)?;
        let (_, name) = split_last(path);
        let whole_tree = node.is_dir() && matches!(name, b"" | b"." | b"..");
        if node.is_dir() && !self.recursive {
            return Err(Failure::op(format!("{}: is a directory (copy it with -r)", source.show(path))));
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
        let there = |e: Trouble| e.at(|| self.sink.show(&parent_path));
        let parent = self.sink.top(&parent_path).map_err(there)?;
        if node.is_dir() && self.shares(source) && self.sink.is_within(&parent, node.id).map_err(there)? {
            return Err(Failure::op(format!(
                "cannot copy a directory, {}, into itself, {}",
                source.show(path),
                self.sink.show(&whole_path)
            )));
        }
        let place = Rc::new(Place { parent: None, name: parent_path.clone() });
        if name.is_empty() {
            return self.tree(source, Tree::new(path, whole_path), top, node, parent, place);
        }
        let item = Item { parent: &parent, place: &place, name: &name, from: path, to: &whole_path, named: true };
        if !node.is_dir() {
            return self.file(source, &top, &node, &item);
        }
        let dir = self.directory(source, &node, &item)?;
        drop(parent);
        let place = Rc::new(Place { parent: Some(place), name });
        self.tree(source, Tree::new(path, whole_path), top, node, dir, place)
    }

    /// Copies standard input.
    pub fn stream(&mut self, to: &[u8], into_dir: bool) -> Result<()> {
        if into_dir {
            return Err(Failure::op(format!("{}: is a directory; standard input needs a name", self.sink.show(to))));
        }
        no_directory(to)?;
        let (parent, name) = split(to)?;
        let at = || self.sink.show(to);
        let parent = self.sink.top(&parent).map_err(|e| e.at(at))?;
        if self.args.no_clobber && self.sink.look(&parent, &name).map_err(|e| e.at(at))?.is_some() {
            return Ok(());
        }
        let file = self.sink.file(&parent, &name, true, None).map_err(|e| e.at(at))?;
        let size = stream::fill(self.sink, &file, &at, self.stop)?;
        self.sink.finish_file(file, &stream::node(size), &Vec::new()).map_err(|e| e.at(at))?;
        self.say(|| "-".into(), to)
    }

    /// Whether both sides lie in one image.
    fn shares<R: Source>(&self, source: &R) -> bool {
        source.image().is_some() && source.image() == self.sink.image()
    }

    fn enter<R: Source>(
        &mut self,
        source: &R,
        tree: &mut Tree<R::Entry, S::Dir>,
        (from, node): (R::Entry, Node),
        to: S::Dir,
        place: Rc<Place>,
    ) -> Result<()> {
        let here = |e: Trouble| e.at(|| source.show(&tree.from));
        if !self.seen.insert(node.id).map_err(here)? {
            self.again += 1;
            if self.again <= REACHED_AGAIN_MAX {
                return Err(here(Trouble::here("directory is reached a second time")));
            }
            tree.levels.clear();
            let cause = format!("more than {REACHED_AGAIN_MAX} directories are reached a second time; given up");
            return Err(here(Trouble::here(cause)));
        }
        if tree.levels.len() >= DEPTH_MAX {
            let cause = format!("deeper than {DEPTH_MAX} directories; copy one further down");
            return Err(here(Trouble::here(cause)));
        }
        let (names, more) = source.names(&from, None).map_err(here)?;
        let to_id = self.sink.id(&to).map_err(|e| e.at(|| self.sink.show(&tree.to)))?;
        if let Some(far) = tree.levels.len().checked_sub(OPEN_MAX) {
            (tree.levels[far].from, tree.levels[far].to) = (None, None);
        }
        for level in &mut tree.levels {
            if tree.held <= HELD_BYTES {
                break;
            }
            tree.held -= level.names_bytes;
            level.more |= level.names.len() > 0;
            (level.names, level.names_bytes) = (Vec::new().into_iter(), 0);
        }
        let (from_len, to_len) = (tree.from.len(), tree.to.len());
        let names_bytes = bytes_of(&names);
        tree.held += names_bytes;
        let (from, to, names) = (Some(from), Some(to), names.into_iter());
        tree.levels.push(Level { node, from, to, to_id, place, names, names_bytes, at: None, more, from_len, to_len });
        Ok(())
    }

    /// The next name of the current directory.
    fn next_name<R: Source>(source: &R, tree: &mut Tree<R::Entry, S::Dir>) -> Result<Option<Vec<u8>>> {
        let Some(level) = tree.levels.last_mut() else { return Ok(None) };
        if level.more && level.names.len() == 0 {
            // If this fails, it is not tried again.
            level.more = false;
            let Some(from) = &level.from else { return Ok(None) };
            let listed = source.names(from, level.at.as_deref());
            let (names, more) = listed.map_err(|e| e.at(|| source.show(&tree.from)))?;
            tree.held -= level.names_bytes;
            level.names_bytes = bytes_of(&names);
            tree.held += level.names_bytes;
            (level.names, level.more) = (names.into_iter(), more);
        }
        let name = level.names.next();
        if name.is_some() {
            level.at.clone_from(&name);
        }
        Ok(name)
    }

    fn tree<R: Source>(
        &mut self,
        source: &R,
        mut tree: Tree<R::Entry, S::Dir>,
        from: R::Entry,
        node: Node,
        to: S::Dir,
        place: Rc<Place>,
    ) -> Result<()> {
        self.enter(source, &mut tree, (from, node), to, place)?;
        while let Some(level) = tree.levels.last_mut() {
            tree.from.truncate(level.from_len);
            tree.to.truncate(level.to_len);
            match Self::next_name(source, &mut tree) {
                Ok(Some(name)) => {
                    let copied = self.step(source, &mut tree, &name);
                    self.went_well(source.image(), copied)?;
                }
                Err(e) => self.went_well(source.image(), Err(e))?,
                Ok(None) => {
                    let finished = self.leave(source, &mut tree)?;
                    self.went_well(source.image(), finished)?;
                }
            }
        }
        Ok(())
    }

    /// Copies one name of the current directory.
    fn step<R: Source>(&mut self, source: &R, tree: &mut Tree<R::Entry, S::Dir>, name: &[u8]) -> Result<()> {
        if name.contains(&b'/') || name.contains(&0) || matches!(name, b"" | b"." | b"..") {
            let dir = source.show(&tree.from);
            return Err(Failure::op(format!("{dir}: refusing the name '{}'", shown(name))));
        }
        push(&mut tree.from, name);
        push(&mut tree.to, name);
        let Some(Level { from: Some(dir), to: Some(parent), place, .. }) = tree.levels.last() else { return Ok(()) };
        let place = place.clone();
        let here = |e: Trouble| e.at(|| source.show(&tree.from));
        let entry = source.child(dir, name).map_err(here)?;
        let node = source.node(&entry).map_err(here)?;
        let item = Item { parent, place: &place, name, from: &tree.from, to: &tree.to, named: false };
        if !node.is_dir() {
            return self.file(source, &entry, &node, &item);
        }
        let to = self.directory(source, &node, &item)?;
        let place = Rc::new(Place { parent: Some(place), name: name.to_vec() });
        self.enter(source, tree, (entry, node), to, place)
    }

    /// Finishes the current directory. The outer error: the way up is lost.
    fn leave<R: Source>(&mut self, source: &R, tree: &mut Tree<R::Entry, S::Dir>) -> Result<Result<()>> {
        let Some(Level { node, from: Some(from), to: Some(to), names_bytes, .. }) = tree.levels.pop() else {
            return Ok(Ok(()));
        };
        tree.held -= names_bytes;
        // Before it has its mode, which may deny access.
        if let Some(up) = tree.levels.last_mut()
            && up.from.is_none()
        {
            up.from = Some(source.parent(&from, up.node.id).map_err(|e| e.at(|| source.show(&tree.from)))?);
            up.to = Some(self.sink.parent(&to, up.to_id).map_err(|e| e.at(|| self.sink.show(&tree.to)))?);
        }
        // Last, because adding files changes its times.
        let (xattrs, missed) = source.xattrs(&from);
        let missed = missed.map_err(|e| e.at(|| source.show(&tree.from)));
        let node = if missed.is_err() { node.guarded() } else { node };
        let finished = self.sink.finish_directory(to, &node, &xattrs).map_err(|e| e.at(|| self.sink.show(&tree.to)));
        Ok(finished.and(missed))
    }

    fn directory<R: Source>(&mut self, source: &R, node: &Node, item: &Item<'_, S::Dir>) -> Result<S::Dir> {
        self.stop.check()?;
        let at = |e: Trouble| e.at(|| self.sink.show(item.to));
        if self.shares(source) {
            let there = self.sink.look(item.parent, item.name).map_err(at)?;
            if there.is_some_and(|(_, id)| id == node.id) {
                return Err(at(Trouble::here("it is the same file")));
            }
        }
        let mut follow = self.args.keep_directory_symlink;
        if follow && let Some((FileType::Symlink, id)) = self.sink.look(item.parent, item.name).map_err(at)? {
            // A symbolic link from the sources may lead anywhere.
            follow = !self.symlinks.contains(id);
        }
        let dir = self.sink.directory(item.parent, item.name, follow).map_err(at)?;
        if follow && self.shares(source) && self.sink.is_within(&dir, node.id).map_err(at)? {
            return Err(at(Trouble::here("it leads into the directory that is copied")));
        }
        self.say(|| source.show(item.from), item.to)?;
        Ok(dir)
    }

    /// Copies a file that is not a directory, and counts it if it is whole.
    fn file<R: Source>(&mut self, source: &R, entry: &R::Entry, node: &Node, item: &Item<'_, S::Dir>) -> Result<()> {
        self.any_file(source, entry, node, item)?;
        source.image().into_iter().for_each(|image| self.tally.whole(image));
        Ok(())
    }

    fn any_file<R: Source>(
        &mut self,
        source: &R,
        entry: &R::Entry,
        node: &Node,
        item: &Item<'_, S::Dir>,
    ) -> Result<()> {
        self.stop.check()?;
        if source.image().is_none() && opened::is_written_image(node.id) {
            return Err(Failure::op(format!("{}: is the image that is written", source.show(item.from))));
        }
        let at = |e: Trouble| e.at(|| self.sink.show(item.to));
        let there = self.sink.look(item.parent, item.name).map_err(at)?;
        if let Some((kind, id)) = there {
            if self.shares(source) && id == node.id {
                return Err(at(Trouble::here("it is the same file")));
            }
            if self.args.no_clobber {
                return Ok(());
            }
            if kind == FileType::Symlink && self.symlinks.contains(id) && node.kind == FileType::Regular {
                return Err(at(Trouble::here("not written through a symbolic link that was just copied")));
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
                return self.say(|| source.show(item.from), item.to);
            }
        }
        let here = |e: Trouble| e.at(|| source.show(item.from));
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
                    made.map_or(Ok(true), |id| self.symlinks.insert(id)).map_err(at)?;
                }
                made
            }
        };
        if let Some(id) = made.filter(|_| several) {
            self.made.insert(id).map_err(at)?;
            if self.links.len() < LINKS_MAX || self.links.contains_key(&key) {
                let left = node.links - 1;
                self.links.insert(key, Made { id, place: item.place.clone(), name: item.name.into(), left });
            } else {
                self.parted += 1;
            }
        }
        if made.is_some() {
            self.say(|| source.show(item.from), item.to)?;
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
        let here = |e: Trouble| e.at(|| source.show(item.from));
        let at = |e: Trouble| e.at(|| self.sink.show(item.to));
        self.progress.file(item.name, node.size);
        let same = self.shares(source).then_some(node.id);
        let file = self.sink.file(item.parent, item.name, item.named, same).map_err(at)?;
        let read = source.read(entry, &mut |offset, data| {
            self.stop.check()?;
            self.progress.at(offset + data.len() as u64);
            self.sink.write(&file, offset, data).map_err(at)
        });
        let Content { size, shrank, missing } = read.map_err(here)?;
        let id = self.sink.finish_file(file, &Node { size, ..node.clone() }, xattrs).map_err(at)?;
        match shrank {
            _ if missing.is_some() => Err(here(Trouble::Hurt(missing.map(|m| m.to_string()).unwrap_or_default()))),
            true => Err(here(Trouble::here(format!("shrank while it was read, to {size} bytes")))),
            false => Ok(id),
        }
    }

    /// Prints the copy, as cp -v.
    fn say(&self, from: impl FnOnce() -> String, to: &[u8]) -> Result<()> {
        if self.args.verbose {
            use std::io::Write;
            let mut out = Output::new();
            writeln!(out, "'{}' -> '{}'", from(), self.sink.show(to))?;
            out.flush()?;
        }
        Ok(())
    }

    /// Prints the error of one file; returns an error that ends the command. `image`: of the source.
    pub fn went_well(&mut self, image: Option<usize>, result: Result<()>) -> Result<()> {
        if let Some(image) = image.filter(|_| result.is_err()) {
            self.tally.hurt(image);
        }
        let progress = &self.progress;
        self.report.note_by(result, |e| progress.aside(|| e.print()))
    }
}

/// The directory of a new path, and the name in it.
fn split(path: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let (dir, name) = split_last(path);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Failure::op(format!("{}: cannot be made", shown(path))));
    }
    Ok((dir.to_vec(), name.to_vec()))
}

/// A path that ends in a slash names a directory; no other file can have it.
fn no_directory(path: &[u8]) -> Result<()> {
    if path.ends_with(b"/") { Err(Failure::op(format!("{}: not a directory", shown(path)))) } else { Ok(()) }
}

/// Appends a name to a path. An empty path means the current directory.
fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The memory of names.
fn bytes_of(names: &[Vec<u8>]) -> usize {
    names.iter().map(|name| 2 * size_of::<Vec<u8>>() + name.len()).sum()
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    push(&mut path, name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_into_directory_and_name() {
        assert_eq!(split(b"a").unwrap(), (b"".to_vec(), b"a".to_vec()));
        assert_eq!(split(b"/x/y/").unwrap(), (b"/x/".to_vec(), b"y".to_vec()));
        assert!(split(b"/").is_err());
        assert!(split(b"x/..").is_err());
        assert_eq!(joined(b"", b"a"), b"a");
        assert_eq!(joined(b"/", b"a"), b"/a");
        assert_eq!(joined(b"x", b"a"), b"x/a");
    }
}
