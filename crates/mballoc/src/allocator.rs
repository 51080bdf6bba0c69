//! [`Allocator`]: the public face. SKELETON: bodies follow.

use std::sync::Arc;

use extant_ondisk::{BlockNr, GroupNr};

use crate::{Allocation, Geometry, InodePreallocation, Policy, Request, Statistics};

/// What the file system does for the allocator.
pub trait GroupStore: Send + Sync {
    /// A journal handle of the caller; opaque here.
    type Txn;
    /// The caller's error; the allocator's own errors are turned into it.
    type Error: From<crate::Error>;

    /// The group's on-disk block bitmap as it is now, changes of running transactions included: verified, built when the
    /// group is BLOCK_UNINIT; one bit per block, least significant first, 1 = used. May do I/O; called without locks.
    /// An error makes the group unusable until the next mount.
    fn load(&self, group: GroupNr) -> Result<Vec<u8>, Self::Error>;

    /// Announces a [`GroupStore::mark`] of this group in `txn`: bring the bitmap and descriptor blocks into memory, get
    /// journal access to them. May do I/O; called without locks.
    fn prepare(&self, txn: &mut Self::Txn, group: GroupNr) -> Result<(), Self::Error> {
        let _ = (txn, group);
        Ok(())
    }

    /// Journals: marks `[start, start + len)` of the group used or free in the on-disk bitmap, and updates the descriptor
    /// (free count, checksum, clears BLOCK_UNINIT). Called with the group's lock held, after `prepare`. On an error
    /// nothing may have changed.
    fn mark(&self, txn: &mut Self::Txn, group: GroupNr, start: u32, len: u32, used: bool) -> Result<(), Self::Error>;
}

/// What the descriptor of a group says at mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Free blocks.
    pub free: u32,
    /// BLOCK_UNINIT is set (and means something): loading the bitmap costs no I/O.
    pub block_uninit: bool,
}

/// Choices at mount.
#[derive(Clone, Debug)]
pub struct Options {
    pub policy: Policy,
    /// Blocks that only requests with USE_ROOT_RESERVE may use (`s_r_blocks_count`).
    pub root_reserve: u64,
    /// Blocks that only requests with USE_RESERVED may use (Linux: `s_resv_clusters`, at most 2 % and 4096).
    pub pool_reserve: u64,
    /// Preallocation for locality groups, in blocks; 0 switches them off (Linux: `mb_group_prealloc`, 512).
    pub group_prealloc: u32,
    /// Files up to this many blocks are small (Linux: `mb_stream_req`, 16).
    pub stream_request: u32,
    /// Preallocation for inodes.
    pub inode_prealloc: bool,
    /// Free extents to measure at most, and at least, in one search (Linux: `mb_max_to_scan`, `mb_min_to_scan`).
    pub max_to_scan: u32,
    pub min_to_scan: u32,
    /// Power-of-two requests from this order on use the buddy directly (Linux: `mb_order2_req`).
    pub order2_requests: u32,
    /// Locality groups; 0 for one per processor.
    pub locality_groups: usize,
    /// Goals for streams; 0 for one per processor, at most groups / 4.
    pub stream_goals: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::default(),
            root_reserve: 0,
            pool_reserve: 0,
            group_prealloc: 512,
            stream_request: 16,
            inode_prealloc: true,
            max_to_scan: 200,
            min_to_scan: 10,
            order2_requests: 2,
            locality_groups: 0,
            stream_goals: 0,
        }
    }
}

/// Blocks freed in one call, split at group borders. Give it (or its sum over a transaction) to [`Allocator::release`]
/// once that transaction is durable.
pub type FreedExtents = Vec<(BlockNr, u32)>;

/// One group as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Blocks that can be handed out now.
    pub free: u32,
    /// Runs of free blocks; 0 while unknown.
    pub fragments: u32,
    /// log2 of the largest free buddy; None when nothing is free or while unknown.
    pub largest_order: Option<u8>,
    /// The buddy is in memory.
    pub loaded: bool,
    /// The bitmap is not to be trusted; nothing is allocated or freed here.
    pub bad: bool,
}

/// The allocator of one mount. Linux: the `s_mb_*` part of `struct ext4_sb_info`.
pub struct Allocator<S: GroupStore> {
    #[allow(dead_code)]
    store: Arc<S>,
    geometry: Geometry,
}

impl<S: GroupStore> Allocator<S> {
    /// `groups` has one entry per group of the geometry. Does no I/O.
    pub fn new(store: Arc<S>, geometry: Geometry, groups: &[GroupSummary], options: Options) -> crate::Result<Self> {
        let _ = (groups, options);
        geometry.check()?;
        Ok(Allocator { store, geometry })
    }

    /// Names ranges (first block, length) that are never handed out nor freed, whatever the bitmaps say: superblocks,
    /// descriptors, bitmaps, inode tables, the journal. Adds to earlier calls. Parts outside the file system are ignored.
    pub fn protect(&mut self, ranges: impl IntoIterator<Item = (BlockNr, u64)>) {
        let _ = ranges.into_iter();
        todo!()
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Allocates at least 1 and at most `request.len` blocks inside one group and marks them used in `txn`.
    ///
    /// Errors: [`crate::Error::NoSpace`]; [`crate::Error::NoSpaceUntilCommit`] when freed blocks wait for their commit (stop the
    /// handle, force a commit, try again, a bounded number of times); the store's errors.
    pub fn allocate(&self, txn: &mut S::Txn, request: &Request<'_>) -> Result<Allocation, S::Error> {
        let _ = (txn, request);
        todo!()
    }

    /// Marks blocks free on disk in `txn`. They stay out of use until [`Allocator::release`] gets what this returns, after
    /// the transaction is durable. Double free, blocks outside the file system or of its own metadata: `Error::Corrupt`,
    /// found before anything is changed.
    pub fn free(&self, txn: &mut S::Txn, start: BlockNr, len: u64) -> Result<FreedExtents, S::Error> {
        let _ = (txn, start, len);
        todo!()
    }

    /// Makes freed blocks available again: their transaction is durable. Ranges may be merged across calls of `free`.
    pub fn release(&self, freed: &[(BlockNr, u32)]) {
        let _ = freed;
        todo!()
    }

    /// Promises `blocks` to delayed allocation. `root`: the root reserve may be used.
    pub fn reserve(&self, blocks: u64, root: bool) -> crate::Result<()> {
        let _ = (blocks, root);
        todo!()
    }

    /// Takes back a promise whose blocks were not (all) allocated.
    pub fn unreserve(&self, blocks: u64) {
        let _ = blocks;
        todo!()
    }

    /// Gives the unused preallocated blocks of an inode back.
    pub fn discard_preallocations(&self, owner: &InodePreallocation) {
        let _ = owner;
        todo!()
    }

    /// Gives back the preallocations of all inodes and locality groups; returns the blocks that became free. `allocate`
    /// does this by itself before it reports that nothing is free.
    pub fn discard_all_under_pressure(&self) -> u64 {
        todo!()
    }

    /// Blocks that are free on disk: preallocated, freed-but-not-durable and reserved ones included (statfs `f_bfree`
    /// before reservations).
    pub fn free_blocks(&self) -> u64 {
        todo!()
    }

    /// Blocks promised to delayed allocation.
    pub fn reserved_blocks(&self) -> u64 {
        todo!()
    }

    /// Blocks that a reservation could get: free on disk, less what is promised, less the reserves that the caller may not
    /// use (statfs `f_bavail` with `root` false).
    pub fn available_blocks(&self, root: bool) -> u64 {
        let _ = root;
        todo!()
    }

    /// Freed blocks that wait for [`Allocator::release`].
    pub fn pending_blocks(&self) -> u64 {
        todo!()
    }

    /// One group, read without its lock; None beyond the last.
    pub fn group(&self, group: GroupNr) -> Option<GroupState> {
        let _ = group;
        todo!()
    }

    pub fn statistics(&self) -> Statistics {
        todo!()
    }

    /// Drops buddies that were not used since the last call (then others) until `target` bytes are free; returns the bytes
    /// freed. Never waits for a lock.
    pub fn drop_unused_buddies(&self, target: usize) -> usize {
        let _ = target;
        todo!()
    }

    /// Bytes held by buddies.
    pub fn memory_used(&self) -> usize {
        todo!()
    }
}
