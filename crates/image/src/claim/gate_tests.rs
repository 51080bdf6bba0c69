//! The requests that wait, those that pass, and their results.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::device::{BlockDevice, Catch, HeldDevice, MemDevice};
use extant_block::error::Result;
use extant_block::queue::{Queue, TagConfig};
use extant_block::{AlignedBuf, Bio, BioFlags, BioVec, BusyBy, Completion, Error};
use extant_ondisk::superblock::SUPERBLOCK_SIZE;

use super::Transition::*;
use super::{ClaimState, DeviceClaim};
use crate::open::Access;
use crate::spec::ImageSpec;

static ENDED: LockClass = LockClass::new("test ended", 0);
const LONG: Duration = Duration::from_secs(60);
const NONE: BioFlags = BioFlags::empty();

/// Sector, whether it was written, whether its completion ran on the submitter's own thread.
pub(super) type EndedWrites = Arc<Mutex<Vec<(u64, bool, bool)>>>;

pub(super) fn none_ended() -> EndedWrites {
    EndedWrites::new(Mutex::new(&ENDED, Vec::new()))
}

/// A claim in the state `Ours`. The tests make the transitions themselves.
pub(super) fn claim_of(exclusive: Arc<dyn BlockDevice>, inner: Arc<dyn BlockDevice>) -> Arc<DeviceClaim> {
    Arc::new(DeviceClaim::new(ImageSpec::whole("/nowhere"), Access::tool(false), exclusive, inner))
}

/// Fills the sector `at` with that number, and records the completion.
pub(super) fn write(dev: &dyn BlockDevice, at: u64, ended: &EndedWrites) {
    let vecs = vec![BioVec { buf: Arc::new(AlignedBuf::from_slice(&[at as u8; 512])), offset: 0, len: 512 }];
    let (ended, submitter) = (ended.clone(), task::current().id());
    let done = move |c: Completion| {
        ended.lock().push((c.offset / 512, c.result.is_ok(), task::current().id() == submitter));
    };
    dev.submit(Bio::write(at * 512, vecs, NONE, Box::new(done)));
}

fn first_bytes(dev: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; 8 * 512];
    dev.read_at(0, &mut all, NONE).expect("read");
    all.iter().step_by(512).copied().collect()
}

/// Requests of every kind, each on a thread of its own; each result says whether it was carried out.
fn changes(dev: &Arc<DeviceClaim>) -> Vec<task::JoinHandle<Result<()>>> {
    let all: [fn(&DeviceClaim) -> Result<()>; 4] = [
        |dev| dev.write_at(3 * 512, &[&[3; 512]], NONE),
        |dev| dev.write_zeroes(4 * 512, 512, NONE),
        |dev| dev.discard(5 * 512, 512),
        |dev| dev.flush(),
    ];
    all.into_iter()
        .map(|change| {
            let dev = dev.clone();
            task::spawn("change", move || change(&dev)).expect("thread")
        })
        .collect()
}

#[test]
fn changes_wait_until_the_kernel_has_the_device() {
    let mem = Arc::new(MemDevice::new(8 * 512));
    mem.write_at(0, &[&[9; 8 * 512]], NONE).expect("written");
    let claim = claim_of(mem.clone(), mem.clone());
    let ended = none_ended();
    write(&*claim, 1, &ended);
    assert!(claim.go(Lend));
    write(&*claim, 2, &ended);
    claim.submit_all(vec![Bio::flush(Box::new(|_| {}))]);
    let threads = changes(&claim);
    // However long they wait, none reaches the device.
    Clock::real().sleep(Duration::from_millis(20));
    assert_eq!(first_bytes(&*claim), [9, 1, 9, 9, 9, 9, 9, 9]);
    assert_eq!((ended.lock().len(), mem.stats().writes, mem.stats().flushes), (1, 2, 0));
    assert!(claim.go(Mounted));
    for t in threads {
        t.join().expect("no panic").expect("carried out");
    }
    assert_eq!(first_bytes(&*claim), [9, 1, 2, 3, 0, 0, 9, 9]);
    assert_eq!(*ended.lock(), [(1, true, true), (2, true, true)]);
    assert_eq!(mem.stats().flushes, 2);
    write(&*claim, 6, &ended);
    assert_eq!(ended.lock().last(), Some(&(6, true, true)));
}

#[test]
fn a_transition_waits_for_the_changes_in_flight() {
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(8 * 512))).expect("thread"));
    let claim = claim_of(held.clone(), held.clone());
    let ended = none_ended();
    held.catch(Catch::hold());
    write(&*claim, 1, &ended);
    let changing = changes(&claim);
    assert!(held.wait_held(1 + changing.len(), LONG));
    let lending = {
        let claim = claim.clone();
        task::spawn("lend", move || claim.go(Lend)).expect("thread")
    };
    while claim.state() == ClaimState::Ours {
        std::thread::yield_now();
    }
    for (left, request) in held.held().iter().enumerate().rev() {
        assert!(!lending.is_finished(), "{request:?} and {left} others are in flight");
        held.release(request.id);
    }
    assert!(lending.join().expect("no panic") && claim.go(Mounted));
    for t in changing {
        t.join().expect("no panic").expect("carried out");
    }
    // A request leaves the claim before its completion runs.
    while ended.lock().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(*ended.lock(), [(1, true, false)]);
}

/// The device below completes on a thread of its own, and so do refused requests.
#[test]
fn a_foreign_device_fails_waiting_and_later_changes() {
    let mem = Arc::new(MemDevice::new(8 * 512));
    let held = Arc::new(HeldDevice::new(mem.clone()).expect("thread"));
    let claim = claim_of(held.clone(), held.clone());
    // With merged neighbours, as a mount has it.
    let queue = Queue::new(claim.clone(), TagConfig::default());
    let ended = none_ended();
    assert!(claim.go(Lend));
    write(&queue, 1, &ended);
    let threads = changes(&claim);
    assert!(claim.go(GiveUp));
    write(&queue, 2, &ended);
    for t in threads {
        let refused = t.join().expect("no panic");
        assert!(matches!(refused, Err(Error::Busy { by: BusyBy::Unclaimed, .. })), "{refused:?}");
    }
    assert!(matches!(claim.write_at(0, &[&[1; 512]], NONE), Err(Error::Busy { by: BusyBy::Unclaimed, .. })));
    while ended.lock().len() < 2 {
        std::thread::yield_now();
    }
    ended.lock().sort_unstable();
    assert_eq!(*ended.lock(), [(1, false, false), (2, false, false)]);
    assert_eq!((first_bytes(&*claim), mem.stats().writes), (vec![0; 8], 0));
}

/// For each way to write, and for a failed write.
#[test]
fn a_claim_knows_the_superblocks_that_the_device_may_have() {
    const AT: u64 = SUPERBLOCK_SIZE as u64;
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(8 * 512))).expect("thread"));
    let claim = claim_of(held.clone(), held.clone());
    let filled = |byte| Box::new([byte; SUPERBLOCK_SIZE]);
    let may_have = |expected: &[u8]| {
        assert_eq!(claim.gate.superblocks(), expected.iter().map(|byte| filled(*byte)).collect::<Vec<_>>());
    };
    claim.gate.close(Some(filled(0)));
    may_have(&[0]);
    let ended = none_ended();
    for beside in [1, 2, 3, 4] {
        write(&*claim, beside, &ended);
    }
    while ended.lock().len() < 4 {
        std::thread::yield_now();
    }
    may_have(&[0]);
    claim.write_at(0, &[&[7; 1024 + 100], &[7; 924], &[8; 512]], NONE).expect("written");
    may_have(&[7]);
    held.catch(Catch::fail(5).writes().times(2));
    for _ in 0..2 {
        claim.write_at(AT, &[&[9; SUPERBLOCK_SIZE]], NONE).expect_err("failed");
    }
    may_have(&[7, 9]);
    claim.write_at(AT, &[&[6; SUPERBLOCK_SIZE]], NONE).expect("written");
    may_have(&[6]);
    let submit = |byte| {
        let buf = Arc::new(AlignedBuf::from_slice(&[byte; SUPERBLOCK_SIZE]));
        let vecs = vec![BioVec { buf, offset: 0, len: SUPERBLOCK_SIZE }];
        let ended = ended.clone();
        let done = move |c: Completion| ended.lock().push((0, c.result.is_ok(), true));
        claim.submit(Bio::write(AT, vecs, NONE, Box::new(done)));
    };
    submit(5);
    // The transition waits until nothing is in flight.
    assert!(claim.go(Lend));
    may_have(&[5]);
    // A waiting write has not been carried out, and a refused one never will be.
    submit(4);
    may_have(&[5]);
    assert!(claim.go(GiveUp));
    may_have(&[5]);
}
