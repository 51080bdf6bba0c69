//! Trees of a mounted image as tar archives: [`Fs::export`].
//!
//! Main type: [`ExportOptions`].
//!
//! # Locking
//! None.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use extant_transfer::{Watch, archive};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::path::Route;

/// A function that gets what an archive lacks.
type Loss<'o> = RefCell<Box<dyn FnMut(Error) + 'o>>;

/// The contents of an archive.
pub struct ExportOptions<'o> {
    path: PathBuf,
    loss: Option<Loss<'o>>,
}

impl Default for ExportOptions<'_> {
    fn default() -> Self {
        ExportOptions { path: PathBuf::from("/"), loss: None }
    }
}

impl fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportOptions").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<'o> ExportOptions<'o> {
    /// All of the image.
    pub fn new() -> ExportOptions<'o> {
        ExportOptions::default()
    }

    /// The tree at this path alone; it becomes the root of the archive.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>) -> ExportOptions<'o> {
        self.path = path.as_ref().to_path_buf();
        self
    }

    /// In an image that is mounted with [`crate::Image::rescue`], what cannot be read is left out, or is zeroes, and
    /// this function gets the reason. Without it, the first such error ends the export.
    #[must_use]
    pub fn on_loss(mut self, loss: impl FnMut(Error) + 'o) -> ExportOptions<'o> {
        self.loss = Some(RefCell::new(Box::new(loss)));
        self
    }
}

/// The events of an export.
struct Events<'a, 'o> {
    fs: &'a Fs,
    route: &'a Route,
    loss: Option<&'a Loss<'o>>,
}

impl Watch for Events<'_, '_> {
    fn failed(&self, _image: Option<usize>, e: extant_transfer::Error) -> extant_transfer::Result<()> {
        match self.loss {
            Some(loss) if self.fs.shared().mounted.rescues() => {
                (loss.borrow_mut())(Error::transfer(self.fs.image(), self.route, e));
                Ok(())
            }
            _ => Err(e),
        }
    }
}

impl Fs {
    /// Writes a tree as a tar archive in the PAX format, as `extant export` does: with owners, times in nanoseconds,
    /// hard links, devices, holes, extended attributes, ACLs and flags, but without sockets. Names are sorted, so the
    /// same tree gives the same bytes. An archive that fails ends at a place where tar reports that more must follow.
    ///
    /// ```
    /// use extant::ExportOptions;
    ///
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.create_dir_all("/usr/share")?;
    /// fs.write("/usr/share/motd", "Hello.")?;
    /// let mut archive = Vec::new();
    /// fs.export(&mut archive, &ExportOptions::new().path("/usr"))?;
    /// assert!(archive.len() % 512 == 0 && archive.windows(6).any(|part| part == b"Hello."));
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENOENT and the like for the path; EUCLEAN or EIO where the image cannot be read; ENOKEY for an encrypted file;
    /// the error of `to`, which is the source of this crate's.
    pub fn export(&self, to: impl Write, options: &ExportOptions<'_>) -> Result<()> {
        let path = &*options.path;
        self.shared().inode(path, true)?;
        let route = Route::new(path, Path::new(""));
        let events = Events { fs: self, route: &route, loss: options.loss.as_ref() };
        let exported = archive::export(self.shared().live(path)?, route.inside(), to, false, &events);
        exported.map_err(|e| Error::transfer(self.image(), &route, e))
    }
}
