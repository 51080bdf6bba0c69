//! The scheduler's support for a modelled machine: virtual time for code, locks and cache lines.
//!
//! A thread owes the time of its code, and pays it before its next visible action: a lock, a line, a wait, a wake, or
//! reading the clock. So visible actions happen in the order of virtual time, and most code causes no switch.
//!
//! What it does not do: track locks and lines (`contention`), or know the duration of code (`code`).
//!
//! # Locking
//! `Core::state`, like the rest of the scheduler.

use super::*;
use crate::sim::code::{self, Place, SchedulerScope};
use crate::sim::contention::{By, Lock};

impl CurrentThread {
    /// Enters the scheduler at this place. The returned value must live until the thread leaves the scheduler.
    pub(super) fn enter(&self, call: &'static str, name: impl FnOnce() -> &'static str) -> Option<SchedulerScope> {
        let stopped = code::stop(&self.core.code);
        if matches!(self.core.code, Code::Free) {
            return None;
        }
        let to = Place { call, name: name() };
        code::enter(&self.core.code, stopped, to, |segment, ns| {
            // The first thread prepares the data for the others, so it is not measured.
            if self.id == 0 {
                return;
            }
            *self.core.state().measured.entry(segment).or_default().entry(ns).or_default() += 1;
        })
    }

    /// Passes the time that the calling thread owes.
    pub(super) fn settle(&self) {
        if self.core.passes_time {
            let ns = code::owed_ns();
            if ns > 0 {
                self.core.charge(self.id, self.core.state(), ns);
            }
        }
    }

    /// The name of the class of a lock that the thread holds.
    pub(super) fn name_of_held(&self, addr: usize) -> &'static str {
        let st = self.core.state();
        st.threads[self.id].held.iter().rfind(|(a, _)| *a == addr).map_or("", |(_, class)| class.name)
    }
}

impl State {
    fn by(&self, id: usize) -> By {
        By { id, processor: self.threads[id].seat.processor, now_ns: self.now_ns }
    }

    /// Records that the thread took the lock.
    pub(super) fn took(&mut self, id: usize, addr: usize, class: &'static LockClass, shared: bool) {
        let by = self.by(id);
        let others = self.waiting.get(&(Event::Released, addr)).map_or(0, Vec::len) as u64;
        let waited = by.now_ns - self.threads[id].seat.waits_since_ns.take().unwrap_or(by.now_ns);
        let Some(machine) = &mut self.machine else { return };
        let lock = Lock { addr, name: class.name, shared };
        let taken = machine.contention.take(&machine.costs, lock, by, waited, others);
        code::owe_ps(taken.cost_ns * 1000);
        code::set_cold(taken.moved);
        if shared {
            // The next thread in the queue may share it.
            self.grant_next(addr, true);
        }
    }

    /// Passes a lock that the thread has released to the thread that waited longest.
    pub(super) fn hand_over_lock(&mut self, id: usize, addr: usize) {
        let by = self.by(id);
        let Some(machine) = &mut self.machine else { return };
        let (cost_ns, free) = machine.contention.release(&machine.costs, addr, by);
        code::owe_ps(cost_ns * 1000);
        if free {
            self.grant_next(addr, false);
        }
    }

    fn grant_next(&mut self, addr: usize, only_shared: bool) {
        let next = self.waiting.get(&(Event::Released, addr)).and_then(|list| list.first().copied());
        let Some(next) = next.filter(|&next| !only_shared || self.threads[next].seat.wants_shared) else { return };
        if let Some(machine) = &mut self.machine {
            machine.contention.grant(addr, next);
        }
        self.make_ready(next, false);
    }

    /// Whether the thread may take the lock now. Without a modelled machine, only an attempt shows that.
    pub(super) fn may_take(&self, id: usize, addr: usize, shared: bool) -> bool {
        self.machine.as_ref().is_none_or(|machine| machine.contention.may_take(addr, id, shared))
    }

    /// Whether the lock is taken by a thread of this run or granted to one.
    pub(super) fn is_taken(&self, addr: usize) -> bool {
        let holds = |t: &Thread| t.held.iter().any(|(a, _)| *a == addr);
        self.threads.iter().any(holds) || self.machine.as_ref().is_some_and(|m| m.contention.is_taken(addr))
    }
}

/// Records that an attempt found the lock taken, for which the thread had to read its line.
#[cold]
pub(crate) fn missed(addr: usize, class: &'static LockClass) {
    let Some(me) = me() else { return };
    let _inside = me.enter("missed", || class.name);
    let st = me.core.state();
    let is_own = st.machine.as_ref().is_none_or(|m| m.contention.is_own(addr, st.threads[me.id].seat.processor));
    let bounce_ns = st.machine.as_ref().map_or(0, |m| m.costs.bounce_ns);
    if !is_own {
        code::owe_ps(bounce_ns * 1000);
    }
}

/// The lock at `addr` is dropped.
#[cold]
pub(crate) fn forget(addr: usize) {
    let Some(me) = me() else { return };
    if me.core.contends
        && let Some(machine) = &mut me.core.state().machine
    {
        machine.contention.forget(addr);
    }
}

#[cold]
pub(in crate::sim) fn line(name: &'static str, addr: usize, writes: bool) {
    let Some(me) = me() else { return };
    let measures = matches!(me.core.code, Code::Measured);
    if !me.core.contends && !measures {
        return;
    }
    let _inside = me.enter("line", || name);
    if !me.core.contends {
        return;
    }
    let is_own = {
        let st = me.core.state();
        st.machine.as_ref().is_none_or(|m| m.contention.is_own(addr, st.threads[me.id].seat.processor))
    };
    // As long as no other processor has used the line, the order does not matter.
    if !is_own {
        me.settle();
    }
    let mut st = me.core.state();
    let by = st.by(me.id);
    if let Some(machine) = &mut st.machine {
        let taken = machine.contention.line(&machine.costs, name, addr, writes, by);
        code::owe_ps(taken.cost_ns * 1000);
    }
}
