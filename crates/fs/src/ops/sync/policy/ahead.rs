//! `ahead`: an fsync in a row of fsyncs of new files writes the next ones as well.
//!
//! Files of a directory have their inodes in one group. So the policy remembers for each group the new file that was
//! fsynced last. An fsync of another new file begins a series. From then on, each fsync writes up to 1 MiB of the
//! group's new files as well. The policy does not look at the caller: programs that fsync through a server, or with one
//! thread for each file, look the same.
//!
//! # Locking
//! None: each memory is a single word, and a lost race costs one wrong guess.

use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_ondisk::InodeNr;

use super::{BYTES_MAX, SyncPolicy};

/// The number of memories. Groups whose numbers differ by a multiple of it share one.
const NOTES: usize = 64;

pub(super) struct Ahead {
    inodes_per_group: u32,
    /// The new file that was fsynced last.
    last: [AtomicU32; NOTES],
}

impl Ahead {
    pub(super) fn new(inodes_per_group: u32) -> Ahead {
        Ahead { inodes_per_group: inodes_per_group.max(1), last: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl SyncPolicy for Ahead {
    fn carry(&self, ino: InodeNr) -> u64 {
        let group = |ino: u32| ino.saturating_sub(1) / self.inodes_per_group;
        let last = self.last[group(ino.0) as usize % NOTES].swap(ino.0, Ordering::Relaxed);
        if last != 0 && last != ino.0 && group(last) == group(ino.0) { BYTES_MAX } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_begins_with_the_second_file() {
        let ahead = Ahead::new(100);
        let carried = |ino| ahead.carry(InodeNr(ino)) > 0;
        assert_eq!([12, 12, 13, 14, 14, 12].map(carried), [false, false, true, true, false, true]);
        // Another group, and one that shares its memory.
        assert_eq!([101, 102, 6501, 6502, 103].map(carried), [false, true, false, true, false]);
        assert!(carried(15), "the first group's row goes on");
    }
}
