//! Replies at idle priority, and the watch over threads that do not get their processor back.
//!
//! [`follow`](crate::transport::follow) says why a reply is sent at idle priority: the scheduler wakes the client on
//! the processor of the thread that answers, instead of moving it to an idle one, where another thread of ours would
//! have to be woken for the next request. A thread of a ring is on the client's processor already; see
//! [`Seat`](super::seat::Seat).
//!
//! If the client then computes for long, or another program takes the processor, the thread is ready but does not run.
//! So the thread that attends to the device looks every [`TICK`]: one that has been aside since the last look gets its
//! normal priority back. No thread steps aside for a while then ([`Penalty`]). While no thread steps aside, nothing
//! looks.
//!
//! Main type: [`Asides`], of all threads of a mount's rings.
//!
//! What it does not do: it chooses neither the clients nor the processor.
//!
//! # Locking
//! None: counters, and an eventfd(2).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::thread::{Pid, gettid};
use zerocopy::IntoBytes;

use crate::sys;
use crate::transport::follow::{Penalty, can_follow};

/// How often the watch looks.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// One thread's.
#[derive(Default)]
struct Turn {
    /// The thread's number, from its first step on.
    thread: AtomicU32,
    /// Odd while the thread is aside, or about to be.
    count: AtomicU32,
}

/// Which threads of a mount's rings are aside.
pub(in crate::transport) struct Asides {
    turns: Vec<Turn>,
    penalty: Penalty,
    /// Whether the watch looks every [`TICK`].
    watched: AtomicBool,
    failed: AtomicBool,
    /// Wakes the watch: a thread steps aside, or has failed.
    event: OwnedFd,
}

impl Asides {
    /// For threads with numbers less than `threads`.
    pub fn new(threads: usize) -> Result<Asides, Errno> {
        Ok(Asides {
            turns: (0..threads).map(|_| Turn::default()).collect(),
            penalty: Penalty::new(),
            watched: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Whether a thread may step aside.
    pub fn allowed(&self) -> bool {
        can_follow() && !self.penalty.is_running(Instant::now())
    }

    /// Sends replies by `submit` at idle priority. The calling thread is number `me`.
    pub fn step<T>(&self, me: usize, submit: impl FnOnce() -> T) -> T {
        let (turn, since) = (&self.turns[me], Instant::now());
        turn.thread.store(gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        turn.count.fetch_add(1, Ordering::SeqCst);
        // Before the step, because afterwards this thread may not run.
        if !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst) {
            self.wake();
        }
        let aside = sys::set_idle_policy(None, true).is_ok();
        let result = submit();
        if aside {
            let _ = sys::set_idle_policy(None, false);
        }
        turn.count.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        if now.duration_since(since) >= TICK {
            self.penalty.give(now);
        }
        result
    }

    /// Reports that a thread has failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Readable when the watch has something to do.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    fn wake(&self) {
        let _ = write(&self.event, 1u64.as_bytes());
    }
}

/// Looks at the threads of [`Asides`], for one thread.
pub(super) struct Watch<'a> {
    all: &'a Asides,
    /// The counts at the last look.
    seen: Vec<u32>,
    /// When the next look is due.
    next: Option<Instant>,
}

impl Watch<'_> {
    pub fn new(all: &Asides) -> Watch<'_> {
        Watch { all, seen: vec![0; all.turns.len()], next: None }
    }

    /// Looks, if it is time. The answer is how long to wait for the [`event`](Asides::event); None: without a limit.
    pub fn look(&mut self, now: Instant) -> Option<Duration> {
        let _ = read(&self.all.event, &mut [0; 8][..]);
        if self.next.is_none_or(|at| at <= now) {
            let mut watching = self.all.watched.load(Ordering::SeqCst) && self.has_changed();
            if !watching {
                self.all.watched.store(false, Ordering::SeqCst);
                // A thread that still found itself watched has counted before.
                watching = self.has_changed();
                self.all.watched.fetch_or(watching, Ordering::SeqCst);
            }
            self.next = watching.then_some(now + TICK);
        }
        self.next.map(|at| at.saturating_duration_since(now))
    }

    /// Gives threads that are still aside their normal priority. False: none is, and none was since the last look.
    fn has_changed(&mut self) -> bool {
        let mut changed = false;
        for (turn, seen) in self.all.turns.iter().zip(&mut self.seen) {
            let count = turn.count.load(Ordering::SeqCst);
            changed |= count != *seen || count % 2 == 1;
            if count == *seen && count % 2 == 1 {
                let thread = Pid::from_raw(turn.thread.load(Ordering::Relaxed) as i32);
                if thread.is_some_and(|t| sys::has_policy(Some(t), libc::SCHED_IDLE)) {
                    let _ = sys::set_idle_policy(thread, false);
                }
            }
            *seen = count;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::task;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn is_readable(asides: &Asides) -> bool {
        read(&asides.event, &mut [0; 8][..]).is_ok()
    }

    #[test]
    fn a_thread_that_stays_aside_gets_its_priority_back() {
        if !can_follow() {
            eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
            return;
        }
        let asides = Arc::new(Asides::new(2).expect("eventfd"));
        let (aside, is_aside) = channel();
        let (back, may_go_back) = channel();
        let shared = asides.clone();
        let thread = task::spawn("aside", move || {
            shared.step(1, || {
                aside.send(()).expect("the test waits");
                may_go_back.recv().expect("the test answers");
                sys::has_policy(None, libc::SCHED_IDLE)
            })
        });
        is_aside.recv().expect("aside");
        let (mut watch, began) = (Watch::new(&asides), Instant::now());
        assert_eq!(watch.look(began), Some(TICK));
        assert!(!is_readable(&asides), "a look takes the message");
        assert_eq!(watch.look(began + TICK / 2), Some(TICK / 2), "too early");
        assert_eq!(watch.look(began + TICK), Some(TICK));
        back.send(()).expect("the thread waits");
        assert!(!thread.expect("thread").join().expect("joined"), "it still had idle priority");
        // It counts once more when it comes back; after that nothing changes.
        assert_eq!(watch.look(began + 2 * TICK), Some(TICK));
        assert_eq!(watch.look(began + 3 * TICK), None);
        assert!(!asides.watched.load(Ordering::SeqCst));
    }

    #[test]
    fn the_first_step_calls_the_watch_and_later_ones_do_not() {
        let asides = Asides::new(1).expect("eventfd");
        assert!(!is_readable(&asides));
        asides.step(0, || ());
        assert!(is_readable(&asides));
        asides.step(0, || ());
        assert!(!is_readable(&asides));
        let (mut watch, began) = (Watch::new(&asides), Instant::now());
        assert_eq!((watch.look(began), watch.look(began + TICK)), (Some(TICK), None));
        asides.step(0, || ());
        assert!(is_readable(&asides), "the watch has ended");
    }

    #[test]
    fn no_thread_steps_aside_for_a_while_after_a_long_step() {
        let asides = Asides::new(1).expect("eventfd");
        let allowed = asides.allowed();
        asides.step(0, || extant_base::clock::Clock::real().sleep(2 * TICK));
        assert_eq!((allowed, asides.allowed()), (can_follow(), false));
    }

    #[test]
    fn a_failure_wakes_the_watch() {
        let asides = Asides::new(0).expect("eventfd");
        asides.fail();
        assert!(is_readable(&asides) && asides.has_failed());
    }
}
