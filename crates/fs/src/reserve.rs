//! The blocks that ordinary callers cannot use (Linux: `ext4_has_free_clusters`, fs/ext4/balloc.c).
//!
//! Main types: [`Reserve`] (how much is reserved, and for which users), [`Caller`] (the user on whose behalf a thread
//! runs).
//!
//! Blocks are requested on behalf of the thread's [`Caller`]. Writeback allocates for root, so the space that is
//! reserved for a delayed write remains available to it. Only the reservation itself can be refused.
//!
//! What it does not do: count blocks. The allocator does, and each request says whether it may use the reserve.
//!
//! # Locking
//! None: atomics, which change when the file system grows.

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_ondisk::superblock::SuperBlock;

use crate::options::MountOptions;

/// The user for whom blocks are requested (Linux: `current_fsuid`, `current_fsgid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user, who may be the owner of the reserved blocks.
    pub uid: u32,
    /// The group; FUSE passes on only one.
    pub gid: u32,
}

impl Caller {
    /// Root, which may use reserved blocks. A thread runs on behalf of root outside of [`Caller::run`]: for the
    /// library's own calls, writeback and evictions.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0 };
}

fn pool_of(sb: &SuperBlock) -> u64 {
    let geo = sb.geometry();
    ((geo.blocks_count >> geo.cluster_bits) / 50).min(4096) << geo.cluster_bits
}

/// The reserved blocks, and the users who may use them.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// Blocks for root, and for the user and group below (`s_r_blocks_count`).
    root_blocks: AtomicU64,
    /// Blocks for operations that must not fail once they have begun (Linux: `s_resv_clusters`).
    pool_blocks: AtomicU64,
    uid: u32,
    gid: u32,
}

impl Reserve {
    pub fn new(sb: &SuperBlock, options: &MountOptions) -> Reserve {
        let (uid, gid) = sb.reserved_owner();
        Reserve {
            root_blocks: AtomicU64::new(sb.reserved_blocks()),
            pool_blocks: AtomicU64::new(pool_of(sb)),
            uid: options.resuid.unwrap_or(uid),
            gid: options.resgid.unwrap_or(gid),
        }
    }

    /// Adjusts the reserve to a larger file system.
    pub(crate) fn grow(&self, sb: &SuperBlock) {
        self.root_blocks.store(sb.reserved_blocks(), Ordering::Relaxed);
        self.pool_blocks.store(pool_of(sb), Ordering::Relaxed);
    }

    pub(crate) fn root_blocks(&self) -> u64 {
        self.root_blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn pool_blocks(&self) -> u64 {
        self.pool_blocks.load(Ordering::Relaxed)
    }

    /// The number of blocks that users without privilege cannot use.
    pub(crate) fn kept_back(&self) -> u64 {
        self.root_blocks() + self.pool_blocks()
    }

    /// Whether `who` may use the blocks reserved for root. A reserve for group 0 is not open to any group, because
    /// otherwise every member of root's group could use it.
    pub(crate) fn open_to(&self, who: Caller) -> bool {
        who.uid == 0 || who.uid == self.uid || (self.gid != 0 && who.gid == self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_open_to_root_and_its_own_user_and_group() {
        let reserve = |uid, gid| Reserve { root_blocks: AtomicU64::new(1), pool_blocks: AtomicU64::new(0), uid, gid };
        let r = reserve(7, 8);
        for (uid, gid, may) in [(0, 5, true), (7, 5, true), (5, 8, true), (5, 5, false), (5, 0, false), (8, 7, false)] {
            assert_eq!(r.open_to(Caller { uid, gid }), may, "{uid}:{gid}");
        }
        let plain = reserve(0, 0);
        assert!(!plain.open_to(Caller { uid: 5, gid: 0 }), "group 0 stands for no group");
    }
}
