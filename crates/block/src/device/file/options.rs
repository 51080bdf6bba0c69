//! The options for opening a file, and the properties that are then known.
//!
//! Main types: [`OpenOptions`], [`Locking`]; [`Opened`], which the system-specific part fills in.
//!
//! # Locking
//! None.

use std::fs::File;

use super::{Engine, IoMode};
use crate::device::Limits;

/// The options for opening an image file or block device. The default reads and writes the whole of it, with O_DIRECT
/// and io_uring if the system offers them.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Reject writes, and open the file only for reading.
    pub read_only: bool,
    /// O_DIRECT or the page cache.
    pub io: IoMode,
    /// io_uring or system calls.
    pub engine: Engine,
    /// Start of the device in the file, in bytes; a multiple of the logical block.
    pub offset: u64,
    /// Length of the device in bytes; `None` for the rest of the file.
    pub len: Option<u64>,
    /// Only for reading: do not reject an image that the kernel has mounted. Reads may be inconsistent.
    pub allow_mounted: bool,
    /// Open a block device for writing exclusively (O_EXCL). Without it, another must have opened it exclusively: the
    /// caller through another descriptor, or the kernel, which opens the device of a `fuseblk` mount exclusively.
    pub exclusive: bool,
    /// Whether and how the bytes of an image file are locked.
    pub lock: Locking,
    /// The name in messages, instead of its path.
    pub shown_as: Option<String>,
}

/// Whether the bytes of an image file are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Locked. If the host cannot lock files (for example NFS without lockd), the image can only be read.
    Required,
    /// Locked if the host can lock files, and otherwise unprotected. If another process has locked the bytes, the open
    /// still fails.
    IfPossible,
    /// Not locked, for a short access. The contents may change in the meantime.
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
    /// The default, but only for reading.
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
