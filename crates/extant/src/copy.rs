//! Copies between the host's files and a mounted image: [`Fs::copy_in`] and [`Fs::copy_out`].
//!
//! A copy makes new files only: its destination must not exist. So neither a name in a hostile image nor a link on the
//! host can lead it to something that was there before. Directories are visited without recursion, and memory depends
//! on the depth of the tree alone, except for the names of one host directory.
//!
//! What it does not do: keep hard links, owners, extended attributes or devices, which `extant cp -a` does.
//!
//! # Locking
//! None.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use extant_fs::Error as FsError;

use crate::error::{Error, Result, number};
use crate::file::File;
use crate::fs::Fs;
use crate::metadata::{FileType, Metadata};
use crate::open::OpenOptions;

/// Bytes moved at once; zeroes of this length, aligned to it, become a hole.
const CHUNK_BYTES: usize = 64 << 10;

/// The permissions of a directory while it is filled.
#[cfg(unix)]
const UNFINISHED: u32 = 0o700;

impl Fs {
    /// Copies a file, a symbolic link or a whole directory of the host to `to`, which must not exist. Permissions and
    /// the time of the last change are kept, and long runs of zeroes become holes.
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
        let mut levels = Vec::new();
        levels.extend(self.copy_one_in(from, to)?);
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.names.next() {
                let (from, to) = (level.from.join(&name), level.to.join(&name));
                levels.extend(self.copy_one_in(&from, &to)?);
            } else {
                self.finish_in(&level.to, &level.metadata)?;
                levels.pop();
            }
        }
        Ok(())
    }

    /// Copies one file. For a directory, it is made, and its content remains to be copied.
    fn copy_one_in(&self, from: &Path, to: &Path) -> Result<Option<Level>> {
        let host = |e| Error::host(self.image(), to, from, e);
        let metadata = fs::symlink_metadata(from).map_err(host)?;
        let kind = metadata.file_type();
        if kind.is_symlink() {
            self.symlink(fs::read_link(from).map_err(host)?, to)?;
        } else if kind.is_dir() {
            self.create_dir(to)?;
            let mut names = fs::read_dir(from)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
                .map_err(host)?;
            // The same tree makes the same image.
            names.sort();
            let (from, to) = (from.to_path_buf(), to.to_path_buf());
            return Ok(Some(Level { from, to, metadata, names: names.into_iter() }));
        } else if kind.is_file() {
            let mut source = fs::File::open(from).map_err(host)?;
            let file = OpenOptions::new().write(true).create_new(true).open(self, to)?;
            self.fill(&mut source, &file, &host)?;
            drop(file);
            self.finish_in(to, &metadata)?;
        } else {
            return Err(Error::fs(self.image(), Some(to), FsError::NotSupported(NOT_COPIED)));
        }
        Ok(None)
    }

    fn fill(&self, source: &mut fs::File, file: &File, host: &dyn Fn(io::Error) -> Error) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            let n = read_whole(source, &mut chunk).map_err(host)?;
            let data = &chunk[..n];
            if data.iter().any(|byte| *byte != 0) {
                let mut done = 0;
                while done < n {
                    match file.write_at(&data[done..], at + done as u64)? {
                        0 => return Err(Error::fs(self.image(), Some(file.path()), FsError::NoSpace)),
                        written => done += written,
                    }
                }
            }
            at += n as u64;
            if n < chunk.len() {
                return file.set_len(at);
            }
        }
    }

    fn finish_in(&self, to: &Path, metadata: &fs::Metadata) -> Result<()> {
        if let Some(mode) = host_mode(metadata) {
            self.set_permissions(to, mode)?;
        }
        match metadata.modified() {
            Ok(modified) => self.set_times(to, None, Some(modified)),
            // The host has no such time.
            Err(_) => Ok(()),
        }
    }

    /// Copies a file, a symbolic link or a whole directory to `to` on the host, which must not exist. Permissions
    /// without set-user-id, set-group-id and sticky bits and the time of the last change are kept.
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
        let top = self.symlink_metadata(from)?;
        let mut open: Vec<(PathBuf, PathBuf, Metadata)> = Vec::new();
        self.copy_one_out(from, to, &top)?;
        if !top.is_dir() {
            return Ok(());
        }
        open.push((from.to_path_buf(), to.to_path_buf(), top));
        for entry in self.walk(from)? {
            let (path, metadata) = entry?;
            // The walk has left every directory that the path does not begin with.
            while let Some((dir, host, metadata)) = open.pop_if(|(dir, ..)| path.parent() != Some(&**dir)) {
                finish_out(&host, &metadata).map_err(|e| Error::host(self.image(), &dir, &host, e))?;
            }
            let Some((above, name)) = open.last().map(|(_, to, _)| to).zip(path.file_name()) else { break };
            let host = above.join(name);
            // A name that the host reads as several would leave the directory.
            if host.parent() != Some(&**above) || host.file_name() != Some(name) {
                return Err(Error::wrong_use(self.image(), Some(&path), number::EINVAL, BAD_NAME));
            }
            self.copy_one_out(&path, &host, &metadata)?;
            if metadata.is_dir() {
                open.push((path, host, metadata));
            }
        }
        while let Some((dir, host, metadata)) = open.pop() {
            finish_out(&host, &metadata).map_err(|e| Error::host(self.image(), &dir, &host, e))?;
        }
        Ok(())
    }

    fn copy_one_out(&self, from: &Path, to: &Path, metadata: &Metadata) -> Result<()> {
        let host = |e| Error::host(self.image(), from, to, e);
        match metadata.file_type() {
            FileType::Dir => make_dir(to).map_err(host),
            FileType::Symlink => make_symlink(&self.read_link(from)?, to).map_err(host),
            FileType::File => {
                let source = self.open(from)?;
                let mut file = fs::File::options().write(true).create_new(true).open(to).map_err(host)?;
                let mut chunk = vec![0; CHUNK_BYTES];
                let mut at = 0;
                while at < metadata.len() {
                    let n = source.read_at(&mut chunk, at)?;
                    if n == 0 {
                        break;
                    }
                    let data = &chunk[..n];
                    if data.iter().all(|byte| *byte == 0) {
                        io::Seek::seek_relative(&mut file, n as i64).map_err(host)?;
                    } else {
                        file.write_all(data).map_err(host)?;
                    }
                    at += n as u64;
                }
                file.set_len(at).map_err(host)?;
                drop(file);
                finish_out(to, metadata).map_err(host)
            }
            _ => Err(Error::fs(self.image(), Some(from), FsError::NotSupported(NOT_COPIED))),
        }
    }
}

const NOT_COPIED: &str = "a device, a pipe or a socket cannot be copied";
const BAD_NAME: &str = "a name that the host takes for a path";

/// A directory of the host that is being copied.
struct Level {
    from: PathBuf,
    to: PathBuf,
    metadata: fs::Metadata,
    names: std::vec::IntoIter<std::ffi::OsString>,
}

/// Fills `buf` unless the file ends before.
fn read_whole(from: &mut fs::File, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match from.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn host_mode(metadata: &fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    Some(metadata.permissions().mode() & 0o7777)
}

#[cfg(not(unix))]
fn host_mode(_: &fs::Metadata) -> Option<u32> {
    None
}

#[cfg(unix)]
fn make_dir(at: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(UNFINISHED).create(at)
}

#[cfg(not(unix))]
fn make_dir(at: &Path) -> io::Result<()> {
    fs::create_dir(at)
}

#[cfg(unix)]
fn make_symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(not(unix))]
fn make_symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a finished file or directory its time and its permissions.
#[cfg(unix)]
fn finish_out(at: &Path, metadata: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let file = fs::File::open(at)?;
    file.set_times(fs::FileTimes::new().set_modified(metadata.modified()).set_accessed(metadata.accessed()))?;
    file.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o777))
}

#[cfg(not(unix))]
fn finish_out(at: &Path, metadata: &Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Ok(());
    }
    fs::File::options().write(true).open(at)?.set_modified(metadata.modified())
}
