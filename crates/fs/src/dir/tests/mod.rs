//! The directory layer over a store in memory, tested against a model, with damage, and against the kernel's own
//! directories.

mod damage;
mod image;
mod model;
mod store;

use std::cell::Cell;

use extant_ondisk::htree::NameHash;

thread_local! {
    /// The bits of the hash and of the minor hash that this test keeps.
    static KEPT_BITS: Cell<(u32, u32)> = const { Cell::new((u32::MAX, u32::MAX)) };
}

/// Reduces every name's hash in tests to the kept bits.
pub(super) fn squash(hash: NameHash) -> NameHash {
    let (major, minor) = KEPT_BITS.get();
    NameHash { hash: hash.hash & major, minor: hash.minor & minor }
}

/// Makes names collide on this thread until the guard is dropped.
struct Collisions;

impl Collisions {
    fn keep(hash_bits: u32, minor_bits: u32) -> Collisions {
        KEPT_BITS.set((hash_bits, minor_bits));
        Collisions
    }
}

impl Drop for Collisions {
    fn drop(&mut self) {
        KEPT_BITS.set((u32::MAX, u32::MAX));
    }
}
