//! The resize inode, which must map exactly the blocks that are reserved for future descriptors.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::growth::ReservedBlocks;
use extant_ondisk::indirect;
use extant_ondisk::inode::{FileType, InodeDesc};
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{BlockNr, InodeNr};

use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// Checks the resize inode against the superblock's reserved blocks.
pub fn check(device: &dyn BlockDevice, sb: &SuperBlock, descs: &[GroupDesc], sink: &mut Sink) {
    let geometry = sb.geometry();
    let Some(table) = descs.first().map(|desc| desc.inode_table).filter(|table| table.0 != 0) else { return };
    let at = (table.0 << geometry.block_bits) + (InodeNr::RESIZE.0 as u64 - 1) * geometry.inode_size as u64;
    let mut bytes = vec![0; geometry.inode_size];
    // The table is read again with the others, and unreadable blocks are reported then.
    if device.read_at(at, &mut bytes, BioFlags::META).is_err() {
        return;
    }
    let place = Place::Inode(InodeNr::RESIZE);
    let Ok(inode) = InodeDesc::parse(&bytes, InodeNr::RESIZE, geometry) else { return };
    if !sb.compat().contains(Compat::RESIZE_INODE) {
        if inode.i_block.iter().any(|byte| *byte != 0) {
            sink.push(Finding::at(Problem::ClearResizeInode, place));
        }
        return;
    }
    if !maps_reserved(device, sb, &inode) {
        sink.push(Finding::at(Problem::ResizeInodeInvalid, place));
    }
}

/// Whether the inode maps exactly the reserved blocks.
fn maps_reserved(device: &dyn BlockDevice, sb: &SuperBlock, inode: &InodeDesc) -> bool {
    let geometry = sb.geometry();
    let double = BlockNr(indirect::pointer(&inode.i_block, ReservedBlocks::DOUBLE).unwrap_or(0).into());
    let others = (0..indirect::SLOTS)
        .any(|slot| slot != ReservedBlocks::DOUBLE && indirect::pointer(&inode.i_block, slot) != Some(0));
    if others || inode.links == 0 || inode.mode & FileType::Regular.mode_bits() == 0 || !geometry.contains(double) {
        return false;
    }
    let read = |first: BlockNr, blocks: u32| {
        let at = first.0 << geometry.block_bits;
        let len = u64::from(blocks) << geometry.block_bits;
        if !geometry.contains_range(first, blocks.into()) || at + len > device.size_bytes() {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        device.read_at(at, &mut bytes, BioFlags::META).ok().map(|()| bytes)
    };
    let Some(pointers) = read(double, 1) else { return false };
    let mut used: Vec<u32> = (0..pointers.len() / 4).filter_map(|slot| indirect::pointer(&pointers, slot)).collect();
    used.retain(|block| *block != 0);
    used.sort_unstable();
    if used.windows(2).any(|pair| pair[0] == pair[1]) {
        return false;
    }
    let reserved = ReservedBlocks::new(geometry);
    let Some(first) = reserved.blocks().next() else { return true };
    // e2fsck looks at a quarter of them.
    let Some(copies) = read(first, geometry.reserved_gdt_blocks / 4) else { return false };
    let names = |bytes: &[u8], slot, block| indirect::pointer(bytes, slot).map(u64::from) == Some(block);
    reserved.blocks().zip(copies.chunks(pointers.len())).all(|(block, bytes)| {
        let mut copies = reserved.copies_of(block).take(bytes.len() / 4).enumerate();
        names(&pointers, reserved.slot(block), block.0) && copies.all(|(slot, copy)| names(bytes, slot, copy))
    })
}
