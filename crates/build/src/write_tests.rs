//! Tests the writer with artificial plans.

use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_block::device::{Fault, FaultyDevice, MemDevice, TracedDevice};
use extant_block::{BioOp, BlockDevice, Limits};
use extant_ondisk::BlockNr;
use extant_ondisk::superblock::MAGIC;

use super::*;

const SIZE: u32 = 4096;

/// Pieces as (first block, number of blocks). The bytes of a block contain its number. `bad` cannot be created.
struct Model {
    pieces: Vec<(u64, u32)>,
    superblocks: Vec<u64>,
    blocks: u64,
    bad: Vec<u64>,
}

impl Plan for Model {
    type Key = u64;

    fn block_size(&self) -> u32 {
        SIZE
    }

    fn blocks_count(&self) -> u64 {
        self.blocks
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<u64>> + Send {
        self.pieces.iter().map(|&(start, blocks)| Piece { start: BlockNr(start), blocks, key: start })
    }

    fn superblocks(&self) -> impl Iterator<Item = Piece<u64>> {
        self.superblocks.iter().map(|&start| Piece { start: BlockNr(start), blocks: 1, key: start })
    }

    fn fill(&self, key: u64, first: u32, buf: &mut [u8]) -> Result<()> {
        assert!(buf.iter().all(|byte| *byte == 0), "a piece is given zeroes");
        for (at, block) in buf.chunks_mut(SIZE as usize).enumerate() {
            let number = key + u64::from(first) + at as u64;
            if self.bad.contains(&number) {
                return Err(Error::Options(format!("block {number}")));
            }
            block.fill((number % 251) as u8 + 1);
        }
        Ok(())
    }
}

/// Many small pieces with gaps, one that is larger than the memory of the writer, and more small ones.
fn model() -> Model {
    let mut pieces: Vec<(u64, u32)> = (0..3000).map(|i| (i * 5 + 1, 1 + (i % 4) as u32)).collect();
    pieces.push((20_000, 12_000));
    pieces.extend((0..500).map(|i| (32_000 + i * 3, 3)));
    Model { pieces, superblocks: vec![0, 10, 15_500, 39_999], blocks: 40_000, bad: Vec::new() }
}

impl Model {
    /// All blocks that are written.
    fn written(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.1)).sum::<u64>() + self.superblocks.len() as u64
    }
}

fn device(model: &Model) -> MemDevice {
    MemDevice::new(model.blocks * u64::from(SIZE))
}

#[test]
fn the_bytes_are_the_same_with_any_number_of_threads() {
    let model = model();
    for threads in [1, 2, 8, 1000] {
        let device = device(&model);
        let written = AtomicU64::new(0);
        write_with_progress(&device, &model, threads, &|bytes| {
            written.fetch_add(bytes, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(written.into_inner(), model.written() * u64::from(SIZE));
        let mut has = vec![0; model.blocks as usize];
        let superblocks = model.superblocks.iter().map(|start| (*start, 1));
        for (start, blocks) in model.pieces.iter().copied().chain(superblocks) {
            for block in start..start + u64::from(blocks) {
                has[block as usize] = (block % 251) as u8 + 1;
            }
        }
        let mut bytes = vec![0; SIZE as usize];
        for (number, expected) in has.into_iter().enumerate() {
            device.read_at(number as u64 * u64::from(SIZE), &mut bytes, BioFlags::empty()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == expected), "block {number} with {threads} threads");
        }
    }
}

#[test]
fn each_block_is_submitted_once_in_ascending_order_and_all_superblocks_behind_a_flush_of_the_rest() {
    let model = model();
    for threads in [1, 2, 8] {
        let device = TracedDevice::new(Arc::new(device(&model)));
        write_with_progress(&device, &model, threads, &|_| ()).unwrap();
        let mut records = device.take();
        records.retain(|record| record.op != BioOp::Read);
        let count = model.superblocks.len();
        let (begin, mut last) = (records.remove(0), records.split_off(records.len() - 2 - count));
        assert_eq!(begin.op, BioOp::Flush);
        let (before, behind) = (last.remove(0), last.pop().unwrap());
        assert_eq!((before.op, behind.op), (BioOp::Flush, BioOp::Flush));
        let superblocks: Vec<_> = last.iter().map(|record| (record.op, record.offset, record.len)).collect();
        let expected = |block: &u64| (BioOp::Write, block * u64::from(SIZE), u64::from(SIZE));
        assert_eq!(superblocks, model.superblocks.iter().map(expected).collect::<Vec<_>>());
        let mut end = u64::from(SIZE);
        let mut sum = count as u64 * u64::from(SIZE);
        for record in records {
            if record.op == BioOp::Flush {
                continue;
            }
            assert_eq!(record.op, BioOp::Write);
            assert!(record.offset >= end, "a write at {} behind one that ends at {end}", record.offset);
            assert!(record.len <= CHUNK as u64);
            end = record.offset + record.len;
            sum += record.len;
        }
        assert_eq!(sum, model.written() * u64::from(SIZE));
    }
}

#[test]
fn a_superblock_that_cannot_be_written_leaves_none_behind() {
    // It has a real superblock, so that it is found.
    struct Real(Model);
    impl Plan for Real {
        type Key = u64;
        fn block_size(&self) -> u32 {
            SIZE
        }
        fn blocks_count(&self) -> u64 {
            self.0.blocks
        }
        fn pieces(&self) -> impl Iterator<Item = Piece<u64>> + Send {
            self.0.pieces()
        }
        fn superblocks(&self) -> impl Iterator<Item = Piece<u64>> {
            self.0.superblocks()
        }
        fn fill(&self, key: u64, first: u32, buf: &mut [u8]) -> Result<()> {
            self.0.fill(key, first, buf)?;
            if self.0.superblocks.contains(&key) {
                let at = if key == 0 { 1024 } else { 0 };
                buf[at + 56..at + 58].copy_from_slice(&MAGIC.to_le_bytes());
            }
            Ok(())
        }
    }
    let model = Real(Model { superblocks: vec![0, 32768, 39_999], pieces: vec![(1, 9)], ..model() });
    for (failing, flush) in [(0, false), (32768, false), (39_999, false), (0, true)] {
        let device = FaultyDevice::new(Arc::new(device(&model.0)));
        let block = failing * u64::from(SIZE);
        // The first flush is after the erasure of old superblocks, the second after the body.
        device.inject(match flush {
            true => Fault::eio().op(BioOp::Flush).after(2).once(),
            false => Fault::eio().op(BioOp::Write).range(block..block + 1).once(),
        });
        write_with_progress(&device, &model, 2, &|_| ()).expect_err("refused");
        for superblock in [0, 32768] {
            let mut bytes = [0; SIZE as usize];
            device.read_at(superblock * u64::from(SIZE), &mut bytes, BioFlags::empty()).unwrap();
            let at = if superblock == 0 { 1024 } else { 0 };
            assert_eq!(bytes[at..at + 1024], [0; 1024], "{failing} {flush}: a superblock at block {superblock}");
        }
    }
}

#[test]
fn a_write_that_fails_leaves_no_superblock_neither_an_old_one_nor_a_new() {
    let model = Model { pieces: vec![(1, 1), (2, 9000)], bad: vec![8000], ..model() };
    for logical_block in [512, 4096] {
        for threads in [1, 2, 8] {
            let limits = Limits { logical_block, ..*device(&model).limits() };
            let device = MemDevice::with_limits(model.blocks * u64::from(SIZE), limits);
            let mut old = [0xaa; SIZE as usize];
            old[1024 + 56..1024 + 58].copy_from_slice(&MAGIC.to_le_bytes());
            device.write_at(0, &[&old], BioFlags::empty()).unwrap();
            write_with_progress(&device, &model, threads, &|_| ()).unwrap_err();
            let mut bytes = [0; SIZE as usize];
            device.read_at(0, &mut bytes, BioFlags::empty()).unwrap();
            assert!(bytes[1024..2048].iter().all(|byte| *byte == 0), "the superblock is wiped");
            assert!(bytes[..1024].iter().chain(&bytes[2048..]).all(|byte| *byte == 0xaa), "and nothing besides");
        }
    }
}

/// Writes a model; as soon as there is something to flush, no more is written until `flushed`.
fn write_until_flushed(device: &dyn BlockDevice, threads: usize, flushed: impl Fn() -> bool + Sync) -> Result<()> {
    let model = Model { pieces: vec![(1, 39_000)], superblocks: vec![0], ..model() };
    let written = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(60);
    write_with_progress(device, &model, threads, &|bytes| {
        let before = written.fetch_add(bytes, Ordering::Relaxed);
        while before >= FLUSH_BYTES && !flushed() {
            assert!(Instant::now() < end, "no flush after {before} bytes");
            std::thread::yield_now();
        }
    })
}

#[test]
fn the_device_is_flushed_while_chunks_are_still_made() {
    for threads in [1, 2] {
        let device = TracedDevice::new(Arc::new(device(&model())));
        // The first one is for the old superblock.
        write_until_flushed(&device, threads, || device.count(BioOp::Flush) > 1).unwrap();
    }
}

#[test]
fn a_flush_that_fails_in_between_is_returned_though_the_last_one_succeeds() {
    for threads in [1, 2] {
        let device = FaultyDevice::new(Arc::new(device(&model())));
        device.inject(Fault::eio().op(BioOp::Flush).after(1).once());
        let error = write_until_flushed(&device, threads, || device.injected() > 0).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        let mut bytes = [0xaa; SIZE as usize];
        device.read_at(0, &mut bytes, BioFlags::empty()).unwrap();
        assert_eq!(bytes, [0; SIZE as usize], "no superblock is written");
    }
}

#[test]
fn the_first_error_in_the_order_of_blocks_is_returned() {
    for threads in [1, 2, 8] {
        for bad in [vec![25_000, 31_000], vec![31_999, 41, 20_001], vec![32_001]] {
            let model = Model { bad: bad.clone(), ..model() };
            let error = write_with_progress(&device(&model), &model, threads, &|_| ()).unwrap_err();
            assert_eq!(error.to_string(), format!("block {}", bad.iter().min().unwrap()));
        }
    }
}

#[test]
fn an_error_stops_the_writer() {
    let model = Model { pieces: vec![(1, 39_000)], bad: vec![5000], ..model() };
    let device = TracedDevice::new(Arc::new(device(&model)));
    write_with_progress(&device, &model, 2, &|_| ()).unwrap_err();
    let writes = device.take().into_iter().filter(|record| record.op == BioOp::Write);
    let last = writes.map(|record| record.offset + record.len).max().unwrap();
    assert!(last <= 5000 * u64::from(SIZE), "nothing behind the error is written, but {last} was");
}

#[test]
fn a_failed_write_is_returned_before_an_error_behind_it() {
    let model = Model { bad: vec![31_000], ..model() };
    for threads in [1, 2, 8] {
        let device = FaultyDevice::new(Arc::new(device(&model)));
        let block = 21_000 * u64::from(SIZE);
        device.inject(Fault::eio().op(BioOp::Write).range(block..block + 1));
        let error = write_with_progress(&device, &model, threads, &|_| ()).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
    }
}
