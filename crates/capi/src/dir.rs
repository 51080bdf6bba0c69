//! Listings.
//!
//! # Locking
//! `c listing` (2): one open directory, while its next name is read.

use std::ffi::{c_char, c_int};

use extant_base::sync::{LockClass, Mutex};

use crate::attributes::kind_bits;
use crate::border::{Out, Text};
use crate::handles::{Handle, Object};
use crate::types::{extant_dir, extant_dirent, extant_fs};

static CLASS: LockClass = LockClass::new("c listing", 2);

export! {
    /// Opens a directory to list it. Close it with extant_closedir.
    fn extant_opendir(fs: Handle<extant_fs>, path: Text, dir: Out<Handle<extant_dir>>) -> c_int {
        dir.check()?;
        let listing = fs.get()?.read_dir(path.path()?)?;
        dir.put(Handle::new(Object::Dir(Mutex::new(&CLASS, listing).into())))?;
        Ok(0)
    }

    /// The next name of a directory, in the order of their bytes, without "." and "..". Returns 1, or 0 at the end.
    fn extant_readdir(dir: Handle<extant_dir>, entry: Out<extant_dirent>) -> c_int {
        entry.check()?;
        let listing = dir.get()?;
        let Some(found) = listing.lock().next() else { return Ok(0) };
        let found = found?;
        let kind = found.file_type().map_or(0, kind_bits);
        let name = found.file_name().as_encoded_bytes();
        let mut answer = extant_dirent { ino: found.ino(), kind, length: name.len() as u32, name: [0; 256] };
        // A name has at most 255 bytes, so the last of these stays zero.
        for (to, byte) in answer.name[..255].iter_mut().zip(name) {
            *to = *byte as c_char;
        }
        entry.put(answer)?;
        Ok(1)
    }

    /// Closes a directory.
    fn extant_closedir(dir: Handle<extant_dir>) -> c_int {
        dir.take()?;
        Ok(0)
    }
}
