//! Limits the memory for names, attributes and sparse maps of archives.
//!
//! If they are compressed, they may be a thousand times smaller, and a record of a global header counts for each entry.
//! So the number of stored bytes limits their memory and the number of entries, and whether an archive is rejected does
//! not depend on the memory of the machine.
//!
//! Main type: [`Budget`].
//!
//! # Locking
//! None: there are three atomic counters, which the threads that read the layers of an image share.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bytes that any source may take, in addition to one for each stored byte.
const FREE_BYTES: u64 = 64 << 20;
/// The number of bytes of an entry that are not counted: the blocks of an extended header have as many.
const ENTRY_BYTES: u64 = 1024;
/// The number of entries that any source may have. A tree takes up to 400 bytes for each.
const FREE_ENTRIES: u64 = 2 << 20;
/// The number of stored bytes for each additional entry. Even with the best compression, the header of an empty file
/// whose name differs from the previous one only in a number takes more.
const BYTES_AN_ENTRY: u64 = 4;

/// The memory that the entries of a source may take.
#[derive(Clone, Default)]
pub struct Budget(Arc<Counters>);

#[derive(Default)]
struct Counters {
    stored: AtomicU64,
    taken: AtomicU64,
    entries: AtomicU64,
}

impl Budget {
    /// Records stored bytes of archives.
    pub fn add_stored(&self, bytes: u64) {
        self.0.stored.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A reader of a stored archive that adds the bytes as they are read.
    pub fn counted<R>(&self, reader: R) -> Counted<R> {
        Counted { reader, budget: self.clone() }
    }

    /// Takes the memory of an entry from the budget.
    ///
    /// # Errors
    /// The budget is exhausted.
    pub fn take(&self, bytes: u64) -> Result<(), String> {
        let entries = self.0.entries.fetch_add(1, Ordering::Relaxed) + 1;
        let stored = self.0.stored.load(Ordering::Relaxed);
        let most = FREE_ENTRIES + stored / BYTES_AN_ENTRY;
        if entries > most {
            return Err(format!(
                "more than {most} entries up to here, in {stored} bytes of archives: more than any tree compresses to; \
                 decompress the archive first if it has so many"
            ));
        }
        let more = bytes.saturating_sub(ENTRY_BYTES);
        let taken = self.0.taken.fetch_add(more, Ordering::Relaxed) + more;
        let limit = FREE_BYTES + stored;
        if more > 0 && taken > limit {
            return Err(format!(
                "names, attributes and sparse maps up to here take {taken} bytes of memory; they may take {limit}, \
                 as {stored} bytes of archives have been read; decompress the archive first, which lets it take more"
            ));
        }
        Ok(())
    }
}

/// The reader that [`Budget::counted`] returns.
pub struct Counted<R> {
    reader: R,
    budget: Budget,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buf)?;
        self.budget.add_stored(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_bounded_by_what_is_stored() {
        let budget = Budget::default();
        budget.add_stored(1000);
        for _ in 0..FREE_ENTRIES + 250 {
            budget.take(100).unwrap();
        }
        let said = budget.take(100).unwrap_err();
        assert!(said.starts_with("more than 2097402 entries up to here, in 1000 bytes"), "{said}");
        budget.add_stored(8);
        assert_eq!(budget.take(100), Ok(()));
    }
}
