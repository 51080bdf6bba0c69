//! On which processor a ring's thread runs.
//!
//! The kernel puts a request into the queue of the processor on which its client runs. A thread that is bound to this
//! processor takes over from the client by a plain context switch. Elsewhere, each request wakes an idle processor (see
//! [`follow`](crate::transport::follow)). Binding does not help large transfers, and it delays their client, which
//! reads ahead meanwhile. So after a large transfer, the thread runs anywhere until [`SMALL`] small requests have come
//! in a row.
//!
//! A bound thread that has served [`ALONE`] requests in a row of one client steps [aside](crate::transport::aside) for
//! it.
//!
//! Main type: [`Seat`].
//!
//! What it does not do: it moves no client.
//!
//! # Locking
//! None: a seat belongs to its thread.

use std::rc::Rc;
use std::time::Instant;

use zerocopy::FromBytes;

use crate::abi::{InHeader, Opcode, ReadIn, WriteIn};
use crate::transport::follow::Binding;

/// Small requests in a row before a thread is bound.
const SMALL: u32 = 16;
/// Requests in a row from one client before its thread steps aside for it.
const ALONE: u32 = 16;
/// A transfer of at least this many bytes is large.
const LARGE: u32 = 64 << 10;

/// The place of one thread.
pub(crate) struct Seat {
    processor: usize,
    binding: Rc<Binding>,
    /// Small requests in a row.
    small: u32,
    file: u64,
    client: u32,
    /// Requests in a row of this client.
    streak: u32,
}

impl Seat {
    pub fn new(processor: u16, binding: Rc<Binding>) -> Seat {
        Seat { processor: processor.into(), binding, small: 0, file: 0, client: 0, streak: 0 }
    }

    /// Notes a request before it is served.
    pub fn request(&mut self, message: &[u8]) {
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { return };
        let opcode = Opcode::from_raw(header.opcode);
        if matches!(opcode, Some(Opcode::Read | Opcode::Write | Opcode::Fsync)) {
            self.file = header.nodeid;
        }
        let size = match opcode {
            Some(Opcode::Read) => ReadIn::read_from_prefix(body).map_or(0, |(read, _)| read.size),
            Some(Opcode::Write) => WriteIn::read_from_prefix(body).map_or(0, |(write, _)| write.size),
            _ => 0,
        };
        if header.pid != self.client {
            (self.client, self.streak) = (header.pid, 0);
        }
        self.streak = self.streak.saturating_add(1);
        if size >= LARGE {
            self.leave();
            return;
        }
        self.small = self.small.saturating_add(1);
        if self.small == SMALL {
            self.take();
        }
    }

    /// The nodeid of the regular file of the last READ, WRITE or FSYNC; 0 if there was none.
    pub fn file(&self) -> u64 {
        self.file
    }

    /// Whether the last request's client waits only for the reply, on this processor.
    fn follows(&self) -> bool {
        self.binding.is_bound() && self.client != 0 && self.streak >= ALONE
    }

    /// Before the reply, steps aside for the last request's client, or returns to normal priority. `watched`: see
    /// [`Stay::go_on`].
    ///
    /// [`Stay::go_on`]: crate::transport::aside::Stay::go_on
    pub fn choose_priority(&self, now: Instant, watched: impl FnOnce()) {
        if self.follows() {
            self.binding.stay().go_on(self.client, now, watched);
        } else {
            self.binding.stay().leave();
        }
    }

    /// Binds the thread to its processor, if it may run there.
    pub fn take(&mut self) {
        self.binding.bind(self.processor);
    }

    fn leave(&mut self) {
        (self.small, self.streak) = (0, 0);
        self.binding.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::follow::Bound;
    use extant_base::task;
    use rustix::thread::{CpuSet, sched_getaffinity};
    use std::sync::Arc;
    use zerocopy::IntoBytes;

    fn seat(processor: u16) -> Seat {
        Seat::new(processor, Binding::new(&Arc::new(Bound::new(1)), 0))
    }

    fn message(opcode: Opcode, size: u32) -> Vec<u8> {
        let read = ReadIn { size, ..ReadIn::default() };
        let header = InHeader { opcode: opcode as u32, ..InHeader::default() };
        [header.as_bytes(), read.as_bytes()].concat()
    }

    #[test]
    fn small_requests_bind_a_thread_and_a_large_one_frees_it() {
        let look = || {
            let processors = || sched_getaffinity(None).expect("affinity");
            let all = processors();
            let mine = (0..CpuSet::MAX_CPU).find(|&p| all.is_set(p)).expect("a processor");
            let mut seat = seat(mine as u16);
            let small = |seat: &mut Seat, times| (0..times).for_each(|_| seat.request(&message(Opcode::Read, 4096)));
            small(&mut seat, SMALL - 1);
            assert_eq!(processors(), all);
            small(&mut seat, 1);
            assert_eq!((processors().count(), processors().is_set(mine)), (1, true));
            seat.request(&message(Opcode::Read, LARGE));
            assert_eq!(processors(), all);
            small(&mut seat, SMALL - 1);
            assert_eq!(processors(), all);
        };
        task::spawn("seat", look).expect("thread").join().expect("joined");
    }

    #[test]
    fn a_client_alone_is_followed() {
        let look = || {
            let all = sched_getaffinity(None).expect("affinity");
            let mine = (0..CpuSet::MAX_CPU).find(|&p| all.is_set(p)).expect("a processor");
            let mut seat = seat(mine as u16);
            let mut send = |opcode, size, pid, times| {
                for _ in 0..times {
                    let mut message = message(opcode, size);
                    let header = InHeader { opcode: opcode as u32, pid, ..InHeader::default() };
                    message[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
                    seat.request(&message);
                }
                seat.follows()
            };
            assert!(!send(Opcode::Lookup, 0, 7, ALONE - 1) && send(Opcode::Lookup, 0, 7, 1));
            assert!(send(Opcode::Read, 4096, 7, 1));
            assert!(!send(Opcode::Lookup, 0, 8, ALONE - 1) && send(Opcode::Lookup, 0, 8, 1), "another client");
            assert!(!send(Opcode::Lookup, 0, 0, 2 * ALONE), "the kernel itself");
            assert!(!send(Opcode::Read, LARGE, 8, 1) && !send(Opcode::Lookup, 0, 8, ALONE - 1), "not bound");
        };
        task::spawn("seat", look).expect("thread").join().expect("joined");
    }

    #[test]
    fn a_processor_that_is_forbidden_is_not_taken() {
        let look = || {
            let all = sched_getaffinity(None).expect("affinity");
            let mut seat = seat(u16::MAX);
            (0..2 * SMALL).for_each(|_| seat.request(&message(Opcode::Getattr, 0)));
            assert_eq!(sched_getaffinity(None).expect("affinity"), all);
        };
        task::spawn("seat", look).expect("thread").join().expect("joined");
    }
}
