//! [`LateDevice`]: bios complete later, on other threads, in any order, as with io_uring.
//!
//! Submitted bios wait in a list. A few threads each take one at random, delay it for some time, and pass it to the
//! device below. Waiting calls are passed on by the caller's thread, and may be delayed, too. The seed of the
//! [`extant_base::sim`] run determines the choice and the delay; outside a run, the oldest is first, without delay.
//!
//! What it does not do: lose requests or fail them; the devices below can do that.
//!
//! # Locking
//! One leaf lock (`block late`) protects the list; it is released before the device below is called.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sim;
use extant_base::sync::{Condvar, Mutex};
use extant_base::task::{self, JoinHandle};

use super::BlockDevice;
use super::wrapper::Wrapper;
use crate::bio::{Bio, BioFlags};
use crate::error::{Error, Result};
use crate::ranks::LATE;

/// How late requests complete.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    /// The number of threads that complete bios.
    pub threads: usize,
    /// The number of bios, of 1000, that complete inline, as with psync.
    pub inline_permille: u64,
    /// The number of requests, of 1000, that are held for some time, including waiting calls.
    pub held_permille: u64,
    /// The maximum time for which a request is held.
    pub longest: Duration,
}

#[derive(Default)]
struct Pending {
    bios: VecDeque<Bio>,
    /// The number of bios that were taken from the list and have not completed yet.
    taken: usize,
    stop: bool,
}

/// Called for a request that is submitted while others are in flight.
pub type Crowded = Box<dyn Fn(&Bio) + Send + Sync>;

struct Inner {
    below: Arc<dyn BlockDevice>,
    lateness: Lateness,
    pending: Mutex<Pending>,
    more: Condvar,
    crowded: Option<Crowded>,
}

/// See the module.
pub struct LateDevice {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl LateDevice {
    /// Creates a device over `below`. `crowded` is called before such a request is listed, and may make it fail below.
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot start a thread.
    pub fn new(below: Arc<dyn BlockDevice>, lateness: Lateness, crowded: Option<Crowded>) -> Result<LateDevice> {
        let inner = Arc::new(Inner {
            below,
            lateness,
            pending: Mutex::new(&LATE, Pending::default()),
            more: Condvar::new(),
            crowded,
        });
        let mut threads = Vec::new();
        for _ in 0..lateness.threads.max(1) {
            let inner = inner.clone();
            let thread = task::spawn("late-complete", move || inner.complete());
            threads.push(thread.map_err(|e| Error::open("late", e))?);
        }
        Ok(LateDevice { inner, threads: Mutex::new(&LATE, threads) })
    }

    /// Completes the pending bios and ends the threads. Nothing may be submitted any more.
    pub fn stop(&self) {
        self.inner.pending.lock().stop = true;
        self.inner.more.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for t in threads {
            let _ = t.join();
        }
    }

    /// The number of bios that have not completed.
    pub fn in_flight(&self) -> usize {
        let p = self.inner.pending.lock();
        p.bios.len() + p.taken
    }

    fn pass(&self) -> &dyn BlockDevice {
        self.inner.dawdle();
        &*self.inner.below
    }
}

impl Inner {
    fn dawdle(&self) {
        if sim::active() && sim::choose(1000) < self.lateness.held_permille {
            let ns = sim::choose(self.lateness.longest.as_nanos() as u64);
            Clock::real().sleep(Duration::from_nanos(ns));
        }
    }

    fn complete(&self) {
        loop {
            let bio = {
                let mut pending = self.pending.lock();
                loop {
                    let any = sim::choose(pending.bios.len() as u64) as usize;
                    if let Some(bio) = pending.bios.remove(any) {
                        pending.taken += 1;
                        break bio;
                    }
                    if pending.stop {
                        return;
                    }
                    self.more.wait(&mut pending);
                }
            };
            self.dawdle();
            self.below.submit(bio);
            self.pending.lock().taken -= 1;
        }
    }
}

impl Wrapper for LateDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner.below
    }

    fn completes_later(&self) -> bool {
        self.inner.lateness.inline_permille == 0
    }

    fn submit(&self, bio: Bio) {
        if sim::choose(1000) < self.inner.lateness.inline_permille {
            return self.inner.below.submit(bio);
        }
        if let Some(crowded) = &self.inner.crowded
            && self.in_flight() > 0
        {
            crowded(&bio);
        }
        self.inner.pending.lock().bios.push_back(bio);
        self.inner.more.notify_one();
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.pass().read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.pass().write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.pass().flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass().discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.pass().write_zeroes(offset, len, flags)
    }
}
