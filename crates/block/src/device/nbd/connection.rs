//! One connection to an NBD server, and the requests that are in progress on it.
//!
//! Main type: [`Connection`]. Any number of threads may have requests on it at the same time. One of the threads that
//! wait reads the replies, its own and those of others, so a single caller is answered without another thread. For
//! requests without a waiting thread ([`ReplyReceiver::Bio`]), the device's reader thread does this
//! ([`Connection::serve_bios`]).
//!
//! A server that breaks the protocol, closes the connection or is silent for too long ends the connection: every
//! request on it fails, now and later.
//!
//! # Locking
//! `block nbd send` (956) protects the bytes of one batch of requests, so that they are not mixed with those of others;
//! it is held while the socket waits for room. `block nbd pending` (957) protects the table of requests and is never
//! held across I/O. A completion runs without either.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{Condvar, Mutex, MutexGuard};

use super::wire::{self, Export, Reply, Stream, be32, be64, chunk, cmd, wrong};
use crate::bio::{Bio, BioData};
use crate::buf::AlignedBuf;
use crate::error::Error;
use crate::ranks::{NBD_PENDING, NBD_SEND};

/// The number of extents that one answer to a query for holes may have here; the protocol permits more, and the next
/// query gets them.
const EXTENTS_MAX: usize = 1024;
/// The maximum number of chunks of one reply. A server may send a read in pieces, but it must end.
const CHUNKS_MAX: u32 = 65_536;
/// The number of time limits that may pass before one request is answered while the server answers others.
const PATIENCE: u32 = 4;
/// The maximum time that ending the connection may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// The maximum size of the text of an error, which is skipped.
const ERROR_BYTES_MAX: u32 = 64 << 10;

/// A request to send.
pub(super) struct Call<'a> {
    pub command: u16,
    pub flags: u16,
    pub offset: u64,
    pub len: u32,
    /// The bytes that follow a write.
    pub pieces: &'a [&'a [u8]],
}

/// The result of a request.
pub(super) struct Answer {
    /// The memory that a read filled.
    pub data: Option<AlignedBuf>,
    /// The answer to a query for holes: lengths and flags.
    pub extents: Vec<(u32, u32)>,
    pub result: io::Result<()>,
}

/// The receiver of the answer.
enum ReplyReceiver {
    /// A thread waits for it with this cookie.
    Waiter,
    /// The bio is completed. The name is that of the device, for errors.
    Bio(Box<Bio>, Arc<str>),
}

struct Pending {
    command: u16,
    offset: u64,
    len: u32,
    data: Option<AlignedBuf>,
    received: u64,
    extents: Vec<(u32, u32)>,
    /// The number of chunks of the reply so far.
    chunks: u32,
    error: Option<io::Error>,
    done: ReplyReceiver,
}

struct State {
    pending: HashMap<u64, Pending>,
    answers: HashMap<u64, Answer>,
    next_cookie: u64,
    /// Whether a thread reads replies.
    reading: bool,
    /// The number of pending requests of bios.
    bios: usize,
    /// The reason why the connection has ended.
    dead: Option<(io::ErrorKind, String)>,
    /// Whether the reader thread must end.
    closing: bool,
}

pub(super) struct Connection {
    stream: Stream,
    export: Export,
    clock: Clock,
    limit: Duration,
    /// Whether any connection of the device has ended.
    any_dead: Arc<AtomicBool>,
    send: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Connection {
    pub(super) fn new(stream: Stream, export: Export, limit: Duration, any_dead: Arc<AtomicBool>) -> Connection {
        Connection {
            stream,
            export,
            clock: Clock::real(),
            limit,
            any_dead,
            send: Mutex::new(&NBD_SEND, ()),
            state: Mutex::new(
                &NBD_PENDING,
                State {
                    pending: HashMap::new(),
                    answers: HashMap::new(),
                    next_cookie: 1,
                    reading: false,
                    bios: 0,
                    dead: None,
                    closing: false,
                },
            ),
            changed: Condvar::new(),
        }
    }

    /// Sends requests and waits for all answers, in their order. Either all are reads, or no answer may contain data:
    /// while a thread sends, it does not read, and a server that waits for a reader would not read, either.
    pub(super) fn call_all(&self, calls: &[Call<'_>], buffers: Vec<Option<AlignedBuf>>) -> Vec<Answer> {
        let mut cookies = Vec::with_capacity(calls.len());
        {
            let mut state = self.state.lock();
            for (call, data) in calls.iter().zip(buffers) {
                cookies.push(register(&mut state, call, data, ReplyReceiver::Waiter));
            }
        }
        self.send(calls, &cookies);
        cookies.into_iter().map(|cookie| self.wait(cookie)).collect()
    }

    /// Sends a bio's request. Its completion runs on the reader thread.
    pub(super) fn start(&self, command: u16, flags: u16, mut bio: Bio, name: Arc<str>) {
        let (offset, len) = (bio.offset, bio.len as u32);
        let (data, vecs) = match std::mem::replace(&mut bio.data, BioData::None) {
            BioData::Read(buf) => (Some(buf), Vec::new()),
            BioData::Write(vecs) => (None, vecs),
            BioData::None => (None, Vec::new()),
        };
        // The data is kept until the end of the send, because the completion may run before it returns.
        let kept = vecs.clone();
        let pieces: Vec<&[u8]> = kept.iter().map(|v| v.bytes()).collect();
        bio.data = if command == cmd::WRITE && !vecs.is_empty() { BioData::Write(vecs) } else { BioData::None };
        let call = Call { command, flags, offset, len, pieces: &pieces };
        let cookie = {
            let mut state = self.state.lock();
            state.bios += 1;
            register(&mut state, &call, data, ReplyReceiver::Bio(Box::new(bio), name))
        };
        self.changed.notify_all();
        self.send(&[call], &[cookie]);
    }

    fn send(&self, calls: &[Call<'_>], cookies: &[u64]) {
        let heads: Vec<[u8; 28]> = calls
            .iter()
            .zip(cookies)
            .map(|(call, cookie)| wire::request(call.command, call.flags, *cookie, call.offset, call.len))
            .collect();
        let mut pieces: Vec<&[u8]> = Vec::new();
        for (call, head) in calls.iter().zip(&heads) {
            pieces.push(head);
            pieces.extend(call.pieces);
        }
        let sent = {
            let _whole = self.send.lock();
            self.stream.send(&pieces, &self.clock, self.limit)
        };
        if let Err(e) = sent {
            self.end(&e);
        }
    }

    /// Marks the connection as ended. Threads that wait fail their requests.
    fn end(&self, e: &io::Error) {
        let mut state = self.state.lock();
        state.dead.get_or_insert_with(|| (e.kind(), e.to_string()));
        self.any_dead.store(true, Ordering::Release);
        drop(state);
        self.stream.shutdown();
        self.changed.notify_all();
    }

    /// Waits for the answer of one request; reads replies if no other thread does.
    fn wait(&self, cookie: u64) -> Answer {
        let began = self.clock.now_ns();
        let patience = u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX).saturating_mul(PATIENCE.into());
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answers.remove(&cookie) {
                return answer;
            }
            if let Some((kind, why)) = state.dead.clone() {
                let pending = state.pending.remove(&cookie);
                let data = pending.and_then(|pending| pending.data);
                return Answer { data, extents: Vec::new(), result: Err(io::Error::new(kind, why)) };
            }
            if self.clock.now_ns().saturating_sub(began) > patience {
                drop(state);
                self.end(&io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the server answers other requests, but not this one",
                ));
                state = self.state.lock();
                continue;
            }
            if state.reading {
                self.changed.wait(&mut state);
                continue;
            }
            state = self.read_one(state);
        }
    }

    /// Reads one reply. Only one thread may do this.
    fn read_one<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.reading = true;
        drop(state);
        let read = self.read_reply();
        if let Err(e) = &read {
            self.end(e);
        }
        let mut state = self.state.lock();
        state.reading = false;
        self.changed.notify_all();
        state
    }

    /// The body of the reader thread: while the device exists, reads replies while bios wait for them and no other
    /// thread does.
    pub(super) fn serve_bios(&self) {
        let mut state = self.state.lock();
        loop {
            if state.dead.is_some() {
                let lost: Vec<u64> = bios_of(&state);
                let lost: Vec<Pending> = lost.iter().filter_map(|cookie| state.pending.remove(cookie)).collect();
                if !lost.is_empty() {
                    state.bios = 0;
                    let (kind, why) = state.dead.clone().unwrap_or((io::ErrorKind::Other, String::new()));
                    drop(state);
                    for pending in lost {
                        finish(pending, Err(io::Error::new(kind, why.clone())));
                    }
                    // More bios may have arrived in the meantime, when no thread waited for their notification.
                    state = self.state.lock();
                    continue;
                }
            }
            if state.closing && state.bios == 0 {
                return;
            }
            if state.bios == 0 || state.reading || state.dead.is_some() {
                self.changed.wait(&mut state);
                continue;
            }
            state = self.read_one(state);
        }
    }

    /// Ends the reader thread when no bio is pending, and disconnects from the server.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let dead = state.dead.is_some();
        drop(state);
        self.changed.notify_all();
        if !dead {
            let farewell = wire::request(cmd::DISC, 0, 0, 0, 0);
            // The server may have gone; nothing depends on it any more.
            let limit = self.limit.min(FAREWELL);
            let _whole = self.send.lock();
            let _ = self.stream.limit(limit);
            if self.stream.send(&[&farewell], &self.clock, limit).is_ok() {
                // The server closes when it has nothing more to do for this connection. Without waiting, its owner
                // could end it in the middle of that.
                let _ = self.stream.read_full(&mut [0], &self.clock, limit);
            }
        }
    }

    /// Reads and handles one reply or one chunk. The caller has set `reading`.
    fn read_reply(&self) -> io::Result<()> {
        match wire::reply(&self.stream, &self.clock, self.limit)? {
            Reply::Simple { cookie, error } => {
                let mut pending = self.take(cookie)?;
                if error != 0 {
                    pending.error = Some(server_error(error));
                } else if pending.command == cmd::BLOCK_STATUS || pending.command == cmd::READ && self.export.structured
                {
                    return Err(self.put_back(cookie, pending, wrong("the server's reply is not in chunks")));
                } else if let Some(data) = pending.data.as_mut().filter(|_| pending.command == cmd::READ) {
                    if let Err(e) = self.stream.read_full(data, &self.clock, self.limit) {
                        return Err(self.put_back(cookie, pending, e));
                    }
                    pending.received = u64::from(pending.len);
                }
                self.complete(cookie, pending)
            }
            Reply::Chunk { cookie, last, kind, len } => {
                let mut pending = self.take(cookie)?;
                pending.chunks += 1;
                let read = match kind {
                    _ if pending.chunks > CHUNKS_MAX => Err(wrong("the server's reply does not end")),
                    chunk::NONE if !last => Err(wrong("the server sends an empty chunk in the middle of a reply")),
                    kind => self.read_chunk(&mut pending, kind, len),
                };
                if let Err(e) = read {
                    return Err(self.put_back(cookie, pending, e));
                }
                if last {
                    return self.complete(cookie, pending);
                }
                self.state.lock().pending.insert(cookie, pending);
                Ok(())
            }
        }
    }

    /// The pending request of a reply. No other thread accesses it, because only one reads.
    fn take(&self, cookie: u64) -> io::Result<Pending> {
        self.state.lock().pending.remove(&cookie).ok_or_else(|| wrong("the server answers what it was not asked"))
    }

    /// Puts back a request whose reply ends the connection, so that it fails with the others. Returns the error.
    fn put_back(&self, cookie: u64, pending: Pending, e: io::Error) -> io::Error {
        self.state.lock().pending.insert(cookie, pending);
        e
    }

    fn read_chunk(&self, pending: &mut Pending, kind: u16, len: u32) -> io::Result<()> {
        let take = |buf: &mut [u8]| self.stream.read_full(buf, &self.clock, self.limit);
        let inside = |at: u64, len: u64| -> io::Result<std::ops::Range<usize>> {
            let start = at.checked_sub(pending.offset).filter(|start| start.saturating_add(len) <= pending.len.into());
            let start = start.ok_or_else(|| wrong("the server sends bytes that were not asked for"))? as usize;
            Ok(start..start + len as usize)
        };
        match kind {
            chunk::NONE if len == 0 => Ok(()),
            chunk::DATA if len > 8 && pending.command == cmd::READ => {
                let mut at = [0; 8];
                take(&mut at)?;
                let range = inside(be64(&at, 0), u64::from(len - 8))?;
                pending.received += range.len() as u64;
                let data = pending.data.as_mut().and_then(|data| data.get_mut(range));
                take(data.ok_or_else(|| wrong("a read without memory"))?)
            }
            chunk::HOLE if len == 12 && pending.command == cmd::READ => {
                let mut hole = [0; 12];
                take(&mut hole)?;
                let range = inside(be64(&hole, 0), u64::from(be32(&hole, 8)))?;
                pending.received += range.len() as u64;
                let data = pending.data.as_mut().and_then(|data| data.get_mut(range));
                data.ok_or_else(|| wrong("a read without memory"))?.fill(0);
                Ok(())
            }
            chunk::STATUS if pending.command == cmd::BLOCK_STATUS && len >= 12 && (len - 4).is_multiple_of(8) => {
                let count = (len - 4) as usize / 8;
                if count > EXTENTS_MAX {
                    return Err(wrong("the server names too many extents at once"));
                }
                let mut bytes = vec![0; len as usize];
                take(&mut bytes)?;
                if Some(be32(&bytes, 0)) == self.export.context {
                    pending.extents = (0..count).map(|i| (be32(&bytes, 4 + 8 * i), be32(&bytes, 8 + 8 * i))).collect();
                }
                Ok(())
            }
            _ if kind & chunk::ERROR != 0 && (6..=ERROR_BYTES_MAX).contains(&len) => {
                let mut bytes = vec![0; len as usize];
                take(&mut bytes)?;
                pending.error.get_or_insert(server_error(be32(&bytes, 0)));
                Ok(())
            }
            _ => Err(wrong("the server sends a chunk that does not fit the request")),
        }
    }

    /// Passes the answer on: to the thread that waits for it, or as the completion of the bio.
    fn complete(&self, cookie: u64, mut pending: Pending) -> io::Result<()> {
        let result = match pending.error.take() {
            Some(e) => Err(e),
            None if pending.command == cmd::READ && pending.received != u64::from(pending.len) => {
                // The missing part would be read as zeros.
                return Err(self.put_back(cookie, pending, wrong("the server leaves out a part of a read")));
            }
            // The requests of the other connection may be lost, and this flush would not report it.
            None if pending.command == cmd::FLUSH && self.any_dead.load(Ordering::Acquire) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "another connection to the server has ended"))
            }
            None => Ok(()),
        };
        match pending.done {
            ReplyReceiver::Waiter => {
                let Pending { data, extents, .. } = pending;
                self.state.lock().answers.insert(cookie, Answer { data, extents, result });
            }
            ReplyReceiver::Bio(..) => {
                let mut state = self.state.lock();
                state.bios = state.bios.saturating_sub(1);
                drop(state);
                finish(pending, result);
            }
        }
        Ok(())
    }
}

fn bios_of(state: &State) -> Vec<u64> {
    let bios = state.pending.iter().filter(|(_, pending)| matches!(pending.done, ReplyReceiver::Bio(..)));
    bios.map(|(cookie, _)| *cookie).collect()
}

fn register(state: &mut State, call: &Call<'_>, data: Option<AlignedBuf>, done: ReplyReceiver) -> u64 {
    let cookie = state.next_cookie;
    state.next_cookie += 1;
    let pending = Pending {
        command: call.command,
        offset: call.offset,
        len: call.len,
        data,
        received: 0,
        extents: Vec::new(),
        chunks: 0,
        error: None,
        done,
    };
    state.pending.insert(cookie, pending);
    cookie
}

/// Completes a bio. No lock is held.
fn finish(pending: Pending, result: io::Result<()>) {
    let ReplyReceiver::Bio(mut bio, name) = pending.done else { return };
    if let Some(data) = pending.data {
        bio.data = BioData::Read(data);
    }
    let result = result.map_err(|e| Error::io(&name, bio.op, bio.offset, bio.len, e));
    bio.complete(result);
}

/// The error for an error number of the protocol.
fn server_error(number: u32) -> io::Error {
    // These can be handled by a caller; everything else is a failure of the device.
    match number {
        28 => io::ErrorKind::StorageFull.into(),
        1 => io::Error::new(io::ErrorKind::PermissionDenied, "the server does not permit it"),
        5 => io::Error::other("the server reports an I/O error"),
        12 => io::Error::other("the server has no memory"),
        22 => io::Error::other("the server calls the request invalid"),
        108 => io::Error::other("the server is shutting down"),
        number => io::Error::other(format!("the server reports error {number}")),
    }
}
