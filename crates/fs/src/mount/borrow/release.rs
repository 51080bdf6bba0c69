//! Freeing a borrowed journal's blocks and inode, outside of any transaction.
//!
//! Main type: [`Release`], the new content of all affected blocks. It is complete before the first of them is written.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::update_checksum;
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{BlockNr, InodeNr, bitmap};
use extant_recovery::JournalMap;
use extant_recovery::read::Reader;

use super::layout::by_group;
use crate::error::{Damage, Error, Result};

/// How far the bitmaps can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The bitmaps are as a mount left them, so any deviation is damage.
    Verified,
    /// A crash interrupted an earlier release, or came before the journal's blocks were marked as used. Some bitmaps
    /// and descriptors may be old and others new. They are the same once the journal's bits are cleared.
    Interrupted,
}

pub(super) struct Release {
    blocks: BTreeMap<BlockNr, Vec<u8>>,
    /// The number of blocks that become free.
    pub freed: u64,
}

impl Release {
    /// Computes the new bitmaps, descriptors, and inode table block.
    pub fn plan(
        dev: &dyn BlockDevice,
        sb: &SuperBlock,
        map: &JournalMap,
        nodes: &[BlockNr],
        trust: Trust,
    ) -> Result<Release> {
        let geo = sb.geometry();
        let mut release = Release { blocks: BTreeMap::new(), freed: 0 };
        let all = map.runs().chain(nodes.iter().map(|b| (*b, 1)));
        for (group, runs) in by_group(geo, all)? {
            let place = geo.group_desc_block(group);
            let (desc_block, offset) =
                place.ok_or_else(|| Error::corrupt(Damage::GroupDescriptor, format!("{group} has none")))?;
            let bytes = release.block(dev, sb, desc_block)?;
            let mut desc = GroupDesc::decode(bytes.get(offset..).unwrap_or(&[]), group, geo)?;
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                if trust == Trust::Interrupted {
                    continue; // no block of the journal is marked as used yet
                }
                return Err(Error::corrupt(
                    Damage::BlockBitmap,
                    format!("{group} has blocks of the journal and no bitmap"),
                ));
            }
            let bits = release.block(dev, sb, desc.block_bitmap)?;
            if trust == Trust::Verified {
                desc.verify_block_bitmap(bits, group, geo)?;
                if !runs.iter().all(|(at, len)| bitmap::is_set(bits, *at..at + len)) {
                    return Err(Error::corrupt(
                        Damage::BlockBitmap,
                        format!("blocks of the journal are free in {group}"),
                    ));
                }
            }
            let before = bitmap::count_zeros(bits, 0..geo.blocks_in_group(group));
            runs.iter().for_each(|(at, len)| bitmap::clear_range(bits, *at..at + len));
            let after = bitmap::count_zeros(bits, 0..geo.blocks_in_group(group));
            desc.set_block_bitmap_csum(bits, geo);
            desc.free_clusters = match trust {
                Trust::Verified => (desc.free_clusters + (after - before)).min(geo.blocks_in_group(group)),
                Trust::Interrupted => after,
            };
            release.freed += u64::from(after - before);
            let bytes = release.block(dev, sb, desc_block)?;
            let slot = bytes.get_mut(offset..offset + geo.desc_size);
            desc.encode_into(slot.ok_or_else(|| Error::corrupt(Damage::GroupDescriptor, "a short block"))?, group, geo);
        }
        let (block, offset) = Reader::new(dev, sb).inode_place(InodeNr::JOURNAL)?;
        let table = release.block(dev, sb, block)?;
        let slot = table.get_mut(offset..offset + geo.inode_size);
        let slot = slot.ok_or_else(|| Error::corrupt(Damage::Inode, "no slot").of(InodeNr::JOURNAL))?;
        // Mke2fs leaves it blank except for the checksum.
        slot.fill(0);
        update_checksum(slot, InodeNr::JOURNAL, geo);
        Ok(release)
    }

    /// The new content of the block.
    fn block(&mut self, dev: &dyn BlockDevice, sb: &SuperBlock, block: BlockNr) -> Result<&mut Vec<u8>> {
        use std::collections::btree_map::Entry;
        match self.blocks.entry(block) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(room) => {
                if !sb.contains(block) {
                    return Err(Error::corrupt(Damage::GroupDescriptor, "a block that does not exist").at(block));
                }
                let mut bytes = vec![0; sb.block_size as usize];
                dev.read_at(block.0 * u64::from(sb.block_size), &mut bytes, BioFlags::META)?;
                Ok(room.insert(bytes))
            }
        }
    }

    /// Writes all blocks; they are durable with the next flush.
    pub fn write(&self, dev: &dyn BlockDevice, block_size: u32) -> Result<()> {
        for (block, bytes) in &self.blocks {
            dev.write_at(block.0 * u64::from(block_size), &[bytes], BioFlags::META)?;
        }
        Ok(())
    }
}
