//! Damage of a node of an extent tree.
//!
//! Main types: [`ExtentDamage`]; [`NodeContext`] and [`Promise`], which are facts that the node does not contain. The
//! caller decides which physical blocks a file may own, and detects blocks that two files own.
//!
//! # Locking
//! None.

use super::{DEPTH_MAX, Extent, Index, LOGICAL_END, MAGIC, NodeRef, RawEntry, raw_key};
use crate::BlockNr;
use crate::damage::Damage;

/// One fault of a node of an extent tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentDamage {
    /// There are fewer bytes than in the smallest node.
    #[error("{found} bytes are too few for a node")]
    Length {
        /// The number of bytes.
        found: u32,
    },
    /// `eh_magic` is wrong.
    #[error("magic is {found:#06x}, expected {MAGIC:#06x}")]
    Magic {
        /// The stored value.
        found: u16,
    },
    /// `eh_max` does not match the node's size.
    #[error("room for {found} entries claimed, {expected} expected")]
    Room {
        /// The stored value.
        found: u16,
        /// The number of entries that the bytes have room for.
        expected: u16,
    },
    /// `eh_entries` exceeds `eh_max`.
    #[error("{found} entries in room for {room}")]
    Entries {
        /// The stored value.
        found: u16,
        /// `eh_max`.
        room: u16,
    },
    /// `eh_depth` exceeds the depth of any tree.
    #[error("depth {found} is above {DEPTH_MAX}")]
    TooDeep {
        /// The stored value.
        found: u16,
    },
    /// `eh_depth` differs from the depth that the parent implies.
    #[error("depth is {found}, expected {expected}")]
    Depth {
        /// The stored value.
        found: u16,
        /// One less than the parent's depth.
        expected: u16,
    },
    /// An index node without entries.
    #[error("an index node without entries")]
    Empty,
    /// The checksum does not match the bytes.
    #[error("checksum {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// An entry does not start after the start of the one before it.
    #[error("entry {entry} starts at {start}, before {previous}, the start of the entry before it")]
    OutOfOrder {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
        /// The first logical block of the entry before it.
        previous: u32,
    },
    /// An extent starts inside the one before it.
    #[error("entry {entry} starts at {start}, before {end}, the end of the entry before it")]
    Overlap {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
        /// One past the last logical block of the extent before it.
        end: u64,
    },
    /// The node starts before the logical block that the parent states.
    #[error("maps from {start}, outside of its parent's range from {first}")]
    BeforeParent {
        /// The key of the first entry.
        start: u32,
        /// The value that the parent states.
        first: u32,
    },
    /// The node starts after the logical block that the parent states. It can be read nevertheless.
    #[error("maps from {start}, while its parent says {first}")]
    BehindKey {
        /// The key of the first entry.
        start: u32,
        /// The value that the parent states.
        first: u32,
    },
    /// An entry ends past the range that the parent gives the node.
    #[error("entry {entry} maps from {start} up to {end}, outside of its parent's range up to {limit}")]
    BehindParent {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
        /// One past the last logical block of the entry.
        end: u64,
        /// The value that the parent states.
        limit: u64,
    },
    /// An extent without blocks.
    #[error("entry {entry} has 0 blocks from {start}")]
    ZeroLength {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
    },
    /// An extent ends past the last logical block that a file can have.
    #[error("entry {entry} has {len} blocks from {start}, more than a file can have")]
    BehindEnd {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
        /// The length, in blocks.
        len: u32,
    },
    /// An index entry points to a block that cannot be a node.
    #[error("entry {entry} points to {block}, where no node can be")]
    Child {
        /// The index of the entry in the node.
        entry: u16,
        /// The block that the entry refers to.
        block: BlockNr,
    },
    /// An extent starts in a block that no file can own.
    #[error("entry {entry} maps {len} blocks at {block}, which no file can own")]
    BlockStart {
        /// The index of the entry in the node.
        entry: u16,
        /// Its first block on the device.
        block: BlockNr,
        /// The length, in blocks.
        len: u32,
    },
    /// An extent starts in a valid block, but extends into blocks that no file can own.
    #[error("entry {entry} maps {len} blocks at {block}, which reach into blocks that no file can own")]
    BlockEnd {
        /// The index of the entry in the node.
        entry: u16,
        /// Its first block on the device.
        block: BlockNr,
        /// The length, in blocks.
        len: u32,
    },
    /// An extent of a directory is unwritten.
    #[error("entry {entry} of a directory has {len} blocks that are not initialized")]
    UnwrittenDirectory {
        /// The index of the entry in the node.
        entry: u16,
        /// The length, in blocks.
        len: u32,
    },
    /// The logical and physical blocks have different offsets in their clusters.
    #[error("entry {entry} maps logical block {start} to {block}, at another place in its cluster")]
    Cluster {
        /// The index of the entry in the node.
        entry: u16,
        /// The first logical block of the entry.
        start: u32,
        /// Its first block on the device.
        block: BlockNr,
    },
}

impl Damage for ExtentDamage {
    fn is_fatal(&self) -> bool {
        use ExtentDamage::{BehindKey, Cluster, UnwrittenDirectory};
        !matches!(self, BehindKey { .. } | UnwrittenDirectory { .. } | Cluster { .. })
    }
}

/// The depth and range that a parent states for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The number of levels below the node.
    pub depth: u16,
    /// The logical block at which the node starts.
    pub first: u32,
    /// One past the last logical block that it may map.
    pub end: u64,
}

/// Facts about the file and the file system that a node does not contain.
#[derive(Clone, Copy, Debug)]
pub struct NodeContext<F> {
    /// The seed of the inode's checksums, with `metadata_csum`. Roots have no checksum of their own.
    pub seed: Option<u32>,
    /// Whether the file is a directory.
    pub is_dir: bool,
    /// log2 of the number of blocks in a cluster.
    pub cluster_bits: u32,
    /// Whether the file may own these blocks (first block, number of blocks).
    pub valid: F,
}

/// An entry of a node without fatal damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEntry {
    /// An entry of a leaf.
    Extent(Extent),
    /// An entry of an index node. `end` is one past the last logical block that the child may map.
    Child {
        /// The entry.
        index: Index,
        /// The next entry's key, or the end of the node's own range.
        end: u64,
    },
}

impl NodeRef<'_> {
    /// Reports all damage of the node except that of its header, which [`super::header_damage`] checks. `promise` comes
    /// from the parent; a root has none.
    pub fn damage<F: Fn(BlockNr, u32) -> bool>(
        &self,
        promise: Option<&Promise>,
        context: &NodeContext<F>,
        sink: &mut impl FnMut(ExtentDamage),
    ) {
        self.step(promise, context, &mut |step| {
            if let Err(damage) = step {
                sink(damage);
            }
        });
    }

    /// Reports the node's faults and its usable entries. If the node's depth is wrong, the kind of its entries is
    /// unknown, and they are skipped.
    pub(crate) fn step<F: Fn(BlockNr, u32) -> bool>(
        &self,
        promise: Option<&Promise>,
        context: &NodeContext<F>,
        sink: &mut impl FnMut(Result<NodeEntry, ExtentDamage>),
    ) {
        if let Some(promise) = promise {
            self.start_damage(promise, &mut |damage| sink(Err(damage)));
        }
        if let (Some(seed), Some(found)) = (context.seed, self.stored_checksum())
            && let Some(expected) = self.checksum(seed)
            && found != expected
        {
            sink(Err(ExtentDamage::Checksum { found, expected }));
        }
        if promise.is_some_and(|promise| promise.depth != self.depth()) {
            return;
        }
        let end = promise.map_or(LOGICAL_END.into(), |promise| promise.end);
        // The node's range starts at its first key, even if the first entry is unusable.
        let first = promise.and_then(|_| self.key(0));
        self.entries(first, end, context, sink);
    }

    /// Compares the parent's statement with the depth and the first entry.
    fn start_damage(&self, promise: &Promise, sink: &mut impl FnMut(ExtentDamage)) {
        let Promise { depth, first, .. } = *promise;
        if self.depth() != depth {
            sink(ExtentDamage::Depth { found: self.depth(), expected: depth });
        }
        let Some(start) = self.key(0) else { return };
        if start < first {
            sink(ExtentDamage::BeforeParent { start, first });
        } else if start > first {
            sink(ExtentDamage::BehindKey { start, first });
        }
    }

    /// Compares the parent's statement with the first and the last entry.
    pub(super) fn place_damage(&self, promise: &Promise, sink: &mut impl FnMut(ExtentDamage)) {
        self.start_damage(promise, sink);
        let entry = self.len().wrapping_sub(1);
        if let Some(raw) = self.raw(entry) {
            self.end_damage(entry as u16, &raw, promise.end, sink);
        }
    }

    /// Compares the parent's statement with the end of one entry.
    fn end_damage(&self, entry: u16, raw: &RawEntry, limit: u64, sink: &mut impl FnMut(ExtentDamage)) {
        let start = raw_key(raw);
        let end = if self.depth() == 0 { Extent::decode(raw).end() } else { u64::from(start) + 1 };
        if end > limit {
            sink(ExtentDamage::BehindParent { entry, start, end, limit });
        }
    }

    /// Visits the entries: reports the usable ones, and the faults of each. `first` and `end` are the bounds of the
    /// node's own range; a root has no lower bound.
    pub(super) fn entries<F: Fn(BlockNr, u32) -> bool>(
        &self,
        first: Option<u32>,
        end: u64,
        context: &NodeContext<F>,
        sink: &mut impl FnMut(Result<NodeEntry, ExtentDamage>),
    ) {
        if self.depth() > 0 && self.is_empty() {
            sink(Err(ExtentDamage::Empty));
        }
        // The start and the end of the entry before. An unusable extent proves nothing about the next one.
        let mut before = first.map(|first| (first, u64::from(first)));
        for (i, raw) in self.raw_entries().enumerate() {
            let (entry, start) = (i as u16, raw_key(&raw));
            let mut usable = true;
            if let Some((previous, free_from)) = before
                && u64::from(start) < free_from
            {
                usable = false;
                sink(Err(if start <= previous {
                    ExtentDamage::OutOfOrder { entry, start, previous }
                } else {
                    ExtentDamage::Overlap { entry, start, end: free_from }
                }));
            }
            let unwritten = self.depth() == 0 && Extent::decode(&raw).unwritten;
            let mut note = |damage: ExtentDamage| {
                // Unwritten blocks may lie past the end of the file, so such an extent is used even if it ends past its
                // parent's range (e2fsck: `scan_extent_node`).
                let is_behind = matches!(damage, ExtentDamage::BehindParent { .. });
                usable &= !damage.is_fatal() || (is_behind && unwritten);
                sink(Err(damage));
            };
            // If the range has no end, `extent_damage` reports entries past the last block of any file.
            if end < LOGICAL_END.into() {
                self.end_damage(entry, &raw, end, &mut note);
            }
            if self.depth() > 0 {
                let index = Index::decode(&raw);
                if !(context.valid)(index.child, 1) {
                    note(ExtentDamage::Child { entry, block: index.child });
                }
                before = Some((start, u64::from(start) + 1));
                if usable {
                    let next = self.key(i + 1).filter(|next| *next > start);
                    sink(Ok(NodeEntry::Child { index, end: next.map_or(end, u64::from).min(end) }));
                }
            } else {
                let extent = Extent::decode(&raw);
                extent_damage(entry, extent, context, &mut note);
                if usable {
                    before = Some((start, extent.end()));
                    sink(Ok(NodeEntry::Extent(extent)));
                }
            }
        }
    }
}

/// Reports the faults of a single extent.
fn extent_damage<F: Fn(BlockNr, u32) -> bool>(
    entry: u16,
    extent: Extent,
    context: &NodeContext<F>,
    sink: &mut impl FnMut(ExtentDamage),
) {
    let Extent { lblk, len, pblk: block, unwritten } = extent;
    let start = lblk.0;
    if len == 0 {
        sink(ExtentDamage::ZeroLength { entry, start });
        return;
    }
    if extent.end() > u64::from(LOGICAL_END) {
        sink(ExtentDamage::BehindEnd { entry, start, len });
    }
    if !(context.valid)(block, len) {
        sink(if (context.valid)(block, 1) {
            ExtentDamage::BlockEnd { entry, block, len }
        } else {
            ExtentDamage::BlockStart { entry, block, len }
        });
    }
    if unwritten && context.is_dir {
        sink(ExtentDamage::UnwrittenDirectory { entry, len });
    }
    if (u64::from(start) ^ block.0) & ((1 << context.cluster_bits) - 1) != 0 {
        sink(ExtentDamage::Cluster { entry, start, block });
    }
}
