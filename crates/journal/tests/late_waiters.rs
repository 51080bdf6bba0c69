//! Waits for a transaction that is just being committed: one thread, no fault, a power cut after the answer. The
//! flush of that commit has passed, so data written since is not durable when the commit ends.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_base::clock::Clock;
use extant_block::device::{CrashDevice, MemDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_cache::{Budget, BufKind, BufferCache};
use extant_journal::{Durability, Error, Hooks, Journal, LogLocation, Options};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum, Tid};
use extant_recovery::JournalMap;

const BLOCK: u32 = 1024;
const LOG_BLOCKS: u32 = 1024;
const META: BlockNr = BlockNr(2048);
const DATA: u64 = 3000 * BLOCK as u64;

/// Writes data and waits for the transaction that frees blocks, while that is in the log and not yet acknowledged.
struct Late {
    dev: Arc<CrashDevice>,
    journal: OnceLock<Arc<Journal>>,
    /// Number of the device's events at the acknowledgement.
    told: Arc<AtomicUsize>,
}

impl Hooks for Late {
    fn released(&self, _freed: Vec<(BlockNr, u32)>) {
        let journal = self.journal.get().expect("set");
        self.dev.write_at(DATA, &[&[7; BLOCK as usize]], BioFlags::empty()).expect("written");
        let (dev, told) = (self.dev.clone(), self.told.clone());
        let closing = Tid(journal.running_tid().0 - 1);
        assert!(closing.is_after(journal.committed_tid()), "the commit has not ended");
        let done = move |r: Result<(), Error>| {
            r.expect("no fault");
            told.store(dev.write_log(), Ordering::Relaxed);
        };
        journal.commit_async(Some(closing), Durability::Full, Box::new(done));
    }
    fn aborted(&self, error: &Error) {
        panic!("aborted: {error}");
    }
}

fn late(with_log: bool) {
    let dev = Arc::new(CrashDevice::from_image(&MemDevice::new(4096 * u64::from(BLOCK))));
    let cache = BufferCache::new(dev.clone(), BLOCK, 4096, Budget::new(16 << 20));
    let location = with_log.then(|| LogLocation {
        superblock: JournalSuperBlock::create(BLOCK, LOG_BLOCKS, [7; 16], LogCsum::V3, true),
        map: Arc::new(JournalMap::from_runs([(BlockNr(64), LOG_BLOCKS)]).expect("a map")),
        external: None,
    });
    let options = Options {
        clock: Clock::virtual_at(1_000),
        commit_interval_ns: 5_000_000_000,
        pinned_bytes_max: 4 << 20,
        checkpoint_blocks: None,
        fast_commits: false,
        superblock: None,
        threaded: false,
    };
    let hooks = Arc::new(Late { dev: dev.clone(), journal: OnceLock::new(), told: Arc::default() });
    let journal = Journal::open(cache.clone(), location, hooks.clone(), options).expect("opened");
    assert!(hooks.journal.set(journal.clone()).is_ok());

    let buffer = cache.get(META).expect("read");
    let mut handle = journal.start(2).expect("started");
    handle.modify(&buffer, BufKind::Table, |b| b[0] = 1);
    handle.freed(BlockNr(3500), 1);
    handle.finish();
    journal.commit_running().expect("durable");
    while hooks.told.load(Ordering::Relaxed) == 0 {
        assert!(journal.step(), "the waiter is not called");
    }
    let events = hooks.told.load(Ordering::Relaxed);
    let cut = dev.state_keeping(events, |_| false).expect("state");
    let mut found = [0; BLOCK as usize];
    cut.read_at(DATA, &mut found, BioFlags::empty()).expect("read");
    assert_eq!(found[0], 7, "acknowledged after {events} events, and the data is lost");
}

#[test]
fn a_waiter_during_a_commit_is_acknowledged_after_a_new_flush_with_a_log() {
    late(true);
}

#[test]
fn a_waiter_during_a_commit_is_acknowledged_after_a_new_flush_without_a_log() {
    late(false);
}
