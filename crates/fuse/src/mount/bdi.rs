//! Lifts, through sysfs, the limits that the kernel puts on a FUSE mount's page cache.
//!
//! A FUSE mount starts with read_ahead_kb=128, max_ratio=1 and strict_limit=1: its writers get about 1 % of the dirty
//! memory of other file systems. Only root may change that.
//!
//! # Locking
//! None.

use std::fs;
use std::path::PathBuf;

use super::MountOptions;

pub(super) fn tune((major, minor): (u32, u32), options: &MountOptions) {
    // The entry of fuseblk shares its number with the disk's own entry, and therefore has a suffix. The disk's own
    // entry must not be changed.
    let blk = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}-fuseblk"));
    let dir = match options.kind {
        super::MountKind::Fuse => PathBuf::from(format!("/sys/class/bdi/{major}:{minor}")),
        super::MountKind::FuseBlk { .. } => blk,
    };
    let set = |knob: &str, value: &str| {
        let _ = fs::write(dir.join(knob), value);
    };
    if let Some(kb) = options.read_ahead_kb {
        set("read_ahead_kb", &kb.to_string());
    }
    if options.lift_dirty_limits {
        set("strict_limit", "0");
        set("max_ratio", "100");
    }
}
