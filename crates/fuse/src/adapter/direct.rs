//! Open files that the kernel reads and writes without its page cache.
//!
//! Under FUSE the page cache works page by page, which costs the client 400 to 520 µs per MiB. A file that is opened
//! with FOPEN_DIRECT_IO is read and written by the server in pieces of up to 1 MiB, but every small read is a request.
//! The document docs/performance.md has the figures, and the size from which this pays.
//!
//! Main type: [`DirectIo`], the choice of files.
//!
//! Before Linux 6.9, the kernel drops cached pages only before it sends a direct write. Pages that a reader brings back
//! during the write stay in the cache, stale. On these kernels no file is direct.
//!
//! What it does not do: it does not remove file capabilities, for which the kernel does not ask before a direct write
//! ([`WriteFlags::kill_capabilities`](extant_fs::WriteFlags)).
//!
//! # Locking
//! None.

/// Which regular files bypass the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    #[default]
    Never,
    /// New files that are opened only for writing.
    Write,
    /// New files as for `Write`, and files of at least this many bytes when they are opened. The kernel then sends OPEN
    /// for every file.
    From(u64),
}

/// The protocol of Linux 6.9.
const MINOR_MIN: u32 = 40;

impl DirectIo {
    /// The choice that is possible with this minor version of the kernel's protocol, with its writeback cache or
    /// without.
    pub(super) fn granted(self, minor: u32, writeback_cache: bool) -> DirectIo {
        if minor < MINOR_MIN || writeback_cache { DirectIo::Never } else { self }
    }

    /// Whether a file that this open creates is direct.
    pub(super) fn of_new(self, writes_only: bool) -> bool {
        self != DirectIo::Never && writes_only
    }

    /// Whether an existing file of this size is direct.
    pub(super) fn of_size(self, size: u64) -> bool {
        matches!(self, DirectIo::From(least) if size >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_files_are_direct() {
        let from = DirectIo::From(4096);
        assert_eq!(from.granted(40, false), from);
        assert_eq!((from.granted(39, false), from.granted(40, true)), (DirectIo::Never, DirectIo::Never));
        assert!(!DirectIo::Never.of_new(true) && !DirectIo::Never.of_size(u64::MAX));
        assert!(DirectIo::Write.of_new(true) && !DirectIo::Write.of_new(false) && !DirectIo::Write.of_size(u64::MAX));
        assert!(from.of_new(true) && from.of_size(4096) && !from.of_size(4095));
    }
}
