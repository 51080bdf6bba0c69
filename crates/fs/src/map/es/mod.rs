//! The extent-status cache: what is known about a file's blocks without reading its map, and what no map knows yet -
//! the blocks whose allocation is delayed.
//!
//! Main types: [`EsCache`] (one for a mount; counts, shrinks), [`EsInode`] (one for a live inode; looks up, inserts,
//! removes), [`EsEntry`] (a run of blocks in one [`EsState`]). Entries are a cache, except delayed ones: those are the
//! only record of a reservation, so nothing but [`EsInode::insert`] and [`EsInode::remove`] makes them go away.
//! Which entries a full memory costs is decided by a policy, see [`policy`].
//! Linux: `struct extent_status`, `struct ext4_es_tree`, fs/ext4/extents_status.c.
//!
//! What it does not do: it reads no maps, reserves no space, and does not know sizes.
//!
//! # Locking
//! Each inode's entries have one read-write lock (`i_es_lock`, rank 64), taken inside of every call here; policies that
//! keep a list of inodes lock it before (rank 62). Callers hold the inode's map lock where a lookup in the map and the
//! insertion of its result must be one step. Shrinking never waits for an inode's lock.

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

/// What is known about a run of blocks. Blocks are the physical place of the run's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EsState {
    /// Allocated, with data.
    Written(BlockNr),
    /// Allocated, never written; reads as zeros.
    Unwritten(BlockNr),
    /// Dirty in memory, space reserved, not allocated.
    Delayed,
    /// The map was read: nothing there.
    Hole,
}

impl EsState {
    /// The state of the block `skip` blocks behind.
    pub fn advanced(self, skip: u64) -> EsState {
        match self {
            EsState::Written(b) => EsState::Written(BlockNr(b.0.wrapping_add(skip))),
            EsState::Unwritten(b) => EsState::Unwritten(BlockNr(b.0.wrapping_add(skip))),
            other => other,
        }
    }

    /// May the cache forget it?
    pub fn evictable(self) -> bool {
        self != EsState::Delayed
    }
}

/// A run of blocks in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EsEntry {
    /// Its first block within the file.
    pub lblk: LogicalBlock,
    /// Blocks, at least 1.
    pub len: u32,
    /// The state of all its blocks.
    pub state: EsState,
}

impl EsEntry {
    /// One past the last logical block.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }

    /// The part from `lblk` on, at most `max_len` blocks of it; `None` when `lblk` lies outside.
    pub fn from(&self, lblk: LogicalBlock, max_len: u32) -> Option<EsEntry> {
        let skip = lblk.0.checked_sub(self.lblk.0).filter(|skip| *skip < self.len && max_len > 0)?;
        let len = (self.len - skip).min(max_len);
        Some(EsEntry { lblk, len, state: self.state.advanced(u64::from(skip)) })
    }
}

/// How much an inode has in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EsCounts {
    /// All of them, delayed ones included.
    pub entries: u64,
    /// Those that a shrink may give up, because the map can be read again.
    pub evictable: u64,
    /// Blocks whose allocation is delayed.
    pub delayed_blocks: u64,
}

/// Entries given up at once (Linux: `SHRINK_BATCH`).
const BATCH: u64 = 128;

/// Calls in a row that free nothing, because everybody is looked up in or in use, until a shrink gives up.
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

/// One inode's part of the cache; dropping it (with the inode) forgets its entries.
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
    /// A cache under the policy `kind`. Entries are charged to `budget`; `clock` tells a policy how old an access is.
    pub fn new(kind: EsPolicyKind, clock: Clock, budget: Option<Arc<Budget>>) -> EsCache {
        EsCache(match kind {
            EsPolicyKind::Vanilla => CacheOf::Vanilla(Core::new(clock, budget)),
            EsPolicyKind::EvictableList => CacheOf::EvictableList(Core::new(clock, budget)),
            EsPolicyKind::RoundRobin => CacheOf::RoundRobin(Core::new(clock, budget)),
            EsPolicyKind::DelayedOnly => CacheOf::DelayedOnly(Core::new(clock, budget)),
            EsPolicyKind::LeafRing => CacheOf::LeafRing(Core::new(clock, budget)),
        })
    }

    /// The (empty) part of an inode that becomes live.
    pub fn attach(&self, ino: InodeNr) -> EsInode {
        EsInode(match &self.0 {
            CacheOf::Vanilla(core) => NodeOf::Vanilla(Node::new(core, ino)),
            CacheOf::EvictableList(core) => NodeOf::EvictableList(Node::new(core, ino)),
            CacheOf::RoundRobin(core) => NodeOf::RoundRobin(Node::new(core, ino)),
            CacheOf::DelayedOnly(core) => NodeOf::DelayedOnly(Node::new(core, ino)),
            CacheOf::LeafRing(core) => NodeOf::LeafRing(Node::new(core, ino)),
        })
    }

    /// Gives up to `nr_to_scan` entries back; returns how many (Linux: `ext4_es_scan`). What `nr_to_scan` counts, freed
    /// or visited entries, is the policy's.
    pub fn shrink(&self, nr_to_scan: u64) -> u64 {
        on_cache!(self, core => core.shrink(nr_to_scan).freed)
    }

    /// Entries that a shrink could free (Linux: `ext4_es_count`).
    pub fn evictable(&self) -> u64 {
        on_cache!(self, core => core.evictable())
    }

    /// Entries of all inodes.
    pub fn entries(&self) -> u64 {
        on_cache!(self, core => core.entries())
    }

    /// Counts since the mount.
    pub fn stats(&self) -> EsStats {
        on_cache!(self, core => core.stats())
    }

    /// Memory of all entries, in bytes, as the budget was told; what lies in the inodes themselves is theirs.
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
            // A batch as the kernel's: nobody waits for an inode's lock for longer than one takes.
            let now = on_cache!(self, core => core.shrink(BATCH));
            freed += now.bytes;
            in_vain = if now.freed > 0 { 0 } else { in_vain + 1 };
        }
        freed
    }
}

impl EsInode {
    /// The entry that `lblk` lies in.
    pub fn lookup(&self, lblk: LogicalBlock) -> Option<EsEntry> {
        on_node!(self, node => node.lookup(lblk.0))
    }

    /// Makes `len` blocks from `lblk` have `state`, whatever was known before. Returns how many delayed blocks this
    /// replaced, whose reservation the caller settles.
    pub fn insert(&self, lblk: LogicalBlock, len: u32, state: EsState) -> u64 {
        on_node!(self, node => node.insert(lblk.0, len, state))
    }

    /// Remembers what was read from the map, unless any of the range is known already (Linux: `ext4_es_cache_extent`).
    pub fn cache(&self, lblk: LogicalBlock, len: u32, state: EsState) -> bool {
        on_node!(self, node => node.cache(lblk.0, len, state))
    }

    /// Whether [`EsInode::load`] is wanted, with all that the map's leaf says, where [`EsInode::cache`] would be told
    /// one entry: the policy does that, and the budget has room.
    pub fn loads(&self) -> bool {
        on_node!(self, node => node.loads())
    }

    /// Remembers a leaf of the map (Linux: `ext4_cache_extents`), but for what is known already. Each entry has blocks.
    pub fn load(&self, leaf: &[EsEntry]) {
        on_node!(self, node => node.load(leaf))
    }

    /// Forgets `len` blocks from `lblk`, delayed ones too; returns how many those were.
    pub fn remove(&self, lblk: LogicalBlock, len: u32) -> u64 {
        on_node!(self, node => node.remove(lblk.0, len))
    }

    /// The first delayed entry that has blocks in `from..=to` (whole, not clipped).
    pub fn find_delayed(&self, from: LogicalBlock, to: LogicalBlock) -> Option<EsEntry> {
        on_node!(self, node => node.find_delayed(from.0, to.0))
    }

    /// How much this inode has in the cache.
    pub fn counts(&self) -> EsCounts {
        on_node!(self, node => node.counts())
    }
}
