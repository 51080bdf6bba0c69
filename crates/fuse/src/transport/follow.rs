//! Moves a worker to the processor of the client that it serves.
//!
//! A client that waits for each answer, and the worker that waits for its next request, never run at the same time.
//! On two processors each wakes the other out of idle, which costs many times the cost of a request (tens of
//! microseconds where an idle processor is a halted virtual one). On one processor they hand over by a plain context
//! switch. The scheduler does not see that: at each wake-up it chooses an idle processor, because the other thread is
//! just running on its own. FUSE over io_uring has a queue for each processor for the same reason. Therefore:
//! - A worker that has served [`ALONE`] requests in a row of one such client binds itself to the processor where that
//!   client last ran. It looks again every [`LOOK`], and unbinds as soon as another client sends a request.
//! - While it sends a reply, a bound worker has the policy SCHED_IDLE: to the scheduler its processor is idle then,
//!   and the client wakes up there. If a thread runs instead of the worker for long ([`SHUNNED`]), it is not the
//!   client, which would soon send its next request. No client is followed for a while then.
//!
//! A bound worker that waits for its processor must not delay others: before the pool's standby takes over or sleeps,
//! it unbinds all workers ([`Bound::release`]).
//!
//! A thread needs a privilege to leave SCHED_IDLE. Without it no client is followed ([`can_follow`]). Nor is a client
//! outside of this PID namespace.
//!
//! Main types: [`Bound`], of all workers of a mount; [`Follower`], one for each; [`IdlePriority`]; [`Penalty`].
//!
//! What it does not do: it follows no client whose requests overlap. Large reads are read ahead. Other requests that
//! wait during a call are noticed only now and then, when the processor is looked up.
//!
//! # Locking
//! None. Each [`Follower`] is owned by its worker. [`Bound`] is atomic, and its `release` is called under the pool's
//! lock, which every worker takes before its thread ends.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::task;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use zerocopy::FromBytes;

use crate::abi::{InHeader, Opcode, ReadIn};
use crate::sys;

/// Requests in a row of one client before it is followed.
const ALONE: u32 = 16;
/// How often the client's processor is looked up again.
const LOOK: Duration = Duration::from_millis(4);
/// After this many looks in a row that found another request waiting, the client counts as one that does not wait for
/// answers. Messages of the kernel itself (FORGET) are there at one look and not at the next.
const QUEUED: u32 = 4;
/// Reads of at least this many bytes count as readahead: their client does not wait.
const READAHEAD: u32 = 64 << 10;

/// If a reply kept the worker from running for this long, another thread needs the processor. (A host may take a
/// virtual processor away for ten milliseconds now and then; that does not count.)
const SHUNNED: Duration = Duration::from_millis(20);
/// How long no client is followed after that: twice as long as the last time, if that ended less than [`PENALTY_MAX`]
/// ago.
const PENALTY_MIN: Duration = Duration::from_millis(50);
const PENALTY_MAX: Duration = Duration::from_secs(2);

thread_local! {
    /// Whether this thread is a bound worker.
    static BOUND: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread lost its processor to another thread for long.
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Whether clients can be followed: a thread may enter and leave SCHED_IDLE, and /proc numbers threads as the
/// requests do. Tried once, in a thread that ends afterwards.
pub(crate) fn can_follow() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let tried = task::spawn("fuse-try", || {
            let me = std::fs::read_to_string("/proc/thread-self/stat").ok();
            let me = me.and_then(|s| s.split(' ').next()?.parse().ok());
            me == Some(gettid().as_raw_nonzero().get())
                // Another policy was chosen on purpose: leave it.
                && sys::has_policy(None, libc::SCHED_OTHER)
                && sys::set_idle_policy(None, true).is_ok()
                && sys::set_idle_policy(None, false).is_ok()
                && sched_getaffinity(None).is_ok()
        });
        tried.is_ok_and(|t| t.join().unwrap_or(false))
    })
}

/// Which workers of a mount are bound.
pub(crate) struct Bound {
    /// The bound thread of each worker; 0: the worker is not bound.
    threads: Vec<AtomicU32>,
    penalty: Penalty,
}

impl Bound {
    pub fn new(workers: usize) -> Bound {
        Bound { threads: (0..workers).map(|_| AtomicU32::new(0)).collect(), penalty: Penalty::new() }
    }

    /// Unbinds every worker at once, so that it may run where the calling thread may. This includes a worker that
    /// waits for its processor.
    pub fn release(&self) {
        for thread in &self.threads {
            let Some(thread) = Pid::from_raw(thread.swap(0, Ordering::SeqCst) as i32) else { continue };
            if sys::has_policy(Some(thread), libc::SCHED_IDLE) {
                // It has been at idle priority all that time.
                let _ = sys::set_idle_policy(Some(thread), false);
                self.penalty.give(Instant::now());
            }
            if let Ok(anywhere) = sched_getaffinity(None) {
                let _ = sched_setaffinity(Some(thread), &anywhere);
            }
        }
    }
}

/// For how long no client is followed after a thread has lost its processor.
pub(crate) struct Penalty {
    began: Instant,
    /// Its end, in nanoseconds since `began`.
    until: AtomicU64,
    /// The last one, in nanoseconds.
    last: AtomicU64,
}

impl Penalty {
    pub fn new() -> Penalty {
        Penalty { began: Instant::now(), until: AtomicU64::new(0), last: AtomicU64::new(0) }
    }

    /// Begins one: of [`PENALTY_MIN`], or twice as long as the last one, if that has ended not long ago.
    pub fn give(&self, now: Instant) {
        let now = now.duration_since(self.began).as_nanos() as u64;
        let (least, most) = (PENALTY_MIN.as_nanos() as u64, PENALTY_MAX.as_nanos() as u64);
        let again = now < self.until.load(Ordering::Relaxed) + most;
        let last = self.last.load(Ordering::Relaxed);
        let penalty = if again { (2 * last).clamp(least, most) } else { least };
        self.last.store(penalty, Ordering::Relaxed);
        self.until.store(now + penalty, Ordering::Relaxed);
    }

    pub fn is_running(&self, now: Instant) -> bool {
        (now.duration_since(self.began).as_nanos() as u64) < self.until.load(Ordering::Relaxed)
    }
}

/// While this exists, the scheduler sees this thread's processor as idle. Only for a bound worker.
pub(crate) struct IdlePriority(Option<Instant>);

impl IdlePriority {
    pub fn step() -> IdlePriority {
        IdlePriority((BOUND.get() && sys::set_idle_policy(None, true).is_ok()).then(Instant::now))
    }
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        let Some(since) = self.0 else { return };
        let _ = sys::set_idle_policy(None, false);
        if since.elapsed() > SHUNNED {
            LOST.set(true);
        }
    }
}

/// Belongs to one worker; binds the thread that calls it.
pub(crate) struct Follower<'a> {
    all: &'a Bound,
    me: usize,
    client: u32,
    /// Requests in a row of this client.
    streak: u32,
    /// Looks in a row that found another request waiting.
    queued: u32,
    /// The processor that the thread is bound to, and its former set of processors.
    bound: Option<(usize, CpuSet)>,
    looked: Instant,
}

impl Follower<'_> {
    /// For the calling thread, which is the worker `me`.
    pub fn new(all: &Bound, me: usize) -> Follower<'_> {
        Follower { all, me, client: 0, streak: 0, queued: 0, bound: None, looked: Instant::now() }
    }

    /// Notes a request. True if it is one more of the same client, which waits for each answer. `waiting`: whether
    /// another request can be read.
    pub fn request(&mut self, message: &[u8], now: Instant, waiting: impl FnOnce() -> bool) -> bool {
        if self.bound.is_some() && self.thread().load(Ordering::SeqCst) == 0 {
            self.let_go(); // it was released
        }
        if LOST.take() {
            self.all.penalty.give(now);
        }
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { return false };
        let opcode = Opcode::from_raw(header.opcode);
        if opcode.is_some_and(|o| !o.has_reply()) {
            return self.streak > 0; // no client waits for it, and it accompanies other requests
        }
        let ahead = opcode == Some(Opcode::Read)
            && ReadIn::read_from_prefix(body).is_ok_and(|(read, _)| read.size >= READAHEAD);
        if header.pid != self.client || header.pid == 0 || ahead || self.all.penalty.is_running(now) {
            self.let_go();
            self.client = header.pid;
            return false;
        }
        self.streak += 1;
        if self.streak >= ALONE && (self.bound.is_none() || now.duration_since(self.looked) >= LOOK) {
            self.look(now, waiting());
        }
        true
    }

    /// Unbinds the thread.
    pub fn let_go(&mut self) {
        (self.streak, self.queued) = (0, 0);
        BOUND.set(false);
        let Some((processor, before)) = self.bound.take() else { return };
        // Unless the standby released it, or its processors were changed by other means since.
        if self.thread().swap(0, Ordering::SeqCst) != 0
            && sched_getaffinity(None).is_ok_and(|now| now == only(processor))
        {
            let _ = sched_setaffinity(None, &before);
        }
    }

    fn thread(&self) -> &AtomicU32 {
        &self.all.threads[self.me]
    }

    fn look(&mut self, now: Instant, waiting: bool) {
        self.looked = now;
        if !can_follow() {
            return;
        }
        if waiting {
            self.queued += 1;
            if self.queued >= QUEUED {
                self.all.penalty.give(now);
                self.let_go();
            }
            return;
        }
        self.queued = 0;
        let before = match self.bound {
            Some((_, before)) => Some(before),
            None => sched_getaffinity(None).ok(),
        };
        let processor = processor_of(self.client).filter(|&p| p < CpuSet::MAX_CPU);
        let (Some(before), Some(processor)) = (before, processor) else {
            return self.let_go(); // tries again after as many requests
        };
        if !before.is_set(processor) {
            return self.let_go();
        }
        if self.bound.is_none_or(|(at, _)| at != processor) && sched_setaffinity(None, &only(processor)).is_ok() {
            self.bound = Some((processor, before));
            BOUND.set(true);
            // Last, so that `release` finds the thread bound.
            self.thread().store(gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
        }
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// Where a thread last ran: field 39 of /proc/PID/stat. None if it has ended, or is hidden.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The second field is a name in brackets, and may hold anything; the third follows the last bracket.
    stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::task;
    use zerocopy::IntoBytes;

    fn message(opcode: Opcode, pid: u32, size: u32) -> Vec<u8> {
        let read = ReadIn { size, ..ReadIn::default() };
        let len = (size_of::<InHeader>() + size_of::<ReadIn>()) as u32;
        let header = InHeader { len, opcode: opcode as u32, unique: 1, nodeid: 1, pid, ..InHeader::default() };
        [header.as_bytes(), read.as_bytes()].concat()
    }

    fn processors() -> u32 {
        sched_getaffinity(None).expect("affinity").count()
    }

    /// Runs `body` in a thread of its own, because its affinity and policy change; skipped without the privilege.
    fn alone(body: impl FnOnce() + Send + 'static) {
        if !can_follow() {
            eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
            return;
        }
        task::spawn("follower", body).expect("thread").join().expect("joined");
    }

    fn me() -> u32 {
        gettid().as_raw_nonzero().get() as u32
    }

    /// Whether all were one more of the same client, all at one moment, regardless of the machine's speed.
    fn served(f: &mut Follower<'_>, opcode: Opcode, pid: u32, size: u32, times: u32) -> bool {
        let each = (0..times).map(|_| f.request(&message(opcode, pid, size), f.all.penalty.began, || false));
        each.fold(true, |all, one| all & one)
    }

    #[test]
    fn a_single_client_is_followed_until_another_sends_a_request() {
        alone(|| {
            let all = processors();
            let bound = Bound::new(2);
            let mut f = Follower::new(&bound, 1);
            assert!(!served(&mut f, Opcode::Getattr, me(), 0, 1), "the first is not one more");
            assert!(served(&mut f, Opcode::Getattr, me(), 0, ALONE - 1));
            assert_eq!((f.bound.is_some(), processors()), (false, all));
            assert!(served(&mut f, Opcode::Write, me(), 0, 1));
            assert_eq!((f.bound.is_some(), processors()), (true, 1));
            {
                let _aside = IdlePriority::step();
                assert!(sys::has_policy(None, libc::SCHED_IDLE));
            }
            assert!(sys::has_policy(None, libc::SCHED_OTHER));
            LOST.set(false); // on a busy machine it may be set
            // Messages that no client waits for, and small reads, change nothing.
            assert!(served(&mut f, Opcode::Forget, 0, 0, 1) && served(&mut f, Opcode::Read, me(), 4096, 1));
            assert_eq!(processors(), 1);
            // Readahead, another client, and requests of the kernel itself unbind it.
            for (opcode, pid, size) in
                [(Opcode::Read, me(), READAHEAD), (Opcode::Getattr, me() + 1, 0), (Opcode::Write, 0, 0)]
            {
                served(&mut f, Opcode::Getattr, me(), 0, 1);
                assert!(served(&mut f, Opcode::Getattr, me(), 0, ALONE));
                assert_eq!(processors(), 1);
                assert!(!served(&mut f, opcode, pid, size, 1));
                assert_eq!((f.bound.is_some(), processors()), (false, all));
            }
            // An unbound thread keeps its priority.
            assert!(IdlePriority::step().0.is_none() && sys::has_policy(None, libc::SCHED_OTHER));
            // The client has ended.
            served(&mut f, Opcode::Getattr, u32::MAX >> 1, 0, 4 * ALONE);
            assert_eq!((f.bound.is_some(), processors()), (false, all));
            // At its end the thread has its former settings.
            served(&mut f, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert_eq!(processors(), 1);
            drop(f);
            assert_eq!((processors(), bound.threads[1].load(Ordering::SeqCst)), (all, 0));
        });
    }

    #[test]
    fn a_lost_processor_suspends_following_for_all_workers() {
        alone(|| {
            let bound = Bound::new(2);
            let (mut f, mut other) = (Follower::new(&bound, 0), Follower::new(&bound, 1));
            LOST.set(true);
            served(&mut f, Opcode::Getattr, me(), 0, 4 * ALONE);
            served(&mut other, Opcode::Getattr, me(), 0, 4 * ALONE);
            assert!(f.bound.is_none() && other.bound.is_none());
            bound.penalty.until.store(0, Ordering::Relaxed);
            served(&mut other, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert!(other.bound.is_some());
            // The penalty grows each time, up to a limit; after a while without one it starts anew.
            let penalty = || Duration::from_nanos(bound.penalty.last.load(Ordering::Relaxed));
            let mut at = bound.penalty.began + 10 * PENALTY_MAX;
            for times in 0..10 {
                bound.penalty.give(at);
                assert_eq!(penalty(), (PENALTY_MIN * (1 << times)).min(PENALTY_MAX));
                at += penalty();
            }
            bound.penalty.give(at + 2 * PENALTY_MAX);
            assert_eq!(penalty(), PENALTY_MIN);
        });
    }

    #[test]
    fn a_client_with_overlapping_requests_is_not_followed() {
        alone(|| {
            let bound = Bound::new(1);
            let mut f = Follower::new(&bound, 0);
            let overlapping = |f: &mut Follower<'_>, times| {
                let each =
                    (0..times).map(|_| f.request(&message(Opcode::Read, me(), 4096), f.all.penalty.began, || true));
                each.fold(true, |all, one| all & one)
            };
            served(&mut f, Opcode::Read, me(), 4096, 1);
            assert!(overlapping(&mut f, ALONE - 1 + QUEUED - 1), "the kernel sends a message of its own now and then");
            assert!(f.bound.is_none() && !bound.penalty.is_running(bound.penalty.began));
            assert!(served(&mut f, Opcode::Read, me(), 4096, 1));
            assert!(f.bound.is_some());
            f.let_go();
            overlapping(&mut f, ALONE + QUEUED);
            assert!(f.bound.is_none() && bound.penalty.is_running(bound.penalty.began));
            assert!(!served(&mut f, Opcode::Read, me(), 4096, 4 * ALONE), "other workers may be called to help");
        });
    }

    #[test]
    fn a_bound_worker_is_released_by_another_thread() {
        alone(|| {
            let all = processors();
            let bound = std::sync::Arc::new(Bound::new(1));
            let shared = bound.clone();
            let mut f = Follower::new(&bound, 0);
            served(&mut f, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert_eq!(processors(), 1);
            let aside = IdlePriority::step();
            // Not a child of this thread, which would inherit its set of processors.
            let standby = move || {
                let mut everywhere = CpuSet::new();
                (0..CpuSet::MAX_CPU).for_each(|p| everywhere.set(p));
                sched_setaffinity(None, &everywhere).expect("affinity");
                sys::set_idle_policy(None, false).expect("policy");
                shared.release();
            };
            task::spawn("standby", standby).expect("thread").join().expect("joined");
            assert_eq!(processors(), all);
            assert!(
                sys::has_policy(None, libc::SCHED_OTHER),
                "it may have waited for a processor while it ran at idle priority"
            );
            assert!(bound.penalty.is_running(bound.penalty.began));
            drop(aside);
            LOST.set(false); // on a busy machine it may be set
            bound.penalty.until.store(0, Ordering::Relaxed);
            assert!(served(&mut f, Opcode::Getattr, me(), 0, 1) && f.bound.is_none());
            served(&mut f, Opcode::Getattr, me(), 0, ALONE);
            assert_eq!((f.bound.is_some(), processors()), (true, 1), "and follows again");
        });
    }
}
