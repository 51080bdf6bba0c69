//! `extant freeze` and `extant thaw`.
//!
//! For FUSE, the kernel answers fsfreeze(8) itself, with an error. So this module sends the server an ioctl of our own.
//! Before that, the kernel writes its dirty pages (`writeback_cache`, shared mappings) to the server, as before any
//! freeze. For a `fuseblk` mount, the server receives all of them. For other mounts syncfs(2) does not wait: pages that
//! a slow server has not received by then arrive after the thaw. Call fsync for data that must be in a copy.
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;

use extant_fuse::{Control, Errno, control};

use crate::args::FreezeArgs;
use crate::failure::{Failure, MOUNT, Result, SYSTEM, USAGE, plain};
use crate::mount_table;
use crate::text::shown;

/// The message when a server refuses a control request for its mount.
pub const NOT_PRIVILEGED: &str = "not permitted: run this as the user who mounted it; root also needs CAP_SYS_ADMIN, \
                                  which the server looks up in its /proc";

pub fn run(args: &FreezeArgs, what: Control) -> Result<()> {
    let name = shown(args.dir.as_os_str().as_bytes());
    let Some(found) = mount_table::find(&args.dir)?.filter(|found| found.mount.is_extant()) else {
        return Err(Failure::new(MOUNT, format!("{name}: not a mount of Extant")));
    };
    let root = found.point.open_root(found.top);
    let root = root.map_err(|e| Failure::io(found.point.path(), std::io::Error::from(e)).with_status(MOUNT))?;
    if what == Control::Freeze {
        // Writes the kernel's dirty pages; the server itself reports an error.
        let _ = rustix::fs::syncfs(&root);
    }
    control(&root, what).map_err(|e| match e {
        Errno::BUSY => Failure::new(MOUNT, format!("{name}: frozen already")),
        Errno::INVAL => Failure::new(MOUNT, format!("{name}: not frozen")),
        Errno::PERM => Failure::new(USAGE, format!("{name}: {NOT_PRIVILEGED}")),
        e => Failure::new(SYSTEM, format!("{name}: {}", plain(&e.into()))),
    })
}
