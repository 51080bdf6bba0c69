//! Tests which inodes the flusher takes, how many it examines for that, and which writers it delays.

use std::sync::OnceLock;

use super::*;
use extant_base::rng::Rng;
use extant_base::sim::{self, Options};
use extant_base::sync::atomic::AtomicU64;
use extant_base::task;

const BLOCK: u64 = 4096;
const SECOND: u64 = 1_000_000_000;

/// An inode whose data is taken by its writer, and is on the device when the test says so.
#[derive(Default)]
struct Inode {
    ino: u64,
    dirty: AtomicU64,
    taken: AtomicU64,
    times: AtomicBool,
    listed: Listed,
    flusher: OnceLock<Arc<Flusher<Inode>>>,
}

impl AddressSpaceOps for Inode {
    fn write_pages(inodes: &[Arc<Inode>]) {
        assert!(inodes.is_sorted_by_key(|inode| inode.ino));
        inodes.iter().for_each(|inode| inode.take());
    }

    fn dirty_bytes(&self) -> u64 {
        looked(self.dirty.load(Ordering::SeqCst))
    }

    fn has_times(&self) -> bool {
        looked(self.times.load(Ordering::SeqCst))
    }

    fn is_idle(&self) -> bool {
        looked(self.taken.load(Ordering::SeqCst) == 0)
    }

    fn listed(&self) -> &Listed {
        &self.listed
    }
}

/// A point at which the state that the flusher saw may change before it acts.
fn looked<T>(seen: T) -> T {
    sim::point("an inode was looked at");
    seen
}

impl Inode {
    fn flusher(&self) -> &Arc<Flusher<Inode>> {
        self.flusher.get().expect("set with the flusher")
    }

    fn dirty(self: &Arc<Self>, bytes: u64) {
        self.dirty.fetch_add(bytes, Ordering::SeqCst);
        sim::point("an inode is dirty");
        self.flusher().dirtied(self.ino, bytes, self);
    }

    fn touch(self: &Arc<Self>) {
        self.times.store(true, Ordering::SeqCst);
        self.flusher().dirtied(self.ino, 0, self);
    }

    fn take(&self) {
        // In this order, the inode is never clean in between.
        let bytes = self.dirty.load(Ordering::SeqCst);
        self.taken.fetch_add(bytes, Ordering::SeqCst);
        self.dirty.fetch_sub(bytes, Ordering::SeqCst);
        self.times.store(false, Ordering::SeqCst);
        self.flusher().taken(bytes);
    }

    fn arrive(&self) {
        let bytes = self.taken.swap(0, Ordering::SeqCst);
        self.flusher().written(bytes);
        self.flusher().settled(self.ino, self);
    }

    fn put_back(self: &Arc<Self>) {
        let bytes = self.taken.load(Ordering::SeqCst);
        self.dirty.fetch_add(bytes, Ordering::SeqCst);
        self.taken.fetch_sub(bytes, Ordering::SeqCst);
        self.flusher().put_back(self.ino, bytes, bytes, self);
    }
}

fn flusher(clock: &Clock, background_blocks: u64, limit_blocks: u64) -> Arc<Flusher<Inode>> {
    let (background_bytes, limit_bytes) = (background_blocks * BLOCK, limit_blocks * BLOCK);
    Flusher::new(clock.clone(), FlusherOptions { background_bytes, limit_bytes, expire_ns: 5 * SECOND })
}

fn inodes(flusher: &Arc<Flusher<Inode>>, n: u64) -> Vec<Arc<Inode>> {
    let inode = |ino| Arc::new(Inode { ino, flusher: OnceLock::from(flusher.clone()), ..Inode::default() });
    (0..n).map(inode).collect()
}

fn in_hand(inodes: &[Arc<Inode>]) -> Vec<u64> {
    inodes.iter().filter(|inode| !inode.is_idle()).map(|inode| inode.ino).collect()
}

#[test]
fn above_the_background_limit_the_oldest_go_until_half_of_it_is_left() {
    let clock = Clock::virtual_at(0);
    let flusher = flusher(&clock, 8, 100);
    let all = inodes(&flusher, 10);
    for inode in all.iter().rev() {
        inode.dirty(BLOCK);
        clock.advance(Duration::from_secs(1));
    }
    // Ten are dirty. The oldest of them, 9 to 5, have been dirty for more than the period.
    assert_eq!(flusher.step(), 6);
    assert_eq!(in_hand(&all), [4, 5, 6, 7, 8, 9]);
    assert_eq!(flusher.dirty_bytes(), 10 * BLOCK);
    all.iter().for_each(|inode| inode.arrive());
    assert_eq!((flusher.dirty_bytes(), flusher.dirty_inodes()), (4 * BLOCK, 4));
}

/// Data under writeback on a slow device is not examined in every round, and does not start a round.
#[test]
fn data_under_writeback_costs_a_round_nothing() {
    let clock = Clock::virtual_at(0);
    let flusher = flusher(&clock, 100, 1_000_000);
    let all = inodes(&flusher, 20_000);
    let (mut rounds, mut left) = (0, 0);
    for inode in &all {
        inode.dirty(BLOCK);
        if flusher.kicked.load(Ordering::SeqCst) {
            rounds += 1;
            flusher.step();
        }
        left += 1;
        assert!(left < 200 || rounds > 0, "a round starts in time");
    }
    assert_eq!(flusher.dirty_inodes(), all.len());
    assert!(in_hand(&all).len() >= all.len() - 101);
    // Each round takes 51, and examines each inode at most three times: taken, left over, moved to the other list.
    assert!(rounds <= all.len() / 50, "{rounds} rounds");
    let looked = flusher.inodes_looked_at.get();
    assert!(looked <= 4 * all.len() as u64, "{looked} looked at");
    // The inodes under writeback are not offered as neighbours, either.
    let before = looked;
    let found = flusher.dirty_after(0, 0..all.len() as u64, 10);
    assert!(found.len() == 10 && found.iter().all(|inode| inode.dirty_bytes() > 0));
    let again = flusher.dirty_after(0, 0..all.len() as u64, 10);
    assert_eq!(again.len(), 10);
    assert!(flusher.inodes_looked_at.get() - before <= 150);
    // `listed` includes all of them.
    assert_eq!(flusher.listed().len(), all.len());
    all.iter().for_each(|inode| inode.take());
    all.iter().for_each(|inode| inode.arrive());
    assert_eq!((flusher.dirty_bytes(), flusher.dirty_inodes()), (0, 0));
}

#[test]
fn times_and_data_put_back_are_written_when_they_are_due() {
    let clock = Clock::virtual_at(0);
    let flusher = flusher(&clock, 2, 100);
    let all = inodes(&flusher, 4);
    all[0].touch();
    all[1].dirty(3 * BLOCK);
    assert_eq!(flusher.step(), 1);
    // It was moved to the other list while under writeback, and has become dirty again since.
    assert!(flusher.dirty_after(3, 0..4, 4).is_empty());
    assert_eq!(all[1].listed.get(), For::Completion);
    all[1].put_back();
    assert_eq!(flusher.dirty_after(3, 0..4, 4).len(), 1);
    all[1].arrive();
    assert_eq!(flusher.dirty_inodes(), 2);
    clock.advance(Duration::from_secs(5));
    assert_eq!(flusher.step(), 2);
    assert!(!all[0].has_times() && all[1].dirty_bytes() == 0);
    all.iter().for_each(|inode| inode.arrive());
    assert_eq!((flusher.dirty_bytes(), flusher.dirty_inodes()), (0, 0));
}

/// While four threads change the same inodes, each dirty inode is listed for its state, and no clean one is listed.
#[test]
fn threads_lose_no_inode() {
    let flusher = flusher(&Clock::virtual_at(0), 40, 1_000_000);
    let all = inodes(&flusher, 12);
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let (flusher, all) = (flusher.clone(), all.clone());
            let body = move || {
                let mut rng = Rng::new(seed);
                for _ in 0..20_000 {
                    let inode = &all[rng.below(12) as usize];
                    match (seed, rng.below(8)) {
                        // Only one thread takes and completes at a time, which the writeback lock ensures.
                        (0, 0..3) => inode.take(),
                        (0, 3..6) => inode.arrive(),
                        (0, 6) => inode.put_back(),
                        (0, _) => drop(flusher.step()),
                        (_, 0) => inode.touch(),
                        (_, 1) => drop(flusher.dirty_after(inode.ino, 0..12, 3)),
                        _ => inode.dirty(BLOCK),
                    }
                }
            };
            task::spawn("tests", body).expect("spawned")
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("joined"));
    for inode in &all {
        let needed = if inode.dirty_bytes() > 0 { For::Data } else { For::Nothing };
        assert!(inode.listed.get() >= needed, "{}: {:?}", inode.ino, inode.listed.get());
        inode.take();
        inode.arrive();
    }
    assert_eq!((flusher.dirty_bytes(), flusher.waiting_bytes(), flusher.dirty_inodes()), (0, 0, 0));
}

/// An inode is dirtied and touched while its last write arrives and the flusher makes its round, with every schedule
/// with few preemptions. If it is dirty, it is listed for that.
#[test]
fn an_inode_is_listed_for_what_it_has_under_every_schedule() {
    let three_threads = || {
        let flusher = flusher(&Clock::virtual_at(0), 40, 1_000);
        let all = inodes(&flusher, 2);
        all.iter().for_each(|inode| inode.dirty(BLOCK));
        all.iter().for_each(|inode| inode.take());
        let start = |work: fn(&Arc<Inode>)| {
            let inode = all[0].clone();
            task::spawn("tests", move || work(&inode)).expect("spawned")
        };
        let threads = [
            start(|inode| inode.arrive()),
            start(|inode| inode.dirty(BLOCK)),
            start(|inode| {
                drop(inode.flusher().dirty_after(1, 0..2, 2));
                inode.touch();
            }),
        ];
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        assert_eq!(all[0].listed.get(), For::Data, "dirty");
        assert!(flusher.listed().iter().any(|inode| inode.ino == 0), "dirty and not listed");
        all[0].take();
        all.iter().for_each(|inode| inode.arrive());
        assert_eq!((flusher.dirty_bytes(), flusher.dirty_inodes()), (0, 0));
    };
    let runs =
        sim::search(&Options { steps_max: 10_000, processors: 2, ..Options::new(0) }, 2, three_threads, |outcome| {
            let forks = outcome.forks;
            outcome.result.unwrap_or_else(|e| panic!("{forks:?}: {e}"));
        });
    assert!(runs > 1_000, "{runs} schedules");
}

/// An inode is dirtied during the completion for which it was listed. It must become due.
#[test]
fn an_inode_that_is_dirtied_while_its_last_write_arrives_will_be_due() {
    let two_threads = || {
        let clock = Clock::virtual_at(0);
        let flusher = flusher(&clock, 40, 1_000);
        let all = inodes(&flusher, 1);
        all[0].dirty(BLOCK);
        all[0].take();
        assert!(flusher.dirty_after(1, 0..1, 1).is_empty());
        // Nothing is due now or later, so no later round examines the inodes.
        clock.advance(Duration::from_secs(5));
        assert_eq!(flusher.step(), 0);
        let inode = all[0].clone();
        let writes = task::spawn("tests", move || inode.dirty(BLOCK)).expect("spawned");
        all[0].arrive();
        writes.join().expect("joined");
        clock.advance(Duration::from_secs(5));
        assert_eq!(flusher.step(), 1, "forgotten");
        all[0].arrive();
        assert_eq!((flusher.dirty_bytes(), flusher.dirty_inodes()), (0, 0));
    };
    let runs =
        sim::search(&Options { steps_max: 10_000, processors: 2, ..Options::new(0) }, 2, two_threads, |outcome| {
            let forks = outcome.forks;
            outcome.result.unwrap_or_else(|e| panic!("{forks:?}: {e}"));
        });
    assert!(runs > 20, "{runs} schedules");
}

/// The rate of a device that takes one millisecond for a block.
const RATE: u64 = 1000 * BLOCK;

#[test]
fn a_writer_without_a_flusher_writes() {
    let flusher = flusher(&Clock::virtual_at(0), 4, 8);
    let all = inodes(&flusher, 9);
    all[..8].iter().for_each(|inode| inode.dirty(BLOCK));
    flusher.throttle_alone();
    assert!(in_hand(&all).is_empty());
    all[8].dirty(BLOCK);
    flusher.throttle_alone();
    assert_eq!(in_hand(&all).len(), 7);
}

/// The more is dirty, the longer a writer pauses for its bytes. A writer that dirties little does not pause.
#[test]
fn pauses_grow_on_the_way_to_the_limit() {
    let clock = Clock::virtual_at(0);
    let flusher = flusher(&clock, 500, 1000);
    let all = inodes(&flusher, 2);
    let pause = |bytes: u64| flusher.pause_ns(&all[0].listed, bytes, RATE);
    all[0].dirty(750 * BLOCK);
    assert_eq!(pause(100 * BLOCK), 0);
    let mut pauses = Vec::new();
    for _ in 0..25 {
        all[0].dirty(10 * BLOCK);
        pauses.push(pause(100 * BLOCK));
    }
    assert!(pauses.is_sorted() && pauses[0] > 0, "{pauses:?}");
    assert_eq!(pauses[24], 190_000_000, "the longest: a tenth of a second and what the device takes");
    // This is the writer of another file, which dirties a block every ten milliseconds on the same device.
    let light = || {
        clock.advance(Duration::from_millis(10));
        flusher.pause_ns(&all[1].listed, BLOCK, RATE)
    };
    assert!((0..100).all(|_| light() == 90_000_000 + 1_000_000), "at the limit every writer pauses");
    all[0].take();
    flusher.written(100 * BLOCK);
    assert!((0..100).all(|_| light() == 0));
}

/// Far above the limit, a writer waits for data under writeback, regardless of how long that takes, unless the flusher
/// has ended.
#[test]
fn a_writer_far_over_the_limit_waits_for_the_device() {
    let outcome = sim::run(&Options::new(1), || {
        let flusher = flusher(&Clock::real(), 4, 8);
        let all = inodes(&flusher, 12);
        let throttled = |ino: usize| {
            let (flusher, inode) = (flusher.clone(), all[ino].clone());
            let body = move || {
                flusher.throttle(&inode.listed, BLOCK, RATE);
                flusher.clock.now_ns()
            };
            task::spawn("tests", body).expect("spawned")
        };
        all[..10].iter().for_each(|inode| inode.dirty(BLOCK));
        flusher.step();
        let waiting = throttled(0);
        flusher.clock.sleep(Duration::from_secs(60));
        assert!(!waiting.is_finished());
        all.iter().find(|inode| !inode.is_idle()).expect("in hand").arrive();
        assert_eq!(waiting.join().expect("joined"), 60 * SECOND);
        // A writer neither waits for a flusher that has ended, nor pauses.
        all.iter().for_each(|inode| inode.dirty(BLOCK));
        let waiting = throttled(1);
        flusher.clock.sleep(Duration::from_micros(1));
        flusher.stop();
        assert!(waiting.join().expect("joined") - 60 * SECOND < 1_000_000);
    });
    outcome.result.unwrap_or_else(|e| panic!("{e}"));
}
