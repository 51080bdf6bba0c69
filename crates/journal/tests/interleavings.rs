//! The journal's group commit under `extant_base::sim`, which owns every lock, wait and thread.
//!
//! Each schedule: threads change blocks and wait for their transactions while the journal's own thread commits. Whoever
//! was told "durable" must find its transaction committed and its bytes on the device; nobody may wait for ever, which
//! a run reports as a deadlock, or until a time-out ends a wait that a notification should have ended. The journal's
//! clock stands still, so nothing here depends on it.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sim;
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_cache::{Budget, BufKind, BufferCache};
use extant_journal::{Error, Hooks, Journal, LogLocation, Options};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};

const BLOCK: u32 = 1024;
const LOG_BLOCKS: u32 = 1024;
/// Home blocks begin behind the log.
const HOME: u64 = 2048;
const THREADS: u64 = 3;
const ROUNDS: u64 = 2;
/// Enough that a race that one schedule in a thousand shows is met in nearly every run.
const SCHEDULES: u64 = 4_000;

struct Quiet;

impl Hooks for Quiet {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
    fn aborted(&self, error: &Error) {
        panic!("aborted: {error}");
    }
}

/// One schedule; returns commits and waits.
fn group_commit(with_log: bool) -> (u64, u64) {
    let dev: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096 * u64::from(BLOCK)));
    let cache = BufferCache::new(dev.clone(), BLOCK, 4096, Budget::new(16 << 20));
    let location = with_log.then(|| LogLocation {
        superblock: JournalSuperBlock::create(BLOCK, LOG_BLOCKS, [7; 16], LogCsum::V3, true),
        blocks: Arc::new((0..u64::from(LOG_BLOCKS)).map(|b| BlockNr(b + 64)).collect()),
    });
    let options = Options {
        clock: Clock::virtual_at(1_000),
        commit_interval_ns: 5_000_000_000,
        pinned_bytes_max: 4 << 20,
        threaded: true,
    };
    let journal = Journal::open(cache.clone(), location, Arc::new(Quiet), options).expect("opened");
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
                    journal.commit_wait(Some(tid)).expect("durable");
                    assert!(tid.is_at_or_before(journal.committed_tid()), "told durable before the commit");
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
        let strategy = match seed % 3 {
            0 => sim::Strategy::Random { preempt_permille: 30 },
            1 => sim::Strategy::Random { preempt_permille: 300 },
            _ => sim::Strategy::Priorities { changes: 3, steps: 400 },
        };
        let options = sim::Options { strategy, ..sim::Options::new(seed) };
        let outcome = sim::run(&options, move || group_commit(with_log));
        let (commits, waits) = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", outcome.trace));
        assert_eq!(outcome.virtual_ns, 0, "seed {seed}: only a time-out went on\n{}", outcome.trace);
        assert!(waits == THREADS * ROUNDS && commits <= waits, "seed {seed}: {commits} commits for {waits} waits");
        shared += u64::from(commits < waits);
    }
    assert!(shared > 0, "no schedule had two waiters share a commit");
}

#[test]
fn nobody_waits_for_ever_with_a_log() {
    explore(true);
}

#[test]
fn nobody_waits_for_ever_without_a_log() {
    explore(false);
}
