//! The superblock at both ends of a mount: found and checked, and written (Linux: `ext4_load_super`,
//! `ext4_commit_super`, fs/ext4/super.c).
//!
//! Main type: [`Found`]. Which features allow what is decided in [`extant_ondisk::features`]; what follows from that
//! for this mount is decided here.
//!
//! What it does not do: changes under a handle ([`Filesystem::modify_superblock`]).
//!
//! # Locking
//! [`write_super`] takes none: its callers see to it that no transaction holds the block. `superblock` (75) in the
//! methods of [`Filesystem`].

use std::sync::Arc;

use extant_base::sync::MutexGuard;
use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::features::{self, Compat, MountMode};
use extant_ondisk::superblock::{FsState, SUPERBLOCK_SIZE, SuperBlock, backup_candidates};

use crate::error::{Damage, Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::options::Messages;

/// Where the superblock that is used came from.
pub(crate) struct Found {
    pub sb: SuperBlock,
    /// A backup's block, when the primary cannot be used, and what is wrong with the primary.
    pub backup: Option<(u64, Error)>,
}

impl Found {
    /// Whether the image can be mounted as was asked.
    ///
    /// # Errors
    /// For writing: only a backup is left, or a feature that can only be read. In any case: a feature that cannot
    /// even be read, a device that is too small.
    pub fn check(&self, dev: &dyn BlockDevice, read_only: bool, messages: &Messages) -> Result<()> {
        if let Some((block, primary)) = &self.backup {
            if !read_only {
                return Err(primary.clone().advised(&format!(
                    "the backup superblock at block {block} is good: mount read-only (-o ro) to use it, or let \
                     e2fsck repair the image"
                )));
            }
            let name = dev.name();
            // The primary alone tells whether it had to be.
            let has_log = self.sb.compat().contains(Compat::HAS_JOURNAL);
            let log = if has_log { "; the log is not replayed, and what it has is missing" } else { "" };
            messages
                .say(format_args!("{name}: {primary}; using the backup superblock at block {block}, read-only{log}"));
        }
        if let MountMode::ReadOnly { reasons } = features::check(&self.sb)?
            && !read_only
        {
            return Err(Error::Unsupported(Unsupported::Writing { reasons }));
        }
        self.sb.geometry().check_device_size(dev.size_bytes())?;
        Ok(())
    }
}

/// Replay may have brought other features, and another size. Whether the mount has to be read-only, which for writing
/// is an error: what was replayed stays.
pub(crate) fn check_after_replay(sb: &SuperBlock, dev: &dyn BlockDevice, read_only: bool) -> Result<bool> {
    sb.geometry().check_device_size(dev.size_bytes())?;
    match features::check(sb)? {
        MountMode::ReadOnly { reasons } if !read_only => {
            Err(Error::Unsupported(Unsupported::WritingAfterReplay { reasons }))
        }
        MountMode::ReadOnly { .. } => Ok(true),
        MountMode::ReadWrite => Ok(read_only),
    }
}

pub(crate) fn read_super_at(dev: &dyn BlockDevice, offset: u64) -> Result<SuperBlock> {
    if offset + SUPERBLOCK_SIZE as u64 > dev.size_bytes() {
        return Err(Error::corrupt(Damage::SuperBlock { byte: offset }, "the image is too small"));
    }
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    dev.read_at(offset, &mut bytes, BioFlags::META)?;
    Ok(SuperBlock::decode(&bytes, offset)?)
}

/// The primary superblock, or the first backup that is one of this image.
pub(crate) fn find_super(dev: &dyn BlockDevice) -> Result<Found> {
    let primary = match read_super_at(dev, 1024) {
        Ok(sb) => return Ok(Found { sb, backup: None }),
        Err(e @ (Error::Device(_) | Error::Unsupported(_))) => return Err(e),
        Err(e) => e,
    };
    for (offset, block_size) in backup_candidates() {
        let Ok(sb) = read_super_at(dev, offset) else { continue };
        let (geo, block) = (sb.geometry(), BlockNr(offset / u64::from(block_size)));
        // A stale superblock inside a file must not be taken for a backup.
        let fits = geo.block_size == block_size && geo.check_device_size(dev.size_bytes()).is_ok();
        let there = geo.group_of_block(block).is_some_and(|(g, at)| at == 0 && geo.has_super_backup(g));
        if fits && there {
            return Ok(Found { sb, backup: Some((block.0, primary)) });
        }
    }
    Err(primary)
}

/// For tools that only want to look: the superblock, and the block of the backup that it came from, if so.
pub fn probe_superblock(dev: &dyn BlockDevice) -> Result<(SuperBlock, Option<u64>)> {
    let f = find_super(dev)?;
    let backup = f.backup.map(|(b, _)| b);
    Ok((f.sb, backup))
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

impl Filesystem {
    /// The superblock, with what it says of the whole brought up to date: nothing is under way.
    pub(crate) fn note_totals(&self) -> MutexGuard<'_, SuperBlock> {
        let (blocks, inodes) = self.groups.totals();
        let orphans = self.orphans.len();
        // Without a log nothing on the device says of unlinked files that they are to be freed.
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

    /// Tells the image that it is in use: durable before the first change.
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
        // Nothing has to be durable before it: one flush for it and for all that was written earlier.
        write_super_with(&*self.dev, sb, self.sb_place, BioFlags::empty())?;
        Ok(self.dev.flush()?)
    }

    /// The mount in the superblock: how often, when, where; and that the image is in use from here on.
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
}
