//! [`GateDevice`]: what would change a device waits for as long as nobody knows whose it is.
//!
//! Shut ([`GateDevice::shut`]; Linux: `blk_mq_freeze_queue`), nothing is under way any more, and whatever comes waits,
//! until it may go on, or is refused for good ([`Shut`]). Reads pass always.
//!
//! What it does not do: find out whose the device is.
//!
//! # Locking
//! One lock (`block gate`), released before the device below or a completion is called.

use std::sync::Arc;

use extant_base::sync::{Condvar, Mutex};

use super::{BlockDevice, IoStats, Limits};
use crate::bio::{Bio, BioFlags, BioOp, Completion};
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
    /// What has passed and not ended.
    under_way: usize,
    waiting: Vec<Bio>,
}

struct Gate {
    state: Mutex<State>,
    change: Condvar,
}

/// A request that has passed: dropped, it has ended.
struct UnderWay(Arc<Gate>);

impl UnderWay {
    fn begin(gate: &Arc<Gate>, state: &mut State) -> UnderWay {
        state.under_way += 1;
        UnderWay(gate.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 && state.way != Way::Open {
            self.0.change.notify_all();
        }
    }
}

/// Lets everything through until it is told otherwise. See the module.
pub struct GateDevice {
    inner: Arc<dyn BlockDevice>,
    gate: Arc<Gate>,
}

impl GateDevice {
    /// Before `inner`: open.
    pub fn new(inner: Arc<dyn BlockDevice>) -> GateDevice {
        let gate = Gate { state: Mutex::new(&GATE, State::default()), change: Condvar::new() };
        GateDevice { inner, gate: Arc::new(gate) }
    }

    /// Returns once nothing that changes the device is under way. Whatever comes waits.
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

    /// Whether something would wait.
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
        self.submit_all(waiting);
    }

    fn refusal(&self) -> Error {
        Error::Busy { device: self.name().to_owned(), by: "somebody else may have taken it".to_owned() }
    }

    /// What of the bio goes down now.
    fn admit(&self, mut bio: Bio) -> Option<Bio> {
        if bio.op == BioOp::Read {
            return Some(bio);
        }
        let mut state = self.gate.state.lock();
        match state.way {
            Way::Open => {
                let (under_way, end_io) = (UnderWay::begin(&self.gate, &mut state), bio.end_io);
                bio.end_io = Box::new(move |done: Completion| {
                    drop(under_way);
                    end_io.end_io(done);
                });
            }
            Way::Shut => {
                state.waiting.push(bio);
                return None;
            }
            Way::Refused => {
                // Told where a completion of the device below runs, which may not be here: what goes down is a flush.
                let (Bio { op, offset, data, end_io, .. }, e) = (bio, self.refusal());
                let tell = move |_| end_io.end_io(Completion { op, offset, data, result: Err(e) });
                bio = Bio::flush(Box::new(tell));
            }
        }
        Some(bio)
    }

    /// A request that waits, and its thread with it.
    fn pass(&self, send: impl FnOnce() -> Result<()>) -> Result<()> {
        let _under_way = {
            let mut state = self.gate.state.lock();
            while state.way == Way::Shut {
                self.gate.change.wait(&mut state);
            }
            if state.way == Way::Refused {
                return Err(self.refusal());
            }
            UnderWay::begin(&self.gate, &mut state)
        };
        send()
    }
}

/// The gate is shut until this is opened. Dropped, what waits and all that comes fails with [`Error::Busy`], for good.
#[must_use = "dropped, nothing can be written any more"]
pub struct Shut<'a>(&'a GateDevice);

impl Shut<'_> {
    /// Lets go on what waits, and all that comes.
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

impl BlockDevice for GateDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
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

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.pass(|| self.inner.write_at(offset, pieces, flags))
    }

    fn flush(&self) -> Result<()> {
        self.pass(|| self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(|| self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.pass(|| self.inner.write_zeroes(offset, len, flags))
    }

    fn stats(&self) -> IoStats {
        self.inner.stats()
    }
}
