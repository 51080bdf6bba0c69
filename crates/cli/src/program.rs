//! This program, to be started again: the server of a mount, and the process that unmounts for it.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What to execute: the file that runs, even if another one has its name by now; without /proc, the file under the name
/// that it was started by. That is relative to the directory that we were started in.
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
