//! The common parts of commands that change an image: resolving arguments, walking, and error reports.
//!
//! Main types: [`Images`] (opens the images of arguments, each one once, and closes all), [`File`] (an argument's image
//! and path), [`Report`] (prints errors and continues, as the host's tools do).
//!
//! An argument is `IMAGE:PATH`; inside `extant script` it is a path in the script's image.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Error, Filesystem, InodeRef, Mounted};
use extant_image::place;

use crate::args::{ImageArgs, OwnerArg};
use crate::beside::{self, InUseImage};
pub use crate::failure::Report;
use crate::failure::{Failure, Result, both};
use crate::image::{self, ImageSpec, open_image};
use crate::owner::Owner;
use crate::place::Place;
use crate::server::signals::Stop;
use crate::text::{join, shown, split_last};

/// The images that a command works on.
pub struct Images {
    how: ImageArgs,
    read_only: bool,
    /// Whether images that another process has mounted are read, too.
    looks: bool,
    open: Vec<(ImageSpec, Mounted)>,
    beside: Vec<InUseImage>,
    /// If set, arguments are paths in this file system.
    only: Option<Arc<Filesystem>>,
    /// The owner of new files, unless the command's own arguments name one.
    owner: Owner,
    pub stop: Stop,
}

/// A file in an image.
pub struct File {
    pub fs: Arc<Filesystem>,
    pub path: Vec<u8>,
}

impl Images {
    pub fn for_reading(how: &ImageArgs) -> Images {
        Images::new(how.clone(), true, Stop::default())
    }

    /// Opens images for names and attributes only, including images that are in use.
    pub fn for_looking(how: &ImageArgs) -> Images {
        Images { looks: true, ..Images::for_reading(how) }
    }

    fn new(how: ImageArgs, read_only: bool, stop: Stop) -> Images {
        let (open, beside) = (Vec::new(), Vec::new());
        Images { how, read_only, looks: false, open, beside, only: None, owner: Owner::default(), stop }
    }

    /// Opens images for writing. A signal ends the command between two files; finished changes are kept.
    pub fn for_writing(how: &ImageArgs) -> Images {
        Images::new(how.clone(), false, Stop::watch())
    }

    /// Interprets arguments as paths in `fs`, which the caller closes.
    pub fn inside(fs: Arc<Filesystem>, owner: Owner, stop: Stop) -> Images {
        Images { only: Some(fs), owner, ..Images::new(ImageArgs::default(), false, stop) }
    }

    /// The owner of files that the command creates.
    pub fn owner(&self, args: &OwnerArg) -> Owner {
        self.owner.within(args.owner)
    }

    /// Calls `f` for the file of each argument, and continues after an error that concerns only one.
    pub fn each(
        &mut self,
        args: &[OsString],
        mut f: impl FnMut(&Images, &File, &mut Report) -> Result<()>,
    ) -> Result<()> {
        let mut report = Report::default();
        for arg in args {
            let file = self.file(arg)?;
            self.stop.check()?;
            let done = f(self, &file, &mut report);
            report.note(done)?;
        }
        report.end()
    }

    pub fn file(&mut self, arg: &OsStr) -> Result<File> {
        if let Some(fs) = &self.only {
            return Ok(File { fs: fs.clone(), path: arg.as_bytes().to_vec() });
        }
        let Place::Inside(spec, path) = Place::parse(arg) else {
            let arg = arg.display();
            return Err(Failure::usage(format!("'{arg}' is not a path in an image: write IMAGE:PATH")));
        };
        Ok(File { fs: self.image(&spec)?, path })
    }

    /// As [`Images::file`]; an image without a path means its root.
    pub fn file_or_image(&mut self, arg: &OsStr) -> Result<File> {
        if self.only.is_none() && !Place::parse(arg).is_in_image() {
            // A host path after an image was probably meant as a path in the image.
            if let Some((image, _)) = self.open.first()
                && arg.as_bytes().contains(&b'/')
                && !Path::new(arg).metadata().is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
            {
                let (image, path) = (image.shown(), shown(arg.as_bytes()));
                return Err(Failure::op(format!("{path}: not an image; in {image} it is {image}:{path}")));
            }
            let fs = self.image(&ImageSpec::parse(arg))?;
            return Ok(File { fs, path: b"/".to_vec() });
        }
        let file = self.file(arg)?;
        let path = if file.path.is_empty() { b"/".to_vec() } else { file.path };
        Ok(File { path, ..file })
    }

    /// The image with a name. If it is not open yet, opens it with the command's options.
    pub fn image(&mut self, spec: &ImageSpec) -> Result<Arc<Filesystem>> {
        let spec = &spec.clone().or(self.how.part());
        let wanted = spec.canonical();
        if let Some((_, fs)) = self.open.iter().find(|(open, _)| *open == wanted) {
            return Ok(Arc::clone(fs));
        }
        let mounted = if self.looks {
            let (mounted, beside) = beside::open_image(spec, &self.how)?;
            self.beside.extend(beside);
            mounted
        } else {
            open_image(spec, &self.how, self.read_only)?
        };
        let fs = Arc::clone(&mounted);
        self.open.push((wanted, mounted));
        Ok(fs)
    }

    /// The byte of the image file at which an open file system begins.
    pub fn start(&self, fs: &Arc<Filesystem>) -> u64 {
        let spec = self.open.iter().find(|(_, open)| Arc::ptr_eq(open, fs)).map(|(spec, _)| spec);
        spec.and_then(|spec| place(spec).ok()).map_or(0, |(start, _)| start)
    }

    /// Calls `f` for each image that was opened.
    pub fn each_open(&self, mut f: impl FnMut(&Filesystem)) {
        self.open.iter().for_each(|(_, fs)| f(fs));
    }

    /// Makes everything durable, and marks the images clean.
    fn close(&self) -> Result<()> {
        let mut result = Ok(());
        for (_, fs) in self.open.iter().filter(|_| !self.read_only) {
            let image = fs.image();
            result = both(result, fs.unmount().map_err(|e| Failure::op(format!("{image}: {e}"))));
        }
        result
    }

    /// Runs a command, and always closes the images. If damage made the command skip files, it fails.
    pub fn with(mut self, command: impl FnOnce(&mut Images) -> Result<()>) -> Result<()> {
        let done = command(&mut self);
        let closed = self.close();
        self.beside.iter().for_each(InUseImage::end);
        both(done, closed)?;
        image::refuse_damage(self.open.iter().map(|(_, fs)| &**fs))
    }
}

impl File {
    /// The failure of an operation on this file.
    pub fn failed(&self, e: Error) -> Failure {
        image::at(&self.fs, &self.path, e)
    }

    pub fn walk(&self, follow: bool) -> Result<InodeRef> {
        image::walk(&self.fs, &self.path, follow || self.path.ends_with(b"/")).map_err(|e| self.failed(e))
    }

    /// The file's parent directory, and its name there.
    pub fn parent(&self) -> Result<(InodeRef, &[u8])> {
        self.fs.walk_parent(&self.path).map_err(|e| match e {
            Error::NotFound => {
                let Failure { message, .. } = self.failed(e);
                Failure::op(format!("{message}: {}", shown(self.first_missing())))
            }
            e => self.failed(e),
        })
    }

    /// The shortest prefix of the path that does not exist.
    fn first_missing(&self) -> &[u8] {
        let ends = (1..self.path.len()).filter(|at| self.path[*at] == b'/' && self.path[at - 1] != b'/');
        let mut beginnings = ends.map(|end| &self.path[..end]);
        let missing = |path: &&[u8]| matches!(self.fs.walk(path, true), Err(Error::NotFound));
        beginnings.find(missing).unwrap_or(&self.path)
    }

    /// As [`File::parent`], for a file that is not a directory: its path cannot end in a slash.
    pub fn parent_of_file(&self) -> Result<(InodeRef, &[u8])> {
        if self.path.ends_with(b"/") { Err(self.failed(Error::NotDirectory)) } else { self.parent() }
    }

    /// The target file for an operation whose destination is this directory: the entry with the source's name.
    pub fn below(&self, name: &[u8]) -> File {
        File { fs: self.fs.clone(), path: join(&self.path, name) }
    }

    /// The directory that the path leads to, if it is one.
    pub fn as_dir(&self) -> Option<InodeRef> {
        self.fs.walk(&self.path, true).ok().filter(|inode| inode.is_dir())
    }

    /// The last name of its path.
    pub fn name(&self) -> Result<&[u8]> {
        match split_last(&self.path).1 {
            b"" => Err(Failure::op(format!("{}: the root cannot be moved or removed", self.shown()))),
            b"." | b".." => Err(Failure::op(format!("{}: has no name of its own", self.shown()))),
            name => Ok(name),
        }
    }

    pub fn shown(&self) -> String {
        format!("{}: {}", shown(self.fs.image().as_bytes()), shown(&self.path))
    }
}

/// Calls `f` for a file, and with `recursive` for everything below it, directories before their contents. The last
/// argument is true for the file itself.
pub fn each(
    file: &File,
    follow: bool,
    recursive: bool,
    stop: &Stop,
    report: &mut Report,
    mut f: impl FnMut(&[u8], &InodeRef, bool) -> Result<()>,
) -> Result<()> {
    let top = file.walk(follow)?;
    report.note(f(&file.path, &top, true))?;
    if !recursive {
        return Ok(());
    }
    let mut walk = Walk::new(&file.fs, &file.path, top);
    while let Some(visit) = walk.next() {
        stop.check()?;
        let done = match visit {
            Ok(Visit::Name(inode)) => f(walk.path(), &inode, false),
            Ok(Visit::Left(_)) => Ok(()),
            Err(e) => Err(image::at(&file.fs, walk.path(), e)),
        };
        report.note(done)?;
    }
    Ok(())
}
