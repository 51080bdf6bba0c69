//! [`HeldDevice`]: holds requests until a test releases them.
//!
//! Most faults of code that waits for I/O need a certain state: this write is in flight, that one has completed, and
//! now another thread acts. A test specifies that state with a rule ([`Catch`]) and waits until the matching requests
//! are *held* ([`HeldDevice::wait_held`]). Then it acts, and releases them in any order, or fails them. A held request
//! has not reached the device below: reads return the old content, and a power cut leaves it.
//!
//! Bios, held or not, complete on a thread of the device, as with io_uring, and never on the submitter. Waiting calls
//! (such as [`BlockDevice::read_at`]) are held on their own thread.
//!
//! A rule may also fail a request immediately, or panic in it (like a bug somewhere below an operation).
//!
//! What it does not do: power cuts ([`super::CrashDevice`], which must be below it).
//!
//! # Locking
//! One lock (`block held`), released before the device below or a completion is called.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::{Condvar, Mutex, MutexGuard};
use extant_base::task::{self, JoinHandle};

use super::wrapper::Wrapper;
use super::{BlockDevice, total_len};
use crate::bio::{Bio, BioFlags, BioOp, Completion};
use crate::error::{Error, Result};
use crate::ranks::HELD;

/// The effect of a rule on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Hold,
    Fail(i32),
    Panic,
}

/// A rule. [`Catch::hold`], [`Catch::fail`] and [`Catch::panic`] match every request; the other calls restrict them.
#[derive(Clone, Debug)]
pub struct Catch {
    action: Action,
    op: Option<BioOp>,
    meta: Option<bool>,
    range: Option<Range<u64>>,
    skip: u64,
    times: u64,
}

impl Catch {
    fn new(action: Action) -> Catch {
        Catch { action, op: None, meta: None, range: None, skip: 0, times: u64::MAX }
    }

    /// The request is held until it is released or failed.
    pub fn hold() -> Catch {
        Catch::new(Action::Hold)
    }

    /// The request fails immediately; no part of it reaches the device below.
    pub fn fail(errno: i32) -> Catch {
        Catch::new(Action::Fail(errno))
    }

    /// The submitter panics.
    pub fn panic() -> Catch {
        Catch::new(Action::Panic)
    }

    /// Only this operation.
    pub fn op(self, op: BioOp) -> Catch {
        Catch { op: Some(op), ..self }
    }

    /// Only reads.
    pub fn reads(self) -> Catch {
        self.op(BioOp::Read)
    }

    /// Only writes.
    pub fn writes(self) -> Catch {
        self.op(BioOp::Write)
    }

    /// Only requests with META.
    pub fn meta(self) -> Catch {
        Catch { meta: Some(true), ..self }
    }

    /// Only requests without META.
    pub fn data(self) -> Catch {
        Catch { meta: Some(false), ..self }
    }

    /// Only requests that touch these bytes.
    pub fn range(self, range: Range<u64>) -> Catch {
        Catch { range: Some(range), ..self }
    }

    /// Lets the first `n` requests that match pass.
    pub fn after(self, n: u64) -> Catch {
        Catch { skip: n, ..self }
    }

    /// Catches `n` requests, then never again.
    pub fn times(self, n: u64) -> Catch {
        Catch { times: n, ..self }
    }

    /// Catches one request.
    pub fn once(self) -> Catch {
        self.times(1)
    }

    fn matches(&self, r: &Request) -> bool {
        let touches =
            |range: &Range<u64>| r.len > 0 && r.offset < range.end && range.start < r.offset.saturating_add(r.len);
        self.op.is_none_or(|op| op == r.op)
            && self.meta.is_none_or(|meta| meta == r.flags.contains(BioFlags::META))
            && self.range.as_ref().is_none_or(touches)
    }
}

/// A request, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number in the order of arrival, from 0.
    pub id: u64,
    /// The operation.
    pub op: BioOp,
    /// The start in bytes.
    pub offset: u64,
    /// The length in bytes; 0 for a flush.
    pub len: u64,
    /// The flags of the request.
    pub flags: BioFlags,
}

/// How a held request waits.
enum Requester {
    /// The device's thread completes it.
    Bio(Bio),
    /// A thread blocks, and waits for its outcome.
    Thread,
}

/// The outcome of a held request: an errno, or `None` if it is passed on.
type Outcome = Option<i32>;

#[derive(Default)]
struct State {
    rules: Vec<Catch>,
    next_id: u64,
    held: Vec<(Request, Requester)>,
    /// Bios for the device's thread.
    ready: VecDeque<(Bio, Outcome)>,
    /// Outcomes that threads have not read yet.
    told: Vec<(u64, Outcome)>,
    /// The number of requests that rules caught.
    caught: u64,
    /// The number of data writes that have completed and whose completion has run.
    data_writes: u64,
    stop: bool,
}

struct Inner {
    below: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    /// Signalled when a request was held, was released, or has completed.
    change: Condvar,
}

/// Holds the requests that its rules match. See the module.
pub struct HeldDevice {
    inner: Arc<Inner>,
    completer: Option<JoinHandle<()>>,
}

impl HeldDevice {
    /// Passes everything on to `below` until a rule is added.
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot start the thread.
    pub fn new(below: Arc<dyn BlockDevice>) -> Result<HeldDevice> {
        let inner = Arc::new(Inner { below, state: Mutex::new(&HELD, State::default()), change: Condvar::new() });
        let (mine, name) = (inner.clone(), inner.below.name().to_owned());
        let completer = task::spawn("held-complete", move || mine.complete()).map_err(|e| Error::open(&name, e))?;
        Ok(HeldDevice { inner, completer: Some(completer) })
    }

    /// Adds a rule. Rules are tried in the order in which they were added; the first that catches a request is used.
    pub fn catch(&self, rule: Catch) {
        self.inner.state.lock().rules.push(rule);
    }

    /// Removes every rule. Held requests stay held.
    pub fn clear(&self) {
        self.inner.state.lock().rules.clear();
    }

    /// The held requests, in the order of their arrival.
    pub fn held(&self) -> Vec<Request> {
        self.inner.state.lock().held.iter().map(|(r, _)| *r).collect()
    }

    /// Waits until at least `n` requests are held. Returns false after the timeout.
    pub fn wait_held(&self, n: usize, at_most: Duration) -> bool {
        self.wait(at_most, |s| s.held.len() >= n)
    }

    /// The number of requests that rules have caught so far.
    pub fn caught(&self) -> u64 {
        self.inner.state.lock().caught
    }

    /// The number of data writes (bios without META) whose completion has returned.
    pub fn data_writes(&self) -> u64 {
        self.inner.state.lock().data_writes
    }

    /// Waits until `n` data writes have completed.
    pub fn wait_data_writes(&self, n: u64, at_most: Duration) -> bool {
        self.wait(at_most, |s| s.data_writes >= n)
    }

    fn wait(&self, at_most: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let clock = Clock::real();
        let until = clock.now_ns() + at_most.as_nanos() as u64;
        let mut s = self.inner.state.lock();
        while !is_so(&s) {
            let now = clock.now_ns();
            if now >= until {
                return false;
            }
            self.inner.change.wait_for(&mut s, Duration::from_nanos(until - now));
        }
        true
    }

    /// Releases a held request. Requests complete in the order of their release.
    pub fn release(&self, id: u64) {
        self.decide(|r| r.id == id, None);
    }

    /// Releases all held requests, in the order of their arrival.
    pub fn release_all(&self) {
        self.decide(|_| true, None);
    }

    /// Fails a held request; no part of it reaches the device below.
    pub fn fail(&self, id: u64, errno: i32) {
        self.decide(|r| r.id == id, Some(errno));
    }

    /// Removes all rules and releases all requests.
    pub fn let_go(&self) {
        self.clear();
        self.release_all();
    }

    fn decide(&self, which: impl Fn(&Request) -> bool, outcome: Outcome) {
        let mut s = self.inner.state.lock();
        let (go, stay) = std::mem::take(&mut s.held).into_iter().partition(|(r, _)| which(r));
        s.held = stay;
        let go: Vec<(Request, Requester)> = go;
        for (r, waiting) in go {
            match waiting {
                Requester::Bio(bio) => s.ready.push_back((bio, outcome)),
                Requester::Thread => s.told.push((r.id, outcome)),
            }
        }
        self.inner.change.notify_all();
    }
}

impl Drop for HeldDevice {
    fn drop(&mut self) {
        self.inner.state.lock().stop = true;
        self.inner.change.notify_all();
        if let Some(thread) = self.completer.take() {
            // The last owner may be a completion, which runs on the thread itself.
            if thread.thread().id() != task::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Inner {
    fn error(&self, op: BioOp, offset: u64, len: u64, errno: i32) -> Error {
        Error::io(self.below.name(), op, offset, len, std::io::Error::from_raw_os_error(errno))
    }

    /// Numbers a request, and applies the rules to it.
    fn catches(
        s: &mut MutexGuard<'_, State>,
        op: BioOp,
        offset: u64,
        len: u64,
        flags: BioFlags,
    ) -> (Request, Option<Action>) {
        let request = Request { id: s.next_id, op, offset, len, flags };
        s.next_id += 1;
        for rule in s.rules.iter_mut().filter(|r| r.matches(&request)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                if rule.times != u64::MAX {
                    rule.times -= 1;
                }
                let action = rule.action;
                s.caught += 1;
                return (request, Some(action));
            }
        }
        (request, None)
    }

    /// The body of the device's thread.
    fn complete(self: Arc<Inner>) {
        loop {
            let (mut bio, outcome) = {
                let mut s = self.state.lock();
                loop {
                    if let Some(next) = s.ready.pop_front() {
                        break next;
                    }
                    if s.stop {
                        return;
                    }
                    self.change.wait(&mut s);
                }
            };
            let is_data = bio.op == BioOp::Write && !bio.flags.contains(BioFlags::META);
            if let Some(errno) = outcome {
                let e = self.error(bio.op, bio.offset, bio.len, errno);
                bio.complete(Err(e));
                self.count(is_data);
            } else {
                let (me, end_io) = (self.clone(), bio.end_io);
                bio.end_io = Box::new(move |c: Completion| {
                    end_io.end_io(c);
                    me.count(is_data);
                });
                self.below.submit(bio);
            }
        }
    }

    fn count(&self, is_data: bool) {
        if is_data {
            self.state.lock().data_writes += 1;
            self.change.notify_all();
        }
    }

    /// Carries out a waiting call on its own thread.
    fn pass<T>(
        &self,
        op: BioOp,
        offset: u64,
        len: u64,
        flags: BioFlags,
        carry_out: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let outcome = {
            let mut s = self.state.lock();
            let (request, action) = Inner::catches(&mut s, op, offset, len, flags);
            match action {
                None => None,
                Some(Action::Fail(errno)) => Some(errno),
                Some(Action::Panic) => {
                    drop(s);
                    panic!("{op} of {len} bytes at byte {offset}: a rule of the test caught it");
                }
                Some(Action::Hold) => {
                    s.held.push((request, Requester::Thread));
                    self.change.notify_all();
                    loop {
                        if let Some(at) = s.told.iter().position(|(id, _)| *id == request.id) {
                            break s.told.swap_remove(at).1;
                        }
                        self.change.wait(&mut s);
                    }
                }
            }
        };
        match outcome {
            None => carry_out(),
            Some(errno) => Err(self.error(op, offset, len, errno)),
        }
    }
}

impl Wrapper for HeldDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner.below
    }

    fn completes_later(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        let mut s = self.inner.state.lock();
        let (request, action) = Inner::catches(&mut s, bio.op, bio.offset, bio.len, bio.flags);
        match action {
            None => s.ready.push_back((bio, None)),
            Some(Action::Fail(errno)) => s.ready.push_back((bio, Some(errno))),
            Some(Action::Hold) => s.held.push((request, Requester::Bio(bio))),
            Some(Action::Panic) => {
                drop(s);
                panic!("{} of {} bytes at byte {}: a rule of the test caught it", bio.op, bio.len, bio.offset);
            }
        }
        self.inner.change.notify_all();
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        self.inner.pass(BioOp::Read, offset, len, flags, || self.inner.below.read_at(offset, buf, flags))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        self.inner.pass(BioOp::Write, offset, len, flags, || self.inner.below.write_at(offset, pieces, flags))
    }

    fn flush(&self) -> Result<()> {
        self.inner.pass(BioOp::Flush, 0, 0, BioFlags::empty(), || self.inner.below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.pass(BioOp::Discard, offset, len, BioFlags::empty(), || self.inner.below.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        let below = &self.inner.below;
        self.inner.pass(BioOp::WriteZeroes, offset, len, flags, || below.write_zeroes(offset, len, flags))
    }
}
