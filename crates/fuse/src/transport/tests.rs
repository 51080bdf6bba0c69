//! Decoding without a kernel: the tests write the messages, and a socket receives the replies.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::task;
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::Buffer;
use super::channel::Channel;
use super::dispatch::{Flow, dispatch};
use super::init::{Negotiated, negotiate};
use super::origin::Origin;
use super::session::{End, Shared, work};
use crate::abi::*;
use crate::server::{Config, InitOffer, Server};
use crate::transport::reply::*;
use crate::types::*;

/// A channel whose other end is a socket that preserves message boundaries, as the device does.
struct Wire {
    channel: Arc<Channel>,
    peer: OwnedFd,
    buffer: Buffer,
}

impl Wire {
    fn new() -> Wire {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        Wire { channel: Arc::new(Channel::new(a)), peer: b, buffer: Buffer::new(1 << 16).expect("memory") }
    }

    fn dispatch<S: Server>(&mut self, server: &S, agreed: &Negotiated, message: &[u8]) -> Flow {
        let place = &mut self.buffer.bytes()[..message.len()];
        place.copy_from_slice(message);
        dispatch(server, agreed, Origin::Device(self.channel.clone()), place)
    }

    /// The error and the body of the next reply, if there is one.
    fn reply(&self) -> Option<(u64, i32, Vec<u8>)> {
        let mut bytes = vec![0; 1 << 16];
        let n = match read(&self.peer, &mut bytes[..]) {
            Err(Errno::AGAIN) => return None,
            n => n.expect("read"),
        };
        let (header, body) = OutHeader::read_from_prefix(&bytes[..n]).expect("header");
        assert_eq!(header.len as usize, n);
        Some((header.unique, header.error, body.to_vec()))
    }
}

fn agreed(config: Config) -> Negotiated {
    let offer = InitOffer { minor: 45, flags: InitFlags::all(), max_readahead: 1 << 17, block_device: false };
    negotiate(&offer, &config, false).1
}

fn message(opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 42,
        nodeid,
        uid: 1,
        gid: 2,
        pid: 3,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

#[derive(Default)]
struct Recorder {
    forgotten: AtomicU64,
    written: AtomicU64,
    interrupted: AtomicU64,
}

impl Server for Recorder {
    fn forget(&self, batch: &[Forget]) {
        self.forgotten.fetch_add(batch.iter().map(|f| f.nlookup).fold(0, u64::wrapping_add), Ordering::Relaxed);
    }
    fn write(&self, req: &Request, ino: u64, args: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        assert_eq!((req.uid, req.gid, req.pid, ino, args.fh, args.cached), (1, 2, 3, 7, 9, true));
        assert_eq!(data.as_ptr() as usize % 4096, 0);
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        reply.ok(data.len() as u32);
    }
    fn lookup(&self, _: &Request, _: u64, name: &[u8], reply: ReplyEntry) {
        match name {
            b"drop" => drop(reply),
            b"late" => {
                let t = extant_base::task::spawn("late", move || reply.error(Errno::BUSY)).expect("thread");
                t.join().expect("joined");
            }
            _ => reply.negative(FOREVER),
        }
    }
    fn interrupt(&self, unique: u64) {
        self.interrupted.store(unique, Ordering::Relaxed);
    }
    fn rename(&self, _: &Request, args: &RenameArgs<'_>, reply: ReplyEmpty) {
        assert_eq!((args.name, args.new_name, args.new_parent, args.flags), (&b"old"[..], &b"new"[..], 5, 1));
        reply.ok();
    }
    fn getxattr(&self, _: &Request, _: u64, _: &[u8], reply: ReplyXattr) {
        reply.ok(b"value");
    }
    fn read(&self, _: &Request, _: u64, args: &ReadArgs, reply: ReplyData) {
        let piece = [b'x'; 3];
        let pieces: Vec<_> = (0..args.size / 3).map(|_| std::io::IoSlice::new(&piece)).collect();
        reply.vectored(&pieces);
    }
}

#[test]
fn a_write_reaches_the_server_aligned_and_complete() {
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(Config::default()));
    let head = WriteIn { fh: 9, offset: 4096, size: 5, write_flags: WRITE_CACHE, ..WriteIn::default() };
    wire.dispatch(&server, &agreed, &message(16, 7, &[head.as_bytes(), b"hello"].concat()));
    let (unique, error, body) = wire.reply().expect("reply");
    assert_eq!((unique, error), (42, 0));
    assert_eq!(body, WriteOut { size: 5, padding: 0 }.as_bytes());
    // One byte less than the header says: refused, not truncated.
    wire.dispatch(&server, &agreed, &message(16, 7, &[head.as_bytes(), b"hell"].concat()));
    assert_eq!(wire.reply().expect("reply").1, -5);
    assert_eq!(server.written.load(Ordering::Relaxed), 5);
}

#[test]
fn a_reply_answers_exactly_once_on_any_thread() {
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(Config::default()));
    for (name, error) in [(&b"drop\0"[..], -5), (b"late\0", -16), (b"none\0", 0)] {
        wire.dispatch(&server, &agreed, &message(1, 1, name));
        assert_eq!(wire.reply().expect("one reply").1, error);
        assert!(wire.reply().is_none());
    }
}

#[test]
fn forgets_and_interrupts_have_no_reply_and_their_lengths_are_checked() {
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(Config::default()));
    wire.dispatch(&server, &agreed, &message(2, 7, ForgetIn { nlookup: 3 }.as_bytes()));
    let two = [ForgetOne { nodeid: 1, nlookup: 10 }, ForgetOne { nodeid: 2, nlookup: 20 }];
    for count in [2, 3, u32::MAX] {
        let head = BatchForgetIn { count, dummy: 0 };
        wire.dispatch(&server, &agreed, &message(42, 0, &[head.as_bytes(), two.as_bytes()].concat()));
    }
    assert_eq!(server.forgotten.load(Ordering::Relaxed), 33, "only the batch with the right length counts");
    wire.dispatch(&server, &agreed, &message(36, 0, InterruptIn { unique: 77 }.as_bytes()));
    assert_eq!(server.interrupted.load(Ordering::Relaxed), 77);
    assert!(wire.reply().is_none());
}

#[test]
fn rename_and_xattr_arguments() {
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(Config::default()));
    let head = Rename2In { newdir: 5, flags: 1, padding: 0 };
    wire.dispatch(&server, &agreed, &message(45, 1, &[head.as_bytes(), b"old\0new\0"].concat()));
    assert_eq!(wire.reply().expect("reply").1, 0);
    let get = |size: u32| [GetxattrIn { size, padding: 0 }.as_bytes(), b"user.a\0"].concat();
    wire.dispatch(&server, &agreed, &message(22, 1, &get(0)));
    assert_eq!(wire.reply().expect("length").2, GetxattrOut { size: 5, padding: 0 }.as_bytes());
    wire.dispatch(&server, &agreed, &message(22, 1, &get(4)));
    assert_eq!(wire.reply().expect("range").1, -34);
    wire.dispatch(&server, &agreed, &message(22, 1, &get(5)));
    assert_eq!(wire.reply().expect("value").2, b"value");
}

#[test]
fn replies_of_any_number_of_pieces_arrive_complete() {
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(Config::default()));
    for pieces in [0, 1, 8, 9, 1023, 1024, 3000] {
        let head = ReadIn { size: pieces * 3, ..ReadIn::default() };
        wire.dispatch(&server, &agreed, &message(15, 1, head.as_bytes()));
        assert_eq!(wire.reply().expect("data").2, vec![b'x'; pieces as usize * 3]);
    }
}

#[test]
fn no_open_is_answered_without_the_server() {
    let config = Config { no_open: true, no_opendir: true, ..Config::default() };
    let (mut wire, server, agreed) = (Wire::new(), Recorder::default(), agreed(config));
    for opcode in [14, 27] {
        wire.dispatch(&server, &agreed, &message(opcode, 1, OpenIn::default().as_bytes()));
        assert_eq!(wire.reply().expect("reply").1, -38);
    }
}

/// Answers no request itself: every reply is dropped or ENOSYS.
struct Silent;
impl Server for Silent {}

#[test]
fn short_and_random_messages_do_no_harm() {
    let (mut wire, agreed) = (Wire::new(), agreed(Config::default()));
    let mut rng = Rng::new(1);
    for round in 0..40_000u32 {
        let opcode = round % 60;
        let body: Vec<u8> = (0..rng.below(120)).map(|_| if rng.one_in(3) { 0 } else { rng.next_u64() as u8 }).collect();
        let mut m = message(opcode, rng.below(4), &body);
        match round % 8 {
            0 => m.truncate(rng.below(m.len() as u64) as usize),
            1 => m[36] = rng.next_u64() as u8, // extensions that reach past the message
            2 => m[0] ^= 1 << rng.below(8),
            _ => {}
        }
        let silent = matches!(opcode, 2 | 36 | 41 | 42);
        let flow = wire.dispatch(&Silent, &agreed, &m);
        let destroy = matches!(flow, Flow::Destroy(_));
        drop(flow);
        let replies = std::iter::from_fn(|| wire.reply()).count();
        if m.len() < 40 {
            assert_eq!(replies, 0, "opcode {opcode}");
        } else if round % 8 != 2 {
            assert_eq!(replies, usize::from(!silent), "opcode {opcode} {m:?}");
        }
        assert!(!destroy || opcode == 38);
    }
}

/// Its `destroy` runs until it sees the loss of the connection, or a time limit.
struct Leaving {
    told: Arc<AtomicBool>,
    begun: AtomicBool,
    told_in_time: AtomicBool,
}

impl Server for Leaving {
    fn destroy(&self) {
        self.begun.store(true, Ordering::Release);
        let clock = Clock::real();
        while !self.told.load(Ordering::Acquire) && clock.now_ns() < 5_000_000_000 {
            clock.sleep(Duration::from_millis(1));
        }
        self.told_in_time.store(self.told.load(Ordering::Acquire), Ordering::Release);
    }
}

/// The kernel drops a DESTROY that it has sent, and with it the device that the server still writes to.
#[test]
fn a_connection_lost_during_destroy_is_reported_at_once() {
    let told = Arc::new(AtomicBool::new(false));
    let server = Leaving { told: told.clone(), begun: AtomicBool::new(false), told_in_time: AtomicBool::new(false) };
    let server = Arc::new(server);
    let shared = Arc::new(Shared::new(server.clone(), agreed(Config::default()), 2, 0));
    *shared.when_lost.lock() = Some(Box::new(move || told.store(true, Ordering::Release)));
    let channel = || {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
        (Arc::new(Channel::new(a)), b)
    };
    let ((first, kernel), (second, gone)) = (channel(), channel());
    write(&kernel, &message(38, 0, &[])).expect("sent");
    let worker = |me, channel: Arc<Channel>| {
        let shared = shared.clone();
        task::spawn("worker", move || work(&shared, me, &channel)).expect("thread")
    };
    let leaving = worker(0, first);
    while !server.begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    drop(gone);
    assert_eq!(worker(1, second).join().expect("no panic"), End::Aborted);
    // Reads the answer; otherwise the connection would end with a reset.
    assert!(read(&kernel, &mut [0; 64][..]).expect("an answer") > 0);
    drop(kernel);
    assert_eq!(leaving.join().expect("no panic"), End::Aborted);
    assert!(server.told_in_time.load(Ordering::Acquire), "the server did not see the loss in time");
}

/// The kernel also ends the connection after the answer to DESTROY.
#[test]
fn a_connection_that_ends_after_destroy_is_not_reported_as_lost() {
    let (no_wait, lost) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let server = Leaving { told: no_wait, begun: AtomicBool::new(false), told_in_time: AtomicBool::new(false) };
    let server = Arc::new(server);
    let shared = Arc::new(Shared::new(server.clone(), agreed(Config::default()), 1, 0));
    let report = lost.clone();
    *shared.when_lost.lock() = Some(Box::new(move || report.store(true, Ordering::Release)));
    let (ours, kernel) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets");
    write(&kernel, &message(38, 0, &[])).expect("sent");
    let worker = task::spawn("worker", move || work(&shared, 0, &Arc::new(Channel::new(ours)))).expect("thread");
    // Otherwise the connection would end with a reset.
    assert!(read(&kernel, &mut [0; 64][..]).expect("an answer") > 0);
    drop(kernel);
    assert_eq!(worker.join().expect("no panic"), End::Aborted);
    assert!(server.begun.load(Ordering::Acquire) && !lost.load(Ordering::Acquire));
}
