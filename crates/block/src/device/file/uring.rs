//! [`Ring`]: asynchronous requests of one file through io_uring.
//!
//! Any thread may submit. One named thread (`uring-reap`) takes the completions and runs `end_io`. These submit further
//! requests, especially the next request with a released tag. The thread submits all of them to the kernel in one call.
//!
//! Nothing waits here. The tags of the [`Queue`](crate::queue::Queue) above limit the requests in flight, and each has
//! a slot, because there are as many slots as the deepest queue has tags. Requests submitted without a queue may be
//! more than the slots; they wait in a backlog. Interrupted, cancelled (their submitting thread ended) and short
//! transfers are continued where they stopped.
//!
//! Flushes: one fdatasync at a time, on a separate file description (see [`super::flush`]); requests that arrive while
//! it runs share the next one. PREFLUSH waits for such a flush before its data is written; FUA is RWF_DSYNC, or a flush
//! afterwards.
//!
//! What it does not do: discards, zeroing and reads that O_DIRECT does not accept; those are carried out inline.
//!
//! # Locking
//! `block ring` protects the table of requests and the submission side. It is not held across a system call (except the
//! one that makes room in a full submission queue), nor while `end_io` runs. Only the completion thread uses the
//! completion side.

#![allow(unsafe_code)]

use extant_base::task::ThreadId;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_base::sync::{Mutex, MutexGuard};
use extant_base::task::{self, JoinHandle};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

use super::{FileCore, flush, psync};
use crate::bio::{Bio, BioData, BioFlags, BioOp};
use crate::buf::AlignedBuf;
use crate::device::{check_range, check_shape, submit_inline};
use crate::queue::QUEUE_DEPTH_MAX;
use crate::ranks::RING;

/// The maximum number of requests in the kernel. Each slot is created at its first use.
const SLOTS_MAX: usize = QUEUE_DEPTH_MAX as usize;
/// The number of entries that can be queued before they are submitted to the kernel, which happens when the queue is
/// full.
const SQ_ENTRIES: u32 = 256;
/// Every slot has at most one completion, and there are few others, so the completion queue never overflows.
const CQ_ENTRIES: u32 = 2 * SLOTS_MAX as u32;
/// The maximum number of pieces per request in the kernel (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

const FLUSH: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
/// `Table::owed` is not empty.
const OWED: u64 = u64::MAX - 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The request waits for a flush, and nothing has been transferred yet.
    PreFlush,
    Data,
    /// The request waits for a flush that makes its data durable.
    PostFlush,
}

/// A request between submission and completion. It is boxed, and not moved or changed while the kernel has its
/// addresses.
struct Inflight {
    bio: Bio,
    stage: Stage,
    /// The remaining transfer, from `iovecs[first]` on.
    iovecs: Vec<libc::iovec>,
    first: usize,
    /// The number of bytes transferred so far.
    done: u64,
    /// A copy of the data if O_DIRECT does not accept the original. It is only read through `iovecs`.
    _bounce: Option<AlignedBuf>,
    dsync: bool,
}

// SAFETY: the pointers in `iovecs` point into buffers that the same struct owns (or holds an `Arc` of) and that live
// on the heap. Only the kernel dereferences them, whichever thread owns the struct.
unsafe impl Send for Inflight {}

type Completions = Vec<(Bio, Result<(), Arc<io::Error>>)>;

struct Table {
    slots: Vec<Option<Box<Inflight>>>,
    free: Vec<usize>,
    /// Bios that were submitted while there was no room.
    backlog: VecDeque<Bio>,
    /// Requests that ended within `submit`, because a flush has failed. The completion thread completes them, because
    /// the submitter may hold locks.
    owed: Completions,
    flushing: bool,
    /// The slots that the running fdatasync serves, and those that wait for the next one.
    riding: Vec<usize>,
    waiting: Vec<usize>,
    /// The number of entries pushed since the last submission to the kernel.
    pushed: usize,
    stop: bool,
}

struct Shared {
    core: Arc<FileCore>,
    sync_file: File,
    uring: IoUring,
    table: Mutex<Table>,
}

/// See the module.
pub(super) struct Ring {
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
    reaper_id: ThreadId,
}

impl Ring {
    /// Fails if the kernel refuses io_uring. `sync_file` is another open file description of the same file.
    pub fn new(core: Arc<FileCore>, sync_file: File) -> io::Result<Ring> {
        let uring = make_ring()?;
        if (uring.params().cq_entries() as usize) < SLOTS_MAX + 2 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let table = Table {
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            owed: Completions::new(),
            flushing: false,
            riding: Vec::new(),
            waiting: Vec::new(),
            pushed: 0,
            stop: false,
        };
        let shared = Arc::new(Shared { core, sync_file, uring, table: Mutex::new(&RING, table) });
        let theirs = shared.clone();
        let reaper = task::spawn("uring-reap", move || theirs.reap())?;
        let reaper_id = reaper.thread().id();
        Ok(Ring { shared, reaper: Some(reaper), reaper_id })
    }

    /// Starts the requests.
    pub fn submit(&self, bios: Vec<Bio>) {
        let on_reaper = extant_base::task::current().id() == self.reaper_id;
        let mut ready = Vec::with_capacity(bios.len());
        for bio in bios {
            let core = &*self.shared.core;
            if let Err(e) = check_shape(core, &bio).and_then(|()| check_range_of(core, &bio)) {
                bio.complete(Err(e));
            } else if core.rides_the_ring(&bio) {
                core.count(&bio);
                ready.push(bio);
            } else {
                submit_inline(core, bio);
            }
        }
        if !ready.is_empty() {
            self.shared.start_all(ready, on_reaper);
        }
    }
}

/// A ring that accepts only the operations of this module, and no registration. Otherwise an attacker in this process
/// could open files and sockets through it, unnoticed by any seccomp filter.
///
/// The files are not registered, because a ring releases registered files only some time after it was closed, and only
/// then the lock on the image.
fn make_ring() -> io::Result<IoUring> {
    let build = |all: bool, restricted: bool| {
        let mut b = IoUring::builder();
        b.setup_cqsize(CQ_ENTRIES).setup_clamp();
        if all {
            b.setup_submit_all();
        }
        if restricted {
            b.setup_r_disabled();
        }
        let ring = b.build(SQ_ENTRIES)?;
        if restricted {
            let codes = [opcode::Nop::CODE, opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];
            ring.submitter().register_restrictions(&mut codes.map(Restriction::sqe_op))?;
            ring.submitter().register_enable_rings()?;
        }
        Ok(ring)
    };
    // Submit-all came with Linux 5.18; without it, an entry in error ends a batch, which `tell_kernel` continues.
    // Restrictions came with 5.10.
    build(true, true).or_else(|_: io::Error| build(false, true)).or_else(|_| build(false, false))
}

fn check_range_of(core: &FileCore, bio: &Bio) -> crate::error::Result<()> {
    if bio.op == BioOp::Flush { Ok(()) } else { check_range(core, bio.op, bio.offset, bio.len) }
}

impl FileCore {
    fn rides_the_ring(&self, bio: &Bio) -> bool {
        match bio.op {
            BioOp::Flush => true,
            BioOp::Write => bio.len > 0 || bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA),
            BioOp::Read => {
                bio.len > 0
                    && (!self.direct || (self.whole_blocks(self.start + bio.offset) && self.whole_blocks(bio.len)))
            }
            BioOp::Discard | BioOp::WriteZeroes => false,
        }
    }

    fn count(&self, bio: &Bio) {
        match bio.op {
            BioOp::Read => self.counters.read(bio.len),
            BioOp::Write => self.counters.write(bio.len, bio.flags),
            BioOp::Flush => self.counters.flush(),
            BioOp::Discard | BioOp::WriteZeroes => {}
        }
    }
}

impl Table {
    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < SLOTS_MAX
    }
}

impl Inflight {
    fn new(core: &FileCore, bio: Bio) -> Box<Inflight> {
        let flush_only = bio.len == 0;
        let flags = bio.flags;
        let stage = if flush_only || flags.contains(BioFlags::PREFLUSH) { Stage::PreFlush } else { Stage::Data };
        let mut inflight =
            Box::new(Inflight { bio, stage, iovecs: Vec::new(), first: 0, done: 0, _bounce: None, dsync: false });
        let bounce = match &inflight.bio.data {
            BioData::Write(vecs) => {
                let fits = vecs.len() <= IOV_MAX && vecs.iter().all(|v| core.aligned(v.bytes()));
                (!fits).then(|| {
                    let mut copy = AlignedBuf::zeroed(inflight.bio.len as usize);
                    let mut at = 0;
                    for v in vecs {
                        copy[at..at + v.len].copy_from_slice(v.bytes());
                        at += v.len;
                    }
                    copy
                })
            }
            _ => None,
        };
        inflight._bounce = bounce;
        inflight.aim();
        inflight
    }

    /// Points `iovecs` at the whole of the memory.
    fn aim(&mut self) {
        let of = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.first = 0;
        self.done = 0;
        self.iovecs.clear();
        match (&self._bounce, &mut self.bio.data) {
            (Some(copy), _) => self.iovecs.push(of(copy)),
            (None, BioData::Write(vecs)) => {
                self.iovecs.extend(vecs.iter().filter(|v| v.len > 0).map(|v| of(v.bytes())));
            }
            (None, BioData::Read(buf)) => {
                let len = buf.len();
                self.iovecs.push(libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: len });
            }
            (None, BioData::None) => {}
        }
    }

    /// Accounts for `n` more transferred bytes.
    fn advance(&mut self, mut n: u64) {
        self.done += n;
        while let Some(v) = self.iovecs.get_mut(self.first) {
            if n < v.iov_len as u64 {
                // Stays inside the buffer: n is less than what is left of it.
                v.iov_base = v.iov_base.cast::<u8>().wrapping_add(n as usize).cast();
                v.iov_len -= n as usize;
                return;
            }
            n -= v.iov_len as u64;
            self.first += 1;
        }
    }
}

impl Shared {
    fn start_all(&self, bios: Vec<Bio>, on_reaper: bool) {
        let mut finished = Completions::new();
        let mut table = self.table.lock();
        for bio in bios {
            // A new bio is put after those in the backlog.
            if table.backlog.is_empty() && table.has_room() {
                self.start(&mut table, bio, &mut finished);
            } else {
                table.backlog.push_back(bio);
            }
        }
        if !finished.is_empty() {
            table.owed.append(&mut finished);
            // SAFETY: a no-op refers to no memory.
            unsafe { self.push(&mut table, &opcode::Nop::new().build().user_data(OWED)) };
        }
        // The completion thread submits to the kernel itself, everything at once.
        if !on_reaper {
            drop(self.tell_kernel(table));
        }
    }

    /// Puts a bio into a free slot and does its first step.
    fn start(&self, table: &mut Table, bio: Bio, finished: &mut Completions) {
        let slot = table.free.pop().unwrap_or_else(|| {
            table.slots.push(None);
            table.slots.len() - 1
        });
        let inflight = Inflight::new(&self.core, bio);
        let stage = inflight.stage;
        table.slots[slot] = Some(inflight);
        match stage {
            Stage::Data => self.push_data(table, slot),
            Stage::PreFlush | Stage::PostFlush => self.join_flush(table, slot, finished),
        }
    }

    fn join_flush(&self, table: &mut Table, slot: usize, finished: &mut Completions) {
        table.waiting.push(slot);
        self.next_flush(table, finished);
    }

    /// Starts an fdatasync for the waiting slots, unless one is running. After a failed one, every slot fails.
    fn next_flush(&self, table: &mut Table, finished: &mut Completions) {
        if table.flushing || table.waiting.is_empty() {
            return;
        }
        if let Err(e) = flush::poisoned(&self.core.poison) {
            for slot in std::mem::take(&mut table.waiting) {
                self.retire(table, slot, Err(e.clone()), finished);
            }
            return;
        }
        table.flushing = true;
        table.riding = std::mem::take(&mut table.waiting);
        self.push_flush(table);
    }

    fn push_flush(&self, table: &mut Table) {
        let fd = types::Fd(self.sync_file.as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build().user_data(FLUSH);
        // SAFETY: the entry refers to no memory, and the file outlives the ring.
        unsafe { self.push(table, &entry) }
    }

    fn push_data(&self, table: &mut Table, slot: usize) {
        let Some(r) = table.slots[slot].as_mut() else { return };
        let fd = types::Fd(self.core.data.as_raw_fd());
        let at = self.core.start + r.bio.offset + r.done;
        let iovecs = &r.iovecs[r.first..];
        let (ptr, len) = (iovecs.as_ptr(), iovecs.len() as u32);
        let entry = if r.bio.op == BioOp::Read {
            opcode::Readv::new(fd, ptr, len).offset(at).build()
        } else {
            r.dsync = r.bio.flags.contains(BioFlags::FUA) && self.core.has_dsync.load(Ordering::Relaxed);
            let flags = if r.dsync { libc::RWF_DSYNC } else { 0 };
            opcode::Writev::new(fd, ptr, len).offset(at).rw_flags(flags).build()
        };
        // SAFETY: the iovecs and the memory they point to are owned by `table.slots[slot]` (write buffers through their
        // `Arc`s). The slot is emptied, and its iovecs changed, only by the completion thread after the kernel has
        // handed back this entry's completion, and `Shared` is dropped only after that thread has seen them all.
        unsafe { self.push(table, &entry.user_data(slot as u64)) }
    }

    /// # Safety
    /// The memory that `entry` points to stays valid until its completion was taken.
    unsafe fn push(&self, table: &mut Table, entry: &squeue::Entry) {
        table.pushed += 1;
        // SAFETY: only one `SubmissionQueue` exists at a time, since every caller holds the lock of `table`; the caller
        // answers for the entry.
        while unsafe { self.uring.submission_shared().push(entry).is_err() } {
            // The queue is full, which takes a plug of scattered bios and more tags than entries. It is emptied under
            // the lock.
            if self.submit_pushed().is_err() {
                task::yield_now();
            }
        }
    }

    fn submit_pushed(&self) -> io::Result<usize> {
        // The kernel starts a thread on behalf of this one for work that it cannot do immediately.
        task::before_child();
        self.uring.submit()
    }

    /// Submits the pushed entries without the lock.
    fn tell_kernel<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let mut left = std::mem::take(&mut table.pushed);
        if left == 0 {
            return table;
        }
        drop(table);
        loop {
            // Another thread's call may submit our entries, and ours may submit theirs.
            match self.submit_pushed() {
                Ok(n) if n == 0 || n >= left => break,
                Ok(n) => left -= n,
                // The kernel is short of memory, or the call was interrupted. The entries stay queued.
                Err(_) => task::yield_now(),
            }
        }
        self.table.lock()
    }

    /// Empties a slot.
    fn retire(&self, table: &mut Table, slot: usize, result: Result<(), Arc<io::Error>>, finished: &mut Completions) {
        if let Some(r) = table.slots[slot].take() {
            table.free.push(slot);
            let Inflight { bio, .. } = *r;
            finished.push((bio, result));
        }
    }

    fn finish(&self, finished: Completions) {
        if finished.is_empty() {
            return;
        }
        for (bio, result) in finished {
            let result = result.map_err(|e| self.core.shared_error(bio.op, bio.offset, bio.len, e));
            bio.complete(result);
        }
    }

    /// The body of the completion thread.
    fn reap(&self) {
        let _loud = AbortOnPanic;
        let mut done: Vec<(u64, i32)> = Vec::new();
        loop {
            // SAFETY: no memory is passed. Submits nothing, waits for one completion.
            let waited = unsafe {
                let wait = io_uring_enter_getevents();
                self.uring.submitter().enter::<libc::sigset_t>(0, 1, wait, None)
            };
            if waited.is_err() {
                task::yield_now();
            }
            // SAFETY: this thread is the only one that makes a `CompletionQueue`.
            done.extend(unsafe { self.uring.completion_shared() }.map(|c| (c.user_data(), c.result())));
            let mut finished = Completions::new();
            let mut table = self.table.lock();
            for (tag, result) in done.drain(..) {
                match tag {
                    STOP | OWED => {}
                    FLUSH => self.flush_done(&mut table, result, &mut finished),
                    slot => self.data_done(&mut table, slot as usize, result, &mut finished),
                }
            }
            while table.has_room()
                && let Some(bio) = table.backlog.pop_front()
            {
                self.start(&mut table, bio, &mut finished);
            }
            finished.append(&mut table.owed);
            // This submits first, so that the device is busy while the completions run.
            drop(self.tell_kernel(table));
            self.finish(finished);
            // The completions that just ran may have submitted, so this comes last.
            let table = self.tell_kernel(self.table.lock());
            if table.stop && table.free.len() == table.slots.len() && table.backlog.is_empty() && table.owed.is_empty()
            {
                return;
            }
        }
    }

    fn flush_done(&self, table: &mut Table, result: i32, finished: &mut Completions) {
        if again(result) {
            return self.push_flush(table);
        }
        table.flushing = false;
        if result < 0 {
            flush::poison(&self.core.poison, &Arc::new(io::Error::from_raw_os_error(-result)));
        }
        let verdict = flush::poisoned(&self.core.poison);
        for slot in std::mem::take(&mut table.riding) {
            let Some(r) = table.slots[slot].as_mut() else { continue };
            if verdict.is_ok() && r.stage == Stage::PreFlush && r.bio.len > 0 {
                r.stage = Stage::Data;
                self.push_data(table, slot);
            } else {
                self.retire(table, slot, verdict.clone(), finished);
            }
        }
        self.next_flush(table, finished);
    }

    fn data_done(&self, table: &mut Table, slot: usize, result: i32, finished: &mut Completions) {
        let Some(r) = table.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if again(result) {
            return self.push_data(table, slot);
        }
        if r.dsync && (result == -libc::EOPNOTSUPP || result == -libc::ENOSYS) {
            self.core.has_dsync.store(false, Ordering::Relaxed);
            r.aim();
            return self.push_data(table, slot);
        }
        if result <= 0 {
            let e = Arc::new(match result {
                0 if r.bio.op == BioOp::Read => psync::short_file(),
                0 => io::ErrorKind::WriteZero.into(),
                e => io::Error::from_raw_os_error(-e),
            });
            if r.dsync {
                // The kernel may have reported the loss of earlier writes to this request.
                flush::poison(&self.core.poison, &e);
            }
            return self.retire(table, slot, Err(e), finished);
        }
        r.advance(result as u64);
        if r.done < r.bio.len {
            return self.push_data(table, slot);
        }
        if r.bio.op == BioOp::Write && r.bio.flags.contains(BioFlags::FUA) && !r.dsync {
            r.stage = Stage::PostFlush;
            return self.join_flush(table, slot, finished);
        }
        self.retire(table, slot, Ok(()), finished);
    }
}

/// Whether the request was not carried out through no fault of its own: interrupted, or cancelled because its
/// submitter's thread ended.
fn again(result: i32) -> bool {
    [-libc::EINTR, -libc::EAGAIN, -libc::ECANCELED].contains(&result)
}

fn io_uring_enter_getevents() -> u32 {
    /// Linux: include/uapi/linux/io_uring.h.
    const IORING_ENTER_GETEVENTS: u32 = 1;
    IORING_ENTER_GETEVENTS
}

/// Without its completion thread, a device hangs for ever. Ending the process at least reports the reason.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.stop = true;
        // SAFETY: a no-op refers to no memory.
        unsafe { self.shared.push(&mut table, &opcode::Nop::new().build().user_data(STOP)) };
        drop(self.shared.tell_kernel(table));
        // The last owner of the device may be a completion, which runs on the thread itself. The thread ends when all
        // requests are done.
        if let Some(reaper) = self.reaper.take()
            && reaper.thread().id() != extant_base::task::current().id()
        {
            let _ = reaper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(ring: &mut IoUring, entries: &[squeue::Entry]) -> Vec<i32> {
        let one = |entry: &squeue::Entry| {
            // SAFETY: the entries of these tests refer to no memory.
            unsafe { ring.submission().push(entry).expect("room") };
            ring.submit_and_wait(1).expect("submitted");
            ring.completion().next().expect("a completion").result()
        };
        entries.iter().map(one).collect()
    }

    #[test]
    fn ring_refuses_operations_that_the_engine_does_not_use() {
        let Ok(mut ring) = make_ring() else {
            eprintln!("skipped: no io_uring");
            return;
        };
        let root = types::Fd(libc::AT_FDCWD);
        let refused = [
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::OpenAt::new(root, c"/etc/passwd".as_ptr()).build(),
            opcode::UnlinkAt::new(root, c"/nothing".as_ptr()).build(),
            opcode::Close::new(types::Fd(-1)).build(),
            opcode::Nop::new().build().flags(squeue::Flags::ASYNC),
        ];
        assert_eq!(results(&mut ring, &refused), [-libc::EACCES; 5]);
        assert_eq!(results(&mut ring, &[opcode::Nop::new().build()]), [0]);
        assert!(ring.submitter().register_files(&[0]).is_err(), "it registers files");
    }
}
