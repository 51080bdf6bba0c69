//! An inode's entries in 12 bytes each: sorted leaves under a flat root.
//!
//! Main types: [`PackedTree`] (the first few entries in place, then leaves), `Packed` (an entry), `Leaf`.
//!
//! A file's entries arrive in order or at random, and stay until memory is short. So leaves are big (512 entries, 6
//! KiB). A full leaf moves entries to a neighbour before two leaves become three, and a leaf that only grows at its end
//! stays full. The root is two vectors with binary search; for ten million entries it takes 200 KB. Leaves with
//! evictable entries form a ring, so that a sweep need not search for them.
//!
//! What it does not do: choose entries. A policy moves the hand and decides which entries to spare.
//!
//! # Locking
//! `i_es_lock`, which `core` holds.

mod entry;
mod leaf;
mod tree;

pub(super) use leaf::{ALL, Outcome};
pub(super) use tree::{PackedTree, Spare, Swept};

/// The memory that an allocator uses for `bytes`. It has at least 16 bytes, and the distance of its size classes is a
/// quarter of a power of two (mimalloc, jemalloc).
fn allocated(bytes: usize) -> u64 {
    let step = (bytes.next_power_of_two() / 8).max(16);
    bytes.next_multiple_of(step) as u64
}
