//! Trees of an image as archives: tar, and OCI image layouts with such an archive as their layer.
//!
//! Main function: [`export`]. Main type: [`Layout`].
//!
//! The archive depends only on the tree: names ascend as bytes, the root comes first, and neither the clock nor the
//! host's users affect it. `format` knows the format, `acl` one kind of record, `oci` the layout; this module
//! decides which files are included.
//!
//! An export that fails leaves no archive that looks complete. A stream ends at a place where more must follow, which
//! tar(1) and bsdtar(1) report. GNU tar would accept a stream that only lacks the end mark, or a part of a block.
//!
//! # Locking
//! None.

mod acl;
mod format;
mod oci;

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Damage, Error as FsError, Filesystem, InodeRef, Unsupported};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeFlags};

use self::format::{Archive, Entry, Kind};
pub use self::oci::{Layer, Layout, LayoutError, unnamed};
use crate::attributes::{without_acl, xattrs};
use crate::content::{self, TransferError, doubt, image_id, is_expected};
use crate::error::{Cause, Error, Place, Result};
use crate::path as paths;
use crate::watch::Watch;

const BUFFER_BYTES: usize = 1 << 20;
/// The paths of files with several names stay in memory until the end.
const LINK_BYTES_MAX: usize = 1 << 28;

/// Writes the tree at `path` as a complete archive, or fails. `is_layer`: the archive is a layer, in which some names
/// have a meaning. An error of one file goes to [`Watch::failed`], which decides whether the archive may lack it.
///
/// # Errors
/// [`Cause::Output`] if `to` fails; otherwise what cannot be read, and ends the export.
pub fn export(fs: &Filesystem, path: &[u8], to: impl Write, is_layer: bool, watch: &dyn Watch) -> Result<()> {
    let archive = Archive::new(BufWriter::with_capacity(BUFFER_BYTES, to));
    let mut export = Export { fs, watch, archive, is_layer, links: HashMap::new(), link_bytes: 0 };
    let output = |e| Cause::Output(e).at(|| Place::inside(fs.image(), path));
    let done = export.tree(path).and_then(|()| {
        // Damage that reads went around: names may be missing. That has been reported, too.
        if fs.rescues() || fs.stats.errors.get() == 0 {
            Ok(())
        } else {
            Err(Cause::Incomplete.at(|| Place::inside(fs.image(), path)))
        }
    });
    match done {
        Ok(()) => export.archive.end().map_err(output),
        Err(e) => {
            if !matches!(&e.cause, Cause::Output(e) if e.kind() == io::ErrorKind::BrokenPipe) {
                // The first error is the one to report.
                let _ = export.archive.break_off();
            }
            Err(e)
        }
    }
}

struct Export<'a, W: Write> {
    fs: &'a Filesystem,
    watch: &'a dyn Watch,
    archive: Archive<BufWriter<W>>,
    is_layer: bool,
    /// The first names of files that have several.
    links: HashMap<InodeNr, Vec<u8>>,
    link_bytes: usize,
}

impl<W: Write> Export<'_, W> {
    fn tree(&mut self, path: &[u8]) -> Result<()> {
        let top = paths::walk(self.fs, path, true).map_err(|e| failure(self.fs, path, e))?;
        if !top.is_dir() {
            let name = path.rsplit(|b| *b == b'/').find(|name| !name.is_empty()).unwrap_or(path);
            return self.entry(path, &[b"./", name].concat(), &top);
        }
        self.entry(path, b"./", &top)?;
        let mut walk = Walk::new(self.fs, path, top);
        let below = path.len() + usize::from(!path.ends_with(b"/"));
        while let Some(visit) = walk.next() {
            if self.watch.is_stopped() {
                return Err(Cause::Stopped.at(|| Place::inside(self.fs.image(), walk.path())));
            }
            let done = match visit {
                Ok(Visit::Name(inode)) => {
                    let slash: &[u8] = if inode.is_dir() { b"/" } else { b"" };
                    let name = [b"./", &walk.path()[below..], slash].concat();
                    if self.fs.lacks_key(&inode) {
                        // The names in it are encrypted.
                        walk.skip();
                    }
                    let done = self.entry(walk.path(), &name, &inode);
                    if done.is_ok() && !inode.is_dir() {
                        self.watch.is_whole(Some(image_id(self.fs)));
                    }
                    done
                }
                // Without a rescue, damage of any directory ends the export.
                Ok(Visit::Left(dir)) => {
                    doubt(self.fs, &dir).map_or(Ok(()), |e| Err(failure(self.fs, walk.path(), e.clone())))
                }
                Err(e) => Err(failure(self.fs, walk.path(), e)),
            };
            match done {
                Err(e) if !matches!(e.cause, Cause::Output(_)) && e.is_of_one() => {
                    self.watch.failed(Some(image_id(self.fs)), e)?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// `path` is the path in the image, `name` the name in the archive.
    fn entry(&mut self, path: &[u8], name: &[u8], inode: &InodeRef) -> Result<()> {
        let (fs, attr) = (self.fs, self.fs.getattr(inode));
        let failed = |e| failure(fs, path, e);
        let Some(kind) = inode.file_type() else {
            return Err(failed(FsError::corrupt(Damage::Inode, format!("mode {:#o}", attr.mode)).of(attr.ino)));
        };
        if fs.lacks_key(inode) {
            return Err(failed(FsError::Unsupported(Unsupported::Content { ino: attr.ino })));
        }
        if self.is_layer && oci::hides(name) {
            let why = "names that begin with .wh. hide others in a layer; rename it, or export a tar archive";
            return Err(Cause::refused(why).at(|| Place::inside(fs.image(), path)));
        }
        let mut entry = Entry {
            name,
            kind: Kind::File,
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime,
            target: Vec::new(),
            device: None,
            size: 0,
            flags: InodeFlags::from_bits_retain(attr.flags),
            xattrs: Vec::new(),
        };
        if attr.nlink > 1
            && kind != FileType::Directory
            && let Some(first) = self.links.get(&attr.ino)
        {
            (entry.kind, entry.target) = (Kind::Link, first.clone());
            return written(fs, path, self.archive.entry(&entry));
        }
        let (xattrs, missed) = xattrs(fs, inode);
        let missed = missed.or_else(|| doubt(fs, inode).cloned());
        entry.xattrs = xattrs;
        if let Some(e) = &missed {
            if !fs.rescues() {
                return Err(failed(e.clone()));
            }
            // The file is worth more than its attributes, some of which may be missing.
            entry.mode = without_acl(entry.mode);
        }
        match kind {
            FileType::Regular => self.file(path, inode, &attr, entry)?,
            FileType::Socket => {
                self.watch.socket_left_out(&Place::inside(fs.image(), path));
                return Ok(());
            }
            kind => {
                entry.kind = match kind {
                    FileType::Directory => Kind::Directory,
                    FileType::Symlink => Kind::Symlink,
                    FileType::CharDevice => Kind::CharDevice,
                    FileType::BlockDevice => Kind::BlockDevice,
                    _ => Kind::Fifo,
                };
                if kind == FileType::Symlink {
                    entry.target = fs.read_link(inode).map_err(failed)?;
                }
                entry.device = attr.rdev;
                written(fs, path, self.archive.entry(&entry))?;
            }
        }
        if attr.nlink > 1 && kind != FileType::Directory {
            self.link_bytes += name.len() + size_of::<(InodeNr, Vec<u8>)>();
            if self.link_bytes > LINK_BYTES_MAX {
                let detail = format!("the names of linked files take more than {} MiB", LINK_BYTES_MAX >> 20);
                return Err(failed(FsError::NoMemory { detail }));
            }
            self.links.insert(attr.ino, name.to_vec());
        }
        let doubt = || doubt(fs, inode).cloned();
        missed.or_else(doubt).map_or(Ok(()), |e| Err(failed(e)))
    }

    fn file(&mut self, path: &[u8], inode: &InodeRef, attr: &Attr, mut entry: Entry<'_>) -> Result<()> {
        let (fs, watch) = (self.fs, self.watch);
        let failed = |e| failure(fs, path, e);
        let parts = match content::data(fs, inode, attr.size) {
            // Reading each block shows whether it can be read.
            Err(_) if fs.rescues() => std::iter::once(0..attr.size).collect(),
            parts => parts.map_err(failed)?,
        };
        entry.size = attr.size;
        let mut file = written(fs, path, self.archive.file(&entry, &parts))?;
        let read = content::read(fs, inode, &mut |offset, bytes| {
            if watch.is_stopped() {
                return Err(Cause::Stopped.at(|| Place::inside(fs.image(), path)));
            }
            written(fs, path, file.write(offset, bytes))
        });
        let missing = match read {
            Ok(missing) => missing,
            Err(TransferError::Write(e)) => return Err(e),
            Err(TransferError::Read(e)) => {
                if fs.rescues() {
                    // The header has announced all of the data.
                    written(fs, path, file.end())?;
                }
                return Err(failed(e));
            }
        };
        written(fs, path, file.end())?;
        missing.map_or(Ok(()), |missing| Err(Cause::Missing(missing).at(|| Place::inside(fs.image(), path))))
    }
}

fn failure(fs: &Filesystem, path: &[u8], e: FsError) -> Error {
    let cause = if is_expected(fs, &e) { Cause::Hurt(e) } else { Cause::Image(e) };
    cause.at(|| Place::inside(fs.image(), path))
}

/// The result of a write to the archive.
fn written<T>(fs: &Filesystem, path: &[u8], done: io::Result<T>) -> Result<T> {
    done.map_err(|e| Cause::Output(e).at(|| Place::inside(fs.image(), path)))
}
