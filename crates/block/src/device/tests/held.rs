//! Tests that held requests have no effect, and that released ones complete in the order of their release.

use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::{LockClass, Mutex};
use extant_base::task;

use crate::device::*;
use crate::{AlignedBuf, Bio, BioFlags, BioOp, BioVec, Completion, Error};

static ORDER: LockClass = LockClass::new("test order", 0);
const LONG: Duration = Duration::from_secs(60);
const NONE: BioFlags = BioFlags::empty();

/// Fills the sector `at` with that number, and records the completion.
fn write(dev: &HeldDevice, at: u64, flags: BioFlags, ended: &Arc<Mutex<Vec<(u64, bool)>>>) {
    let vecs = vec![BioVec { buf: Arc::new(AlignedBuf::from_slice(&[at as u8; 512])), offset: 0, len: 512 }];
    let ended = ended.clone();
    let done = move |c: Completion| ended.lock().push((at, c.result.is_ok()));
    dev.submit(Bio::write(at * 512, vecs, flags, Box::new(done)));
}

fn first_bytes(dev: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; 8 * 512];
    dev.read_at(0, &mut all, NONE).expect("read");
    all.iter().step_by(512).copied().collect()
}

#[test]
fn bios_are_held_until_they_are_released() {
    let below = Arc::new(MemDevice::new(8 * 512));
    let dev = HeldDevice::new(below.clone()).expect("thread");
    let ended = Arc::new(Mutex::new(&ORDER, Vec::new()));
    // The second and third data write, and any write to sector 6.
    dev.catch(Catch::hold().writes().data().range(0..6 * 512).after(1).times(2));
    dev.catch(Catch::fail(5).op(BioOp::Write).range(6 * 512..7 * 512).once());
    write(&dev, 5, BioFlags::META, &ended);
    for at in [1, 2, 3, 4] {
        write(&dev, at, NONE, &ended);
    }
    write(&dev, 6, NONE, &ended);
    assert!(dev.wait_held(2, LONG) && dev.wait_data_writes(3, LONG));
    let held = dev.held();
    assert_eq!(held.iter().map(|r| r.offset / 512).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(*ended.lock(), [(5, true), (1, true), (4, true), (6, false)]);
    assert_eq!(first_bytes(&*below), [0, 1, 0, 0, 4, 5, 0, 0]);
    // They are released in reverse order.
    dev.release(held[1].id);
    dev.release(held[0].id);
    assert!(dev.wait_data_writes(5, LONG));
    assert_eq!(ended.lock()[4..], [(3, true), (2, true)]);
    assert_eq!(first_bytes(&*below), [0, 1, 2, 3, 4, 5, 0, 0]);
    assert_eq!((dev.held(), dev.caught()), (Vec::new(), 3));
    // The rules are used up.
    write(&dev, 6, NONE, &ended);
    assert!(dev.wait_data_writes(6, LONG));
    assert_eq!(first_bytes(&*below)[6], 6);
    assert!(!dev.wait_held(1, Duration::from_millis(1)));
}

#[test]
fn a_waiting_call_is_held_with_its_thread() {
    let below = Arc::new(MemDevice::new(8 * 512));
    let dev = Arc::new(HeldDevice::new(below.clone()).expect("thread"));
    dev.catch(Catch::hold().writes());
    let writers: Vec<_> = [1u8, 2]
        .into_iter()
        .map(|n| {
            let dev = dev.clone();
            task::spawn("writer", move || dev.write_at(u64::from(n) * 512, &[&[n; 512]], BioFlags::META))
                .expect("thread")
        })
        .collect();
    assert!(dev.wait_held(2, LONG));
    assert_eq!(first_bytes(&*dev), [0; 8], "reads pass");
    let first = dev.held().into_iter().find(|r| r.offset == 512).expect("held").id;
    dev.fail(first, 5);
    dev.let_go();
    let results: Vec<_> = writers.into_iter().map(|w| w.join().expect("joined")).collect();
    assert!(matches!(&results[0], Err(Error::Io { .. })) && results[1].is_ok(), "{results:?}");
    assert_eq!(first_bytes(&*below), [0, 0, 2, 0, 0, 0, 0, 0]);
}
