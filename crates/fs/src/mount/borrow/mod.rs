//! A borrowed journal. A mount for writing adds a journal to an image without one (ext2, or ext4 created without a
//! journal), and the clean unmount removes it.
//!
//! While it is mounted, the image is ext3: after a crash Extant, the kernel and e2fsck replay the log. [`borrow`] adds
//! the journal, [`give_back`] removes it, and [`settle`] completes either operation after a crash. The UUID in the
//! journal's superblock marks it as borrowed ([`extant_ondisk::jbd2::JournalSuperBlock::is_borrowed`]).
//!
//! Adding the journal takes these steps, each durable before the next:
//!
//! 1. Into free blocks: write a journal whose log already contains one transaction, which marks these blocks as used.
//!    Until that transaction is replayed, the blocks count as free.
//! 2. The superblock: not clean, with a note of the operation in progress ([`SuperBlock::note_journal_under_way`]).
//! 3. Inode 8: the journal's inode.
//! 4. The superblock: `has_journal`, `needs_recovery`, and its former state. From here on the image has a journal with
//!    a log to replay, and the mount then replays it.
//!
//! Once the log is empty and all blocks are home, removing the journal takes these steps:
//!
//! 1. The superblock: no journal, not clean, with the note.
//! 2. The bitmaps and descriptors without the journal's blocks, and inode 8 as mke2fs leaves it, in any order.
//! 3. The superblock: its former state, without the note.
//!
//! After a crash the image is either unchanged, or has a journal, or carries the note. As long as the note is there and
//! nothing else has written the superblock, nothing can have allocated the blocks that it names. So freeing them
//! (again, if they are free) and clearing inode 8 completes both procedures. Without Extant, `e2fsck -p` does the same:
//! the state makes it check the image, and it clears a journal inode that belongs to no journal.
//!
//! The backups of the superblock do not change; they show no journal.
//!
//! # Locking
//! None: no other thread uses the file system before the mount or after the unmount.

mod layout;
mod release;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::{BioFlags, BlockDevice};
use extant_cache::{Budget, BufferCache};
use extant_journal::{Journal, LogLocation};
use extant_mballoc::GroupStore;
use extant_ondisk::features::Incompat;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};
use extant_ondisk::superblock::{FsState, JournalPlace, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr};
use extant_recovery::locate::{journal_blocks, journal_inode};
use extant_recovery::read::Reader;
use extant_recovery::{Accept, Replay, locate};

use crate::error::{Damage, Error, Result};
use crate::groups::Groups;
use crate::mount::super_block::{read_super_at, write_super};
use crate::ops::credits;
use crate::options::BorrowJournal;

use layout::Layout;
use release::{Release, Trust};

/// The mode of a journal inode, as in mke2fs.
const JOURNAL_MODE: u16 = 0o100_600;
/// The memory for the bitmaps and descriptors.
const CACHE_BYTES: u64 = 64 << 20;
/// After a journal is borrowed, this many times its size must remain free.
const FREE_FACTOR: u64 = 4;

/// Hooks for a journal that logs only one transaction, without an allocator or a mount to notify.
struct NoHooks;

impl extant_journal::Hooks for NoHooks {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
    fn aborted(&self, _error: &extant_journal::Error) {}
}

/// Whether inode 8 is blank, as mke2fs leaves it in an image without a journal.
fn inode_is_blank(dev: &dyn BlockDevice, sb: &SuperBlock) -> Result<bool> {
    let i = journal_inode(dev, sb, InodeNr::JOURNAL)?;
    Ok(i.mode == 0 && i.links == 0 && i.size == 0 && i.blocks == 0 && i.i_block == [0; 60])
}

/// Adds a journal to the image and updates `sb`. With `Ok(Some(why))`, this image cannot have one and has not changed.
pub(crate) fn borrow(
    dev: &Arc<dyn BlockDevice>,
    sb: &mut SuperBlock,
    mode: BorrowJournal,
    clock: &Clock,
    rng: &mut Rng,
) -> Result<Option<String>> {
    let sound = sb.state().contains(FsState::VALID) && !sb.state().contains(FsState::ERROR);
    if mode == BorrowJournal::IfClean && !sound {
        // Blocks that its bitmaps mark as free may be in use.
        return Ok(Some("it was not cleanly unmounted; 'e2fsck -p' mends that".into()));
    }
    if sb.raw().s_rev_level.get() == 0 || sb.cluster_bits != 0 {
        return Ok(Some("its format cannot have one".into()));
    }
    let Some(len) = layout::journal_len(sb.blocks_count, sb.block_size) else {
        return Ok(Some(format!("{} blocks are too few for one", sb.blocks_count)));
    };
    let cache = BufferCache::new(dev.clone(), sb.block_size, sb.blocks_count, Budget::new(CACHE_BYTES));
    let planned = (|| {
        let groups = Groups::load(cache.clone(), sb.geometry().clone(), false)?;
        if !inode_is_blank(&**dev, sb)? {
            return Ok(Err("inode 8 is in use".into()));
        }
        if groups.totals().0 < FREE_FACTOR * u64::from(len) {
            return Ok(Err(format!("fewer than {} blocks are free", FREE_FACTOR * u64::from(len))));
        }
        let extents = sb.incompat().contains(Incompat::EXTENTS);
        let layout = Layout::find(&groups, sb, len, extents)?;
        Ok(layout.map(|l| (groups, l)).ok_or_else(|| "its free space is in too many pieces".into()))
    })();
    let (groups, layout) = match planned {
        Ok(Ok(found)) => found,
        Ok(Err(why)) => return Ok(Some(why)),
        // Nothing has been written. Operations that find the damage again report its details.
        Err(e @ (Error::Corrupt { .. } | Error::Unsupported(_))) => return Ok(Some(e.to_string())),
        Err(e) => return Err(e),
    };
    let random = rng.next_u64().to_le_bytes();
    let csum = if sb.metadata_csum { LogCsum::V3 } else { LogCsum::None };
    let uuid = JournalSuperBlock::borrowed_uuid(random);
    let jsb = JournalSuperBlock::create(sb.block_size, len, uuid, csum, sb.bit64);
    write_journal(dev, &jsb, &layout)?;
    log_allocation(cache, sb, &groups, &layout, jsb, clock)?;

    let place = JournalPlace { i_block: layout.i_block, size: u64::from(len) * u64::from(sb.block_size) };
    let mut noted = sb.clone();
    noted.note_journal_under_way(&place, sb.state().contains(FsState::VALID));
    write_super(&**dev, &noted, sb.primary_location())?;
    write_inode(dev, sb, &layout, place.size, clock)?;
    let mut with = sb.clone();
    with.set_internal_journal(&place);
    with.set_needs_recovery(true);
    write_super(&**dev, &with, sb.primary_location())?;
    *sb = with;
    extant_base::trace_point!(journal_borrowed, blocks = len; "image={}", dev.name());
    Ok(None)
}

/// Writes the journal's blocks, which are all still free: the superblock, an empty log, and the blocks of the mapping.
fn write_journal(dev: &Arc<dyn BlockDevice>, jsb: &JournalSuperBlock, layout: &Layout) -> Result<()> {
    let bs = u64::from(jsb.block_size);
    for (start, len) in &layout.runs {
        dev.write_zeroes(start.0 * bs, u64::from(*len) * bs, BioFlags::META)?;
    }
    for (block, bytes) in &layout.nodes {
        dev.write_at(block.0 * bs, &[bytes], BioFlags::META)?;
    }
    let mut first = vec![0; bs as usize];
    first[..extant_ondisk::jbd2::SUPER_BLOCK_BYTES].copy_from_slice(&jsb.encode());
    dev.write_at(layout.first().0 * bs, &[&first], BioFlags::META)?;
    Ok(())
}

/// Makes the transaction durable in the log that marks the journal's blocks as used. Its blocks are not written home.
fn log_allocation(
    cache: Arc<BufferCache>,
    sb: &SuperBlock,
    groups: &Groups,
    layout: &Layout,
    superblock: JournalSuperBlock,
    clock: &Clock,
) -> Result<()> {
    let location = LogLocation { superblock, map: Arc::new(layout.map()?), external: None };
    let options = extant_journal::Options {
        clock: clock.clone(),
        commit_interval_ns: u64::MAX,
        pinned_bytes_max: CACHE_BYTES,
        checkpoint_blocks: None,
        fast_commits: false,
        superblock: None,
        threaded: false,
    };
    let journal = Journal::open(cache, Some(location), Arc::new(NoHooks), options)?;
    let used = layout.by_group(sb)?;
    {
        let mut handle = journal.start(credits::GROUP * used.len() as u32)?;
        for (group, runs) in used {
            let prepared = groups.prepare(&mut handle, group)?;
            for (start, len) in runs {
                groups.mark(&mut handle, group, &prepared, start..start + len, true)?;
            }
        }
        handle.finish();
    }
    Ok(journal.commit_running()?)
}

/// Writes inode 8 into its table and makes it durable.
fn write_inode(dev: &Arc<dyn BlockDevice>, sb: &SuperBlock, layout: &Layout, size: u64, clock: &Clock) -> Result<()> {
    let (block, offset) = Reader::new(&**dev, sb).inode_place(InodeNr::JOURNAL)?;
    let bs = u64::from(sb.block_size);
    let mut bytes = vec![0; bs as usize];
    dev.read_at(block.0 * bs, &mut bytes, BioFlags::META)?;
    let slot = bytes
        .get_mut(offset..offset + sb.inode_size)
        .ok_or_else(|| Error::corrupt(Damage::Inode, "no slot").of(InodeNr::JOURNAL))?;
    slot.fill(0);
    let now = clock.wall();
    let now = Timestamp { seconds: now.sec, nanos: now.nsec };
    let mut inode = InodeDesc::new(JOURNAL_MODE, sb);
    inode.flags = layout.flags;
    inode.links = 1;
    inode.size = size;
    inode.blocks = layout.all_blocks() * (bs / 512);
    inode.i_block = layout.i_block;
    (inode.atime, inode.ctime, inode.mtime) = (now, now, now);
    inode.crtime = inode.crtime.map(|_| now);
    inode.encode_into(slot, InodeNr::JOURNAL, sb)?;
    Ok(dev.write_at(block.0 * bs, &[&bytes], BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA)?)
}

/// Removes the borrowed journal. The log must be empty and all blocks home. `sb` is the superblock to write, except for
/// the journal; it is updated to have none. With `Ok(Some(why))`, the journal differs from one that this module
/// creates, so it remains, and nothing has been written.
pub(crate) fn give_back(dev: &Arc<dyn BlockDevice>, sb: &mut SuperBlock) -> Result<Option<String>> {
    let planned = (|| {
        let inode = journal_inode(&**dev, sb, InodeNr::JOURNAL)?;
        let (map, nodes) = journal_blocks(&**dev, sb, InodeNr::JOURNAL, &inode)?;
        let release = Release::plan(&**dev, sb, &map, &nodes, Trust::Verified)?;
        Ok((JournalPlace { i_block: inode.i_block, size: inode.size }, map.len(), release))
    })();
    let (place, len, release) = match planned {
        Ok(planned) => planned,
        Err(e @ (Error::Corrupt { .. } | Error::Unsupported(_))) => return Ok(Some(e.to_string())),
        Err(e) => return Err(e),
    };
    let mut last = sb.clone();
    last.clear_journal();
    last.set_needs_recovery(false);
    last.set_free_blocks(sb.free_blocks() + release.freed);
    last.forget_journal_overhead(BlockNr(sb.overhead_blocks()), len);
    let mut noted = last.clone();
    noted.note_journal_under_way(&place, last.state().contains(FsState::VALID));
    write_super(&**dev, &noted, sb.primary_location())?;
    release.write(&**dev, sb.block_size)?;
    write_super(&**dev, &last, sb.primary_location())?;
    *sb = last;
    extant_base::trace_point!(journal_given_back, blocks = len; "image={}", dev.name());
    Ok(None)
}

/// Completes adding or removing a journal after a crash. The image then has no journal, and is as clean as before.
pub(crate) fn settle(dev: &Arc<dyn BlockDevice>, sb: &mut SuperBlock) -> Result<()> {
    let Some((place, clean)) = sb.journal_under_way() else { return Ok(()) };
    let mut inode = InodeDesc::new(JOURNAL_MODE, sb);
    inode.flags = layout::map_flags(sb.incompat().contains(Incompat::EXTENTS));
    inode.links = 1;
    inode.size = place.size;
    inode.i_block = place.i_block;
    let (map, nodes) = journal_blocks(&**dev, sb, InodeNr::JOURNAL, &inode)?;
    Release::plan(&**dev, sb, &map, &nodes, Trust::Interrupted)?.write(&**dev, sb.block_size)?;
    let cache = BufferCache::new(dev.clone(), sb.block_size, sb.blocks_count, Budget::new(CACHE_BYTES));
    dev.flush()?;
    let (free, _) = Groups::load(cache, sb.geometry().clone(), false)?.totals();
    sb.clear_journal();
    sb.set_free_blocks(free);
    if clean {
        sb.set_state(sb.state() | FsState::VALID);
    }
    write_super(&**dev, sb, sb.primary_location())
}

/// Removes the journal after a mount that borrowed it has failed. If this fails as well, the next mount removes it.
pub(crate) fn undo(dev: &Arc<dyn BlockDevice>) -> Result<()> {
    let mut sb = read_super_at(&**dev, 1024)?;
    let Some(mut journal) = locate::open_journal(dev.clone(), &sb)? else { return Ok(()) };
    if !journal.super_block().is_borrowed() {
        return Ok(());
    }
    let replay = Replay::load(&journal, &**dev, &mut |_| {})?;
    if replay.live {
        replay.apply(&mut journal, &**dev, Accept::WholeOnly, &mut |_| {})?;
        sb = read_super_at(&**dev, 1024)?;
    }
    if sb.last_orphan().is_some() {
        return Ok(());
    }
    let cache = BufferCache::new(dev.clone(), sb.block_size, sb.blocks_count, Budget::new(CACHE_BYTES));
    sb.set_free_blocks(Groups::load(cache, sb.geometry().clone(), false)?.totals().0);
    sb.set_orphan_present(false);
    give_back(dev, &mut sb).map(|_| ())
}
