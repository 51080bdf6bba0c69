//! Tags are handed over: a released tag goes directly to the oldest waiting request, and no thread is woken only to
//! look for a tag.
//!
//! 1. Either a tag is free or a request waits, never both. So a request that arrives while others wait is queued after
//!    them.
//! 2. The bio waits, not its thread: the thread that releases the tag starts the bio. The submitting thread has
//!    continued, and is woken once, for the completion, if it waits for that at all.
//! 3. Waiting bios use memory. If it is more than [`BYTES_MAX`], the submitter itself waits, in the same order; so does
//!    a thread that needs a tag for a waiting call. Such a thread is woken once, with its tag.
//! 4. Of several queues that share the tags, each has a separate line of waiters, and the lines are served in turn.
//!
//! The free tag that was released last is taken first, because its request is still in the processor's cache.
//!
//! What it does not do: scale with processors. One short lock orders everything, and the ring below it has one, too.
//!
//! # Locking
//! `block tag line` protects everything; no thread is woken, and no bio started, under it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use extant_base::sync::{Mutex, Waiter};

use super::super::Start;
use super::super::ledger::{Ledger, Ticket};
use super::{TagHandOff, TagPolicy};
use crate::ranks::{TAG_LINE, TAG_SLEEPER};

/// The approximate maximum memory of waiting bios: two of the largest requests for each of eight writers.
pub(super) const BYTES_MAX: u64 = 16 << 20;

enum TagWaiter {
    Thread(Waiter<u32>),
    Bio(Start, u64),
}

#[derive(Default)]
struct State {
    free: Vec<u32>,
    /// One line for each queue that has waiting requests.
    lines: BTreeMap<u32, VecDeque<(Ticket, TagWaiter)>>,
    /// The queue that was served last.
    served: u32,
    bytes: u64,
}

impl State {
    fn stand(&mut self, ledger: &Ledger, user: u32, who: TagWaiter) {
        self.lines.entry(user).or_default().push_back((ledger.begin(user), who));
    }

    /// The oldest request of the queue whose turn it is.
    fn next(&mut self) -> Option<(Ticket, TagWaiter)> {
        let behind = self.lines.range((Excluded(self.served), Unbounded)).next();
        let user = *behind.or_else(|| self.lines.iter().next())?.0;
        self.served = user;
        let line = self.lines.get_mut(&user)?;
        let next = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&user);
        }
        next
    }

    fn take(&mut self, ledger: &Ledger) -> Option<u32> {
        let tag = self.free.pop()?;
        ledger.at_once();
        Some(tag)
    }
}

pub(in crate::queue::tags) struct HandOff {
    state: Mutex<State>,
    ledger: Ledger,
}

impl HandOff {
    pub fn new(depth: u32) -> HandOff {
        let state = State { free: (0..depth).rev().collect(), ..State::default() };
        HandOff { state: Mutex::new(&TAG_LINE, state), ledger: Ledger::new() }
    }
}

impl TagPolicy for HandOff {
    fn try_get(&self, _hint: usize) -> Option<u32> {
        self.state.lock().take(&self.ledger)
    }

    fn get(&self, _hint: usize, user: u32) -> u32 {
        let mut state = self.state.lock();
        if let Some(tag) = state.take(&self.ledger) {
            return tag;
        }
        let me = Waiter::of_class(&TAG_SLEEPER);
        state.stand(&self.ledger, user, TagWaiter::Thread(me.clone()));
        drop(state);
        me.wait()
    }

    fn bios_wait(&self) -> bool {
        true
    }

    fn start(&self, hint: usize, user: u32, bytes: u64, may_sleep: bool, start: Start) -> Option<TagHandOff> {
        let mut state = self.state.lock();
        if let Some(tag) = state.take(&self.ledger) {
            return Some((tag, start));
        }
        if may_sleep && state.bytes >= BYTES_MAX {
            drop(state);
            return Some((self.get(hint, user), start));
        }
        state.bytes += bytes;
        state.stand(&self.ledger, user, TagWaiter::Bio(start, bytes));
        None
    }

    fn put(&self, tag: u32, _hint: usize) -> Option<TagHandOff> {
        let mut state = self.state.lock();
        let Some((ticket, who)) = state.next() else {
            state.free.push(tag);
            return None;
        };
        self.ledger.end(ticket);
        match who {
            TagWaiter::Bio(start, bytes) => {
                state.bytes -= bytes;
                Some((tag, start))
            }
            TagWaiter::Thread(waiter) => {
                drop(state);
                self.ledger.woke(1);
                waiter.set(tag);
                None
            }
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
