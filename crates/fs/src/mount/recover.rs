//! Recovery from a crash, and the choice of a mount's journal (Linux: `ext4_load_and_init_journal`,
//! `ext4_orphan_cleanup`).
//!
//! In the order of a mount: [`lend_journal`] adds a journal to an image without one. [`recover`] finds the log, on this
//! or another device, and replays it. [`log_of`] determines where the journal continues. [`clean_orphans`] needs the
//! mounted file system.
//!
//! What it does not do: read logs, or decide which logs are readable. `extant_recovery` does both; the `From` below
//! converts its errors.
//!
//! # Locking
//! No other threads use the file system yet, except those of the mount.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_journal::{ExternalLog, LogLocation};
use extant_ondisk::jbd2::{IncompatFeatures, LogCsum, MIN_LOG_BLOCKS};
use extant_ondisk::superblock::{FsState, Geometry, SuperBlock};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock, orphan};
use extant_recovery::locate::open_journal;
use extant_recovery::{Accept, JournalFile, JournalState, OverlayDevice, Replay, journal_state, wipe};

use crate::error::{Damage, Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::lifecycle::{Access, Transition};
use crate::map::MapState;
use crate::mount::borrow;
use crate::mount::draft::Draft;
use crate::mount::fast_commit;
use crate::mount::super_block::{read_super_at, write_super};
use crate::ops::credits;
use crate::options::{BorrowJournal, JournalDevice, MountOptions};
use crate::orphan::{OrphanFile, named_wrongly};

impl From<extant_recovery::Error> for Error {
    fn from(e: extant_recovery::Error) -> Error {
        match e {
            extant_recovery::Error::Device(d) => Error::Device(d),
            extant_recovery::Error::Format(f) => f.into(),
            extant_recovery::Error::FastCommits { .. }
            | extant_recovery::Error::NoJournal { .. }
            | extant_recovery::Error::NoRoom { .. }
            | extant_recovery::Error::TooMuch { .. } => {
                Error::Unsupported(Unsupported::Journal { detail: e.to_string() })
            }
            extant_recovery::Error::Map { block, detail } => {
                Error::corrupt(Damage::Journal, format!("block {block} of it: {detail}"))
            }
            extant_recovery::Error::Damaged { first, count } => {
                Error::corrupt(Damage::Journal, format!("{first} ({count} findings)"))
            }
        }
    }
}

/// Prepares an image without a journal for writing: completes an interrupted change of a borrowed journal, and then
/// adds a journal. Returns true if the image has one now; otherwise a message gives the reason.
pub(crate) fn lend_journal(
    dev: &Arc<dyn BlockDevice>,
    sb: &mut SuperBlock,
    options: &MountOptions,
    rng: &mut Rng,
) -> Result<bool> {
    let refused = match borrow::settle(dev, sb) {
        Err(e @ Error::Device(_)) => return Err(e),
        Err(e) => Some(e.to_string()),
        Ok(()) if options.borrow_journal == BorrowJournal::Never => return Ok(false),
        Ok(()) => borrow::borrow(dev, sb, options.borrow_journal, &options.clock, rng)?,
    };
    if let Some(why) = &refused {
        let name = dev.name();
        options
            .messages
            .say(format_args!("{name}: no journal for this mount: {why}; after a crash e2fsck has to mend it"));
    }
    Ok(refused.is_none())
}

/// The way in which a mount uses the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The journal is replayed onto the device.
    Write,
    /// The journal is replayed into memory.
    Read,
    /// As `Read`, but the primary superblock is lost, so only the log can show whether it must be replayed.
    ReadOfBackup,
}

/// Recovers the image if its journal requires it. Returns the device to continue with (an overlay if nothing may be
/// written) and the journal, whose log is empty.
pub(crate) fn recover(
    dev: Arc<dyn BlockDevice>,
    sb: &mut SuperBlock,
    options: &MountOptions,
    usage: Use,
) -> Result<(Arc<dyn BlockDevice>, Option<JournalFile>)> {
    let (writable, of_backup) = (usage == Use::Write, usage == Use::ReadOfBackup);
    let Some(mut journal) = find_journal(&dev, sb, options, usage)? else {
        if sb.needs_recovery() {
            return Err(Error::corrupt(Damage::Journal, "the superblock asks for recovery, but there is none"));
        }
        return Ok((dev, None));
    };
    match journal_state(journal.super_block(), sb.needs_recovery() || of_backup) {
        JournalState::Live => {
            let (mut replay, draft) = load(&dev, &journal, options, of_backup)?;
            if !writable {
                return Ok((replayed_in_memory(dev, sb, journal, replay, draft, options)?, None));
            }
            if let Some(draft) = draft {
                // This frees all of the log for the changes of the fast commits.
                replay.move_tail(&mut journal, &*dev)?;
                draft.replace_fast_commits(&mut journal)?;
                replay = Replay::load(&journal, &*dev, &mut |_| {})?;
            }
            replay.apply(&mut journal, &*dev, Accept::WholeOnly, &mut |_| {})?;
            // Replay may have rewritten the superblock, including its features.
            *sb = read_super_at(&*dev, 1024)?;
        }
        JournalState::LiveButUnflagged if writable => {
            wipe(&mut journal, &*dev)?;
        }
        _ => {}
    }
    if writable && journal.super_block().errno != 0 {
        let state = sb.state() | FsState::ERROR;
        sb.set_state(state);
        let mut jsb = journal.super_block().clone();
        jsb.errno = 0;
        // The file system records the error before the journal forgets it.
        write_super(&*dev, sb, sb.primary_location())?;
        journal.write_super(jsb)?;
    }
    Ok((dev, Some(journal)))
}

/// The image's journal, internal or on its own device. `None` if the image has none, or is read without it.
fn find_journal(
    dev: &Arc<dyn BlockDevice>,
    sb: &SuperBlock,
    options: &MountOptions,
    usage: Use,
) -> Result<Option<JournalFile>> {
    let Some(uuid) = sb.external_journal() else { return Ok(open_journal(dev.clone(), sb)?) };
    let refuse = |detail: String| Err(Error::Unsupported(Unsupported::Journal { detail }));
    match &options.journal_device {
        Some(JournalDevice(device)) if usage == Use::Write && device.read_only() => {
            refuse(format!("the journal {} may only be read: make it writable, or mount with -o ro", device.name()))
        }
        Some(JournalDevice(device)) => {
            let opened =
                JournalFile::open_external(options.queue_for(device.clone()), sb.block_size, uuid, sb.uuid());
            opened.map(Some).map_err(|e| match e {
                // Format errors do not name the device, and this device is not the image.
                extant_recovery::Error::Format(_) | extant_recovery::Error::Map { .. } => {
                    Error::corrupt(Damage::Journal, format!("{}: {e}", device.name()))
                }
                e => e.into(),
            })
        }
        None if usage == Use::Write => refuse(
            "the journal is on another device: name it (-o journal_path=DEVICE, of other commands --journal DEVICE), or \
             mount with -o ro"
                .into(),
        ),
        // If the image needs no replay, it can be read without the journal.
        None if !sb.needs_recovery() && usage == Use::Read => Ok(None),
        None => refuse(
            "the journal, which has to be replayed, is on another device: name it (-o journal_path=DEVICE, of other \
             commands --journal DEVICE)"
                .into(),
        ),
    }
}

/// Loads the log, and applies its fast commits in memory. With `rescue`, damage of the log is reported and otherwise
/// ignored.
fn load(
    dev: &Arc<dyn BlockDevice>,
    journal: &JournalFile,
    options: &MountOptions,
    of_backup: bool,
) -> Result<(Replay, Option<Arc<Draft>>)> {
    let replay = Replay::load(journal, &**dev, &mut |_| {})?;
    match replay.check() {
        Err(e) if options.rescue => {
            let (name, e, n) = (dev.name(), Error::from(e), replay.transactions);
            options.messages.say(format_args!("{name}: {e}; {n} transactions of the log are whole, and used"));
        }
        checked => checked?,
    }
    if of_backup {
        let (name, n) = (dev.name(), replay.transactions);
        options.messages.say(format_args!("{name}: the log has {n} transactions, which are replayed in memory"));
    }
    if replay.fast_commits.is_empty() {
        return Ok((replay, None));
    }
    let draft = match apply_fast_commits(dev, journal, &replay, options) {
        Err(e) if options.rescue => {
            options.messages.say(format_args!("{}: {e}; without the log's fast commits", dev.name()));
            None
        }
        draft => Some(draft?),
    };
    Ok((replay, draft))
}

/// A view of the image after the replay, which happens only in memory. `sb` becomes the replayed superblock.
fn replayed_in_memory(
    dev: Arc<dyn BlockDevice>,
    sb: &mut SuperBlock,
    journal: JournalFile,
    replay: Replay,
    draft: Option<Arc<Draft>>,
    options: &MountOptions,
) -> Result<Arc<dyn BlockDevice>> {
    let view: Arc<dyn BlockDevice> = match draft {
        Some(draft) => draft,
        None => Arc::new(OverlayDevice::new(dev, journal, replay)),
    };
    let mut fresh = match read_super_at(&*view, 1024) {
        Err(_) if options.rescue => sb.clone(),
        fresh => fresh?,
    };
    fresh.copy_errors_from(sb);
    fresh.set_needs_recovery(false);
    if fresh.blocks_count >= sb.blocks_count && fresh.raw().s_blocks_count_lo == sb.raw().s_blocks_count_lo {
        // The other groups have no descriptors in this view.
        fresh.cut_to(sb.group_count);
    }
    *sb = fresh;
    Ok(view)
}

/// Replays the log and then the fast commits in memory, and returns the resulting view of the image.
fn apply_fast_commits(
    dev: &Arc<dyn BlockDevice>,
    journal: &JournalFile,
    replay: &Replay,
    options: &MountOptions,
) -> Result<Arc<Draft>> {
    let view = OverlayDevice::new(dev.clone(), journal.clone(), replay.clone());
    let draft = Arc::new(Draft::new(Arc::new(view), Arc::new(MemDevice::new(dev.size_bytes())), options.clock.clone()));
    fast_commit::replay(&draft, &replay.fast_commits, options)?;
    Ok(draft)
}

/// The place in the log where the journal of a mount for writing continues.
pub(crate) fn log_of(file: &JournalFile, geo: &Geometry) -> Result<LogLocation> {
    let mut superblock = file.super_block().clone();
    // As in the kernel (`journal_reset`), a transaction must fit a quarter of the log. The log begins at block 1, or on
    // a separate device after two superblocks.
    let least = MIN_LOG_BLOCKS + superblock.first - 1;
    if superblock.max_len < least {
        let small = Unsupported::SmallJournal { blocks: superblock.max_len, least };
        return Err(Error::Unsupported(small));
    }
    if superblock.v2 {
        if geo.bit64 {
            superblock.incompat.insert(IncompatFeatures::BIT64);
        }
        superblock.set_csum(if geo.metadata_csum { LogCsum::V3 } else { superblock.csum() });
    }
    let external = file.is_external().then(|| ExternalLog { device: file.device().clone(), super_at: file.super_at() });
    Ok(LogLocation { superblock, map: Arc::new(file.map().clone()), external })
}

/// The memory that an inode in use takes, in bytes.
const ORPHAN_BYTES: usize = 2048;
/// The maximum number of orphans in memory at the same time. A larger number would save nothing.
const PORTION_MAX: usize = 4096;

/// Deletes inodes that were unlinked but open before the crash, and finishes truncations. The orphans are read in
/// portions, so their number is not limited by memory.
///
/// # Errors
/// Errors other than damage, such as a read error of the device. The mount has been cut off then, and the next mount
/// finds the same orphans. Damage is recorded; the damaged orphan is skipped, and so are those after it on the list.
pub(crate) fn clean_orphans(fs: &Arc<Filesystem>, file: Option<OrphanFile>) -> Result<()> {
    let mut portion = Vec::new();
    fs.lifecycle.go(Transition::BeginCleanUp);
    let cleaned = end_orphans(fs, file, &mut portion);
    if cleaned.is_ok() && fs.lifecycle.go(Transition::Reopen) {
        return Ok(());
    }
    // An eviction has no caller to return its error to, so take the error that ended the cleanup. Later errors are its
    // consequences.
    let gave_up = (fs.lifecycle.now().access == Access::CutOff).then(|| fs.lifecycle.first_error()).flatten();
    // This comes before `portion` drops its references. Otherwise each drop would delete an orphan, although the rest
    // of the list is unknown.
    fs.cut_off();
    gave_up.map_or(cleaned, Err)
}

/// Deletes or truncates all orphans, until damage makes the mount read-only.
fn end_orphans(fs: &Arc<Filesystem>, file: Option<OrphanFile>, portion: &mut Vec<InodeRef>) -> Result<()> {
    let mut recorded = Recorded::read(fs, file)?;
    let most = ((fs.budget.limit() / 2) as usize / ORPHAN_BYTES).clamp(1, PORTION_MAX);
    loop {
        recorded.next_portion(fs, most, portion)?;
        if portion.is_empty() || fs.is_read_only() {
            return Ok(());
        }
        // Delete the head of the list first. Then each deletion changes only the superblock's link.
        portion.reverse();
        while let Some(inode) = portion.pop() {
            if fs.is_read_only() {
                return Ok(());
            }
            if inode.links() == 0 {
                drop(inode); // this was the last reference, so the inode is queued for eviction
            } else {
                unless_damaged(fs, fs.content(&inode).finish_truncate())?;
            }
        }
        fs.evictor().drain();
    }
}

/// The orphans of the image that are not in memory yet.
struct Recorded {
    /// The next orphan on the list.
    listed: Option<InodeNr>,
    /// The orphans in the orphan file, in reverse order.
    in_slots: Vec<InodeNr>,
}

impl Recorded {
    /// Reads the head of the list, and all numbers in the orphan file. All slots must be known: a slot that seems free
    /// would be given to another orphan.
    fn read(fs: &Filesystem, file: Option<OrphanFile>) -> Result<Recorded> {
        let (head, damaged) = {
            let sb = fs.sb.lock();
            (sb.last_orphan(), sb.state().contains(FsState::ERROR))
        };
        let mut recorded = Recorded { listed: head, in_slots: Vec::new() };
        if damaged {
            // As in the kernel, the list of a damaged file system is not trusted.
            if head.is_some() {
                let said =
                    format_args!("{}: it has errors: its list of orphans is cleared, not cleaned up", fs.image());
                fs.options.messages.say(said);
                fs.transact(credits::SUPER, |h| fs.modify_superblock(h, |sb| sb.set_last_orphan(None)))?;
            }
            recorded.listed = None;
            return Ok(recorded);
        }
        let Some(file) = file else { return Ok(recorded) };
        fs.orphans.use_file(&file, orphan::slots_per_block(fs.geo.block_size as usize) as u32);
        for (block, slot, ino) in file.used {
            if fs.geo.contains_inode(ino) && fs.orphans.adopt_slot(ino, block, slot) {
                recorded.in_slots.push(ino);
            } else {
                fs.note_error(&Error::corrupt(Damage::Orphans, "in the orphan file, wrongly").of(ino));
            }
        }
        recorded.in_slots.reverse();
        Ok(recorded)
    }

    /// Reads up to `most` orphans, those on the list first. This also finds the inode that follows them on the list,
    /// before the first of them is deleted. Otherwise the next change of the list would lose the rest.
    fn next_portion(&mut self, fs: &Arc<Filesystem>, most: usize, portion: &mut Vec<InodeRef>) -> Result<()> {
        let mut seen = HashSet::new();
        while let Some(ino) = self.listed.filter(|_| portion.len() < most) {
            let read = if fs.geo.contains_inode(ino) && seen.insert(ino) && !fs.orphans.contains(ino) {
                fs.iget_orphan(ino)
            } else {
                Err(Error::corrupt(Damage::Orphans, format!("on the list after {} others", portion.len())).of(ino))
            };
            let inode = unless_damaged(fs, read)?;
            let dtime = inode.as_ref().map_or(0, |inode| inode.meta.read().desc.dtime);
            self.listed = (dtime != 0).then_some(InodeNr(dtime));
            portion.extend(inode);
        }
        fs.orphans.adopt_list(portion, self.listed);
        while portion.len() < most
            && let Some(ino) = self.in_slots.pop()
        {
            portion.extend(unless_damaged(fs, fs.iget_orphan(ino))?);
        }
        Ok(())
    }
}

/// The blocks of an orphan file that are used; a damaged map may have very many.
const ORPHAN_BLOCKS_MAX: usize = 512;

/// Reads the orphan file; `None` if there is none. Fails if one of its blocks is damaged (Linux:
/// `ext4_init_orphan_info`).
pub(super) fn read_orphan_file(fs: &Filesystem) -> Result<Option<OrphanFile>> {
    let Some(ino) = fs.sb.lock().orphan_file() else { return Ok(None) };
    let inode = fs.iget_own(ino).map_err(named_wrongly)?;
    let seed = fs.geo.metadata_csum.then(|| fs.geo.seed.for_inode(ino, inode.generation));
    let mut blocks = Vec::new();
    let view = fs.map_view(&inode);
    inode.map.read().walk(&view, LogicalBlock(0), |m| {
        if let MapState::Written(start) = m.state {
            blocks.extend((0..u64::from(m.len)).map(|i| BlockNr(start.0 + i)));
        }
        if blocks.len() <= ORPHAN_BLOCKS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    blocks.truncate(ORPHAN_BLOCKS_MAX);
    let mut used = Vec::new();
    for (i, nr) in blocks.iter().enumerate() {
        let buffer = fs.cache.get(*nr)?;
        buffer.read(|b| orphan::verify(b, *nr, seed))?;
        buffer.set_verified();
        buffer.read(|b| used.extend(orphan::used_slots(b).map(|(slot, ino)| (i as u32, slot as u32, ino))));
    }
    Ok(Some(OrphanFile { seed, blocks, used }))
}

/// Returns `None` for damage, which is recorded.
fn unless_damaged<T>(fs: &Filesystem, r: Result<T>) -> Result<Option<T>> {
    match r {
        Err(e) if e.is_corruption() => {
            fs.note_error(&e);
            Ok(None)
        }
        r => r.map(Some),
    }
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
