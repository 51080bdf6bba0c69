//! [`FaultyDevice`]: a device whose requests fail on demand.
//!
//! A [`Fault`] specifies which requests it matches (operation, byte range, how many to let pass first, how often to
//! strike) and what happens to them. Rules are tried in the order in which they were added; the first that strikes is
//! used.
//!
//! What it does not do: power cuts ([`super::CrashDevice`]).
//!
//! # Locking
//! One leaf lock (`block faults`) protects the rules; it is released before the device below is called.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU64, Ordering};

use super::wrapper::Wrapper;
use super::{BlockDevice, total_len};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::error::{Error, Result};
use crate::ranks::FAULTS;

/// The effect of a rule on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The request fails with this errno, and nothing reaches the device below.
    Fail(i32),
    /// The request is carried out, then reported as failed with this errno: the medium has the data, but the caller
    /// does not know.
    FailAfter(i32),
    /// The submitter sleeps for this time, then the request is passed on.
    Delay(Duration),
}

/// A rule. [`Fault::new`] matches every request; the other calls restrict it.
#[derive(Clone, Debug)]
pub struct Fault {
    action: FaultAction,
    op: Option<BioOp>,
    data: bool,
    range: Option<Range<u64>>,
    skip: u64,
    times: u64,
}

impl Fault {
    /// Strikes every request, until the other methods restrict it.
    pub fn new(action: FaultAction) -> Fault {
        Fault { action, op: None, data: false, range: None, skip: 0, times: u64::MAX }
    }

    /// Fails with EIO.
    pub fn eio() -> Fault {
        Fault::new(FaultAction::Fail(libc::EIO))
    }

    /// Only this operation. `Flush` also matches writes with PREFLUSH or FUA, because they flush, too.
    pub fn op(self, op: BioOp) -> Fault {
        Fault { op: Some(op), ..self }
    }

    /// Only requests that are not for metadata.
    pub fn data(self) -> Fault {
        Fault { data: true, ..self }
    }

    /// Only requests that touch these bytes. Explicit flushes touch none.
    pub fn range(self, range: Range<u64>) -> Fault {
        Fault { range: Some(range), ..self }
    }

    /// Lets the first `n` requests that match pass.
    pub fn after(self, n: u64) -> Fault {
        Fault { skip: n, ..self }
    }

    /// Strikes `n` times, then never again.
    pub fn times(self, n: u64) -> Fault {
        Fault { times: n, ..self }
    }

    /// Strikes once.
    pub fn once(self) -> Fault {
        self.times(1)
    }

    fn matches(&self, op: BioOp, offset: u64, len: u64, flags: BioFlags) -> bool {
        let op_fits = match self.op {
            None => true,
            Some(BioOp::Flush) => op == BioOp::Flush || flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA),
            Some(wanted) => wanted == op,
        };
        let range_fits =
            self.range.as_ref().is_none_or(|r| offset < r.end && r.start < offset.saturating_add(len) && len > 0);
        op_fits && range_fits && !(self.data && flags.contains(BioFlags::META))
    }
}

/// A device that passes everything on, except the requests that its rules strike.
pub struct FaultyDevice {
    inner: Arc<dyn BlockDevice>,
    rules: Mutex<Vec<Fault>>,
    injected: AtomicU64,
    clock: Clock,
}

impl FaultyDevice {
    /// Passes everything on until [`FaultyDevice::inject`] is called.
    pub fn new(inner: Arc<dyn BlockDevice>) -> FaultyDevice {
        let rules = Mutex::new(&FAULTS, Vec::new());
        FaultyDevice { inner, rules, injected: AtomicU64::new(0), clock: Clock::real() }
    }

    /// Sets the clock for delays.
    pub fn with_clock(self, clock: Clock) -> FaultyDevice {
        FaultyDevice { clock, ..self }
    }

    /// Adds a rule.
    pub fn inject(&self, fault: Fault) {
        self.rules.lock().push(fault);
    }

    /// Makes every flush fail after this call, as on a disk whose cache cannot be written back.
    pub fn fail_all_flushes(&self) {
        self.inject(Fault::eio().op(BioOp::Flush));
    }

    /// Makes every request fail after this call, as on a disk that was removed.
    pub fn fail_everything(&self) {
        self.inject(Fault::eio());
    }

    /// Removes every rule.
    pub fn clear(&self) {
        self.rules.lock().clear();
    }

    /// The number of times that a rule has struck.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    fn strike(&self, op: BioOp, offset: u64, len: u64, flags: BioFlags) -> Option<FaultAction> {
        let mut rules = self.rules.lock();
        for rule in rules.iter_mut().filter(|r| r.matches(op, offset, len, flags)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                if rule.times != u64::MAX {
                    rule.times -= 1;
                }
                self.injected.fetch_add(1, Ordering::Relaxed);
                return Some(rule.action);
            }
        }
        None
    }

    fn error(&self, op: BioOp, offset: u64, len: u64, errno: i32) -> Error {
        Error::io(self.inner.name(), op, offset, len, std::io::Error::from_raw_os_error(errno))
    }

    fn pass(
        &self,
        op: BioOp,
        offset: u64,
        len: u64,
        flags: BioFlags,
        carry_out: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.strike(op, offset, len, flags) {
            None => carry_out(),
            Some(FaultAction::Fail(errno)) => Err(self.error(op, offset, len, errno)),
            Some(FaultAction::FailAfter(errno)) => {
                carry_out()?;
                Err(self.error(op, offset, len, errno))
            }
            Some(FaultAction::Delay(d)) => {
                self.clock.sleep(d);
                carry_out()
            }
        }
    }
}

impl Wrapper for FaultyDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn submit(&self, mut bio: Bio) {
        match self.strike(bio.op, bio.offset, bio.len, bio.flags) {
            None => self.inner.submit(bio),
            Some(FaultAction::Fail(errno)) => {
                let e = self.error(bio.op, bio.offset, bio.len, errno);
                bio.complete(Err(e));
            }
            Some(FaultAction::FailAfter(errno)) => {
                let e = self.error(bio.op, bio.offset, bio.len, errno);
                let end_io = bio.end_io;
                bio.end_io = Box::new(move |mut done: crate::bio::Completion| {
                    done.result = done.result.and(Err(e));
                    end_io.end_io(done);
                });
                self.inner.submit(bio);
            }
            Some(FaultAction::Delay(d)) => {
                self.clock.sleep(d);
                self.inner.submit(bio);
            }
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        self.pass(BioOp::Read, offset, len, flags, || self.inner.read_at(offset, buf, flags))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.pass(BioOp::Write, offset, total_len(pieces), flags, || self.inner.write_at(offset, pieces, flags))
    }

    fn flush(&self) -> Result<()> {
        self.pass(BioOp::Flush, 0, 0, BioFlags::empty(), || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(BioOp::Discard, offset, len, BioFlags::empty(), || self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.pass(BioOp::WriteZeroes, offset, len, flags, || self.inner.write_zeroes(offset, len, flags))
    }
}
