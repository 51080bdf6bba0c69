//! Where a reply goes: the descriptor or the ring that the request came from.
//!
//! Main type: [`Origin`].
//!
//! # Locking
//! None here; a reply to a ring takes the lock of its [`Mailbox`](super::ring::Mailbox).

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::channel::Channel;
use super::ring::Ticket;
use crate::error::Undelivered;

pub(crate) enum Origin {
    Device(Arc<Channel>),
    Ring(Ticket),
}

impl Origin {
    /// Answers `unique` with data. A ring delivers the reply later; it fails there only if the connection has ended.
    pub fn answer(self, unique: u64, body: &[IoSlice<'_>]) -> Result<(), Undelivered> {
        match self {
            Origin::Device(channel) => channel.answer(unique, body),
            Origin::Ring(ticket) => {
                ticket.answer(unique, body);
                Ok(())
            }
        }
    }

    /// The memory for the reply's body, page-aligned, which [`answer_filled`](Origin::answer_filled) sends without a
    /// copy. The device has none.
    pub fn payload(&mut self) -> Option<&mut [u8]> {
        match self {
            Origin::Device(_) => None,
            Origin::Ring(ticket) => ticket.payload(),
        }
    }

    /// Answers `unique` with the first `len` bytes of the payload.
    pub fn answer_filled(self, unique: u64, len: usize) {
        match self {
            Origin::Device(channel) => channel.answer_error(unique, Errno::IO),
            Origin::Ring(ticket) => ticket.answer_filled(unique, len),
        }
    }

    pub fn answer_error(self, unique: u64, errno: Errno) {
        match self {
            Origin::Device(channel) => channel.answer_error(unique, errno),
            Origin::Ring(ticket) => ticket.answer_error(unique, errno),
        }
    }
}
