//! Background writeback of file data (Linux: fs/fs-writeback.c, mm/page-writeback.c).
//!
//! Main types: [`Flusher`] (which inodes are dirty, since when, and how many bytes in all), [`AddressSpaceOps`] (how
//! their dirty data reaches the device: implemented by `fs`).
//!
//! Rules: data older than `expire` is written; above `background_bytes`, the oldest inodes until half of that is left;
//! above `limit_bytes` writers do it themselves ([`Flusher::must_throttle`]). Within an inode, blocks go out in file
//! order.
//!
//! An inode stays listed until nothing of it is dirty, in somebody's hands or on its way: so whoever asks for
//! everything ([`Flusher::listed`]) sees also what the flusher has begun.
//!
//! What it does not do: block mapping, transactions.
//!
//! # Locking
//! `dirty inodes` (38) guards the table and is not held while an inode is written. An inode that is listed already is
//! dirtied without it ([`AddressSpaceOps::is_listed`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, Ordering, fence};
use extant_base::sync::{Condvar, LockClass, Mutex};

static CLASS: LockClass = LockClass::new("dirty inodes", 38);

/// What the flusher needs of an inode.
pub trait AddressSpaceOps: Send + Sync + Sized + 'static {
    /// Starts writing all dirty data of these inodes of one mount, neighbours on the device together, and writes lazily
    /// kept times. Errors are recorded with each inode, for its fsync.
    fn write_pages(inodes: &[Arc<Self>]);

    /// Bytes that are dirty and in nobody's hands.
    fn dirty_bytes(&self) -> u64;

    /// Nothing is dirty, and nothing on its way.
    fn is_clean(&self) -> bool;

    /// Whether the flusher lists the inode: the flusher's own note, kept where it costs no lock.
    fn is_listed(&self) -> &AtomicBool;
}

/// Thresholds, in bytes and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct FlusherOptions {
    pub background_bytes: u64,
    pub limit_bytes: u64,
    pub expire_ns: u64,
}

struct Dirty<I> {
    inode: Arc<I>,
    since_ns: u64,
}

struct Table<I> {
    /// By inode number: writing in that order follows the inode tables, and with Orlov the data.
    inodes: BTreeMap<u64, Dirty<I>>,
    stop: bool,
}

/// The dirty inodes of one mount.
pub struct Flusher<I> {
    clock: Clock,
    options: FlusherOptions,
    table: Mutex<Table<I>>,
    wake: Condvar,
    dirty_bytes: AtomicI64,
    kicked: AtomicBool,
    /// Inodes written by background writeback.
    pub inodes_written: Counter,
}

impl<I: AddressSpaceOps> Flusher<I> {
    pub fn new(clock: Clock, options: FlusherOptions) -> Arc<Flusher<I>> {
        Arc::new(Flusher {
            clock,
            options,
            table: Mutex::new(&CLASS, Table { inodes: BTreeMap::new(), stop: false }),
            wake: Condvar::new(),
            dirty_bytes: AtomicI64::new(0),
            kicked: AtomicBool::new(false),
            inodes_written: Counter::new(),
        })
    }

    /// Notes that inode `ino` is dirty; `bytes` became dirty now (0 for times only). Called after they did.
    pub fn dirtied(&self, ino: u64, bytes: u64, inode: &Arc<I>) {
        // Against `settled`: either it sees what is dirty, or this sees that it is not listed any more.
        fence(Ordering::SeqCst);
        if !inode.is_listed().load(Ordering::SeqCst) {
            let now = self.clock.now_ns();
            let mut t = self.table.lock();
            t.inodes.entry(ino).or_insert_with(|| Dirty { inode: inode.clone(), since_ns: now });
            // Only now: whoever sees it relies on the table.
            inode.is_listed().store(true, Ordering::SeqCst);
        }
        self.add_bytes(bytes);
    }

    /// Something of the inode has reached the device, or never will: if it is clean now, it is not listed any more.
    pub fn settled(&self, ino: u64, inode: &I) {
        if !inode.is_clean() {
            return;
        }
        let mut t = self.table.lock();
        if !inode.is_listed().swap(false, Ordering::SeqCst) {
            return;
        }
        fence(Ordering::SeqCst);
        if inode.is_clean() {
            t.inodes.remove(&ino);
        } else {
            inode.is_listed().store(true, Ordering::SeqCst);
        }
    }

    /// More bytes are dirty, in an inode that is already listed.
    pub fn add_bytes(&self, bytes: u64) {
        let now = self.dirty_bytes.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        if now > self.options.background_bytes as i64 && !self.kicked.swap(true, Ordering::AcqRel) {
            let _table = self.table.lock();
            self.wake.notify_all();
        }
    }

    /// Fewer bytes are dirty: written, truncated, or lost.
    pub fn sub_bytes(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// True when a writer should write its inode back before it dirties more.
    pub fn must_throttle(&self) -> bool {
        self.dirty_bytes() > self.options.limit_bytes
    }

    /// The inode is gone, and so is what was dirty of it.
    pub fn forget(&self, ino: u64) {
        let mut t = self.table.lock();
        if let Some(d) = t.inodes.remove(&ino) {
            d.inode.is_listed().store(false, Ordering::SeqCst);
        }
    }

    pub fn dirty_inodes(&self) -> usize {
        self.table.lock().inodes.len()
    }

    /// One round of the flusher's work; returns how many inodes it wrote.
    pub fn step(&self) -> usize {
        self.kicked.store(false, Ordering::Release);
        let over = self.dirty_bytes() > self.options.background_bytes;
        let now = self.clock.now_ns();
        let due = self.take_due(|d| now.saturating_sub(d.since_ns) >= self.options.expire_ns, now);
        let mut written = due.len();
        I::write_pages(&due);
        if over {
            let most = self.take_oldest(now);
            written += most.len();
            I::write_pages(&most);
        }
        self.inodes_written.add(written as u64);
        written
    }

    /// Those that have been dirty longest, until there is room again once they are written; in inode order.
    fn take_oldest(&self, now: u64) -> Vec<Arc<I>> {
        let mut t = self.table.lock();
        let mut order: Vec<(u64, u64)> = t.inodes.iter().map(|(ino, d)| (d.since_ns, *ino)).collect();
        order.sort_unstable();
        let mut left = self.dirty_bytes().saturating_sub(self.options.background_bytes / 2);
        let mut taken = BTreeMap::new();
        for (_, ino) in order {
            let Some(d) = t.inodes.get_mut(&ino).filter(|_| left > 0) else { break };
            let dirty = d.inode.dirty_bytes();
            // Else it is on its way already, or only its times wait, which may grow old.
            if dirty > 0 {
                left = left.saturating_sub(dirty);
                d.since_ns = now;
                taken.insert(ino, d.inode.clone());
            }
        }
        taken.into_values().collect()
    }

    /// Everything that is dirty or on its way, in inode order.
    pub fn listed(&self) -> Vec<Arc<I>> {
        self.table.lock().inodes.values().map(|d| d.inode.clone()).collect()
    }

    /// What of that has numbers in `range`, from the one after `ino` on and then from the start; at most `max`.
    pub fn listed_after(&self, ino: u64, range: Range<u64>, max: usize) -> Vec<Arc<I>> {
        let t = self.table.lock();
        let after = t.inodes.range((ino + 1).clamp(range.start, range.end)..range.end);
        let before = t.inodes.range(range.start..ino.clamp(range.start, range.end));
        after.chain(before).take(max).map(|(_, d)| d.inode.clone()).collect()
    }

    /// Those that are due. They stay listed, and are due again one period later if they are not clean by then.
    fn take_due(&self, due: impl Fn(&Dirty<I>) -> bool, now: u64) -> Vec<Arc<I>> {
        let mut t = self.table.lock();
        let taken = t.inodes.values_mut().filter(|d| due(d)).map(|d| {
            d.since_ns = now;
            d.inode.clone()
        });
        taken.collect()
    }

    /// Runs `step` until [`Flusher::stop`]: the body of the flusher thread.
    pub fn run(&self) {
        loop {
            {
                let mut t = self.table.lock();
                if !t.stop && !self.kicked.load(Ordering::Acquire) {
                    self.wake.wait_for(&mut t, Duration::from_millis(500));
                }
                if t.stop {
                    return;
                }
            }
            self.step();
        }
    }

    /// Ends [`Flusher::run`] after its current round.
    pub fn stop(&self) {
        self.table.lock().stop = true;
        self.wake.notify_all();
    }
}
