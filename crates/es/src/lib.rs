//! The extent-status cache. It contains the known state of a file's blocks, so that their map need not be read again,
//! and the blocks whose allocation is delayed, which are not in the map yet.
//!
//! Main types: [`EsCache`] (one per mount; counts, shrinks), [`EsInode`] (one per live inode; looks up, inserts,
//! removes), [`EsEntry`] (a run of blocks in one [`EsState`]). Entries are only a cache, except delayed ones: those are
//! the only record of a reservation, so only [`EsInode::insert`] and [`EsInode::remove`] remove them. A policy chooses
//! which entries to evict when memory is short, see [`policy`] (Linux: `struct extent_status`, `struct ext4_es_tree`,
//! fs/ext4/extents_status.c).
//!
//! What it does not do: I/O (the caller reads the map), or reserve space. It does not know the sizes of files.
//!
//! # Locking
//! Each inode's entries have one read-write lock (`i_es_lock`, rank 64), which every call here takes. Policies with a
//! list of inodes lock that list before it (rank 62). If a lookup in the map and the insertion of its result must be
//! one step, the caller holds the inode's map lock. Shrinking never waits for an inode's lock.
#![forbid(unsafe_code)]

mod core;
mod packed;
pub mod policy;
mod tree;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_cache::{Budget, Shrinker};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use self::core::{Core, Node};
use policy::{DelayedOnly, EvictableList, LeafRing, RoundRobin, Vanilla};

pub use self::core::EsStats;
pub use policy::EsPolicyKind;

/// The known state of a run of blocks. A block number is the physical place of the run's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EsState {
    /// Allocated, with data.
    Written(BlockNr),
    /// Allocated, but never written; reads as zeros.
    Unwritten(BlockNr),
    /// Dirty in memory, with reserved space, but not allocated.
    Delayed,
    /// The map was read and contains no mapping here.
    Hole,
}

impl EsState {
    /// The state of the block that is `skip` blocks later.
    pub fn advanced(self, skip: u64) -> EsState {
        match self {
            EsState::Written(b) => EsState::Written(BlockNr(b.0.wrapping_add(skip))),
            EsState::Unwritten(b) => EsState::Unwritten(BlockNr(b.0.wrapping_add(skip))),
            other => other,
        }
    }

    /// Whether the cache may evict an entry in this state.
    pub fn evictable(self) -> bool {
        self != EsState::Delayed
    }
}

/// A run of blocks in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EsEntry {
    /// The first block within the file.
    pub lblk: LogicalBlock,
    /// The number of blocks, at least 1.
    pub len: u32,
    /// The state of all blocks.
    pub state: EsState,
}

impl EsEntry {
    /// One past the last logical block.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }

    /// The part from `lblk` on, with at most `max_len` blocks; `None` if `lblk` is outside the entry.
    pub fn from(&self, lblk: LogicalBlock, max_len: u32) -> Option<EsEntry> {
        let skip = lblk.0.checked_sub(self.lblk.0).filter(|skip| *skip < self.len && max_len > 0)?;
        let len = (self.len - skip).min(max_len);
        Some(EsEntry { lblk, len, state: self.state.advanced(u64::from(skip)) })
    }
}

/// The size of an inode's part of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EsCounts {
    /// The number of all entries, including delayed ones.
    pub entries: u64,
    /// The number of entries that a shrink may free, because the map can be read again.
    pub evictable: u64,
    /// The number of blocks whose allocation is delayed.
    pub delayed_blocks: u64,
}

/// The number of entries freed at once (Linux: `SHRINK_BATCH`).
const BATCH: u64 = 128;

/// A shrink gives up after this many consecutive calls that free nothing, because every inode is busy or recently
/// used.
const IN_VAIN: u32 = 64;

/// The cache of one mount.
#[derive(Clone)]
pub struct EsCache(CacheOf);

#[derive(Clone)]
enum CacheOf {
    Vanilla(Arc<Core<Vanilla>>),
    EvictableList(Arc<Core<EvictableList>>),
    RoundRobin(Arc<Core<RoundRobin>>),
    DelayedOnly(Arc<Core<DelayedOnly>>),
    LeafRing(Arc<Core<LeafRing>>),
}

/// One inode's part of the cache. Dropping it (with the inode) removes its entries.
pub struct EsInode(NodeOf);

enum NodeOf {
    Vanilla(Arc<Node<Vanilla>>),
    EvictableList(Arc<Node<EvictableList>>),
    RoundRobin(Arc<Node<RoundRobin>>),
    DelayedOnly(Arc<Node<DelayedOnly>>),
    LeafRing(Arc<Node<LeafRing>>),
}

macro_rules! on_cache {
    ($self:ident, $core:ident => $do:expr) => {
        match &$self.0 {
            CacheOf::Vanilla($core) => $do,
            CacheOf::EvictableList($core) => $do,
            CacheOf::RoundRobin($core) => $do,
            CacheOf::DelayedOnly($core) => $do,
            CacheOf::LeafRing($core) => $do,
        }
    };
}

macro_rules! on_node {
    ($self:ident, $node:ident => $do:expr) => {
        match &$self.0 {
            NodeOf::Vanilla($node) => $do,
            NodeOf::EvictableList($node) => $do,
            NodeOf::RoundRobin($node) => $do,
            NodeOf::DelayedOnly($node) => $do,
            NodeOf::LeafRing($node) => $do,
        }
    };
}

impl EsCache {
    /// Creates a cache with the policy `kind`. Entries are charged to `budget`; `clock` gives the age of an access.
    pub fn new(kind: EsPolicyKind, clock: Clock, budget: Option<Arc<Budget>>) -> EsCache {
        EsCache(match kind {
            EsPolicyKind::Vanilla => CacheOf::Vanilla(Core::new(clock, budget)),
            EsPolicyKind::EvictableList => CacheOf::EvictableList(Core::new(clock, budget)),
            EsPolicyKind::RoundRobin => CacheOf::RoundRobin(Core::new(clock, budget)),
            EsPolicyKind::DelayedOnly => CacheOf::DelayedOnly(Core::new(clock, budget)),
            EsPolicyKind::LeafRing => CacheOf::LeafRing(Core::new(clock, budget)),
        })
    }

    /// Creates the empty part for a new live inode.
    pub fn attach(&self, ino: InodeNr) -> EsInode {
        EsInode(match &self.0 {
            CacheOf::Vanilla(core) => NodeOf::Vanilla(Node::new(core, ino)),
            CacheOf::EvictableList(core) => NodeOf::EvictableList(Node::new(core, ino)),
            CacheOf::RoundRobin(core) => NodeOf::RoundRobin(Node::new(core, ino)),
            CacheOf::DelayedOnly(core) => NodeOf::DelayedOnly(Node::new(core, ino)),
            CacheOf::LeafRing(core) => NodeOf::LeafRing(Node::new(core, ino)),
        })
    }

    /// Frees up to `nr_to_scan` entries and returns how many it freed (Linux: `ext4_es_scan`). The policy decides
    /// whether `nr_to_scan` counts freed or visited entries.
    pub fn shrink(&self, nr_to_scan: u64) -> u64 {
        on_cache!(self, core => core.shrink(nr_to_scan).freed)
    }

    /// The number of entries that a shrink could free (Linux: `ext4_es_count`).
    pub fn evictable(&self) -> u64 {
        on_cache!(self, core => core.evictable())
    }

    /// The number of entries of all inodes.
    pub fn entries(&self) -> u64 {
        on_cache!(self, core => core.entries())
    }

    /// The counts since the mount.
    pub fn stats(&self) -> EsStats {
        on_cache!(self, core => core.stats())
    }

    /// The memory of all entries, in bytes, as charged to the budget. Entries inside the inodes themselves do not
    /// count.
    pub fn bytes(&self) -> u64 {
        on_cache!(self, core => core.bytes())
    }
}

impl Shrinker for EsCache {
    fn reclaimable(&self) -> u64 {
        let entries = self.entries().max(1);
        (u128::from(self.bytes()) * u128::from(self.evictable()) / u128::from(entries)) as u64
    }

    fn shrink(&self, bytes: u64) -> u64 {
        let (mut freed, mut in_vain) = (0, 0);
        while freed < bytes && in_vain < IN_VAIN && self.evictable() > 0 {
            // The batches are small, as in the kernel, so that no thread waits for an inode's lock longer than one
            // batch takes.
            let now = on_cache!(self, core => core.shrink(BATCH));
            freed += now.bytes;
            in_vain = if now.freed > 0 { 0 } else { in_vain + 1 };
        }
        freed
    }
}

impl EsInode {
    /// The entry that contains `lblk`.
    pub fn lookup(&self, lblk: LogicalBlock) -> Option<EsEntry> {
        on_node!(self, node => node.lookup(lblk.0))
    }

    /// Sets the state of `len` blocks from `lblk` on, regardless of their old state. Returns how many delayed blocks
    /// this replaced; the caller releases or uses their reservation.
    pub fn insert(&self, lblk: LogicalBlock, len: u32, state: EsState) -> u64 {
        on_node!(self, node => node.insert(lblk.0, len, state))
    }

    /// Inserts a result of reading the map, unless any part of the range is already known (Linux:
    /// `ext4_es_cache_extent`).
    pub fn cache(&self, lblk: LogicalBlock, len: u32, state: EsState) -> bool {
        on_node!(self, node => node.cache(lblk.0, len, state))
    }

    /// Whether the caller should pass a whole leaf of the map to [`EsInode::load`], instead of one entry to
    /// [`EsInode::cache`]: true if the policy loads leaves and the budget has room.
    pub fn loads(&self) -> bool {
        on_node!(self, node => node.loads())
    }

    /// Inserts a leaf of the map (Linux: `ext4_cache_extents`), except the ranges that are already known. No entry of
    /// `leaf` may be empty.
    pub fn load(&self, leaf: &[EsEntry]) {
        on_node!(self, node => node.load(leaf))
    }

    /// Removes `len` blocks from `lblk` on, including delayed ones. Returns how many were delayed.
    pub fn remove(&self, lblk: LogicalBlock, len: u32) -> u64 {
        on_node!(self, node => node.remove(lblk.0, len))
    }

    /// The first delayed entry that has blocks in `from..=to`. The entry is returned as a whole, not clipped to the
    /// range.
    pub fn find_delayed(&self, from: LogicalBlock, to: LogicalBlock) -> Option<EsEntry> {
        on_node!(self, node => node.find_delayed(from.0, to.0))
    }

    /// The size of this inode's part of the cache.
    pub fn counts(&self) -> EsCounts {
        on_node!(self, node => node.counts())
    }
}
