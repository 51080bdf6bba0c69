//! One mount: handshake, workers, orderly shutdown.
//!
//! Main type: [`Session`].
//!
//! Shutdown: for `fuseblk` the kernel sends DESTROY while umount(2) waits. The worker that gets it stops all others
//! from calling the server, calls the server's `destroy`, and only then answers. For `fuse` the kernel closes the
//! connection (ENODEV) without a message; the workers end and `destroy` runs last. The connection may also be aborted
//! through sysfs (ECONNABORTED), or by MNT_FORCE while the mount is in use (ENODEV, too). In these cases the dead mount
//! is also detached. The first worker that sees the loss reports it ([`Session::when_lost`]). Other workers may then
//! still be in operations, or one in `destroy`.
//!
//! `pool` chooses the workers that wait for requests, and `follow` their processors.
//!
//! # Locking
//! `fuse gate`, see [`super`]; `fuse kept` (2), the requests that are held back; `fuse lost` (2), the action after a
//! loss.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Instant;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use rustix::io::Errno;
use rustix::process::{configure_io_flusher_behavior, is_io_flusher};
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::Buffer;
use super::channel::Channel;
use super::dispatch::{Flow, changes_something, dispatch};
use super::follow::{Binding, Follower};
use super::init::{InitRequest, Negotiated, decode, negotiate, newer_major_reply};
use super::notify::Notifier;
use super::origin::Origin;
use super::pool::WorkerPool;
use super::ring::{Rings, attend};
use crate::abi::{InHeader, InitFlags, Opcode};
use crate::error::FuseError;
use crate::mount::{self, Callers, MountKind, MountOptions, MountPoint, Transport, Unmounter};
use crate::server::{Config, InitOffer, Server};
use crate::sys;

static GATE_CLASS: LockClass = LockClass::new("fuse gate", 1);
static KEPT_CLASS: LockClass = LockClass::new("fuse kept", 2);
static LOST_CLASS: LockClass = LockClass::new("fuse lost", 2);

/// More than one per processor, because sleeping workers are replaced; a parked worker costs a stack and no time.
const WORKERS_MIN: usize = 8;
const WORKERS_MAX: usize = 16;
/// With rings, the thread that calls [`Session::run`] attends to the device.
const RING_WORKERS: usize = 1;

/// On its own cache lines: each worker takes its own gate for every request.
#[repr(align(128))]
struct Gate(Mutex<()>);

pub(super) struct Shared<S> {
    server: Arc<S>,
    pub(super) agreed: Negotiated,
    pool: Arc<WorkerPool>,
    gates: Vec<Gate>,
    /// Set once, before DESTROY passes the gates: from then on no worker calls the server.
    stopping: AtomicBool,
    destroyed: AtomicBool,
    /// Whether requests that would change something are held back.
    holding: AtomicBool,
    kept: Mutex<Vec<(Origin, Vec<u8>)>>,
    /// None once the server's `destroy` has returned.
    pub(super) when_lost: Mutex<Option<LossHandler>>,
}

/// See [`Session::when_lost`].
type LossHandler = Box<dyn FnOnce() + Send>;

/// Holds back requests that would change something while a mount is frozen. No worker waits meanwhile.
#[derive(Clone)]
pub struct Hold(Weak<dyn Holding>);

impl Hold {
    /// Begins to hold requests back. After this returns, no worker is in an operation that changes something. A worker
    /// must not call it.
    pub fn begin(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.hold();
        }
    }

    /// Serves the requests that were held back. A worker must not call it.
    pub fn end(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.let_go();
        }
    }
}

trait Holding: Send + Sync {
    fn hold(&self);
    fn let_go(&self);
}

impl<S: Server> Holding for Shared<S> {
    fn hold(&self) {
        self.holding.store(true, Ordering::Release);
        // A worker inside the server may not have seen the flag.
        for gate in &self.gates {
            drop(gate.0.lock());
        }
    }

    fn let_go(&self) {
        self.holding.store(false, Ordering::Release);
        let kept = std::mem::take(&mut *self.kept.lock());
        for (origin, message) in kept {
            // The last gate belongs to no worker.
            handle(self, self.gates.len() - 1, origin, &message);
        }
    }
}

impl<S: Server> Shared<S> {
    /// `rings`: threads that serve rings, numbered after the workers.
    pub(super) fn new(server: Arc<S>, agreed: Negotiated, workers: usize, rings: usize) -> Shared<S> {
        Shared {
            server,
            agreed,
            pool: Arc::new(WorkerPool::new(workers)),
            gates: (0..=workers + rings).map(|_| Gate(Mutex::new(&GATE_CLASS, ()))).collect(),
            stopping: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            kept: Mutex::new(&KEPT_CLASS, Vec::new()),
            when_lost: Mutex::new(&LOST_CLASS, None),
        }
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> &WorkerPool {
        &self.pool
    }

    fn destroy_once(&self) {
        // Requests that are held back fail: no process waits for them any more.
        self.stopping.store(true, Ordering::Release);
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| self.server.destroy())).is_err() {
            self.poison();
        }
        let unused = self.when_lost.lock().take();
        drop(unused);
    }

    /// Called when the connection has ended: in order, after the answer to DESTROY, or before that, perhaps during
    /// `destroy`.
    pub(super) fn lost(&self) {
        let when_lost = self.when_lost.lock().take();
        if let Some(f) = when_lost {
            f();
        }
    }

    fn poison(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.server.poisoned()));
    }

    /// Waits until no worker except `me` is inside the server, and keeps all others from entering again.
    fn stop_others(&self, me: usize) {
        self.stopping.store(true, Ordering::Release);
        for (i, gate) in self.gates.iter().enumerate() {
            if i != me {
                drop(gate.0.lock());
            }
        }
    }
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Unmounted,
    Aborted,
    Failed(Errno),
}

/// A mount that exists and has been negotiated, ready to [`run`](Session::run).
///
/// If it is dropped before that, it is unmounted.
pub struct Session<S: Server> {
    shared: Arc<Shared<S>>,
    /// The descriptor from the mount; None after the connection is closed.
    channel: Option<Arc<Channel>>,
    unmounter: Unmounter,
    workers: usize,
    clone_fd: bool,
    rings: Option<Rings<S>>,
}

impl<S: Server> Session<S> {
    /// Mounts at `mountpoint` and negotiates. Requests of other processes wait until [`run`](Session::run).
    pub fn mount(server: Arc<S>, mountpoint: &Path, options: &MountOptions) -> Result<Session<S>, FuseError> {
        Session::mount_at(server, &MountPoint::open(mountpoint)?, options)
    }

    /// As [`Session::mount`], at a mount point that is already resolved.
    pub fn mount_at(server: Arc<S>, point: &MountPoint, options: &MountOptions) -> Result<Session<S>, FuseError> {
        let mounted = mount::mount(point, options)?;
        let unmounter = mounted.unmounter;
        let channel = Arc::new(Channel::new(mounted.fd));
        // Closing the last descriptor aborts the connection, so that unmounting sends no request.
        let give_up = |e, channel: Arc<Channel>| {
            drop(channel);
            let _ = unmounter.unmount(true);
            Err(e)
        };
        let (agreed, rings) = match handshake(&channel, &*server, options) {
            Ok(agreed) => agreed,
            Err(e) => return give_up(e, channel),
        };
        // While one worker serves DESTROY, another one must notice the end of the connection.
        let least = if matches!(options.kind, MountKind::FuseBlk { .. }) { 2 } else { 1 };
        let workers = match rings {
            None => options.workers.unwrap_or_else(|| task::processors().clamp(WORKERS_MIN, WORKERS_MAX)).max(least),
            Some(_) => RING_WORKERS,
        };
        let threads = rings.as_ref().map_or(0, Rings::threads);
        let shared = Arc::new(Shared::new(server, agreed, workers, threads));
        if let Some(Err(errno)) = rings.as_ref().map(|rings| rings.register(&shared)) {
            drop(rings);
            return give_up(FuseError::Ring { reason: errno.to_string() }, channel);
        }
        unmounter.tune(options);
        let (channel, clone_fd) = (Some(channel), options.clone_fd);
        Ok(Session { shared, channel, unmounter, workers, clone_fd, rings })
    }

    /// The settings negotiated with the kernel.
    pub fn config(&self) -> &Config {
        &self.shared.agreed.config
    }

    /// Unmounts the mount, from any thread except a worker.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Notifies the kernel of changes to data that it has cached.
    pub fn notifier(&self) -> Notifier {
        match &self.channel {
            Some(channel) => Notifier::new(channel),
            None => Notifier::default(),
        }
    }

    /// Determines the privileges of this mount's callers.
    pub fn callers(&self) -> Callers {
        self.unmounter.callers()
    }

    /// Holds requests back while the file system is frozen.
    pub fn hold(&self) -> Hold {
        let shared: Weak<Shared<S>> = Arc::downgrade(&self.shared);
        Hold(shared)
    }

    /// Sets an action for the moment when the connection ends without an answer to the kernel's DESTROY. It runs once,
    /// before the server's `destroy` has returned, perhaps while `destroy` or operations still run. From that moment,
    /// the device of a `fuseblk` mount that was ended by force is no longer open exclusively.
    pub fn when_lost(&mut self, f: impl FnOnce() + Send + 'static) {
        *self.shared.when_lost.lock() = Some(Box::new(f));
    }

    /// Serves until the mount is gone; the calling thread is one of the workers. When this returns, the server's
    /// `destroy` has always run.
    pub fn run(mut self) -> Result<(), FuseError> {
        let Some(main) = self.channel.take() else { return Ok(()) };
        let ends = match self.rings.take() {
            Some(mut rings) => {
                rings.serve();
                let end = attend(&self.shared, &main, &rings.alarm());
                if !matches!(end, End::Failed(_)) {
                    self.shared.lost();
                }
                std::iter::once(end).chain(rings.stop()).collect()
            }
            None => self.run_workers(&main)?,
        };
        drop(main);
        let failed = ends.iter().find_map(|e| if let End::Failed(errno) = e { Some(*errno) } else { None });
        let destroyed = self.shared.destroyed.load(Ordering::Acquire);
        let gone = destroyed || ends.contains(&End::Unmounted);
        self.shared.lost();
        // Before the unmount, which ends the kernel's exclusive open of the device: afterwards another process may
        // write to it.
        self.shared.destroy_once();
        // This includes workers that ended with ENODEV: after MNT_FORCE a busy mount remains, dead.
        if !destroyed {
            self.unmounter.detach_if_dead();
        }
        match failed {
            Some(errno) if !gone => Err(FuseError::Read { errno }),
            _ => Ok(()),
        }
    }

    /// Serves the device with all workers.
    fn run_workers(&mut self, main: &Arc<Channel>) -> Result<Vec<End>, FuseError> {
        let mut threads = Vec::with_capacity(self.workers);
        let is_told = self.shared.when_lost.lock().is_some();
        for i in 1..self.workers {
            let shared = self.shared.clone();
            let channel = self.channel_for_worker(main);
            match task::spawn(&format!("fuse-{i}"), move || work(&shared, i, &channel)) {
                Ok(t) => threads.push(t),
                // No worker would notice the end of the connection: drop the session, which unmounts.
                Err(source) if is_told && threads.is_empty() => {
                    self.channel = Some(main.clone());
                    return Err(FuseError::Thread { source });
                }
                // Fewer workers can serve as well, and the mount already exists.
                Err(_) => break,
            }
        }
        let mut ends = vec![work(&self.shared, 0, main)];
        for t in threads {
            // A worker catches panics of the server; a panic of the worker itself counts as a failed read.
            ends.push(t.join().unwrap_or(End::Failed(Errno::IO)));
        }
        Ok(ends)
    }

    fn channel_for_worker(&self, main: &Arc<Channel>) -> Arc<Channel> {
        if self.clone_fd
            && let Ok(fd) = sys::clone_device(main.fd())
        {
            return Arc::new(Channel::new(fd));
        }
        main.clone()
    }
}

impl<S: Server> Drop for Session<S> {
    fn drop(&mut self) {
        let Some(channel) = self.channel.take() else { return };
        // The channel stays open until here: any user may unmount a dead mount, and then open the device.
        self.shared.destroy_once();
        // Rings also keep the channel open.
        drop(self.rings.take());
        drop(channel);
        self.unmounter.detach_if_dead();
    }
}

/// Reads INIT, calls the server, answers.
fn handshake<S: Server>(
    channel: &Arc<Channel>,
    server: &S,
    options: &MountOptions,
) -> Result<(Negotiated, Option<Rings<S>>), FuseError> {
    let no_memory = FuseError::Handshake { what: "no memory" };
    let mut buffer = Buffer::new(0).ok_or(no_memory)?;
    loop {
        let n = match channel.receive(buffer.bytes()) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(errno) => return Err(FuseError::Read { errno }),
        };
        let message = &buffer.bytes()[..n];
        let Ok((header, body)) = InHeader::read_from_prefix(message) else {
            return Err(FuseError::Handshake { what: "the message is shorter than its header" });
        };
        if header.opcode != Opcode::Init as u32 || header.len as usize != n {
            channel.answer_error(header.unique, Errno::IO);
            return Err(FuseError::Handshake { what: "the first request is not INIT" });
        }
        let send = |out: &[u8]| {
            channel.answer(header.unique, &[std::io::IoSlice::new(out)]).map_err(|u| FuseError::Read { errno: u.errno })
        };
        match decode(body, matches!(options.kind, MountKind::FuseBlk { .. })) {
            InitRequest::NewerMajor => send(newer_major_reply().as_bytes())?,
            InitRequest::TooOld { major, minor } => {
                channel.answer_error(header.unique, Errno::PROTO);
                return Err(FuseError::Version { major, minor });
            }
            InitRequest::Malformed => {
                channel.answer_error(header.unique, Errno::PROTO);
                return Err(FuseError::Handshake { what: "INIT is shorter than its version says" });
            }
            InitRequest::Offer(offer) => {
                let wish = server.init(&offer);
                let rings = match rings(channel, options.transport, &offer, &wish) {
                    Ok(rings) => rings,
                    Err(e) => {
                        channel.answer_error(header.unique, Errno::PROTO);
                        return Err(e);
                    }
                };
                let (out, agreed) = negotiate(&offer, &wish, rings.is_some());
                server.negotiated(&agreed.config);
                send(out.as_bytes())?;
                return Ok((agreed, rings));
            }
        }
    }
}

/// The rings for a mount whose `transport` allows them. None: the device is used.
fn rings<S: Server>(
    channel: &Arc<Channel>,
    transport: Transport,
    offer: &InitOffer,
    wish: &Config,
) -> Result<Option<Rings<S>>, FuseError> {
    if transport == Transport::Device {
        return Ok(None);
    }
    let prepared = if offer.flags.contains(InitFlags::OVER_IO_URING) {
        let max_write = negotiate(offer, wish, false).1.config.max_write;
        Rings::prepare(channel, max_write as usize, RING_WORKERS).map_err(|e| e.to_string())
    } else {
        Err("the kernel does not offer it; Linux 6.14 does, after (as root): \
             echo Y > /sys/module/fuse/parameters/enable_uring"
            .into())
    };
    match prepared {
        Ok(rings) => Ok(Some(rings)),
        Err(reason) if transport == Transport::Ring => Err(FuseError::Ring { reason }),
        Err(_) => Ok(None),
    }
}

/// A worker: reads and handles requests until the connection ends.
pub(super) fn work<S: Server>(shared: &Shared<S>, me: usize, channel: &Arc<Channel>) -> End {
    let end = serve(shared, me, channel);
    // Parked workers notice the end themselves.
    shared.pool.dismiss();
    if !matches!(end, End::Failed(_)) {
        shared.lost();
    }
    end
}

fn serve<S: Server>(shared: &Shared<S>, me: usize, channel: &Arc<Channel>) -> End {
    let Some(mut buffer) = Buffer::new(shared.agreed.config.max_write as usize) else {
        return End::Failed(Errno::NOMEM);
    };
    let (mut worker, mut follower) = (shared.pool.enter(me), Follower::new(shared.pool.bound(), me));
    let _thread = WorkerThread::prepare(&shared.pool, follower.binding());
    loop {
        shared.pool.before_read(&mut worker, || follower.let_go());
        let received = channel.receive(buffer.bytes());
        let (n, now) = (*received.as_ref().unwrap_or(&0), Instant::now());
        let alone = follower.request(&buffer.bytes()[..n], now, || channel.has_more());
        shared.pool.after_read(&mut worker, n, now, alone);
        let n = match received {
            Ok(0) => return End::Aborted, // the device never returns this
            Ok(n) => n,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV) => return End::Unmounted,
            Err(Errno::CONNABORTED) => return End::Aborted,
            Err(errno) => return End::Failed(errno),
        };
        task::watch_sleep(true);
        handle(shared, me, Origin::Device(channel.clone()), &buffer.bytes()[..n]);
        let slept = !task::watch_sleep(false);
        shared.pool.after_request(&mut worker, slept);
    }
}

/// A thread's settings while it is a worker. The caller of [`Session::run`] is one, and gets its previous settings back
/// afterwards.
struct WorkerThread {
    _flusher: IoFlusher,
}

impl WorkerThread {
    fn prepare(pool: &Arc<WorkerPool>, binding: &Rc<Binding>) -> WorkerThread {
        let (pool, sleeper, parent) = (pool.clone(), binding.clone(), binding.clone());
        task::watched(Some(Rc::new(move || {
            sleeper.stay().leave();
            pool.before_sleep();
        })));
        task::has_own_settings(Some(Rc::new(move || parent.let_go())));
        WorkerThread { _flusher: IoFlusher::begin() }
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        task::watched(None);
        task::has_own_settings(None);
    }
}

/// While this exists, memory allocations of the thread do not wait for the writeback of pages that may wait for the
/// server. Requires a privilege; without it only the kernel's heuristics help.
pub(super) struct IoFlusher(bool);

impl IoFlusher {
    pub fn begin() -> IoFlusher {
        IoFlusher(!is_io_flusher().unwrap_or(true) && configure_io_flusher_behavior(true).is_ok())
    }
}

impl Drop for IoFlusher {
    fn drop(&mut self) {
        if self.0 {
            let _ = configure_io_flusher_behavior(false);
        }
    }
}

/// Serves one message.
pub(super) fn handle<S: Server>(shared: &Shared<S>, me: usize, origin: Origin, message: &[u8]) {
    let inside = shared.gates[me].0.lock();
    if shared.stopping.load(Ordering::Acquire) {
        drop(inside);
        refuse(origin, message);
        return;
    }
    if shared.holding.load(Ordering::Acquire) && changes_something(message) {
        // Checked again under the lock: a message added after the end of the hold would never be served.
        let mut kept = shared.kept.lock();
        if shared.holding.load(Ordering::Acquire) {
            kept.push((origin, message.to_vec()));
            return;
        }
    }
    let flow = catch_unwind(AssertUnwindSafe(|| dispatch(&*shared.server, &shared.agreed, origin, message)));
    drop(inside);
    match flow {
        Ok(Flow::Continue) => {}
        Ok(Flow::Destroy(reply)) => {
            shared.stop_others(me);
            shared.destroy_once();
            reply.ok();
        }
        // The reply was dropped during unwinding, which answered EIO.
        Err(_) => shared.poison(),
    }
}

/// After DESTROY, all requests fail; messages without a reply are dropped.
fn refuse(origin: Origin, message: &[u8]) {
    let Ok((header, _)) = InHeader::read_from_prefix(message) else { return };
    if Opcode::from_raw(header.opcode).is_none_or(Opcode::has_reply) {
        origin.answer_error(header.unique, Errno::NOTCONN);
    }
}
