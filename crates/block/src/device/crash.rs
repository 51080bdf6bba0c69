//! [`CrashDevice`]: simulates the images that a power cut could leave.
//!
//! It keeps two views of one disk over a base image: the *live* one, which reads see, and the *durable* one, which a
//! flush or FUA extends. Every write, discard and flush is an event in one log. [`CrashDevice::state_after`] rebuilds
//! the disk in a state that a power cut after any event could leave. The rules:
//! - A write is durable once a flush that was called after the write had completed has itself completed, or when it
//!   carried FUA and has completed. PREFLUSH is logged as a flush event before its write.
//! - Any other write may be on the medium or not, each on its own: a cache writes back in any order.
//! - Torn: such a write may also be there in part, in units of 512-byte sectors, except inside ranges declared atomic.
//!
//! States are copy-on-write overlays over the base, built from checkpoints of the durable image, so that thousands of
//! them cost little more than the writes in which they differ.
//!
//! A device created with [`CrashDevice::deferring`] completes bios later, on a thread. If a caller flushes without
//! having waited for its writes, it loses them here, as it would on a real disk. Otherwise bios complete inline.
//!
//! [`CrashDevice::split`] splits one device into two disks, with one log: a flush of one of them covers only its own
//! writes, and a power cut hits both at the same event. The states are images of the two, one after the other.
//!
//! On a thread of a [`extant_base::sim`] run, a waiting call has a start and an end, too, and other threads run in
//! between. A flush covers the writes that had completed at its start, and makes them durable at its end.
//!
//! What it does not do: fail requests ([`super::FaultyDevice`]).
//!
//! # Locking
//! `block crash log` keeps log and live image in the same order and is held while the live image is written; `block
//! crash states` is taken before it. The base must be a device without locks below their rank: memory or a file.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sim;
use extant_base::sync::{Condvar, Mutex, MutexGuard};
use extant_base::task::{self, JoinHandle};

use super::{BlockDevice, IoCounters, IoStats, Limits, MemDevice, check_range, check_shape, submit_inline, total_len};
use crate::bio::{Bio, BioData, BioFlags, BioOp};
use crate::error::{Error, Result};
use crate::ranks::{CRASH_DEFERRED, CRASH_LOG, CRASH_STATES};

/// The unit that a disk never tears, unless its sectors are larger.
const SECTOR: u64 = 512;
/// The number of events between two checkpoints. Rebuilding a state requires at most this many durable writes.
const CHECKPOINT_EVENTS: usize = 256;
/// Stands for a length of the log that is not known yet.
const NEVER: usize = usize::MAX;

/// The possible fates of the writes that were not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// All writes reached the medium.
    InOrder,
    /// Each reached the medium wholly or not at all.
    RandomSubset,
    /// Each reached the medium wholly, in some of its sectors, or not at all.
    Torn,
}

/// One entry of the log, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashEvent {
    /// The operation.
    pub op: BioOp,
    /// The start in bytes; for a flush, any byte of its disk.
    pub offset: u64,
    /// The length in bytes; 0 for a flush.
    pub len: u64,
    /// The flags of the request.
    pub flags: BioFlags,
}

struct Event {
    what: CrashEvent,
    /// The bytes of a write.
    data: Vec<u8>,
    /// The length of the log when the request completed.
    completed: usize,
    /// The length of the log from which on every state contains it.
    durable: usize,
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// Indices of changes that are not durable yet, ascending.
    volatile: Vec<usize>,
    /// Byte ranges (start, end) that are never torn.
    atomic: Vec<(u64, u64)>,
    /// The byte at which the second of two disks begins.
    boundary: Option<u64>,
}

/// The base with the events `..upto` applied, all of them durable in a log of `durable` events.
struct Checkpoint {
    upto: usize,
    durable: usize,
    image: MemDevice,
}

struct Inner {
    name: String,
    limits: Limits,
    live: MemDevice,
    log: Mutex<Log>,
    checkpoints: Mutex<Vec<Checkpoint>>,
    counters: IoCounters,
    deferred: Mutex<Deferred>,
    deferred_more: Condvar,
}

#[derive(Default)]
struct Deferred {
    /// Bios with the events that they caused; reads have none.
    bios: VecDeque<(Bio, Option<usize>)>,
    stop: bool,
}

/// A disk that knows the possible states after a power cut. See the module.
pub struct CrashDevice {
    inner: Arc<Inner>,
    completer: Option<JoinHandle<()>>,
    /// The bytes that belong to this disk. Offsets in the log count from the first byte of the first disk.
    start: u64,
    len: u64,
}

impl CrashDevice {
    /// A device with the current contents of `base`, all of it durable. `base` is only read and must not change any
    /// more.
    pub fn new(base: Arc<dyn BlockDevice>) -> CrashDevice {
        CrashDevice::start(MemDevice::over(base))
    }

    /// The same as [`CrashDevice::new`] for a copy of `image`, which may change afterwards.
    pub fn from_image(image: &MemDevice) -> CrashDevice {
        CrashDevice::start(image.snapshot())
    }

    fn start(image: MemDevice) -> CrashDevice {
        let limits = Limits { volatile_cache: true, ..*image.limits() };
        let first = Checkpoint { upto: 0, durable: 0, image: image.snapshot() };
        let len = image.size_bytes();
        let inner = Arc::new(Inner {
            name: format!("crash over {}", image.name()),
            limits,
            live: image,
            log: Mutex::new(&CRASH_LOG, Log::default()),
            checkpoints: Mutex::new(&CRASH_STATES, vec![first]),
            counters: IoCounters::default(),
            deferred: Mutex::new(&CRASH_DEFERRED, Deferred::default()),
            deferred_more: Condvar::new(),
        });
        CrashDevice { inner, completer: None, start: 0, len }
    }

    /// Two disks with one log: the first ends at byte `boundary`, a multiple of the logical block. They are used
    /// instead of this device, which still provides the log and the states. Bios complete inline.
    pub fn split(&self, boundary: u64) -> (CrashDevice, CrashDevice) {
        self.inner.log.lock().boundary = Some(boundary);
        let disk = |start, len| CrashDevice { inner: self.inner.clone(), completer: None, start, len };
        (disk(0, boundary), disk(boundary, self.len - boundary))
    }

    /// Makes bios complete on a thread after this call, so that a submitted bio has not completed yet.
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot start the thread.
    pub fn deferring(mut self) -> Result<CrashDevice> {
        let inner = self.inner.clone();
        let thread = task::spawn("crash-complete", move || inner.complete_deferred());
        self.completer = Some(thread.map_err(|e| Error::open(&self.inner.name, e))?);
        Ok(self)
    }

    /// Declares that writes to `offset..offset + len` reach the medium wholly or not at all, even in
    /// [`CrashMode::Torn`].
    pub fn declare_atomic(&self, offset: u64, len: u64) {
        self.inner.log.lock().atomic.push((offset, offset.saturating_add(len)));
    }

    /// The number of events (writes, zeroings, discards, flushes) so far. A caller whose data has just become durable
    /// stores it: every state after at least that many events contains the data.
    pub fn write_log(&self) -> usize {
        self.inner.log.lock().events.len()
    }

    /// The events so far.
    pub fn events(&self) -> Vec<CrashEvent> {
        self.inner.log.lock().events.iter().map(|e| e.what).collect()
    }

    /// The indices below `n` of the changes that a power cut after `n` events may lose.
    pub fn volatile_at(&self, n: usize) -> Vec<usize> {
        let log = self.inner.log.lock();
        let is_volatile = |e: &Event| e.what.op != BioOp::Flush && e.durable > n;
        log.events.iter().take(n).enumerate().filter(|(_, e)| is_volatile(e)).map(|(i, _)| i).collect()
    }

    /// The current image, as readers see it.
    pub fn live(&self) -> MemDevice {
        self.inner.live.snapshot()
    }

    /// The minimum that a power cut now leaves: everything durable, and nothing else.
    ///
    /// # Errors
    /// As [`CrashDevice::state_keeping`].
    pub fn durable(&self) -> Result<MemDevice> {
        let n = self.write_log();
        self.state_keeping(n, |_| false)
    }

    /// An image that a power cut right after the first `n` events may leave. The same `rng` state, log and mode give
    /// the same image. If `n` is larger than the log, all of it is used.
    ///
    /// # Errors
    /// As [`CrashDevice::state_keeping`].
    pub fn state_after(&self, n: usize, rng: &mut Rng, mode: CrashMode) -> Result<MemDevice> {
        self.build(n, None, Fate::random(rng, mode))
    }

    /// An image that a power cut during event `n` may leave: the same as [`CrashDevice::state_after`], but event `n`
    /// may be complete, torn or lost, even if it has FUA.
    ///
    /// # Errors
    /// As [`CrashDevice::state_keeping`].
    pub fn state_during(&self, n: usize, rng: &mut Rng, mode: CrashMode) -> Result<MemDevice> {
        self.build(n, Some(n), Fate::random(rng, mode))
    }

    /// The image with everything durable after `n` events, and those of [`CrashDevice::volatile_at`] for which `keep`
    /// returns true. With it, a test can go through every subset.
    ///
    /// # Errors
    /// The error of the device below the image, if reading its blocks fails.
    pub fn state_keeping(&self, n: usize, mut keep: impl FnMut(usize) -> bool) -> Result<MemDevice> {
        self.build(n, None, Fate::Chosen(&mut keep))
    }

    fn build(&self, n: usize, in_flight: Option<usize>, mut fate: Fate<'_>) -> Result<MemDevice> {
        let mut checkpoints = self.inner.checkpoints.lock();
        let log = self.inner.log.lock();
        let n = n.min(log.events.len());
        // Both `upto` and `durable` grow along the list, so the last usable one is the best; the first always is.
        let usable = checkpoints.partition_point(|c| c.durable <= n).max(1);
        let newest = usable == checkpoints.len();
        let from = &checkpoints[usable - 1];
        let (mut at, mut durable) = (from.upto, from.durable);
        let mut last_upto = from.upto;
        let image = from.image.snapshot();
        while at < n && log.events[at].durable <= n {
            apply(&image, &log.events[at])?;
            durable = durable.max(log.events[at].durable);
            at += 1;
            if newest && at - last_upto >= CHECKPOINT_EVENTS {
                checkpoints.push(Checkpoint { upto: at, durable, image: image.snapshot() });
                last_upto = at;
            }
        }
        for i in at..n {
            let event = &log.events[i];
            if event.durable <= n { apply(&image, event)? } else { fate.decide(&image, &log, i)? }
        }
        if let Some(i) = in_flight.filter(|&i| i < log.events.len()) {
            fate.decide(&image, &log, i)?;
        }
        Ok(image)
    }
}

/// The way in which the fate of a change that is not durable is decided.
enum Fate<'a> {
    /// Kept with a probability of `keep_permille` in 1000, torn or not.
    Random {
        rng: &'a mut Rng,
        mode: CrashMode,
        keep_permille: u64,
    },
    Chosen(&'a mut dyn FnMut(usize) -> bool),
}

impl Fate<'_> {
    /// With even odds for every write, "all but one" of a long window would hardly ever be tried, so the odds vary.
    fn random(rng: &mut Rng, mode: CrashMode) -> Fate<'_> {
        let keep_permille = [500, 500, 950, 50][rng.below(4) as usize];
        Fate::Random { rng, mode, keep_permille }
    }

    fn decide(&mut self, image: &MemDevice, log: &Log, index: usize) -> Result<()> {
        let event = &log.events[index];
        match self {
            Fate::Chosen(keep) => {
                if event.what.op != BioOp::Flush && keep(index) {
                    apply(image, event)?;
                }
                Ok(())
            }
            Fate::Random { mode: CrashMode::InOrder, .. } => apply(image, event),
            Fate::Random { rng, mode, keep_permille } => {
                let kept = rng.below(1000) < *keep_permille;
                if event.what.op == BioOp::Flush {
                    return Ok(());
                }
                if *mode == CrashMode::Torn && rng.one_in(2) {
                    return apply_torn(image, event, &log.atomic, rng);
                }
                if kept { apply(image, event) } else { Ok(()) }
            }
        }
    }
}

/// Applies the bytes `from..to` (relative to the event) of a change.
fn apply_part(image: &MemDevice, event: &Event, from: u64, to: u64) -> Result<()> {
    let at = event.what.offset + from;
    match event.what.op {
        BioOp::Write => image.store(at, &[&event.data[from as usize..to as usize]]),
        BioOp::WriteZeroes | BioOp::Discard => image.zero(at, to - from),
        BioOp::Read | BioOp::Flush => Ok(()),
    }
}

fn apply(image: &MemDevice, event: &Event) -> Result<()> {
    apply_part(image, event, 0, event.what.len)
}

/// Applies some of the sectors of a change.
fn apply_torn(image: &MemDevice, event: &Event, atomic: &[(u64, u64)], rng: &mut Rng) -> Result<()> {
    let (start, end) = (event.what.offset, event.what.offset + event.what.len);
    let sector = u64::from(image.limits().logical_block).max(SECTOR);
    // A disk that loses power writes a prefix; a disk that reorders may have written any sectors.
    let sectors = event.what.len.div_ceil(sector);
    let pattern = rng.below(3);
    let cut = rng.below(sectors + 1);
    let mut at = start;
    let mut number = 0;
    while at < end {
        let mut unit_end = (at - at % sector + sector).min(end);
        // If this sector touches an atomic range, the sector belongs to it; ranges may be adjacent.
        while let Some(&(_, e)) = atomic.iter().find(|&&(s, e)| s < unit_end && at < e && unit_end < e.min(end)) {
            unit_end = e.next_multiple_of(sector).min(end);
        }
        let keep = match pattern {
            0 => number < cut,
            1 => number >= cut,
            _ => rng.one_in(2),
        };
        if keep {
            apply_part(image, event, at - start, unit_end - start)?;
        }
        number += (unit_end - at).div_ceil(sector);
        at = unit_end;
    }
    Ok(())
}

impl Log {
    /// Adds an event that is in progress, and returns its index.
    fn push(&mut self, what: CrashEvent, data: Vec<u8>) -> usize {
        let index = self.events.len();
        self.events.push(Event { what, data, completed: NEVER, durable: NEVER });
        if what.op != BioOp::Flush {
            self.volatile.push(index);
        }
        index
    }

    fn complete(&mut self, index: usize) {
        let now = self.events.len();
        let Event { what, .. } = self.events[index];
        self.events[index].completed = now;
        if what.op == BioOp::Flush {
            self.events[index].durable = now;
            let Log { events, volatile, boundary, .. } = self;
            let disk = |offset| boundary.is_some_and(|second| offset >= second);
            volatile.retain(|&i| {
                let covered = events[i].completed <= index && disk(events[i].what.offset) == disk(what.offset);
                if covered {
                    events[i].durable = now;
                }
                !covered
            });
        } else if what.flags.contains(BioFlags::FUA) {
            self.events[index].durable = now;
            self.volatile.retain(|&i| i != index);
        }
    }
}

impl Inner {
    /// Logs a change, applies it to the live image, and completes it unless that happens later.
    fn change(&self, what: CrashEvent, pieces: &[&[u8]], complete: bool) -> Result<Option<usize>> {
        let data = pieces.concat();
        let mut log = self.log.lock();
        let empty = what.len == 0 && what.op != BioOp::Flush;
        if what.flags.contains(BioFlags::PREFLUSH) || (empty && what.flags.contains(BioFlags::FUA)) {
            // The flush is for the disk that the write is on.
            let flush = CrashEvent { op: BioOp::Flush, len: 0, flags: BioFlags::empty(), ..what };
            let i = log.push(flush, Vec::new());
            log = self.under_way(log);
            log.complete(i);
        }
        if empty {
            return Ok(None);
        }
        match what.op {
            BioOp::Write => self.live.store(what.offset, &[&data])?,
            BioOp::WriteZeroes | BioOp::Discard => self.live.zero(what.offset, what.len)?,
            BioOp::Read | BioOp::Flush => {}
        }
        let index = log.push(what, data);
        if complete {
            log = self.under_way(log);
            log.complete(index);
        }
        Ok(Some(index))
    }

    /// Represents the time of a request: in a simulation, other threads run between its start and its end.
    fn under_way<'a>(&'a self, log: MutexGuard<'a, Log>) -> MutexGuard<'a, Log> {
        if !sim::active() {
            return log;
        }
        drop(log);
        sim::point("device");
        self.log.lock()
    }

    fn complete_deferred(&self) {
        loop {
            let mut queue = self.deferred.lock();
            let (bio, event) = loop {
                if let Some(next) = queue.bios.pop_front() {
                    break next;
                }
                if queue.stop {
                    return;
                }
                self.deferred_more.wait(&mut queue);
            };
            drop(queue);
            self.finish(bio, event);
        }
    }

    fn finish(&self, mut bio: Bio, event: Option<usize>) {
        let mut result = Ok(());
        if let Some(index) = event {
            self.log.lock().complete(index);
        } else if let BioData::Read(buf) = &mut bio.data {
            result = self.live.get(bio.offset, buf);
        }
        bio.complete(result);
    }
}

impl CrashDevice {
    fn start_deferred(&self, bio: Bio) {
        let check = check_shape(self, &bio).and_then(|()| check_range(self, bio.op, bio.offset, bio.len));
        if let Err(e) = check {
            return bio.complete(Err(e));
        }
        let offset = self.start + if bio.op == BioOp::Flush { 0 } else { bio.offset };
        let what = CrashEvent { op: bio.op, offset, len: bio.len, flags: bio.flags };
        let started = match (&bio.data, bio.op) {
            (_, BioOp::Read) => {
                self.inner.counters.read(bio.len);
                Ok(None)
            }
            (BioData::Write(vecs), _) => {
                self.inner.counters.write(bio.len, bio.flags);
                let pieces: Vec<&[u8]> = vecs.iter().map(|v| v.bytes()).collect();
                self.inner.change(what, &pieces, false)
            }
            (_, op) => {
                match op {
                    BioOp::Write => self.inner.counters.write(0, bio.flags),
                    BioOp::Discard => self.inner.counters.discard(),
                    BioOp::WriteZeroes => self.inner.counters.write_zeroes(bio.flags),
                    BioOp::Read | BioOp::Flush => self.inner.counters.flush(),
                }
                self.inner.change(what, &[], false)
            }
        };
        match started {
            Err(e) => bio.complete(Err(e)),
            Ok(event) => {
                self.inner.deferred.lock().bios.push_back((bio, event));
                self.inner.deferred_more.notify_one();
            }
        }
    }

    fn change(&self, op: BioOp, offset: u64, len: u64, flags: BioFlags, pieces: &[&[u8]]) -> Result<()> {
        self.inner.change(CrashEvent { op, offset: self.start + offset, len, flags }, pieces, true).map(|_| ())
    }
}

impl Drop for CrashDevice {
    fn drop(&mut self) {
        if let Some(thread) = self.completer.take() {
            self.inner.deferred.lock().stop = true;
            self.inner.deferred_more.notify_all();
            // The last owner may be a completion, which runs on the thread itself.
            if thread.thread().id() != extant_base::task::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl BlockDevice for CrashDevice {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn read_only(&self) -> bool {
        false
    }

    fn submit(&self, bio: Bio) {
        if self.completer.is_none() {
            submit_inline(self, bio);
        } else {
            self.start_deferred(bio);
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::Read, offset, buf.len() as u64)?;
        self.inner.counters.read(buf.len() as u64);
        self.inner.live.get(self.start + offset, buf)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        self.inner.counters.write(len, flags);
        self.change(BioOp::Write, offset, len, flags, pieces)
    }

    fn flush(&self) -> Result<()> {
        self.inner.counters.flush();
        self.change(BioOp::Flush, 0, 0, BioFlags::empty(), &[])
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.inner.counters.discard();
        self.change(BioOp::Discard, offset, len, BioFlags::empty(), &[])
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        self.inner.counters.write_zeroes(flags);
        self.change(BioOp::WriteZeroes, offset, len, flags, &[])
    }

    fn stats(&self) -> IoStats {
        self.inner.counters.get()
    }
}
