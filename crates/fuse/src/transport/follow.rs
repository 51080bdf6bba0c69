//! A worker follows the client that it serves to its processor.
//!
//! A client that waits for each answer, and the worker that waits for its next request, never run at the same time. On two
//! processors each wakes the other out of idle, which costs many times what a request costs (tens of microseconds where an
//! idle processor is a halted virtual one); on one they hand over by a plain context switch. The scheduler does not see
//! it: it wakes either on an idle processor, for on the other's somebody is just running. FUSE over io_uring has a queue for
//! each processor for the same reason. So
//! - a worker that has served [`ALONE`] requests in a row of one such client binds itself to the processor where that
//!   client last ran, looks again every [`LOOK`], and lets go as soon as somebody else asks;
//! - while it sends a reply, a bound worker has the policy SCHED_IDLE: to the scheduler its processor is idle then, and the
//!   client is woken there. Whoever runs instead of the worker for long ([`SHUNNED`]) is not the client, who would soon ask
//!   again; then nobody is followed for a while. Meanwhile the crew's deputy has taken over.
//!
//! To come back from SCHED_IDLE takes a privilege; without it ([`can_step_aside`]) nobody is followed.
//!
//! Main types: [`Follower`], one for each worker; [`Aside`].
//!
//! What it does not do: it follows nobody whose requests overlap with his work (large reads are read ahead), and changes no
//! thread but its own.
//!
//! # Locking
//! None; owned by one worker.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use extant_base::task;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zerocopy::FromBytes;

use crate::abi::{InHeader, Opcode, ReadIn};
use crate::sys;

/// Requests in a row of one client before he is followed.
const ALONE: u32 = 16;
/// How often the client's processor is looked up again.
const LOOK: Duration = Duration::from_millis(4);
/// Reads of this many bytes and more are taken for readahead: their client does not wait.
const READAHEAD: u32 = 64 << 10;

/// A reply that kept the worker from running for this long: somebody else needs the processor.
const SHUNNED: Duration = Duration::from_millis(20);
/// For how long nobody is followed after that.
const PENALTY: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread is a worker that is bound.
    static BOUND: Cell<bool> = const { Cell::new(false) };
    /// When this thread last lost its processor to somebody else.
    static LOST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether a thread may have SCHED_IDLE and come back. Tried once, by a thread that is of no further use.
pub(crate) fn can_step_aside() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let tried =
            task::spawn("fuse-try", || sys::set_idle_policy(true).is_ok() && sys::set_idle_policy(false).is_ok());
        tried.is_ok_and(|t| t.join().unwrap_or(false))
    })
}

/// While it lives, whoever is woken finds this thread's processor idle; only of a bound worker.
pub(crate) struct Aside(Option<Instant>);

impl Aside {
    pub fn step() -> Aside {
        Aside((BOUND.get() && sys::set_idle_policy(true).is_ok()).then(Instant::now))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let Some(since) = self.0 else { return };
        let _ = sys::set_idle_policy(false);
        let now = Instant::now();
        if now.duration_since(since) > SHUNNED {
            LOST.set(Some(now));
        }
    }
}

pub(crate) struct Follower {
    /// Where this thread may run; None if that cannot be known, and nobody is followed.
    allowed: Option<CpuSet>,
    client: u32,
    /// Requests in a row of this client.
    streak: u32,
    bound: Option<usize>,
    looked: Instant,
}

impl Follower {
    /// For the calling thread.
    pub fn new() -> Follower {
        let allowed = if can_step_aside() { sched_getaffinity(None).ok() } else { None };
        Follower { allowed, client: 0, streak: 0, bound: None, looked: Instant::now() }
    }

    /// Takes note of a request. True if it is one more of the same client, who waits for each answer.
    pub fn request(&mut self, message: &[u8], now: Instant) -> bool {
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { return false };
        let opcode = Opcode::from_raw(header.opcode);
        if opcode.is_some_and(|o| !o.has_reply()) {
            return self.streak > 0; // nobody waits for it, and it comes with what others ask for
        }
        let ahead = opcode == Some(Opcode::Read)
            && ReadIn::read_from_prefix(body).is_ok_and(|(read, _)| read.size >= READAHEAD);
        let lost = LOST.get().is_some_and(|at| now.duration_since(at) < PENALTY);
        if header.pid != self.client || header.pid == 0 || ahead || lost {
            self.let_go();
            self.client = header.pid;
            return false;
        }
        self.streak += 1;
        if self.streak >= ALONE && (self.bound.is_none() || now.duration_since(self.looked) >= LOOK) {
            self.follow(now);
        }
        true
    }

    /// Runs anywhere again.
    pub fn let_go(&mut self) {
        self.streak = 0;
        BOUND.set(false);
        if self.bound.take().is_some()
            && let Some(allowed) = &self.allowed
        {
            let _ = sched_setaffinity(None, allowed);
        }
    }

    fn follow(&mut self, now: Instant) {
        self.looked = now;
        let Some(allowed) = &self.allowed else { return };
        let Some(processor) = processor_of(self.client).filter(|&p| p < CpuSet::MAX_CPU && allowed.is_set(p)) else {
            self.let_go(); // tries again after as many requests
            return;
        };
        if self.bound != Some(processor) {
            let mut only = CpuSet::new();
            only.set(processor);
            if sched_setaffinity(None, &only).is_ok() {
                self.bound = Some(processor);
                BOUND.set(true);
            }
        }
    }
}

/// Where a thread last ran: field 39 of /proc/PID/stat. None if it is gone, or hidden.
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

    #[test]
    fn a_lone_client_is_followed_and_let_go() {
        // A thread of its own: its affinity changes.
        let thread = task::spawn("follower", || {
            let all = processors();
            let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let mut f = Follower::new();
            if f.allowed.is_none() {
                assert!(!can_step_aside());
                eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
                return;
            }
            let served = |f: &mut Follower, opcode, pid, size, times: u32| {
                (0..times).all(|_| f.request(&message(opcode, pid, size), Instant::now()))
            };
            assert!(!served(&mut f, Opcode::Getattr, me, 0, 1), "the first is not one more");
            assert!(served(&mut f, Opcode::Getattr, me, 0, ALONE - 1));
            assert_eq!((f.bound, processors()), (None, all));
            assert!(served(&mut f, Opcode::Write, me, 0, 1));
            assert!(f.bound.is_some());
            assert_eq!(processors(), 1);
            {
                let _aside = Aside::step();
                assert!(sys::has_idle_policy());
            }
            assert!(!sys::has_idle_policy());
            // What nobody waits for, and small reads, change nothing.
            assert!(served(&mut f, Opcode::Forget, 0, 0, 1) && served(&mut f, Opcode::Read, me, 4096, 1));
            assert_eq!(processors(), 1);
            // Readahead, another client, the kernel itself, a client that is gone: anywhere again.
            for (opcode, pid, size) in
                [(Opcode::Read, me, READAHEAD), (Opcode::Getattr, me + 1, 0), (Opcode::Write, 0, 0)]
            {
                served(&mut f, Opcode::Getattr, me, 0, 1);
                assert!(served(&mut f, Opcode::Getattr, me, 0, ALONE));
                assert_eq!(processors(), 1);
                assert!(!served(&mut f, opcode, pid, size, 1));
                assert_eq!((f.bound, processors()), (None, all));
            }
            // Not bound, it does not step aside.
            let aside = Aside::step();
            assert!(aside.0.is_none() && !sys::has_idle_policy());
            // Once the processor was lost, nobody is followed for a while.
            LOST.set(Some(Instant::now()));
            served(&mut f, Opcode::Getattr, me, 0, 4 * ALONE);
            assert_eq!(f.bound, None);
            LOST.set(None);
            let gone = u32::MAX >> 1;
            served(&mut f, Opcode::Getattr, gone, 0, 4 * ALONE);
            assert_eq!((f.bound, processors()), (None, all));
        });
        thread.expect("thread").join().expect("joined");
    }
}
