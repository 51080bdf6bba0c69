//! Memory that a request and its reply share with the kernel, and the path of a reply to the thread that owns the ring.
//!
//! Main types: [`Slot`], the memory of one entry; [`Ticket`], the duty to answer the request in a slot; [`Mailbox`],
//! where answered slots wait until the thread of their ring commits them.
//!
//! A slot has one owner at a time: the ring while the kernel may write to it, the ticket while a request is served,
//! the mailbox afterwards. So no lock guards its bytes.
//!
//! A large request (data of a WRITE) is served where the kernel has put it. The ring then keeps the slot's payload,
//! because the server still reads it when it answers. The reply to such a request is short, and is stored in the
//! header.
//!
//! What it does not do: no system call except the one that wakes the ring's thread.
//!
//! # Locking
//! `fuse ring mailbox` (1002), a leaf: the server answers with any of its locks held.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{InHeader, OutHeader, URING_HEADER, UringReqHeader};
use crate::transport::buffer::Buffer;

static CLASS: LockClass = LockClass::new("fuse ring mailbox", 1002);

/// The memory of one entry. Boxed, because the kernel has the addresses of the header and the payload.
pub(crate) struct Slot {
    pub index: usize,
    pub header: UringReqHeader,
    /// None while the ring keeps it; see the module.
    pub payload: Option<Buffer>,
}

impl Slot {
    /// A slot whose payload has room for `max_payload` bytes. None if memory is insufficient.
    pub fn new(index: usize, max_payload: usize) -> Option<Box<Slot>> {
        let payload = Buffer::new(max_payload)?;
        let mut slot = Box::new(Slot { index, header: UringReqHeader::new_zeroed(), payload: None });
        slot.payload = Some(payload);
        Some(slot)
    }

    /// The request's header, the length of its operation's header, and the length of its payload. None if the lengths
    /// contradict each other.
    pub fn request(&self) -> Option<(InHeader, usize, usize)> {
        let (header, _) = InHeader::read_from_prefix(&self.header.in_out).ok()?;
        let payload = self.header.ent.payload_sz as usize;
        let op = (header.len as usize).checked_sub(size_of::<InHeader>())?.checked_sub(payload)?;
        (op <= URING_HEADER).then_some((header, op, payload))
    }

    /// Writes the reply. A body that does not fit becomes EIO.
    fn reply(&mut self, unique: u64, error: i32, body: &[IoSlice<'_>]) {
        let len: usize = body.iter().map(|p| p.len()).sum();
        let room = match &mut self.payload {
            Some(payload) => payload.payload(),
            None => &mut self.header.op_in[..],
        };
        let (error, len) = if len <= room.len() { (error, len) } else { (-Errno::IO.raw_os_error(), 0) };
        let mut at = 0;
        for piece in body.iter().take_while(|_| len > 0) {
            room[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.head(unique, error, len);
    }

    /// Writes the reply's header, for a body of `len` bytes that is already in place.
    fn head(&mut self, unique: u64, error: i32, len: usize) {
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        self.header.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.header.ent.payload_sz = len as u32;
    }
}

/// Answered slots on their way to the thread of their ring.
pub(crate) struct Mailbox {
    #[expect(clippy::vec_box, reason = "the kernel has the address of the slot")]
    ready: Mutex<Vec<Box<Slot>>>,
    /// Whether the thread waits in the kernel, or is about to.
    asleep: AtomicBool,
    stop: AtomicBool,
    /// An eventfd(2) that the ring reads.
    pub wake: OwnedFd,
}

impl Mailbox {
    pub fn new() -> Result<Mailbox, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ready = Mutex::new(&CLASS, Vec::new());
        Ok(Mailbox { ready, asleep: AtomicBool::new(false), stop: AtomicBool::new(false), wake })
    }

    fn put(&self, slot: Box<Slot>) {
        self.ready.lock().push(slot);
        self.notify();
    }

    /// Wakes the thread, unless it is awake and will check the mailbox before it sleeps.
    fn notify(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = write(&self.wake, 1u64.as_bytes());
        }
    }

    /// Moves the answered slots to `to`. With `sleep`, the thread waits next, so later replies wake it.
    #[expect(clippy::vec_box, reason = "the kernel has the address of the slot")]
    pub fn take(&self, to: &mut Vec<Box<Slot>>, sleep: bool) {
        let mut ready = self.ready.lock();
        to.append(&mut ready);
        self.asleep.store(sleep, Ordering::SeqCst);
    }

    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = write(&self.wake, 1u64.as_bytes());
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// The duty to answer the request in a slot. Dropped unanswered, it answers EIO.
pub(crate) struct Ticket {
    slot: Option<Box<Slot>>,
    mailbox: Arc<Mailbox>,
}

impl Ticket {
    pub fn new(slot: Box<Slot>, mailbox: &Arc<Mailbox>) -> Ticket {
        Ticket { slot: Some(slot), mailbox: mailbox.clone() }
    }

    pub fn answer(mut self, unique: u64, body: &[IoSlice<'_>]) {
        self.send(unique, 0, body);
    }

    /// The memory for the reply's body, which [`answer_filled`](Ticket::answer_filled) sends without a copy.
    pub fn payload(&mut self) -> Option<&mut [u8]> {
        Some(self.slot.as_mut()?.payload.as_mut()?.payload())
    }

    /// Answers with the first `len` bytes of the payload.
    pub fn answer_filled(mut self, unique: u64, len: usize) {
        if let Some(mut slot) = self.slot.take() {
            slot.head(unique, 0, len);
            self.mailbox.put(slot);
        }
    }

    pub fn answer_error(mut self, unique: u64, errno: Errno) {
        self.send(unique, -errno.raw_os_error(), &[]);
    }

    fn send(&mut self, unique: u64, error: i32, body: &[IoSlice<'_>]) {
        if let Some(mut slot) = self.slot.take() {
            slot.reply(unique, error, body);
            self.mailbox.put(slot);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let unique = self.slot.as_ref().and_then(|slot| slot.request()).map_or(0, |(header, ..)| header.unique);
        self.send(unique, -Errno::IO.raw_os_error(), &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Opcode, WriteIn};

    fn slot(op: usize, payload: usize) -> Box<Slot> {
        let mut slot = Slot::new(3, 1 << 16).expect("memory");
        let len = (size_of::<InHeader>() + op + payload) as u32;
        let header = InHeader { len, opcode: Opcode::Write as u32, unique: 42, ..InHeader::default() };
        slot.header.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        slot.header.ent.payload_sz = payload as u32;
        slot
    }

    fn reply(mailbox: &Mailbox) -> (OutHeader, Box<Slot>) {
        let mut ready = Vec::new();
        mailbox.take(&mut ready, false);
        assert_eq!(ready.len(), 1);
        let slot = ready.pop().expect("a slot");
        (OutHeader::read_from_prefix(&slot.header.in_out).expect("header").0, slot)
    }

    #[test]
    fn contradicting_lengths_are_no_request() {
        let op = size_of::<WriteIn>();
        assert_eq!(slot(op, 4096).request().map(|(h, op, n)| (h.unique, op, n)), Some((42, op, 4096)));
        assert!(slot(URING_HEADER + 1, 0).request().is_none(), "an operation's header is longer than its room");
        let mut short = slot(0, 0);
        short.header.ent.payload_sz = 1;
        assert!(short.request().is_none(), "the payload is longer than the message");
    }

    #[test]
    fn each_ticket_answers_once() {
        let mailbox = Arc::new(Mailbox::new().expect("eventfd"));
        Ticket::new(slot(0, 0), &mailbox).answer(42, &[IoSlice::new(b"ab"), IoSlice::new(b"c")]);
        let (header, mut slot_) = reply(&mailbox);
        assert_eq!((header.len, header.error, header.unique), (19, 0, 42));
        assert_eq!(
            (slot_.header.ent.payload_sz, &slot_.payload.as_mut().expect("there").payload()[..3]),
            (3, &b"abc"[..])
        );
        drop(Ticket::new(slot(0, 0), &mailbox));
        let (header, _) = reply(&mailbox);
        assert_eq!((header.len, header.error, header.unique), (16, -Errno::IO.raw_os_error(), 42));
    }

    #[test]
    fn a_reply_without_room_becomes_an_error() {
        let mailbox = Arc::new(Mailbox::new().expect("eventfd"));
        let without_payload = || {
            let mut slot = slot(0, 0);
            slot.payload = None;
            Ticket::new(slot, &mailbox)
        };
        without_payload().answer(42, &[IoSlice::new(&[7; URING_HEADER])]);
        let (header, slot) = reply(&mailbox);
        assert_eq!((header.error, slot.header.op_in), (0, [7; URING_HEADER]));
        without_payload().answer(42, &[IoSlice::new(&[7; URING_HEADER + 1])]);
        let (header, slot) = reply(&mailbox);
        assert_eq!((header.len, header.error, slot.header.ent.payload_sz), (16, -Errno::IO.raw_os_error(), 0));
    }

    #[test]
    fn replies_wake_only_a_sleeping_thread() {
        let mailbox = Arc::new(Mailbox::new().expect("eventfd"));
        rustix::io::ioctl_fionbio(&mailbox.wake, true).expect("nonblocking");
        let woken = || rustix::io::read(&mailbox.wake, &mut [0; 8][..]).is_ok();
        drop(Ticket::new(slot(0, 0), &mailbox));
        assert!(!woken());
        mailbox.take(&mut Vec::new(), true);
        drop(Ticket::new(slot(0, 0), &mailbox));
        drop(Ticket::new(slot(0, 0), &mailbox));
        assert!(woken() && !woken());
    }
}
