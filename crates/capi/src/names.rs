//! Operations on names: directories, links, renames, copies.
//!
//! # Locking
//! None.

use std::ffi::{c_int, c_void};
use std::io::{self, Write};

use extant::ExportOptions;

use crate::border::{Target, Text};
use crate::device;
use crate::fault::{EFAULT, ERANGE, Fault, Result};
use crate::handles::Handle;
use crate::types::{extant_fs, extant_output_fn};

/// The permissions of a directory that the library makes.
const DIRECTORY_MODE: u32 = 0o755;

/// Passes bytes to C if they fit. `size` 0 asks for their number.
pub fn answer(bytes: &[u8], buffer: Target, size: usize) -> Result<i64> {
    if size != 0 {
        let room = buffer.of(size)?;
        let to = room.get_mut(..bytes.len());
        let short = || Fault::new(ERANGE, format!("{} bytes do not fit a buffer of {size}", bytes.len()));
        to.ok_or_else(short)?.copy_from_slice(bytes);
    }
    Ok(i64::try_from(bytes.len()).unwrap_or(i64::MAX))
}

/// The function that gets an archive. Only the thread of the export calls it.
struct Output {
    to: extern "C" fn(*mut c_void, *const c_void, usize) -> c_int,
    user: *mut c_void,
}

impl Write for Output {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        device::answer((self.to)(self.user, data.as_ptr().cast(), data.len()))?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

export! {
    /// Makes a directory.
    fn extant_mkdir(fs: Handle<extant_fs>, path: Text, mode: u32) -> c_int {
        let (fs, path) = (fs.get()?, path.path()?);
        fs.create_dir(path)?;
        if mode != DIRECTORY_MODE {
            fs.set_permissions(path, mode)?;
        }
        Ok(0)
    }

    /// Makes a directory and all that are missing above it, with the permissions 0755. One that exists is no error.
    fn extant_mkdirs(fs: Handle<extant_fs>, path: Text) -> c_int {
        fs.get()?.create_dir_all(path.path()?)?;
        Ok(0)
    }

    /// Removes a file or a symbolic link.
    fn extant_unlink(fs: Handle<extant_fs>, path: Text) -> c_int {
        fs.get()?.remove_file(path.path()?)?;
        Ok(0)
    }

    /// Removes an empty directory.
    fn extant_rmdir(fs: Handle<extant_fs>, path: Text) -> c_int {
        fs.get()?.remove_dir(path.path()?)?;
        Ok(0)
    }

    /// Removes a directory and everything below it.
    fn extant_remove_all(fs: Handle<extant_fs>, path: Text) -> c_int {
        fs.get()?.remove_dir_all(path.path()?)?;
        Ok(0)
    }

    /// Renames a file or directory. A file at the new path, or an empty directory, is replaced, without a moment in
    /// which neither is there.
    fn extant_rename(fs: Handle<extant_fs>, from: Text, to: Text) -> c_int {
        fs.get()?.rename(from.path()?, to.path()?)?;
        Ok(0)
    }

    /// Makes a symbolic link that leads to target.
    fn extant_symlink(fs: Handle<extant_fs>, target: Text, path: Text) -> c_int {
        fs.get()?.symlink(target.path()?, path.path()?)?;
        Ok(0)
    }

    /// The target of a symbolic link, without a zero at its end. Returns its length. -ERANGE if it does not fit; if
    /// size is 0, only the length is returned.
    fn extant_readlink(fs: Handle<extant_fs>, path: Text, buffer: Target, size: usize) -> i64 {
        let target = fs.get()?.read_link(path.path()?)?;
        answer(target.as_os_str().as_encoded_bytes(), buffer, size)
    }

    /// Gives the file at path another name.
    fn extant_link(fs: Handle<extant_fs>, path: Text, name: Text) -> c_int {
        fs.get()?.hard_link(path.path()?, name.path()?)?;
        Ok(0)
    }

    /// Copies a file or a whole directory of the host into the image. The path in the image must not exist.
    fn extant_copy_in(fs: Handle<extant_fs>, host: Text, path: Text) -> c_int {
        fs.get()?.copy_in(host.path()?, path.path()?)?;
        Ok(0)
    }

    /// Copies a file or a whole directory of the image to the host, where the path must not exist.
    fn extant_copy_out(fs: Handle<extant_fs>, path: Text, host: Text) -> c_int {
        fs.get()?.copy_out(path.path()?, host.path()?)?;
        Ok(0)
    }

    /// Writes the tree at path as a tar archive in the PAX format: calls output with user and each piece, in order and
    /// in the same thread. An archive that fails ends at a place where tar reports that more must follow.
    fn extant_export(fs: Handle<extant_fs>, path: Text, output: extant_output_fn, user: *mut c_void) -> c_int {
        let to = output.ok_or_else(|| Fault::new(EFAULT, "the function 'output' is NULL"))?;
        fs.get()?.export(Output { to, user }, &ExportOptions::new().path(path.path()?))?;
        Ok(0)
    }
}
