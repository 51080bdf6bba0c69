//! Updating the copies of superblock and descriptors after a growth (Linux: `update_backups`, fs/ext4/resize.c).
//!
//! The copies are written at the end of the growth, in separate transactions. Until then they describe the smaller file
//! system. That is valid, and they are not used while the primaries are intact.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use extant_cache::{BufKind, Buffer};
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{BlockNr, GroupNr};

use super::Growth;
use crate::error::Result;

/// The number of copies in one transaction.
const TOGETHER: usize = 16;

impl Growth<'_> {
    /// A copy of the superblock. Unlike the primary, it contains no state of this mount.
    pub(super) fn backup_of(&self, sb: &SuperBlock, group: GroupNr) -> SuperBlock {
        let mut sb = sb.backup_for(group);
        sb.set_needs_recovery(false);
        sb.set_orphan_present(false);
        if self.volume.borrowed {
            sb.clear_journal();
        }
        sb
    }

    /// Writes the copies of everything that the growth has changed.
    pub(super) fn renew_backups(&self) -> Result<()> {
        let sb = self.volume.superblock();
        let geo = sb.geometry();
        let backups: Vec<GroupNr> = geo.backup_groups().collect();
        let mut copies: Vec<Copy> = backups.iter().map(|group| Copy::Super(*group)).collect();
        let first = (self.begin.group_count - 1) / geo.descs_per_block();
        for index in first..geo.desc_blocks {
            let Some(primary) = geo.desc_table_block(index) else { continue };
            let others = geo.desc_block_copies(index, &backups).filter(|block| *block != primary);
            copies.extend(others.map(|to| Copy::Descs { from: primary, to }));
        }
        copies.chunks(TOGETHER).try_for_each(|copies| self.write_backups(&sb, copies))
    }

    /// Writes these copies in one transaction.
    fn write_backups(&self, sb: &SuperBlock, copies: &[Copy]) -> Result<()> {
        let _change = self.volume.begin_change()?;
        let mut held: Vec<(Arc<Buffer>, Option<Arc<Buffer>>)> = Vec::with_capacity(copies.len());
        for copy in copies {
            held.push(match copy {
                Copy::Super(group) => (self.volume.cache.get(sb.super_location(*group).0)?, None),
                Copy::Descs { from, to } => (self.volume.cache.get(*to)?, Some(self.volume.cache.get(*from)?)),
            });
        }
        self.volume.transact(copies.len() as u32, |handle| {
            for (copy, (buffer, primary)) in copies.iter().zip(&held) {
                let now = primary.as_ref().map(|primary| primary.bytes());
                handle.modify(buffer, BufKind::Table, |bytes| match (copy, now) {
                    (_, Some(now)) => bytes.copy_from_slice(&now),
                    (Copy::Super(group), None) => self.backup_of(sb, *group).encode_into(bytes),
                    (Copy::Descs { .. }, None) => {}
                });
            }
            Ok(())
        })
    }
}

/// A copy to write.
enum Copy {
    Super(GroupNr),
    Descs { from: BlockNr, to: BlockNr },
}
