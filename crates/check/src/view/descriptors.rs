//! The group descriptors: they are read, checked, and completed from a backup if a place in them cannot be used.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::group_desc::{DescCount, DescDamage, GroupDesc, GroupFlags, Piece};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::read::Reader;

use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// The number of blocks of the table that are read at once.
const STEP_BLOCKS: u32 = 64;

/// Reads all descriptors and checks them.
pub fn read(device: &dyn BlockDevice, sb: &SuperBlock, sink: &mut Sink) -> Result<Vec<GroupDesc>> {
    let geometry = sb.geometry();
    let size = geometry.block_size as usize;
    let mut descs = Vec::new();
    let groups = geometry.group_count as usize;
    descs.try_reserve_exact(groups).map_err(|_| Error::Memory {
        device: device.name().to_owned(),
        bytes: (groups * size_of::<GroupDesc>()) as u64,
    })?;
    let blocks = geometry.group_count.div_ceil(geometry.descs_per_block());
    let mut index = 0;
    while index < blocks {
        let Some(first) = geometry.desc_table_block(index) else { break };
        let mut count = 1;
        while count < STEP_BLOCKS
            && index + count < blocks
            && geometry.desc_table_block(index + count) == Some(BlockNr(first.0 + u64::from(count)))
        {
            count += 1;
        }
        let mut bytes = vec![0; count as usize * size];
        if device.read_at(first.0 << geometry.block_bits, &mut bytes, BioFlags::META).is_err() {
            for (block, bytes) in (first.0..).zip(bytes.chunks_mut(size)) {
                let byte = block << geometry.block_bits;
                if device.read_at(byte, bytes, BioFlags::META).is_err() {
                    bytes.fill(0);
                    sink.push(Finding::new(Problem::Unreadable, Place::Blocks(BlockNr(block)), size as u64, byte));
                }
            }
        }
        for (at, block) in bytes.chunks(size).enumerate() {
            let table_index = index + at as u32;
            let first_group = table_index * geometry.descs_per_block();
            for (place, raw) in block.chunks_exact(geometry.desc_size).enumerate() {
                let group = GroupNr(first_group + place as u32);
                if group.0 < geometry.group_count {
                    descs.extend(one(device, geometry, group, raw, sink));
                }
            }
        }
        index += count;
    }
    Ok(descs)
}

/// Checks one descriptor. If it is damaged and a backup of it is intact, the places are taken from the backup. Without
/// a backup, an impossible place becomes block 0.
fn one(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    group: GroupNr,
    bytes: &[u8],
    sink: &mut Sink,
) -> Option<GroupDesc> {
    let mut desc = GroupDesc::parse(bytes, group, geometry).ok()?;
    let (mut astray, mut is_doubtful) = (Vec::new(), false);
    desc.damage(bytes, group, geometry, &mut |one| {
        astray.extend(piece_outside(one));
        is_doubtful |= matches!(one, DescDamage::Checksum { .. });
        sink.extend(finding(one, group));
    });
    if is_doubtful {
        // The flags cannot be trusted, so the bitmap is read even if they say that it was never written.
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
    if is_doubtful || !astray.is_empty() {
        let places = |desc: &GroupDesc| [desc.block_bitmap, desc.inode_bitmap, desc.inode_table];
        match Reader::new(device, geometry).backup_of(group) {
            Some(spare) if places(&spare) != places(&desc) => {
                [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] = places(&spare);
                // The other fields cannot be trusted, either, and the backup's flags and counts are out of date.
                desc.flags.remove(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
                desc.itable_unused = 0;
            }
            Some(_) => {}
            None => {
                for piece in astray {
                    match piece {
                        Piece::BlockBitmap => desc.block_bitmap = BlockNr(0),
                        Piece::InodeBitmap => desc.inode_bitmap = BlockNr(0),
                        Piece::InodeTable => desc.inode_table = BlockNr(0),
                    }
                }
            }
        }
    }
    desc.itable_unused = desc.itable_unused.min(geometry.inodes_per_group);
    Some(desc)
}

fn piece_outside(damage: DescDamage) -> Option<Piece> {
    match damage {
        DescDamage::Outside { piece, .. } => Some(piece),
        _ => None,
    }
}

/// Damage of a descriptor as a finding. `None`: another pass reports the same in more detail.
fn finding(damage: DescDamage, group: GroupNr) -> Option<Finding> {
    use DescDamage as D;
    let at = |problem, found: u64, expected: u64| Some(Finding::new(problem, Place::Group(group), found, expected));
    match damage {
        D::Checksum { found, expected } => at(Problem::GdtCsum, found.into(), expected.into()),
        D::Outside { piece, start, first, .. } => match piece {
            Piece::BlockBitmap => at(Problem::BbNotGroup, start, first),
            Piece::InodeBitmap => at(Problem::IbNotGroup, start, first),
            Piece::InodeTable => at(Problem::ItableNotGroup, start, first),
        },
        // The claims of all groups' metadata show these two as conflicts.
        D::Shared { .. } | D::OnFixed { .. } => None,
        D::Count { what: DescCount::UnusedInodes, found, most } | D::UnusedAboveFree { unused: found, free: most } => {
            at(Problem::GdtItableUnused, found.into(), most.into())
        }
        // The pass over the bitmaps reports these counts.
        D::Count { what: DescCount::FreeBlocks | DescCount::FreeInodes | DescCount::Directories, .. } => None,
        D::Uninit { flags, unused } => at(Problem::GdtUninit, u64::from(flags) | u64::from(unused), 0),
        D::UninitLast => at(Problem::BbUninitLast, 0, 0),
    }
}
