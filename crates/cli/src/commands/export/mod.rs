//! `extant export`: a tree out of an image, as a tar archive or as an OCI image layout with that archive as its
//! layer.
//!
//! The archive depends only on the tree: names ascend as bytes, the root comes first, and neither the clock nor the
//! host's users affect it. [`archive`] knows the format, [`acl`] one kind of record, [`oci`] the layout; this module
//! decides which files are included.
//!
//! An export that fails leaves no archive that looks complete. With `-o` the file gets its name only when it is
//! complete. A stream ends at a place where more must follow, which tar(1) and bsdtar(1) report. GNU tar would accept
//! a stream that only lacks the end mark, or a part of a block.
//!
//! # Locking
//! None.

mod acl;
mod archive;
mod oci;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Damage, Error, Filesystem, InodeRef, Seek, Unsupported};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeFlags};
use tempfile::NamedTempFile;

use self::archive::{Archive, Entry, Kind};
use super::verb::Images;
use crate::args::{ExportArgs, ExportFormat, ImageArgs};
use crate::content::{self, Ended};
use crate::failure::{BROKEN_PIPE, Failure, OPERATIONAL, Report, Result, plain, warn};
use crate::image;
use crate::mode::without_acl;
use crate::opened;
use crate::place::{in_image, the_path};
use crate::rescued::{self, Did, Tally};
use crate::server::signals::Stop;
use crate::text::shown;

const BUFFER_BYTES: usize = 1 << 20;
/// The maximum of stored parts of a sparse file; beyond it, the rest of the file is stored as data.
const PARTS_MAX: usize = 1 << 20;
/// The paths of files with several names stay in memory until the end.
const LINK_BYTES_MAX: usize = 1 << 28;

/// The images that an export reads. If a signal ends the command, the unfinished file is removed.
pub fn images(args: &ExportArgs, how: &ImageArgs) -> Images {
    let stop = if args.output.is_some() { Stop::watch() } else { Stop::default() };
    let mut images = Images::for_reading(how);
    images.stop = stop;
    images
}

pub fn run(args: &ExportArgs, images: &mut Images) -> Result<()> {
    let is_layout = args.format == ExportFormat::Oci;
    if is_layout && args.output.is_none() {
        return Err(Failure::usage("--format oci: a layout is a directory; name it with -o DIR or -o DIR:TAG"));
    }
    if args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::usage("refusing to write an archive to a terminal: write it to a file with -o FILE"));
    }
    let (spec, paths) = in_image(&args.image, args.path.as_slice());
    let path = the_path(&paths)?;
    let fs = images.image(&spec)?;
    let stop = images.stop.clone();
    match &args.output {
        None => export(&fs, path, &stop, "writing output", io::stdout().lock(), false)?.end(),
        Some(output) if is_layout => {
            let (dir, tag) = oci::split(output)?;
            let layout = oci::Layout::make(&dir)?;
            let mut layer = layout.layer()?;
            let report = export(&fs, path, &stop, &dir.display().to_string(), &mut layer, true)?;
            layout.finish(layer, tag.as_deref())?;
            report.end()
        }
        Some(output) => {
            let failed = |e: io::Error| Failure::io(output, e);
            let name = output.display().to_string();
            let there = std::fs::metadata(output).ok();
            if there.as_ref().is_some_and(|there| opened::is_image((there.dev(), there.ino()))) {
                return Err(Failure::op(format!("{}: is the image that is exported", output.display())));
            }
            // A device or a FIFO is written, not replaced.
            if there.is_some_and(|there| !there.is_file()) {
                let file = File::options().write(true).open(output).map_err(failed)?;
                return export(&fs, path, &stop, &name, file, false)?.end();
            }
            let dir = output.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut file = new_file(dir).map_err(|e| no_file_in(dir, &e))?;
            let report = export(&fs, path, &stop, &name, file.as_file_mut(), false)?;
            file.persist(output).map_err(|e| failed(e.error))?;
            report.end()
        }
    }
}

/// A file with the mode of any new file; it is removed unless it gets its name.
fn new_file(dir: &Path) -> io::Result<NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new().prefix(".extant-").permissions(PermissionsExt::from_mode(0o666)).tempfile_in(dir)
}

/// The error names a temporary file, which means nothing to the user: leave that name out.
fn no_file_in(dir: &Path, e: &io::Error) -> Failure {
    let text = plain(e);
    let why = text.split_once(" at path ").map_or(&*text, |(why, _)| why);
    let next = if e.kind() == io::ErrorKind::NotFound { "; make the directory, or name another one" } else { "" };
    Failure::op(format!("{}: {why}{next}", dir.display()))
}

/// Passes an archive on, and stores the error of a write.
struct Output<'a, W> {
    to: W,
    failed: &'a Cell<Option<io::Error>>,
}

impl<W> Output<'_, W> {
    fn keep<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.inspect_err(|e| {
            let same = e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error);
            if e.kind() != io::ErrorKind::Interrupted {
                self.failed.set(Some(same));
            }
        })
    }
}

impl<W: Write> Write for Output<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes);
        self.keep(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.to.flush();
        self.keep(done)
    }
}

/// Writes a complete archive to `name`, or fails. For an image that is rescued, the report has the losses.
/// `is_layer`: the archive is a layer, in which some names have a meaning.
fn export(
    fs: &Arc<Filesystem>,
    path: &[u8],
    stop: &Stop,
    name: &str,
    to: impl Write,
    is_layer: bool,
) -> Result<Report> {
    let failed = Cell::new(None);
    let done = export_to(fs, path, stop, Output { to, failed: &failed }, is_layer);
    match (done, failed.take()) {
        (Err(e), Some(why)) if e.status != BROKEN_PIPE => Err(Failure::write(name, &why)),
        (done, _) => done,
    }
}

fn export_to(
    fs: &Arc<Filesystem>,
    path: &[u8],
    stop: &Stop,
    to: Output<'_, impl Write>,
    is_layer: bool,
) -> Result<Report> {
    let failed = to.failed;
    let to = BufWriter::with_capacity(BUFFER_BYTES, to);
    let links = HashMap::new();
    let archive = Archive::new(to);
    let (report, tally) = (Report::default(), Tally::new(Did::Read));
    let mut export = Export { fs, stop, archive, is_layer, failed, links, link_bytes: 0, report, tally };
    let done = export.tree(path).and_then(|()| {
        // Damage that reads went around: names may be missing. That has been reported, too.
        if fs.rescues() { Ok(()) } else { image::refuse_damage([fs]) }
    });
    match done {
        Ok(()) => {
            export.archive.end()?;
            Ok(export.report)
        }
        Err(e) => {
            if e.status != BROKEN_PIPE {
                // The first error is the one to report.
                let _ = export.archive.break_off();
            }
            Err(e)
        }
    }
}

struct Export<'a, W: Write> {
    fs: &'a Filesystem,
    stop: &'a Stop,
    archive: Archive<BufWriter<Output<'a, W>>>,
    is_layer: bool,
    failed: &'a Cell<Option<io::Error>>,
    /// The first names of files that have several.
    links: HashMap<InodeNr, Vec<u8>>,
    link_bytes: usize,
    report: Report,
    tally: Tally,
}

impl<W: Write> Export<'_, W> {
    fn tree(&mut self, path: &[u8]) -> Result<()> {
        let top = image::walk(self.fs, path, true).map_err(|e| image::at(self.fs, path, e))?;
        if !top.is_dir() {
            let name = path.rsplit(|b| *b == b'/').find(|name| !name.is_empty()).unwrap_or(path);
            return self.entry(path, &[b"./", name].concat(), &top);
        }
        self.entry(path, b"./", &top)?;
        let mut walk = Walk::new(self.fs, path, top);
        let below = path.len() + usize::from(!path.ends_with(b"/"));
        while let Some(visit) = walk.next() {
            self.stop.check()?;
            let done = match visit {
                Ok(Visit::Name(inode)) => {
                    let slash: &[u8] = if inode.is_dir() { b"/" } else { b"" };
                    let name = [b"./", &walk.path()[below..], slash].concat();
                    if is_encrypted(&self.fs.getattr(&inode)) {
                        // The names in it are encrypted.
                        walk.skip();
                    }
                    let done = self.entry(walk.path(), &name, &inode);
                    if done.is_ok() && !inode.is_dir() {
                        self.tally.whole(rescued::id(self.fs));
                    }
                    done
                }
                Ok(Visit::Left(dir)) => {
                    // Without --rescue, damage of any directory ends the export.
                    rescued::doubt(self.fs, &dir).map_or(Ok(()), |e| Err(image::at(self.fs, walk.path(), e.clone())))
                }
                Err(e) => Err(image::at(self.fs, walk.path(), e)),
            };
            self.note(done)?;
        }
        self.tally.print(self.fs);
        Ok(())
    }

    /// In an image that is rescued, what cannot be read is left out; otherwise the archive is complete or fails.
    fn note(&mut self, done: Result<()>) -> Result<()> {
        if self.output_failed() {
            return done;
        }
        if self.fs.rescues() {
            if done.is_err() {
                self.tally.hurt(rescued::id(self.fs));
            }
            return self.report.note(done);
        }
        done.map_err(|mut e| {
            if e.status == OPERATIONAL {
                e.message.push_str("; the export ends here: with --rescue it leaves out what cannot be read");
            }
            e
        })
    }

    fn output_failed(&self) -> bool {
        let why = self.failed.take();
        let is_some = why.is_some();
        self.failed.set(why);
        is_some
    }

    /// `path` is the path in the image, `name` the name in the archive.
    fn entry(&mut self, path: &[u8], name: &[u8], inode: &InodeRef) -> Result<()> {
        let (fs, attr) = (self.fs, self.fs.getattr(inode));
        let failed = |e| image::at(fs, path, e);
        let Some(kind) = inode.file_type() else {
            return Err(failed(Error::corrupt(Damage::Inode, format!("mode {:#o}", attr.mode)).of(attr.ino)));
        };
        if is_encrypted(&attr) {
            return Err(failed(Error::Unsupported(Unsupported::Content { ino: attr.ino })));
        }
        if self.is_layer && oci::hides(name) {
            let (image, path) = (fs.image(), shown(path));
            let why = "names that begin with .wh. hide others in a layer; rename it, or export a tar archive";
            return Err(Failure::op(format!("{image}: {path}: {why}")));
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
            return Ok(self.archive.entry(&entry)?);
        }
        let (xattrs, missed) = image::xattrs(fs, inode);
        let missed = missed.or_else(|| rescued::doubt(fs, inode).cloned());
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
                warn(&format!("{}: {}: socket left out: a tar archive has none", fs.image(), shown(path)));
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
                self.archive.entry(&entry)?;
            }
        }
        if attr.nlink > 1 && kind != FileType::Directory {
            self.link_bytes += name.len() + size_of::<(InodeNr, Vec<u8>)>();
            if self.link_bytes > LINK_BYTES_MAX {
                let detail = format!("the names of linked files take more than {} MiB", LINK_BYTES_MAX >> 20);
                return Err(failed(Error::NoMemory { detail }));
            }
            self.links.insert(attr.ino, name.to_vec());
        }
        let doubt = || rescued::doubt(fs, inode).cloned();
        missed.or_else(doubt).map_or(Ok(()), |e| Err(failed(e)))
    }

    fn file(&mut self, path: &[u8], inode: &InodeRef, attr: &Attr, mut entry: Entry<'_>) -> Result<()> {
        let (fs, stop) = (self.fs, self.stop);
        let failed = |e| image::at(fs, path, e);
        let parts = match data(fs, inode, attr.size) {
            // Reading each block shows whether it can be read.
            Err(_) if fs.rescues() => std::iter::once(0..attr.size).collect(),
            parts => parts.map_err(failed)?,
        };
        entry.size = attr.size;
        let mut file = self.archive.file(&entry, &parts)?;
        let read = content::read(fs, inode, &mut |offset, bytes| {
            stop.check()?;
            Ok(file.write(offset, bytes)?)
        });
        let missing = match read {
            Ok(missing) => missing,
            Err(Ended::Write(e)) => return Err(e),
            Err(Ended::Read(e)) if fs.rescues() => {
                // The header has announced all of the data.
                file.end()?;
                return Err(failed(e));
            }
            Err(Ended::Read(e)) => return Err(failed(e)),
        };
        file.end()?;
        missing.map_or(Ok(()), |missing| Err(image::hurt(fs, path, &missing)))
    }
}

fn is_encrypted(attr: &Attr) -> bool {
    InodeFlags::from_bits_retain(attr.flags).contains(InodeFlags::ENCRYPT)
}

/// The parts of a file with data: ascending, not adjacent.
fn data(fs: &Filesystem, inode: &InodeRef, size: u64) -> std::result::Result<Vec<Range<u64>>, Error> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut pos = 0;
    while pos < size {
        let start = match fs.seek(inode, pos, Seek::Data) {
            Ok(start) => start,
            Err(Error::NoSuchOffset) => break,
            Err(e) => return Err(e),
        };
        if start >= size {
            break;
        }
        let end = if parts.len() + 1 < PARTS_MAX { fs.seek(inode, start, Seek::Hole)?.min(size) } else { size };
        if end <= start {
            return Err(Error::corrupt(Damage::Map, format!("no end of the data at byte {start}")).of(inode.ino));
        }
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(start..end),
        }
        pos = end;
    }
    Ok(parts)
}
