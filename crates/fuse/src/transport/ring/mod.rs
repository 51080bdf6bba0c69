//! Requests in and replies out through io_uring instead of read(2) and write(2) (Linux 6.14,
//! Documentation/filesystems/fuse-io-uring.rst).
//!
//! Purpose: one system call per request instead of two, and the request stays on the processor of its client. Several
//! threads serve each processor's queue with one entry each, so a thread that sleeps in the server delays no other
//! request. The kernel gives the next request to the entry that became free last, whose thread has warm caches.
//!
//! Main types: [`Rings`], all rings of a mount and their threads; [`Ring`], one of them; [`Slot`](slot::Slot),
//! [`Ticket`] and [`Mailbox`], a request's memory, the duty to reply, and the queue of replies; [`Seat`](seat::Seat),
//! the processor and priority of a thread; [`Alarm`](watch::Alarm), for the thread that watches the others.
//!
//! Some replies are sent later by another thread: those of an fsync, of a paced write, or of a change while the mount
//! is frozen. Such a reply occupies its entry until then. If a queue has no other entry left, the thread registers one
//! more. A new entry takes only later requests, and one may have arrived before. So the thread makes the kernel send it
//! a message ([`wake_queue`](super::notify::Notifier::wake_queue)). When that message is answered, the kernel checks
//! the queue.
//!
//! The device stays in use: FORGET, INTERRUPT and the end of the connection arrive there ([`attend`]).
//!
//! The start has three steps, so that a failure in the first costs nothing. [`Rings::prepare`] makes rings and threads
//! before the reply to INIT: if it fails, the device is used. [`Rings::register`] gives the kernel their entries. From
//! the reply to INIT until then, the kernel holds requests back. [`Rings::serve`] lets the threads serve.
//!
//! What it does not do: it does not enable io_uring in the kernel (`/sys/module/fuse/parameters/enable_uring`).
//!
//! # Locking
//! `fuse ring start` (2), the steps of the start; `fuse ring mailbox` (1002), see [`slot`].

mod queue;
mod seat;
mod slot;
mod watch;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task::{self, JoinHandle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::FromBytes;

use self::queue::{Event, Ring};
use self::seat::Seat;
pub(crate) use self::slot::{Mailbox, Ticket};
pub(super) use self::watch::Alarm;
use self::watch::Watch;
use super::buffer::Buffer;
use super::channel::Channel;
use super::follow::Binding;
use super::origin::Origin;
use super::session::{End, IoFlusher, Shared, handle};
use crate::abi::{InHeader, Opcode};
use crate::server::Server;

static CLASS: LockClass = LockClass::new("fuse ring start", 2);

/// Threads per queue: as many in all as there would be workers at the device, if the machine is small.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 8;
const THREADS_WANTED: usize = 16;
/// After this many failed entries of a ring, its thread gives up.
const FAILURES_MAX: u32 = 16;
/// How long the reader of the device waits after a FORGET, so that the kernel can batch the next ones.
const COLLECT: Duration = Duration::from_millis(1);

/// The steps of the start.
enum Step<S> {
    Prepared,
    Register(Arc<Shared<S>>),
    Serve,
    Cancelled,
}

struct State<S> {
    step: Step<S>,
    /// How many threads have finished the step.
    done: usize,
    failed: Option<Errno>,
}

struct Start<S> {
    state: Mutex<State<S>>,
    changed: Condvar,
}

impl<S> Start<S> {
    /// Reports a thread's result of the present step.
    fn report(&self, result: Result<(), Errno>) {
        let mut state = self.state.lock();
        state.done += 1;
        state.failed = state.failed.or(result.err());
        self.changed.notify_all();
    }

    /// Begins a step, and waits for all `threads`.
    fn begin(&self, step: Step<S>, threads: usize) -> Result<(), Errno> {
        let mut state = self.state.lock();
        (state.step, state.done) = (step, 0);
        self.changed.notify_all();
        while state.done < threads {
            self.changed.wait(&mut state);
        }
        state.failed.map_or(Ok(()), Err)
    }
}

/// The number of entries of one queue that can take a request: in the kernel, or owned by a running thread.
type Free = Arc<AtomicUsize>;

/// The rings of one mount, and their threads.
pub(crate) struct Rings<S: Server> {
    start: Arc<Start<S>>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<End>>,
    alarm: Arc<Alarm>,
}

/// The number of possible processors: the kernel has a queue for each, and each needs an entry.
fn queues() -> io::Result<u16> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u16>().ok());
    last.and_then(|n| n.checked_add(1)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

impl<S: Server> Rings<S> {
    /// Creates rings and threads for a connection whose requests carry up to `max_payload` bytes. `first`: the number
    /// of the first thread.
    ///
    /// # Errors
    /// io_uring is missing or forbidden, or memory, threads or descriptors are insufficient.
    pub fn prepare(channel: &Arc<Channel>, max_payload: usize, first: usize) -> io::Result<Rings<S>> {
        let queues = queues()?;
        let each = (THREADS_WANTED / usize::from(queues)).clamp(THREADS_MIN, THREADS_MAX);
        let state = State { step: Step::Prepared, done: 0, failed: None };
        let start = Arc::new(Start { state: Mutex::new(&CLASS, state), changed: Condvar::new() });
        let alarm = Arc::new(Alarm::new(first + usize::from(queues) * each)?);
        let mut rings = Rings { start, mailboxes: Vec::new(), threads: Vec::new(), alarm };
        for queue in 0..queues {
            let free = Free::default();
            for _ in 0..each {
                let ring = Ring::new(channel, queue, max_payload)?;
                rings.mailboxes.push(ring.mailbox().clone());
                let me = first + rings.threads.len();
                let (start, free, alarm) = (rings.start.clone(), free.clone(), rings.alarm.clone());
                let thread = move || run(ring, me, &start, &free, &alarm);
                rings.threads.push(task::spawn(&format!("fuse-ring-{queue}"), thread)?);
            }
        }
        let mut state = rings.start.state.lock();
        while state.done < rings.threads.len() {
            rings.start.changed.wait(&mut state);
        }
        let failed = state.failed;
        drop(state);
        failed.map_or(Ok(rings), |errno| Err(errno.into()))
    }

    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Gives the kernel the entries. From now on requests arrive, and wait.
    ///
    /// # Errors
    /// The kernel's; the mount is then unusable.
    pub(in crate::transport) fn register(&self, shared: &Arc<Shared<S>>) -> Result<(), Errno> {
        self.start.begin(Step::Register(shared.clone()), self.threads.len())
    }

    pub fn serve(&self) {
        let _ = self.start.begin(Step::Serve, 0);
    }

    pub(super) fn alarm(&self) -> Arc<Alarm> {
        self.alarm.clone()
    }

    /// Ends the threads, unless the end of the connection already has.
    pub(in crate::transport) fn stop(&mut self) -> Vec<End> {
        let _ = self.start.begin(Step::Cancelled, 0);
        self.mailboxes.iter().for_each(|m| m.stop());
        let ended = |t: JoinHandle<End>| t.join().unwrap_or(End::Failed(Errno::IO));
        self.threads.drain(..).map(ended).collect()
    }
}

impl<S: Server> Drop for Rings<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A ring's thread, from the preparation to its end.
fn run<S: Server>(mut ring: Ring, me: usize, start: &Start<S>, free: &Free, alarm: &Alarm) -> End {
    let enabled = ring.enable().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
    start.report(enabled);
    let shared = {
        let mut state = start.state.lock();
        loop {
            match &state.step {
                Step::Prepared => start.changed.wait(&mut state),
                Step::Register(shared) => break shared.clone(),
                Step::Serve | Step::Cancelled => return End::Aborted,
            }
        }
    };
    start.report(if ring.add_slot() { ring.refusal().map_or(Ok(()), Err) } else { Err(Errno::NOMEM) });
    {
        let mut state = start.state.lock();
        loop {
            match &state.step {
                Step::Prepared | Step::Register(_) => start.changed.wait(&mut state),
                Step::Serve => break,
                Step::Cancelled => return End::Aborted,
            }
        }
    }
    let _flusher = IoFlusher::begin();
    let end = serve(&shared, me, &mut ring, free, alarm);
    if matches!(end, End::Failed(_)) {
        alarm.fail();
    } else {
        shared.lost();
    }
    end
}

fn serve<S: Server>(shared: &Shared<S>, me: usize, ring: &mut Ring, free: &Free, alarm: &Alarm) -> End {
    let binding = Binding::new(alarm.bound(), me);
    let parent = binding.clone();
    task::has_own_settings(Some(Rc::new(move || parent.let_go())));
    let mut seat = Seat::new(ring.queue(), binding);
    let notifier = ring.notifier();
    let (mut failures, mut counted) = (0, 0usize);
    loop {
        ring.commit(true);
        // Entries that wait for their replies are missing at the queue. If the last one is missing, it is replaced.
        let at_hand = ring.at_hand();
        let missing = counted.saturating_sub(at_hand);
        free.fetch_add(at_hand.saturating_sub(counted), Ordering::SeqCst);
        counted = at_hand;
        if missing > 0 && free.fetch_sub(missing, Ordering::SeqCst) == missing && ring.add_slot() {
            free.fetch_add(1, Ordering::SeqCst);
            counted += 1;
            seat.take();
            notifier.wake_queue(seat.file());
        }
        seat.choose_priority(Instant::now(), || alarm.watch());
        if let Err(errno) = ring.wait() {
            return End::Failed(errno);
        }
        if ring.mailbox().is_stopped() {
            return End::Aborted;
        }
        while let Some(event) = ring.event() {
            match event {
                Event::Request(slot) => ring.serve(slot, |ticket, message| {
                    seat.request(message);
                    handle(shared, me, Origin::Ring(ticket), message);
                }),
                Event::Ended(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED) => {
                    return End::Aborted;
                }
                Event::Ended(errno) => {
                    failures += 1;
                    if failures > FAILURES_MAX || !ring.add_slot() {
                        return End::Failed(errno);
                    }
                }
            }
            // A reply must not wait for the end of the next request.
            if ring.has_event() {
                ring.commit(false);
                if let Err(errno) = ring.submit() {
                    return End::Failed(errno);
                }
            }
        }
    }
}

/// Serves the messages that still come from the device, and watches the threads of the rings, until the connection ends
/// or one of them has failed.
pub(super) fn attend<S: Server>(shared: &Shared<S>, channel: &Arc<Channel>, alarm: &Alarm) -> End {
    // The kernel refuses to read into a buffer that is too small for a WRITE.
    let Some(mut buffer) = Buffer::new(shared.agreed.config.max_write as usize) else {
        return End::Failed(Errno::NOMEM);
    };
    let clock = Clock::real();
    let mut watch = Watch::new(alarm);
    loop {
        let limit = watch.look(Instant::now()).map(|limit| Timespec::try_from(limit).unwrap_or_default());
        let mut fds = [PollFd::new(channel.fd(), PollFlags::IN), PollFd::new(alarm.event(), PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            // The thread that has failed returns the error.
            _ if alarm.has_failed() => return End::Aborted,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return End::Failed(errno),
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        let n = match channel.receive(buffer.bytes()) {
            Ok(0) => return End::Aborted, // the device never returns this
            Ok(n) => n,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV) => return End::Unmounted,
            Err(Errno::CONNABORTED) => return End::Aborted,
            Err(errno) => return End::Failed(errno),
        };
        let message = &buffer.bytes()[..n];
        handle(shared, 0, Origin::Device(channel.clone()), message);
        if forgets(&buffer.bytes()[..n]) {
            clock.sleep(COLLECT);
        }
    }
}

fn forgets(message: &[u8]) -> bool {
    let opcode = InHeader::read_from_prefix(message).ok().and_then(|(header, _)| Opcode::from_raw(header.opcode));
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget))
}
