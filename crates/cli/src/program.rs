//! The path of this program, to start it again: as the server of a mount, and as the process that unmounts for it.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The running file, even if another one has its name now. Without /proc, the file under the name by which it was
/// started, which is relative to the directory at the start.
pub fn itself() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    match running.read_link() {
        Ok(_) => running.into(),
        Err(_) => {
            let name = Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
            name.canonicalize().unwrap_or_else(|_| name.into())
        }
    }
}
