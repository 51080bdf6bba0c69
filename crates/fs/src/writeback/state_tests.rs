//! Tests of the pauses and waits of writers, with inodes that are only counters.

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_block::device::MemDevice;
use extant_cache::reclaim::{Class, FrameId, FrameOwner, Key, Tried};
use extant_cache::{Home, Listed};

use super::*;

static ASKS_CLASS: LockClass = LockClass::new("asks", 207);
static COMPLETED_CLASS: LockClass = LockClass::new("completed batches", 206);

#[derive(Default)]
struct Counter {
    dirty: AtomicU64,
    listed: Listed,
}

impl AddressSpaceOps for Counter {
    fn write_pages(inodes: &[Arc<Counter>]) {
        inodes.iter().for_each(|inode| inode.dirty.store(0, Ordering::Relaxed));
    }

    fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    fn has_times(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn listed(&self) -> &Listed {
        &self.listed
    }
}

/// An owner of dirty frames that frees none. Each request to write takes ten milliseconds, and is counted.
struct Owner {
    clock: Clock,
    asked: AtomicU64,
    /// The number of requests after which nothing is dirty any more.
    clean_after: u64,
}

impl FrameOwner for Owner {
    fn try_free(&self, _: Key, _: FrameId) -> Tried {
        Tried::InUse
    }

    fn want_written(&self, _: u64) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.clock.advance(Duration::from_millis(10));
    }

    fn unwritten(&self) -> u64 {
        if self.asked.load(Ordering::Relaxed) < self.clean_after { MIB } else { 0 }
    }
}

type Part = Writeback<Counter, u32, u32>;

const MIB: u64 = 1 << 20;
fn part(threads: bool, dirty_bytes: u64, budget: u64) -> (Part, Arc<Budget>, Clock) {
    let clock = Clock::virtual_at(0);
    let budget = Budget::with_policy(budget, Default::default());
    let dev = Arc::new(MemDevice::new(MIB));
    let options =
        MountOptions { clock: clock.clone(), threads, dirty_bytes: Some(dirty_bytes), ..MountOptions::default() };
    (Writeback::new(&options, budget.clone(), dev, 8192, [&ASKS_CLASS, &COMPLETED_CLASS]), budget, clock)
}

fn dirty(part: &Part, bytes: u64) -> Arc<Counter> {
    let inode = Arc::new(Counter::default());
    inode.dirty.store(bytes, Ordering::Relaxed);
    part.note_dirty(InodeNr(12), &inode, bytes);
    inode
}

/// A part, and an owner whose dirty frames fill the budget.
fn full(clean_after: u64) -> (Part, Arc<Owner>, AddressSpace, Clock) {
    let (part, budget, clock) = part(true, 64 * MIB, 8 * MIB);
    let owner = Arc::new(Owner { clock: clock.clone(), asked: AtomicU64::new(0), clean_after });
    let weak = Arc::downgrade(&owner);
    let id = budget.reclaim().register(Class::Data, weak);
    let pages = AddressSpace::new(12, false, budget, Home { owner: id, object: 12 });
    let (size, losses) = (AtomicU64::new(0), LossLedger::<Error>::default());
    let data = vec![1; MIB as usize];
    for at in 0..8 {
        pages.write(at * MIB, &data, &[], &size, losses.position()).expect("written");
    }
    owner.asked.store(0, Ordering::Relaxed);
    (part, owner, pages, clock)
}

#[test]
fn a_writer_pauses_longer_the_more_is_dirty_and_not_at_all_below_three_quarters() {
    let (part, ..) = part(true, 64 * MIB, 1 << 30);
    let inode = dirty(&part, 48 * MIB);
    assert_eq!(part.pause_of(&inode, 64 * MIB), Duration::ZERO);
    let _more = dirty(&part, MIB);
    // From here on it is no light writer.
    part.pause_of(&inode, 1 << 30);
    let pauses = [1, 4, 8, 8].map(|more| {
        dirty(&part, more * MIB);
        part.pause_of(&inode, MIB)
    });
    assert!(pauses.is_sorted() && Duration::ZERO < pauses[0] && pauses[0] < pauses[2], "{pauses:?}");
    assert_eq!(pauses[3], Duration::from_nanos(longest_pause_ns(MIB, part.bulk.rate())));
}

#[test]
fn only_large_writes_wait_for_memory_and_no_longer_than_the_device_needs() {
    for (bytes, waits) in [(LIGHT_BYTES - 1, false), (LIGHT_BYTES, true), (MIB, true), (64 * MIB, true)] {
        let (part, owner, _pages, clock) = full(u64::MAX);
        part.await_memory(bytes);
        assert_eq!(owner.asked.load(Ordering::Relaxed) > 0, waits, "{bytes}");
        let most = longest_pause_ns(bytes.min(MIB), part.bulk.rate());
        // The last round begins before the end, and asks up to three times.
        assert!(clock.now_ns() < most + 30_000_000, "{bytes}: {} of {most}", clock.now_ns());
    }
}

/// If nothing is dirty, no write would free memory.
#[test]
fn a_wait_for_memory_ends_when_nothing_is_dirty() {
    let (part, owner, _pages, clock) = full(2);
    part.await_memory(MIB);
    assert!((2..=4).contains(&owner.asked.load(Ordering::Relaxed)), "{:?}", owner.asked);
    assert!(clock.now_ns() < longest_pause_ns(MIB, part.bulk.rate()));
}

#[test]
fn without_threads_a_writer_writes_what_it_has_made_dirty_and_does_not_wait() {
    let (part, _, clock) = part(false, 4 * MIB, 1 << 30);
    let inode = dirty(&part, 8 * MIB);
    part.await_memory(64 * MIB);
    part.pause_writer(&inode, 8 * MIB);
    assert_eq!((inode.dirty_bytes(), clock.now_ns()), (0, 0));
}

#[test]
fn the_limit_of_dirty_data_is_that_of_the_mount_or_half_of_the_budget() {
    for (option, budget, expected) in
        [(Some(64 * MIB), 1 << 30, 64 * MIB), (None, 256 * MIB, 128 * MIB), (Some(0), 1 << 30, DIRTY_BYTES_MIN)]
    {
        let budget = Budget::with_policy(budget, Default::default());
        let options = MountOptions { dirty_bytes: option, ..MountOptions::default() };
        let dev = Arc::new(MemDevice::new(MIB));
        let part: Part = Writeback::new(&options, budget, dev, 8192, [&ASKS_CLASS, &COMPLETED_CLASS]);
        // The flusher stops writers an eighth above the limit.
        let _below = dirty(&part, expected + expected / 8);
        assert!(!part.flusher.is_full(), "{option:?}");
        let _above = dirty(&part, 1);
        assert!(part.flusher.is_full(), "{option:?}");
    }
}
