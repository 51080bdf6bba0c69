//! How a file is opened, and what is known of it then.
//!
//! Main types: [`OpenOptions`], [`Locking`]; [`Opened`], which the part for the system at hand fills in.
//!
//! # Locking
//! None.

use std::fs::File;

use super::{Engine, IoMode};
use crate::device::Limits;

/// How to open an image file or block device. The default reads and writes the whole of it, with O_DIRECT and io_uring
/// where the system offers them.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse writes, and open the file for reading only.
    pub read_only: bool,
    /// O_DIRECT or the page cache.
    pub io: IoMode,
    /// io_uring or system calls.
    pub engine: Engine,
    /// Start of the device in the file, in bytes; a multiple of the logical block.
    pub offset: u64,
    /// Length of the device in bytes; `None` for the rest of the file.
    pub len: Option<u64>,
    /// Reading only: do not refuse an image that the kernel has mounted. Reads may be inconsistent.
    pub allow_mounted: bool,
    /// Open a block device for writing exclusively (O_EXCL). Without it, the exclusive open must belong to another:
    /// to the caller through another descriptor, or to the kernel, which opens the device of a `fuseblk` mount
    /// exclusively.
    pub exclusive: bool,
    /// How the bytes of an image file are locked.
    pub lock: Locking,
    /// The name in messages, instead of its path.
    pub shown_as: Option<String>,
}

/// Whether the bytes of an image file are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Locked. Where the host cannot lock files (NFS without lockd, say), the image can only be read.
    Required,
    /// Locked where the host can lock files, and unprotected where it cannot. If another process has locked the
    /// bytes, the open fails all the same.
    IfPossible,
    /// Not locked: for a short look. The contents may change meanwhile.
    None,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            io: IoMode::Direct,
            engine: Engine::IoUring,
            offset: 0,
            len: None,
            allow_mounted: false,
            exclusive: true,
            lock: Locking::Required,
            shown_as: None,
        }
    }
}

impl OpenOptions {
    /// The default, reading only.
    pub fn read_only() -> OpenOptions {
        OpenOptions { read_only: true, ..OpenOptions::default() }
    }
}

/// The file that was opened, and its properties.
pub(super) struct Opened {
    pub data: File,
    pub io: IoMode,
    #[cfg(target_os = "linux")]
    pub block_device: bool,
    pub start: u64,
    pub size: u64,
    pub limits: Limits,
    pub unguarded: Vec<String>,
}
