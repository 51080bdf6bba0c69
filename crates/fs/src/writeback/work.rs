//! Queues of work that a thread of the mount does for threads that do not wait.
//!
//! Main type: [`WorkQueue`]. An item is *aside* while it waits for an event that makes it ready, or while the thread
//! works on it. The queue does not end before then. Items that come after the end are returned to the caller.
//!
//! | phase | push | take, nothing ready | take, nothing ready or aside | stop | panic |
//! |---|---|---|---|---|---|
//! | Open | queues | waits | waits | Stopping | Ended |
//! | Stopping | queues | waits | Ended | Stopping | Ended |
//! | Ended | returns | Ended | Ended | Ended | Ended |
//!
//! # Locking
//! One leaf lock, of a class that the user of the queue chooses.

use std::collections::VecDeque;
use std::time::Duration;

use extant_base::sync::{Condvar, LockClass, Mutex};

/// The phases of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The mount is ending; the thread does the remaining work.
    Stopping,
    /// The thread has ended.
    Ended,
}

struct State<T> {
    ready: VecDeque<T>,
    aside: usize,
    phase: Phase,
}

/// A queue of items for one thread; see the module.
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    more: Condvar,
}

/// Ends the queue if its thread panics, because no thread would do the remaining or future work.
pub(super) struct EndOnPanic<'q, T>(pub(super) &'q WorkQueue<T>);

impl<T> WorkQueue<T> {
    pub(crate) fn new(class: &'static LockClass) -> WorkQueue<T> {
        let state = State { ready: VecDeque::new(), aside: 0, phase: Phase::Open };
        WorkQueue { state: Mutex::new(class, state), more: Condvar::new() }
    }

    /// Announces an item that will become ready later. Returns false if the queue has ended.
    pub(super) fn announce(&self) -> bool {
        let mut state = self.state.lock();
        let open = state.phase != Phase::Ended;
        state.aside += usize::from(open);
        open
    }

    /// Called when the thread has finished this number of announced items.
    pub(super) fn finish(&self, announced: usize) {
        self.state.lock().aside -= announced;
    }

    /// Queues items that are ready. Returns them if the queue has ended.
    pub(crate) fn push(&self, items: Vec<T>) -> Vec<T> {
        let mut state = self.state.lock();
        if state.phase == Phase::Ended {
            return items;
        }
        state.ready.extend(items);
        self.more.notify_one();
        Vec::new()
    }

    /// Takes up to `most` of the ready items, oldest first. The result may be empty after `wait`. `None` if there will
    /// be no more items.
    pub(super) fn take(&self, most: usize, wait: Duration) -> Option<Vec<T>> {
        let mut state = self.state.lock();
        let ends = |s: &State<T>| s.ready.is_empty() && s.aside == 0 && s.phase != Phase::Open;
        if state.ready.is_empty() && !ends(&state) {
            self.more.wait_for(&mut state, wait);
        }
        if ends(&state) {
            state.phase = Phase::Ended;
            return None;
        }
        let most = most.min(state.ready.len());
        Some(state.ready.drain(..most).collect())
    }

    /// Ends the queue once nothing is ready or aside.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Stopping;
        }
        self.more.notify_all();
    }
}

impl<T> Drop for EndOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let left = {
                let mut state = self.0.state.lock();
                state.phase = Phase::Ended;
                std::mem::take(&mut state.ready)
            };
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::writeback::asks::ASKS_CLASS;

    fn queue(phase: Phase, aside: usize) -> WorkQueue<u32> {
        let queue = WorkQueue::new(&ASKS_CLASS);
        *queue.state.lock() = State { ready: VecDeque::new(), aside, phase };
        queue
    }

    #[test]
    fn each_phase_follows_the_table() {
        let head = include_str!("work.rs").split("# Locking").next().expect("a head");
        for phase in [Phase::Open, Phase::Stopping, Phase::Ended] {
            let pushed = match &queue(phase, 0).push(vec![1])[..] {
                [] => "queues",
                _ => "returns",
            };
            let taken = |aside| {
                let queue = queue(phase, aside);
                let taken = queue.take(9, Duration::ZERO);
                let now = queue.state.lock().phase;
                assert_eq!(taken.is_none(), now == Phase::Ended);
                if taken.is_some() { "waits".to_owned() } else { format!("{now:?}") }
            };
            let [stopped, panicked] = [queue(phase, 0), queue(phase, 0)];
            stopped.stop();
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _end = EndOnPanic(&panicked);
                panic!("the thread of the queue");
            }));
            let [stopped, panicked] = [stopped, panicked].map(|queue| queue.state.lock().phase);
            // An ended queue has no items aside.
            let with_aside = if phase == Phase::Ended { taken(0) } else { taken(1) };
            let row =
                format!("//! | {phase:?} | {pushed} | {with_aside} | {} | {stopped:?} | {panicked:?} |\n", taken(0));
            assert!(head.contains(&row), "not in the table: {row}");
            assert_eq!(queue(phase, 0).announce(), phase != Phase::Ended);
        }
    }

    #[test]
    fn items_that_are_ready_or_aside_delay_the_end() {
        let queue = queue(Phase::Open, 0);
        assert!(queue.announce());
        queue.stop();
        assert_eq!(queue.take(9, Duration::ZERO), Some(Vec::new()));
        assert!(queue.push(vec![1, 2]).is_empty());
        assert_eq!(queue.take(1, Duration::ZERO), Some(vec![1]));
        assert_eq!(queue.take(9, Duration::ZERO), Some(vec![2]));
        queue.finish(1);
        assert_eq!((queue.take(9, Duration::ZERO), queue.push(vec![3])), (None, vec![3]));
    }
}
