//! `-N` of the helpers: mount(8) and umount(8) pass a mount namespace, which the helper must enter.
//!
//! # Locking
//! None.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Failure, MOUNT, Result, plain};

/// Enters the mount namespace at `path` (`/proc/PID/ns/mnt`). It must run before any access to files, and before the
/// first thread starts: only a process with one thread may enter.
pub fn enter(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let entered = File::open(path)
        .and_then(|namespace| Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?));
    entered.map_err(|e| {
        Failure::new(MOUNT, format!("{}: this mount namespace cannot be entered: {}", path.display(), plain(&e)))
    })
}
