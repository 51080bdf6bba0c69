//! The places of superblocks and their backups while the layout is unknown.
//!
//! Main functions: [`find`] returns the primary or a backup; [`find_backup`] walks the usual places
//! ([`backup_candidates`]); [`backup_at`] decides whether a layout has a backup at a byte; [`find_start`] finds where
//! a file system with a copy at a byte may begin.
//!
//! What it does not do: read. The caller passes a function that reads and judges a copy at a byte. So a mount, a
//! checker and an opener may accept different copies, but they look in the same places.
//!
//! # Locking
//! None.

use super::{Geometry, SUPERBLOCK_OFFSET, SuperBlock, backup_candidates};
use crate::{BlockNr, GroupNr};

/// The block of the backup superblock at this byte, if the layout has one there.
pub fn backup_at(geo: &Geometry, byte: u64) -> Option<BlockNr> {
    let block = BlockNr(byte >> geo.block_bits);
    let (group, at) = geo.group_of_block(block)?;
    let is_backup = byte.is_multiple_of(geo.block_size.into()) && at == 0 && geo.has_super_backup(group);
    (is_backup && group.0 > 0).then_some(block)
}

/// The superblock of a device of `device_bytes`: the primary; or the first backup, with its block and the fault of
/// the primary. `look` reads and judges the copy at a byte, `fits` a backup. `is_lost` decides whether a backup may
/// replace the primary after its error.
///
/// # Errors
/// The fault of the primary, if no backup may replace it or there is none.
#[allow(clippy::type_complexity)]
pub fn find<E>(
    device_bytes: u64,
    mut look: impl FnMut(u64) -> Result<SuperBlock, E>,
    fits: impl Fn(&SuperBlock) -> bool,
    is_lost: impl FnOnce(&E) -> bool,
) -> Result<(SuperBlock, Option<(BlockNr, E)>), E> {
    let primary = match look(SUPERBLOCK_OFFSET) {
        Ok(sb) => return Ok((sb, None)),
        Err(e) if !is_lost(&e) => return Err(e),
        Err(e) => e,
    };
    match find_backup(device_bytes, |byte| look(byte).ok().filter(&fits)) {
        Some((sb, block)) => Ok((sb, Some((block, primary)))),
        None => Err(primary),
    }
}

/// The first backup on a device of `device_bytes`, and its block. `look` reads the copy at a byte; `None`: it rejects
/// the copy. A stale superblock inside a file is not accepted as a backup, unless its own group number matches its
/// place.
pub fn find_backup(
    device_bytes: u64,
    mut look: impl FnMut(u64) -> Option<SuperBlock>,
) -> Option<(SuperBlock, BlockNr)> {
    backup_candidates(device_bytes).find_map(|(byte, block_size)| {
        let sb = look(byte).filter(|sb| sb.block_size == block_size)?;
        let block = backup_at(&sb, byte)?;
        Some((sb, block))
    })
}

/// Groups that are guessed for a copy that does not name its own.
const GUESSES_MAX: usize = 40;
/// The last group that is guessed.
const GUESSED_GROUP_MAX: u32 = 8192;
/// `s_block_group_nr` has 16 bits.
const GROUP_NUMBERS: usize = 1 << 16;
/// The number that mke2fs writes for all groups beyond it.
const GROUP_NUMBER_MAX: u32 = u16::MAX as u32;
/// Groups of the same number that are tried.
const SAME_NUMBER_MAX: usize = 64;

/// Where a file system may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its first byte, at the beginning of a sector.
    pub start: u64,
    /// The group that the copy belongs to then.
    pub group: GroupNr,
    /// The copy does not name that group: kernels before 5.18 wrote the number 0 into all copies when they resized.
    pub guessed: bool,
}

/// The starts of the file system that has the copy `sb` of its superblock at `byte`, the likeliest first.
pub fn find_start(sb: &SuperBlock, byte: u64) -> impl Iterator<Item = Start> + '_ {
    let number = u32::from(sb.raw().s_block_group_nr.get());
    let named = (number..sb.group_count).step_by(GROUP_NUMBERS).take(SAME_NUMBER_MAX).map(GroupNr);
    let named = named.filter(|group| sb.has_super_backup(*group));
    let last = if number == GROUP_NUMBER_MAX { usize::MAX } else { 0 };
    let large = sb.backup_groups().take(last).filter(|group| group.0 > GROUP_NUMBER_MAX).take(SAME_NUMBER_MAX);
    let named = named.chain(large).filter(move |group| number > 0 || group.0 == 0).map(|group| (group, false));
    let last = if number == 0 { sb.group_count.min(GUESSED_GROUP_MAX) } else { 0 };
    let guessed = (1..last).map(GroupNr).filter(|group| sb.has_super_backup(*group));
    let guessed = guessed.take(GUESSES_MAX).map(|group| (group, true));
    named.chain(guessed).filter_map(move |(group, guessed)| {
        let (block, offset) = sb.super_location(group);
        let start = byte.checked_sub(block.0.checked_mul(sb.block_size.into())?.checked_add(offset as u64)?)?;
        start.is_multiple_of(512).then_some(Start { start, group, guessed })
    })
}
