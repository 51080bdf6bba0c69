//! One descriptor of the connection: a reply goes to the descriptor that its request came from.
//!
//! # Locking
//! None; the kernel orders the calls.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write, writev};
use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::error::Undelivered;

/// Up to this many pieces are gathered on the stack; more use the heap.
const PIECES_ON_STACK: usize = 8;
/// Linux: `UIO_MAXIOV`, less one for the header. If there are more pieces, they are copied into one buffer.
const PIECES_MAX: usize = 1023;

pub(crate) struct Channel {
    fd: OwnedFd,
}

impl Channel {
    pub fn new(fd: OwnedFd) -> Channel {
        Channel { fd }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Waits for a request; returns its length in bytes.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        read(&self.fd, buffer)
    }

    /// Whether another request can be received at once.
    pub fn has_more(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// Answers `unique` with data. If the kernel refuses the reply, answers EIO instead, so that no caller waits for
    /// ever.
    pub fn answer(&self, unique: u64, body: &[IoSlice<'_>]) -> Result<(), Undelivered> {
        match self.send(unique, 0, body) {
            Ok(()) => Ok(()),
            Err(errno) => {
                if errno != Errno::NOENT {
                    self.answer_error(unique, Errno::IO);
                }
                Err(Undelivered { errno })
            }
        }
    }

    /// Answers `unique` with an error. A failure to send it has no consequence.
    pub fn answer_error(&self, unique: u64, errno: Errno) {
        let _ = self.send(unique, -errno.raw_os_error(), &[]);
    }

    /// Sends one message: `error` is 0, a negated errno, or (with `unique` 0) a notification code.
    pub fn send(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + body.iter().map(|p| p.len()).sum::<usize>();
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let header = OutHeader { len, error, unique };
        let head = IoSlice::new(header.as_bytes());
        let sent = match body.len() {
            0 => write(&self.fd, header.as_bytes()),
            n if n <= PIECES_ON_STACK => {
                let mut all = [head; PIECES_ON_STACK + 1];
                all[1..=n].copy_from_slice(body);
                writev(&self.fd, &all[..=n])
            }
            n if n <= PIECES_MAX => {
                let mut all = Vec::with_capacity(n + 1);
                all.push(head);
                all.extend_from_slice(body);
                writev(&self.fd, &all)
            }
            _ => {
                let mut all = Vec::with_capacity(len as usize);
                all.extend_from_slice(header.as_bytes());
                body.iter().for_each(|p| all.extend_from_slice(p));
                write(&self.fd, &all)
            }
        }?;
        // The device accepts a message whole or not at all.
        if sent == len as usize { Ok(()) } else { Err(Errno::IO) }
    }
}
