//! Background writeback of file data (Linux: fs/fs-writeback.c, mm/page-writeback.c).
//!
//! Main types: [`Flusher`] (which inodes are dirty, since when, and how many bytes in all), [`AddressSpaceOps`] (how one
//! inode's dirty data reaches the device: implemented by `fs`).
//!
//! Rules: data older than `expire` is written; above `background_bytes` everything is written, oldest inode first; above
//! `limit_bytes` writers do it themselves ([`Flusher::must_throttle`]). Within an inode, blocks go out in file order.
//!
//! What it does not do: block mapping, transactions.
//!
//! # Locking
//! `dirty inodes` (97) guards the table and is not held while an inode is written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};

static CLASS: LockClass = LockClass::new("dirty inodes", 97);

/// Why writeback runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackReason {
    /// Data has been dirty for long enough.
    Expired,
    /// Too much is dirty.
    Background,
    /// Somebody waits: fsync, sync, unmount.
    Sync,
}

/// What the flusher needs of an inode.
pub trait AddressSpaceOps: Send + Sync {
    /// Writes all dirty data (and lazily kept times) of the inode. Errors are recorded at the inode, for its next fsync.
    fn write_pages(&self, reason: WritebackReason);
}

/// Thresholds, in bytes and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct FlusherOptions {
    pub background_bytes: u64,
    pub limit_bytes: u64,
    pub expire_ns: u64,
}

struct Dirty {
    inode: Arc<dyn AddressSpaceOps>,
    since_ns: u64,
}

#[derive(Default)]
struct Table {
    /// By inode number: writing in that order follows the inode tables, and with Orlov the data.
    inodes: BTreeMap<u64, Dirty>,
    stop: bool,
}

/// The dirty inodes of one mount.
pub struct Flusher {
    clock: Clock,
    options: FlusherOptions,
    table: Mutex<Table>,
    wake: Condvar,
    dirty_bytes: AtomicI64,
    kicked: AtomicBool,
    /// Inodes written by background writeback.
    pub inodes_written: Counter,
}

impl Flusher {
    pub fn new(clock: Clock, options: FlusherOptions) -> Arc<Flusher> {
        Arc::new(Flusher {
            clock,
            options,
            table: Mutex::new(&CLASS, Table::default()),
            wake: Condvar::new(),
            dirty_bytes: AtomicI64::new(0),
            kicked: AtomicBool::new(false),
            inodes_written: Counter::new(),
        })
    }

    /// Notes that inode `ino` is dirty; `bytes` became dirty now (0 for times only).
    pub fn dirtied(&self, ino: u64, bytes: u64, inode: &Arc<dyn AddressSpaceOps>) {
        {
            let mut t = self.table.lock();
            let now = self.clock.now_ns();
            t.inodes.entry(ino).or_insert_with(|| Dirty { inode: inode.clone(), since_ns: now });
        }
        self.add_bytes(bytes);
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

    /// The inode is clean (or gone): forget it. The caller re-adds it with [`Flusher::dirtied`] if it becomes dirty again.
    pub fn forget(&self, ino: u64) {
        self.table.lock().inodes.remove(&ino);
    }

    pub fn dirty_inodes(&self) -> usize {
        self.table.lock().inodes.len()
    }

    /// One round of the flusher's work; returns how many inodes it wrote.
    pub fn step(&self) -> usize {
        self.kicked.store(false, Ordering::Release);
        let over = self.dirty_bytes() > self.options.background_bytes;
        let now = self.clock.now_ns();
        let mut due = self.take(|d| now.saturating_sub(d.since_ns) >= self.options.expire_ns);
        let mut written = due.len();
        for d in due.drain(..) {
            d.inode.write_pages(WritebackReason::Expired);
        }
        if over {
            // Oldest first, until there is room again.
            let mut order: Vec<(u64, u64)> =
                self.table.lock().inodes.iter().map(|(ino, d)| (d.since_ns, *ino)).collect();
            order.sort_unstable();
            for (_, ino) in order {
                if self.dirty_bytes() <= self.options.background_bytes / 2 {
                    break;
                }
                let Some(d) = self.table.lock().inodes.remove(&ino) else { continue };
                d.inode.write_pages(WritebackReason::Background);
                written += 1;
            }
        }
        self.inodes_written.add(written as u64);
        written
    }

    /// Writes every dirty inode (sync, unmount).
    pub fn write_all(&self) {
        for d in self.take(|_| true) {
            d.inode.write_pages(WritebackReason::Sync);
        }
    }

    fn take(&self, want: impl Fn(&Dirty) -> bool) -> Vec<Dirty> {
        let mut t = self.table.lock();
        let keys: Vec<u64> = t.inodes.iter().filter(|(_, d)| want(d)).map(|(k, _)| *k).collect();
        keys.iter().filter_map(|k| t.inodes.remove(k)).collect()
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
