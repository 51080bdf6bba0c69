//! Waves: they read many places of the device, with many requests in flight, and decode them with all threads.
//!
//! Main types: [`Run`] (consecutive blocks that are read at once, and the items in them), [`Wave`] (the requests of one
//! wave). [`runs`] merges sorted items over small gaps; [`wave`] reads and decodes. Holes are decoded as zeros without
//! being read.
//!
//! Memory: at most [`IN_FLIGHT`] runs, and buffers of [`BUFFER_BYTES`] plus one of [`RUN_BYTES`]. If a device completes
//! requests during the call, at most [`BACKLOG`] runs per thread.
//!
//! # Locking
//! `check wave` protects the runs in flight and those that have arrived. No device is called under it; a completion
//! takes it to pass on a run.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use extant_block::{AlignedBuf, Bio, BioData, BioFlags, Completion};
use extant_ondisk::BlockNr;

use crate::context::Check;
use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// The number of requests in flight, including the runs that wait to be decoded.
const IN_FLIGHT: usize = 32;
/// While the buffers have this many bytes, no further request is sent.
const BUFFER_BYTES: usize = 4 << 20;
/// The number of arrived runs that may wait for each thread. If there are more, a thread decodes some before it sends
/// more requests, while their bytes are in the processor's cache.
const BACKLOG: usize = 1;
/// The maximum number of bytes in a run.
pub const RUN_BYTES: u64 = 1 << 20;
/// A gap of up to this many bytes is read, too, because that is cheaper than a second request.
const GAP_BYTES: u64 = 16 << 10;

static CLASS: LockClass = LockClass::new("check wave", 765);

/// Consecutive blocks that are read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The index of its first item, and one past its last.
    pub items: (usize, usize),
}

/// Merges items into runs. They are sorted by `place` (first block, number of blocks).
pub fn runs<T>(items: &[T], block_bits: u32, place: impl Fn(&T) -> (u64, u64)) -> Vec<Run> {
    let (most, gap) = ((RUN_BYTES >> block_bits).max(1), GAP_BYTES >> block_bits);
    let mut runs: Vec<Run> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let (first, blocks) = place(item);
        match runs.last_mut() {
            Some(run) if first <= run.first + run.blocks + gap && first + blocks - run.first <= most => {
                run.blocks = run.blocks.max(first + blocks - run.first);
                run.items.1 = index + 1;
            }
            _ => runs.push(Run { first, blocks, items: (index, index + 1) }),
        }
    }
    runs
}

/// A thread's results, which are kept from run to run and passed on at the end.
pub trait Output: Default + Send + 'static {
    /// The sink for the findings of a run.
    fn sink(&mut self) -> &mut Sink;
}

struct ArrivedRun {
    run: usize,
    /// `None` if the read failed.
    data: Option<AlignedBuf>,
    /// The capacity of its buffer.
    capacity: usize,
}

#[derive(Default)]
struct State {
    next: usize,
    /// Runs that are submitted and not yet decoded.
    open: usize,
    arrived: VecDeque<ArrivedRun>,
    /// The buffers of decoded runs, for reuse.
    spare: Vec<AlignedBuf>,
    /// The number of bytes of all buffers, including the spare ones.
    bytes: usize,
}

/// The requests of one wave.
struct Wave {
    runs: Vec<Run>,
    block_bits: u32,
    /// The number of runs that may have arrived before some are decoded.
    backlog: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Wave {
    /// The next thing to do: decode what has arrived, or submit another run.
    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            let buffers = !state.spare.is_empty() || state.bytes < BUFFER_BYTES;
            let room = buffers && state.open < IN_FLIGHT && state.arrived.len() < self.backlog;
            if room && let Some(run) = self.runs.get(state.next) {
                let index = state.next;
                let len = (run.blocks << self.block_bits) as usize;
                let spare = state.spare.pop();
                state.bytes -= spare.as_ref().map_or(0, AlignedBuf::capacity);
                let buffer = spare.map_or_else(|| AlignedBuf::zeroed(len), |spare| spare.reused(len));
                state.bytes += buffer.capacity();
                state.next += 1;
                state.open += 1;
                return Some(Work::Submit(index, buffer));
            }
            if let Some(arrived) = state.arrived.pop_front() {
                return Some(Work::Decode(arrived));
            }
            if state.open == 0 && state.next >= self.runs.len() {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn arrive(&self, arrived: ArrivedRun) {
        self.state.lock().arrived.push_back(arrived);
        self.changed.notify_one();
    }

    /// Records that a run was decoded. `buffer` is its buffer, and `capacity` its capacity, which is known even if the
    /// buffer is lost.
    fn decoded(&self, buffer: Option<AlignedBuf>, capacity: usize) {
        let mut state = self.state.lock();
        state.open -= 1;
        match buffer {
            Some(buffer) if state.bytes <= BUFFER_BYTES => state.spare.push(buffer),
            _ => state.bytes -= capacity,
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Decrements the number of open runs at the end of the decoding, even after a panic, because otherwise the other
/// threads would wait for ever.
struct Decoded<'w> {
    wave: &'w Wave,
    data: Option<AlignedBuf>,
    capacity: usize,
}

impl Drop for Decoded<'_> {
    fn drop(&mut self) {
        self.wave.decoded(self.data.take(), self.capacity);
    }
}

enum Work {
    Submit(usize, AlignedBuf),
    Decode(ArrivedRun),
}

/// Reads all runs and calls `decode` for each. The order is not fixed, so the outputs must not depend on it. Returns
/// the outputs, one per thread; the findings are in [`Check::found`].
pub fn wave<O: Output>(
    check: &Arc<Check>,
    runs: Vec<Run>,
    decode: impl Fn(&Check, &Run, &[u8], &mut O) + Send + Sync + 'static,
) -> Result<Vec<O>> {
    let threads = check.threads.min(runs.len()).max(1);
    let block_bits = check.geo.block_bits;
    let (state, changed) = (Mutex::new(&CLASS, State::default()), Condvar::new());
    let wave = Arc::new(Wave { runs, block_bits, backlog: BACKLOG * threads, state, changed });
    let decode = Arc::new(decode);
    let mut handles = Vec::new();
    for _ in 1..threads {
        let (check, wave, decode) = (check.clone(), wave.clone(), decode.clone());
        let handle = task::spawn("extant-check", move || work(&check, &wave, &*decode));
        handles.push(handle.map_err(|e| Error::Thread(e.to_string()))?);
    }
    let mut outputs = vec![work(check, &wave, &*decode)];
    for handle in handles {
        outputs.push(handle.join().map_err(|_| Error::Thread("a thread has panicked".into()))?);
    }
    Ok(outputs)
}

fn work<O: Output>(check: &Check, wave: &Arc<Wave>, decode: &(impl Fn(&Check, &Run, &[u8], &mut O) + ?Sized)) -> O {
    let mut output = O::default();
    let bits = check.geo.block_bits;
    while let Some(work) = wave.next() {
        match work {
            Work::Submit(index, mut buffer) => {
                let run = wave.runs[index];
                let (bytes, capacity) = (buffer.len() as u64, buffer.capacity());
                if is_hole(check, &run) {
                    buffer.fill(0);
                    wave.arrive(ArrivedRun { run: index, data: Some(buffer), capacity });
                    continue;
                }
                check.count_read(bytes);
                let wave = wave.clone();
                let end_io = move |done: Completion| {
                    let data = match (done.result, done.data) {
                        (Ok(()), BioData::Read(data)) => Some(data),
                        _ => None,
                    };
                    wave.arrive(ArrivedRun { run: index, data, capacity });
                };
                check.device.submit(Bio::read(run.first << bits, buffer, BioFlags::META, Box::new(end_io)));
            }
            Work::Decode(arrived) => {
                let decoded = Decoded { wave, data: arrived.data, capacity: arrived.capacity };
                let run = wave.runs[arrived.run];
                match &decoded.data {
                    Some(data) => decode(check, &run, data, &mut output),
                    None => piecewise(check, &run, decode, &mut output),
                }
                check.take(output.sink());
            }
        }
    }
    output
}

/// Whether the device knows that the run contains only zeros. If the query fails, the read reports the error.
fn is_hole(check: &Check, run: &Run) -> bool {
    let bits = check.geo.block_bits;
    let (first, end) = (run.first << bits, (run.first + run.blocks) << bits);
    let next = || check.device.next_data(first);
    // There is no data after the device's end, either, but a read of it fails.
    end <= check.device.size_bytes() && next().is_ok_and(|data| data.is_none_or(|at| at >= end))
}

/// Reads a run that failed block by block. Decodes the readable blocks with zeros for the others, and reports the
/// others.
fn piecewise<O: Output>(
    check: &Check,
    run: &Run,
    decode: &(impl Fn(&Check, &Run, &[u8], &mut O) + ?Sized),
    output: &mut O,
) {
    let bits = check.geo.block_bits;
    let size = 1usize << bits;
    let mut data = vec![0; (run.blocks as usize) << bits];
    for (at, block) in data.chunks_mut(size).enumerate() {
        let offset = (run.first + at as u64) << bits;
        if check.device.read_at(offset, block, BioFlags::META).is_err() {
            block.fill(0);
            let place = Place::Blocks(BlockNr(run.first + at as u64));
            output.sink().push(Finding::new(Problem::Unreadable, place, size as u64, offset));
        }
    }
    decode(check, run, &data, output);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_merged_over_small_gaps_only() {
        let place = |block: &u64| (*block, 1);
        let found = runs(&[10, 11, 15, 21, 1000], 12, place);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], Run { first: 10, blocks: 6, items: (0, 3) });
        assert_eq!(found[1], Run { first: 21, blocks: 1, items: (3, 4) });
        assert_eq!(found[2].items, (4, 5));
    }

    #[test]
    fn runs_are_bounded() {
        let blocks: Vec<u64> = (0..1000).collect();
        let found = runs(&blocks, 12, |block| (*block, 1));
        assert!(found.iter().all(|run| run.blocks << 12 <= RUN_BYTES));
        assert_eq!(found.iter().map(|run| run.items.1 - run.items.0).sum::<usize>(), 1000);
    }
}
