//! Group commit in virtual time: a commit waits for callers that return sooner than a commit takes.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::{sim, task};
use extant_block::device::MemDevice;
use extant_block::{Bio, BioFlags, BlockDevice, Wrapper};
use extant_cache::{Budget, BufKind, BufferCache};
use extant_journal::{Error, Hooks, Journal, LogLocation, Options};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};
use extant_recovery::JournalMap;

const BLOCK: u32 = 1024;
const LOG_BLOCKS: u32 = 4096;
/// Home blocks begin behind the log.
const HOME: u64 = 8192;
const CALLERS: u64 = 8;
const ROUNDS: u64 = 40;
/// The time that a commit takes.
const COMMIT: Duration = Duration::from_micros(300);

struct NoHooks;

impl Hooks for NoHooks {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {}
    fn aborted(&self, error: &Error) {
        panic!("aborted: {error}");
    }
}

/// A disk with a slow flush.
struct Slow(MemDevice);

impl Wrapper for Slow {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }

    fn submit(&self, bio: Bio) {
        self.0.submit(bio);
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        if flags.contains(BioFlags::FUA) {
            Clock::real().sleep(COMMIT);
        }
        self.0.write_at(offset, pieces, flags)
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

/// Commits for callers that return after `think`, each a little later than the previous one. Returns their number and
/// the total time.
fn commits(seed: u64, think: Duration) -> (u64, Duration) {
    let body = move || {
        let dev: Arc<dyn BlockDevice> = Arc::new(Slow(MemDevice::new(2 * HOME * u64::from(BLOCK))));
        let cache = BufferCache::new(dev, BLOCK, 2 * HOME, Budget::new(16 << 20));
        let location = LogLocation {
            superblock: JournalSuperBlock::create(BLOCK, LOG_BLOCKS, [7; 16], LogCsum::V3, true),
            map: Arc::new(JournalMap::from_runs([(BlockNr(64), LOG_BLOCKS)]).expect("a map")),
            external: None,
        };
        let options = Options {
            clock: Clock::real(),
            commit_interval_ns: 5_000_000_000,
            pinned_bytes_max: 4 << 20,
            checkpoint_blocks: None,
            fast_commits: false,
            superblock: None,
            threaded: true,
        };
        let journal = Journal::open(cache.clone(), Some(location), Arc::new(NoHooks), options).expect("opened");
        let committer = {
            let journal = journal.clone();
            task::spawn("journal", move || journal.run()).expect("thread")
        };
        let caller = |n: u64| {
            let (journal, cache) = (journal.clone(), cache.clone());
            move || {
                for round in 0..ROUNDS {
                    Clock::real().sleep(think + Duration::from_micros(5 * n));
                    let buffer = cache.get(BlockNr(HOME + n)).expect("read");
                    let mut handle = journal.start(1).expect("started");
                    handle.modify(&buffer, BufKind::Table, |b| b[0] = round as u8);
                    let tid = handle.tid();
                    handle.finish();
                    journal.commit_wait(Some(tid)).expect("durable");
                }
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|n| task::spawn("caller", caller(n)).expect("thread")).collect();
        for c in callers {
            c.join().expect("caller");
        }
        journal.stop();
        committer.join().expect("journal thread");
        journal.stats.commits.get()
    };
    let outcome = sim::run(&sim::Options::new(seed), body);
    let commits = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", outcome.trace));
    (commits, Duration::from_nanos(outcome.virtual_ns))
}

#[test]
fn a_commit_waits_for_quick_callers_and_not_for_slow_ones() {
    for seed in 0..20 {
        let (quick, _) = commits(seed, COMMIT / 3);
        assert!(quick <= ROUNDS * 5 / 4, "seed {seed}: {quick} commits for {ROUNDS} rounds of all");
        // Three commits of thinking time, the caller's commit, and one already in progress. Waiting for the other
        // callers as well made it six.
        let (_, took) = commits(seed, 3 * COMMIT);
        assert!(took < COMMIT * ROUNDS as u32 * 11 / 2, "seed {seed}: {took:?} for {ROUNDS} rounds");
    }
}
