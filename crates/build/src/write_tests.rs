//! The writer with plans that are made up.

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_block::device::{Fault, FaultyDevice, MemDevice, TracedDevice};
use extant_block::{BioOp, BlockDevice};
use extant_ondisk::BlockNr;

use super::*;

const SIZE: u32 = 4096;

/// Pieces as (first block, blocks); the bytes of a block tell its number. `bad` cannot be made.
struct Model {
    pieces: Vec<(u64, u32)>,
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

/// Many small pieces with gaps, one that is larger than all memory of the writer, and more small ones.
fn model() -> Model {
    let mut pieces: Vec<(u64, u32)> = (0..3000).map(|i| (i * 5, 1 + (i % 5) as u32)).collect();
    pieces.push((20_000, 12_000));
    pieces.extend((0..500).map(|i| (32_000 + i * 3, 3)));
    Model { pieces, blocks: 40_000, bad: Vec::new() }
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
        let expected: u64 = model.pieces.iter().map(|piece| u64::from(piece.1)).sum();
        assert_eq!(written.into_inner(), expected * u64::from(SIZE));
        let mut has = vec![0; model.blocks as usize];
        for (start, blocks) in &model.pieces {
            for block in *start..start + u64::from(*blocks) {
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
fn each_block_is_submitted_once_and_in_ascending_order() {
    let model = model();
    for threads in [1, 2, 8] {
        let device = TracedDevice::new(Arc::new(device(&model)));
        write(&device, &model, threads).unwrap();
        let mut end = 0;
        let mut sum = 0;
        for record in device.take() {
            if record.len == 0 {
                continue;
            }
            assert!(record.offset >= end, "a write at {} behind one that ends at {end}", record.offset);
            assert!(record.len <= CHUNK_MAX as u64);
            end = record.offset + record.len;
            sum += record.len;
        }
        assert_eq!(sum, model.pieces.iter().map(|piece| u64::from(piece.1)).sum::<u64>() * u64::from(SIZE));
    }
}

#[test]
fn the_first_error_in_the_order_of_blocks_is_returned() {
    for threads in [1, 2, 8] {
        for bad in [vec![25_000, 31_000], vec![31_999, 40, 20_001], vec![32_001]] {
            let model = Model { bad: bad.clone(), ..model() };
            let error = write(&device(&model), &model, threads).unwrap_err();
            assert_eq!(error.to_string(), format!("block {}", bad.iter().min().unwrap()));
        }
    }
}

#[test]
fn an_error_stops_the_writer() {
    let model = Model { pieces: vec![(0, 1), (1, 39_000)], blocks: 40_000, bad: vec![5000] };
    let device = TracedDevice::new(Arc::new(device(&model)));
    write(&device, &model, 2).unwrap_err();
    let last = device.take().into_iter().map(|record| record.offset + record.len).max().unwrap();
    assert!(last <= 5000 * u64::from(SIZE), "nothing behind the error is written, but {last} was");
}

#[test]
fn a_failed_write_is_returned_before_an_error_behind_it() {
    let model = Model { bad: vec![31_000], ..model() };
    for threads in [1, 2, 8] {
        let device = FaultyDevice::new(Arc::new(device(&model)));
        let block = 21_000 * u64::from(SIZE);
        device.inject(Fault::eio().op(BioOp::Write).range(block..block + 1));
        let error = write(&device, &model, threads).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
    }
}
