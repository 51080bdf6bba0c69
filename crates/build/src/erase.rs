//! Removes an older file system from a device, before a new one is written.
//!
//! Main functions: [`clear`] (zeroes the whole range), [`superblocks`] (erases only the copies of a superblock).
//!
//! Programs find a file system by any copy of its superblock: the primary, a backup at a usual place
//! ([`backup_candidates`]), or a backup elsewhere, whose place the layout specifies. As long as one of them is left,
//! the old file system can be found; but after the first of its blocks is overwritten, it must not be. Therefore all
//! copies are erased first, and the device is flushed. A power cut before that flush leaves the whole old file system,
//! because only copies of its superblock have changed; a power cut after it leaves none.
//!
//! What it does not do: look for copies elsewhere, such as those in a journal or in image files on the device. They
//! belong to no file system that begins where the device begins.
//!
//! # Locking
//! None.

use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_ondisk::GroupNr;
use extant_ondisk::superblock::{
    MAGIC, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, SuperContext, backup_candidates,
};

use crate::Result;

/// The offset of `s_magic` in a superblock.
const MAGIC_AT: usize = 56;
/// The maximum number of copies that one layout may have. Even 128 TiB without `sparse_super` have fewer groups of 128
/// MiB.
const COPIES_MAX: usize = 1 << 20;

/// Zeroes the first `bytes` bytes of a device, regardless of its content. `how` are the flags of the request: with
/// [`BioFlags::UNMAP`], the device may free the storage.
///
/// # Errors
/// The device reports an error. The old file system may be lost then.
pub fn clear(device: &dyn BlockDevice, bytes: u64, how: BioFlags) -> Result<()> {
    superblocks(device)?;
    Ok(device.write_zeroes(0, bytes, how)?)
}

/// Erases all copies of a superblock that belong to a file system at the device's start, including those after the end
/// of a smaller one that replaces it, and then flushes.
///
/// # Errors
/// The device reports an error.
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

/// The bytes at a place if it has a superblock's magic. A place that cannot be read has none, because no program finds
/// one there, either.
fn copy_at(device: &dyn BlockDevice, byte: u64) -> Option<[u8; SUPERBLOCK_SIZE]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let end = byte.checked_add(SUPERBLOCK_SIZE as u64)?;
    let read = end <= device.size_bytes() && device.read_at(byte, &mut bytes, BioFlags::META).is_ok();
    (read && bytes[MAGIC_AT..MAGIC_AT + 2] == MAGIC.to_le_bytes()).then_some(bytes)
}

/// Overwrites a copy with zeros. The other bytes of its sectors do not change.
fn erase(device: &dyn BlockDevice, byte: u64) -> Result<()> {
    let unit = u64::from(device.limits().logical_block);
    let start = byte / unit * unit;
    let end = (byte + SUPERBLOCK_SIZE as u64).next_multiple_of(unit);
    let mut around = AlignedBuf::zeroed((end - start) as usize);
    device.read_at(start, &mut around, BioFlags::META)?;
    around[(byte - start) as usize..][..SUPERBLOCK_SIZE].fill(0);
    Ok(device.write_at(start, &[&around], BioFlags::META)?)
}
