//! The bytes of the NBD protocol (the NBD project's doc/proto.md): fixed newstyle handshake, requests, replies.
//!
//! Main types: [`Export`] (the result of the handshake), [`Reply`] (the head of a reply), [`Stream`] (a socket with
//! time limits).
//!
//! The server is not trusted: every length has a limit, and every read a time limit.
//!
//! # Locking
//! None.

use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::task;

use super::address::{NbdAddress, NbdServer};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_SET_META_CONTEXT: u32 = 10;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const CONTEXT: &str = "base:allocation";

/// The maximum size of a reply to an option; usual ones are a few dozen bytes and a message.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The size in bytes above which pieces of a request are sent separately.
const JOINED_MAX: usize = 64 << 10;
/// The maximum number of replies to one option; a server that sends more would never end.
const OPTION_REPLIES_MAX: usize = 256;

/// Commands.
pub(super) mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    /// Flags of commands.
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 2;
}

/// Transmission flags of an export.
mod flag {
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const ZEROES: u16 = 1 << 6;
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// The properties of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// The size in bytes.
    pub size: u64,
    flags: u16,
    /// The unit of requests in bytes; a power of two.
    pub block_min: u32,
    /// The maximum size of a transfer in bytes.
    pub transfer_max: u32,
    /// Whether replies come in chunks.
    pub structured: bool,
    /// The number of the context that shows holes, if the server has one.
    pub context: Option<u32>,
}

impl Export {
    pub(super) fn read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    pub(super) fn flush(&self) -> bool {
        self.flags & flag::FLUSH != 0
    }

    pub(super) fn fua(&self) -> bool {
        self.flags & flag::FUA != 0
    }

    pub(super) fn trim(&self) -> bool {
        self.flags & flag::TRIM != 0
    }

    pub(super) fn zeroes(&self) -> bool {
        self.flags & flag::ZEROES != 0
    }

    /// Whether a flush on one connection covers requests that have completed on the others.
    pub(super) fn multi_conn(&self) -> bool {
        self.flags & flag::MULTI_CONN != 0
    }
}

/// A connected socket. Readers and writers share it.
pub(super) enum Stream {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Unlike with `std`'s write, no signal ends a program whose server has gone.
#[cfg(target_os = "linux")]
fn send(socket: &impl std::os::fd::AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL)?)
}

/// `std` has switched the signal off for the socket, or the system has none.
#[cfg(not(target_os = "linux"))]
fn send<S>(mut socket: &S, bytes: &[u8]) -> io::Result<usize>
where
    for<'s> &'s S: io::Write,
{
    io::Write::write(&mut socket, bytes)
}

impl Stream {
    /// Connects within the time limit.
    pub(super) fn connect(server: &NbdServer, limit: Duration) -> io::Result<Stream> {
        match server {
            // A Unix socket connects immediately, or fails.
            #[cfg(unix)]
            NbdServer::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            #[cfg(not(unix))]
            NbdServer::Unix(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "no Unix sockets on this system")),
            NbdServer::Tcp(host, port) => {
                let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            // Each request is one write, so waiting for more bytes would only delay it.
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(e) => failed = e,
                    }
                }
                Err(failed)
            }
        }
    }

    /// Limits each single call to this time.
    pub(super) fn limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            #[cfg(unix)]
            Stream::Unix(s) => s.set_read_timeout(Some(limit)).and_then(|()| s.set_write_timeout(Some(limit))),
            Stream::Tcp(s) => s.set_read_timeout(Some(limit)).and_then(|()| s.set_write_timeout(Some(limit))),
        }
    }

    /// Ends the connection for all threads.
    pub(super) fn shutdown(&self) {
        let _ = match self {
            #[cfg(unix)]
            Stream::Unix(s) => s.shutdown(std::net::Shutdown::Both),
            Stream::Tcp(s) => s.shutdown(std::net::Shutdown::Both),
        };
    }

    fn read_some(&self, buf: &mut [u8]) -> io::Result<usize> {
        task::before_sleep();
        match self {
            #[cfg(unix)]
            Stream::Unix(s) => (&mut &*s).read(buf),
            Stream::Tcp(s) => (&mut &*s).read(buf),
        }
    }

    fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        task::before_sleep();
        match self {
            #[cfg(unix)]
            Stream::Unix(s) => send(s, bytes),
            Stream::Tcp(s) => send(s, bytes),
        }
    }

    /// Fills `buf` within the limit, which applies to the whole call, because a server may send one byte from time to
    /// time.
    pub(super) fn read_full(&self, mut buf: &mut [u8], clock: &Clock, limit: Duration) -> io::Result<()> {
        let end = clock.now_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        while !buf.is_empty() {
            match self.read_some(buf) {
                Ok(0) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection"));
                }
                Ok(n) => buf = &mut buf[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(timed(e, limit)),
            }
            if !buf.is_empty() && clock.now_ns() > end {
                return Err(no_answer(limit));
            }
        }
        Ok(())
    }

    /// Sends all pieces. Small ones are joined, because a call and a packet cost more than a copy.
    pub(super) fn send(&self, pieces: &[&[u8]], clock: &Clock, limit: Duration) -> io::Result<()> {
        let end = clock.now_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        let mut joined = Vec::new();
        for piece in pieces {
            if piece.len() < JOINED_MAX {
                joined.extend_from_slice(piece);
                if joined.len() < JOINED_MAX {
                    continue;
                }
            }
            self.send_all(&joined, clock, end, limit)?;
            joined.clear();
            if piece.len() >= JOINED_MAX {
                self.send_all(piece, clock, end, limit)?;
            }
        }
        self.send_all(&joined, clock, end, limit)
    }

    fn send_all(&self, mut bytes: &[u8], clock: &Clock, end: u64, limit: Duration) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send_some(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(timed(e, limit)),
            }
            if !bytes.is_empty() && clock.now_ns() > end {
                return Err(no_answer(limit));
            }
        }
        Ok(())
    }
}

/// The error of a call. If it has waited for the whole time limit, which the system reports as a full or empty buffer,
/// this is a timeout.
fn timed(e: io::Error, limit: Duration) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => no_answer(limit),
        _ => e,
    }
}

fn no_answer(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the server has not answered for {} seconds", limit.as_secs()))
}

pub(super) fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// The handshake of one connection, as the client.
struct Handshake<'s> {
    stream: &'s Stream,
    clock: Clock,
    limit: Duration,
}

impl Handshake<'_> {
    fn take<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_full(&mut bytes, &self.clock, self.limit)?;
        Ok(bytes)
    }

    fn ask(&self, option: u32, data: &[u8]) -> io::Result<()> {
        let mut head = OPTION_MAGIC.to_be_bytes().to_vec();
        head.extend_from_slice(&option.to_be_bytes());
        head.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.stream.send(&[&head, data], &self.clock, self.limit)
    }

    /// One reply to `option`: its kind and its bytes.
    fn answer(&self, option: u32) -> io::Result<(u32, Vec<u8>)> {
        let head: [u8; 20] = self.take()?;
        if be64(&head, 0) != OPTION_REPLY_MAGIC || be32(&head, 8) != option {
            return Err(wrong("the server's answer is not NBD"));
        }
        let len = be32(&head, 16);
        if len > OPTION_BYTES_MAX {
            return Err(wrong("the server's answer to an option is too long"));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_full(&mut data, &self.clock, self.limit)?;
        Ok((be32(&head, 12), data))
    }
}

/// Does the handshake with the server and chooses the export.
pub(super) fn handshake(stream: &Stream, address: &NbdAddress, limit: Duration) -> io::Result<Export> {
    let h = Handshake { stream, clock: Clock::real(), limit };
    let greeting: [u8; 18] = h.take()?;
    if be64(&greeting, 0) != NBD_MAGIC {
        return Err(wrong("this is no NBD server"));
    }
    if be64(&greeting, 8) != OPTION_MAGIC {
        return Err(wrong("the server speaks the oldest NBD protocol, without export names"));
    }
    let flags = be16(&greeting, 16);
    if flags & 1 == 0 {
        return Err(wrong("the server does not speak the fixed newstyle NBD protocol"));
    }
    stream.send(&[&u32::from(flags & 3).to_be_bytes()], &h.clock, limit)?;
    h.ask(OPT_STRUCTURED_REPLY, &[])?;
    let structured = match h.answer(OPT_STRUCTURED_REPLY)? {
        (REP_ACK, _) => true,
        (kind, _) if kind & REP_ERROR != 0 => false,
        _ => return Err(wrong("the server's answer to an option is unknown")),
    };
    let name = address.export.as_bytes();
    let sized = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let mut context = None;
    if structured {
        let query = [sized(name), 1u32.to_be_bytes().to_vec(), sized(CONTEXT.as_bytes())].concat();
        h.ask(OPT_SET_META_CONTEXT, &query)?;
        for round in 0.. {
            match h.answer(OPT_SET_META_CONTEXT)? {
                (REP_META_CONTEXT, data) if data.get(4..) == Some(CONTEXT.as_bytes()) => context = Some(be32(&data, 0)),
                (REP_META_CONTEXT, _) if round < OPTION_REPLIES_MAX => {}
                (REP_ACK, _) => break,
                (kind, _) if kind & REP_ERROR != 0 => break,
                _ => return Err(wrong("the server's answer to an option is unknown")),
            }
        }
    }
    let go = [sized(name), 1u16.to_be_bytes().to_vec(), INFO_BLOCK_SIZE.to_be_bytes().to_vec()].concat();
    h.ask(OPT_GO, &go)?;
    go_on(&h, structured, context)
}

/// Reads the answers to `NBD_OPT_GO`.
fn go_on(h: &Handshake<'_>, structured: bool, context: Option<u32>) -> io::Result<Export> {
    let (mut found, mut block_min, mut transfer_max) = (None, 1, 32 << 20);
    for _ in 0..OPTION_REPLIES_MAX {
        match h.answer(OPT_GO)? {
            (REP_ACK, _) => {
                let (size, flags) = found.ok_or_else(|| wrong("the server does not say how large the export is"))?;
                return Ok(Export { size, flags, block_min, transfer_max, structured, context });
            }
            (REP_INFO, data) if data.len() >= 12 && be16(&data, 0) == INFO_EXPORT => {
                found = Some((be64(&data, 2), be16(&data, 10)));
            }
            (REP_INFO, data) if data.len() >= 14 && be16(&data, 0) == INFO_BLOCK_SIZE => {
                (block_min, transfer_max) = (be32(&data, 2), be32(&data, 10));
                if !block_min.is_power_of_two() || block_min > 64 << 10 || transfer_max < block_min {
                    return Err(wrong("the server's block sizes are impossible"));
                }
            }
            (REP_INFO, _) => {}
            (kind, data) if kind & REP_ERROR != 0 => {
                let why: String = String::from_utf8_lossy(&data).chars().take(200).collect();
                let kind = match kind & !REP_ERROR {
                    6 => "the server has no such export",
                    2 => "the server refuses the export by its rules",
                    5 => "the server wants TLS, which is not spoken here",
                    _ => "the server refuses the export",
                };
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    match why.is_empty() {
                        true => kind.to_owned(),
                        false => format!("{kind}: {why}"),
                    },
                ));
            }
            _ => return Err(wrong("the server's answer to an option is unknown")),
        }
    }
    Err(wrong("the server does not stop to answer an option"))
}

/// The 28 bytes of a request.
pub(super) fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The whole reply; a read's bytes follow if replies are not structured.
    Simple { cookie: u64, error: u32 },
    /// One chunk of a reply, followed by `len` bytes.
    Chunk { cookie: u64, last: bool, kind: u16, len: u32 },
}

/// Kinds of chunks.
pub(super) mod chunk {
    pub const NONE: u16 = 0;
    pub const DATA: u16 = 1;
    pub const HOLE: u16 = 2;
    pub const STATUS: u16 = 5;
    /// This bit marks errors; their first four bytes are the number.
    pub const ERROR: u16 = 1 << 15;
}

/// Reads the head of the next reply.
pub(super) fn reply(stream: &Stream, clock: &Clock, limit: Duration) -> io::Result<Reply> {
    let mut head = [0; 20];
    stream.read_full(&mut head[..16], clock, limit)?;
    match be32(&head, 0) {
        SIMPLE_MAGIC => Ok(Reply::Simple { cookie: be64(&head, 8), error: be32(&head, 4) }),
        CHUNK_MAGIC => {
            stream.read_full(&mut head[16..], clock, limit)?;
            let last = be16(&head, 4) & 1 != 0;
            Ok(Reply::Chunk { cookie: be64(&head, 8), last, kind: be16(&head, 6), len: be32(&head, 16) })
        }
        _ => Err(wrong("the server's reply is not NBD")),
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}
