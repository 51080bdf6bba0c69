//! [`GateDevice`]: holds back all changes of a device while it is unknown whose device it is.
//!
//! [`GateDevice::shut`] waits until no change is in flight (Linux: `blk_mq_freeze_queue`). While the gate is shut,
//! new changes wait. They continue when the gate opens, or fail for good ([`Shut`]). Reads always pass.
//!
//! What it does not do: decide who owns the device. It helps with that decision: unless another program has written
//! there, the device still holds the bytes that [`GateDevice::remember`] tracks.
//!
//! # Locking
//! One lock (`block gate`), released before the device below or a completion is called.

use std::sync::Arc;

use extant_base::sync::{Condvar, Mutex};

use super::BlockDevice;
use super::wrapper::Wrapper;
use crate::bio::{Bio, BioData, BioFlags, BioOp, BioVec, Completion};
use crate::error::{Error, Result};
use crate::ranks::GATE;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Open,
    Shut,
    Refused,
}

#[derive(Default)]
struct State {
    way: Way,
    /// Requests that have passed and have not ended.
    under_way: usize,
    waiting: Vec<Bio>,
    remembered: Option<Remembered>,
}

/// A range of the device, and the contents that it may have: those of the last successful write, and of the writes
/// that failed since.
struct Remembered {
    offset: u64,
    may_hold: Vec<Vec<u8>>,
}

impl Remembered {
    /// The bytes that a write to `offset` leaves in the range, if it covers the whole range.
    fn of_write<'a>(&self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
        let before = self.offset.checked_sub(offset)?;
        let len = self.may_hold.first()?.len();
        let bytes: Vec<u8> = pieces.flatten().copied().skip(before as usize).take(len).collect();
        (bytes.len() == len).then_some(bytes)
    }
}

struct Gate {
    state: Mutex<State>,
    change: Condvar,
}

/// A request that has passed; dropping this ends it.
struct UnderWay {
    gate: Arc<Gate>,
    /// The bytes that it leaves in the remembered range.
    leaves: Option<Vec<u8>>,
    succeeded: bool,
}

impl UnderWay {
    fn begin<'a>(gate: &Arc<Gate>, state: &mut State, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) -> UnderWay {
        state.under_way += 1;
        let leaves = state.remembered.as_ref().and_then(|range| range.of_write(offset, pieces));
        UnderWay { gate: gate.clone(), leaves, succeeded: false }
    }

    fn end<T>(mut self, result: &Result<T>) {
        self.succeeded = result.is_ok();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if let (Some(range), Some(bytes)) = (&mut state.remembered, self.leaves.take()) {
            if self.succeeded {
                range.may_hold.clear();
            }
            if !range.may_hold.contains(&bytes) {
                range.may_hold.push(bytes);
            }
        }
        state.under_way -= 1;
        if state.under_way == 0 && state.way != Way::Open {
            self.gate.change.notify_all();
        }
    }
}

/// Passes everything until it is shut. See the module.
pub struct GateDevice {
    inner: Arc<dyn BlockDevice>,
    gate: Arc<Gate>,
}

impl GateDevice {
    /// In front of `inner`, open.
    pub fn new(inner: Arc<dyn BlockDevice>) -> GateDevice {
        let gate = Gate { state: Mutex::new(&GATE, State::default()), change: Condvar::new() };
        GateDevice { inner, gate: Arc::new(gate) }
    }

    /// Waits until no change of the device is in flight. New changes wait from the call on.
    pub fn shut(&self) -> Shut<'_> {
        let mut state = self.gate.state.lock();
        if state.way == Way::Open {
            state.way = Way::Shut;
        }
        while state.under_way > 0 {
            self.gate.change.wait(&mut state);
        }
        Shut(self)
    }

    /// From now on tracks the range from `offset` on, which holds `bytes`. Only writes that cover the whole range
    /// count.
    pub fn remember(&self, offset: u64, bytes: &[u8]) {
        self.gate.state.lock().remembered = Some(Remembered { offset, may_hold: vec![bytes.to_vec()] });
    }

    /// The possible contents of the remembered range, unless another program has written there. There is more than
    /// one after a failed write. While the gate is shut, they do not change.
    pub fn remembered(&self) -> Vec<Vec<u8>> {
        self.gate.state.lock().remembered.as_ref().map_or_else(Vec::new, |range| range.may_hold.clone())
    }

    /// Whether a change would wait.
    pub fn is_shut(&self) -> bool {
        self.gate.state.lock().way == Way::Shut
    }

    fn decide(&self, way: Way) {
        let waiting = {
            let mut state = self.gate.state.lock();
            if state.way != Way::Refused {
                state.way = way;
            }
            std::mem::take(&mut state.waiting)
        };
        self.gate.change.notify_all();
        Wrapper::submit_all(self, waiting);
    }

    fn refusal(&self) -> Error {
        Error::Busy { device: self.inner.name().to_owned(), by: "another process may have opened it".to_owned() }
    }

    /// The bio that goes to the device below now; `None` if it waits.
    fn admit(&self, mut bio: Bio) -> Option<Bio> {
        if bio.op == BioOp::Read {
            return Some(bio);
        }
        let mut state = self.gate.state.lock();
        match state.way {
            Way::Open => {
                let vecs = if let BioData::Write(vecs) = &bio.data { &vecs[..] } else { &[] };
                let pieces = vecs.iter().map(BioVec::bytes);
                let (under_way, end_io) = (UnderWay::begin(&self.gate, &mut state, bio.offset, pieces), bio.end_io);
                bio.end_io = Box::new(move |done: Completion| {
                    under_way.end(&done.result);
                    end_io.end_io(done);
                });
            }
            Way::Shut => {
                state.waiting.push(bio);
                return None;
            }
            Way::Refused => {
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
            let mut state = self.gate.state.lock();
            while state.way == Way::Shut {
                self.gate.change.wait(&mut state);
            }
            if state.way == Way::Refused {
                return Err(self.refusal());
            }
            UnderWay::begin(&self.gate, &mut state, offset, pieces.iter().copied())
        };
        let result = send();
        under_way.end(&result);
        result
    }
}

/// Keeps the gate shut until [`Shut::open`]. When dropped instead, waiting and future changes fail with
/// [`Error::Busy`], for good.
#[must_use = "if it is dropped, every later write fails"]
pub struct Shut<'a>(&'a GateDevice);

impl Shut<'_> {
    /// Lets the waiting requests and all later ones pass.
    pub fn open(self) {
        self.0.decide(Way::Open);
        std::mem::forget(self);
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.decide(Way::Refused);
    }
}

impl Wrapper for GateDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
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
}
