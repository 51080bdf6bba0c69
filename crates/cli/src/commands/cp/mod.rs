//! `extant cp`: copies between the host's files and images.
//!
//! Both sides look alike: [`Source`] is read ([`local`] files or an [`inside`] of an image), [`Sink`] is written. The copy
//! itself, here, knows neither.
//!
//! Images are not trusted: names that could lead out of the destination are refused, host directories are opened without
//! following links, and a directory that is reached twice is left out.
//!
//! # Locking
//! None.

mod inside;
mod local;
mod place;
mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_fs::Filesystem;
use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;

use self::inside::{ImageSink, ImageSource};
use self::local::{LocalSink, LocalSource};
use self::place::Place;
use self::progress::Progress;
use crate::args::CpArgs;
use crate::failure::{Failure, INTERRUPTED, OPERATIONAL, Result};
use crate::image::open_image;
use crate::text::shown;

/// Bytes moved at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A file's attributes.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub device: Option<DeviceNr>,
    /// Which file it is, on its side: directories are entered once.
    pub id: (u64, u64),
}

/// Extended attributes by full name.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a copy comes from.
pub trait Source {
    /// Something in there.
    type Entry;

    /// What was named on the command line.
    fn top(&self, path: &[u8], follow: bool) -> Result<Self::Entry>;
    fn node(&self, entry: &Self::Entry) -> Result<Node>;
    /// Names in a directory, sorted.
    fn names(&self, dir: &Self::Entry) -> Result<Vec<Vec<u8>>>;
    fn child(&self, dir: &Self::Entry, name: &[u8]) -> Result<Self::Entry>;
    fn target(&self, link: &Self::Entry) -> Result<Vec<u8>>;
    fn xattrs(&self, entry: &Self::Entry) -> Result<Xattrs>;
    /// Calls `write` with offset and bytes of all data; what is left out is a hole.
    fn read(&self, file: &Self::Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()>;
    /// For messages.
    fn show(&self, entry: &Self::Entry) -> String;
}

/// Where a copy goes.
pub trait Sink {
    type Dir;
    type File;

    /// The directory at `path`, which must be there.
    fn top(&self, path: &[u8]) -> Result<Self::Dir>;
    /// What `path` is, links followed; `None` if there is nothing.
    fn existing(&self, path: &[u8]) -> Result<Option<FileType>>;
    /// A directory to fill, new or there already.
    fn directory(&self, parent: &Self::Dir, name: &[u8]) -> Result<Self::Dir>;
    /// A file to fill, empty. One that is there is emptied.
    fn file(&self, parent: &Self::Dir, name: &[u8]) -> Result<Self::File>;
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;
    /// Gives it its size and attributes.
    fn finish_file(&self, file: Self::File, node: &Node, xattrs: &Xattrs) -> Result<()>;
    fn finish_directory(&self, dir: &Self::Dir, node: &Node, xattrs: &Xattrs) -> Result<()>;
    /// A symbolic link, device, fifo or socket.
    fn special(&self, parent: &Self::Dir, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs) -> Result<()>;
}

pub fn run(args: &CpArgs) -> Result<()> {
    let places: Vec<Place> = args.paths.iter().map(|arg| Place::parse(arg)).collect();
    let Some((to, from)) = places.split_last() else { return Err(Failure::usage("nothing to copy")) };
    if from.iter().any(|place| !place.is_in_image()) && !to.is_in_image() {
        return Err(Failure::usage(
            "neither source nor destination is in an image (IMAGE:PATH); for copies between files of the host there is cp",
        ));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without a handler an interruption leaves an image that needs recovery: no reason to refuse.
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    match to {
        Place::Local(path) => {
            let sink = LocalSink::new();
            copy_all(args, from, &sink, path, &stop, None)
        }
        Place::Inside(spec, path) => {
            let fs = open_image(spec, false)?;
            let sink = ImageSink::new(fs.clone());
            let copied = copy_all(args, from, &sink, path, &stop, Some((spec, &fs)));
            // In any case: what was copied stays, and the image is left clean.
            let ended = sink.end();
            copied.and(ended)
        }
    }
}

/// Copies every source, complaining about those that fail.
fn copy_all<S: Sink>(
    args: &CpArgs,
    from: &[Place],
    sink: &S,
    to: &[u8],
    stop: &AtomicBool,
    written: Option<(&crate::image::ImageSpec, &Arc<Filesystem>)>,
) -> Result<()> {
    let into_dir = sink.existing(to)? == Some(FileType::Directory);
    if from.len() > 1 && !into_dir {
        return Err(Failure::op(format!("{}: not a directory", shown(to))));
    }
    let copy = Copy { sink, recursive: args.recursive, stop, progress: Progress::new(), seen: Default::default() };
    let mut failed = false;
    for place in from {
        let copied = match place {
            Place::Local(path) => copy.source(&LocalSource::new(), path, to, into_dir),
            Place::Inside(spec, path) => match written {
                // The image is open already, and may not be opened twice.
                Some((target, fs)) if target == spec => copy.source(&ImageSource::new(fs.clone()), path, to, into_dir),
                _ => open_image(spec, true)
                    .and_then(|fs| copy.source(&ImageSource::new(Arc::clone(&fs)), path, to, into_dir)),
            },
        };
        match copied {
            Ok(whole) => failed |= !whole,
            Err(e) if e.status == OPERATIONAL => {
                e.print();
                failed = true;
            }
            Err(e) => return Err(e),
        }
    }
    copy.progress.end();
    if failed { Err(Failure::silent(OPERATIONAL)) } else { Ok(()) }
}

/// A copy under way.
struct Copy<'a, S: Sink> {
    sink: &'a S,
    recursive: bool,
    stop: &'a AtomicBool,
    progress: Progress,
    /// Directories entered.
    seen: std::cell::RefCell<std::collections::HashSet<(u64, u64)>>,
}

/// A directory that is being copied.
struct Level<E, D> {
    from: E,
    to: D,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<S: Sink> Copy<'_, S> {
    /// Copies one source. False: something in it failed, and was complained about.
    fn source<R: Source>(&self, source: &R, path: &[u8], to: &[u8], into_dir: bool) -> Result<bool> {
        self.seen.borrow_mut().clear();
        let top = source.top(path, !self.recursive)?;
        let node = source.node(&top)?;
        let name = last_name(path);
        let whole_tree = node.kind == FileType::Directory && matches!(name, b"" | b"." | b"..");
        if node.kind == FileType::Directory && !self.recursive {
            return Err(Failure::op(format!("{}: is a directory (copy it with -r)", source.show(&top))));
        }
        // The content of "/" or "." goes into a directory that is there; anything else becomes a name in it.
        if into_dir && whole_tree {
            let dir = self.sink.top(to)?;
            self.seen.borrow_mut().insert(node.id);
            let level = Level { names: source.names(&top)?.into_iter(), from: top, to: dir };
            return self.tree(source, vec![level]);
        }
        let (parent, name) = if into_dir { (to.to_vec(), name.to_vec()) } else { split(to)? };
        let parent = self.sink.top(&parent)?;
        self.entry(source, top, &node, &parent, &name)
    }

    fn tree<R: Source>(&self, source: &R, mut stack: Vec<Level<R::Entry, S::Dir>>) -> Result<bool> {
        let mut whole = true;
        while let Some(level) = stack.last_mut() {
            let Some(name) = level.names.next() else {
                if let Some(done) = stack.pop() {
                    // Last, because filling it changes its times.
                    let finished = source.node(&done.from).and_then(|node| {
                        let xattrs = source.xattrs(&done.from)?;
                        self.sink.finish_directory(&done.to, &node, &xattrs)
                    });
                    whole &= self.went_well(finished)?;
                }
                continue;
            };
            let step = self.step(source, level, &name);
            match step {
                Ok(below) => stack.extend(below),
                Err(e) => whole &= self.went_well(Err(e))?,
            }
        }
        Ok(whole)
    }

    /// Copies one name; for a directory, what is to be copied next.
    fn step<R: Source>(
        &self,
        source: &R,
        level: &Level<R::Entry, S::Dir>,
        name: &[u8],
    ) -> Result<Option<Level<R::Entry, S::Dir>>> {
        if name.contains(&b'/') || name.contains(&0) || matches!(name, b"" | b"." | b"..") {
            let dir = source.show(&level.from);
            return Err(Failure::op(format!("{dir}: refusing the name '{}'", shown(name))));
        }
        let entry = source.child(&level.from, name)?;
        let node = source.node(&entry)?;
        if node.kind != FileType::Directory {
            self.entry(source, entry, &node, &level.to, name)?;
            return Ok(None);
        }
        if !self.seen.borrow_mut().insert(node.id) {
            return Err(Failure::op(format!("{}: directory is reached a second time", source.show(&entry))));
        }
        let to = self.sink.directory(&level.to, name)?;
        Ok(Some(Level { names: source.names(&entry)?.into_iter(), from: entry, to }))
    }

    /// Copies a file or a whole directory as `name` in `parent`.
    fn entry<R: Source>(&self, source: &R, entry: R::Entry, node: &Node, parent: &S::Dir, name: &[u8]) -> Result<bool> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::new(INTERRUPTED, "interrupted"));
        }
        match node.kind {
            FileType::Directory => {
                self.seen.borrow_mut().insert(node.id);
                let to = self.sink.directory(parent, name)?;
                let level = Level { names: source.names(&entry)?.into_iter(), from: entry, to };
                return self.tree(source, vec![level]);
            }
            FileType::Regular => {
                let xattrs = source.xattrs(&entry)?;
                self.progress.file(name, node.size);
                let file = self.sink.file(parent, name)?;
                source.read(&entry, &mut |offset, data| {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(Failure::new(INTERRUPTED, "interrupted"));
                    }
                    self.progress.at(offset + data.len() as u64);
                    self.sink.write(&file, offset, data)
                })?;
                self.sink.finish_file(file, node, &xattrs)?;
            }
            kind => {
                let target = if kind == FileType::Symlink { source.target(&entry)? } else { Vec::new() };
                let xattrs = source.xattrs(&entry)?;
                self.sink.special(parent, name, node, &target, &xattrs)?;
            }
        }
        Ok(true)
    }

    /// Complains about what concerns one file; passes on what ends everything.
    fn went_well(&self, result: Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.status == OPERATIONAL => {
                self.progress.aside(|| e.print());
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }
}

fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    &path[..end]
}

/// What follows the last slash; empty for the root.
fn last_name(path: &[u8]) -> &[u8] {
    let path = trimmed(path);
    &path[path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1)..]
}

/// The directory of a path that is to be made, and the name in it.
fn split(path: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let name = last_name(path);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Failure::op(format!("{}: cannot be made", shown(path))));
    }
    let path = trimmed(path);
    Ok((path[..path.len() - name.len()].to_vec(), name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths() {
        assert_eq!(last_name(b"/etc/passwd"), b"passwd");
        assert_eq!(last_name(b"a//"), b"a");
        assert_eq!(last_name(b"/"), b"");
        assert_eq!(split(b"a").unwrap(), (b"".to_vec(), b"a".to_vec()));
        assert_eq!(split(b"/x/y/").unwrap(), (b"/x/".to_vec(), b"y".to_vec()));
        assert!(split(b"/").is_err());
        assert!(split(b"x/..").is_err());
    }
}
