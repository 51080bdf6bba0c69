//! An inode's entries in 12 bytes each: sorted leaves under a flat root.
//!
//! Main types: [`PackedTree`] (the first few entries in place, then leaves), `Packed` (an entry), `Leaf`.
//!
//! Entries of a file come in order or at random, and stay until memory is short: so leaves are big (512 entries, 6
//! KiB), a full one shares with a neighbour before the two become three, and one to which is only added at the end
//! stays full. The root is two vectors, searched by halving; ten million entries have a root of 200 KB. Leaves with
//! something that can go are in a ring, so that nobody looks for them.
//!
//! What it does not do: choose. A policy says when the hand moves and who is spared.
//!
//! # Locking
//! `i_es_lock`, held by `core`.

mod entry;
mod leaf;
mod tree;

pub(super) use leaf::{ALL, Outcome};
pub(super) use tree::{PackedTree, Spare, Swept};

/// What an allocator takes for `bytes`: its sizes are a quarter of a power of two apart (mimalloc, jemalloc), at
/// least 16 bytes.
fn allocated(bytes: usize) -> u64 {
    let step = (bytes.next_power_of_two() / 8).max(16);
    bytes.next_multiple_of(step) as u64
}
