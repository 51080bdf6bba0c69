//! Finding the purpose of a block, for example to find the file that a bad sector belongs to (debugfs: icheck).
//!
//! Main functions: [`Filesystem::block_use`], which recognizes the file system's own structures and free space;
//! [`Maps::part_in`], which decides whether a block belongs to an inode. There is no map from blocks to inodes, so a
//! caller that looks for a file must try each inode.
//!
//! # Locking
//! `part_in` takes `inode`, shared.

use std::fmt;
use std::ops::ControlFlow;

use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::groups::journal_zones;
use crate::inode::InodeRef;
use crate::map::MapState;
use crate::maps::Maps;

/// The purpose of a block, apart from the file that it may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The block lies before the first group, or after the last block.
    Outside,
    /// A copy of the superblock or the descriptors, or room for more descriptors, at the start of a group.
    Base(GroupNr),
    /// The bitmap of a group's blocks.
    BlockBitmap(GroupNr),
    /// The bitmap of a group's inodes.
    InodeBitmap(GroupNr),
    /// A part of a group's inode table, with these inodes.
    InodeTable(GroupNr, InodeNr, InodeNr),
    /// A block of the journal.
    Journal,
    /// The file system's own inode: for resizing, for quotas, or for orphans.
    Own(InodeNr),
    /// The block is in use, for a file's content, map or attributes.
    File,
    /// The block is free.
    Free,
}

impl fmt::Display for BlockUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockUse::Outside => f.write_str("outside of the file system"),
            BlockUse::Base(group) => write!(f, "superblock and descriptors of {group}, or room for descriptors"),
            BlockUse::BlockBitmap(group) => write!(f, "the block bitmap of {group}"),
            BlockUse::InodeBitmap(group) => write!(f, "the inode bitmap of {group}"),
            BlockUse::InodeTable(group, first, last) => {
                write!(f, "the inode table of {group} (inodes {} to {})", first.0, last.0)
            }
            BlockUse::Journal => f.write_str("the journal"),
            BlockUse::Own(ino) => write!(f, "{ino}, which belongs to the file system"),
            BlockUse::File => f.write_str("in use by a file"),
            BlockUse::Free => f.write_str("free"),
        }
    }
}

/// The part of an inode that lies in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This block of its content.
    Content(LogicalBlock),
    /// A block of its map.
    Map,
    /// Its attribute block, which other inodes may share.
    Attributes,
}

impl Maps {
    /// The part of the inode that lies in `block`, if any.
    ///
    /// # Errors
    /// The map is damaged, and its intact part does not lead to the block.
    pub fn part_in(&self, inode: &InodeRef, block: BlockNr) -> Result<Option<Part>> {
        let _shared = inode.rw.read();
        let has_map = {
            let meta = inode.meta.read();
            if meta.desc.file_acl == block && block.0 != 0 {
                return Ok(Some(Part::Attributes));
            }
            meta.desc.has_map(&self.geo)
        };
        if !has_map || self.is_inline(inode) {
            return Ok(None);
        }
        let view = self.map_view(inode);
        let map = inode.map.read();
        let mut found = None;
        map.walk_meta(&view, |node| {
            if node == block {
                found = Some(Part::Map);
            }
        })?;
        if found.is_none() {
            map.walk(&view, LogicalBlock(0), |mapping| {
                let start = match mapping.state {
                    MapState::Hole => None,
                    MapState::Written(start) | MapState::Unwritten(start) => Some(start),
                };
                match start.and_then(|start| block.0.checked_sub(start.0)).filter(|at| *at < u64::from(mapping.len)) {
                    Some(at) => {
                        found = Some(Part::Content(LogicalBlock(mapping.lblk.0 + at as u32)));
                        ControlFlow::Break(())
                    }
                    None => ControlFlow::Continue(()),
                }
            })?;
        }
        Ok(found)
    }
}

impl Filesystem {
    /// The purpose of a block.
    ///
    /// # Errors
    /// A descriptor, a bitmap or the journal's map is damaged or cannot be read.
    pub fn block_use(&self, block: BlockNr) -> Result<BlockUse> {
        let Some((group, at)) = self.geo.group_of_block(block) else { return Ok(BlockUse::Outside) };
        let within = |start: BlockNr, len: u64| block.0.checked_sub(start.0).filter(|at| *at < len);
        if self.geo.base_metadata(group).ranges().any(|(start, len)| within(start, len.into()).is_some()) {
            return Ok(BlockUse::Base(group));
        }
        // With flex groups, the bitmaps and the inode table of a group may lie in another group.
        for group in self.geo.groups() {
            let (blocks, inodes, table) =
                self.placement.groups.with(group, |desc| (desc.block_bitmap, desc.inode_bitmap, desc.inode_table))?;
            if block == blocks {
                return Ok(BlockUse::BlockBitmap(group));
            }
            if block == inodes {
                return Ok(BlockUse::InodeBitmap(group));
            }
            if let Some(at) = within(table, self.geo.inode_table_blocks.into()) {
                let slot = at as u32 * self.geo.inodes_per_block();
                let last = (slot + self.geo.inodes_per_block()).min(self.geo.inodes_per_group) - 1;
                let number = |slot: u32| self.geo.inode_at(group, slot).unwrap_or(InodeNr(0));
                return Ok(BlockUse::InodeTable(group, number(slot), number(last)));
            }
        }
        let zones = journal_zones(&*self.dev, &self.sb.lock())?;
        if zones.iter().any(|(start, len)| within(*start, *len).is_some()) {
            return Ok(BlockUse::Journal);
        }
        let cluster = (at >> self.geo.cluster_bits) as usize;
        let used = self.placement.groups.block_bitmap(group)?.read(|bits| bits[cluster / 8] & 1 << (cluster % 8) != 0);
        if !used {
            return Ok(BlockUse::Free);
        }
        let others = self.own_inodes.all().filter(|ino| self.geo.contains_inode(*ino));
        // A number without an inode owns no block.
        let owns = |ino: &InodeNr| {
            self.iget_own(*ino).and_then(|inode| self.part_in(&inode, block)).is_ok_and(|part| part.is_some())
        };
        Ok(others.into_iter().find(owns).map_or(BlockUse::File, BlockUse::Own))
    }
}
