//! Blocks are written home in steps beside the commits: one thread, no fault, late home writes, power cuts after each
//! event and during each.
//!
//! The log of 1,024 blocks is filled several times. One block is changed by each transaction, others are changed in
//! turn. Further blocks are created, freed after a few or after hundreds of transactions, and written as data as soon
//! as they may be reused. After a power cut anywhere, replay gives the state of some transaction, not older than the
//! newest acknowledged one, and never an old copy over the data.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::device::{Catch, CrashDevice, CrashMode, HeldDevice, MemDevice};
use extant_block::queue::{Queue, TagConfig};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_cache::{Budget, BufKind, BufferCache};
use extant_journal::{Error, Hooks, Journal, LogLocation, Options};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};
use extant_recovery::{Accept, JournalFile, JournalMap, Replay};

const BLOCK: u32 = 1024;
const BS: u64 = BLOCK as u64;
const LOG: u64 = 64;
const LOG_BLOCKS: u32 = 1024;
const DEVICE_BLOCKS: u64 = 16_384;
/// A block that every transaction changes.
const HOT: u64 = 2048;
/// Blocks that transactions change in turn.
const COLD: u64 = 2100;
const COLDS: u64 = 300;
/// Blocks that one transaction creates and a later one frees; then they are used for data.
const PASSING: u64 = 4096;
const DATA: u64 = u64::MAX;

/// Writes data to freed blocks at once.
struct Reuse {
    dev: Arc<dyn BlockDevice>,
    released: AtomicBool,
}

impl Hooks for Reuse {
    fn released(&self, freed: Vec<(BlockNr, u32)>) {
        self.released.store(true, Ordering::SeqCst);
        for (block, len) in freed {
            assert_eq!(len, 1, "a transaction frees one block");
            self.dev.write_at(block.0 * BS, &[&image(DATA)], BioFlags::empty()).expect("written");
        }
    }
    fn aborted(&self, error: &Error) {
        panic!("aborted: {error}");
    }
}

fn image(value: u64) -> [u8; BLOCK as usize] {
    let mut bytes = [0; BLOCK as usize];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    bytes
}

/// The value in a block; `None`: the block is torn.
fn value_of(dev: &dyn BlockDevice, block: u64) -> Option<u64> {
    let mut bytes = [0; BLOCK as usize];
    dev.read_at(block * BS, &mut bytes, BioFlags::empty()).expect("read");
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    (bytes == image(value)).then_some(value)
}

fn value_at(dev: &dyn BlockDevice, block: u64) -> u64 {
    value_of(dev, block).unwrap_or_else(|| panic!("block {block} is torn"))
}

fn log_blocks() -> Vec<BlockNr> {
    (0..u64::from(LOG_BLOCKS)).map(|b| BlockNr(b + LOG)).collect()
}

fn location() -> LogLocation {
    LogLocation {
        superblock: fresh(),
        map: Arc::new(JournalMap::from_blocks(&log_blocks()).expect("map")),
        external: None,
    }
}

fn options() -> Options {
    Options {
        clock: Clock::virtual_at(1_000),
        commit_interval_ns: 5_000_000_000,
        pinned_bytes_max: 16 << 20,
        checkpoint_blocks: None,
        fast_commits: false,
        superblock: None,
        threaded: false,
    }
}

struct Rig {
    cache: Arc<BufferCache>,
    hooks: Arc<Reuse>,
    journal: Arc<Journal>,
}

impl Rig {
    /// `dev` has a superblock in its log.
    fn new(dev: Arc<dyn BlockDevice>) -> Rig {
        let cache = BufferCache::new(dev.clone(), BLOCK, 16_384, Budget::new(64 << 20));
        let hooks = Arc::new(Reuse { dev, released: AtomicBool::new(false) });
        let journal = Journal::open(cache.clone(), Some(location()), hooks.clone(), options()).expect("opened");
        Rig { cache, hooks, journal }
    }

    /// Transaction `n` changes these blocks, creates one, and frees one.
    fn transact(&self, n: u64, changed: &[u64], created: Option<u64>, freed: Option<u64>) {
        let mut handle = self.journal.start(changed.len() as u32 + 1).expect("started");
        for &block in changed {
            let buffer = self.cache.get(BlockNr(block)).expect("read");
            handle.modify(&buffer, BufKind::Table, |b| b.copy_from_slice(&image(n)));
        }
        if let Some(block) = created {
            let buffer = handle.create(BlockNr(block), BufKind::Leaf).expect("created");
            handle.modify(&buffer, BufKind::Leaf, |b| b.copy_from_slice(&image(n)));
        }
        if let Some(block) = freed {
            handle.forget(BlockNr(block));
            handle.freed(BlockNr(block), 1);
        }
        handle.finish();
        self.journal.commit_running().expect("durable");
    }
}

fn fresh() -> JournalSuperBlock {
    JournalSuperBlock::create(BLOCK, LOG_BLOCKS, [7; 16], LogCsum::V3, true)
}

fn formatted() -> MemDevice {
    let dev = MemDevice::new(DEVICE_BLOCKS * BS);
    dev.write_at(LOG * BS, &[&fresh().encode()], BioFlags::empty()).expect("formatted");
    dev
}

/// The number of transactions after which a passing block is freed: at once, while it may be written home, and when
/// it is home.
fn lifetime(n: u64) -> u64 {
    [1, 2, 3, 40, 70, 75, 80, 85, 90, 120, 300][(n % 11) as usize]
}

#[test]
fn after_any_power_cut_replay_gives_a_transaction_and_no_old_copy() {
    const TRANSACTIONS: u64 = 900;
    let dev = Arc::new(CrashDevice::from_image(&formatted()).deferring().expect("thread"));
    let rig = Rig::new(dev.clone());
    let mut frees: HashMap<u64, u64> = HashMap::new();
    let mut acknowledged = vec![dev.write_log()];
    let colds = |n: u64| [COLD + 2 * n % COLDS, COLD + (2 * n + 1) % COLDS];
    // Half of them are changed once more before they are freed. That transaction may retire the copy from which the
    // change was made.
    let mut touched: HashMap<u64, u64> = HashMap::new();
    for n in 1..=TRANSACTIONS {
        let [a, b] = colds(n);
        let mut changed = vec![HOT, a, b];
        if let Some(block) = frees.get(&(n + 1)).filter(|block| *block % 2 == 0) {
            changed.push(*block);
            touched.insert(*block, n);
        }
        // One transaction frees one block: a second one lives one transaction longer.
        let mut end = n + lifetime(n);
        while frees.contains_key(&end) {
            end += 1;
        }
        frees.insert(end, PASSING + n);
        rig.transact(n, &changed, Some(PASSING + n), frees.get(&n).copied());
        acknowledged.push(dev.write_log());
    }
    let stats = &rig.journal.stats;
    assert!(stats.blocks.get() > 3 * u64::from(LOG_BLOCKS), "the log has wrapped");
    assert!(stats.checkpoints.get() > 20, "{} steps", stats.checkpoints.get());
    assert_eq!(stats.checkpoints_waited.get(), 0, "no thread waited for one");

    let free_at: HashMap<u64, u64> = frees.iter().map(|(at, block)| (*block, *at)).collect();
    let mut rng = Rng::new(8);
    let (mut cuts, mut behind) = (0, 0);
    for at in 0..=dev.write_log() {
        if !rng.one_in(8) {
            continue;
        }
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = Arc::new(match rng.one_in(2) {
                true => dev.state_after(at, &mut rng, mode).expect("state"),
                false => dev.state_during(at, &mut rng, mode).expect("state"),
            });
            let answered = acknowledged.partition_point(|events| *events <= at).saturating_sub(1) as u64;
            let map = JournalMap::from_blocks(&log_blocks()).expect("map");
            let mut journal = JournalFile::open(state.clone(), BLOCK, map).expect("journal");
            let replay = Replay::load(&journal, &*state, &mut |_| {}).expect("read");
            replay.apply(&mut journal, &*state, Accept::WholeOnly, &mut |_| {}).expect("replayed");

            let newest = value_at(&*state, HOT);
            assert!(newest >= answered, "cut at {at} ({mode:?}): {newest} is found, {answered} was acknowledged");
            for block in COLD..COLD + COLDS {
                let last = (0..=newest).rev().find(|n| *n > 0 && colds(*n).contains(&block)).unwrap_or(0);
                assert_eq!(value_at(&*state, block), last, "cut at {at} ({mode:?}): block {block} at {newest}");
            }
            for n in 1..=newest {
                let (block, free) = (PASSING + n, free_at[&(PASSING + n)]);
                let found = value_of(&*state, block);
                // Its data was written after the commit that freed it; the next commit's flush made it durable.
                let good = match free {
                    _ if free < answered => found == Some(DATA),
                    _ if free > newest => found == touched.get(&block).filter(|n| **n <= newest).or(Some(&n)).copied(),
                    _ => true,
                };
                assert!(good, "cut at {at} ({mode:?}): block {block}, freed by {free}, is {found:?} at {newest}");
                behind += u64::from(free < answered);
            }
            cuts += 1;
        }
    }
    assert!(cuts > 500 && behind > 10_000, "{cuts} cuts, {behind} blocks that are data");
    rig.journal.close().expect("closed");
}

#[test]
fn a_step_costs_no_flush_and_skips_blocks_that_change_all_the_time() {
    const TRANSACTIONS: u64 = 2_000;
    let dev = Arc::new(CrashDevice::from_image(&formatted()));
    let rig = Rig::new(dev.clone());
    for n in 1..=TRANSACTIONS {
        rig.transact(n, &[HOT, COLD + n % 20, COLD + 20 + n % 1500], None, None);
    }
    let stats = &rig.journal.stats;
    assert_eq!(stats.commits.get(), TRANSACTIONS);
    // A commit needs two flushes, one before its commit block and one for it. One superblock write is the log's
    // first.
    assert_eq!(dev.stats().flushes, 2 * TRANSACTIONS, "flushes of {TRANSACTIONS} commits");
    assert_eq!(stats.checkpoints_waited.get(), 0, "no thread waited for a step");
    let written = |block: u64| {
        let writes = dev.events();
        let home = |e: &&extant_block::device::CrashEvent| e.op == BioOp::Write && e.offset == block * BS;
        writes.iter().filter(home).count()
    };
    assert_eq!(written(HOT), 0, "its newer copy was in the log each time");
    assert_eq!((0..20).map(|b| written(COLD + b)).sum::<usize>(), 0, "their newer copies were in the log, too");
    let once = (20..1520).map(|b| written(COLD + b)).sum::<usize>() as u64;
    assert_eq!(once, stats.checkpoint_blocks.get());
    assert!(once > 1_500, "{once} blocks went home");
    rig.journal.close().expect("closed");
    assert_eq!(value_at(&*dev, HOT), TRANSACTIONS);
    for b in 0..1500 {
        let last = (1..=TRANSACTIONS).rev().find(|n| n % 1500 == b).unwrap_or(0);
        assert_eq!(value_at(&*dev, COLD + 20 + b), last, "block {b}");
    }
}

/// Blocks become old at different times; neighbours are written home in one request.
#[test]
fn old_neighbours_are_written_home_once_in_one_request() {
    let dev = Arc::new(CrashDevice::from_image(&formatted()));
    let rig = Rig::new(Arc::new(Queue::new(dev.clone(), TagConfig::default())));
    // Every fourth of 100 blocks, then those between them, then others until all of them must be home.
    const SIDE: u64 = 100;
    let each = [2, 0, 1, 3].into_iter().flat_map(|first| (first..SIDE).step_by(4));
    let others = (0..200).map(|n| 1000 + 2 * n);
    for (n, block) in each.chain(others).enumerate() {
        rig.transact(n as u64 + 1, &[COLD + block], None, None);
    }
    let side = COLD * BS..(COLD + SIDE) * BS;
    let events = dev.events();
    let home: Vec<_> = events.iter().filter(|e| e.op == BioOp::Write && side.contains(&e.offset)).collect();
    assert_eq!(home.iter().map(|e| e.len).sum::<u64>(), SIDE * BS, "each of them once");
    assert_eq!(home.len(), 1, "requests for {SIDE} adjacent blocks");
    rig.journal.close().expect("closed");
    assert_eq!(home.len(), dev.events().iter().filter(|e| e.op == BioOp::Write && side.contains(&e.offset)).count());
}

/// A block is being written home while the transaction that frees it commits. Data that reuses the block must not be
/// overwritten by the old copy.
#[test]
fn a_freed_block_waits_for_its_home_write_in_flight() {
    let held = Arc::new(HeldDevice::new(Arc::new(formatted())).expect("thread"));
    let dev: Arc<dyn BlockDevice> = held.clone();
    let rig = Rig::new(dev.clone());
    let home = (PASSING + 1) * BS;
    held.catch(Catch::hold().writes().meta().range(home..home + BS));
    rig.transact(1, &[HOT], Some(PASSING + 1), None);
    let mut n = 1;
    while held.held().is_empty() {
        n += 1;
        assert!(n < 1_000, "it was never written home");
        rig.transact(n, &[HOT, COLD + n], None, None);
    }
    let mut handle = rig.journal.start(1).expect("started");
    handle.forget(BlockNr(PASSING + 1));
    handle.freed(BlockNr(PASSING + 1), 1);
    handle.finish();
    let committed = std::thread::scope(|scope| {
        let commit = std::thread::Builder::new().spawn_scoped(scope, || rig.journal.commit_running()).expect("thread");
        std::thread::park_timeout(Duration::from_millis(200));
        assert!(!rig.hooks.released.load(Ordering::SeqCst), "released while its old copy is still in flight");
        held.clear();
        held.release_all();
        commit.join().expect("joined")
    });
    committed.expect("durable");
    assert!(rig.hooks.released.load(Ordering::SeqCst));
    assert_eq!(value_at(&*dev, PASSING + 1), DATA);
    rig.journal.close().expect("closed");
    assert_eq!(value_at(&*dev, PASSING + 1), DATA);
}

/// Large transactions fill the log before a step is done: the thread that needs the room waits for it, and everything
/// is home.
#[test]
fn large_transactions_wait_for_room() {
    let dev: Arc<dyn BlockDevice> = Arc::new(formatted());
    let rig = Rig::new(dev.clone());
    for n in 1..=40 {
        let blocks: Vec<u64> = (0..200).map(|b| COLD + (n * 77 + b) % 1_000).collect();
        rig.transact(n, &blocks, None, None);
    }
    assert!(rig.journal.stats.checkpoints_waited.get() > 0);
    rig.journal.close().expect("closed");
    for block in 0..1_000 {
        let last = (1..=40u64).rev().find(|n| (1_000 + block - n * 77 % 1_000) % 1_000 < 200).unwrap_or(0);
        assert_eq!(value_at(&*dev, COLD + block), last, "block {block}");
    }
}

/// Failing home writes stop the journal no later than the next commit; the log loses nothing.
#[test]
fn a_home_write_that_fails_stops_the_journal() {
    struct Told(OnceLock<String>);
    impl Hooks for Told {
        fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
        fn aborted(&self, error: &Error) {
            let _ = self.0.set(error.to_string()); // the first counts
        }
    }
    let held = Arc::new(HeldDevice::new(Arc::new(formatted())).expect("thread"));
    let cache = BufferCache::new(held.clone(), BLOCK, 16_384, Budget::new(64 << 20));
    let told = Arc::new(Told(OnceLock::new()));
    let journal = Journal::open(cache.clone(), Some(location()), told.clone(), options()).expect("opened");
    held.catch(Catch::fail(5).writes().range(COLD * BS..(COLD + COLDS) * BS));
    let mut answered = 0;
    for n in 1..1_000u64 {
        let Ok(mut handle) = journal.start(1) else { break };
        let buffer = cache.get(BlockNr(COLD + n % COLDS)).expect("read");
        handle.modify(&buffer, BufKind::Table, |b| b.copy_from_slice(&image(n)));
        handle.finish();
        if journal.commit_running().is_err() {
            break;
        }
        answered = n;
    }
    assert!((100..900).contains(&answered), "{answered} commits were acknowledged");
    assert!(journal.is_aborted());
    assert!(
        told.0.get().is_some_and(|why| why.contains("os error 5") || why.contains("Input/output")),
        "the abort has the cause"
    );
    held.clear();
    let map = JournalMap::from_blocks(&log_blocks()).expect("map");
    let dev: Arc<dyn BlockDevice> = held.clone();
    let journal = JournalFile::open(dev.clone(), BLOCK, map).expect("journal");
    let replay = Replay::load(&journal, &*dev, &mut |_| {}).expect("read");
    assert_eq!(replay.blocks.len() as u64, answered.min(COLDS), "all acknowledged blocks are in the log");
}
