//! The scheduler of one run.
//!
//! Main types: [`Core`] (one run), [`Task`] (turns a thread of the operating system into a simulated one). A thread
//! that gives up the baton picks the next thread itself, wakes it and parks; the scheduler has no thread of its own.
//! The running thread keeps the baton while it computes. It calls the scheduler before it takes a lock, after it has
//! released one, and when it waits, notifies, sleeps or starts a thread.
//!
//! # Locking
//! `Core::state`, without a class, held for one decision; only the holder of the baton and the watchdog take it.

mod modelled;

use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::code::{self, Code, SegmentTimes};
use super::machine::{Machine, Requirement, Seat};
use super::trace::{Kind, Trace};
use super::watchdog::{Observations, Watched};
use super::{BlockedThread, Failure, Options, Outcome, Strategy};
use crate::clock::Timespec;
use crate::rng::Rng;
use crate::sync::LockClass;
use crate::sync::mode;
pub(super) use modelled::line;
pub(crate) use modelled::{forget, missed};

/// The event that a blocked thread waits for.
#[derive(Clone, Copy)]
enum Wait {
    Lock(usize, &'static LockClass),
    Condvar {
        timed: bool,
        class: Option<&'static LockClass>,
    },
    Join(usize),
    Sleep,
    /// The thread computes, or waits for a processor.
    Processor,
}

#[derive(Clone, Copy)]
enum Status {
    Ready,
    Running,
    Blocked(Wait),
    Done,
}

/// The events that wake threads. Condition variables and locks are distinguished, because both may have the same
/// address.
type Key = (Event, usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Released,
    Notified,
    Ended,
}

struct Thread {
    name: String,
    gate: Arc<Gate>,
    status: Status,
    /// The key under which the thread is listed as waiting.
    key: Option<Key>,
    /// Incremented with each wake, so that a timer of an earlier wait is recognised as stale.
    wakes: u64,
    timed_out: bool,
    priority: u64,
    held: Vec<(usize, &'static LockClass)>,
    shard: Option<usize>,
    seat: Seat,
    panic: Option<String>,
}

/// Where a thread waits for the baton.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    /// Set by the thread itself before its first wait.
    thread: Mutex<Option<(std::thread::Thread, Watched)>>,
}

impl Gate {
    fn pass(&self) {
        while !self.open.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }

    fn open(&self) {
        self.open.store(true, Ordering::Release);
        if let Some((t, _)) = self.thread.lock().as_ref() {
            t.unpark();
        }
    }
}

struct State {
    options: Options,
    schedule: Rng,
    choices: Rng,
    keys: Rng,
    threads: Vec<Thread>,
    current: usize,
    /// The threads that can run, in the order in which they became ready.
    ready: Vec<usize>,
    /// The map is never iterated, so its order does not matter.
    waiting: HashMap<Key, Vec<usize>>,
    /// (virtual time, sequence, thread, its wakes)
    timers: BinaryHeap<Reverse<(u64, u64, usize, u64)>>,
    now_ns: u64,
    sequence: u64,
    steps: u64,
    switches: u64,
    shards: usize,
    /// The processors, if the run models them.
    machine: Option<Machine>,
    /// The steps at which priorities change, in descending order.
    changes: Vec<u64>,
    lowest: u64,
    /// For a [`Strategy::Path`]: the forks so far, the number of preemptions, and the thread that takes over now.
    forks: Vec<(u32, u32)>,
    preempted: u32,
    successor: Option<usize>,
    trace: Trace,
    over: Option<Result<(), Failure>>,
    measured: SegmentTimes,
}

/// One run.
pub(super) struct Core {
    state: Mutex<State>,
    ended: Condvar,
    progress: AtomicU64,
    code: Code,
    /// Whether locks and lines take time.
    contends: bool,
    /// Whether threads may owe time.
    passes_time: bool,
}

#[derive(Clone)]
struct CurrentThread {
    core: Arc<Core>,
    id: usize,
}

thread_local! {
    static ME: RefCell<Option<CurrentThread>> = const { RefCell::new(None) };
}

fn me() -> Option<CurrentThread> {
    ME.try_with(|m| m.borrow().clone()).ok().flatten()
}

#[cold]
pub(super) fn inside() -> bool {
    ME.try_with(|m| m.borrow().is_some()).unwrap_or(false)
}

/// Suppresses the message of a panic in a simulated thread, because the run's outcome reports it.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match me() {
            Some(me) => {
                let at = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
                let text = format!("{}{at}", payload_text(info.payload()));
                if let Some(mut st) = me.core.state.try_lock() {
                    st.threads[me.id].panic.get_or_insert(text);
                }
            }
            None => before(info),
        }));
    });
}

fn payload_text(p: &(dyn Any + Send)) -> String {
    let text = p.downcast_ref::<String>().cloned().or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_else(|| "without a message".into())
}

/// Never returns, so that the thread is leaked.
fn leak() -> ! {
    loop {
        std::thread::park();
    }
}

impl State {
    fn event(&mut self, kind: Kind, name: &'static str, value: u64) {
        let current = self.current;
        self.trace.push(current, kind, name, value);
    }

    fn add_thread(&mut self, name: &str) -> (usize, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        let id = self.threads.len();
        // Higher than every priority that a change point assigns.
        let priority = (1 << 32) + self.schedule.below(1 << 32);
        self.threads.push(Thread {
            name: name.to_owned(),
            gate: gate.clone(),
            status: Status::Ready,
            key: None,
            wakes: 0,
            timed_out: false,
            priority,
            held: Vec::new(),
            shard: None,
            seat: Seat::default(),
            panic: None,
        });
        self.trace.thread(name);
        (id, gate)
    }

    fn make_ready(&mut self, id: usize, timed_out: bool) {
        let t = &mut self.threads[id];
        t.wakes += 1;
        t.timed_out = timed_out;
        if let Some(key) = t.key.take()
            && let Some(list) = self.waiting.get_mut(&key)
        {
            list.retain(|w| *w != id);
            if list.is_empty() {
                self.waiting.remove(&key);
            }
        }
        self.admit(id);
    }

    /// Lets the thread continue, either now or when it has a processor.
    fn admit(&mut self, id: usize) {
        let t = &mut self.threads[id];
        match &mut self.machine {
            Some(machine) if t.seat.is_wanted() => {
                t.status = Status::Blocked(Wait::Processor);
                if let Some(processor) = machine.enter(id, t.seat.needs, t.seat.processor) {
                    self.take_processor(id, processor);
                }
            }
            _ => {
                t.status = Status::Ready;
                self.ready.push(id);
            }
        }
    }

    /// Gives the thread a processor. It continues when the processor has switched to it.
    fn take_processor(&mut self, id: usize, processor: usize) {
        let seat = &mut self.threads[id].seat;
        (seat.taken, seat.processor) = (true, processor);
        let switch_ns = self.machine.as_ref().map_or(0, |m| m.costs.switch_ns);
        self.set_timer(id, switch_ns);
    }

    fn leave_processor(&mut self, id: usize) {
        let seat = &mut self.threads[id].seat;
        let processor = seat.processor;
        if std::mem::take(&mut seat.taken)
            && let Some(next) = self.machine.as_mut().and_then(|machine| machine.leave(processor))
        {
            self.take_processor(next, processor);
        }
    }

    fn set_timer(&mut self, id: usize, ns: u64) {
        self.sequence += 1;
        let timer = (self.now_ns.saturating_add(ns), self.sequence, id, self.threads[id].wakes);
        self.timers.push(Reverse(timer));
    }

    /// The nanoseconds of processor time that it takes to wake these threads.
    fn wake_ns(&self, woken: &[usize]) -> u64 {
        let threads = woken.iter().filter(|id| self.threads[**id].seat.needs != Requirement::Nothing).count() as u64;
        self.machine.as_ref().map_or(0, |m| m.costs.wake_ns * threads)
    }

    fn wake_all(&mut self, key: Key) -> usize {
        let Some(list) = self.waiting.remove(&key) else { return 0 };
        for &id in &list {
            self.threads[id].key = None;
            self.make_ready(id, false);
        }
        list.len()
    }

    /// Moves time to the next valid timer, and wakes all threads that are due then.
    fn advance(&mut self) -> bool {
        let mut woke = false;
        while let Some(&Reverse((at, _, id, wakes))) = self.timers.peek() {
            let counts = self.threads[id].wakes == wakes && matches!(self.threads[id].status, Status::Blocked(_));
            if counts && woke && at > self.now_ns {
                break;
            }
            self.timers.pop();
            if counts {
                self.now_ns = self.now_ns.max(at);
                woke = true;
                self.trace.push(id, Kind::TimedOut, "", self.now_ns);
                match self.threads[id].status {
                    Status::Blocked(Wait::Processor) => self.admit(id),
                    _ => self.make_ready(id, true),
                }
            }
        }
        woke
    }

    /// Chooses the ready thread that runs next, and removes it from the list.
    fn choose_ready(&mut self) -> Option<usize> {
        // A thread that is due may need a processor first.
        while self.ready.is_empty() {
            if !self.advance() {
                return None;
            }
        }
        let n = self.ready.len();
        let at = match self.options.strategy {
            Strategy::Path { .. } => match self.successor.take() {
                Some(at) => at,
                None => self.fork(n),
            },
            _ if n == 1 => 0,
            Strategy::Random { .. } => self.schedule.below(n as u64) as usize,
            Strategy::RoundRobin { .. } => 0,
            Strategy::Priorities { .. } => {
                (0..n).max_by_key(|i| self.threads[self.ready[*i]].priority).expect("not empty")
            }
        };
        Some(self.ready.remove(at))
    }

    /// Returns one of `ways`, chosen by the path.
    fn fork(&mut self, ways: usize) -> usize {
        if ways < 2 {
            return 0;
        }
        let way = self.options.path.get(self.forks.len()).copied().unwrap_or(0);
        self.forks.push((way, ways as u32));
        way as usize
    }

    fn demote(&mut self, id: usize) {
        self.lowest = self.lowest.saturating_sub(1);
        self.threads[id].priority = self.lowest;
    }

    /// Whether another thread preempts the running one here.
    fn preempts(&mut self) -> bool {
        if self.options.leap_permille > 0
            && !self.timers.is_empty()
            && self.schedule.below(1000) < u64::from(self.options.leap_permille)
        {
            let now = self.now_ns;
            if self.advance() {
                self.event(Kind::Leap, "", self.now_ns - now);
            }
        }
        while self.changes.last().is_some_and(|at| *at <= self.steps) {
            self.changes.pop();
            self.demote(self.current);
        }
        if self.ready.is_empty() {
            return false;
        }
        match self.options.strategy {
            Strategy::Random { preempt_permille } => self.schedule.below(1000) < u64::from(preempt_permille),
            Strategy::Path { preemptions } => {
                if self.preempted == preemptions {
                    return false;
                }
                let way = self.fork(1 + self.ready.len());
                self.successor = way.checked_sub(1);
                self.preempted += u32::from(way > 0);
                way > 0
            }
            Strategy::RoundRobin { quantum } => self.steps.is_multiple_of(u64::from(quantum.max(1))),
            Strategy::Priorities { .. } => {
                let mine = self.threads[self.current].priority;
                self.ready.iter().any(|r| self.threads[*r].priority > mine)
            }
        }
    }

    fn table(&self) -> Vec<BlockedThread> {
        let row = |(id, t): (usize, &Thread)| {
            let on = match t.status {
                Status::Done => return None,
                Status::Ready => "can run".to_owned(),
                Status::Running => "runs".to_owned(),
                Status::Blocked(Wait::Lock(addr, class)) => {
                    let owners: Vec<&str> = self
                        .threads
                        .iter()
                        .filter(|o| o.held.iter().any(|(a, _)| *a == addr))
                        .map(|o| o.name.as_str())
                        .collect();
                    format!("waits for the lock '{}', held by {}", class.name, owners.join(", "))
                }
                Status::Blocked(Wait::Condvar { timed, class }) => format!(
                    "waits for a condition under '{}'{}",
                    class.map_or("?", |c| c.name),
                    if timed { " or a time" } else { "" }
                ),
                Status::Blocked(Wait::Join(other)) => format!("waits for the end of '{}'", self.threads[other].name),
                Status::Blocked(Wait::Sleep) => "sleeps".to_owned(),
                Status::Blocked(Wait::Processor) if t.seat.is_wanted() => "waits for a processor".to_owned(),
                Status::Blocked(Wait::Processor) => "computes".to_owned(),
            };
            let holds = t.held.iter().map(|(_, c)| c.name).collect();
            Some(BlockedThread { thread: format!("{id}.{}", t.name), on, holds })
        };
        self.threads.iter().enumerate().filter_map(row).collect()
    }

    /// If a thread cannot continue, a panic in progress is a better explanation than its wait.
    fn panic_under_way(&self) -> Option<Failure> {
        let t = self.threads.iter().find(|t| t.panic.is_some() && !matches!(t.status, Status::Done))?;
        let message = format!("{} (unwinding did not end)", t.panic.as_deref().unwrap_or_default());
        Some(Failure::Panic { thread: t.name.clone(), message })
    }
}

impl Core {
    fn new(options: &Options) -> Core {
        let mut schedule = Rng::new(options.seed);
        let mut changes = Vec::new();
        if let Strategy::Priorities { changes: n, steps } = options.strategy {
            changes = (0..n).map(|_| schedule.below(steps.max(1))).collect();
            changes.sort_unstable_by(|a, b| b.cmp(a));
        }
        Core {
            state: Mutex::new(State {
                options: options.clone(),
                schedule,
                choices: Rng::new(options.seed ^ 0xC401_CE5E_ED00_0001),
                keys: Rng::new(options.seed ^ 0x4A54_5E5E_ED00_0002),
                threads: Vec::new(),
                current: 0,
                ready: Vec::new(),
                waiting: HashMap::new(),
                timers: BinaryHeap::new(),
                now_ns: 0,
                sequence: 0,
                steps: 0,
                switches: 0,
                shards: 0,
                machine: options.costs.map(|costs| Machine::new(costs, options.processors)),
                changes,
                lowest: 1 << 32,
                forks: Vec::new(),
                preempted: 0,
                successor: None,
                trace: Trace::new(options.trace),
                over: None,
                measured: SegmentTimes::new(),
            }),
            ended: Condvar::new(),
            progress: AtomicU64::new(0),
            code: options.code.clone(),
            contends: options.costs.is_some_and(|costs| costs.models_locks()),
            passes_time: options.costs.is_some(),
        }
    }

    /// The state, for the holder of the baton. A thread that enters after the end of its run never returns.
    fn state(&self) -> MutexGuard<'_, State> {
        let st = self.state.lock();
        if st.over.is_some() {
            drop(st);
            leak();
        }
        self.progress.fetch_add(1, Ordering::Relaxed);
        st
    }

    fn end(&self, mut st: MutexGuard<'_, State>, how: Result<(), Failure>) {
        if st.over.is_none() {
            st.over = Some(how);
        }
        self.ended.notify_all();
    }

    fn fail(&self, st: MutexGuard<'_, State>, how: Failure) -> ! {
        self.end(st, Err(how));
        leak();
    }

    /// Passes the baton to `next`.
    fn hand_over(&self, mut st: MutexGuard<'_, State>, next: usize) {
        st.current = next;
        st.switches += 1;
        st.threads[next].status = Status::Running;
        st.event(Kind::Run, "", 0);
        let gate = st.threads[next].gate.clone();
        drop(st);
        gate.open();
    }

    fn count_step<'a>(&self, mut st: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        st.steps += 1;
        if st.steps > st.options.steps_max {
            let failure = Failure::Livelock { steps: st.steps, threads: st.table() };
            self.fail(st, failure);
        }
        st
    }

    /// A place where another thread may take over.
    fn maybe_switch(&self, me: usize, st: MutexGuard<'_, State>, force: bool) {
        let mut st = self.count_step(st);
        // An unwinding thread is not interrupted, because its data may be inconsistent.
        if std::thread::panicking() || !(st.preempts() || (force && !st.ready.is_empty())) {
            return;
        }
        let next = st.choose_ready().expect("a thread can run");
        st.threads[me].status = Status::Ready;
        st.ready.push(me);
        let gate = st.threads[me].gate.clone();
        self.hand_over(st, next);
        gate.pass();
    }

    /// Blocks the running thread. Returns true if its wait timed out.
    fn block(&self, me: usize, st: MutexGuard<'_, State>, on: Wait, key: Option<Key>, for_ns: Option<u64>) -> bool {
        let mut st = self.count_step(st);
        st.threads[me].status = Status::Blocked(on);
        st.threads[me].key = key;
        if let Some(key) = key {
            st.waiting.entry(key).or_default().push(me);
        }
        if let Some(ns) = for_ns {
            st.set_timer(me, ns);
        }
        if !matches!(on, Wait::Lock(..) | Wait::Processor) {
            st.threads[me].seat.sleeps += 1;
            st.leave_processor(me);
        }
        let st = self.pass_on(st);
        if let Some(st) = st {
            // No other thread can run, so this one continues.
            return st.threads[me].timed_out;
        }
        self.state().threads[me].timed_out
    }

    /// Passes the baton to a ready thread and waits for its return. Returns the state if the baton was not passed.
    fn pass_on<'a>(&self, mut st: MutexGuard<'a, State>) -> Option<MutexGuard<'a, State>> {
        let me = st.current;
        let Some(next) = st.choose_ready() else {
            let failure = st.panic_under_way().unwrap_or_else(|| Failure::Deadlock { waiting: st.table() });
            self.fail(st, failure);
        };
        if next == me {
            st.threads[me].status = Status::Running;
            return Some(st);
        }
        let gate = st.threads[me].gate.clone();
        self.hand_over(st, next);
        gate.pass();
        None
    }

    /// Occupies the running thread's processor for this time.
    fn charge(&self, me: usize, mut st: MutexGuard<'_, State>, ns: u64) {
        if ns > 0 && st.machine.is_some() && !std::thread::panicking() {
            st.event(Kind::Compute, "", ns);
            self.block(me, st, Wait::Processor, None, Some(ns));
        }
    }

    /// Ends a thread; this is its last call.
    fn finish(&self, me: usize, panic: Option<String>) {
        let mut st = self.state();
        st.event(Kind::End, "", 0);
        st.threads[me].status = Status::Done;
        if let Some(message) = panic {
            let message = st.threads[me].panic.take().unwrap_or(message);
            let thread = st.threads[me].name.clone();
            return self.end(st, Err(Failure::Panic { thread, message }));
        }
        if me == 0 {
            return self.end(st, Ok(()));
        }
        st.leave_processor(me);
        st.wake_all((Event::Ended, me));
        match st.choose_ready() {
            Some(next) => self.hand_over(st, next),
            None => {
                let failure = st.panic_under_way().unwrap_or_else(|| Failure::Deadlock { waiting: st.table() });
                self.end(st, Err(failure));
            }
        }
    }
}

/// A simulated thread that has not started yet.
pub(crate) struct Task {
    me: CurrentThread,
    gate: Arc<Gate>,
}

impl Task {
    /// The body of the thread of the operating system.
    pub(crate) fn run<T>(self, f: impl FnOnce() -> T) -> std::thread::Result<T> {
        *self.gate.thread.lock() = Some((std::thread::current(), Watched::current()));
        self.gate.pass();
        ME.with(|m| *m.borrow_mut() = Some(self.me.clone()));
        let result = catch_unwind(AssertUnwindSafe(f));
        self.me.settle();
        let panic = result.as_ref().err().map(|p| payload_text(&**p));
        // Its captured values have been dropped already; its thread-local values are dropped outside the simulation.
        self.me.core.finish(self.me.id, panic);
        ME.with(|m| *m.borrow_mut() = None);
        result
    }

    /// The simulated half of a join handle.
    pub(crate) fn handle(&self) -> JoinTarget {
        JoinTarget { id: self.me.id }
    }

    /// Removes a thread that could not be started.
    pub(crate) fn give_up(joined: &JoinTarget) {
        if let Some(me) = me() {
            let mut st = me.core.state();
            st.threads[joined.id].status = Status::Done;
            st.ready.retain(|r| *r != joined.id);
            if let Some(machine) = &mut st.machine {
                machine.forget(joined.id);
            }
            st.leave_processor(joined.id);
        }
    }
}

/// The thread to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinTarget {
    id: usize,
}

/// Creates a thread in the caller's run; `None` outside a run.
pub(crate) fn child(name: &str) -> Option<Task> {
    let me = me()?;
    let _inside = me.enter("spawn", || "");
    me.settle();
    let mut st = me.core.state();
    let (id, gate) = st.add_thread(name);
    st.admit(id);
    st.event(Kind::Spawn, "", id as u64);
    drop(st);
    Some(Task { me: CurrentThread { core: me.core, id }, gate })
}

/// Waits until the thread has ended.
pub(crate) fn join(joined: JoinTarget) {
    let Some(me) = me() else { return };
    let _inside = me.enter("join", || "");
    me.settle();
    let mut st = me.core.state();
    st.event(Kind::Join, "", joined.id as u64);
    if !matches!(st.threads[joined.id].status, Status::Done) {
        me.core.block(me.id, st, Wait::Join(joined.id), Some((Event::Ended, joined.id)), None);
    }
}

pub(crate) fn is_done(joined: JoinTarget) -> bool {
    me().is_none_or(|me| matches!(me.core.state().threads[joined.id].status, Status::Done))
}

#[cold]
pub(super) fn point(name: &'static str) {
    switch(Kind::Point, name, false);
}

/// Called after a thread was started.
pub(crate) fn yield_now() -> bool {
    if !inside() {
        return false;
    }
    if let Some(me) = me() {
        let _inside = me.enter("yield", || "");
        me.settle();
        let mut st = me.core.state();
        st.event(Kind::Yield, "", 0);
        if matches!(st.options.strategy, Strategy::Priorities { .. }) {
            st.demote(me.id);
        }
        // A thread that yields waits for something, so time passes if no other thread can run.
        if st.ready.is_empty() {
            st.advance();
        }
        me.core.maybe_switch(me.id, st, true);
    }
    true
}

fn switch(kind: Kind, name: &'static str, force: bool) {
    let Some(me) = me() else { return };
    let _inside = me.enter("point", || name);
    let mut st = me.core.state();
    st.event(kind, name, 0);
    me.core.maybe_switch(me.id, st, force);
}

#[cold]
pub(super) fn choose(bound: u64) -> u64 {
    let Some(me) = me() else { return 0 };
    let mut st = me.core.state();
    let value = st.choices.below(bound);
    st.event(Kind::Choose, "", value);
    value
}

#[cold]
pub(super) fn compute(ns: u64) {
    if let Some(me) = me() {
        let _inside = me.enter("compute", || "");
        me.settle();
        me.core.charge(me.id, me.core.state(), ns);
    }
}

pub(super) fn device() {
    let Some(me) = me() else { return };
    let mut st = me.core.state();
    st.threads[me.id].seat.needs = Requirement::Nothing;
    st.leave_processor(me.id);
}

pub(super) fn interrupt<T>(f: impl FnOnce() -> T) -> T {
    let Some(me) = me() else { return f() };
    let mut st = me.core.state();
    if st.machine.is_none() || st.threads[me.id].seat.needs != Requirement::Nothing {
        drop(st);
        return f();
    }
    st.event(Kind::Interrupt, "", 0);
    st.threads[me.id].seat.needs = Requirement::ProcessorFirst;
    st.admit(me.id);
    drop(me.core.pass_on(st));
    let result = f();
    device();
    result
}

pub(super) fn sleeps() -> u64 {
    me().map_or(0, |me| me.core.state().threads[me.id].seat.sleeps)
}

pub(super) fn steps() -> u64 {
    me().map_or(0, |me| me.core.state().steps)
}

/// A key for a hash table; `None` outside a run.
#[cold]
pub(crate) fn hash_key() -> Option<[u64; 2]> {
    let me = me()?;
    let mut st = me.core.state();
    let key = [st.keys.next_u64(), st.keys.next_u64()];
    st.event(Kind::Key, "", 0);
    Some(key)
}

#[cold]
pub(crate) fn processors() -> Option<usize> {
    me().map(|me| me.core.state().options.processors)
}

/// The thread's index for sharded data, assigned at first use.
#[cold]
pub(crate) fn shard() -> Option<usize> {
    let me = me()?;
    let _inside = me.enter("shard", || "");
    let mut st = me.core.state();
    if let Some(shard) = st.threads[me.id].shard {
        return Some(shard);
    }
    let shard = st.shards;
    st.shards += 1;
    st.threads[me.id].shard = Some(shard);
    Some(shard)
}

/// The virtual nanoseconds since the start of the run, and the wall-clock time; `None` outside a run.
#[cold]
pub(crate) fn now() -> Option<(u64, Timespec)> {
    let me = me()?;
    let _inside = me.enter("now", || "");
    me.settle();
    let st = me.core.state();
    let ns = st.now_ns;
    let wall = Timespec { sec: st.options.epoch_sec + (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 };
    Some((ns, wall))
}

/// Sleeps in virtual time. Returns false outside a run.
#[cold]
pub(crate) fn sleep(d: Duration) -> bool {
    let Some(me) = me() else { return false };
    let _inside = me.enter("sleep", || "");
    me.settle();
    let mut st = me.core.state();
    let ns = d.as_nanos().min(u128::from(u64::MAX)) as u64;
    st.event(Kind::Sleep, "", ns);
    me.core.block(me.id, st, Wait::Sleep, None, Some(ns));
    true
}

/// Called before an attempt to take a lock. Returns false if the lock is taken, which the attempt itself may not show.
#[cold]
pub(crate) fn before_lock(addr: usize, class: &'static LockClass, shared: bool) -> bool {
    let Some(me) = me() else { return true };
    let _inside = me.enter("lock", || class.name);
    me.settle();
    let mut st = me.core.state();
    st.event(Kind::Lock, class.name, 0);
    me.core.maybe_switch(me.id, st, false);
    !me.core.contends || me.core.state().may_take(me.id, addr, shared)
}

/// Records that the caller now holds the lock at `addr`.
#[cold]
pub(crate) fn acquired(addr: usize, class: &'static LockClass, shared: bool) {
    if let Some(me) = me() {
        let _inside = me.enter(if shared { "shares" } else { "took" }, || class.name);
        let mut st = me.core.state();
        st.threads[me.id].held.push((addr, class));
        if me.core.contends {
            st.took(me.id, addr, class, shared);
        }
    }
}

/// Waits until another thread releases the lock at `addr`, which is taken.
#[cold]
pub(crate) fn block_on_lock(addr: usize, class: &'static LockClass, shared: bool) {
    let Some(me) = me() else { return };
    let mut st = me.core.state();
    if !st.is_taken(addr) {
        // A thread outside this run holds it, but only for a short real time, so this is no event.
        drop(st);
        std::thread::yield_now();
        return;
    }
    st.event(Kind::Blocked, class.name, 0);
    let now_ns = st.now_ns;
    let seat = &mut st.threads[me.id].seat;
    seat.waits_since_ns.get_or_insert(now_ns);
    seat.wants_shared = shared;
    me.core.block(me.id, st, Wait::Lock(addr, class), Some((Event::Released, addr)), None);
}

/// Records that the lock at `addr` has been released.
#[cold]
pub(crate) fn released(addr: usize) {
    let Some(me) = me() else { return };
    let _inside = me.enter("release", || me.name_of_held(addr));
    me.settle();
    let mut st = me.core.state();
    let name = me.core.let_go(&mut st, me.id, addr);
    st.event(Kind::Release, name, 0);
    me.core.maybe_switch(me.id, st, false);
}

impl Core {
    fn let_go(&self, st: &mut State, me: usize, addr: usize) -> &'static str {
        let held = &mut st.threads[me].held;
        let name = match held.iter().rposition(|(a, _)| *a == addr) {
            Some(i) => held.remove(i).1.name,
            None => "",
        };
        if self.contends {
            st.hand_over_lock(me, addr);
        } else {
            st.wake_all((Event::Released, addr));
        }
        name
    }
}

/// The class of a lock that the caller holds.
pub(crate) fn holding(addr: usize) -> Option<&'static LockClass> {
    let me = me()?;
    let st = me.core.state();
    st.threads[me.id].held.iter().find(|(a, _)| *a == addr).map(|(_, c)| *c)
}

/// Waits for a notification of the condition variable at `condvar`. The caller has just released the lock at `lock`,
/// and no other thread has run since. Returns true if the wait timed out.
#[cold]
pub(crate) fn wait(condvar: usize, lock: usize, timeout: Option<Duration>) -> bool {
    let Some(me) = me() else { return false };
    let _inside = me.enter("wait", || me.name_of_held(lock));
    // Until then the lock counts as held, so that no notification is missed.
    me.settle();
    let mut st = me.core.state();
    let class = st.threads[me.id].held.iter().find(|(a, _)| *a == lock).map(|(_, c)| *c);
    me.core.let_go(&mut st, me.id, lock);
    let ns = timeout.map(|d| d.as_nanos().min(u128::from(u64::MAX)) as u64);
    st.event(Kind::Wait, class.map_or("", |c| c.name), ns.unwrap_or(0));
    let on = Wait::Condvar { timed: ns.is_some(), class };
    me.core.block(me.id, st, on, Some((Event::Notified, condvar)), ns)
}

/// Wakes all of the threads that wait for the condition variable, or one of them, which the seed determines.
#[cold]
pub(crate) fn notify(condvar: usize, all: bool) {
    let Some(me) = me() else { return };
    let _inside = me.enter("notify", || "");
    me.settle();
    let mut st = me.core.state();
    let key = (Event::Notified, condvar);
    let mut ns = 0;
    let woken = match st.waiting.get(&key).map_or(0, Vec::len) {
        0 => 0,
        n if all || n == 1 => {
            ns = st.wake_ns(&st.waiting[&key]);
            st.wake_all(key)
        }
        n => {
            let which = match st.options.strategy {
                Strategy::Path { .. } => st.fork(n),
                _ => st.schedule.below(n as u64) as usize,
            };
            let id = st.waiting[&key][which];
            ns = st.wake_ns(&[id]);
            st.make_ready(id, false);
            1
        }
    };
    st.event(Kind::Notify, "", woken as u64);
    match ns {
        0 => me.core.maybe_switch(me.id, st, false),
        ns => me.core.charge(me.id, st, ns),
    }
}

pub(super) fn run<T: Send + 'static>(options: &Options, f: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    assert!(!inside(), "a run cannot start another");
    quiet_panics();
    let lines = options.costs.is_some_and(|costs| costs.models_locks()) || matches!(options.code, Code::Measured);
    mode::begin_simulation(lines);
    let core = Arc::new(Core::new(options));
    let (id, gate) = core.state.lock().add_thread("root");
    let task = Task { me: CurrentThread { core: core.clone(), id }, gate: gate.clone() };
    {
        let mut st = core.state.lock();
        st.threads[id].status = Status::Running;
        st.threads[id].seat.taken = options.costs.is_some();
    }
    let root = std::thread::Builder::new().name("root".into()).spawn(move || task.run(f));
    let root = root.expect("a thread for the run");
    gate.open();

    let mut st = core.state.lock();
    let (mut kept, pause) = (Observations::default(), options.watchdog / 20);
    while st.over.is_none() {
        core.ended.wait_for(&mut st, pause);
        let holder = st.threads[st.current].gate.thread.lock();
        let time = kept.look(core.progress.load(Ordering::Relaxed), holder.as_ref().map(|(_, watched)| watched), pause);
        drop(holder);
        if st.over.is_none() && time >= options.watchdog {
            let thread = st.threads[st.current].name.clone();
            let last = st.trace.last_of(st.current);
            st.over = Some(Err(Failure::Stuck { thread, last }));
        }
    }
    let over = st.over.clone().expect("it is over");
    let left = st.threads.iter().filter(|t| !matches!(t.status, Status::Done)).map(|t| t.name.clone()).collect();
    let trace = std::mem::replace(&mut st.trace, Trace::new(false));
    let (steps, switches, virtual_ns) = (st.steps, st.switches, st.now_ns);
    let forks = std::mem::take(&mut st.forks);
    let uses = st.machine.as_ref().map_or_else(Vec::new, |machine| machine.contention.uses());
    let code = code::segments(&st.measured);
    drop(st);
    let result = match over {
        Ok(()) => match root.join().expect("panics are caught") {
            Ok(value) => Ok(value),
            Err(p) => Err(Failure::Panic { thread: "root".into(), message: payload_text(&*p) }),
        },
        Err(failure) => Err(failure),
    };
    mode::end_simulation(lines);
    Outcome { result, trace, steps, switches, virtual_ns, left, forks, uses, code }
}
