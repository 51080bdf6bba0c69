//! `-N` of the helpers: mount(8) and umount(8) name a mount namespace and leave it to their helpers to enter it.
//!
//! # Locking
//! None.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Failure, MOUNT, Result, plain};

/// Enters the mount namespace that `path` leads to (`/proc/PID/ns/mnt`). Before anything is looked at, and before a
/// thread is started: only a process with one thread may.
pub fn enter(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let entered = File::open(path)
        .and_then(|namespace| Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?));
    entered.map_err(|e| {
        Failure::new(MOUNT, format!("{}: this mount namespace cannot be entered: {}", path.display(), plain(&e)))
    })
}
