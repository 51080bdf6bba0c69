//! Tests of faults, records, windows, and the reasons for which requests are rejected.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::FallocateFlags;

use super::model::submit_one;
use crate::device::*;
use crate::{AlignedBuf, Bio, BioData, BioFlags, BioOp, BioVec, Error};

const NONE: BioFlags = BioFlags::empty();

fn vecs(bytes: &[u8]) -> Vec<BioVec> {
    vec![BioVec { buf: Arc::new(AlignedBuf::from_slice(bytes)), offset: 0, len: bytes.len() }]
}

#[test]
fn faults_strike_the_requests_that_they_match() {
    let mem = Arc::new(MemDevice::new(1 << 20));
    let dev = FaultyDevice::new(mem.clone());
    dev.inject(Fault::eio().op(BioOp::Write).range(4096..8192).after(1).once());
    dev.write_at(4096, &[&[1; 512]], NONE).expect("the first passes");
    dev.write_at(0, &[&[1; 512]], NONE).expect("outside the range");
    let mut buf = [0; 512];
    dev.read_at(4096, &mut buf, NONE).expect("a read");
    let e = dev.write_at(7680, &[&[2; 512]], NONE).expect_err("the second fails");
    assert!(matches!(e, Error::Io { op: BioOp::Write, offset: 7680, len: 512, .. }), "{e}");
    dev.write_at(7680, &[&[3; 512]], NONE).expect("only once");
    assert_eq!((dev.injected(), mem.stats().writes), (1, 3));

    dev.fail_all_flushes();
    dev.flush().expect_err("flush");
    dev.write_at(0, &[&[9; 512]], BioFlags::FUA).expect_err("FUA flushes");
    assert!(submit_one(&dev, Bio::flush).result.is_err());
    dev.write_at(0, &[&[4; 512]], NONE).expect("a plain write does not");
    dev.clear();
    dev.flush().expect("no rule left");

    dev.inject(Fault::new(FaultAction::FailAfter(libc::ENOSPC)).op(BioOp::Write).times(2));
    dev.write_at(0, &[&[5; 512]], NONE).expect_err("reported as failed");
    let done = submit_one(&dev, |end| Bio::write(512, vecs(&[6; 512]), NONE, end));
    assert!(done.result.is_err() && matches!(done.data, BioData::Write(_)));
    dev.read_at(0, &mut buf, NONE).expect("read");
    assert_eq!(buf[0], 5, "the device has the data");

    let clock = extant_base::clock::Clock::virtual_at(0);
    let dev = dev.with_clock(clock.clone());
    dev.inject(Fault::new(FaultAction::Delay(std::time::Duration::from_millis(3))).op(BioOp::Read));
    dev.read_at(0, &mut buf, NONE).expect("late");
    assert_eq!(clock.now_ns(), 3_000_000);
    dev.fail_everything();
    dev.write_at(0, &[&[5; 512]], NONE).expect_err("gone");
}

#[test]
fn records_and_counts_are_exact() {
    let dev = TracedDevice::new(Arc::new(MemDevice::new(1 << 20)));
    dev.write_at(512, &[&[1; 512], &[2; 1024]], BioFlags::META | BioFlags::FUA).expect("written");
    dev.submit_all(vec![
        Bio::read(0, AlignedBuf::zeroed(4096), BioFlags::RAHEAD, Box::new(|_| {})),
        Bio::flush(Box::new(|_| {})),
    ]);
    let wanted = [
        TraceRecord { op: BioOp::Write, offset: 512, len: 1536, flags: BioFlags::META | BioFlags::FUA },
        TraceRecord { op: BioOp::Read, offset: 0, len: 4096, flags: BioFlags::RAHEAD },
        TraceRecord { op: BioOp::Flush, offset: 0, len: 0, flags: NONE },
    ];
    assert_eq!(dev.records(), wanted);
    assert_eq!((dev.count(BioOp::Flush), wanted[0].end()), (1, 2048));
    let stats = IoStats { reads: 1, read_bytes: 4096, writes: 1, write_bytes: 1536, flushes: 2, ..IoStats::default() };
    assert_eq!(dev.stats(), stats);
    assert_eq!(dev.take().len(), 3);
    assert_eq!(dev.records(), []);
}

#[test]
fn windows_shift_and_confine() {
    let mem = Arc::new(MemDevice::new(1 << 20));
    let dev = OffsetDevice::new(mem.clone(), 4096, 8192).expect("inside");
    assert!(matches!(OffsetDevice::new(mem.clone(), 1 << 20, 512), Err(Error::OutOfRange { .. })));
    assert!(matches!(OffsetDevice::new(mem.clone(), 100, 512), Err(Error::BadRequest { .. })));
    let done = submit_one(&dev, |end| Bio::write(512, vecs(&[7; 512]), NONE, end));
    assert_eq!(done.offset, 512);
    done.result.expect("written");
    let mut buf = [0; 512];
    mem.read_at(4608, &mut buf, NONE).expect("read");
    assert_eq!(buf, [7; 512]);
    assert!(matches!(dev.read_at(8000, &mut buf, NONE), Err(Error::OutOfRange { size: 8192, .. })));
    let done = submit_one(&dev, |end| Bio::read(u64::MAX - 511, AlignedBuf::zeroed(512), NONE, end));
    assert!(matches!(done.result, Err(Error::OutOfRange { .. })));

    let ro = ReadOnlyDevice::new(mem);
    assert!(ro.read_only());
    assert!(matches!(ro.write_at(0, &[&[0; 512]], NONE), Err(Error::ReadOnly { op: BioOp::Write, .. })));
    assert!(submit_one(&ro, |end| Bio::discard(0, 512, end)).result.is_err());
    ro.flush().expect("nothing to do");
    ro.read_at(4608, &mut buf, NONE).expect("read");
}

#[test]
fn malformed_requests_are_refused() {
    let dev = MemDevice::new(1 << 20);
    assert!(matches!(dev.write_at(100, &[&[0; 512]], NONE), Err(Error::BadRequest { .. })));
    assert!(matches!(dev.write_at(0, &[&[0; 100]], NONE), Err(Error::BadRequest { .. })));
    assert!(matches!(dev.discard(0, u64::MAX), Err(Error::OutOfRange { .. })));
    let done = submit_one(&dev, |end| Bio { len: 1024, ..Bio::write(0, vecs(&[7; 512]), NONE, end) });
    assert!(matches!(done.result, Err(Error::BadRequest { .. })));
    let bad = vec![BioVec { buf: Arc::new(AlignedBuf::zeroed(512)), offset: 512, len: 512 }];
    let done = submit_one(&dev, |end| Bio::write(0, bad, NONE, end));
    assert!(matches!(done.result, Err(Error::BadRequest { .. })));
    assert_eq!(dev.stats(), IoStats::default(), "none of them counts");
    let ro = dev.into_read_only();
    assert!(matches!(ro.write_zeroes(0, 512, NONE), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_sparse_terabyte_uses_memory_only_for_written_pages() {
    let dev = MemDevice::new(1 << 40);
    for at in [0, 1 << 30, (1 << 40) - 4096] {
        dev.write_at(at, &[&[1; 4096]], NONE).expect("written");
    }
    assert_eq!(dev.resident_bytes(), 3 * 4096);
    dev.discard(512, (1 << 40) - 512).expect("discarded");
    assert_eq!(dev.resident_bytes(), 4096);
    let mut buf = [9; 1024];
    dev.read_at(0, &mut buf, NONE).expect("read");
    assert!(buf[..512].iter().all(|b| *b == 1) && buf[512..].iter().all(|b| *b == 0));
}

#[test]
fn images_survive_load_and_save() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let dev = MemDevice::new((3 << 20) + 512);
    for at in [0u64, 70_144, 3 << 20] {
        dev.write_at(at, &[&[3; 512]], NONE).expect("written");
    }
    dev.save(&a).expect("saved");
    let again = MemDevice::load(&a).expect("loaded");
    assert_eq!(again.first_difference(&dev).expect("read"), None);
    let over = MemDevice::over(Arc::new(again));
    over.write_at(512, &[&[4; 512]], NONE).expect("written");
    over.save(&b).expect("saved");
    assert_eq!(over.first_difference(&dev).expect("read"), Some(512));
    assert_eq!(MemDevice::load(&b).expect("loaded").first_difference(&over).expect("read"), None);

    // This is over another state: pages that are zero now, a page in a hole, the odd end. A second save writes nothing
    // at all.
    over.discard(0, 131_072).expect("discarded");
    for at in [1 << 20, 3 << 20] {
        over.write_at(at, &[&[5; 512]], NONE).expect("written");
    }
    over.save(&b).expect("saved");
    assert_eq!(MemDevice::load(&b).expect("loaded").first_difference(&over).expect("read"), None);
    let before = std::fs::metadata(&b).expect("there").modified().expect("known");
    over.save(&b).expect("saved");
    assert_eq!(std::fs::metadata(&b).expect("there").modified().expect("known"), before);
    // This is over a known state: only the pages that are not shared with it are written.
    let file = MemDevice::load(&b).expect("loaded");
    let next = file.snapshot();
    file.save(&b).expect("saved");
    next.write_at(2 << 20, &[&[6; 512]], NONE).expect("written");
    next.discard(3 << 20, 512).expect("discarded");
    next.save_over(&b, Some(&file)).expect("saved");
    assert_eq!(MemDevice::load(&b).expect("loaded").first_difference(&next).expect("read"), None);
    // Another program changes the file: a page, and a hole in place of data. The rest is shared.
    let raw = File::options().write(true).open(&b).expect("open");
    raw.write_all_at(&[7; 100], 1 << 20).expect("written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&raw, punch, 2 << 20, 4096).expect("punched");
    let changed = MemDevice::load_over(&b, &next).expect("loaded");
    assert_eq!(changed.first_difference(&MemDevice::load(&b).expect("loaded")).expect("read"), None);
    assert_eq!(changed.first_difference(&next).expect("read"), Some(1 << 20));
    // A file of another size.
    let small = MemDevice::new(4096);
    small.save(&b).expect("saved");
    assert_eq!(std::fs::read(&b).expect("read"), [0; 4096]);
    let loaded = MemDevice::load_over(&b, &next).expect("loaded");
    assert_eq!(loaded.first_difference(&small).expect("read"), None);
}
