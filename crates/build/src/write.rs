//! Writes a plan: each block once, in ascending order but for the primary superblock, made and checksummed by all
//! threads.
//!
//! Main function: [`write_with_progress`]. The pieces of the plan are cut into chunks of adjacent blocks. Threads take
//! chunks in ascending order and make their bytes side by side. A finished chunk is submitted when all before it are,
//! so the device sees ascending requests, and a thread makes the next chunk while the device writes the last ones.
//!
//! A file system exists from the moment its superblock does. So an old one is wiped before anything is written, and the
//! new one is written when all else is durable: what a failure, a kill or a power cut leaves is no file system, rather
//! than one that looks clean and has wrong bytes.
//!
//! Memory: at most `MEMORY_MAX` bytes of chunks, whatever the number of threads.
//!
//! # Locking
//! `build pieces`: the iterator over the plan's pieces. `build write`: chunks that are made, ready or being written,
//! and the first error; a completion takes it. Neither is held while a device or a source is called.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use extant_block::{AlignedBuf, Bio, BioData, BioFlags, BioVec, BlockDevice, Completion};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::plan::{Piece, Plan};
use crate::{Error, Result};

/// Bytes of all chunks together.
const MEMORY_MAX: usize = 32 << 20;
/// Larger requests gain nothing.
const CHUNK_MAX: usize = 4 << 20;
/// Smaller requests cost a disk more than they spare memory.
const CHUNK_MIN: usize = 256 << 10;

static PIECES: LockClass = LockClass::new("build pieces", 768);
static FLOW: LockClass = LockClass::new("build write", 769);

/// Writes all pieces, the one with the primary superblock last, and flushes the device. Blocks that no piece has must
/// be zeroes already: holes of a new file. `progress` is called with the bytes that have gone to the device since its
/// last call.
///
/// # Errors
/// The device refuses, or a piece cannot be made. Of several errors, the one with the lowest block is returned;
/// nothing behind it is begun. Unless it is the last flush that fails, the device then holds no superblock.
pub fn write_with_progress<P: Plan>(
    device: &dyn BlockDevice,
    plan: &P,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let (threads, buffers, chunk) = shares(threads);
    let superblock = SUPERBLOCK_OFFSET / u64::from(plan.block_size());
    let cutter = Cutter::new(plan.pieces(), (chunk / plan.block_size() as usize).max(1) as u32, superblock);
    let writer = Writer {
        device,
        plan,
        cutter: Mutex::new(&PIECES, cutter),
        flow: Arc::new(Flow::new(buffers)),
        chunk_bytes: chunk.max(plan.block_size() as usize),
        progress,
    };
    wipe_superblock(device)?;
    task::together("extant-build", threads, || writer.work());
    let superblock = writer.flow.finish()?;
    device.flush()?;
    if let Some((offset, bytes)) = superblock {
        device.write_at(offset, &[&bytes], BioFlags::empty())?;
        progress(bytes.len() as u64);
        device.flush()?;
    }
    Ok(())
}

/// Overwrites the primary superblock with zeroes, unless there are only zeroes. Either is durable then: the zeroes may
/// have been written just before.
fn wipe_superblock(device: &dyn BlockDevice) -> Result<()> {
    let unit = u64::from(device.limits().logical_block);
    let start = SUPERBLOCK_OFFSET / unit * unit;
    let end = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).next_multiple_of(unit);
    let mut around = AlignedBuf::zeroed((end - start) as usize);
    device.read_at(start, &mut around, BioFlags::empty())?;
    let old = &mut around[(SUPERBLOCK_OFFSET - start) as usize..][..SUPERBLOCK_SIZE];
    if old.iter().any(|byte| *byte != 0) {
        old.fill(0);
        device.write_at(start, &[&around], BioFlags::empty())?;
    }
    Ok(device.flush()?)
}

/// The shares of so many threads: how many of them start, how many chunks there are, and their bytes.
fn shares(threads: usize) -> (usize, usize, usize) {
    let threads = threads.clamp(1, MEMORY_MAX / CHUNK_MIN / 2 - 1);
    let buffers = 2 * threads + 2;
    (threads, buffers, (1 << (MEMORY_MAX / buffers).ilog2()).clamp(CHUNK_MIN, CHUNK_MAX))
}

/// Adjacent blocks that are written at once.
struct Chunk<K> {
    /// Its position in the order.
    number: u64,
    start: u64,
    blocks: u32,
    /// The parts of pieces that it consists of: key, first block in the piece, blocks.
    parts: Vec<(K, u32, u32)>,
}

/// Cuts pieces into chunks.
struct Cutter<I, K> {
    pieces: I,
    /// The piece that was cut last, and how many of its blocks are gone.
    rest: Option<(Piece<K>, u32)>,
    most: u32,
    /// The block with the primary superblock, which ends a chunk.
    superblock: u64,
    number: u64,
    /// One past the last block that was handed out.
    end: u64,
}

impl<K: Copy, I: Iterator<Item = Piece<K>>> Cutter<I, K> {
    fn new(pieces: I, most: u32, superblock: u64) -> Cutter<I, K> {
        Cutter { pieces, rest: None, most, superblock, number: 0, end: 0 }
    }

    /// The next chunk, with the memory of `parts`.
    fn next(&mut self, mut parts: Vec<(K, u32, u32)>) -> Option<Chunk<K>> {
        parts.clear();
        let mut start = 0;
        let mut blocks = 0;
        let mut most = self.most;
        while blocks < most {
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
                if at <= self.superblock {
                    most = most.min((self.superblock + 1 - at) as u32);
                }
            }
            let taken = (piece.blocks - gone).min(most - blocks);
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
}

struct State {
    /// Memory that no chunk uses.
    spare: Vec<AlignedBuf>,
    /// How many more may be made.
    unmade: usize,
    /// Finished chunks, by number: offset and bytes. `None`: one that could not be made.
    ready: BTreeMap<u64, Option<(u64, AlignedBuf)>>,
    /// The number of the chunk that is submitted next.
    next: u64,
    /// The chunk with the primary superblock, which waits for all others: offset and bytes.
    superblock: Option<(u64, AlignedBuf)>,
    /// Whether a thread is submitting; the others leave their chunks in `ready`.
    submitting: bool,
    /// Chunks whose bytes belong to the device.
    in_flight: usize,
    /// The number of the lowest chunk that failed, and why.
    failed: Option<(u64, Error)>,
}

impl Flow {
    fn new(buffers: usize) -> Flow {
        let state = State {
            spare: Vec::new(),
            unmade: buffers,
            ready: BTreeMap::new(),
            next: 0,
            superblock: None,
            submitting: false,
            in_flight: 0,
            failed: None,
        };
        Flow { state: Mutex::new(&FLOW, state), changed: Condvar::new() }
    }

    /// Memory for a chunk; `None` once something has failed.
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

    /// Waits until nothing is under way, and gives the chunk that is still to be written.
    fn finish(&self) -> Result<Option<(u64, AlignedBuf)>> {
        let mut state = self.state.lock();
        while state.in_flight > 0 {
            self.changed.wait(&mut state);
        }
        match state.failed.take() {
            None => Ok(state.superblock.take()),
            Some((_, error)) => Err(error),
        }
    }
}

struct Writer<'a, P: Plan, I> {
    device: &'a dyn BlockDevice,
    plan: &'a P,
    cutter: Mutex<Cutter<I, P::Key>>,
    flow: Arc<Flow>,
    chunk_bytes: usize,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<P: Plan, I: Iterator<Item = Piece<P::Key>> + Send> Writer<'_, P, I> {
    fn work(&self) {
        let mut parts = Vec::new();
        while let Some(buffer) = self.flow.buffer(self.chunk_bytes) {
            let Some(chunk) = self.cutter.lock().next(std::mem::take(&mut parts)) else {
                return self.flow.give_back(buffer);
            };
            self.make(&chunk, buffer);
            self.submit();
            parts = chunk.parts;
        }
    }

    /// Makes a chunk's bytes and puts them among the ready ones.
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

    /// Submits what is ready, in order, unless another thread is at it.
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
            if (offset..offset + buffer.len() as u64).contains(&SUPERBLOCK_OFFSET) {
                state.superblock = Some((offset, buffer));
                continue;
            }
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
        }
    }
}

/// Stops the other threads, which would wait for a chunk whose maker panicked.
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

/// The end of a chunk: its memory is free again.
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
        // A wrapper of the device has kept the bytes.
        None => state.unmade += 1,
    }
    drop(state);
    flow.changed.notify_all();
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
