//! Removes an older file system from a device, before a new one is written.
//!
//! Main functions: [`clear`] (the whole range becomes zeroes), [`superblocks`] (only the copies of a superblock go).
//!
//! Programs find a file system by any copy of its superblock: the primary, a backup at a usual place
//! ([`backup_candidates`]), or a backup anywhere, whose place the layout says. So long as one of them is left, the old
//! file system can be found; and once the first of its blocks is overwritten, it must not be. Therefore all copies are
//! erased first, and the device is flushed. A power cut before that flush leaves the old file system whole, since
//! nothing but copies of its superblock has changed; one behind it leaves none.
//!
//! What it does not do: look for copies elsewhere, such as those in a journal or in image files on the device. They
//! lead to no file system that begins where the device begins.
//!
//! # Locking
//! None.

use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_ondisk::GroupNr;
use extant_ondisk::superblock::{
    MAGIC, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, SuperContext, backup_candidates,
};

use crate::Result;

/// The place of `s_magic` in a superblock.
const MAGIC_AT: usize = 56;
/// Copies that one layout may name. Even 128 TiB without `sparse_super` have fewer groups of 128 MiB.
const COPIES_MAX: usize = 1 << 20;

/// Makes the first `bytes` bytes of a device zeroes, whatever it holds. `how` goes with the request: with
/// [`BioFlags::UNMAP`], the device may free the storage.
///
/// # Errors
/// The device refuses. The old file system may be lost then.
pub fn clear(device: &dyn BlockDevice, bytes: u64, how: BioFlags) -> Result<()> {
    superblocks(device)?;
    Ok(device.write_zeroes(0, bytes, how)?)
}

/// Erases all copies of a superblock that belong to a file system at the device's start, also those beyond the end of
/// a smaller one that replaces it; then flushes.
///
/// # Errors
/// The device refuses.
pub fn superblocks(device: &dyn BlockDevice) -> Result<()> {
    let size = device.size_bytes();
    for byte in std::iter::once(SUPERBLOCK_OFFSET).chain(backup_candidates(size).map(|(byte, _)| byte)) {
        let Some(copy) = copy_at(device, byte) else { continue };
        erase(device, byte)?;
        let Some(sb) = SuperBlock::parse(&copy, &SuperContext::default(), &mut |_| ()) else { continue };
        let place = |group: &GroupNr| sb.super_location(*group).0.0.checked_mul(sb.block_size.into());
        let groups = (1..sb.group_count).map(GroupNr).map_while(|group| Some((group, place(&group)?)));
        let groups = groups.take_while(|(_, byte)| *byte < size).filter(|(group, _)| sb.has_super_backup(*group));
        for (_, byte) in groups.take(COPIES_MAX) {
            if copy_at(device, byte).is_some() {
                erase(device, byte)?;
            }
        }
    }
    Ok(device.flush()?)
}

/// The bytes at a place that has a superblock's magic. A place that cannot be read has none: no
/// program finds one there either.
fn copy_at(device: &dyn BlockDevice, byte: u64) -> Option<[u8; SUPERBLOCK_SIZE]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let end = byte.checked_add(SUPERBLOCK_SIZE as u64)?;
    let read = end <= device.size_bytes() && device.read_at(byte, &mut bytes, BioFlags::META).is_ok();
    (read && bytes[MAGIC_AT..MAGIC_AT + 2] == MAGIC.to_le_bytes()).then_some(bytes)
}

/// Overwrites a copy with zeroes. The other bytes of its sectors stay.
fn erase(device: &dyn BlockDevice, byte: u64) -> Result<()> {
    let unit = u64::from(device.limits().logical_block);
    let start = byte / unit * unit;
    let end = (byte + SUPERBLOCK_SIZE as u64).next_multiple_of(unit);
    let mut around = AlignedBuf::zeroed((end - start) as usize);
    device.read_at(start, &mut around, BioFlags::META)?;
    around[(byte - start) as usize..][..SUPERBLOCK_SIZE].fill(0);
    Ok(device.write_at(start, &[&around], BioFlags::META)?)
}
