//! [`Ring`]: one thread's io_uring on one queue of a connection.
//!
//! The kernel has a queue per processor and gives a request to the entry of that queue that became free last. A ring
//! registers one entry ([`Slot`]) and adds more only while others wait for replies. One call submits the replies and
//! waits for the next request.
//!
//! Main type: [`Ring`].
//!
//! What it does not do: it serves no request itself, and chooses no processor.
//!
//! # Locking
//! None: a ring belongs to one thread once it is enabled.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::slot::{Mailbox, Slot, Ticket};
use crate::abi::{InHeader, URING_COMMIT_AND_FETCH, URING_REGISTER, UringCmdReq, UringReqHeader};
use crate::transport::buffer::Buffer;
use crate::transport::channel::Channel;
use crate::transport::notify::Notifier;

/// Entries submitted in one call; when the queue is full, they are submitted at once.
const SQ_ENTRIES: u32 = 64;
/// Slots of one ring; each has at most one completion, so the completion queue never overflows.
pub(crate) const SLOTS_MAX: usize = 1000;
const CQ_ENTRIES: u32 = 1024;
/// A payload of at most this many bytes is copied, so that the reply can use its memory.
const COPIED_MAX: usize = 16 << 10;
/// Identifies the completion of the read of the mailbox's eventfd.
const WAKE: u64 = u64::MAX;

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A ring, and the slots that belong to it.
pub(crate) struct Ring {
    // First, because it must be closed before the memory that the kernel writes to is freed.
    uring: Uring,
    channel: Arc<Channel>,
    mailbox: Arc<Mailbox>,
    queue: u16,
    max_payload: usize,
    /// The slots that the kernel owns, by index; None while one is being served.
    slots: Vec<Option<Box<Slot>>>,
    /// Payloads of requests that are served in place, by index.
    aside: Vec<Option<Buffer>>,
    /// A spare slot, allocated before the mount, when a failure has no consequence.
    spare: Option<Box<Slot>>,
    #[expect(clippy::vec_box, reason = "the kernel has the address of the slot")]
    answered: Vec<Box<Slot>>,
    /// Copied requests; see [`COPIED_MAX`].
    scratch: Buffer,
    /// The buffer for reads of the eventfd.
    woken: Box<u64>,
    /// A request that arrived with the registration.
    early: Option<Event>,
}

/// The next step of a ring's thread.
pub(crate) enum Event {
    /// This slot holds a request.
    Request(Box<Slot>),
    /// The kernel has ended the slot with this error: ENOTCONN at the end of the connection.
    Ended(Errno),
}

impl Ring {
    /// A ring for a queue of the connection behind `channel`. Payloads have up to `max_payload` bytes. Its thread must
    /// [`enable`](Ring::enable) it.
    ///
    /// # Errors
    /// io_uring does not exist, is forbidden, or lacks a feature that this needs (Linux 6.1), or memory is
    /// insufficient.
    pub fn new(channel: &Arc<Channel>, queue: u16, max_payload: usize) -> io::Result<Ring> {
        let no_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let mailbox = Arc::new(Mailbox::new()?);
        let mut builder = Uring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled().setup_submit_all();
        let uring = builder.setup_cqsize(CQ_ENTRIES).build(SQ_ENTRIES)?;
        let codes = [opcode::UringCmd80::CODE, opcode::Read::CODE];
        uring.submitter().register_restrictions(&mut codes.map(Restriction::sqe_op))?;
        Ok(Ring {
            uring,
            channel: channel.clone(),
            mailbox,
            queue,
            max_payload,
            slots: Vec::new(),
            aside: Vec::new(),
            spare: Some(Slot::new(0, max_payload).ok_or_else(no_memory)?),
            answered: Vec::new(),
            scratch: Buffer::new(COPIED_MAX).ok_or_else(no_memory)?,
            woken: Box::new(0),
            early: None,
        })
    }

    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.channel)
    }

    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Makes the calling thread the only one that may use the ring.
    ///
    /// # Errors
    /// The system call's.
    pub fn enable(&mut self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        self.read_eventfd();
        Ok(())
    }

    /// Registers one more slot with the kernel. False if there are enough, or memory is insufficient.
    pub fn add_slot(&mut self) -> bool {
        let index = self.slots.len();
        if index >= SLOTS_MAX {
            return false;
        }
        let Some(mut slot) = self.spare.take().or_else(|| Slot::new(index, self.max_payload)) else { return false };
        slot.index = index;
        let Some(payload) = slot.payload.as_mut().map(Buffer::payload) else { return false };
        let header = &mut slot.header;
        let vectors = [
            libc::iovec { iov_base: (&raw mut *header).cast(), iov_len: size_of::<UringReqHeader>() },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
        ];
        let entry = self.command(URING_REGISTER, 0, index, Some(&vectors));
        // SAFETY: the kernel writes to the header and the payload until this command's completion, and after each
        // commit until the next one. Meanwhile `slots` owns the box, and nothing uses it. The two vectors are read
        // only during the submission, which is complete before they go out of scope.
        unsafe { self.push(&entry) };
        self.slots.push(Some(slot));
        self.aside.push(None);
        // `wait` reports the loss of a ring.
        let _ = self.submit();
        true
    }

    /// How many slots the kernel owns, or will own after the next call. Between two requests, all other slots wait for
    /// replies.
    pub fn at_hand(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The kernel's refusal of the first slot, if it has arrived.
    pub fn refusal(&mut self) -> Option<Errno> {
        match self.event() {
            Some(Event::Ended(errno)) => Some(errno),
            request => {
                self.early = request;
                None
            }
        }
    }

    /// Queues the pending replies. With `sleep`, the thread calls [`wait`](Ring::wait) next.
    pub fn commit(&mut self, sleep: bool) {
        let mut answered = std::mem::take(&mut self.answered);
        self.mailbox.take(&mut answered, sleep);
        for mut slot in answered.drain(..) {
            let index = slot.index;
            if let Some(mut payload) = self.aside[index].take() {
                // A short reply; its payload was in use by the request.
                let len = slot.header.ent.payload_sz as usize;
                payload.payload()[..len].copy_from_slice(&slot.header.op_in[..len]);
                slot.payload = Some(payload);
            }
            let entry = self.command(URING_COMMIT_AND_FETCH, slot.header.ent.commit_id, index, None);
            self.slots[index] = Some(slot);
            // SAFETY: the addresses are those of the slot's registration; see there.
            unsafe { self.push(&entry) };
        }
        self.answered = answered;
    }

    /// Submits the queued replies.
    ///
    /// # Errors
    /// The system call's, if a retry does not help.
    pub fn submit(&mut self) -> Result<(), Errno> {
        loop {
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(e) => tolerate(&e)?,
            }
        }
    }

    /// Submits the queued replies, and waits until there is an event or a reply from another thread.
    ///
    /// # Errors
    /// The system call's, if a retry does not help.
    pub fn wait(&mut self) -> Result<(), Errno> {
        let waited = self.uring.submit_and_wait(usize::from(self.early.is_none()));
        self.mailbox.awake();
        match waited {
            Ok(_) => Ok(()),
            Err(e) => tolerate(&e),
        }
    }

    /// The next event, if there is one.
    pub fn event(&mut self) -> Option<Event> {
        if let Some(event) = self.early.take() {
            return Some(event);
        }
        loop {
            let done = self.uring.completion().next()?;
            if done.user_data() == WAKE {
                self.read_eventfd();
                continue;
            }
            let slot = self.slots.get_mut(done.user_data() as usize).and_then(Option::take);
            return Some(match (done.result(), slot) {
                (0, Some(slot)) => Event::Request(slot),
                (0, None) => continue,
                (error, _) => Event::Ended(Errno::from_raw_os_error(-error)),
            });
        }
    }

    /// Whether [`event`](Ring::event) would return one.
    pub fn has_event(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Serves the request in `slot` with `handle`, which gets the message in one piece, as the device delivers it.
    pub fn serve(&mut self, mut slot: Box<Slot>, handle: impl FnOnce(Ticket, &[u8])) {
        let head = size_of::<InHeader>();
        // The kernel's lengths should not contradict each other. If they do, dropping the ticket answers EIO.
        let Some((header, op, len)) = slot.request() else { return drop(Ticket::new(slot, &self.mailbox)) };
        let Some(mut payload) = slot.payload.take() else { return drop(Ticket::new(slot, &self.mailbox)) };
        if len > payload.payload().len() {
            slot.payload = Some(payload);
            return drop(Ticket::new(slot, &self.mailbox));
        }
        let op_in = slot.header.op_in;
        let fill = |message: &mut [u8]| {
            message[..head].copy_from_slice(header.as_bytes());
            message[head..head + op].copy_from_slice(&op_in[..op]);
        };
        if len <= COPIED_MAX {
            let message = &mut self.scratch.bytes_before_payload(head + op)[..head + op + len];
            fill(message);
            message[head + op..].copy_from_slice(&payload.payload()[..len]);
            slot.payload = Some(payload);
            handle(Ticket::new(slot, &self.mailbox), message);
        } else {
            let index = slot.index;
            let message = &mut payload.bytes_before_payload(head + op)[..head + op + len];
            fill(message);
            handle(Ticket::new(slot, &self.mailbox), message);
            // This thread commits the replies later.
            self.aside[index] = Some(payload);
        }
    }

    fn command(&self, code: u32, commit_id: u64, index: usize, vectors: Option<&[libc::iovec; 2]>) -> squeue::Entry128 {
        let mut bytes = [0; 80];
        let request = UringCmdReq { commit_id, qid: self.queue, ..UringCmdReq::default() };
        bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        let fd = types::Fd(self.channel.fd().as_raw_fd());
        let command = opcode::UringCmd80::new(fd, code).cmd(bytes).addr(vectors.map(|v| v.as_ptr() as u64));
        let mut entry = command.build().user_data(index as u64);
        if let Some(vectors) = vectors {
            let len = vectors.len() as u32;
            // SAFETY: an entry is the kernel's `struct io_uring_sqe`, 128 bytes of integers, whose `len` is four bytes
            // at offset 24, aligned. The library has no setter for it.
            unsafe { (&raw mut entry).cast::<u32>().add(SQE_LEN / size_of::<u32>()).write(len) };
        }
        entry
    }

    fn read_eventfd(&mut self) {
        let fd = types::Fd(self.mailbox.wake.as_raw_fd());
        let read = opcode::Read::new(fd, (&raw mut *self.woken).cast(), size_of::<u64>() as u32);
        // SAFETY: the box lives as long as the ring, has eight bytes, and is used for nothing else. The mailbox, which
        // the ring keeps alive, owns the descriptor.
        unsafe { self.push(&read.build().user_data(WAKE).into()) };
    }

    /// # Safety
    /// The memory that `entry` refers to stays valid, and is not used, until its completion has been taken.
    unsafe fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: the caller guarantees the validity of the entry.
        while unsafe { self.uring.submission().push(entry).is_err() } {
            if self.submit().is_err() {
                return; // the ring has failed: `wait` reports it
            }
        }
    }
}

/// Linux: `offsetof(struct io_uring_sqe, len)`, include/uapi/linux/io_uring.h.
const SQE_LEN: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128 && align_of::<squeue::Entry128>() >= 4);

/// Ok if the call may be retried: it was interrupted, or short of memory.
fn tolerate(e: &io::Error) -> Result<(), Errno> {
    match Errno::from_io_error(e).unwrap_or(Errno::IO) {
        Errno::INTR => Ok(()),
        Errno::AGAIN | Errno::BUSY => {
            extant_base::task::yield_now();
            Ok(())
        }
        errno => Err(errno),
    }
}
