//! The group descriptors: read, checked, and completed from a backup where a place in them cannot be used.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::group_desc::{GroupDesc, GroupFlags, RawGroupDesc};
use extant_ondisk::superblock::{DescChecksum, Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// Blocks of the table that are read at once.
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
            sink.push(Finding::new(
                Problem::Unreadable,
                Place::Blocks(first),
                bytes.len() as u64,
                first.0 * size as u64,
            ));
            bytes.fill(0);
        }
        for (at, block) in bytes.chunks(size).enumerate() {
            let table_index = index + at as u32;
            let first_group = table_index * geometry.descs_per_block();
            for (place, raw) in block.chunks_exact(geometry.desc_size).enumerate() {
                let group = GroupNr(first_group + place as u32);
                if group.0 < geometry.group_count {
                    descs.extend(one(device, geometry, group, table_index, place, raw, sink));
                }
            }
        }
        index += count;
    }
    Ok(descs)
}

/// Checks one descriptor.
fn one(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    group: GroupNr,
    table_index: u32,
    place: usize,
    bytes: &[u8],
    sink: &mut Sink,
) -> Option<GroupDesc> {
    let mut bad = |problem, found: u64, expected: u64| {
        sink.push(Finding::new(problem, Place::Group(group), found, expected));
    };
    let mut desc = GroupDesc::parse(bytes, group, geometry).ok()?;
    let mut raw = RawGroupDesc::new_zeroed();
    let length = bytes.len().min(size_of::<RawGroupDesc>());
    raw.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
    let mut sealed = bytes.to_vec();
    desc.encode_into(&mut sealed, group, geometry);
    let (found, expected) = (raw.bg_checksum.get(), u16::from_le_bytes([sealed[0x1e], sealed[0x1f]]));
    if geometry.desc_checksum != DescChecksum::None && found != expected {
        bad(Problem::GdtCsum, found.into(), expected.into());
        // Whether its bitmap was ever written is then not known: it is read.
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
    let flags = GroupFlags::from_bits_retain(raw.bg_flags.get());
    if geometry.desc_checksum == DescChecksum::None {
        let unused = u64::from(raw.bg_itable_unused_lo.get()) | u64::from(raw.bg_itable_unused_hi.get()) << 16;
        let uninit = flags & (GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
        if !uninit.is_empty() || unused != 0 {
            bad(Problem::GdtUninit, u64::from(uninit.bits()) | unused, 0);
        }
    } else if desc.itable_unused > desc.free_inodes.min(geometry.inodes_per_group) {
        bad(
            Problem::GdtItableUnused,
            desc.itable_unused.into(),
            desc.free_inodes.min(geometry.inodes_per_group).into(),
        );
    }
    if group.0 + 1 == geometry.group_count && flags.contains(GroupFlags::BLOCK_UNINIT) {
        bad(Problem::BbUninitLast, 0, 0);
    }
    desc.itable_unused = desc.itable_unused.min(geometry.inodes_per_group);
    let (first, end) = room(geometry, group);
    let fits = |start: BlockNr, count: u64| {
        start.0 != 0 && start.0 >= first && start.0.checked_add(count).is_some_and(|last| last <= end)
    };
    let table = u64::from(geometry.inode_table_blocks);
    let (bb, ib, it) = (fits(desc.block_bitmap, 1), fits(desc.inode_bitmap, 1), fits(desc.inode_table, table));
    for (there, problem, found) in [
        (bb, Problem::BbNotGroup, desc.block_bitmap),
        (ib, Problem::IbNotGroup, desc.inode_bitmap),
        (it, Problem::ItableNotGroup, desc.inode_table),
    ] {
        if !there {
            bad(problem, found.0, first);
        }
    }
    if !(bb && ib && it) {
        let spare = backup(device, geometry, group, table_index, place, &fits);
        let other = |there: bool, own: BlockNr, get: fn(&GroupDesc) -> BlockNr| match there {
            true => own,
            false => spare.as_ref().map_or(BlockNr(0), get),
        };
        desc.block_bitmap = other(bb, desc.block_bitmap, |desc| desc.block_bitmap);
        desc.inode_bitmap = other(ib, desc.inode_bitmap, |desc| desc.inode_bitmap);
        desc.inode_table = other(it, desc.inode_table, |desc| desc.inode_table);
    }
    Some(desc)
}

/// Where a group may have its bitmaps and table: first block, end.
fn room(geometry: &Geometry, group: GroupNr) -> (u64, u64) {
    if geometry.flex_bg {
        return (geometry.first_data_block, geometry.blocks_count);
    }
    let first = geometry.first_block_of_group(group).0;
    (first, first + u64::from(geometry.blocks_in_group(group)))
}

/// A backup's descriptor of a group, if its places can be used.
fn backup(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    group: GroupNr,
    table_index: u32,
    place: usize,
    fits: &dyn Fn(BlockNr, u64) -> bool,
) -> Option<GroupDesc> {
    let groups: Vec<GroupNr> = geometry.backup_groups().take(4).collect();
    let mut bytes = vec![0; geometry.desc_size];
    geometry.desc_block_copies(table_index, &groups).skip(1).find_map(|block| {
        let at = (block.0 << geometry.block_bits) + (place * geometry.desc_size) as u64;
        device.read_at(at, &mut bytes, BioFlags::META).ok()?;
        let desc = GroupDesc::parse(&bytes, group, geometry).ok()?;
        let table = u64::from(geometry.inode_table_blocks);
        (fits(desc.block_bitmap, 1) && fits(desc.inode_bitmap, 1) && fits(desc.inode_table, table)).then_some(desc)
    })
}
