//! The processors of a modelled machine: with [`Options::costs`](super::Options::costs), computing takes virtual time,
//! and the threads of a run share [`Options::processors`](super::Options::processors).
//!
//! Main types: [`Machine`] (the idle processors, and the queues of threads that want one), [`Seat`] (the state of one
//! thread). A thread takes a processor when its wait ends, and frees it when it waits again. The order is first come,
//! first served, but interrupts come before threads. A thread that waits for a lock keeps its processor, because it is
//! assumed to spin. So if a thread sleeps while it holds a lock, the spinning threads may keep all processors for ever,
//! and the run reports a deadlock. A thread takes the processor that it had last, if that is idle.
//!
//! What it does not do: time slices, preemption. Code takes the time that it asks for with [`compute`](super::compute),
//! and that of its [`CodeTable`](super::CodeTable); locks and cache lines are in [`contention`](super::contention).
//!
//! # Locking
//! None of its own: it is part of the state of the run.

use std::collections::VecDeque;

use super::Costs;
use super::contention::Contention;

/// The needs of a thread before it can continue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Requirement {
    #[default]
    Processor,
    /// A processor, with priority over the threads.
    ProcessorFirst,
    /// Nothing, because a device computes by itself.
    Nothing,
}

/// The state of a thread on the machine.
#[derive(Default)]
pub(super) struct Seat {
    pub needs: Requirement,
    /// Whether the thread has a processor.
    pub taken: bool,
    /// The processor that the thread has, or had last.
    pub processor: usize,
    /// The time at which its wait for a lock began, and whether it wants to share the lock.
    pub waits_since_ns: Option<u64>,
    pub wants_shared: bool,
    /// The number of times that the thread has waited for something other than a lock or a processor.
    pub sleeps: u64,
}

impl Seat {
    /// Whether the thread must take a processor before it continues.
    pub fn is_wanted(&self) -> bool {
        !self.taken && self.needs != Requirement::Nothing
    }
}

/// The processors and their queues; see the module.
pub(super) struct Machine {
    pub costs: Costs,
    pub contention: Contention,
    idle: Vec<usize>,
    interrupts: VecDeque<usize>,
    line: VecDeque<usize>,
}

impl Machine {
    /// Creates a machine. The run's first thread has one of the processors.
    pub fn new(costs: Costs, processors: usize) -> Machine {
        let (interrupts, line) = (VecDeque::new(), VecDeque::new());
        Machine { costs, contention: Contention::default(), idle: (1..processors).rev().collect(), interrupts, line }
    }

    /// Returns a processor for the thread, if possible its last one. If none is idle, queues the thread.
    pub fn enter(&mut self, id: usize, needs: Requirement, last: usize) -> Option<usize> {
        if let Some(at) = self.idle.iter().position(|p| *p == last) {
            return Some(self.idle.remove(at));
        }
        if let Some(processor) = self.idle.pop() {
            return Some(processor);
        }
        match needs {
            Requirement::ProcessorFirst => self.interrupts.push_back(id),
            _ => self.line.push_back(id),
        }
        None
    }

    /// Frees a processor. Returns the thread that gets it now.
    pub fn leave(&mut self, processor: usize) -> Option<usize> {
        let next = self.interrupts.pop_front().or_else(|| self.line.pop_front());
        if next.is_none() {
            self.idle.push(processor);
        }
        next
    }

    /// Removes a thread that never started.
    pub fn forget(&mut self, id: usize) {
        self.line.retain(|other| *other != id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::Clock;
    use crate::sim::{self, Costs, Options, Outcome};
    use crate::sync::Waiter;
    use crate::task;

    const COSTS: Costs = Costs { switch_ns: 10, wake_ns: 3, lock_ns: 0, bounce_ns: 0, contended_ns: 0, waiter_ns: 0 };

    fn machine<T: Send + 'static>(processors: usize, f: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
        sim::run(&Options { processors, costs: Some(COSTS), ..Options::new(5) }, f)
    }

    fn thread(f: impl FnOnce() -> u64 + Send + 'static) -> task::JoinHandle<u64> {
        task::spawn("computes", f).expect("thread")
    }

    /// The times at which four threads that compute for 100 ns each have finished.
    fn four(processors: usize) -> Vec<u64> {
        let body = || {
            let computes = || {
                sim::compute(100);
                Clock::real().now_ns()
            };
            let threads: Vec<_> = (0..4).map(|_| thread(computes)).collect();
            let mut ends: Vec<u64> = threads.into_iter().map(|t| t.join().expect("joined")).collect();
            ends.sort_unstable();
            ends
        };
        machine(processors, body).result.expect("it ends")
    }

    #[test]
    fn threads_share_processors_and_pay_for_each_switch() {
        // The first thread frees its processor when it joins the others.
        assert_eq!(four(1), [110, 220, 330, 440]);
        assert_eq!(four(2), [110, 110, 220, 220]);
        assert_eq!(four(8), [110, 110, 110, 110]);
    }

    #[test]
    fn computing_takes_no_time_without_a_machine() {
        let outcome = sim::run(&Options::new(1), || sim::compute(1_000));
        assert_eq!((outcome.result, outcome.virtual_ns), (Ok(()), 0));
    }

    #[test]
    fn a_wake_takes_time_from_its_caller_and_a_switch_from_the_woken() {
        let body = || {
            let waiter = Waiter::new();
            let woken = {
                let waiter = waiter.clone();
                thread(move || {
                    waiter.wait();
                    assert_eq!(sim::sleeps(), 1);
                    Clock::real().now_ns()
                })
            };
            Clock::real().sleep(Duration::from_nanos(1_000));
            let before = Clock::real().now_ns();
            waiter.set(());
            let after = Clock::real().now_ns();
            (after - before, woken.join().expect("joined") - before)
        };
        assert_eq!(machine(2, body).result, Ok((3, 10)));
    }

    #[test]
    fn an_interrupt_waits_for_a_processor_but_not_behind_threads() {
        let body = || {
            let done = Arc::new(Waiter::new());
            let completes = {
                let done = done.clone();
                thread(move || {
                    sim::device();
                    // A device needs no processor, so this ends while the others compute.
                    Clock::real().sleep(Duration::from_nanos(50));
                    assert_eq!(Clock::real().now_ns(), 60);
                    sim::interrupt(|| {
                        sim::compute(5);
                        done.set(Clock::real().now_ns());
                    });
                    0
                })
            };
            let computes = || {
                sim::compute(100);
                Clock::real().now_ns()
            };
            // The device's first turn has ended when these begin.
            Clock::real().sleep(Duration::from_nanos(10));
            let threads: Vec<_> = (0..3).map(|_| thread(computes)).collect();
            let interrupted = done.wait();
            completes.join().expect("joined");
            (interrupted, threads.into_iter().map(|t| t.join().expect("joined")).max())
        };
        let (interrupted, last) = machine(1, body).result.expect("it ends");
        // The first of the three threads runs from 30 to 130; then it is the turn of the interrupt.
        assert!((130..160).contains(&interrupted), "{interrupted}");
        assert!(last.is_some_and(|last| last > interrupted + 200), "{last:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run_on_a_machine() {
        let run = || {
            let outcome = machine(2, || {
                let threads: Vec<_> = (0..6)
                    .map(|n| {
                        thread(move || {
                            sim::compute(10 + sim::choose(20));
                            Clock::real().sleep(Duration::from_nanos(n));
                            Clock::real().now_ns()
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().expect("joined")).collect::<Vec<_>>()
            });
            (outcome.trace.fingerprint(), outcome.virtual_ns, outcome.result)
        };
        assert_eq!(run(), run());
    }
}
