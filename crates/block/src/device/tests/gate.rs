//! The requests that wait at a gate, those that pass, and their results.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;

use crate::device::*;
use crate::queue::{Queue, TagConfig};
use crate::{AlignedBuf, Bio, BioFlags, BioVec, Completion, Error};

static ENDED: LockClass = LockClass::new("test ended", 0);
const LONG: Duration = Duration::from_secs(60);
const NONE: BioFlags = BioFlags::empty();

/// Sector, whether it was written, whether its completion ran on the submitter's own thread.
type Ended = Arc<Mutex<Vec<(u64, bool, bool)>>>;

/// Fills the sector `at` with that number, and records the completion.
fn write(dev: &dyn BlockDevice, at: u64, ended: &Ended) {
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
fn changes(dev: &Arc<GateDevice>) -> Vec<task::JoinHandle<crate::Result<()>>> {
    let all: [fn(&GateDevice) -> crate::Result<()>; 4] = [
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
fn changes_wait_until_the_gate_opens() {
    let mem = Arc::new(MemDevice::new(8 * 512));
    mem.write_at(0, &[&[9; 8 * 512]], NONE).expect("written");
    let gate = Arc::new(GateDevice::new(mem.clone()));
    let ended = Ended::new(Mutex::new(&ENDED, Vec::new()));
    write(&*gate, 1, &ended);
    let shut = gate.shut();
    write(&*gate, 2, &ended);
    gate.submit_all(vec![Bio::flush(Box::new(|_| {}))]);
    let threads = changes(&gate);
    // However long they wait, none reaches the device.
    Clock::real().sleep(Duration::from_millis(20));
    assert_eq!(first_bytes(&*gate), [9, 1, 9, 9, 9, 9, 9, 9]);
    assert_eq!((ended.lock().len(), mem.stats().writes, mem.stats().flushes), (1, 2, 0));
    shut.open();
    for t in threads {
        t.join().expect("no panic").expect("carried out");
    }
    assert_eq!(first_bytes(&*gate), [9, 1, 2, 3, 0, 0, 9, 9]);
    assert_eq!(*ended.lock(), [(1, true, true), (2, true, true)]);
    assert_eq!(mem.stats().flushes, 2);
    write(&*gate, 6, &ended);
    assert_eq!(ended.lock().last(), Some(&(6, true, true)));
}

#[test]
fn shut_waits_for_requests_in_flight() {
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(8 * 512))).expect("thread"));
    let gate = Arc::new(GateDevice::new(held.clone()));
    let ended = Ended::new(Mutex::new(&ENDED, Vec::new()));
    held.catch(Catch::hold());
    write(&*gate, 1, &ended);
    let changing = changes(&gate);
    assert!(held.wait_held(1 + changing.len(), LONG));
    let shutting = {
        let gate = gate.clone();
        task::spawn("shut", move || gate.shut().open()).expect("thread")
    };
    while !gate.is_shut() {
        std::thread::yield_now();
    }
    for (left, request) in held.held().iter().enumerate().rev() {
        assert!(!shutting.is_finished(), "{request:?} and {left} others are in flight");
        held.release(request.id);
    }
    shutting.join().expect("no panic");
    for t in changing {
        t.join().expect("no panic").expect("carried out");
    }
    // A request leaves the gate before its completion runs.
    while ended.lock().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(*ended.lock(), [(1, true, false)]);
}

/// The device below completes on a thread of its own, and so do refused requests.
#[test]
fn a_refusing_gate_fails_waiting_and_later_requests() {
    let mem = Arc::new(MemDevice::new(8 * 512));
    let held = Arc::new(HeldDevice::new(mem.clone()).expect("thread"));
    let gate = Arc::new(GateDevice::new(held.clone()));
    // With merged neighbours, as a mount has it.
    let queue = Queue::new(gate.clone(), TagConfig::default());
    let ended = Ended::new(Mutex::new(&ENDED, Vec::new()));
    let shut = gate.shut();
    write(&queue, 1, &ended);
    let threads = changes(&gate);
    drop(shut);
    write(&queue, 2, &ended);
    for t in threads {
        let refused = t.join().expect("no panic");
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    }
    let again = gate.shut();
    assert!(!gate.is_shut(), "it was refused");
    again.open();
    assert!(matches!(gate.write_at(0, &[&[1; 512]], NONE), Err(Error::Busy { .. })));
    while ended.lock().len() < 2 {
        std::thread::yield_now();
    }
    ended.lock().sort_unstable();
    assert_eq!(*ended.lock(), [(1, false, false), (2, false, false)]);
    assert_eq!((first_bytes(&*gate), mem.stats().writes), (vec![0; 8], 0));
}

/// For each way to write, and for a failed write.
#[test]
fn a_gate_remembers_the_writes_that_passed() {
    let held = Arc::new(HeldDevice::new(Arc::new(MemDevice::new(8 * 512))).expect("thread"));
    let gate = Arc::new(GateDevice::new(held.clone()));
    assert!(gate.remembered().is_empty());
    gate.remember(512, &[0; 512]);
    let holds = |expected: &[u8]| {
        // Nothing is in flight any more.
        gate.shut().open();
        assert_eq!(gate.remembered(), expected.iter().map(|byte| vec![*byte; 512]).collect::<Vec<_>>());
    };
    holds(&[0]);
    let ended = Ended::new(Mutex::new(&ENDED, Vec::new()));
    for beside in [0, 2] {
        write(&*gate, beside, &ended);
    }
    holds(&[0]);
    write(&*gate, 1, &ended);
    holds(&[1]);
    gate.write_at(0, &[&[7; 512 + 100], &[7; 412], &[8; 512]], NONE).expect("written");
    holds(&[7]);
    held.catch(Catch::fail(5).writes().times(2));
    for _ in 0..2 {
        gate.write_at(512, &[&[9; 512]], NONE).expect_err("failed");
    }
    holds(&[7, 9]);
    gate.write_at(512, &[&[6; 512]], NONE).expect("written");
    holds(&[6]);
    // A waiting write has not been carried out, and a refused one never will be.
    let shut = gate.shut();
    write(&*gate, 1, &ended);
    assert_eq!(gate.remembered(), [vec![6; 512]]);
    drop(shut);
    assert_eq!(gate.remembered(), [vec![6; 512]]);
}
