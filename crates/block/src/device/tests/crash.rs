//! Tests the states that a power cut may and may not leave.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::Waiter;

use super::model::content;
use crate::device::*;
use crate::{AlignedBuf, Bio, BioFlags, BioOp, BioVec, Completion};

const SIZE: u64 = 64 * 4096;
const NONE: BioFlags = BioFlags::empty();

fn bytes(dev: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; dev.size_bytes() as usize];
    dev.read_at(0, &mut all, NONE).expect("read");
    all
}

/// A random workload: the sectors that every event writes, as (first, count, fill), and the durable state after it.
struct Workload {
    dev: CrashDevice,
    /// The image after each event with everything applied.
    live: Vec<Vec<u8>>,
}

fn workload(seed: u64, steps: usize) -> Workload {
    let dev = CrashDevice::from_image(&MemDevice::new(SIZE));
    let mut rng = Rng::new(seed);
    let mut live = vec![vec![0; SIZE as usize]];
    for step in 0..steps {
        let before = dev.write_log();
        match rng.below(10) {
            0 => dev.flush().expect("flushed"),
            1 => {
                let at = rng.below(60) * 4096;
                dev.write_at(at, &[&content(at, 4096, step as u8)], BioFlags::FUA).expect("written");
            }
            2 => {
                let at = rng.below(60) * 4096;
                dev.write_at(at, &[&content(at, 4096, step as u8)], BioFlags::PREFLUSH).expect("written");
            }
            3 => dev.discard(rng.below(60) * 4096, 8192).expect("discarded"),
            _ => {
                let at = rng.below(100) * 512;
                let len = (1 + rng.below(16)) * 512;
                dev.write_at(at, &[&content(at, len, step as u8)], NONE).expect("written");
            }
        }
        let now = bytes(&dev);
        for k in before..dev.write_log() {
            // The flush of a PREFLUSH comes first and changes nothing.
            let last = k + 1 == dev.write_log();
            live.push(if last { now.clone() } else { live[before].clone() });
        }
    }
    assert_eq!(live.len(), dev.write_log() + 1);
    Workload { dev, live }
}

/// The values that each sector may have after `n` events: the last durable one, or any written later.
fn allowed(w: &Workload, n: usize) -> Vec<Vec<Vec<u8>>> {
    let volatile = w.dev.volatile_at(n);
    let events = w.dev.events();
    let none = w.dev.state_keeping(n, |_| false).expect("state");
    let floor = bytes(&none);
    (0..SIZE as usize / 512)
        .map(|s| {
            let (a, b) = (s * 512, s * 512 + 512);
            let mut values: Vec<Vec<u8>> = Vec::new();
            for &i in &volatile {
                let e = events[i];
                if (e.offset as usize) < b && a < (e.offset + e.len) as usize {
                    values.push(w.live[i + 1][a..b].to_vec());
                }
            }
            values.push(floor[a..b].to_vec());
            values
        })
        .collect()
}

#[test]
fn states_hold_all_durable_data_and_no_foreign_data() {
    for seed in 0..6 {
        let w = workload(seed, 60);
        let mut rng = Rng::new(seed + 100);
        for n in 0..=w.dev.write_log() {
            let in_order = w.dev.state_after(n, &mut rng, CrashMode::InOrder).expect("state");
            assert!(bytes(&in_order) == w.live[n], "seed {seed}, in order after {n}");
            if n % 3 != 0 {
                continue;
            }
            let allowed = allowed(&w, n);
            for mode in [CrashMode::RandomSubset, CrashMode::Torn] {
                for _ in 0..3 {
                    let state = bytes(&w.dev.state_after(n, &mut rng, mode).expect("state"));
                    for (s, values) in allowed.iter().enumerate() {
                        let got = &state[s * 512..][..512];
                        assert!(values.iter().any(|v| v == got), "seed {seed}, {mode:?} after {n}: sector {s}");
                    }
                }
            }
        }
    }
}

#[test]
fn flushed_data_is_always_there_and_unflushed_sometimes() {
    let dev = CrashDevice::from_image(&MemDevice::new(SIZE));
    dev.write_at(0, &[&[1; 4096]], NONE).expect("written");
    dev.flush().expect("flushed");
    dev.write_at(4096, &[&[2; 4096]], NONE).expect("written");
    dev.write_at(8192, &[&[3; 4096]], BioFlags::FUA).expect("written");
    dev.write_at(0, &[&[4; 4096]], NONE).expect("written");
    assert_eq!(dev.volatile_at(dev.write_log()), [2, 4]);
    let mut rng = Rng::new(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let state = bytes(&dev.state_after(5, &mut rng, CrashMode::RandomSubset).expect("state"));
        assert!(state[0] == 1 || state[0] == 4);
        assert!(state[4096] == 0 || state[4096] == 2);
        assert_eq!(state[8192], 3, "FUA is durable although the writes before it are not");
        seen.insert((state[0], state[4096]));
    }
    assert_eq!(seen.len(), 4, "every combination occurs: {seen:?}");
    // During the event, even FUA may be lost.
    let during: std::collections::BTreeSet<u8> =
        (0..50).map(|_| bytes(&dev.state_during(3, &mut rng, CrashMode::RandomSubset).expect("state"))[8192]).collect();
    assert_eq!(during.into_iter().collect::<Vec<_>>(), [0, 3]);
    assert_eq!(bytes(&dev.durable().expect("state"))[0], 1);
    assert_eq!(bytes(&dev.live())[0], 4);
}

#[test]
fn the_same_seed_gives_the_same_state_in_any_order_of_calls() {
    let w = workload(9, 900);
    let n = w.dev.write_log();
    let ask = |k: usize| bytes(&w.dev.state_after(k, &mut Rng::new(k as u64), CrashMode::Torn).expect("state"));
    let up: Vec<_> = (0..n).step_by(37).map(ask).collect();
    let mut down: Vec<_> = (0..n).step_by(37).collect::<Vec<_>>().into_iter().rev().map(ask).collect();
    down.reverse();
    assert!(up == down);
}

#[test]
fn tearing_is_by_sector_and_spares_atomic_ranges() {
    let dev = CrashDevice::from_image(&MemDevice::new(SIZE));
    dev.declare_atomic(1024, 1024);
    dev.write_at(0, &[&[7; 4096]], NONE).expect("written");
    let mut rng = Rng::new(3);
    let mut patterns = std::collections::BTreeSet::new();
    for _ in 0..400 {
        let state = bytes(&dev.state_after(1, &mut rng, CrashMode::Torn).expect("state"));
        let sectors: Vec<u8> = state[..4096].chunks(512).map(|s| s[0]).collect();
        assert!(state[..4096].chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "a sector is never torn");
        assert_eq!(sectors[2], sectors[3], "the atomic range is all or nothing");
        assert!(state[4096..].iter().all(|b| *b == 0));
        patterns.insert(sectors);
    }
    assert!(patterns.len() > 60, "only {} of 128 patterns", patterns.len());
}

#[test]
fn a_flush_covers_only_writes_that_had_completed_before_it() {
    let dev = CrashDevice::from_image(&MemDevice::new(SIZE)).deferring().expect("thread");
    // Blocks the completion thread, so that the write after it stays in flight.
    let gate = Arc::new(extant_base::sync::atomic::AtomicBool::new(false));
    let (entered, g) = (Arc::new(extant_base::sync::atomic::AtomicBool::new(false)), gate.clone());
    let e = entered.clone();
    let relaxed = extant_base::sync::atomic::Ordering::SeqCst;
    let vec = |fill| vec![BioVec { buf: Arc::new(AlignedBuf::from_slice(&[fill; 512])), offset: 0, len: 512 }];
    dev.submit(Bio::read(
        0,
        AlignedBuf::zeroed(512),
        NONE,
        Box::new(move |_: Completion| {
            e.store(true, relaxed);
            while !g.load(relaxed) {
                extant_base::task::yield_now();
            }
        }),
    ));
    while !entered.load(relaxed) {
        extant_base::task::yield_now();
    }
    dev.submit(Bio::write(0, vec(5), NONE, Box::new(|_: Completion| {})));
    dev.flush().expect("flushed");
    assert_eq!(bytes(&dev.durable().expect("state"))[0], 0, "the write had not completed when the flush was called");
    // It is submitted while the write is still in flight; with the gate open, the write might complete first.
    let flushed = Waiter::new();
    let tell = flushed.clone();
    dev.submit(Bio::flush(Box::new(move |c: Completion| tell.set(c.result))));
    gate.store(true, relaxed);
    flushed.wait().expect("flushed");
    assert_eq!(bytes(&dev.durable().expect("state"))[0], 0, "this flush, too, was called before the write completed");
    dev.flush().expect("flushed");
    assert_eq!(bytes(&dev.durable().expect("state"))[0], 5);
    assert_eq!(dev.events().iter().filter(|e| e.op == BioOp::Flush).count(), 3);
}

#[test]
fn thousands_of_states_are_cheap() {
    let base = MemDevice::new(64 << 20);
    for at in (0..64u64 << 20).step_by(1 << 20) {
        base.write_at(at, &[&content(at, 65536, 1)], NONE).expect("written");
    }
    let dev = CrashDevice::new(Arc::new(base));
    let mut rng = Rng::new(5);
    for i in 0..2000u64 {
        let at = rng.below(16_000) * 4096;
        dev.write_at(at, &[&content(at, 4096, i as u8)], NONE).expect("written");
        if i % 40 == 0 {
            dev.flush().expect("flushed");
        }
    }
    let start = std::time::Instant::now();
    let mut resident = 0;
    for n in 0..dev.write_log() {
        resident += dev.state_after(n, &mut rng, CrashMode::Torn).expect("state").resident_bytes();
    }
    assert!(resident > 0);
    // Rebuilding each state from the start would take a hundred times as long, which is more than any busy machine
    // needs.
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}

/// A flush of one disk does not affect the other one, and both lose power at the same event.
#[test]
fn flush_covers_one_of_two_disks() {
    let both = CrashDevice::from_image(&MemDevice::new(2 * SIZE));
    let (first, second) = both.split(SIZE);
    assert_eq!((first.size_bytes(), second.size_bytes()), (SIZE, SIZE));
    first.write_at(0, &[&[1; 512]], NONE).expect("written");
    second.write_at(512, &[&[2; 512]], NONE).expect("written");
    assert!(second.write_at(SIZE, &[&[3; 512]], NONE).is_err(), "behind its end");
    second.flush().expect("flushed");
    assert_eq!(both.volatile_at(both.write_log()), [0], "the first disk's write may be lost");
    let image = bytes(&both.durable().expect("image"));
    assert_eq!((image[0], image[SIZE as usize + 512]), (0, 2));
    second.write_at(0, &[&[4; 512]], BioFlags::PREFLUSH | BioFlags::FUA).expect("written");
    assert_eq!(both.volatile_at(both.write_log()), [0]);
    first.flush().expect("flushed");
    assert!(both.volatile_at(both.write_log()).is_empty());
    let mut read = [0; 512];
    second.read_at(512, &mut read, NONE).expect("read");
    assert_eq!(read, [2; 512]);
}
