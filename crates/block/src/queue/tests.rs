//! Tests of merging, plugging, and the requests that reach the device.

use std::sync::Arc;
use std::time::Duration;

use extant_base::rng::Rng;
use extant_base::task;
use proptest::prelude::*;

use super::*;
use crate::device::{
    Catch, Engine, Fault, FaultyDevice, FileDevice, HeldDevice, IoMode, MemDevice, OpenOptions, TraceRecord,
    TracedDevice,
};
use crate::{AlignedBuf, BioData, BioVec, Error};

const NONE: BioFlags = BioFlags::empty();
const SIZE: u64 = 4 << 20;

fn stack(depth: u32) -> (Arc<MemDevice>, Arc<TracedDevice>, Queue) {
    let mem = Arc::new(MemDevice::new(SIZE));
    let traced = Arc::new(TracedDevice::new(mem.clone()));
    let queue = Queue::new(traced.clone(), TagConfig { depth, ..TagConfig::default() });
    (mem, traced, queue)
}

fn write(at: u64, len: u64, fill: u8, flags: BioFlags, wait: &BioWait) -> Bio {
    let buf = Arc::new(AlignedBuf::from_slice(&vec![fill; len as usize]));
    let half = len as usize / 1024 * 512;
    let vecs = [(0, half), (half, len as usize - half)]
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|&(offset, len)| BioVec { buf: buf.clone(), offset, len })
        .collect();
    Bio::write(at, vecs, flags, wait.end_io())
}

#[test]
fn a_plug_merges_neighbours_in_any_order() {
    let (mem, traced, queue) = stack(4);
    let wait = BioWait::new();
    {
        let mut plug = Plug::new(&queue);
        for i in [3u64, 1, 2, 0, 9] {
            plug.submit(write(i * 4096, 4096, i as u8 + 1, BioFlags::META, &wait));
        }
        plug.submit(write(4 * 4096, 4096, 99, NONE, &wait)); // other flags
        assert_eq!(traced.records(), []);
    }
    let record = |offset, len, flags| TraceRecord { op: BioOp::Write, offset, len, flags };
    let wanted = [record(0, 16384, BioFlags::META), record(16384, 4096, NONE), record(36864, 4096, BioFlags::META)];
    assert_eq!(traced.take(), wanted);
    let done = wait.wait();
    let offsets: Vec<_> = done.iter().map(|c| c.offset / 4096).collect();
    assert_eq!(offsets, [3, 1, 2, 0, 9, 4], "each completes as itself");
    for c in &done {
        let BioData::Write(vecs) = &c.data else { panic!("a write returns its memory") };
        assert_eq!(vecs.iter().map(|v| v.len).sum::<usize>(), 4096);
        let mut now = vec![0; 4096];
        mem.read_at(c.offset, &mut now, NONE).expect("read");
        assert_eq!(now[0], vecs[0].bytes()[0]);
        assert!(now.iter().all(|b| *b == now[0]));
    }
    assert_eq!(queue.queue_stats().merged, 3);
    assert_eq!((queue.stats().writes, queue.stats().write_bytes), (3, 6 * 4096));
}

/// The merged request of a waiting thread takes no tag. If it fails, its parts are sent again.
#[test]
fn a_merged_request_of_a_waiting_thread_takes_no_tag() {
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(SIZE))).expect("thread"));
    let queue = Arc::new(Queue::new(held.clone(), TagConfig { depth: 1, ..TagConfig::default() }));
    held.catch(Catch::hold().range(1 << 20..SIZE));
    let wait = BioWait::new();
    queue.submit(write(1 << 20, 4096, 1, NONE, &wait)); // has the only tag
    held.catch(Catch::fail(5).writes().once());
    let own = BioWait::new();
    let mut plug = Plug::new(&*queue);
    (0..4).for_each(|i| plug.submit(write(i * 4096, 4096, 1, NONE, &own)));
    plug.unplug_and_wait();
    assert_eq!(held.caught(), 2, "the merged request was carried out although no tag was free");
    held.let_go();
    assert!(own.wait().iter().all(|c| c.result.is_ok()), "sent again one by one once a tag was free");
    assert_eq!(wait.wait().len(), 1);
    assert_eq!(queue.stats().writes, 1 + 1 + 4);
}

#[test]
fn merging_stops_at_the_largest_transfer() {
    let (_, traced, queue) = stack(16);
    let wait = BioWait::new();
    queue.submit_all((0..48u64).map(|i| write(i * 65536, 65536, 1, NONE, &wait)).collect());
    let lens: Vec<_> = traced.take().iter().map(|r| r.len).collect();
    assert_eq!(lens, [1 << 20, 1 << 20, 1 << 20]);
    assert_eq!(wait.wait().len(), 48);
}

#[test]
fn requests_that_flush_are_neither_delayed_nor_merged() {
    let (_, traced, queue) = stack(4);
    let wait = BioWait::new();
    let mut plug = Plug::new(&queue);
    plug.submit(write(0, 4096, 1, NONE, &wait));
    plug.submit(write(4096, 4096, 1, BioFlags::PREFLUSH | BioFlags::FUA, &wait));
    plug.submit(write(8192, 4096, 1, BioFlags::FUA, &wait));
    plug.submit(write(12288, 4096, 1, NONE, &wait));
    plug.submit(Bio::flush(wait.end_io()));
    let ops: Vec<_> = traced.take().iter().map(|r| (r.op, r.offset)).collect();
    let w = BioOp::Write;
    assert_eq!(ops, [(w, 0), (w, 4096), (w, 8192), (w, 12288), (BioOp::Flush, 0)]);
    drop(plug);
    assert_eq!(wait.wait().len(), 5);
    assert_eq!(queue.stats().flushes, 2 + 1 + 1);
}

#[test]
fn the_first_error_is_reported_and_every_bio_completes() {
    let faulty = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(SIZE))));
    let queue = Queue::new(faulty.clone(), TagConfig::default());
    faulty.inject(Fault::eio().op(BioOp::Write).range(8192..8193));
    let own = BioWait::new();
    let bios = [0u64, 8192, 4096, 1 << 20].map(|at| write(at, 4096, 1, NONE, &own)).into();
    let e = submit_and_wait(&queue, bios).expect_err("one fails");
    assert!(matches!(e, Error::Io { op: BioOp::Write, .. }), "{e}");
    let ok: Vec<_> = own.wait().iter().map(|c| c.result.is_ok()).collect();
    assert_eq!(ok, [true, false, true, true], "only the failed part fails, although three were merged");
    assert_eq!(queue.queue_stats().merged, 2);
    assert_eq!(queue.stats().writes, 2 + 3, "each part of the failed request was sent again");
    let bad = vec![write(SIZE, 512, 1, NONE, &own), write(0, 512, 1, NONE, &own)];
    assert!(matches!(submit_and_wait(&queue, bad), Err(Error::OutOfRange { .. })));
    submit_and_wait(&queue, Vec::new()).expect("nothing to wait for");
    // No tag was lost.
    let all: Vec<_> = (0..128).map(|_| TagSet::try_get(&queue.path.tags).expect("free")).collect();
    assert_eq!(all.len(), 128);
}

#[test]
fn a_flush_without_an_effect_is_not_sent() {
    let faulty = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(SIZE))));
    let queue = Queue::new(faulty.clone(), TagConfig::default());
    let flushes = || queue.stats().flushes;
    let put = |flags| queue.write_at(4096, &[&[1; 4096]], flags);
    assert!(!queue.is_flushed(), "an earlier user may have written and not flushed");
    queue.flush().expect("flush");
    queue.flush().expect("flush");
    assert_eq!((flushes(), queue.is_flushed()), (1, true));
    let wait = BioWait::new();
    let ways: [&dyn Fn(); 5] = [
        &|| put(NONE).expect("write"),
        &|| queue.discard(0, 4096).expect("discard"),
        &|| queue.write_zeroes(0, 4096, NONE).expect("zeroes"),
        &|| queue.submit(write(0, 4096, 1, NONE, &wait)),
        &|| queue.submit_all(vec![write(0, 4096, 1, NONE, &wait), write(4096, 4096, 1, NONE, &wait)]),
    ];
    for (i, way) in ways.iter().enumerate() {
        way();
        assert!(!queue.is_flushed(), "{i}");
        queue.submit(Bio::flush(wait.end_io()));
        assert!(queue.is_flushed(), "{i}");
        queue.submit(Bio::flush(wait.end_io()));
        assert_eq!(flushes(), i as u64 + 2);
    }
    assert!(wait.wait().iter().all(|done| done.result.is_ok()));
    // A write with FUA needs no flush; it makes earlier writes durable only with PREFLUSH.
    put(BioFlags::FUA).expect("write");
    assert!(queue.is_flushed());
    put(NONE).expect("write");
    put(BioFlags::FUA).expect("write");
    assert!(!queue.is_flushed());
    put(BioFlags::FUA | BioFlags::PREFLUSH).expect("write");
    assert!(queue.is_flushed());
    put(BioFlags::PREFLUSH).expect("write");
    assert!(!queue.is_flushed(), "the write itself is not flushed");
    // A failed write may have changed the device, and a failed flush makes nothing durable.
    queue.flush().expect("flush");
    faulty.inject(Fault::eio().op(BioOp::Write));
    put(BioFlags::FUA).expect_err("fails");
    assert!(!queue.is_flushed());
    faulty.clear();
    faulty.inject(Fault::eio().op(BioOp::Flush));
    queue.flush().expect_err("fails");
    assert!(!queue.is_flushed());
    put(BioFlags::PREFLUSH | BioFlags::FUA).expect_err("fails");
    assert!(!queue.is_flushed());
}

/// A flush does not make a write durable that ends while the flush is in flight.
#[test]
fn a_flush_covers_writes_that_had_ended_when_it_began() {
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(SIZE))).expect("thread"));
    let queue = Arc::new(Queue::new(held.clone(), TagConfig::default()));
    queue.write_at(0, &[&[1; 4096]], NONE).expect("write");
    held.catch(Catch::hold().op(BioOp::Flush).once());
    let flusher = {
        let queue = queue.clone();
        task::spawn("flusher", move || queue.flush()).expect("thread")
    };
    assert!(held.wait_held(1, Duration::from_secs(60)));
    queue.write_at(0, &[&[2; 4096]], NONE).expect("write");
    held.release_all();
    flusher.join().expect("joined").expect("flush");
    assert!(!queue.is_flushed());
    queue.flush().expect("flush");
    assert!(queue.is_flushed());
}

#[test]
fn a_dropped_bio_does_not_block_its_waiter() {
    let wait = BioWait::new();
    drop(wait.end_io());
    assert!(wait.wait().is_empty());
}

/// More submitters than tags, in batches larger than the set, with a device that completes on a separate thread.
#[test]
fn batches_larger_than_the_tag_set_complete() {
    let crash = crate::device::CrashDevice::from_image(&MemDevice::new(SIZE)).deferring().expect("thread");
    let queue = Arc::new(Queue::new(Arc::new(crash), TagConfig { depth: 3, ..TagConfig::default() }));
    let threads: Vec<_> = (0..6u64)
        .map(|t| {
            let queue = queue.clone();
            task::spawn("batches", move || {
                for round in 0..20u64 {
                    let wait = BioWait::new();
                    // It writes every second block, so that nothing is merged.
                    let at = |i: u64| ((t * 20 + round) % 50 * 20 + i * 2) * 4096;
                    queue.submit_all((0..10).map(|i| write(at(i), 4096, t as u8, NONE, &wait)).collect());
                    assert!(wait.wait().iter().all(|c| c.result.is_ok()));
                    queue.flush().expect("flushed");
                }
            })
            .expect("thread")
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    assert_eq!(queue.stats().writes, 6 * 20 * 10);
    // A flush is not sent if another has just made everything durable.
    assert!((20..=120).contains(&queue.stats().flushes), "{:?}", queue.stats());
    assert!(queue.queue_stats().tags.waits > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_device_behind_a_queue_follows_the_model(requests in crate::device::tests::model::ops(), depth in 1..5u32) {
        let mem = Arc::new(MemDevice::new(crate::device::tests::model::SIZE));
        crate::device::tests::model::run(&Queue::new(mem, TagConfig { depth, ..TagConfig::default() }), &requests, true);
    }

    #[test]
    fn batches_write_their_data(seed in any::<u64>(), n in 1..200usize) {
        let (mem, _, queue) = stack(8);
        let mut rng = Rng::new(seed);
        // Distinct blocks in random order.
        let mut blocks: Vec<u64> = (0..1024).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, rng.below(i as u64 + 1) as usize);
        }
        blocks.truncate(n);
        if rng.one_in(2) {
            blocks.iter_mut().for_each(|b| *b %= 256);
            blocks.sort_unstable();
            blocks.dedup();
        }
        let wait = BioWait::new();
        let bios = blocks.iter().map(|&b| write(b * 4096, 4096, (b % 251) as u8 + 1, NONE, &wait)).collect();
        queue.submit_all(bios);
        prop_assert_eq!(wait.wait().len(), blocks.len());
        let mut all = vec![0; SIZE as usize];
        mem.read_at(0, &mut all, NONE).expect("read");
        let mut wanted = vec![0; SIZE as usize];
        for &b in &blocks {
            wanted[b as usize * 4096..][..4096].fill((b % 251) as u8 + 1);
        }
        prop_assert!(all == wanted);
        prop_assert_eq!(queue.stats().writes + queue.queue_stats().merged, blocks.len() as u64);
    }
}

/// Batches and flushes from many threads through a ring with few tags, with every policy.
#[test]
fn a_ring_behind_few_tags_completes_every_request() {
    let dir = tempfile::tempdir().expect("a directory");
    for policy in TagPolicyKind::ALL {
        let options = OpenOptions { io: IoMode::Direct, engine: Engine::IoUring, ..OpenOptions::default() };
        let file = FileDevice::create(dir.path().join("image"), SIZE, options).expect("made");
        let bios_wait = policy == TagPolicyKind::HandOff && file.completes_later();
        let queue = Arc::new(Queue::new(Arc::new(file), TagConfig { depth: 2, policy, ..TagConfig::default() }));
        let threads = [0u64, 1, 2, 3].map(|t| {
            let queue = queue.clone();
            task::spawn("ring", move || {
                for round in 0..10u64 {
                    let wait = BioWait::new();
                    // It writes every second block, so that nothing is merged.
                    let at = |i: u64| (t * 200 + round * 20 + i * 2) * 4096;
                    let mut bios: Vec<Bio> = (0..10).map(|i| write(at(i), 4096, t as u8 + 1, NONE, &wait)).collect();
                    bios.push(Bio::flush(wait.end_io()));
                    queue.submit_all(bios);
                    assert!(wait.wait().iter().all(|c| c.result.is_ok()));
                    let mut now = [0; 4096];
                    queue.read_at(at(9), &mut now, NONE).expect("read");
                    assert_eq!(now, [t as u8 + 1; 4096]);
                }
            })
            .expect("thread")
        });
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        let stats = queue.queue_stats().tags;
        assert!(stats.waits > 0, "{policy:?}");
        if bios_wait {
            // Bios wait, and waiting calls take no tag: no thread is woken.
            assert_eq!((stats.wakes, stats.wakes_in_vain, stats.overtakings), (0, 0, 0));
        }
    }
}
