//! Open files that the kernel reads and writes without its page cache.
//!
//! Under FUSE the page cache works page by page: 400 to 520 µs of the client's time a MiB. A file that is opened with
//! FOPEN_DIRECT_IO goes straight to the server in pieces of up to 1 MiB, and every small read is a request
//! (docs/performance.md has the figures, and the size from which it pays).
//!
//! Main type: [`DirectIo`], which files.
//!
//! A kernel before Linux 6.9 empties its cache for a direct write before the request alone: what a reader brings back
//! meanwhile stays there although it is old. There no file is direct.
//!
//! What it does not do: capabilities of files, which the kernel does not ask for before a direct write
//! ([`WriteFlags::kill_capabilities`](extant_fs::WriteFlags)).
//!
//! # Locking
//! None.

/// Which regular files bypass the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    #[default]
    Never,
    /// New files that are opened for writing alone.
    Write,
    /// Those, and files of at least so many bytes when they are opened. The kernel then sends OPEN for every file.
    From(u64),
}

/// The protocol of Linux 6.9.
const MINOR_MIN: u32 = 40;

impl DirectIo {
    /// The part of it that a kernel with this minor version of the protocol can do, with its writeback
    /// cache or without.
    pub(super) fn granted(self, minor: u32, writeback_cache: bool) -> DirectIo {
        if minor < MINOR_MIN || writeback_cache { DirectIo::Never } else { self }
    }

    /// For an open file that this open makes.
    pub(super) fn of_new(self, writes_only: bool) -> bool {
        self != DirectIo::Never && writes_only
    }

    /// For an open file of this size.
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
