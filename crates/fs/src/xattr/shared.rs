//! The attribute blocks that other inodes may share (Linux: fs/mbcache.c, `ext4_xattr_block_cache_find`).
//!
//! Main types: [`SharedBlocks`], the index of one mount from `h_hash` to blocks; [`Joinable`], the same index under its
//! lock.
//!
//! The index is only a hint about the content of a block, but it guarantees that the block is in use. An inode refers
//! to each block in the index, so another inode may compare its content and increase its count. Only the bytes show
//! which blocks are equal. So a block leaves the index before its last reference is dropped and before its content
//! changes, and both happen while the index is held exclusively. A block enters the index when a locked inode that
//! refers to it is read or written. A block with the maximum number of references is not in the index.
//!
//! The index has a fixed number of slots (256 KiB, see [`super::hints`]), so one search reads at most eight blocks.
//!
//! What it does not do: read or change blocks.
//!
//! # Locking
//! `shared attributes` (77) guards the index, and every change of a reference count or of the content of a block that
//! may be in the index. Reading an attribute takes it shared, and exclusively if the block is not in the index.

use extant_base::counter::Counter;
use extant_base::sync::{LockClass, RwLock, RwLockWriteGuard};
use extant_ondisk::BlockNr;
use extant_ondisk::xattr::References;

use super::hints::Hints;

static CLASS: LockClass = LockClass::new("shared attributes", 77);

/// The index of one mount.
pub struct SharedBlocks {
    joinable: RwLock<Joinable>,
    /// How often an inode began to share a block.
    pub joined: Counter,
}

impl Default for SharedBlocks {
    fn default() -> SharedBlocks {
        SharedBlocks { joinable: RwLock::new(&CLASS, Joinable::default()), joined: Counter::new() }
    }
}

impl SharedBlocks {
    /// Called when a locked inode refers to `nr`, whose header is `references`. From now on other inodes may share it.
    pub fn note(&self, nr: BlockNr, references: References) {
        if references.may_grow() && !self.joinable.read().contains(nr, references.hash) {
            self.joinable.write().note(nr, references);
        }
    }

    /// Blocks of this hash, newest first. Each may already have left the index.
    pub fn candidates(&self, hash: u32) -> Vec<BlockNr> {
        self.joinable.read().hints.candidates(hash)
    }

    /// Holds the index. Only the caller can then change a count, or change or free a block in the index.
    pub fn hold(&self) -> RwLockWriteGuard<'_, Joinable> {
        self.joinable.write()
    }
}

/// The index, under its lock.
#[derive(Default)]
pub struct Joinable {
    hints: Hints<BlockNr>,
}

impl Joinable {
    /// Whether the block may be shared.
    pub fn contains(&self, nr: BlockNr, hash: u32) -> bool {
        self.hints.contains(hash, nr)
    }

    /// Updates the entry of `nr` from its header, which shows whether the block may be shared.
    pub fn note(&mut self, nr: BlockNr, references: References) {
        if references.may_grow() {
            self.hints.note(references.hash, nr);
        } else {
            self.forget(nr, references.hash);
        }
    }

    /// From now on no inode begins to share `nr`.
    pub fn forget(&mut self, nr: BlockNr, hash: u32) {
        self.hints.forget(hash, nr);
    }
}

#[cfg(test)]
mod tests {
    use extant_ondisk::xattr::REFCOUNT_MAX;

    use super::*;

    fn named(shared: &SharedBlocks, hash: u32) -> Vec<u64> {
        shared.candidates(hash).into_iter().map(|nr| nr.0).collect()
    }

    #[test]
    fn index_names_blocks_that_another_inode_may_join() {
        let shared = SharedBlocks::default();
        for (nr, count, hash) in [(1, 1, 7), (2, REFCOUNT_MAX, 7), (3, REFCOUNT_MAX - 1, 7), (4, 1, 0), (5, 1, 8)] {
            shared.note(BlockNr(nr), References { count, hash });
        }
        assert_eq!(named(&shared, 7), [3, 1], "one is full");
        assert_eq!(named(&shared, 0), [0; 0], "a hash of 0 is never shared");
        shared.hold().forget(BlockNr(1), 7);
        shared.hold().note(BlockNr(3), References { count: REFCOUNT_MAX, hash: 7 });
        assert_eq!(named(&shared, 7), [0; 0]);
        assert_eq!(named(&shared, 8), [5]);
    }

    #[test]
    fn index_is_bounded_and_forgets_the_block_that_was_noted_longest_ago() {
        let shared = SharedBlocks::default();
        for nr in 1..=1000 {
            shared.note(BlockNr(nr), References { count: 1, hash: 7 });
            shared.hold().note(BlockNr(1), References { count: 1, hash: 7 });
        }
        assert_eq!(named(&shared, 7), [1, 1000, 999, 998, 997, 996, 995, 994]);
        for hash in 0..100_000 {
            shared.note(BlockNr(5000), References { count: 1, hash });
        }
        assert_eq!(shared.hold().hints.sets.len(), crate::xattr::hints::SETS);
    }
}
