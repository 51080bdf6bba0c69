//! The path of this program, to start it again: as the server of a mount, and as the server's unmounting agent.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The running executable, even if another file has its name now. Without /proc, the file with the name by which this
/// process was started, relative to its initial directory.
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
