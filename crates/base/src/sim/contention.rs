//! Locks and cache lines of a modelled machine: which threads wait for each other, and the cost of moving a line from
//! one processor to another.
//!
//! Main types: [`Contention`] (the holders of locks, and the processors that have lines), [`ContentionCost`] (the cost
//! of a lock or a line in the run).
//!
//! A lock has a first-come, first-served queue, like the kernel's queued spin locks: its release grants it to the
//! thread that has waited longest, and no other thread can take it before. A line has a queue, too. A processor that
//! writes to it needs it exclusively, and a processor that reads it needs a copy. Either costs [`Costs::bounce_ns`] if
//! the line was changed elsewhere, and the transfers of a line do not overlap.
//!
//! What it does not do: model sockets (each transfer costs the same), false sharing (each lock and each named line has
//! its own line) or the size of caches. It decides nothing about schedules.
//!
//! # Locking
//! None of its own: it is part of the state of the run.

use std::collections::HashMap;

use super::Costs;

/// The cost of a lock class, or of the lines with one name, in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentionCost {
    pub name: &'static str,
    /// The number of times that a lock was taken, or a line used.
    pub taken: u64,
    /// The number of times that a thread had to wait for another one.
    pub contended: u64,
    /// The number of times that the line came from another processor.
    pub moved: u64,
    /// The virtual nanoseconds for which threads waited: for holders, for earlier transfers, and for their own
    /// transfers.
    pub wait_ns: u64,
    pub wait_ns_max: u64,
}

/// The holders of one lock.
#[derive(Default)]
struct LockHolders {
    writer: bool,
    readers: u32,
    /// The thread that waited longest, for which the lock is reserved.
    granted: Option<usize>,
}

/// A cache line.
struct Line {
    /// The processors that have the line, one bit each.
    have: u128,
    /// The time at which the last transfer ends.
    free_at_ns: u64,
}

/// The result of taking a lock or using a line.
pub(super) struct Acquisition {
    pub cost_ns: u64,
    pub moved: bool,
}

/// The state of all locks and lines; see the module.
#[derive(Default)]
pub(super) struct Contention {
    /// Locks that are held or granted.
    books: HashMap<usize, LockHolders>,
    /// The map is never iterated, so its order, which depends on addresses, does not matter.
    lines: HashMap<usize, Line>,
    uses: Vec<ContentionCost>,
}

/// The maximum number of processors that can be distinguished.
pub(super) const PROCESSORS_MAX: usize = 128;

fn bit(processor: usize) -> u128 {
    1 << (processor % PROCESSORS_MAX)
}

impl Line {
    /// Moves the line, or a copy of it, to `processor`. Returns the time until it arrives.
    fn bring(&mut self, processor: usize, writes: bool, now_ns: u64, costs: &Costs) -> u64 {
        let is_here = if writes { self.have == bit(processor) } else { self.have & bit(processor) != 0 };
        if is_here {
            return 0;
        }
        let begin = self.free_at_ns.max(now_ns);
        self.free_at_ns = begin + costs.bounce_ns;
        self.have = if writes { bit(processor) } else { self.have | bit(processor) };
        self.free_at_ns - now_ns
    }
}

impl Contention {
    fn count(&mut self, name: &'static str, contended: bool, moved: bool, wait_ns: u64) {
        let place = self.uses.iter().position(|u| u.name == name).unwrap_or_else(|| {
            self.uses.push(ContentionCost { name, ..ContentionCost::default() });
            self.uses.len() - 1
        });
        let row = &mut self.uses[place];
        row.taken += 1;
        row.contended += u64::from(contended);
        row.moved += u64::from(moved);
        row.wait_ns += wait_ns;
        row.wait_ns_max = row.wait_ns_max.max(wait_ns);
    }

    /// The costs so far, the longest waits first.
    pub fn uses(&self) -> Vec<ContentionCost> {
        let mut uses = self.uses.clone();
        uses.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then(a.name.cmp(b.name)));
        uses
    }

    /// Whether the thread may take the lock now.
    pub fn may_take(&self, addr: usize, id: usize, shared: bool) -> bool {
        self.books.get(&addr).is_none_or(|book| match book.granted {
            Some(granted) => granted == id,
            None => !book.writer && (shared || book.readers == 0),
        })
    }

    /// Whether the lock is held or granted.
    pub fn is_taken(&self, addr: usize) -> bool {
        self.books.contains_key(&addr)
    }

    /// The thread `id` on `processor` takes the lock at `addr`. `waited_ns`: how long it was in the queue; `others` are
    /// still in it.
    pub fn take(&mut self, costs: &Costs, lock: Lock, by: By, waited_ns: u64, others: u64) -> Acquisition {
        let book = self.books.entry(lock.addr).or_default();
        let granted = book.granted.take_if(|id| *id == by.id).is_some();
        if lock.shared {
            book.readers += 1;
        } else {
            book.writer = true;
        }
        let mut moved = granted;
        let mut cost_ns = costs.lock_ns;
        if granted {
            let hand_over = costs.contended_ns + costs.waiter_ns * others;
            cost_ns += hand_over;
            self.lines.insert(lock.addr, Line { have: bit(by.processor), free_at_ns: by.now_ns + hand_over });
        } else {
            let line = self.lines.entry(lock.addr).or_insert(Line { have: bit(by.processor), free_at_ns: 0 });
            let brought_ns = line.bring(by.processor, true, by.now_ns, costs);
            moved = brought_ns > 0;
            cost_ns += brought_ns;
        }
        self.count(lock.name, granted, moved, waited_ns + cost_ns - costs.lock_ns);
        Acquisition { cost_ns, moved }
    }

    /// Releases the lock. Returns the time until its line arrives, and whether a waiting thread can take it.
    pub fn release(&mut self, costs: &Costs, addr: usize, by: By) -> (u64, bool) {
        let Some(book) = self.books.get_mut(&addr) else { return (0, true) };
        let mut cost_ns = 0;
        if book.writer {
            book.writer = false;
        } else {
            book.readers = book.readers.saturating_sub(1);
            // The line contains the number of readers, so it must be written.
            let line = self.lines.get_mut(&addr);
            cost_ns = line.map_or(0, |line| line.bring(by.processor, true, by.now_ns, costs));
        }
        let free = book.readers == 0;
        if free && book.granted.is_none() {
            self.books.remove(&addr);
        }
        (cost_ns, free)
    }

    /// Reserves the lock for this thread.
    pub fn grant(&mut self, addr: usize, id: usize) {
        self.books.entry(addr).or_default().granted = Some(id);
    }

    /// The lock at `addr` is no more.
    pub fn forget(&mut self, addr: usize) {
        self.lines.remove(&addr);
    }

    /// Whether the line is this processor's alone, so that no other thread's time matters.
    pub fn is_own(&self, addr: usize, processor: usize) -> bool {
        self.lines.get(&addr).is_none_or(|line| line.have == bit(processor))
    }

    /// Reads or writes a line.
    pub fn line(&mut self, costs: &Costs, name: &'static str, addr: usize, writes: bool, by: By) -> Acquisition {
        let line = self.lines.entry(addr).or_insert(Line { have: bit(by.processor), free_at_ns: 0 });
        let queued = line.free_at_ns > by.now_ns;
        let cost_ns = line.bring(by.processor, writes, by.now_ns, costs);
        let moved = cost_ns > 0;
        self.count(name, moved && queued, moved, cost_ns);
        Acquisition { cost_ns, moved }
    }
}

/// A lock, from the view of the thread that takes it.
#[derive(Clone, Copy)]
pub(super) struct Lock {
    pub addr: usize,
    pub name: &'static str,
    pub shared: bool,
}

/// A thread, its processor, and the time.
#[derive(Clone, Copy)]
pub(super) struct By {
    pub id: usize,
    pub processor: usize,
    pub now_ns: u64,
}
