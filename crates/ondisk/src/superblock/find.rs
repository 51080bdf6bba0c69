//! Where superblocks and their backups are, for whoever does not know the layout yet.
//!
//! Main functions: [`find_backup`] walks the usual places ([`backup_candidates`]); [`backup_at`] says whether a layout
//! has a backup at a byte.
//!
//! What it does not do: read. The caller passes what reads and judges a copy at a byte, so that a mount, a checker and
//! an opener may differ in what they believe, but not in where they look.
//!
//! # Locking
//! None.

use super::{Geometry, SuperBlock, backup_candidates};
use crate::BlockNr;

/// The block of the backup superblock at this byte, if the layout has one there.
pub fn backup_at(geo: &Geometry, byte: u64) -> Option<BlockNr> {
    let block = BlockNr(byte >> geo.block_bits);
    let (group, at) = geo.group_of_block(block)?;
    let is_backup = byte.is_multiple_of(geo.block_size.into()) && at == 0 && geo.has_super_backup(group);
    (is_backup && group.0 > 0).then_some(block)
}

/// The first backup on a device of `device_bytes`, and its block. `look` reads the copy at a byte; `None`: it does not
/// believe it. A stale superblock inside a file is not taken for a backup unless it says that it lies there.
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
