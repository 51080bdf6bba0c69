//! Copies between the host's files and a mounted image: [`Fs::copy_in`] and [`Fs::copy_out`].
//!
//! `extant_transfer` copies, with the same code as `extant cp`. A copy of this crate makes new files only: its
//! destination must not exist. So neither a name in a hostile image nor a link on the host can lead it to something
//! that was there before.
//!
//! What it does not do: keep owners, or copy devices, pipes and sockets, which `extant cp -a` does.
//!
//! # Locking
//! None.

use std::fs;
use std::io;
use std::path::Path;

use extant_fs::Error as FsError;
use extant_fs::errno;
use extant_transfer::copy::{Copy, HostSink, HostSource, ImageSink, ImageSource, Options, Rules};
use extant_transfer::{Owners, Silent};

use crate::error::{Error, Result, number};
use crate::fs::Fs;
use crate::path::{self, Route};

/// A program has no user to whom a copy could explain what it has left out.
const OPTIONS: Options =
    Options { recursive: true, no_clobber: false, keep_directory_symlink: false, makes_holes: true, no_specials: true };

/// The host's error of this number, with the text of the system.
fn host_error(number: i32) -> io::Error {
    if cfg!(target_os = "linux") { io::Error::from_raw_os_error(number) } else { errno::kind(number).into() }
}

impl Fs {
    /// Copies a file, a symbolic link or a whole directory of the host to `to`, which must not exist. Permissions,
    /// times, hard links inside of the tree, extended attributes and ACLs are kept, and long runs of zeroes become
    /// holes. Owners are those of new files: see [`crate::Image::owner`].
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// std::fs::create_dir(dir.path().join("site"))?;
    /// std::fs::write(dir.path().join("site/index.html"), "<p>Hello.")?;
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.copy_in(dir.path().join("site"), "/site")?;
    /// assert_eq!(fs.read("/site/index.html")?, b"<p>Hello.");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// EEXIST; the host's error where it cannot be read; EOPNOTSUPP for a device, a pipe or a socket; ENOSPC; EROFS.
    /// Its text names the path in the image and, for an error of the host, the host's. Copied files stay.
    pub fn copy_in(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let route = self.shared().on(to, |fs, bytes| match fs.walk(bytes, false) {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => Ok(Route::new(to, from)),
            Err(e) => Err(e),
        })?;
        if from.as_os_str().is_empty() {
            return Err(Error::host(self.image(), to, from, host_error(number::ENOENT)));
        }
        let owners = Owners { cred: self.shared().cred, ..Owners::default() };
        let fs = self.shared().live(to)?;
        let sink = ImageSink { fs, owners, keeps_owners: false, newest: None, only_new: true };
        let source = HostSource::new(&Silent);
        let copied = Copy::new(&sink, OPTIONS, &Silent).source(&source, &path::raw(from), route.inside(), false);
        copied.map_err(|e| Error::transfer(self.image(), &route, e))
    }

    /// Copies a file, a symbolic link or a whole directory to `to` on the host, which must not exist. Times, hard links
    /// inside of the tree and holes are kept, and permissions without set-user-id and set-group-id bits; so are ACLs
    /// and the extended attributes of users, if the host stores them. Owners are the caller's.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.create_dir_all("/a/b")?;
    /// fs.write("/a/b/file", "text")?;
    /// let dir = tempfile::tempdir()?;
    /// fs.copy_out("/a", dir.path().join("copy"))?;
    /// assert_eq!(std::fs::read(dir.path().join("copy/b/file"))?, b"text");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENOENT and the like for `from`; EEXIST; EUCLEAN or EIO where the image cannot be read; EOPNOTSUPP for a device,
    /// a pipe or a socket; the host's error. Copied files stay.
    pub fn copy_out(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.shared().inode(from, false)?;
        match fs::symlink_metadata(to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::host(self.image(), from, to, e)),
            Ok(_) => return Err(Error::host(self.image(), from, to, host_error(number::EEXIST))),
        }
        let route = Route::new(from, to);
        let sink = HostSink::new(Rules { own: true, only_new: true, ..Rules::default() }, &Silent);
        let source = ImageSource::new(self.shared().live(from)?);
        let copied = Copy::new(&sink, OPTIONS, &Silent).source(&source, route.inside(), &path::raw(to), false);
        copied.map_err(|e| Error::transfer(self.image(), &route, e))
    }
}
