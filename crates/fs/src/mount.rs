//! Mounting and unmounting (Linux: `ext4_fill_super`, `ext4_put_super`, fs/ext4/super.c).
//!
//! Order at mount: superblock (or, read-only, a backup) → features → a borrowed journal for an image without one
//! ([`crate::borrow`]) → replay, of fast commits too ([`crate::fast_commit`]) → superblock again → descriptors →
//! allocator → journal → `needs_recovery` durable → orphans → root. Order at unmount: data → commit → checkpoint → log
//! marked empty → only then `needs_recovery`
//! cleared, and a borrowed journal given back. A crash between any two of these leaves an image that replays.
//!
//! Reading an image that needs recovery: the log is replayed in memory and nothing is written.
//!
//! # Locking
//! Nobody else has the file system yet, or any more.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, Mutex, MutexGuard};
use extant_block::device::MemDevice;
use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_cache::{Budget, BufferCache, ErrorSequence, Flusher, FlusherOptions, Shrinker};
use extant_journal::{Journal, LogLocation};
use extant_mballoc::Allocator;
use extant_ondisk::features::{Compat, Incompat, MountMode};
use extant_ondisk::jbd2::{LogCsum, MIN_LOG_BLOCKS};
use extant_ondisk::superblock::{ErrorBehaviour, FsState, SUPERBLOCK_SIZE, SuperBlock, backup_candidates};
use extant_ondisk::{BlockNr, InodeNr, orphan};
use extant_recovery::locate::open_journal;
use extant_recovery::{Accept, JournalFile, JournalState, OverlayDevice, Replay, journal_state, wipe};

use crate::borrow;
use crate::dir_store::HashSettings;
use crate::draft::Draft;
use crate::error::{Damage, Error, Result, Unsupported};
use crate::fast_commit;
use crate::filesystem::{self, Filesystem, JournalHooks};
use crate::freeze::Gate;
use crate::groups::{Groups, journal_zones};
use crate::inode::InodeRef;
use crate::inode_table::{InodeTable, OwnInodes};
use crate::map::es::EsCache;
use crate::ops::sync::Scope;
use crate::ops::writeback::Completed;
use crate::options::{BorrowJournal, JournalDevice, MountOptions, OnError};
use crate::orphan::Orphans;
use crate::reserve::Reserve;
use crate::state::MountState;
use crate::threads::Threads;

impl From<extant_recovery::Error> for Error {
    fn from(e: extant_recovery::Error) -> Error {
        match e {
            extant_recovery::Error::Device(d) => Error::Device(d),
            extant_recovery::Error::Format(f) => f.into(),
            extant_recovery::Error::FastCommits { .. } | extant_recovery::Error::NoJournal { .. } => {
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

/// Where the superblock that is used came from.
struct Found {
    sb: SuperBlock,
    /// A backup's block, when the primary cannot be used, and what is wrong with the primary.
    backup: Option<(u64, Error)>,
}

pub(crate) fn read_super_at(dev: &dyn BlockDevice, offset: u64) -> Result<SuperBlock> {
    if offset + SUPERBLOCK_SIZE as u64 > dev.size_bytes() {
        return Err(Error::corrupt(Damage::SuperBlock { byte: offset }, "the image is too small"));
    }
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    dev.read_at(offset, &mut bytes, BioFlags::META)?;
    Ok(SuperBlock::decode(&bytes, offset)?)
}

fn find_super(dev: &dyn BlockDevice) -> Result<Found> {
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

impl Filesystem {
    /// Mounts the file system on `dev`.
    ///
    /// # Errors
    /// With the image's name in front: no ext file system, a feature that is not supported (named), damage, a device
    /// too small for the file system. Nothing has been written then, except by a replay.
    pub fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
        let image = dev.name().to_owned();
        let mut borrowed = false;
        let result = mount(dev.clone(), options, &mut borrowed);
        if result.is_err() && borrowed {
            let _ = borrow::undo(&dev);
        }
        result.map(|fs| Mounted { fs }).map_err(|e| Error::Mount { image, source: Box::new(e) })
    }

    /// The root directory.
    pub fn root(&self) -> Result<InodeRef> {
        self.iget(InodeNr::ROOT)
    }

    /// Writes everything, marks the image clean, and ends the background threads. The file system answers every later
    /// change with [`Error::ReadOnly`].
    ///
    /// The threads end in the order in which they need each other: whoever writes data or frees inodes needs handles,
    /// which need the journal's thread to make room.
    ///
    /// # Errors
    /// The first thing that could not be made durable; the image is then left marked as needing recovery, unless only
    /// data of files was lost that nobody has been told of.
    pub fn unmount(&self) -> Result<()> {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.thaw();
        if self.state.is_remounted() {
            // A borrowed journal is to be given back; otherwise the device is as it should be.
            if self.borrowed {
                self.remount(false)?;
            } else {
                self.journal.thaw();
            }
        }
        let writable = !self.is_read_only();
        self.flusher.stop();
        self.threads.end("extant-flush");
        let mut result = self.state.acknowledge();
        if writable {
            result = result.and(self.write_everything());
        }
        self.end_threads();
        if writable {
            result = result.and_then(|()| self.close_clean());
        }
        self.state.close();
        // Data that was lost is told whatever else went wrong.
        self.report_lost().and(result)
    }

    fn write_everything(&self) -> Result<()> {
        self.drain_evictions();
        let written = self.wait_for(|done| self.barrier(Scope::All, done));
        for inode in self.inodes.all() {
            self.alloc.discard_preallocations(&inode.prealloc);
        }
        self.drain_evictions();
        written
    }

    fn end_threads(&self) {
        self.flusher.stop();
        self.threads.end("extant-flush");
        self.evict_work.notify_all();
        self.threads.end("extant-evict");
        self.completed.stop();
        self.threads.end("extant-retire");
        self.journal.stop();
        self.threads.end("extant-journal");
    }

    /// Nothing more is written, and nothing more can be changed.
    pub(crate) fn cut_off(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.release_frozen();
            self.end_threads();
            self.state.close();
        }
    }

    /// The superblock, with what it says of the whole brought up to date: nothing is under way.
    pub(crate) fn note_totals(&self) -> MutexGuard<'_, SuperBlock> {
        let (blocks, inodes) = self.groups.totals();
        let orphans = self.orphans.len();
        let mut sb = self.sb.lock();
        sb.set_free_blocks(blocks);
        sb.set_free_inodes(u32::try_from(inodes).unwrap_or(u32::MAX));
        sb.set_write_time(self.now().seconds);
        if orphans == 0 {
            sb.set_orphan_present(false);
        }
        if !self.has_log && self.was_clean {
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
        write_super(&*self.dev, sb, self.sb_place)
    }

    fn close_clean(&self) -> Result<()> {
        self.journal.close()?;
        let orphans = self.orphans.len();
        let mut sb = self.note_totals();
        let kbytes = self.dev.stats().write_bytes / 1024;
        let before = sb.kbytes_written();
        sb.set_kbytes_written(before + kbytes);
        // Orphans that nobody could free need a journal at the next mount.
        if self.borrowed && orphans == 0 {
            let kept = borrow::give_back(&self.dev, &mut sb)?;
            let Some(why) = kept else { return Ok(()) };
            self.options.messages.say(format_args!("{}: {why}; the borrowed journal stays", self.image()));
        }
        sb.set_needs_recovery(false);
        write_super(&*self.dev, &sb, self.sb_place)
    }
}

/// A mount, and the duty to end it: dropped, it unmounts. Parts of a program may share the file system by the `Arc`
/// that it is; once the mount has ended they can change nothing any more ([`Error::ReadOnly`]).
///
/// Dropped by a thread that panics it leaves what a power cut leaves.
#[must_use = "dropped, it unmounts"]
pub struct Mounted {
    fs: Arc<Filesystem>,
}

impl std::ops::Deref for Mounted {
    type Target = Arc<Filesystem>;
    fn deref(&self) -> &Arc<Filesystem> {
        &self.fs
    }
}

impl Mounted {
    /// Ends the mount as a power cut would: nothing more is written.
    pub fn abandon(self) {
        self.fs.cut_off();
    }
}

impl Drop for Mounted {
    /// What [`Filesystem::unmount`] would have answered goes to [`MountOptions::messages`]; whoever wants to know
    /// unmounts.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.fs.cut_off();
        }
        if let Err(e) = self.fs.unmount() {
            self.fs.options.messages.say(format_args!("{}: unmount: {e}", self.fs.image()));
        }
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        self.cut_off();
    }
}

/// Writes the primary superblock, durably. Only while no transaction can hold its block.
pub(crate) fn write_super(dev: &dyn BlockDevice, sb: &SuperBlock, place: (BlockNr, usize)) -> Result<()> {
    let bs = u64::from(sb.geometry().block_size);
    let flags = BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA;
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

/// What the journal of the image asks for, done. Returns the device to go on with (an overlay when nothing may be
/// written) and the journal, empty.
fn recover(
    dev: Arc<dyn BlockDevice>,
    sb: &mut SuperBlock,
    options: &MountOptions,
    writable: bool,
) -> Result<(Arc<dyn BlockDevice>, Option<JournalFile>)> {
    let journal = match (sb.external_journal(), options.journal_device.as_ref()) {
        (Some(uuid), Some(JournalDevice(device))) => {
            Some(JournalFile::open_external(device.clone(), sb.geometry().block_size, uuid)?)
        }
        // What needs no replay is read without it.
        (Some(_), None) if !sb.needs_recovery() => return Ok((dev, None)),
        (Some(_), None) => {
            let detail =
                "the journal, which has to be replayed, is on another device: name it (-o journal_path=)".into();
            return Err(Error::Unsupported(Unsupported::Journal { detail }));
        }
        (None, _) => open_journal(dev.clone(), sb)?,
    };
    let Some(mut journal) = journal else {
        if sb.needs_recovery() {
            return Err(Error::corrupt(Damage::Journal, "the superblock asks for recovery, but there is none"));
        }
        return Ok((dev, None));
    };
    match journal_state(journal.super_block(), sb.needs_recovery()) {
        JournalState::Live => {
            let mut replay = Replay::load(&journal, &*dev, &mut |_| {})?;
            replay.check()?;
            let draft = match replay.fast_commits.is_empty() {
                true => None,
                false => Some(apply_fast_commits(&dev, &journal, &replay, options)?),
            };
            if !writable {
                let view: Arc<dyn BlockDevice> = match draft {
                    Some(draft) => draft,
                    None => Arc::new(OverlayDevice::new(dev, journal, replay)),
                };
                let mut fresh = read_super_at(&*view, 1024)?;
                fresh.set_needs_recovery(false);
                *sb = fresh;
                return Ok((view, None));
            }
            if let Some(draft) = draft {
                // All of the log is free then for what the fast commits change.
                replay.move_tail(&mut journal, &*dev)?;
                draft.replace_fast_commits(&mut journal)?;
                replay = Replay::load(&journal, &*dev, &mut |_| {})?;
            }
            replay.apply(&mut journal, &*dev, Accept::WholeOnly, &mut |_| {})?;
            // Replay may have rewritten the superblock, features included; what it recorded of errors is kept.
            let mut fresh = read_super_at(&*dev, 1024)?;
            fresh.copy_errors_from(sb);
            *sb = fresh;
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
        // First the file system knows, then the journal forgets.
        write_super(&*dev, sb, sb.primary_location())?;
        journal.write_super(jsb)?;
    }
    Ok((dev, Some(journal)))
}

/// The image as its log and then its fast commits leave it, in memory.
fn apply_fast_commits(
    dev: &Arc<dyn BlockDevice>,
    journal: &JournalFile,
    replay: &Replay,
    options: &MountOptions,
) -> Result<Arc<Draft>> {
    let view = OverlayDevice::new(dev.clone(), journal.clone(), replay.clone());
    let draft = Arc::new(Draft::new(Arc::new(view), Arc::new(MemDevice::new(dev.size_bytes()))));
    fast_commit::replay(&draft, &replay.fast_commits, options)?;
    Ok(draft)
}

/// Mounts an image in order to change it behind everybody's back: no log, no marks, no orphans, no threads.
pub(crate) fn mount_unlogged(dev: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Arc<Filesystem>> {
    let mut sb = read_super_at(&*dev, 1024)?;
    sb.set_needs_recovery(false);
    if let MountMode::ReadOnly { reasons } = extant_ondisk::features::check(&sb)? {
        let detail = format!(
            "the log goes on in fast commits, which cannot be replayed because of: {}; let the kernel or e2fsck do it",
            reasons.join(", ")
        );
        return Err(Error::Unsupported(Unsupported::Journal { detail }));
    }
    sb.geometry().check_device_size(dev.size_bytes())?;
    let options = MountOptions { threads: false, discard: false, ..options.clone() };
    assemble(dev, sb, None, 0, options, false)
}

/// An image without a journal, about to be written: ends what a crash left of a borrowed one, and lends it one. True if
/// it has one now; why not is said.
fn lend_journal(
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

fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions, borrowed: &mut bool) -> Result<Arc<Filesystem>> {
    let Found { mut sb, backup } = find_super(&*dev)?;
    let mut read_only = options.read_only || options.no_recovery || dev.read_only();
    if let Some((block, primary)) = &backup {
        if !read_only {
            return Err(primary.clone().advised(&format!(
                "the backup superblock at block {block} is good: mount read-only (-o ro) to use it, or let \
                 e2fsck repair the image"
            )));
        }
        let name = dev.name();
        options
            .messages
            .say(format_args!("{name}: {primary}; using the backup superblock at block {block}, read-only"));
    }
    if let MountMode::ReadOnly { reasons } = extant_ondisk::features::check(&sb)?
        && !read_only
    {
        return Err(Error::Unsupported(Unsupported::Writing { reasons }));
    }
    sb.geometry().check_device_size(dev.size_bytes())?;
    let seed = options.seed.unwrap_or_else(|| {
        let t = options.clock.wall();
        (t.sec as u64) << 32 ^ u64::from(t.nsec) ^ u64::from(extant_base::task::process_id())
    });
    let mut has_journal = sb.compat().contains(Compat::HAS_JOURNAL);
    if !has_journal && !read_only {
        *borrowed = lend_journal(&dev, &mut sb, &options, &mut Rng::new(seed ^ 0x6a62_6432))?;
        has_journal = *borrowed;
    }
    let (dev, journal_file) = if has_journal && !options.no_recovery && backup.is_none() {
        recover(dev, &mut sb, &options, !read_only)?
    } else {
        (dev, None)
    };
    // As the kernel counts it (Linux: `ext4_calculate_overhead`). A borrowed journal is given back.
    let journal_blocks = journal_file.as_ref().filter(|_| !*borrowed).map_or(0, |j| j.super_block().max_len);
    // Replay may have brought other features.
    if let MountMode::ReadOnly { reasons } = extant_ondisk::features::check(&sb)? {
        if !read_only {
            return Err(Error::Unsupported(Unsupported::WritingAfterReplay { reasons }));
        }
        read_only = true;
    }
    let options = MountOptions { seed: Some(seed), ..options };
    let fs = assemble(dev, sb, journal_file, journal_blocks, options, read_only)?;
    if !read_only {
        mark_mounted(&fs)?;
        start_threads(&fs)?;
        if let Err(e) = clean_orphans(&fs) {
            fs.note_error(&e);
        }
    }
    let root = fs.root()?;
    if !root.is_dir() {
        return Err(Error::corrupt(Damage::Inode, "the root is no directory").of(InodeNr::ROOT));
    }
    Ok(fs)
}

/// Puts the parts of a mount together; `journal_file`, its log empty, is for mounts that write. `journal_blocks` are no
/// space of files.
fn assemble(
    dev: Arc<dyn BlockDevice>,
    sb: SuperBlock,
    journal_file: Option<JournalFile>,
    journal_blocks: u32,
    options: MountOptions,
    read_only: bool,
) -> Result<Arc<Filesystem>> {
    let seed = options.seed.unwrap_or_default();
    let geo = sb.geometry().clone();
    let budget = Budget::new(options.cache_bytes.max(8 << 20));
    let cache = BufferCache::new(dev.clone(), geo.block_size, geo.blocks_count, budget.clone());
    let groups = Arc::new(Groups::load(cache.clone(), geo.clone())?);

    let mut alloc_options = extant_mballoc::Options { policy: options.alloc_policy, ..Default::default() };
    let reserve = Reserve::new(&sb, &options);
    alloc_options.root_reserve = reserve.root_blocks;
    alloc_options.pool_reserve = reserve.pool_blocks;
    let geometry = extant_mballoc::Geometry {
        blocks_count: geo.blocks_count,
        first_data_block: geo.first_data_block,
        blocks_per_group: geo.blocks_per_group,
        cluster_bits: geo.cluster_bits,
        groups: geo.group_count(),
        flex_bg_size: geo.groups_per_flex.max(1),
        stripe: sb.raw().s_raid_stripe_width.get(),
        block_size: geo.block_size,
    };
    let mut alloc = Allocator::new(groups.clone(), geometry, &groups.summaries(), alloc_options)?;
    alloc.protect(groups.system_zones()?);
    alloc.protect(journal_zones(&*dev, &sb));

    let hooks = Arc::new(JournalHooks { fs: OnceLock::new() });
    let location = match (&journal_file, read_only) {
        (Some(file), false) => {
            let mut superblock = file.super_block().clone();
            if superblock.max_len < MIN_LOG_BLOCKS {
                // As the kernel: a transaction must fit a quarter of the log.
                return Err(Error::Unsupported(Unsupported::SmallJournal {
                    blocks: superblock.max_len,
                    least: MIN_LOG_BLOCKS,
                }));
            }
            if superblock.v2 {
                if geo.bit64 {
                    superblock.incompat.insert(extant_ondisk::jbd2::IncompatFeatures::BIT64);
                }
                superblock.set_csum(if geo.metadata_csum { LogCsum::V3 } else { superblock.csum() });
            }
            Some(LogLocation { superblock, blocks: Arc::new(file.map().blocks().collect()) })
        }
        _ => None,
    };
    let has_log = location.is_some();
    let lent = has_log && journal_file.as_ref().is_some_and(|j| j.super_block().is_borrowed());
    let journal = Journal::open(
        cache.clone(),
        location,
        hooks.clone(),
        extant_journal::Options {
            clock: options.clock.clone(),
            commit_interval_ns: u64::from(options.commit_interval_s.max(1)) * 1_000_000_000,
            pinned_bytes_max: budget.limit() / 4,
            threaded: options.threads && !read_only,
        },
    )?;
    let flusher = Flusher::new(
        options.clock.clone(),
        FlusherOptions {
            background_bytes: budget.limit() / 4,
            limit_bytes: budget.limit() / 2,
            expire_ns: 5_000_000_000,
        },
    );
    let on_error = options.errors.unwrap_or(match sb.error_behaviour() {
        ErrorBehaviour::Continue => OnError::Continue,
        _ => OnError::RemountReadOnly,
    });
    let (_, free_inodes) = groups.totals();
    let overhead = geo.overhead_blocks() + u64::from(journal_blocks);
    let es = EsCache::new(options.es_policy, options.clock.clone(), Some(budget.clone()));
    let new_extents = sb.incompat().contains(Incompat::EXTENTS);
    let inline_data = Filesystem::has_inline_data(&sb);
    let fs = Arc::new_cyclic(|me: &Weak<Filesystem>| Filesystem {
        me: me.clone(),
        sb_place: sb.primary_location(),
        hash: HashSettings::of(&sb),
        own_inodes: OwnInodes::of(&sb),
        was_clean: sb.state().contains(FsState::VALID),
        sb: Mutex::new(&filesystem::SUPER_CLASS, sb),
        inodes: InodeTable::new(budget.clone()),
        es,
        inode_hints: (0..geo.group_count()).map(|_| AtomicU32::new(0)).collect(),
        free_inodes: AtomicI64::new(free_inodes as i64),
        dev,
        geo,
        budget,
        cache,
        groups,
        alloc,
        reserve,
        journal,
        has_log,
        borrowed: lent,
        flusher,
        orphans: Orphans::new(),
        renames: Mutex::new(&filesystem::RENAME_CLASS, ()),
        state: MountState::new(read_only),
        gate: Gate::new(),
        errors_unwritten: AtomicBool::new(false),
        errors_unlogged: AtomicBool::new(false),
        on_error,
        evictions: Mutex::new(&filesystem::EVICT_CLASS, VecDeque::new()),
        evict_work: Condvar::new(),
        evict_idle: Condvar::new(),
        evicting: AtomicU32::new(0),
        evicted: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
        errors: ErrorSequence::default(),
        completed: Completed::new(),
        threads: Threads::new(),
        random: AtomicU64::new(seed),
        new_extents,
        inline_data,
        overhead,
        buddy_bytes: AtomicUsize::new(0),
        shared_xattr: Mutex::new(&filesystem::XATTR_CLASS, ()),
        stats: Default::default(),
        options,
    });
    let _ = hooks.fs.set(Arc::downgrade(&fs));
    let weak = Arc::downgrade(&fs);
    let shrinker: Weak<dyn Shrinker> = weak;
    fs.budget.register(shrinker);
    Ok(fs)
}

/// Tells the image that it is in use: durable before the first change.
fn mark_mounted(fs: &Filesystem) -> Result<()> {
    let mut sb = fs.sb.lock();
    let count = sb.mount_count();
    sb.set_mount_count(count.saturating_add(1));
    sb.set_mount_time(fs.now().seconds);
    if let Some(dir) = &fs.options.mounted_on {
        sb.set_last_mounted(dir.as_bytes());
    }
    fs.mark_in_use(&mut sb)?;
    // The cache may have read the block meanwhile.
    let buffer = fs.cache.get(fs.sb_place.0)?;
    let at = fs.sb_place.1;
    let mut inner = buffer.lock();
    sb.encode_into(&mut Arc::make_mut(&mut inner.data)[at..at + SUPERBLOCK_SIZE]);
    Ok(())
}

fn start_threads(fs: &Arc<Filesystem>) -> Result<()> {
    if !fs.options.threads {
        return Ok(());
    }
    let start = |name: &'static str, body: Box<dyn FnOnce() + Send>| {
        let weak = Arc::downgrade(fs);
        // One that dies half-way takes the mount's promises with it: nobody may wait for what it had in hand.
        let watched = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                if let Some(fs) = weak.upgrade() {
                    fs.abort("a thread of the mount panicked");
                }
                resume_unwind(panic);
            }
        };
        fs.threads.start(name, watched)
    };
    let journal = fs.journal.clone();
    start("extant-journal", Box::new(move || journal.run()))?;
    let weak = Arc::downgrade(fs);
    let retire = move || while weak.upgrade().is_some_and(|fs| fs.retire_step(STEP)) {};
    start("extant-retire", Box::new(retire))?;
    let weak = Arc::downgrade(fs);
    let evict = move || while weak.upgrade().is_some_and(|fs| fs.eviction_step(STEP)) {};
    start("extant-evict", Box::new(evict))?;
    let flusher = fs.flusher.clone();
    start("extant-flush", Box::new(move || flusher.run()))
}

/// How long a thread waits for work before it looks whether the file system is still there.
const STEP: Duration = Duration::from_millis(100);

/// Deletes inodes that were unlinked but open, and finishes truncations, from before the crash.
fn clean_orphans(fs: &Arc<Filesystem>) -> Result<()> {
    let (head, damaged) = {
        let sb = fs.sb.lock();
        (sb.last_orphan(), sb.state().contains(FsState::ERROR))
    };
    if damaged {
        // As the kernel: the list of a damaged file system is not to be trusted.
        if head.is_some() {
            fs.transact(1, |h| fs.modify_superblock(h, |sb| sb.set_last_orphan(None)))?;
        }
        return Ok(());
    }
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut next = head;
    while let Some(ino) = next {
        if !fs.geo.contains_inode(ino) || !seen.insert(ino) {
            return Err(Error::corrupt(Damage::Orphans, format!("on the list after {} others", chain.len())).of(ino));
        }
        let inode = fs.iget_orphan(ino)?;
        next = match inode.meta.read().desc.dtime {
            0 => None,
            n => Some(InodeNr(n)),
        };
        chain.push(inode);
    }
    let mut slots = Vec::new();
    if let Some(file) = fs.read_orphan_file()? {
        fs.orphans.use_file(file.seed, file.blocks, orphan::slots_per_block(fs.geo.block_size as usize) as u32);
        slots = file.used;
    }
    fs.orphans.adopt_list(&chain);
    let mut work = chain;
    for (block, slot, ino) in slots {
        if !fs.geo.contains_inode(ino) || !seen.insert(ino) {
            return Err(Error::corrupt(Damage::Orphans, "in the orphan file, wrongly").of(ino));
        }
        fs.orphans.adopt_slot(ino, block, slot);
        work.push(fs.iget_orphan(ino)?);
    }
    for inode in work {
        if inode.links() == 0 {
            drop(inode); // the last reference: queued for eviction
        } else {
            fs.finish_truncate(&inode)?;
        }
    }
    fs.drain_evictions();
    Ok(())
}

/// Re-exported for tools that only want to look.
pub fn probe_superblock(dev: &dyn BlockDevice) -> Result<(SuperBlock, Option<u64>)> {
    let f = find_super(dev)?;
    let backup = f.backup.map(|(b, _)| b);
    Ok((f.sb, backup))
}
