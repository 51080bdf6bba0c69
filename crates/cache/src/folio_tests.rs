//! Compares the page cache with a flat model.

use std::sync::Weak;

use super::*;
use crate::LossLedger;
use crate::reclaim::{Class, FrameOwner};
use extant_base::rng::Rng;

/// The size of the files, which these tests do not check.
static SIZE: AtomicU64 = AtomicU64::new(0);

/// The ledger of a file that has lost nothing.
fn lossless() -> LossLedger<()> {
    LossLedger::default()
}

fn space(bits: u32, keep: bool) -> AddressSpace {
    in_budget(bits, keep, &Budget::new(1 << 30))
}

fn in_budget(bits: u32, keep: bool, budget: &Arc<Budget>) -> AddressSpace {
    let owner = budget.reclaim().register(Class::Data, Weak::<NoOwner>::new());
    AddressSpace::new(bits, keep, budget.clone(), Home { owner, object: 12 })
}

/// An owner that frees nothing: these tests free folios themselves.
struct NoOwner;

impl FrameOwner for NoOwner {
    fn try_free(&self, _: Key, _: FrameId) -> Tried {
        Tried::InUse
    }
}

/// Copies the bytes of `run` to their place on the device, whose blocks have `bs` bytes.
fn write_run(device: &mut [u8], run: &DirtyRun, bs: u64) {
    let mut at = (run.start * bs) as usize;
    for v in &run.vecs {
        device[at..at + v.len].copy_from_slice(v.bytes());
        at += v.len;
    }
    assert_eq!(at as u64, (run.start + u64::from(run.blocks)) * bs);
}

/// Compares random writes, reads, discards and writebacks with a flat model, for each block size.
#[test]
fn an_address_space_behaves_like_a_flat_file_with_a_dirty_map() {
    for (bits, keep, seed) in [(10, false, 1), (12, false, 2), (10, true, 3), (12, true, 4), (11, true, 5)] {
        let (sp, lost) = (space(bits, keep), lossless());
        let bs = 1u64 << bits;
        let size = 512 * 1024u64;
        let mut device = vec![0u8; size as usize];
        let mut model = vec![0u8; size as usize];
        let mut rng = Rng::new(seed);
        for _ in 0..4000 {
            match rng.below(10) {
                0..=4 => {
                    let pos = rng.below(size - 1);
                    let limit = if rng.one_in(8) { 200_000 } else { 9_000 };
                    let len = (1 + rng.below(limit)).min(size - pos) as usize;
                    let byte = rng.next_u32() as u8;
                    let data = vec![byte; len];
                    let mut fills = Vec::new();
                    for block in [pos >> bits, (pos + len as u64 - 1) >> bits] {
                        if !sp.block_uptodate(block) && !fills.iter().any(|(b, _)| *b == block) {
                            let at = (block * bs) as usize;
                            fills.push((block, AlignedBuf::from_slice(&device[at..at + bs as usize])));
                        }
                    }
                    sp.write(pos, &data, &fills, &SIZE, lost.position()).expect("filled");
                    model[pos as usize..pos as usize + len].fill(byte);
                }
                5 | 6 => {
                    let from = rng.below(size >> bits);
                    for run in sp.take_dirty(from, u64::MAX, 1 + rng.below(40), &SIZE).runs {
                        let how = if rng.one_in(4) { RunCompletion::Redirty } else { RunCompletion::Written };
                        if how == RunCompletion::Written {
                            write_run(&mut device, &run, bs);
                        }
                        sp.finish(run.start, run.blocks, how);
                    }
                }
                7 => {
                    let from = rng.below(size >> bits);
                    let to = (from + rng.below(30)).min(size >> bits);
                    sp.discard(from, to);
                    device[(from * bs) as usize..(to * bs) as usize].fill(0);
                    model[(from * bs) as usize..(to * bs) as usize].fill(0);
                }
                8 => {
                    let folios: Vec<_> = sp.inner.read().folios.iter().map(|(page, f)| (*page, f.frame)).collect();
                    for (page, frame) in folios {
                        let clean = sp.budget.reclaim().with(|core| core.state(frame)) == State::CLEAN;
                        if clean && rng.one_in(2) {
                            assert_eq!(sp.try_free(page, frame), Tried::Freed, "reclaim sees the folio as clean");
                        }
                    }
                }
                _ => {
                    let pos = rng.below(size - 1);
                    let len = (1 + rng.below(150_000)).min(size - pos) as usize;
                    let mut buf = vec![0xEEu8; len];
                    for (a, b) in sp.read_cached(pos, &mut buf) {
                        buf[a..b].copy_from_slice(&device[pos as usize + a..pos as usize + b]);
                    }
                    assert!(buf == model[pos as usize..pos as usize + len], "bits {bits} at {pos}+{len}");
                }
            }
        }
        for run in sp.take_dirty(0, u64::MAX, u64::MAX, &SIZE).runs {
            write_run(&mut device, &run, bs);
            sp.finish(run.start, run.blocks, RunCompletion::Written);
        }
        assert!(device == model);
        assert_eq!(sp.dirty_bytes(), 0);
        if !keep {
            assert!(sp.is_empty(), "written data leaves the cache");
        }
    }
}

#[test]
fn a_writer_during_writeback_does_not_change_what_is_written() {
    let (sp, lost) = (space(12, false), lossless());
    sp.write(0, &[1; 4096], &[], &SIZE, lost.position()).expect("filled");
    let runs = sp.take_dirty(0, u64::MAX, u64::MAX, &SIZE).runs;
    sp.write(0, &[2; 4096], &[], &SIZE, lost.position()).expect("filled");
    assert!(runs[0].vecs[0].bytes().iter().all(|b| *b == 1));
    let again = sp.take_dirty(0, u64::MAX, u64::MAX, &SIZE);
    assert!(again.runs.is_empty() && again.blocked, "its first write is still in flight");
    sp.finish(0, 1, RunCompletion::Written);
    assert_eq!(sp.dirty_bytes(), 4096, "the second write is still dirty");
    let mut buf = [0; 4096];
    assert!(sp.read_cached(0, &mut buf).is_empty());
    assert_eq!(buf[0], 2);
}

#[test]
fn a_dropped_address_space_gives_all_its_memory_back_to_the_budget() {
    let budget = Budget::new(1 << 20);
    let (sp, lost) = (in_budget(12, true, &budget), lossless());
    sp.write(0, &[1; 303_104], &[], &SIZE, lost.position()).expect("filled");
    assert!(budget.used() >= 300_000);
    drop(sp);
    assert_eq!(budget.used(), 0);
}

/// A block that was written to again during its first write keeps the newer data. The caller gets the other blocks.
#[test]
fn a_lost_write_drops_blocks_without_newer_data_and_refuses_writers_that_read_the_map_before() {
    let (sp, lost) = (space(12, false), LossLedger::default());
    let before = lost.position();
    sp.write(0, &[1; 5 * 4096], &[], &SIZE, before).expect("filled");
    let runs = sp.take_dirty(0, u64::MAX, u64::MAX, &SIZE).runs;
    assert_eq!((runs[0].start, runs[0].blocks), (0, 5));
    sp.write(4096, &[2; 4096], &[], &SIZE, before).expect("filled");
    sp.write(3 * 4096, &[2; 4096], &[], &SIZE, before).expect("filled");
    let mut gone = Vec::new();
    let mut meanwhile = before;
    sp.lose(0, 5, &lost, "cause", |start, blocks| {
        gone.push((start, blocks));
        meanwhile = lost.position();
    });
    assert_eq!(gone, [(0, 1), (2, 1), (4, 1)]);
    assert_eq!(sp.dirty_bytes(), 2 * 4096);
    let uptodate: Vec<bool> = (0..5).map(|block| sp.block_uptodate(block)).collect();
    assert_eq!(uptodate, [false, true, false, true, false]);
    let loss = lost.lost_since(before).expect_err("recorded");
    assert_eq!((loss.inode, loss.blocks, loss.cause), (InodeNr(12), Some(0..5), "cause"));
    // A writer that read the map before the loss reads it again.
    assert_eq!(sp.write(0, &[3; 4096], &[], &SIZE, before), Err(WriteRefused::Lost));
    assert_eq!(sp.write(0, &[3; 4096], &[], &SIZE, meanwhile), Err(WriteRefused::Lost));
    assert_eq!(sp.write(0, &[3; 4096], &[], &SIZE, lost.position()), Ok(4096));
}

#[test]
fn next_uptodate_finds_the_next_block_in_memory() {
    let (sp, lost) = (space(10, true), lossless());
    sp.write(5 * 1024, &[1; 1024], &[], &SIZE, lost.position()).expect("filled");
    sp.insert_clean(70 * 1024, &[2; 2048], 2048);
    let found: Vec<u64> = [(0, 200), (0, 5), (5, 200), (6, 200), (71, 200), (72, 200), (72, 72)]
        .into_iter()
        .map(|(from, to)| sp.next_uptodate(from, to))
        .collect();
    assert_eq!(found, [5, 5, 5, 70, 71, 200, 72]);
}

/// A file that is read once, from its beginning to its end, was used only once: the reader found data that had been
/// read ahead for it.
#[test]
fn readahead_is_no_use() {
    let sp = space(12, true);
    sp.insert_clean(0, &[1; 128 << 10], 64 << 10);
    let uses = || -> Vec<u8> {
        let inner = sp.inner.read();
        inner.folios.values().map(|folio| sp.budget.reclaim().touches().count(folio.frame)).collect()
    };
    let folios = uses().len();
    assert_eq!(uses(), vec![0; folios]);
    let mut buf = [0; 4096];
    for at in (64 << 10..128 << 10).step_by(buf.len()) {
        assert!(sp.read_cached(at, &mut buf).is_empty());
    }
    assert_eq!(uses(), vec![0; folios]);
    assert!(sp.read_cached(0, &mut buf).is_empty() && sp.read_cached(64 << 10, &mut buf).is_empty());
    assert_eq!(uses().iter().sum::<u8>(), 2);
}
