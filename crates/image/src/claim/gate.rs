//! The requests of a claimed device: which pass, which wait, and the superblocks among them.
//!
//! Main type: [`Gate`], the state of a [`DeviceClaim`] with the changes in flight and those that wait (Linux:
//! `blk_mq_freeze_queue`). Unless another program has written there, the device has the superblock that passed last.
//!
//! What it does not do: decide whose the device is (`super`).
//!
//! # Locking
//! See `super`.

use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_block::error::Result;
use extant_block::{Bio, BioData, BioFlags, BioOp, BioVec, BlockDevice, BusyBy, Completion, Error, IoStats, Limits};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use super::{Change, ClaimState, DeviceClaim, DeviceHold, Transition};

static CLAIM: LockClass = LockClass::new("device claim", 815);

pub(super) type SuperBlockBytes = Box<[u8; SUPERBLOCK_SIZE]>;

struct GateState {
    state: ClaimState,
    /// Our exclusive open.
    held: Option<DeviceHold>,
    /// Changes that have passed and have not ended.
    under_way: usize,
    waiting: Vec<Bio>,
    /// The superblocks that the device may have since other processes could open it: that of the last successful write,
    /// and those of the writes that failed since.
    superblocks: Vec<SuperBlockBytes>,
}

/// The superblock in a write to `offset`, if the write covers all of it.
fn super_block_in<'a>(offset: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Option<SuperBlockBytes> {
    let before = SUPERBLOCK_OFFSET.checked_sub(offset)?;
    let bytes: Vec<u8> = pieces.flatten().copied().skip(before as usize).take(SUPERBLOCK_SIZE).collect();
    bytes.try_into().ok()
}

pub(super) struct Gate {
    standing: Mutex<GateState>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn new(held: DeviceHold) -> Gate {
        let held = Some(held);
        let standing =
            GateState { state: ClaimState::Ours, held, under_way: 0, waiting: Vec::new(), superblocks: Vec::new() };
        Gate { standing: Mutex::new(&CLAIM, standing), changed: Condvar::new() }
    }

    pub(super) fn state(&self) -> ClaimState {
        self.standing.lock().state
    }

    /// Closes our exclusive open. From now on an unchanged device has the superblock `before`, or one that a later
    /// write has brought there.
    pub(super) fn close(&self, before: Option<SuperBlockBytes>) {
        let held = {
            let mut standing = self.standing.lock();
            standing.superblocks = before.into_iter().collect();
            standing.held.take()
        };
        drop(held);
    }

    pub(super) fn hold(&self, held: Option<DeviceHold>) {
        self.standing.lock().held = held;
    }

    /// The superblocks that the device may have. While changes wait, they stay.
    pub(super) fn superblocks(&self) -> Vec<SuperBlockBytes> {
        self.standing.lock().superblocks.clone()
    }
}

/// A change that has passed; dropping this ends it.
struct PendingChange {
    gate: Arc<Gate>,
    /// The superblock that it writes, if it writes one.
    leaves: Option<SuperBlockBytes>,
    succeeded: bool,
}

impl PendingChange {
    fn begin<'a>(
        gate: &Arc<Gate>,
        standing: &mut GateState,
        offset: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> PendingChange {
        standing.under_way += 1;
        PendingChange { gate: gate.clone(), leaves: super_block_in(offset, pieces), succeeded: false }
    }

    fn end<T>(mut self, result: &Result<T>) {
        self.succeeded = result.is_ok();
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        let mut standing = self.gate.standing.lock();
        if let Some(bytes) = self.leaves.take() {
            if self.succeeded {
                standing.superblocks.clear();
            }
            if !standing.superblocks.contains(&bytes) {
                standing.superblocks.push(bytes);
            }
        }
        standing.under_way -= 1;
        if standing.under_way == 0 && standing.state.change() == Change::Waits {
            self.gate.changed.notify_all();
        }
    }
}

impl DeviceClaim {
    /// Makes the transition; false if the table refuses it.
    pub(super) fn go(&self, transition: Transition) -> bool {
        let waiting = {
            let mut standing = self.gate.standing.lock();
            let Some(next) = standing.state.after(transition) else { return false };
            standing.state = next;
            if next.change() == Change::Waits {
                while standing.under_way > 0 {
                    self.gate.changed.wait(&mut standing);
                }
                return true;
            }
            std::mem::take(&mut standing.waiting)
        };
        self.gate.changed.notify_all();
        self.submit_all(waiting);
        true
    }

    fn refusal(&self) -> Error {
        Error::Busy { device: self.name().to_owned(), by: BusyBy::Unclaimed }
    }

    /// The bio that goes to the device below now; `None` if it waits.
    fn admit(&self, mut bio: Bio) -> Option<Bio> {
        if bio.op == BioOp::Read {
            return Some(bio);
        }
        let mut standing = self.gate.standing.lock();
        match standing.state.change() {
            Change::Passes => {
                let vecs = if let BioData::Write(vecs) = &bio.data { &vecs[..] } else { &[] };
                let pieces = vecs.iter().map(BioVec::bytes);
                let (under_way, end_io) =
                    (PendingChange::begin(&self.gate, &mut standing, bio.offset, pieces), bio.end_io);
                bio.end_io = Box::new(move |done: Completion| {
                    under_way.end(&done.result);
                    end_io.end_io(done);
                });
            }
            Change::Waits => {
                standing.waiting.push(bio);
                return None;
            }
            Change::Fails => {
                // A refused bio must fail where completions of the device below run, which may not be this thread. So
                // a flush is sent in its place, and its completion reports the refusal.
                let (Bio { op, offset, data, end_io, .. }, e) = (bio, self.refusal());
                let tell = move |_| end_io.end_io(Completion { op, offset, data, result: Err(e) });
                bio = Bio::flush(Box::new(tell));
            }
        }
        Some(bio)
    }

    /// A waiting call: passes it on, or blocks its thread. `pieces` is empty unless it writes.
    fn pass(&self, offset: u64, pieces: &[&[u8]], send: impl FnOnce() -> Result<()>) -> Result<()> {
        let under_way = {
            let mut standing = self.gate.standing.lock();
            while standing.state.change() == Change::Waits {
                self.gate.changed.wait(&mut standing);
            }
            if standing.state.change() == Change::Fails {
                return Err(self.refusal());
            }
            PendingChange::begin(&self.gate, &mut standing, offset, pieces.iter().copied())
        };
        let result = send();
        under_way.end(&result);
        result
    }
}

impl BlockDevice for DeviceClaim {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn measure(&self) -> Result<u64> {
        self.inner.measure()
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        self.pass(0, &[], || self.inner.grow(bytes))
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn completes_later(&self) -> bool {
        self.inner.completes_later()
    }

    fn is_flushed(&self) -> bool {
        self.inner.is_flushed()
    }

    fn submit(&self, bio: Bio) {
        if let Some(bio) = self.admit(bio) {
            self.inner.submit(bio);
        }
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        self.inner.submit_all(bios.into_iter().filter_map(|bio| self.admit(bio)).collect());
    }

    fn submit_all_and_wait(&self, bios: Vec<Bio>) {
        self.inner.submit_all_and_wait(bios.into_iter().filter_map(|bio| self.admit(bio)).collect());
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.inner.read_at(offset, buf, flags)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.next_data(offset)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.pass(offset, pieces, || self.inner.write_at(offset, pieces, flags))
    }

    fn flush(&self) -> Result<()> {
        self.pass(0, &[], || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(offset, &[], || self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.pass(offset, &[], || self.inner.write_zeroes(offset, len, flags))
    }

    fn stats(&self) -> IoStats {
        self.inner.stats()
    }
}
