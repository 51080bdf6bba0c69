//! Writes a plan: each block once, in ascending order except for the superblocks, created and checksummed by all
//! threads.
//!
//! Main functions: [`write_with_progress`], and its two halves [`body`] and [`superblocks`]. The pieces of the plan are
//! cut into chunks of adjacent blocks. Threads take chunks in ascending order and create their bytes concurrently. A
//! finished chunk is submitted after all chunks before it, so the device gets ascending requests, and a thread creates
//! the next chunk while the device writes the previous ones. One more thread flushes the device from time to time.
//! Otherwise the page cache would contain the whole image until the flush at the end, which would wait while no thread
//! has any work.
//!
//! An image exists when it is finished. A program finds a file system by any copy of its superblock, and each copy
//! suffices to access all of it. So [`body`] erases the old copies and makes everything except the new ones durable;
//! until then, no copy is on the device. [`superblocks`] then writes them in any order, because each of them describes
//! a complete file system. The primary is the first, so that the image soon needs no backup. So at any time, a failure,
//! a kill or a power cut leaves either no file system, or the whole one.
//!
//! Memory: at most `MEMORY_MAX` bytes of chunks, with any number of threads.
//!
//! # Locking
//! `build pieces` protects the iterator over the plan's pieces. `build write` protects the chunks that are created,
//! ready or being written, and the first error; a completion takes it. Neither is held during a call of a device or a
//! source.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use extant_block::{AlignedBuf, Bio, BioData, BioFlags, BioVec, BlockDevice, Completion};

use crate::plan::{Piece, Plan};
use crate::{Error, Result, erase};

/// The total number of bytes of all chunks.
const MEMORY_MAX: usize = 32 << 20;
/// The size of a chunk in bytes. A few chunks stay in a processor's cache between their creation and their write. Also,
/// for larger writes the kernel takes larger pieces of memory, which a virtual machine must first get from its host.
const CHUNK: usize = 256 << 10;
/// The number of bytes that are written between two flushes.
const FLUSH_BYTES: u64 = 64 << 20;

static PIECES: LockClass = LockClass::new("build pieces", 768);
static FLOW: LockClass = LockClass::new("build write", 769);

/// Writes a whole image and flushes the device. Blocks that are in no piece must already be zeros: holes of a new file,
/// or a device after [`erase::clear`]. `progress` is called with the number of bytes that have been written to the
/// device since its last call.
///
/// # Errors
/// As [`body`] and [`superblocks`].
pub fn write_with_progress<P: Plan>(
    device: &dyn BlockDevice,
    plan: &P,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    body(device, plan, threads, progress)?;
    superblocks(device, plan, progress)
}

/// Erases old superblocks, writes everything except the new ones, and flushes the device.
///
/// # Errors
/// The device reports an error, or a piece cannot be created. Of several errors, the one with the lowest block is
/// returned; nothing after it is begun. The device has no superblock, unless erasing it failed.
pub fn body<P: Plan>(
    device: &dyn BlockDevice,
    plan: &P,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let threads = threads.clamp(1, THREADS_MAX);
    let cutter = Cutter::new(plan.pieces(), CHUNK as u32 / plan.block_size());
    let writer = Writer {
        device,
        plan,
        cutter: Mutex::new(&PIECES, cutter),
        flow: Arc::new(Flow::new(buffers(threads))),
        progress,
    };
    // This also flushes, because the caller may have written zeros just before.
    erase::superblocks(device)?;
    let started = AtomicUsize::new(0);
    // If the system starts fewer threads, the flushes are left out.
    task::together("extant-build", threads + 1, || match started.fetch_add(1, Ordering::Relaxed) {
        last if last == threads => writer.flush_behind(),
        _ => writer.work(),
    });
    writer.flow.finish()?;
    Ok(device.flush()?)
}

/// Writes the superblocks after [`body`], and flushes the device. They are created one by one, because without
/// `sparse_super` each group has one.
///
/// # Errors
/// The device reports an error. It then has no superblock, if it still accepts writes.
pub fn superblocks<P: Plan>(device: &dyn BlockDevice, plan: &P, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let mut block = AlignedBuf::zeroed(plan.block_size() as usize);
    let mut write_all = || -> Result<()> {
        for piece in plan.superblocks() {
            block.fill(0);
            plan.fill(piece.key, 0, &mut block)?;
            device.write_at(piece.start.0 * u64::from(plan.block_size()), &[&block], BioFlags::empty())?;
            progress(block.len() as u64);
        }
        Ok(device.flush()?)
    };
    write_all().inspect_err(|_| {
        // The caller reports that there is no file system. The first error is returned.
        let _ = erase::superblocks(device);
    })
}

/// With more threads than this, the others would have no chunks to create.
const THREADS_MAX: usize = MEMORY_MAX / CHUNK / 2 - 1;

/// The number of chunks for this many threads: each creates one while another waits, and one is being written.
const fn buffers(threads: usize) -> usize {
    2 * threads + 1
}

const _: () = assert!(buffers(THREADS_MAX) * CHUNK <= MEMORY_MAX);

/// Adjacent blocks that are written at once.
struct Chunk<K> {
    /// Its position in the order.
    number: u64,
    start: u64,
    blocks: u32,
    /// The parts of pieces in it: key, first block in the piece, number of blocks.
    parts: Vec<(K, u32, u32)>,
}

/// Cuts pieces into chunks.
struct Cutter<I, K> {
    pieces: I,
    /// The piece that was cut last, and how many of its blocks were used.
    rest: Option<(Piece<K>, u32)>,
    most: u32,
    number: u64,
    /// One past the last block that was used.
    end: u64,
}

impl<K: Copy, I: Iterator<Item = Piece<K>>> Cutter<I, K> {
    fn new(pieces: I, most: u32) -> Cutter<I, K> {
        Cutter { pieces, rest: None, most, number: 0, end: 0 }
    }

    /// The next chunk; it reuses the memory of `parts`.
    fn next(&mut self, mut parts: Vec<(K, u32, u32)>) -> Option<Chunk<K>> {
        parts.clear();
        let mut start = 0;
        let mut blocks = 0;
        while blocks < self.most {
            let Some((piece, gone)) = self.rest.take().or_else(|| self.pieces.next().map(|piece| (piece, 0))) else {
                break;
            };
            let at = piece.start.0 + u64::from(gone);
            if blocks > 0 && at != start + u64::from(blocks) {
                self.rest = Some((piece, gone));
                break;
            }
            debug_assert!(piece.blocks > 0 && at >= self.end, "pieces ascend and do not overlap: {at}, {}", self.end);
            if blocks == 0 {
                start = at;
            }
            let taken = (piece.blocks - gone).min(self.most - blocks);
            parts.push((piece.key, gone, taken));
            blocks += taken;
            self.end = at + u64::from(taken);
            if gone + taken < piece.blocks {
                self.rest = Some((piece, gone + taken));
            }
        }
        if blocks == 0 {
            return None;
        }
        self.number += 1;
        Some(Chunk { number: self.number - 1, start, blocks, parts })
    }
}

/// The state of each chunk.
struct Flow {
    state: Mutex<State>,
    changed: Condvar,
    /// Signalled when there is enough to flush, or no more chunks will be submitted.
    flushable: Condvar,
}

struct State {
    /// Memory that no chunk uses.
    spare: Vec<AlignedBuf>,
    /// The number of buffers that may still be created.
    unmade: usize,
    /// Finished chunks by number: offset and bytes. `None` for one that could not be created.
    ready: BTreeMap<u64, Option<(u64, AlignedBuf)>>,
    /// The number of the chunk that is submitted next.
    next: u64,
    /// Whether a thread is submitting. The others leave their chunks in `ready`.
    submitting: bool,
    /// The number of chunks whose bytes belong to the device.
    in_flight: usize,
    /// The number of bytes that were submitted since the last flush began.
    unflushed: u64,
    /// Whether a thread has ended, so that there are no more chunks to create.
    ending: bool,
    /// The number of the lowest chunk that failed, and the error.
    failed: Option<(u64, Error)>,
}

impl Flow {
    fn new(buffers: usize) -> Flow {
        let state = State {
            spare: Vec::new(),
            unmade: buffers,
            ready: BTreeMap::new(),
            next: 0,
            submitting: false,
            in_flight: 0,
            unflushed: 0,
            ending: false,
            failed: None,
        };
        Flow { state: Mutex::new(&FLOW, state), changed: Condvar::new(), flushable: Condvar::new() }
    }

    /// Memory for a chunk; `None` after something has failed.
    fn buffer(&self, len: usize) -> Option<AlignedBuf> {
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(buffer) = state.spare.pop() {
                return Some(buffer);
            }
            if state.unmade > 0 {
                state.unmade -= 1;
                return Some(AlignedBuf::zeroed(len));
            }
            self.changed.wait(&mut state);
        }
    }

    fn give_back(&self, buffer: AlignedBuf) {
        self.state.lock().spare.push(buffer);
        self.changed.notify_all();
    }

    fn fail(&self, number: u64, error: Error) {
        let mut state = self.state.lock();
        if state.failed.as_ref().is_none_or(|(first, _)| number < *first) {
            state.failed = Some((number, error));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until there is something to flush. Returns the number of the first chunk that has not been submitted by
    /// then; `None` if the flush at the end is near.
    fn to_flush(&self) -> Option<u64> {
        let mut state = self.state.lock();
        while state.unflushed < FLUSH_BYTES && !state.ending {
            self.flushable.wait(&mut state);
        }
        state.unflushed = 0;
        (!state.ending).then_some(state.next)
    }

    /// Waits until nothing is in progress.
    fn finish(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.in_flight > 0 {
            self.changed.wait(&mut state);
        }
        state.failed.take().map_or(Ok(()), |(_, error)| Err(error))
    }
}

struct Writer<'a, P: Plan, I> {
    device: &'a dyn BlockDevice,
    plan: &'a P,
    cutter: Mutex<Cutter<I, P::Key>>,
    flow: Arc<Flow>,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<P: Plan, I: Iterator<Item = Piece<P::Key>> + Send> Writer<'_, P, I> {
    fn work(&self) {
        let _guard = ThreadEndGuard(&self.flow);
        let mut parts = Vec::new();
        while let Some(buffer) = self.flow.buffer(CHUNK) {
            let Some(chunk) = self.cutter.lock().next(std::mem::take(&mut parts)) else {
                return self.flow.give_back(buffer);
            };
            self.make(&chunk, buffer);
            self.submit();
            parts = chunk.parts;
        }
    }

    fn flush_behind(&self) {
        while let Some(number) = self.flow.to_flush() {
            if let Err(error) = self.device.flush() {
                return self.flow.fail(number, error.into());
            }
        }
    }

    /// Creates a chunk's bytes and adds them to the ready ones.
    fn make(&self, chunk: &Chunk<P::Key>, buffer: AlignedBuf) {
        let size = self.plan.block_size() as usize;
        let mut buffer = buffer.reused(chunk.blocks as usize * size);
        buffer.fill(0);
        let mut rest = &mut buffer[..];
        let mut made = Ok(());
        let _unwinding = Unwinding { flow: &self.flow, number: chunk.number };
        for (key, first, blocks) in &chunk.parts {
            let (part, behind) = rest.split_at_mut(*blocks as usize * size);
            rest = behind;
            made = self.plan.fill(*key, *first, part);
            if made.is_err() {
                break;
            }
        }
        let ready = match made {
            Ok(()) => Some((chunk.start * size as u64, buffer)),
            Err(error) => {
                self.flow.fail(chunk.number, error);
                None
            }
        };
        self.flow.state.lock().ready.insert(chunk.number, ready);
    }

    /// Submits the ready chunks in order, unless another thread is already doing so.
    fn submit(&self) {
        let mut state = self.flow.state.lock();
        if state.submitting {
            return;
        }
        loop {
            let number = state.next;
            let Some(ready) = state.ready.remove(&number) else { break };
            state.next += 1;
            let wanted = state.failed.as_ref().is_none_or(|(first, _)| number < *first);
            let Some((offset, buffer)) = ready.filter(|_| wanted) else { continue };
            state.in_flight += 1;
            state.submitting = true;
            drop(state);
            let len = buffer.len();
            let data = Arc::new(buffer);
            let flow = self.flow.clone();
            let end_io = Box::new(move |done: Completion| written(&flow, number, done));
            let vecs = vec![BioVec { buf: data, offset: 0, len }];
            self.device.submit(Bio::write(offset, vecs, BioFlags::empty(), end_io));
            (self.progress)(len as u64);
            state = self.flow.state.lock();
            state.submitting = false;
            state.unflushed += len as u64;
            if state.unflushed >= FLUSH_BYTES {
                self.flow.flushable.notify_one();
            }
        }
    }
}

/// Its drop records that a thread ends, for any reason.
struct ThreadEndGuard<'f>(&'f Flow);

impl Drop for ThreadEndGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ending = true;
        self.0.flushable.notify_one();
    }
}

/// Stops the other threads, which would wait for a chunk whose thread panicked.
struct Unwinding<'f> {
    flow: &'f Flow,
    number: u64,
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.flow.fail(self.number, Error::Thread("a thread has panicked".into()));
        }
    }
}

/// Ends a chunk: its memory is free again.
fn written(flow: &Flow, number: u64, done: Completion) {
    if let Err(error) = done.result {
        flow.fail(number, error.into());
    }
    let mut state = flow.state.lock();
    state.in_flight -= 1;
    let buffer = match done.data {
        BioData::Write(mut vecs) => vecs.pop().and_then(|vec| Arc::into_inner(vec.buf)),
        _ => None,
    };
    match buffer {
        Some(buffer) => state.spare.push(buffer),
        // A wrapper of the device still has the bytes.
        None => state.unmade += 1,
    }
    drop(state);
    flow.changed.notify_all();
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
