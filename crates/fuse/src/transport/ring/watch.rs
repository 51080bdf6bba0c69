//! The watch over the threads of the rings. Every [`TICK`], the thread that attends to the device checks whether the
//! threads that are [aside](crate::transport::aside) get their processor. While no thread is aside, it does not check.
//!
//! Main types: [`Alarm`], of all threads of a mount's rings; [`Watch`], of the thread that checks.
//!
//! What it does not do: it chooses neither the clients nor the processor.
//!
//! # Locking
//! None: flags, and an eventfd(2).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use zerocopy::IntoBytes;

use crate::transport::aside::TICK;
use crate::transport::follow::Bound;

/// Wakes the watch.
pub(in crate::transport) struct Alarm {
    bound: Arc<Bound>,
    /// Whether the watch checks every [`TICK`].
    watched: AtomicBool,
    failed: AtomicBool,
    event: OwnedFd,
}

impl Alarm {
    /// For threads with numbers below `threads`.
    pub fn new(threads: usize) -> Result<Alarm, Errno> {
        Ok(Alarm {
            bound: Arc::new(Bound::new(threads)),
            watched: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn bound(&self) -> &Arc<Bound> {
        &self.bound
    }

    /// Called when a thread is about to step aside, because it may not run afterwards.
    pub fn watch(&self) {
        if !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst) {
            self.wake();
        }
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

/// Watches the threads that are aside; used by one thread.
pub(super) struct Watch<'a> {
    alarm: &'a Alarm,
    seen: Vec<u32>,
    /// When the next check is due.
    next: Option<Instant>,
}

impl Watch<'_> {
    pub fn new(alarm: &Alarm) -> Watch<'_> {
        Watch { alarm, seen: Vec::new(), next: None }
    }

    /// Checks, if it is time. Returns how long to wait for the [`event`](Alarm::event); None for no limit.
    pub fn look(&mut self, now: Instant) -> Option<Duration> {
        let _ = read(&self.alarm.event, &mut [0; 8][..]);
        if self.next.is_none_or(|at| at <= now) {
            let asides = self.alarm.bound.asides();
            let mut watching = self.alarm.watched.load(Ordering::SeqCst) && asides.look(&mut self.seen, now);
            if !watching {
                self.alarm.watched.store(false, Ordering::SeqCst);
                // A thread that still saw the watch running has already counted itself.
                watching = asides.look(&mut self.seen, now);
                self.alarm.watched.fetch_or(watching, Ordering::SeqCst);
            }
            self.next = watching.then_some(now + TICK);
        }
        self.next.map(|at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::aside::{Stay, can_step_aside};
    use extant_base::task;
    use rustix::thread::gettid;

    fn is_readable(alarm: &Alarm) -> bool {
        read(&alarm.event, &mut [0; 8][..]).is_ok()
    }

    #[test]
    fn the_first_step_calls_the_watch_which_looks_until_no_thread_is_aside() {
        if !can_step_aside() {
            eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
            return;
        }
        let body = || {
            let alarm = Alarm::new(2).expect("eventfd");
            let stay = Stay::new(alarm.bound().asides().clone(), 1);
            let me = gettid().as_raw_nonzero().get() as u32;
            let (mut watch, began) = (Watch::new(&alarm), Instant::now());
            assert_eq!(watch.look(began), None);
            stay.go_on(me, began, || alarm.watch());
            assert!(is_readable(&alarm));
            stay.go_on(me, began, || alarm.watch());
            assert!(!is_readable(&alarm), "a later request calls nobody");
            assert_eq!(watch.look(began), Some(TICK));
            assert_eq!(watch.look(began + TICK / 2), Some(TICK / 2), "too early");
            assert_eq!(watch.look(began + TICK), Some(TICK), "it ends the stay");
            assert_eq!(watch.look(began + 2 * TICK), Some(TICK), "which is a change");
            assert_eq!(watch.look(began + 3 * TICK), None);
            stay.leave();
            stay.go_on(me, began, || alarm.watch());
            assert!(is_readable(&alarm), "the watch had ended");
        };
        task::spawn("watch", body).expect("thread").join().expect("joined");
    }

    #[test]
    fn a_failure_wakes_the_watch() {
        let alarm = Alarm::new(0).expect("eventfd");
        alarm.fail();
        assert!(is_readable(&alarm) && alarm.has_failed());
    }
}
