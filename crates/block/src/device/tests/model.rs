//! Random requests to every device, compared with a plain vector.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::Mutex;
use proptest::prelude::*;

use crate::device::*;
use crate::ranks::BIO_WAIT;
use crate::{AlignedBuf, Bio, BioData, BioFlags, BioVec, Completion};

pub const SIZE: u64 = 1 << 20;
const SECTORS: u64 = SIZE / 512;

/// One request of the model, in sectors.
#[derive(Clone, Debug)]
pub enum Op {
    Write { at: u64, n: u64, fill: u8, pieces: usize, flags: u32, bio: bool },
    Read { at: u64, len: u64 },
    ReadBio { at: u64, n: u64 },
    Discard { at: u64, n: u64 },
    Zero { at: u64, n: u64, bio: bool },
    Flush { bio: bool },
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = prop_oneof![Just(0u32), Just(4), Just(8), Just(12)];
    let op = prop_oneof![
        4 => (0..SECTORS, 1..200u64, any::<u8>(), 1..5usize, flags, any::<bool>())
            .prop_map(|(at, n, fill, pieces, flags, bio)| Op::Write { at, n, fill, pieces, flags, bio }),
        2 => (0..SIZE, 1..20_000u64).prop_map(|(at, len)| Op::Read { at, len }),
        1 => (0..SECTORS, 1..100u64).prop_map(|(at, n)| Op::ReadBio { at, n }),
        1 => (0..SECTORS, 1..300u64).prop_map(|(at, n)| Op::Discard { at, n }),
        1 => (0..SECTORS, 1..300u64, any::<bool>()).prop_map(|(at, n, bio)| Op::Zero { at, n, bio }),
        1 => any::<bool>().prop_map(|bio| Op::Flush { bio }),
    ];
    prop::collection::vec(op, 1..40)
}

/// Bytes with which a sector differs from its neighbours, and one write from the next.
pub fn content(at: u64, len: u64, fill: u8) -> Vec<u8> {
    let mut rng = Rng::new(at ^ (u64::from(fill) << 40));
    (0..len / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Submits one bio and waits for it.
pub fn submit_one(dev: &dyn BlockDevice, make: impl FnOnce(Box<dyn crate::EndIo>) -> Bio) -> Completion {
    let slot = Arc::new((Mutex::new(&BIO_WAIT, None), extant_base::sync::Condvar::new()));
    let done = slot.clone();
    dev.submit(make(Box::new(move |c: Completion| {
        *done.0.lock() = Some(c);
        done.1.notify_all();
    })));
    let mut got = slot.0.lock();
    while got.is_none() {
        slot.1.wait(&mut got);
    }
    got.take().expect("completed")
}

fn split(bytes: &[u8], pieces: usize) -> Vec<&[u8]> {
    bytes.chunks(bytes.len().div_ceil(pieces).max(1)).collect()
}

/// Runs the requests and compares every read with the model, and at the end the whole device.
#[expect(clippy::too_many_lines, reason = "one arm a kind of request")]
pub fn run(dev: &dyn BlockDevice, requests: &[Op], discards_zero: bool) {
    let mut model = vec![0u8; SIZE as usize];
    let mut expected = IoStats::default();
    for op in requests {
        match *op {
            Op::Write { at, n, fill, pieces, flags, bio } => {
                let n = n.min(SECTORS - at);
                let (offset, data) = (at * 512, content(at, n * 512, fill));
                let flags = BioFlags::from_bits_truncate(flags);
                let needless = if dev.is_flushed() { BioFlags::PREFLUSH } else { BioFlags::empty() };
                let parts = split(&data, pieces);
                if bio {
                    // This is unaligned on purpose: the memory starts seven bytes into its buffer.
                    let vecs = parts.iter().map(|p| {
                        let mut buf = AlignedBuf::zeroed(p.len() + 7);
                        buf[7..].copy_from_slice(p);
                        BioVec { buf: Arc::new(buf), offset: 7, len: p.len() }
                    });
                    let vecs = vecs.collect();
                    let done = submit_one(dev, |end| Bio::write(offset, vecs, flags, end));
                    done.result.expect("written");
                    assert_eq!(done.offset, offset);
                } else {
                    dev.write_at(offset, &parts, flags).expect("written");
                }
                model[offset as usize..][..data.len()].copy_from_slice(&data);
                expected.writes += 1;
                expected.write_bytes += n * 512;
                expected.flushes += u64::from(flags.difference(needless).bits().count_ones());
            }
            Op::Read { at, len } => {
                let len = len.min(SIZE - at) as usize;
                let mut buf = vec![0xEE; len + 1];
                dev.read_at(at, &mut buf[1..], BioFlags::empty()).expect("read");
                assert!(buf[1..] == model[at as usize..][..len], "read of {len} at {at}");
                expected.reads += 1;
                expected.read_bytes += len as u64;
            }
            Op::ReadBio { at, n } => {
                let n = n.min(SECTORS - at);
                let buf = AlignedBuf::zeroed(n as usize * 512);
                let done = submit_one(dev, |end| Bio::read(at * 512, buf, BioFlags::META, end));
                done.result.expect("read");
                let BioData::Read(buf) = done.data else { panic!("a read returns its buffer") };
                assert!(buf[..] == model[at as usize * 512..][..n as usize * 512], "bio read of {n} sectors at {at}");
                expected.reads += 1;
                expected.read_bytes += n * 512;
            }
            Op::Discard { at, n } => {
                let n = n.min(SECTORS - at);
                dev.discard(at * 512, n * 512).expect("discarded");
                if discards_zero {
                    model[at as usize * 512..][..n as usize * 512].fill(0);
                } else {
                    dev.read_at(at * 512, &mut model[at as usize * 512..][..n as usize * 512], BioFlags::empty())
                        .expect("read");
                    expected.reads += 1;
                    expected.read_bytes += n * 512;
                }
                expected.discards += 1;
            }
            Op::Zero { at, n, bio } => {
                let n = n.min(SECTORS - at);
                if bio {
                    submit_one(dev, |end| Bio::write_zeroes(at * 512, n * 512, BioFlags::FUA, end))
                        .result
                        .expect("zeroed");
                    expected.flushes += 1;
                } else {
                    dev.write_zeroes(at * 512, n * 512, BioFlags::empty()).expect("zeroed");
                }
                model[at as usize * 512..][..n as usize * 512].fill(0);
                expected.write_zeroes += 1;
            }
            Op::Flush { bio } => {
                expected.flushes += u64::from(!dev.is_flushed());
                if bio {
                    submit_one(dev, Bio::flush).result.expect("flushed");
                } else {
                    dev.flush().expect("flushed");
                }
            }
        }
    }
    assert_eq!(dev.stats(), expected);
    let mut all = vec![0; SIZE as usize];
    dev.read_at(0, &mut all, BioFlags::empty()).expect("read");
    assert!(all == model, "first difference at {:?}", all.iter().zip(&model).position(|(a, b)| a != b));
}

fn file_device(dir: &std::path::Path, io: IoMode, engine: Engine) -> FileDevice {
    let options = OpenOptions { io, engine, ..OpenOptions::default() };
    FileDevice::create(dir.join("image"), SIZE, options).expect("opened")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn memory(requests in ops()) {
        run(&MemDevice::new(SIZE), &requests, true);
    }

    #[test]
    fn memory_over_another(requests in ops(), seed in any::<u64>()) {
        // A base full of noise is zeroed through the overlay: no byte of the base may be read.
        let base = MemDevice::new(SIZE);
        let mut rng = Rng::new(seed);
        for _ in 0..50 {
            let at = rng.below(SECTORS) * 512;
            base.write_at(at, &[&content(at, 512, 1)], BioFlags::empty()).expect("written");
        }
        let copy = base.snapshot();
        let over = MemDevice::over(Arc::new(base));
        assert_eq!(over.first_difference(&copy).expect("read"), None);
        over.write_zeroes(0, SIZE, BioFlags::empty()).expect("zeroed");
        let over = over.snapshot();
        run(&over, &requests, true);
    }

    #[test]
    fn crash_and_wrappers(requests in ops()) {
        run(&CrashDevice::from_image(&MemDevice::new(SIZE)), &requests, true);
        run(&CrashDevice::new(Arc::new(MemDevice::new(SIZE))).deferring().expect("thread"), &requests, true);
        run(&FaultyDevice::new(Arc::new(MemDevice::new(SIZE))), &requests, true);
        run(&HeldDevice::new(Arc::new(MemDevice::new(SIZE))).expect("thread"), &requests, true);
        run(&TracedDevice::new(Arc::new(MemDevice::new(SIZE))), &requests, true);
        run(&OffsetDevice::new(Arc::new(MemDevice::new(2 * SIZE)), 12800, SIZE).expect("inside"), &requests, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn file(requests in ops()) {
        for io in [IoMode::Direct, IoMode::Buffered] {
            for engine in [Engine::Psync, Engine::IoUring, Engine::Portable] {
                let dir = tempfile::tempdir().expect("a directory");
                run(&file_device(dir.path(), io, engine), &requests, engine != Engine::Portable);
            }
        }
    }

    #[test]
    fn snapshots_do_not_see_later_writes(before in ops(), after in ops()) {
        let dev = MemDevice::new(SIZE);
        run(&dev, &before, true);
        let snapshot = dev.snapshot();
        let mut bytes = vec![0; SIZE as usize];
        snapshot.read_at(0, &mut bytes, BioFlags::empty()).expect("read");
        let plain = MemDevice::from_bytes(&bytes);
        dev.write_zeroes(0, SIZE, BioFlags::empty()).expect("zeroed");
        run(&dev.snapshot(), &after, true);
        assert_eq!(snapshot.first_difference(&plain).expect("read"), None);
    }
}
