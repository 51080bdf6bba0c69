//! Free blocks and inodes.
//!
//! Main functions: [`Image::take_block`], [`Image::take_inode`]. A block is free if the check has found no owner of its
//! cluster. Blocks that are marked in a bitmap are used last, because they may belong to a file whose map is lost.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_check::InodeState;
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use super::Image;
use crate::error::{Refusal, StepResult};

/// The blocks and inodes that were allocated since the last check.
#[derive(Default)]
pub struct Space {
    clusters: BTreeSet<u64>,
    inodes: BTreeSet<u32>,
    /// Clusters that must not be allocated: ascending, without overlaps.
    set_aside: Vec<Range<u64>>,
    /// The cluster after the last allocated one.
    next: Option<u64>,
    /// Whether all clusters that no bitmap marks have been allocated.
    only_marked: bool,
    /// The block bitmap that was read last.
    bitmap: Option<(GroupNr, Option<Vec<u8>>)>,
}

impl Image {
    /// Takes a cluster near `goal`, and returns its first block.
    pub fn take_block(&mut self, goal: BlockNr) -> StepResult<BlockNr> {
        loop {
            let start = self.space.next.unwrap_or(goal.0 >> self.geo.cluster_bits);
            let found = match self.free_cluster(start, u64::MAX) {
                None => self.free_cluster(0, start),
                found => found,
            };
            if let Some(cluster) = found {
                self.space.clusters.insert(cluster);
                self.space.next = Some(cluster + 1);
                return Ok(BlockNr(cluster << self.geo.cluster_bits));
            }
            if self.space.only_marked {
                return Err(Refusal::NoBlock);
            }
            self.space.only_marked = true;
            self.space.next = None;
        }
    }

    /// Returns a block that was taken but is not needed.
    pub fn put_back(&mut self, block: BlockNr) {
        self.space.clusters.remove(&(block.0 >> self.geo.cluster_bits));
    }

    /// Prevents the allocation of these clusters, which ascend and do not overlap.
    pub fn set_aside(&mut self, clusters: Vec<Range<u64>>) {
        self.space.set_aside = clusters;
    }

    fn free_cluster(&mut self, from: u64, end: u64) -> Option<u64> {
        let bits = self.geo.cluster_bits;
        let clusters = ((self.geo.blocks_count - 1) >> bits) + 1;
        let (mut at, end) = (from, end.min(clusters));
        loop {
            at = self.facts.find_cluster(at, end, false);
            if at >= end {
                return None;
            }
            let aside = self.space.set_aside.partition_point(|range| range.end <= at);
            if let Some(range) = self.space.set_aside.get(aside).filter(|range| range.contains(&at)) {
                at = range.end;
                continue;
            }
            let block = BlockNr(at << bits);
            let exists = self.can_have(block, 1 << bits) && !self.is_unreadable(block, 1 << bits);
            if exists && !self.space.clusters.contains(&at) && (self.space.only_marked || !self.is_marked(block)) {
                return Some(at);
            }
            at += 1;
        }
    }

    /// Whether the block is in use in the block bitmap on the device; false if the bitmap is unreadable.
    pub fn is_marked(&mut self, block: BlockNr) -> bool {
        let Some((group, index)) = self.geo.group_of_block(block) else { return true };
        if self.space.bitmap.as_ref().is_none_or(|(known, _)| *known != group) {
            let desc = &self.descs[group.0 as usize];
            let written = !desc.flags.contains(GroupFlags::BLOCK_UNINIT) && self.can_have(desc.block_bitmap, 1);
            let bytes = if written { self.block(desc.block_bitmap).ok() } else { None };
            self.space.bitmap = Some((group, bytes));
        }
        let bytes = self.space.bitmap.as_ref().and_then(|(_, bytes)| bytes.as_ref());
        bytes.is_some_and(|bytes| bitmap::test(bytes, index >> self.geo.cluster_bits))
    }

    /// Takes an inode. Its bytes may be those of a deleted file.
    pub fn take_inode(&mut self) -> StepResult<InodeNr> {
        for group in self.geo.groups() {
            let is_free = |ino: &InodeNr, state: &InodeState| {
                ino.0 >= self.geo.first_ino
                    && !state.has(InodeState::USED)
                    && state.names() == 0
                    && !self.space.inodes.contains(&ino.0)
                    && self.is_inode_readable(*ino)
            };
            let found = self.facts.inodes_of(group).find(|(ino, state)| is_free(ino, state));
            if let Some((ino, _)) = found {
                self.space.inodes.insert(ino.0);
                return Ok(ino);
            }
        }
        self.open_table()
    }

    /// Takes the first inode of the part of a table that was never used.
    fn open_table(&mut self) -> StepResult<InodeNr> {
        let per_group = self.geo.inodes_per_group;
        for group in self.geo.groups() {
            let desc = &mut self.descs[group.0 as usize];
            if desc.inode_table.0 == 0 {
                continue;
            }
            let fresh = desc.flags.contains(GroupFlags::INODE_UNINIT);
            let unused = if fresh { per_group } else { desc.itable_unused.min(per_group) };
            let ino = InodeNr(group.0 * per_group + per_group - unused + 1);
            if unused == 0 || ino.0 < self.geo.first_ino {
                continue;
            }
            desc.itable_unused = unused - 1;
            desc.flags.remove(GroupFlags::INODE_UNINIT);
            self.put_desc(group)?;
            self.zero_inode(ino)?;
            self.space.inodes.insert(ino.0);
            return Ok(ino);
        }
        Err(Refusal::NoInode)
    }
}
