//! `extant export`: a tree of an image, as a tar archive or as an OCI image layout with that archive as its layer.
//!
//! `extant_transfer::archive` writes them; this module chooses the output. With `-o` the file gets its name only when
//! it is complete.
//!
//! # Locking
//! None.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_fs::Filesystem;
use extant_transfer::archive::{self, Layout, LayoutError, unnamed};
use extant_transfer::{Cause, Error, Place, Watch};

use super::verb::Images;
use crate::args::{ExportArgs, ExportFormat, ImageArgs};
use crate::failure::{Failure, HURT, OPERATIONAL, Report, Result, plain, warn};
use crate::image;
use crate::opened;
use crate::place::{in_image, the_path};
use crate::rescued::{self, AccessKind, Tally};
use crate::server::signals::Stop;

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
            let (dir, tag) = dir_and_tag(output)?;
            let layout = Layout::make(&dir)?;
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
            // A device or a FIFO is written to, not replaced.
            if there.is_some_and(|there| !there.is_file()) {
                let file = File::options().write(true).open(output).map_err(failed)?;
                return export(&fs, path, &stop, &name, file, false)?.end();
            }
            let dir = output.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut file = unnamed(dir).map_err(|e| no_file_in(dir, &e))?;
            let report = export(&fs, path, &stop, &name, file.as_file_mut(), false)?;
            file.persist(output).map_err(|e| failed(e.error))?;
            report.end()
        }
    }
}

/// Splits `DIR[:TAG]`; the name of the directory may contain a colon.
fn dir_and_tag(word: &Path) -> Result<(PathBuf, Option<String>)> {
    let bytes = word.as_os_str().as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':').filter(|_| !word.is_dir());
    let Some(at) = colon else { return Ok((word.to_owned(), None)) };
    let (dir, tag) = (Path::new(std::ffi::OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]);
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._+@".contains(byte);
    match std::str::from_utf8(tag) {
        Ok(text) if !tag.is_empty() && tag.iter().all(fits) => Ok((dir.to_owned(), Some(text.to_owned()))),
        _ => {
            let text = format!("-o {}: a tag has letters, digits and -._+@; name DIR or DIR:TAG", word.display());
            Err(Failure::usage(text))
        }
    }
}

/// The error names a temporary file, which means nothing to the user: omit that name.
fn no_file_in(dir: &Path, e: &io::Error) -> Failure {
    let text = plain(e);
    let why = text.split_once(" at path ").map_or(&*text, |(why, _)| why);
    let next = if e.kind() == io::ErrorKind::NotFound { "; make the directory, or name another one" } else { "" };
    Failure::op(format!("{}: {why}{next}", dir.display()))
}

impl From<LayoutError> for Failure {
    fn from(e: LayoutError) -> Failure {
        match e {
            LayoutError::NotEmpty { dir } => {
                Failure::op(format!("{}: it is not empty; name another directory, which need not exist", dir.display()))
            }
            LayoutError::Directory { dir, source } => Failure::io(&dir, source),
            LayoutError::Write { dir, source } => Failure::write(&dir.display().to_string(), &source),
        }
    }
}

/// Writes a complete archive to `name`, or fails. If the image is rescued, the report has the losses. `is_layer`: the
/// archive is a layer, in which some names have a special meaning.
fn export(
    fs: &Arc<Filesystem>,
    path: &[u8],
    stop: &Stop,
    name: &str,
    to: impl Write,
    is_layer: bool,
) -> Result<Report> {
    let (report, tally) = (RefCell::default(), RefCell::new(Tally::new(AccessKind::Read)));
    let events = Events { fs, stop, name, report, tally, ended: Cell::new(false) };
    match archive::export(fs, path, to, is_layer, &events) {
        Ok(()) => {
            events.tally.borrow().print(fs);
            Ok(events.report.take())
        }
        Err(e) => {
            let mut failure = events.failure(e);
            if events.ended.get() && failure.status == OPERATIONAL {
                failure.message.push_str("; the export ends here: with --rescue it leaves out what cannot be read");
            }
            Err(failure)
        }
    }
}

/// The messages to the user, and the counts for the end.
struct Events<'a> {
    fs: &'a Filesystem,
    stop: &'a Stop,
    name: &'a str,
    report: RefCell<Report>,
    tally: RefCell<Tally>,
    /// Whether one file has ended the export.
    ended: Cell<bool>,
}

impl Events<'_> {
    /// The error as a message and a status.
    fn failure(&self, e: Error) -> Failure {
        match e.cause {
            Cause::Stopped => self.stop.check().err().unwrap_or_else(|| Failure::op(e.to_string())),
            // The error has already been reported.
            Cause::Incomplete => Failure::silent(OPERATIONAL),
            Cause::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => e.into(),
            Cause::Output(e) => Failure::write(self.name, &e),
            Cause::Image(cause) | Cause::Hurt(cause) => image::at(self.fs, &e.place.path, cause),
            _ => Failure::new(if e.is_hurt() { HURT } else { OPERATIONAL }, e.to_string()),
        }
    }
}

impl Watch for Events<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.check().is_err()
    }

    fn is_whole(&self, image: Option<usize>) {
        image.into_iter().for_each(|image| self.tally.borrow_mut().whole(image));
    }

    /// If the image is rescued, unreadable files are left out; otherwise the archive is complete, or the export fails.
    fn failed(&self, _image: Option<usize>, e: Error) -> extant_transfer::Result<()> {
        if !self.fs.rescues() {
            self.ended.set(true);
            return Err(e);
        }
        self.tally.borrow_mut().hurt(rescued::id(self.fs));
        self.report.borrow_mut().complain(self.failure(e));
        Ok(())
    }

    fn socket_left_out(&self, socket: &Place) {
        warn(&format!("{socket}: socket left out: a tar archive has none"));
    }
}
