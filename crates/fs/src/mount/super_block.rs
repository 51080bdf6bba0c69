//! The superblock at the start and the end of a mount: reading and checking it, and writing it (Linux:
//! `ext4_load_super`, `ext4_commit_super`, fs/ext4/super.c).
//!
//! [`extant_ondisk::features`] decides what the features allow; this module applies that to the mount.
//!
//! Main functions: [`check_after_replay`], [`write_super`]; [`Volume::mark_mounted`]; [`Volume::modify_superblock`] for
//! changes under a handle.
//!
//! What it does not do: choose among copies ([`crate::mount::copies`]).
//!
//! # Locking
//! [`write_super`] takes no lock; its callers ensure that no transaction holds the block. The methods take `superblock`
//! (75).

use std::sync::Arc;

use extant_base::sync::MutexGuard;
use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_cache::BufKind;
use extant_journal::Handle;
use extant_ondisk::BlockNr;
use extant_ondisk::features::{self, MountMode};
use extant_ondisk::superblock::{FsState, SUPERBLOCK_SIZE, SuperBlock};

use crate::error::{Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::volume::Volume;

pub(crate) use extant_recovery::read::super_at as read_super_at;

/// Checks the superblock again after the replay, which may have brought other features and another size. A writing
/// mount cannot become read-only here: the replay remains. `before`: the earlier superblock, whose size has been
/// checked.
pub(crate) fn check_after_replay(
    sb: &SuperBlock,
    dev: &dyn BlockDevice,
    read_only: bool,
    before: &SuperBlock,
) -> Result<()> {
    if sb.geometry().blocks_count != before.geometry().blocks_count {
        sb.geometry().check_device_size(dev.size_bytes())?;
    }
    match features::check(sb)? {
        MountMode::ReadOnly { reasons } if !read_only => {
            Err(Error::Unsupported(Unsupported::WritingAfterReplay { reasons }))
        }
        _ => Ok(()),
    }
}

/// Writes the primary superblock, durably. Only while no transaction can hold its block.
pub(crate) fn write_super(dev: &dyn BlockDevice, sb: &SuperBlock, place: (BlockNr, usize)) -> Result<()> {
    write_super_with(dev, sb, place, BioFlags::PREFLUSH | BioFlags::FUA)
}

fn write_super_with(dev: &dyn BlockDevice, sb: &SuperBlock, place: (BlockNr, usize), flags: BioFlags) -> Result<()> {
    let bs = u64::from(sb.geometry().block_size);
    let flags = flags | BioFlags::META | BioFlags::SYNC;
    let unit = u64::from(dev.limits().logical_block);
    let at = place.0.0 * bs + place.1 as u64;
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    sb.encode_into(&mut bytes);
    if unit <= SUPERBLOCK_SIZE as u64 {
        dev.write_at(at, &[&bytes], flags)?;
    } else {
        let mut block = AlignedBuf::zeroed(bs.max(unit) as usize);
        let start = at - at % block.len() as u64;
        dev.read_at(start, &mut block, BioFlags::META)?;
        let within = (at - start) as usize;
        block[within..within + SUPERBLOCK_SIZE].copy_from_slice(&bytes);
        dev.write_at(start, &[&block], flags)?;
    }
    Ok(())
}

impl Volume {
    /// Records the mount in the superblock (count, time, mount point), and marks the image as in use.
    pub(crate) fn mark_mounted(&self) -> Result<()> {
        let mut sb = self.sb.lock();
        if self.options.counted {
            let count = sb.mount_count();
            sb.set_mount_count(count.saturating_add(1));
            sb.set_mount_time(self.now().seconds);
        }
        if let Some(dir) = &self.options.mounted_on {
            sb.set_last_mounted(dir.as_bytes());
        }
        self.mark_in_use(&mut sb)?;
        // The cache may have read the block meanwhile.
        let buffer = self.cache.get(self.sb_place.0)?;
        let at = self.sb_place.1;
        let mut inner = buffer.lock();
        sb.encode_into(&mut Arc::make_mut(&mut inner.data)[at..at + SUPERBLOCK_SIZE]);
        Ok(())
    }

    /// Marks the image as in use, durably, before the first change.
    pub(crate) fn mark_in_use(&self, sb: &mut SuperBlock) -> Result<()> {
        if self.has_log {
            sb.set_needs_recovery(true);
        } else {
            let state = sb.state().difference(FsState::VALID);
            sb.set_state(state);
        }
        if sb.orphan_file().is_some() && self.has_log {
            sb.set_orphan_present(true);
        }
        // No later write may become durable before this one. A single flush covers it and all earlier writes.
        write_super_with(&*self.dev, sb, self.sb_place, BioFlags::empty())?;
        Ok(self.dev.flush()?)
    }

    /// Changes the superblock under `handle`. 1 credit.
    pub(crate) fn modify_superblock(&self, handle: &mut Handle, f: impl FnOnce(&mut SuperBlock)) -> Result<()> {
        let buffer = self.cache.get(self.sb_place.0)?;
        handle.set_opaque();
        let mut sb = self.sb.lock();
        f(&mut sb);
        let at = self.sb_place.1;
        handle.modify(&buffer, BufKind::Table, |b| sb.encode_into(&mut b[at..at + 1024]));
        Ok(())
    }
}

impl Filesystem {
    /// Updates the superblock's totals. No change may be in progress.
    pub(crate) fn note_totals(&self) -> MutexGuard<'_, SuperBlock> {
        let (blocks, inodes) = self.placement.groups.totals();
        let orphans = self.orphans.len();
        // Without a log, the device has no record of the unlinked files that must be freed.
        let whole = || !self.inodes.all().iter().any(|inode| inode.links() == 0);
        let becomes_clean = !self.has_log && self.was_clean && whole();
        let mut sb = self.sb.lock();
        sb.set_free_blocks(blocks);
        sb.set_free_inodes(u32::try_from(inodes).unwrap_or(u32::MAX));
        sb.set_write_time(self.now().seconds);
        if orphans == 0 {
            sb.set_orphan_present(false);
        }
        if becomes_clean {
            let state = sb.state() | FsState::VALID;
            sb.set_state(state);
        }
        sb
    }
}
