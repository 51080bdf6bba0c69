//! The journal's group commit under `extant_base::sim`, which owns every lock, wait and thread.
//!
//! In each schedule, threads change blocks and wait for their transactions while the journal's own thread commits. A
//! waiter that was acknowledged must find its transaction committed and its bytes on the device. No thread may wait
//! for ever, which a run reports as a deadlock, or until a time-out ends a wait that a notification should have
//! ended. The journal's clock stands still, so nothing here depends on it. Some threads wait for the journal's
//! commits, some commit by themselves when no other thread waits. A caller that needs the log for a moment and finds
//! it held is notified when it is free.

use std::sync::{Arc, OnceLock, Weak};

use extant_base::clock::Clock;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_cache::{Budget, BufKind, BufferCache};
use extant_journal::{Durability, Error, Handle, Hooks, Journal, LogLocation, Options};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};
use extant_recovery::JournalMap;

const BLOCK: u32 = 1024;
const LOG_BLOCKS: u32 = 1024;
/// Home blocks begin behind the log.
const HOME: u64 = 2048;
const THREADS: u64 = 3;
const ROUNDS: u64 = 2;
/// Enough that nearly every run finds a race that one schedule in a thousand shows.
const SCHEDULES: u64 = 4_000;

/// Acts as a file system with errors that must be recorded in the superblock.
#[derive(Default)]
struct Notes {
    journal: OnceLock<Weak<Journal>>,
    unwritten: AtomicBool,
    may_abort: bool,
}

impl Notes {
    fn write(&self) {
        let journal = self.journal.get().and_then(Weak::upgrade);
        if let Some(journal) = journal.filter(|_| self.unwritten.load(Ordering::SeqCst)) {
            journal.alone(|| self.unwritten.store(false, Ordering::SeqCst));
        }
    }
}

impl Hooks for Notes {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
    fn aborted(&self, error: &Error) {
        assert!(self.may_abort, "aborted: {error}");
    }
    fn log_free(&self) {
        self.write();
    }
}

fn location() -> LogLocation {
    LogLocation {
        superblock: JournalSuperBlock::create(BLOCK, LOG_BLOCKS, [7; 16], LogCsum::V3, true),
        map: Arc::new(JournalMap::from_runs([(BlockNr(64), LOG_BLOCKS)]).expect("a map")),
        external: None,
    }
}

fn options() -> Options {
    Options {
        clock: Clock::virtual_at(1_000),
        commit_interval_ns: 5_000_000_000,
        pinned_bytes_max: 4 << 20,
        checkpoint_blocks: None,
        fast_commits: false,
        superblock: None,
        threaded: true,
    }
}

fn strategy(seed: u64) -> sim::Options {
    let strategy = match seed % 3 {
        0 => sim::Strategy::Random { preempt_permille: 30 },
        1 => sim::Strategy::Random { preempt_permille: 300 },
        _ => sim::Strategy::Priorities { changes: 3, steps: 400 },
    };
    sim::Options { strategy, ..sim::Options::new(seed) }
}

/// Runs one schedule; returns the counts of commits and waits.
fn group_commit(with_log: bool) -> (u64, u64) {
    let dev: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096 * u64::from(BLOCK)));
    let cache = BufferCache::new(dev.clone(), BLOCK, 4096, Budget::new(16 << 20));
    let journal =
        Journal::open(cache.clone(), with_log.then(location), Arc::<Notes>::default(), options()).expect("opened");
    let committer = {
        let journal = journal.clone();
        extant_base::task::spawn("journal", move || journal.run()).expect("thread")
    };
    let workers: Vec<_> = (0..THREADS)
        .map(|n| {
            let (journal, cache) = (journal.clone(), cache.clone());
            extant_base::task::spawn("worker", move || {
                for round in 1..=ROUNDS {
                    let buffer = cache.get(BlockNr(HOME + n)).expect("read");
                    let mut handle = journal.start(1).expect("started");
                    handle.modify(&buffer, BufKind::Table, |b| b[0] = round as u8);
                    let tid = handle.tid();
                    handle.finish();
                    let durable = match n {
                        0 => journal.commit_wait(Some(tid)),
                        _ => journal.commit_here(Some(tid), Durability::Full),
                    };
                    durable.expect("durable");
                    assert!(tid.is_at_or_before(journal.committed_tid()), "acknowledged before the commit");
                }
            })
            .expect("thread")
        })
        .collect();
    for w in workers {
        w.join().expect("worker");
    }
    journal.stop();
    committer.join().expect("journal thread");
    journal.close().expect("closed");
    for n in 0..THREADS {
        let mut byte = [0; BLOCK as usize];
        dev.read_at((HOME + n) * u64::from(BLOCK), &mut byte, Default::default()).expect("read");
        assert_eq!(u64::from(byte[0]), ROUNDS, "thread {n}'s last change is home");
    }
    (journal.stats.commits.get(), journal.stats.waits.get())
}

fn explore(with_log: bool) {
    let mut shared = 0;
    for seed in 0..SCHEDULES {
        let outcome = sim::run(&strategy(seed), move || group_commit(with_log));
        let (commits, waits) = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", outcome.trace));
        assert_eq!(outcome.virtual_ns, 0, "seed {seed}: only a time-out ended a wait\n{}", outcome.trace);
        assert!(waits == THREADS * ROUNDS && commits <= waits, "seed {seed}: {commits} commits for {waits} waits");
        shared += u64::from(commits < waits);
    }
    assert!(shared > 0, "no schedule had two waiters share a commit");
}

#[test]
fn no_thread_waits_for_ever_with_a_log() {
    explore(true);
}

#[test]
fn no_thread_waits_for_ever_without_a_log() {
    explore(false);
}

type Work = Box<dyn FnOnce(&Arc<Journal>) + Send>;

/// Threads commit, one meets an error and has it written, one aborts. When all have ended, the error is written,
/// whichever thread held the log, and the next mount finds that the journal was aborted.
fn notes() {
    let dev: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096 * u64::from(BLOCK)));
    let cache = BufferCache::new(dev.clone(), BLOCK, 4096, Budget::new(16 << 20));
    let hooks = Arc::new(Notes { may_abort: true, ..Notes::default() });
    let journal = Journal::open(cache.clone(), Some(location()), hooks.clone(), options()).expect("opened");
    hooks.journal.set(Arc::downgrade(&journal)).expect("once");
    let spawn = |f: Work| {
        let journal = journal.clone();
        extant_base::task::spawn("worker", move || f(&journal)).expect("thread")
    };
    let committer = spawn(Box::new(|journal| journal.run()));
    let commits = (0..2).map(|n| {
        let cache = cache.clone();
        spawn(Box::new(move |journal: &Arc<Journal>| {
            let buffer = cache.get(BlockNr(HOME + n)).expect("read");
            let Ok(mut handle) = journal.start(1) else { return };
            handle.modify(&buffer, BufKind::Table, |b| b[0] = 1);
            let tid = handle.tid();
            handle.finish();
            // The commit may come before or after the abort.
            let _ = journal.commit_here(Some(tid), Durability::Full);
            let _ = journal.commit_here(None, Durability::Full);
        }))
    });
    let mut threads: Vec<_> = commits.collect();
    let mine = hooks.clone();
    threads.push(spawn(Box::new(move |_| {
        mine.unwritten.store(true, Ordering::SeqCst);
        mine.write();
    })));
    threads.push(spawn(Box::new(|journal| journal.abort(&Error::Aborted { cause: "a test".to_owned() }))));
    threads.into_iter().for_each(|thread| thread.join().expect("thread"));
    journal.stop();
    committer.join().expect("journal thread");
    journal.wait_until_left();
    assert!(!hooks.unwritten.load(Ordering::SeqCst), "the error was not written");
    let mut block = [0; BLOCK as usize];
    dev.read_at(64 * u64::from(BLOCK), &mut block, Default::default()).expect("read");
    // `s_errno`, big-endian.
    assert_ne!(block[0x20..0x24], [0; 4], "the abort is not recorded for the next mount");
}

#[test]
fn errors_are_recorded_whichever_thread_holds_the_log() {
    for seed in 0..SCHEDULES {
        let outcome = sim::run(&strategy(seed), notes);
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", outcome.trace));
    }
}

/// Checks when a transaction closes that no handle is open, and that the handles' pairs of blocks are equal.
#[derive(Default)]
struct Pairs {
    cache: OnceLock<Arc<BufferCache>>,
    open: AtomicU64,
    closed: AtomicU64,
}

impl Hooks for Pairs {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
    fn aborted(&self, error: &Error) {
        // A failed assertion below aborts, too.
        assert!(std::thread::panicking(), "aborted: {error}");
    }
    fn closing(&self, handle: &mut Handle) -> Result<(), Error> {
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "a transaction closes while a handle is open");
        let cache = self.cache.get().expect("set before the first handle");
        for n in 0..THREADS {
            let [a, b] = [0, 1].map(|half| cache.get(BlockNr(HOME + 2 * n + half)).expect("read").read(|b| b[0]));
            assert_eq!(a, b, "half of a handle's changes");
        }
        // A handle has put this credit aside.
        let count = self.closed.fetch_add(1, Ordering::SeqCst) + 1;
        let last = cache.get(BlockNr(HOME + 2 * THREADS))?;
        handle.modify(&last, BufKind::Table, |b| b[0] = count as u8);
        Ok(())
    }
}

/// Handles change two blocks each while others commit. Three of them do not fit into a transaction at the same time, so
/// they wait for each other and for commits, and take back the credits that shards have reserved in advance.
fn pairs() -> u64 {
    let dev: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096 * u64::from(BLOCK)));
    let cache = BufferCache::new(dev.clone(), BLOCK, 4096, Budget::new(16 << 20));
    let hooks = Arc::new(Pairs::default());
    assert!(hooks.cache.set(cache.clone()).is_ok());
    let journal = Journal::open(cache.clone(), Some(location()), hooks.clone(), options()).expect("opened");
    let spawn = |f: Work| {
        let journal = journal.clone();
        extant_base::task::spawn("worker", move || f(&journal)).expect("thread")
    };
    let committer = spawn(Box::new(|journal| journal.run()));
    let work = |n: u64| -> Work {
        let (cache, hooks) = (cache.clone(), hooks.clone());
        Box::new(move |journal| {
            for round in 1..=ROUNDS as u8 {
                let [a, b] = [0, 1].map(|half| cache.get(BlockNr(HOME + 2 * n + half)).expect("read"));
                let mut handle = journal.start(100).expect("started");
                hooks.open.fetch_add(1, Ordering::SeqCst);
                handle.put_aside();
                handle.modify(&a, BufKind::Table, |b| b[0] = round);
                sim::point("between the halves");
                let _ = handle.has_credits(110);
                handle.modify(&b, BufKind::Table, |b| b[0] = round);
                let tid = handle.tid();
                hooks.open.fetch_sub(1, Ordering::SeqCst);
                handle.finish();
                if n == 0 {
                    journal.commit_here(Some(tid), Durability::Full).expect("durable");
                }
            }
        })
    };
    let workers: Vec<_> = (0..THREADS).map(|n| spawn(work(n))).collect();
    workers.into_iter().for_each(|thread| thread.join().expect("worker"));
    journal.stop();
    committer.join().expect("journal thread");
    journal.close().expect("closed");
    let mut byte = [0; BLOCK as usize];
    for n in 0..2 * THREADS {
        dev.read_at((HOME + n) * u64::from(BLOCK), &mut byte, Default::default()).expect("read");
        assert_eq!(u64::from(byte[0]), ROUNDS, "block {n}");
    }
    dev.read_at((HOME + 2 * THREADS) * u64::from(BLOCK), &mut byte, Default::default()).expect("read");
    assert_eq!(u64::from(byte[0]), journal.stats.commits.get(), "each commit has the change made at its end");
    journal.stats.commits.get()
}

#[test]
fn a_commit_has_all_changes_of_its_handles() {
    let mut most = 0;
    for seed in 0..SCHEDULES {
        let outcome = sim::run(&strategy(seed), pairs);
        let commits = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", outcome.trace));
        assert_eq!(outcome.virtual_ns, 0, "seed {seed}: only a time-out ended a wait\n{}", outcome.trace);
        most = most.max(commits);
    }
    assert!(most > ROUNDS, "no schedule had a commit between two of the lone caller");
}
