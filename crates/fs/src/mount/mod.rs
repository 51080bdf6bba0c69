//! Mounting (Linux: `ext4_fill_super`, fs/ext4/super.c).
//!
//! The body of the function `mount` below shows the order of a mount. Its steps are in `copies.rs` (whether the file
//! system can be mounted, and from which copies of its metadata), `recover.rs` (cleaning up after a crash, and choosing
//! the journal) and `threads.rs`. The counterpart is `unmount.rs`. Each step leaves an image from which the next mount,
//! the kernel or e2fsck can continue. A crash between two steps is like a crash during the replay, or like a crash of
//! an image that is marked as needing recovery.
//!
//! Main type: `Parts`, the results of the steps, from which the mounted [`Filesystem`] is made.
//!
//! # Locking
//! None: no other thread uses the file system yet.

pub mod borrow;
pub mod copies;
pub mod draft;
mod fast_commit;
pub(crate) mod mmp;
mod patched;
mod recover;
pub mod super_block;
pub mod unmount;

use std::sync::{Arc, OnceLock, Weak};

use extant_base::rng::Rng;
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_block::BlockDevice;
use extant_cache::{Budget, BufferCache, Shrinker};
use extant_journal::Journal;
use extant_mballoc::Allocator;
use extant_ondisk::features::{Compat, Incompat, MountMode, RoCompat};
use extant_ondisk::superblock::{ErrorBehaviour, FsState, SuperBlock};
use extant_ondisk::{BlockNr, InodeNr};

use extant_recovery::JournalFile;

use crate::clusters::{BlockAllocator, ClusterSize};
use crate::error::{Damage, Error, Result, Unsupported};
use crate::error_log::ErrorLog;
use crate::evictions::Evictions;
use crate::fast_commit::suits;
use crate::filesystem::{self, Filesystem};
use crate::groups::{Groups, journal_zones};
use crate::hash_settings::HashSettings;
use crate::heart::Heart;
use crate::inode::InodeRef;
use crate::inode_table::InodeTable;
use crate::journal_hooks::JournalHooks;
use crate::lifecycle::Lifecycle;
use crate::maps::Maps;
use crate::mount::copies::Copies;
use crate::mount::recover::{Use, clean_orphans, lend_journal, log_of, read_orphan_file, recover};
use crate::mount::super_block::{check_after_replay, read_super_at};
use crate::mount::unmount::Mounted;
use crate::options::{CACHE_BYTES_MIN, COMMIT_INTERVAL_S, MountOptions, OnError};
use crate::orphan::Orphans;
use crate::own_inodes::OwnInodes;
use crate::placement::Placement;
use crate::quota::Quotas;
use crate::rescue::state::Rescue;
use crate::reserve::Reserve;
use crate::threads::Threads;
use crate::volume::{self, Volume};
use crate::writeback::asks::ASKS_CLASS;
use crate::writeback::batch::COMPLETED_CLASS;
use crate::writeback::state::Writeback;
use extant_es::EsCache;

/// Distinguishes the random numbers of a borrowed journal from those of the mount: "jbd2".
const BORROW_SEED: u64 = 0x6a62_6432;

impl Filesystem {
    /// Mounts the file system on `dev`.
    ///
    /// # Errors
    /// The message begins with the image's name. The device has no ext file system, a feature is not supported (it is
    /// named), the image is damaged, or the device is too small. Nothing has been written then, except by a replay.
    pub fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
        let image = dev.name().to_owned();
        let mut borrowed = false;
        let dev = options.queue_for(dev);
        let result = mount(dev.clone(), options, &mut borrowed);
        if result.is_err() && borrowed {
            let _ = borrow::undo(&dev);
        }
        result.map(Mounted::new).map_err(|e| Error::Mount { image, source: Box::new(e) })
    }
}

/// `borrowed` is set once the image has borrowed a journal. If the mount then fails, the caller removes the journal.
fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions, borrowed: &mut bool) -> Result<Arc<Filesystem>> {
    // During the mount of an image under rescue, all messages report damage. They are counted for programs that need
    // the number.
    let said = Arc::new(AtomicU64::new(0));
    let options = match options.rescue {
        true => MountOptions { messages: options.messages.clone().counted(said.clone()), ..options },
        false => options,
    };
    // Find the superblock, or a backup for a read-only mount, and check that the image can be mounted as requested.
    let read_only = options.read_only || options.no_recovery || options.rescue || dev.read_only();
    let copies = Copies::find(&*dev, options.superblock, options.rescue)?;
    copies.check(&*dev, read_only, &options.messages)?;
    let seed = seed_of(&options);
    let options = MountOptions { seed: Some(seed), ..options };
    if read_only {
        let fs = begun(open_for_reading(&copies, dev, options)?, true)?;
        if fs.options.rescue {
            fs.stats.errors.add(said.load(Ordering::Relaxed));
        }
        return Ok(fs);
    }
    open_for_writing(&copies, dev.clone(), options, borrowed).map_err(|e| copies.advise(dev, e))
}

/// Mounts an image for changes, unless another host uses it.
fn open_for_writing(
    copies: &Copies,
    dev: Arc<dyn BlockDevice>,
    options: MountOptions,
    borrowed: &mut bool,
) -> Result<Arc<Filesystem>> {
    let protected = mmp::protect(&*dev, &copies.sb, &options)?;
    let opened = open_protected(copies, dev.clone(), options, borrowed);
    match (opened, protected) {
        (Ok(fs), Some(protected)) => Heart::start(&fs.volume, protected).map(|()| fs),
        (Err(e), Some(protected)) => {
            protected.give_up(&*dev, &copies.sb);
            Err(e)
        }
        (opened, None) => opened,
    }
}

/// As [`open_for_writing`], once it is certain that no other host uses the image.
fn open_protected(
    copies: &Copies,
    dev: Arc<dyn BlockDevice>,
    options: MountOptions,
    borrowed: &mut bool,
) -> Result<Arc<Filesystem>> {
    let mut sb = copies.sb.clone();

    // If the image has no journal, borrow one. From here on the image is like any other.
    let mut has_journal = sb.compat().contains(Compat::HAS_JOURNAL);
    if !has_journal {
        *borrowed = lend_journal(&dev, &mut sb, &options, &mut Rng::new(seed_of(&options) ^ BORROW_SEED))?;
        has_journal = *borrowed;
    }

    // Replay the last mount's log; afterwards `sb` is the replayed superblock.
    let (dev, journal_file) = match has_journal {
        true => recover(dev, &mut sb, &options, Use::Write)?,
        false => (dev, None),
    };
    check_after_replay(&sb, &*dev, false, &copies.sb)?;
    let options = options.with_defaults_of(&sb, dev.name());
    begun(assemble(dev, sb, journal_file, *borrowed, options, false)?, false)
}

/// Mounts an image for reading only: intact copies replace damaged metadata.
fn open_for_reading(copies: &Copies, dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Arc<Filesystem>> {
    let (mut dev, mut sb) = (dev, copies.sb.clone());
    // If the image is intact, its copies are not read.
    let (mut examined, mut patched) = (copies.are_needed(&*dev), false);
    if examined {
        let with_copies = copies.examine(dev, &mut sb, &options.messages)?;
        (dev, patched) = (with_copies.dev, with_copies.patched);
    }
    loop {
        let opened = open_replayed(copies, dev.clone(), sb.clone(), options.clone(), patched);
        match opened {
            Err(e) if !examined && (e.is_corruption() || matches!(e, Error::Device(_))) => {
                let with_copies = copies.examine(dev, &mut sb, &options.messages)?;
                if !with_copies.patched {
                    return Err(e);
                }
                (dev, examined, patched) = (with_copies.dev, true, true);
            }
            opened => return opened,
        }
    }
}

/// One attempt of [`open_for_reading`], on a view of the device in which the log is replayed. `patched` is true if
/// copies replace damaged metadata in that view.
fn open_replayed(
    copies: &Copies,
    dev: Arc<dyn BlockDevice>,
    mut sb: SuperBlock,
    options: MountOptions,
    patched: bool,
) -> Result<Arc<Filesystem>> {
    let before = sb.clone();
    let (mut view, mut journal_file) = (dev.clone(), None);
    if sb.compat().contains(Compat::HAS_JOURNAL) && !options.no_recovery {
        let usage = if copies.backup.is_some() { Use::ReadOfBackup } else { Use::Read };
        (view, journal_file) = match recover(dev.clone(), &mut sb, &options, usage) {
            Ok(recovered) => recovered,
            // The log is damaged, or the structures that show whether it needs replay.
            Err(e) if options.rescue || copies.backup.is_some() => {
                let (name, has_log) = (dev.name(), sb.needs_recovery() || usage == Use::ReadOfBackup);
                let lost = if has_log { "and its changes are missing" } else { "and need not be" };
                options.messages.say(format_args!("{name}: {e}; the log is not replayed, {lost}"));
                (dev, None)
            }
            Err(e) => return Err(e),
        };
    }
    if !options.rescue {
        check_after_replay(&sb, &*view, true, &before)?;
    }
    let options = options.with_defaults_of(&sb, view.name());
    let (mut parts, hooks) = gather(view, sb, journal_file, false, options, true)?;
    let encrypts = parts.sb.incompat().contains(Incompat::ENCRYPT);
    parts.rescue = parts.options.rescue.then(|| Rescue::new(!patched, encrypts));
    Ok(parts.assemble(&hooks))
}

/// Makes the mount ready for use. If a step fails, the mount is cut off.
fn begun(fs: Arc<Filesystem>, read_only: bool) -> Result<Arc<Filesystem>> {
    match begin(&fs, read_only) {
        Ok(()) => Ok(fs),
        Err(e) => {
            // End the mount's threads, because the next mount may follow immediately.
            fs.cut_off();
            Err(e)
        }
    }
}

/// Begins a mount. For writing, this first marks the image as in use, durably, before any change. Then it starts the
/// threads. Only then does it delete the orphans of a crash, which changes the image like any other operation.
fn begin(fs: &Arc<Filesystem>, read_only: bool) -> Result<()> {
    if !read_only {
        // The kernel does not mount an image with a damaged orphan file. Nothing has been changed yet.
        let orphan_file = read_orphan_file(fs).map_err(|e| {
            e.advised("mount read-only (-o ro) to read the image, or let e2fsck make the orphan file anew")
        })?;
        fs.quotas.load(&**fs)?;
        fs.mark_mounted()?;
        fs.start_threads()?;
        clean_orphans(fs, orphan_file)?;
    }
    let root = match fs.root() {
        Ok(root) if !root.is_dir() => {
            Err(Error::corrupt(Damage::Inode, "the root is not a directory").of(InodeNr::ROOT))
        }
        root => root.map(drop),
    };
    match (root, &fs.rescue) {
        (Err(e), Some(rescue)) => {
            let image = fs.image();
            fs.options.messages.say(format_args!("{image}: {e}; what is left is in /lost+found"));
            rescue.replace_root(fs);
            Ok(())
        }
        (root, _) => root,
    }
}

/// Mounts an image for changes without a log, without marking it as in use, and without orphans or threads.
pub(crate) fn mount_unlogged(dev: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Arc<Filesystem>> {
    let mut sb = read_super_at(&*dev, 1024)?;
    sb.set_needs_recovery(false);
    let mode = match extant_ondisk::features::check(&sb)? {
        // Fast commits do not contain the usage of owners.
        MountMode::ReadWrite if sb.ro_compat().contains(RoCompat::QUOTA) => {
            MountMode::ReadOnly { reasons: vec!["quota".into()] }
        }
        // Fast commits do not show which blocks of a freed cluster are in use.
        MountMode::ReadWrite if sb.ro_compat().contains(RoCompat::BIGALLOC) => {
            MountMode::ReadOnly { reasons: vec!["bigalloc".into()] }
        }
        // Fast commits do not show that the attribute 'system.data' was removed when content moved to blocks.
        MountMode::ReadWrite if sb.incompat().contains(Incompat::INLINE_DATA) => {
            MountMode::ReadOnly { reasons: vec!["inline_data".into()] }
        }
        mode => mode,
    };
    if let MountMode::ReadOnly { reasons } = mode {
        let detail = format!(
            "the log continues in fast commits, which cannot be replayed because of: {}; let the kernel or e2fsck do it",
            reasons.join(", ")
        );
        return Err(Error::Unsupported(Unsupported::Journal { detail }));
    }
    sb.geometry().check_device_size(dev.size_bytes())?;
    let options = MountOptions { threads: false, discard: Some(false), ..options.clone() };
    assemble(dev, sb, None, false, options, false)
}

/// Creates the parts of a mount as [`gather`] does, and assembles them.
fn assemble(
    dev: Arc<dyn BlockDevice>,
    sb: SuperBlock,
    journal_file: Option<JournalFile>,
    borrowed: bool,
    options: MountOptions,
    read_only: bool,
) -> Result<Arc<Filesystem>> {
    let (parts, hooks) = gather(dev, sb, journal_file, borrowed, options, read_only)?;
    Ok(parts.assemble(&hooks))
}

/// Creates the parts of a mount. `journal_file`, whose log is empty, is for mounts that write. `borrowed` is true if
/// this mount has just added the journal.
fn gather(
    dev: Arc<dyn BlockDevice>,
    sb: SuperBlock,
    journal_file: Option<JournalFile>,
    borrowed: bool,
    options: MountOptions,
    read_only: bool,
) -> Result<(Parts, Arc<JournalHooks>)> {
    // Caches, group descriptors, the allocator.
    let geo = sb.geometry().clone();
    let own = || Budget::with_policy(options.cache_bytes.max(CACHE_BYTES_MIN), options.reclaim_policy);
    let budget = options.budget.clone().unwrap_or_else(own);
    let cache = BufferCache::new(dev.clone(), geo.block_size, geo.blocks_count, budget.clone());
    let groups = Arc::new(Groups::load(cache.clone(), geo.clone(), options.rescue)?);
    let reserve = Reserve::new(&sb, &options);
    let alloc = allocator(&groups, &*dev, &sb, &reserve, &options)?;

    // The journal, whose log is empty now.
    let location = match &journal_file {
        Some(file) if !read_only => Some(log_of(file, &geo)?),
        _ => None,
    };
    let has_log = location.is_some();
    let hooks = Arc::new(JournalHooks::default());
    // A journal of another disk, or one that is only borrowed, has none: no test replays them there.
    let own_log = journal_file.as_ref().is_some_and(|j| !j.is_external() && !j.super_block().is_borrowed());
    let fast_commits = options.fast_commits && own_log && suits(&sb);
    let journal_options = journal_options(&options, &budget, read_only, fast_commits, sb.primary_location().0);
    let journal = Journal::open(cache.clone(), location, hooks.clone(), journal_options)?;
    // A borrowed journal, of this mount or of one that crashed, is removed at the unmount.
    let journal_super = journal_file.as_ref().map(|j| j.super_block());
    let lent = has_log && journal_super.is_some_and(|j| j.is_borrowed());
    // The overhead is computed as in the kernel (Linux: `ext4_calculate_overhead`).
    let is_inside = !borrowed && journal_file.as_ref().is_some_and(|j| !j.is_external());
    let journal_blocks = journal_super.filter(|_| is_inside).map_or(0, |j| j.max_len);
    let overhead = geo.overhead_blocks() + u64::from(journal_blocks);
    let placement = Arc::new(Placement::new(groups, alloc, reserve, overhead, cache.clone(), budget.clone()));

    let rescue = None;
    let parts = Parts { dev, sb, options, read_only, budget, cache, placement, journal, has_log, lent, rescue };
    Ok((parts, hooks))
}

/// The seed of the mount's random number generator.
fn seed_of(options: &MountOptions) -> u64 {
    options.seed.unwrap_or_else(|| {
        let t = options.clock.wall();
        (t.sec as u64) << 32 ^ u64::from(t.nsec) ^ u64::from(extant_base::task::process_id())
    })
}

/// The allocator, which avoids the file system's own blocks.
fn allocator(
    groups: &Arc<Groups>,
    dev: &dyn BlockDevice,
    sb: &SuperBlock,
    reserve: &Reserve,
    options: &MountOptions,
) -> Result<BlockAllocator> {
    let zones = match journal_zones(dev, sb) {
        // Such a mount writes nothing, so it continues without the zones.
        Err(Error::Device(_)) if options.no_recovery || options.rescue => Vec::new(),
        zones => zones?,
    };
    let geo = sb.geometry();
    let size = ClusterSize::new(geo.cluster_bits);
    let geometry = extant_mballoc::Geometry {
        blocks_count: size.for_blocks(geo.blocks_count),
        // If clusters have several blocks, the first data block is always 0.
        first_data_block: geo.first_data_block,
        blocks_per_group: geo.clusters_per_group,
        cluster_bits: geo.cluster_bits,
        groups: geo.group_count(),
        flex_bg_size: geo.groups_per_flex.max(1),
        stripe: size.of(sb.raw().s_raid_stripe_width.get().into()) as u32,
        block_size: geo.block_size,
    };
    let defaults = extant_mballoc::Options::default();
    let options = extant_mballoc::Options {
        policy: options.alloc_policy,
        meta_policy: options.meta_policy,
        locality_groups: options.locality_groups,
        root_reserve: size.for_blocks(reserve.root_blocks()),
        pool_reserve: size.for_blocks(reserve.pool_blocks()),
        // Linux: `ext4_mb_init`.
        group_prealloc: (defaults.group_prealloc >> geo.cluster_bits).max(32),
        stream_request: (defaults.stream_request >> geo.cluster_bits).max(1),
        ..defaults
    };
    let summaries = groups.summaries(sb.incompat().contains(Incompat::EXTENTS));
    let mut alloc = BlockAllocator::new(Allocator::new(groups.clone(), geometry, &summaries, options)?);
    alloc.protect(groups.system_zones()?);
    alloc.protect(zones);
    if size.offset(geo.blocks_count) != 0 {
        // The last cluster is incomplete; protect it, because some of its blocks do not exist.
        alloc.protect([(BlockNr(geo.blocks_count - 1), 1)]);
    }
    Ok(alloc)
}

/// The options of the mount that concern the journal.
fn journal_options(
    options: &MountOptions,
    budget: &Budget,
    read_only: bool,
    fast_commits: bool,
    superblock: BlockNr,
) -> extant_journal::Options {
    extant_journal::Options {
        clock: options.clock.clone(),
        commit_interval_ns: u64::from(options.commit_interval_s.unwrap_or(COMMIT_INTERVAL_S).max(1)) * 1_000_000_000,
        pinned_bytes_max: budget.limit() / 4,
        checkpoint_blocks: options.checkpoint_blocks,
        fast_commits,
        superblock: Some(superblock),
        threaded: options.threads && !read_only,
    }
}

/// The results of the steps of a mount.
struct Parts {
    dev: Arc<dyn BlockDevice>,
    sb: SuperBlock,
    options: MountOptions,
    read_only: bool,
    budget: Arc<Budget>,
    cache: Arc<BufferCache>,
    placement: Arc<Placement>,
    journal: Arc<Journal>,
    has_log: bool,
    lent: bool,
    rescue: Option<Rescue<InodeRef>>,
}

impl Parts {
    /// Creates the file system, idle and with empty caches, and registers it with the journal and the budget.
    fn assemble(self, hooks: &JournalHooks) -> Arc<Filesystem> {
        let Parts { sb, options, budget, placement, .. } = self;
        let geo = sb.geometry().clone();
        let on_error = options.errors.unwrap_or(match sb.error_behaviour() {
            ErrorBehaviour::Continue => OnError::Continue,
            _ => OnError::RemountReadOnly,
        });
        let writeback = Writeback::new(
            &options,
            budget.clone(),
            self.dev.clone(),
            geo.inodes_per_group,
            [&ASKS_CLASS, &COMPLETED_CLASS],
        );
        let volume = Volume {
            sb_place: sb.primary_location(),
            hash: HashSettings::of(&sb),
            own_inodes: OwnInodes::of(&sb),
            was_clean: sb.state().contains(FsState::VALID),
            new_extents: sb.incompat().contains(Incompat::EXTENTS),
            inline_data: sb.incompat().contains(Incompat::INLINE_DATA),
            sb: Mutex::new(&volume::SUPER_CLASS, sb),
            es: Arc::new(EsCache::new(options.es_policy, options.clock.clone(), Some(budget.clone()))),
            dev: self.dev,
            geo: placement.geo.clone(),
            budget,
            cache: self.cache,
            placement,
            journal: self.journal,
            has_log: self.has_log,
            borrowed: self.lent,
            lifecycle: Lifecycle::new(self.read_only),
            error_log: ErrorLog::new(),
            on_error,
            threads: Threads::new(),
            random: AtomicU64::new(options.seed.unwrap_or_default()),
            growth: Mutex::new(&volume::GROWTH_CLASS, ()),
            is_rescue: self.rescue.is_some(),
            charged: AtomicU64::new(0),
            quota_credits: AtomicU32::new(0),
            heart: OnceLock::new(),
            stats: Default::default(),
            options,
        };
        let volume = Arc::new(volume);
        let fs = Arc::new_cyclic(|me: &Weak<Filesystem>| Filesystem {
            me: me.clone(),
            inodes: InodeTable::new(volume.budget.clone()),
            orphans: Arc::new(Orphans::new(volume.clone())),
            renames: Mutex::new(&filesystem::RENAME_CLASS, ()),
            evictions: Evictions::new(),
            writeback,
            rescue: self.rescue,
            shared_xattr: Arc::default(),
            shared_values: Default::default(),
            maps: Maps { quotas: Quotas::new(volume.clone()), volume },
        });
        hooks.connect(&fs.volume, &fs.orphans);
        // Structures that grow with the disk are always in memory. The caches get the rest, but at least half of the
        // budget.
        let fixed = fs.placement.fixed_bytes().min(fs.budget.limit() / 2);
        fs.budget.charge(fixed);
        fs.charged.fetch_add(fixed, Ordering::Relaxed);
        let buddies = Arc::downgrade(&fs.placement);
        let buddies: Weak<dyn Shrinker> = buddies;
        fs.budget.register(buddies);
        fs.inodes.set_owner(fs.me.clone());
        let es = Arc::downgrade(&fs.es);
        let es: Weak<dyn Shrinker> = es;
        fs.budget.register(es);
        fs
    }
}
