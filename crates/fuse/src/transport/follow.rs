//! Moves a worker to the processor of the client that it serves.
//!
//! A client that waits for each answer, and the worker that waits for its next request, never run at the same time. On
//! two processors each wakes the other from idle, which costs many times as much as a request: tens of microseconds if
//! idle processors are halted virtual ones. On one processor they alternate by a plain context switch. The scheduler
//! does not see that: at each wake-up it chooses an idle processor, because the other thread is still running on its
//! own processor. FUSE over io_uring has a queue per processor for the same reason. Therefore:
//! - A worker that has served [`ALONE`] requests in a row of one such client binds itself to the processor where that
//!   client last ran. It looks again every [`LOOK`], and unbinds as soon as another client sends a request.
//! - A bound worker is aside ([`Stay`]): the scheduler treats its processor as idle, and the client wakes up there.
//!
//! A bound worker that waits for its processor must not delay others: before the pool's standby takes over or sleeps,
//! it unbinds all workers ([`Bound::release`]).
//!
//! A thread needs a privilege to leave SCHED_IDLE. Without the privilege, no client is followed ([`can_follow`]).
//! Clients outside this PID namespace are not followed either, and without a standby no worker follows a client.
//!
//! Main types: [`Bound`], of all threads of a mount; [`Binding`], of one; [`Follower`], which decides for a worker.
//!
//! What it does not do: it follows no client whose requests overlap. Large reads count as readahead. Other overlapping
//! requests are noticed only now and then, when the worker looks up the client's processor.
//!
//! # Locking
//! None. A [`Follower`] and a [`Binding`] belong to their thread. [`Bound`] is atomic, and its `release` is called
//! under the pool's lock, which every worker takes before its thread ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use extant_base::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use zerocopy::FromBytes;

use super::aside::{Asides, LOOK, Penalty, Stay, can_step_aside};
use crate::abi::{InHeader, Opcode, ReadIn};

/// Requests in a row of one client before it is followed.
const ALONE: u32 = 16;
/// After this many looks in a row that found another request waiting, the client counts as one that does not wait for
/// answers. Messages from the kernel itself (FORGET) are present at one look and not at the next.
const QUEUED: u32 = 4;
/// Reads of at least this many bytes count as readahead: their client does not wait.
const READAHEAD: u32 = 64 << 10;

/// Which threads of a mount are bound.
pub(super) struct Bound {
    /// Thread IDs; 0 for a thread that is not bound.
    threads: Vec<AtomicU32>,
    asides: Arc<Asides>,
}

impl Bound {
    /// For threads with numbers below `threads`.
    pub fn new(threads: usize) -> Bound {
        let asides = Arc::new(Asides::new(threads));
        Bound { threads: (0..threads).map(|_| AtomicU32::new(0)).collect(), asides }
    }

    /// Whether clients can be followed.
    pub fn can_follow(&self) -> bool {
        self.threads.len() > 1 && can_step_aside()
    }

    pub fn asides(&self) -> &Arc<Asides> {
        &self.asides
    }

    /// Unbinds every worker at once, so that it may run wherever the calling thread may. This includes a worker that
    /// waits for its processor.
    pub fn release(&self, now: Instant) {
        for (me, thread) in self.threads.iter().enumerate() {
            let Some(thread) = Pid::from_raw(thread.swap(0, Ordering::SeqCst) as i32) else { continue };
            self.asides.end(me, now);
            if let Ok(anywhere) = sched_getaffinity(None) {
                let _ = sched_setaffinity(Some(thread), &anywhere);
            }
        }
    }
}

/// On which processor one thread of a mount runs, and at which priority; used by that thread only.
pub(super) struct Binding {
    all: Arc<Bound>,
    me: usize,
    stay: Stay,
    /// The processor that the thread is bound to, and its previous affinity.
    to: Cell<Option<(usize, CpuSet)>>,
}

impl Binding {
    /// For the calling thread, which is number `me`.
    pub fn new(all: &Arc<Bound>, me: usize) -> Rc<Binding> {
        let stay = Stay::new(all.asides.clone(), me);
        Rc::new(Binding { all: all.clone(), me, stay, to: Cell::new(None) })
    }

    pub fn stay(&self) -> &Stay {
        &self.stay
    }

    pub fn is_bound(&self) -> bool {
        self.to.get().is_some()
    }

    /// Whether another thread has released this one.
    fn is_released(&self) -> bool {
        self.is_bound() && self.thread().load(Ordering::SeqCst) == 0
    }

    /// Binds the thread to `processor`. False if it may not run there.
    pub fn bind(&self, processor: usize) -> bool {
        let before = match self.to.get() {
            Some((at, _)) if at == processor => return true,
            Some((_, before)) => Some(before),
            None => sched_getaffinity(None).ok(),
        };
        let Some(before) = before.filter(|set| processor < CpuSet::MAX_CPU && set.is_set(processor)) else {
            return false;
        };
        if sched_setaffinity(None, &only(processor)).is_err() {
            return false;
        }
        self.to.set(Some((processor, before)));
        // Last, so that `release` finds the thread bound.
        self.thread().store(gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
        true
    }

    /// Unbinds the thread, at normal priority.
    pub fn let_go(&self) {
        self.stay.leave();
        let Some((processor, before)) = self.to.take() else { return };
        // Unless the standby has released the thread, or something else has changed its affinity since.
        if self.thread().swap(0, Ordering::SeqCst) != 0
            && sched_getaffinity(None).is_ok_and(|now| now == only(processor))
        {
            let _ = sched_setaffinity(None, &before);
        }
    }

    fn thread(&self) -> &AtomicU32 {
        &self.all.threads[self.me]
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Belongs to one worker; binds the thread that calls it.
pub(super) struct Follower {
    binding: Rc<Binding>,
    client: u32,
    /// Requests in a row of this client.
    streak: u32,
    /// Consecutive looks that found another request waiting.
    queued: u32,
    looked: Instant,
}

impl Follower {
    /// For the calling thread, which is the worker `me`.
    pub fn new(all: &Arc<Bound>, me: usize) -> Follower {
        Follower { binding: Binding::new(all, me), client: 0, streak: 0, queued: 0, looked: Instant::now() }
    }

    pub fn binding(&self) -> &Rc<Binding> {
        &self.binding
    }

    /// Notes a request. True if it comes from the same client as the previous one, and that client waits for each
    /// answer. `waiting`: whether another request can be read.
    pub fn request(&mut self, message: &[u8], now: Instant, waiting: impl FnOnce() -> bool) -> bool {
        if self.binding.is_released() {
            self.let_go();
        }
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { return false };
        let opcode = Opcode::from_raw(header.opcode);
        if opcode.is_some_and(|o| !o.has_reply()) {
            return self.streak > 0; // no client waits for it, and it accompanies other requests
        }
        let ahead = opcode == Some(Opcode::Read)
            && ReadIn::read_from_prefix(body).is_ok_and(|(read, _)| read.size >= READAHEAD);
        if header.pid != self.client || header.pid == 0 || ahead || self.penalty().is_running(now) {
            self.let_go();
            self.client = header.pid;
            return false;
        }
        self.streak += 1;
        let is_bound = self.binding.is_bound();
        if self.streak >= ALONE && (!is_bound || now.duration_since(self.looked) >= LOOK) {
            self.look(now, waiting());
        }
        if self.binding.is_bound() {
            // The pool's standby looks anyway.
            self.binding.stay.go_on(self.client, now, || ());
        }
        true
    }

    /// Unbinds the thread.
    pub fn let_go(&mut self) {
        (self.streak, self.queued) = (0, 0);
        self.binding.let_go();
    }

    fn penalty(&self) -> &Penalty {
        self.binding.all.asides.penalty()
    }

    fn look(&mut self, now: Instant, waiting: bool) {
        self.looked = now;
        if !self.binding.all.can_follow() {
            return;
        }
        if waiting {
            self.queued += 1;
            if self.queued >= QUEUED {
                self.penalty().give(now);
                self.let_go();
            }
            return;
        }
        self.queued = 0;
        if !processor_of(self.client).is_some_and(|processor| self.binding.bind(processor)) {
            self.let_go(); // tries again after as many requests
        }
    }
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// The processor on which a thread last ran: field 39 of /proc/PID/stat. None if the thread has ended, or is hidden.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The second field is a name in parentheses, which may contain anything; the third follows the last parenthesis.
    stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
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
        if !can_step_aside() {
            eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
            return;
        }
        task::spawn("follower", body).expect("thread").join().expect("joined");
    }

    fn me() -> u32 {
        gettid().as_raw_nonzero().get() as u32
    }

    fn is_aside() -> bool {
        sys::has_policy(None, libc::SCHED_IDLE)
    }

    /// Whether each request continued the streak of one client. All of them happen at one time, so the machine's speed
    /// does not matter.
    fn served(f: &mut Follower, opcode: Opcode, pid: u32, size: u32, times: u32) -> bool {
        let began = f.penalty().began();
        let each = (0..times).map(|_| f.request(&message(opcode, pid, size), began, || false));
        each.fold(true, |all, one| all & one)
    }

    #[test]
    fn a_single_client_is_followed_until_another_sends_a_request() {
        alone(|| {
            let all = processors();
            let bound = Arc::new(Bound::new(2));
            let mut f = Follower::new(&bound, 1);
            assert!(!served(&mut f, Opcode::Getattr, me(), 0, 1), "the first is not one more");
            assert!(served(&mut f, Opcode::Getattr, me(), 0, ALONE - 1));
            assert_eq!((is_aside(), processors()), (false, all));
            assert!(served(&mut f, Opcode::Write, me(), 0, 1));
            assert_eq!((is_aside(), processors()), (true, 1));
            // Messages that no client waits for, and small reads, change nothing.
            assert!(served(&mut f, Opcode::Forget, 0, 0, 1) && served(&mut f, Opcode::Read, me(), 4096, 1));
            assert_eq!((is_aside(), processors()), (true, 1));
            // Readahead, another client, and requests from the kernel itself unbind the thread.
            for (opcode, pid, size) in
                [(Opcode::Read, me(), READAHEAD), (Opcode::Getattr, me() + 1, 0), (Opcode::Write, 0, 0)]
            {
                served(&mut f, Opcode::Getattr, me(), 0, 1);
                assert!(served(&mut f, Opcode::Getattr, me(), 0, ALONE));
                assert_eq!((is_aside(), processors()), (true, 1));
                assert!(!served(&mut f, opcode, pid, size, 1));
                assert_eq!((is_aside(), processors()), (false, all));
            }
            // The client has ended.
            served(&mut f, Opcode::Getattr, u32::MAX >> 1, 0, 4 * ALONE);
            assert_eq!((is_aside(), processors()), (false, all));
            // At its end the thread has its previous settings.
            served(&mut f, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert_eq!((is_aside(), processors()), (true, 1));
            drop(f);
            assert_eq!((is_aside(), processors(), bound.threads[1].load(Ordering::SeqCst)), (false, all, 0));
        });
    }

    #[test]
    fn a_delay_suspends_following_for_all_workers() {
        alone(|| {
            let bound = Arc::new(Bound::new(2));
            let (mut f, mut other) = (Follower::new(&bound, 0), Follower::new(&bound, 1));
            let penalty = bound.asides().penalty();
            penalty.give(penalty.began());
            served(&mut f, Opcode::Getattr, me(), 0, 4 * ALONE);
            served(&mut other, Opcode::Getattr, me(), 0, 4 * ALONE);
            assert!(!f.binding.is_bound() && !other.binding.is_bound());
            penalty.end();
            served(&mut other, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert!(other.binding.is_bound());
        });
    }

    #[test]
    fn a_worker_without_a_standby_follows_nobody() {
        alone(|| {
            let bound = Arc::new(Bound::new(1));
            let mut f = Follower::new(&bound, 0);
            served(&mut f, Opcode::Getattr, me(), 0, 4 * ALONE);
            assert!(!f.binding.is_bound() && !is_aside());
        });
    }

    #[test]
    fn a_client_with_overlapping_requests_is_not_followed() {
        alone(|| {
            let bound = Arc::new(Bound::new(2));
            let mut f = Follower::new(&bound, 0);
            let penalty = bound.asides().penalty();
            let overlapping = |f: &mut Follower, times| {
                let each = (0..times).map(|_| f.request(&message(Opcode::Read, me(), 4096), penalty.began(), || true));
                each.fold(true, |all, one| all & one)
            };
            served(&mut f, Opcode::Read, me(), 4096, 1);
            assert!(overlapping(&mut f, ALONE - 1 + QUEUED - 1), "the kernel sends a message of its own now and then");
            assert!(!f.binding.is_bound() && !penalty.is_running(penalty.began()));
            assert!(served(&mut f, Opcode::Read, me(), 4096, 1));
            assert!(f.binding.is_bound());
            f.let_go();
            overlapping(&mut f, ALONE + QUEUED);
            assert!(!f.binding.is_bound() && penalty.is_running(penalty.began()));
            assert!(!served(&mut f, Opcode::Read, me(), 4096, 4 * ALONE), "other workers may be called to help");
        });
    }

    #[test]
    fn a_bound_worker_is_released_by_another_thread() {
        alone(|| {
            let all = processors();
            let bound = Arc::new(Bound::new(2));
            let shared = bound.clone();
            let mut f = Follower::new(&bound, 0);
            served(&mut f, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert_eq!((is_aside(), processors()), (true, 1));
            // Not a child of this thread, whose affinity it would inherit.
            let standby = move || {
                let mut everywhere = CpuSet::new();
                (0..CpuSet::MAX_CPU).for_each(|p| everywhere.set(p));
                sched_setaffinity(None, &everywhere).expect("affinity");
                shared.release(Instant::now());
            };
            task::spawn("standby", standby).expect("thread").join().expect("joined");
            assert_eq!((is_aside(), processors()), (false, all));
            bound.asides().penalty().end(); // on a busy machine one may run
            assert!(served(&mut f, Opcode::Getattr, me(), 0, 1) && !f.binding.is_bound());
            served(&mut f, Opcode::Getattr, me(), 0, ALONE);
            assert_eq!((is_aside(), processors()), (true, 1), "and follows again");
        });
    }

    #[test]
    fn a_thread_that_a_bound_worker_starts_inherits_neither_processor_nor_priority() {
        alone(|| {
            let all = processors();
            let bound = Arc::new(Bound::new(2));
            let mut f = Follower::new(&bound, 0);
            let parent = f.binding.clone();
            task::has_own_settings(Some(Rc::new(move || parent.let_go())));
            served(&mut f, Opcode::Getattr, me(), 0, 2 * ALONE);
            assert_eq!((is_aside(), processors()), (true, 1));
            let child = task::spawn("child", || (is_aside(), processors())).expect("thread").join().expect("joined");
            assert_eq!(child, (false, all));
            assert!(served(&mut f, Opcode::Getattr, me(), 0, 1));
            assert_eq!((is_aside(), processors()), (true, 1), "and follows again");
        });
    }
}
