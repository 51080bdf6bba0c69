//! Workers on a socket instead of the device. The tests assert counts only; nothing depends on the machine's speed.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use rustix::io::{Errno, read, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::abi::{InHeader, InitFlags, OutHeader};
use crate::server::{Config, InitOffer, Server};
use crate::transport::channel::Channel;
use crate::transport::init::negotiate;
use crate::transport::reply::ReplyEntry;
use crate::transport::session::{Shared, work};
use crate::types::Request;

static GATE: LockClass = LockClass::new("test gate", 0);
/// Far longer than any machine needs.
const LIMIT: Duration = Duration::from_secs(60);

/// LOOKUP of `wait` sleeps, and `hide` spins without announcing it, until `go` is looked up. Each call notes its
/// thread.
#[derive(Default)]
struct Traffic {
    open: Gate,
    served_by: Served,
}

struct Gate(Mutex<bool>, Condvar);
struct Served(Mutex<Vec<ThreadId>>);

impl Default for Gate {
    fn default() -> Gate {
        Gate(Mutex::new(&GATE, false), Condvar::new())
    }
}

impl Default for Served {
    fn default() -> Served {
        Served(Mutex::new(&GATE, Vec::new()))
    }
}

impl Server for Traffic {
    fn lookup(&self, _: &Request, _: u64, name: &[u8], reply: ReplyEntry) {
        self.served_by.0.lock().push(task::current().id());
        match name {
            b"wait" => {
                let mut open = self.open.0.lock();
                while !*open {
                    self.open.1.wait(&mut open);
                }
                *open = false;
            }
            // Nothing in this call informs the pool.
            b"hide" => {
                while !std::mem::take(&mut *self.open.0.lock()) {
                    task::yield_now();
                }
            }
            b"go" => {
                *self.open.0.lock() = true;
                self.open.1.notify_all();
            }
            _ => {}
        }
        reply.error(Errno::NOENT);
    }
}

/// Some workers, and the end of the socket that represents the kernel.
struct Site {
    shared: Arc<Shared<Traffic>>,
    server: Arc<Traffic>,
    peer: rustix::fd::OwnedFd,
    workers: Vec<task::JoinHandle<()>>,
}

impl Site {
    fn new(workers: usize) -> Site {
        let (ours, peer) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        // A test should fail rather than hang.
        set_socket_timeout(&peer, Timeout::Recv, Some(LIMIT)).expect("set");
        let offer = InitOffer { minor: 45, flags: InitFlags::all(), max_readahead: 1 << 17, block_device: false };
        let server = Arc::new(Traffic::default());
        let shared = Arc::new(Shared::new(server.clone(), negotiate(&offer, &Config::default(), false).1, workers, 0));
        let channel = Arc::new(Channel::new(ours));
        let workers = (0..workers)
            .map(|i| {
                let (shared, channel) = (shared.clone(), channel.clone());
                task::spawn("worker", move || {
                    work(&shared, i, &channel);
                })
                .expect("thread")
            })
            .collect();
        Site { shared, server, peer, workers }
    }

    fn ask(&self, name: &str) {
        let body = [name.as_bytes(), b"\0"].concat();
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode: 1, unique: 42, nodeid: 1, ..InHeader::default() };
        write(&self.peer, &[header.as_bytes(), &body].concat()).expect("sent");
    }

    fn answered(&self) {
        let mut bytes = [0; 256];
        let n = read(&self.peer, &mut bytes[..]).expect("reply");
        let (header, _) = OutHeader::read_from_prefix(&bytes[..n]).expect("header");
        assert_eq!((header.unique, header.error), (42, -2));
    }

    /// Repeats a blocked request and the one that ends it until the pool's counts show the expected event. At first
    /// more than one worker may be reading, and then no worker has to be called.
    fn until(&self, blocked: &str, happened: impl Fn(CrewStats) -> bool) -> bool {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            // Two workers that both read notice that one is enough.
            for _ in 0..4 * OVERLAPS {
                self.ask("nothing");
                self.answered();
            }
            self.ask(blocked);
            self.ask("go");
            self.answered();
            self.answered();
            if happened(self.shared.pool().stats()) {
                return true;
            }
        }
        false
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = shutdown(&self.peer, Shutdown::Both);
        for worker in self.workers.drain(..) {
            worker.join().expect("joined");
        }
    }
}

/// Readers that take turns would change at each request. On a busy machine, a reader without a processor looks like one
/// that sleeps, and is replaced for a while.
#[test]
fn one_client_is_served_by_one_worker() {
    const REQUESTS: usize = 1000;
    let site = Site::new(4);
    let end = Instant::now() + LIMIT;
    loop {
        for _ in 0..REQUESTS {
            site.ask("nothing");
            site.answered();
        }
        let served = std::mem::take(&mut *site.server.served_by.0.lock());
        assert_eq!(served.len(), REQUESTS);
        let changes = served.windows(2).filter(|w| w[0] != w[1]).count();
        if changes < REQUESTS / 4 {
            return;
        }
        assert!(Instant::now() < end, "{changes} changes of worker in {REQUESTS} requests");
    }
}

#[test]
fn a_worker_that_sleeps_is_replaced() {
    let site = Site::new(2);
    assert!(site.until("wait", |stats| stats.replaced > 0), "{:?}", site.shared.pool().stats());
}

#[test]
fn the_standby_replaces_a_worker_that_does_not_return() {
    let site = Site::new(2);
    assert!(site.until("hide", |stats| stats.taken_over > 0), "{:?}", site.shared.pool().stats());
}

#[test]
fn parked_workers_help_when_requests_pile_up_and_leave_at_the_end() {
    pile_up(2);
}

/// A worker without a thread runs on no processor.
#[test]
fn workers_that_could_not_be_started_are_not_counted() {
    pile_up(4);
}

/// Two workers of a pool for `workers`, on two processors.
fn pile_up(workers: usize) {
    let mut pool = WorkerPool::new(workers);
    pool.processors = 2;
    pool.at_once = LIMIT; // every request counts as one that was waiting
    let pool = Arc::new(pool);
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let (mut reader, mut worker) = (pool.enter(0), pool.enter(1));
    pool.before_read(&mut reader, || ());
    let shared = pool.clone();
    let helper = task::spawn("helper", move || {
        shared.before_read(&mut worker, || ()); // parks, because one reads already
        shared.after_read(&mut worker, 1, Instant::now(), false);
        write(&theirs, b"!").expect("told");
        read(&theirs, &mut [0u8; 1][..]).expect("heard");
        worker.one_too_many = true;
        shared.before_read(&mut worker, || ()); // parks again, until the end
    })
    .expect("thread");
    let end = Instant::now() + LIMIT;
    let parked = |what: &str| {
        while pool.running.load(Ordering::SeqCst) > 1 {
            task::yield_now();
            assert!(Instant::now() < end, "{what}");
        }
    };
    parked("the helper never parked");
    ours.set_nonblocking(true).expect("set");
    while read(&ours, &mut [0u8; 1][..]).is_err() {
        pool.after_read(&mut reader, 1, Instant::now(), false);
        reader.one_too_many = false;
        pool.before_read(&mut reader, || ());
        assert!(Instant::now() < end, "{:?}", pool.stats());
    }
    // If the machine delays this thread for long, the standby may be faster.
    assert_eq!(pool.stats().reinforced + pool.stats().taken_over, 1);
    write(&ours, b"!").expect("told");
    parked("the helper never parked again");
    pool.dismiss();
    helper.join().expect("joined");
}
