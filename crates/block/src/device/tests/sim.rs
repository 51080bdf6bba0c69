//! Tests of modelled devices: service times depend only on the requests, and dropped data cannot be read as metadata.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::rng::Rng;

use super::model::submit_one;
use crate::device::*;
use crate::{AlignedBuf, Bio, BioFlags, BioOp, BioVec};

const NONE: BioFlags = BioFlags::empty();
const META: BioFlags = BioFlags::META;
const SIZE: u64 = 4 << 40;
const MS: f64 = 1e6;

fn timer(name: &str) -> Timer {
    Timer::new(DeviceModel::named(name).expect("known"), SIZE)
}

/// Nanoseconds that one more read takes.
fn read(timer: &mut Timer, offset: u64, len: u64, arrival: Arrival) -> f64 {
    let before = timer.usage().read_ns;
    timer.read(offset, len, arrival);
    (timer.usage().read_ns - before) as f64
}

fn places(n: u64) -> Vec<u64> {
    let mut rng = Rng::new(44);
    (0..n).map(|_| rng.below(SIZE / 4096) * 4096).collect()
}

fn read_all(name: &str, places: &[u64], arrival: Arrival) -> Usage {
    let mut timer = timer(name);
    places.iter().for_each(|at| timer.read(*at, 4096, arrival));
    timer.usage()
}

#[test]
fn equal_requests_take_equal_time_and_sorted_ones_less_on_a_disk() {
    let random = places(2000);
    let mut sorted = random.clone();
    sorted.sort_unstable();
    for name in DeviceModel::names() {
        let taken = read_all(name, &random, Arrival::Waits);
        assert_eq!(read_all(name, &random, Arrival::Waits), taken, "{name}");
        let in_order = read_all(name, &sorted, Arrival::Waits);
        assert_eq!((in_order.requests(), in_order.read_bytes), (2000, 2000 * 4096), "{name}");
        match name {
            "hdd-2007" | "hdd" => assert!(in_order.seconds() < 0.8 * taken.seconds(), "{name}"),
            _ => assert_eq!((in_order.read_ns, in_order.seeks), (taken.read_ns, 0), "{name}: nothing moves"),
        }
    }
}

#[test]
fn a_stream_costs_its_transfer_and_a_short_skip_the_bytes_between() {
    let mut disk = timer("hdd-2007");
    let first = read(&mut disk, 1 << 20, 64 << 10, Arrival::Submitted);
    let at = (1 << 20) + (64 << 10);
    let next = read(&mut disk, at, 64 << 10, Arrival::Submitted);
    let transfer = (64 << 10) as f64 / 55.2e6 * 1e9;
    assert!((next - transfer).abs() < 2.0 && first > next, "{next} ns, {transfer} ns");
    let skipped = read(&mut disk, at + (128 << 10), 64 << 10, Arrival::Submitted);
    assert!((skipped - 2.0 * transfer).abs() < 2.0, "{skipped} ns");
    assert_eq!(disk.usage().seeks, 1, "to the first alone");
    // It is backwards, and further than the head reads ahead.
    read(&mut disk, at, 4096, Arrival::Submitted);
    read(&mut disk, at + (2 << 20), 4096, Arrival::Submitted);
    assert_eq!(disk.usage().seeks, 3);
}

#[test]
fn a_sector_returns_once_a_revolution() {
    let mut disk = timer("hdd");
    read(&mut disk, 1 << 30, 4096, Arrival::Submitted);
    for _ in 0..3 {
        let again = read(&mut disk, 1 << 30, 4096, Arrival::Submitted);
        assert!((again - 60e9 / 7200.0).abs() < 3.0, "{again} ns");
    }
}

#[test]
fn inner_zones_are_slower() {
    let mut disk = timer("hdd");
    let mut rate = |at: u64| {
        read(&mut disk, at, 4096, Arrival::Submitted);
        (1 << 20) as f64 / read(&mut disk, at + 4096, 1 << 20, Arrival::Submitted) * 1e3
    };
    let (outer, inner) = (rate(0), rate(SIZE - (2 << 20)));
    assert!((outer - 255.0).abs() < 0.1 && (inner - 122.0).abs() < 0.1, "{outer} and {inner} MB/s");
}

#[test]
fn a_caller_that_waits_loses_a_little_at_the_first_windows_of_a_stream() {
    let (mut waits, mut sends) = (timer("hdd-2007"), timer("hdd-2007"));
    let mut lost = |at: u64| {
        let (a, b) =
            (read(&mut waits, at, 32 << 10, Arrival::Waits), read(&mut sends, at, 32 << 10, Arrival::Submitted));
        ((a - b) / 4.3 / MS).round() as u64
    };
    let lost: Vec<u64> = (0..32).map(|i| lost(i * (32 << 10))).collect();
    let windows: Vec<u64> = (0..32).map(|i| u64::from([4, 8, 12].contains(&i))).collect();
    assert_eq!(lost, windows, "at 128, 256 and 384 KiB, and then no more");
    // The same in one call.
    let (mut waits, mut sends) = (timer("hdd-2007"), timer("hdd-2007"));
    let (a, b) =
        (read(&mut waits, 0, 512 << 10, Arrival::ReadAhead), read(&mut sends, 0, 512 << 10, Arrival::Submitted));
    assert!((a - b - 3.0 * 4.3 * MS).abs() < 2.0, "{a} and {b} ns");
}

#[test]
fn a_batch_is_served_in_one_sweep_from_where_the_head_is() {
    let requests = |places: &[u64]| places.iter().map(|at| (BioOp::Read, *at, 4096)).collect::<Vec<_>>();
    let random = places(128);
    let mut turned = random.clone();
    turned.reverse();
    let batch = |places: &[u64]| {
        let mut disk = timer("hdd-2007");
        read(&mut disk, SIZE / 2, 4096, Arrival::Waits);
        disk.batch(requests(places));
        disk.usage()
    };
    assert_eq!(batch(&random), batch(&turned), "whatever the order of the batch");
    // The sweep: upwards from the middle, then upwards from the beginning.
    let mut sweep = random.clone();
    sweep.sort_unstable_by_key(|at| (*at < SIZE / 2, *at));
    let mut disk = timer("hdd-2007");
    read(&mut disk, SIZE / 2, 4096, Arrival::Waits);
    sweep.iter().for_each(|at| disk.read(*at, 4096, Arrival::Submitted));
    assert_eq!(batch(&random), disk.usage());
    // A batch longer than the queue is sorted only in parts of the queue's length.
    let many = places(4096);
    let (mut queued, mut unbounded) = (timer("hdd-2007"), timer("hdd-2007"));
    queued.batch(requests(&many));
    let mut sorted = many.clone();
    sorted.sort_unstable();
    sorted.iter().for_each(|at| unbounded.read(*at, 4096, Arrival::Submitted));
    let one_by_one = read_all("hdd-2007", &many, Arrival::Submitted);
    let (queued, unbounded) = (queued.usage().seconds(), unbounded.usage().seconds());
    assert!(unbounded < queued && queued < one_by_one.seconds() / 1.5, "{unbounded} {queued}");
}

#[test]
fn requests_to_flash_and_over_a_network_overlap_as_far_as_the_queue_is_deep() {
    for (name, latency, rate) in [("flash", 92e3, 0.54), ("net-5ms", 5e6, 0.118)] {
        let transfer = 4096.0 / rate;
        let of = |n: u64| read_all(name, &places(n), Arrival::Submitted).read_ns as f64;
        let near =
            |is: f64, wanted: f64| assert!((is / wanted - 1.0).abs() < 0.001, "{name}: {is} ns, not {wanted} ns");
        near(of(1), latency + transfer);
        near(of(32), latency + 32.0 * transfer);
        // A request beyond the queue depth begins when the first has ended.
        near(of(33), f64::max(2.0 * latency + 2.0 * transfer, latency + 33.0 * transfer));
        let waiting = read_all(name, &places(32), Arrival::Waits).read_ns as f64;
        near(waiting, 32.0 * (latency + transfer));
        // A sequential reader that uses the page cache waits at each window.
        let mut stream = timer(name);
        (0..32).for_each(|i| stream.read(i * 32768, 32768, Arrival::ReadAhead));
        near(stream.usage().read_ns as f64, 8.0 * latency + f64::from(1 << 20) / rate);
    }
}

#[test]
fn a_flush_costs_once_after_writes() {
    for name in DeviceModel::names() {
        let mut timer = timer(name);
        timer.flush();
        assert_eq!(timer.usage(), Usage::default(), "{name}: nothing to do");
        timer.write(0, 4096, Arrival::Submitted);
        timer.flush();
        timer.flush();
        let usage = timer.usage();
        assert_eq!((usage.writes, usage.write_bytes, usage.flushes, usage.reads), (1, 4096, 1, 0), "{name}");
        assert!(usage.flush_ns > 0 && usage.read_ns == 0, "{name}");
        assert_eq!(usage.seconds(), (usage.write_ns + usage.flush_ns) as f64 / 1e9);
    }
}

#[test]
fn a_timed_device_times_each_request_and_reports_no_holes() {
    let mem = Arc::new(MemDevice::new(SIZE));
    let model = DeviceModel::named("hdd-2007").expect("known");
    let dev = TimedDevice::new(mem.clone(), model);
    let mut timer = timer("hdd-2007");
    let mut buf = [0; 4096];
    dev.write_at(8192, &[&[1; 4096], &[2; 512]], BioFlags::PREFLUSH | BioFlags::FUA).expect("written");
    timer.write(8192, 4608, Arrival::Waits);
    timer.flush();
    dev.read_at(8192, &mut buf, NONE).expect("read");
    timer.read(8192, 4096, Arrival::Waits);
    assert_eq!((buf[0], dev.usage()), (1, timer.usage()));
    let done = submit_one(&dev, |end| Bio::read(1 << 20, AlignedBuf::zeroed(4096), NONE, end));
    assert!(done.result.is_ok());
    timer.read(1 << 20, 4096, Arrival::Submitted);
    let ended = Arc::new(AtomicU64::new(0));
    let write = |at: u64| {
        let ended = ended.clone();
        let vecs = vec![BioVec { buf: Arc::new(AlignedBuf::from_slice(&[7; 512])), offset: 0, len: 512 }];
        Bio::write(at, vecs, NONE, Box::new(move |_| ended.store(ended.load(Ordering::Relaxed) + 1, Ordering::Relaxed)))
    };
    dev.submit_all(vec![write(2 << 30), write(1 << 30)]);
    timer.batch([(BioOp::Write, 2 << 30, 512), (BioOp::Write, 1 << 30, 512)]);
    dev.flush().expect("flushed");
    timer.flush();
    dev.discard(0, 4096).expect("discarded");
    assert_eq!((dev.usage(), ended.load(Ordering::Relaxed)), (timer.usage(), 2));
    assert_eq!((dev.next_data(3 << 30).expect("asked"), mem.stats().writes), (Some(3 << 30), 3));
}

#[test]
fn a_million_requests_are_counted() {
    let mut rng = Rng::new(1);
    let mut disk = timer("hdd-2007");
    for _ in 0..1_000_000 {
        disk.read(rng.below(SIZE / 512) * 512, 512, Arrival::Waits);
    }
    let usage = disk.usage();
    assert_eq!((usage.reads, usage.read_bytes), (1_000_000, 512_000_000));
    assert!(usage.seconds() > 10_000.0 && usage.seeks > 999_000, "{usage:?}");
}

/// A small image is at the beginning of the disk, so its seeks are not those over the whole disk.
#[test]
fn an_image_is_the_beginning_of_its_disk() {
    let model = DeviceModel::named("hdd-2007").expect("known");
    let image = 16u64 << 30;
    let seconds = |size: u64| {
        let (mut timer, mut rng) = (Timer::new(model.clone(), size), Rng::new(7));
        (0..1000).for_each(|_| timer.read(rng.below(image / 4096) * 4096, 4096, Arrival::Waits));
        timer.usage().seconds()
    };
    assert_eq!(seconds(image), seconds(model.capacity()));
    assert!(seconds(8 * model.capacity()) < seconds(image), "a larger disk has more on each cylinder");
}

#[test]
fn metadata_cannot_be_read_where_data_was_written() {
    let mem = Arc::new(MemDevice::new(1 << 20));
    let dev = MetaOnlyDevice::new(mem.clone());
    dev.write_at(0, &[&[1; 8192]], META).expect("kept");
    dev.write_at(4096, &[&[2; 8192]], NONE).expect("dropped");
    let mut buf = [9; 12288];
    let e = dev.read_at(0, &mut buf, META).expect_err("half of it is data").to_string();
    assert!(e.contains("bytes 4096 to 12288 were written as data"), "{e}");
    // A readahead of metadata may include data. It reads zeroes there, not the old bytes.
    for flags in [NONE, META | BioFlags::RAHEAD] {
        dev.read_at(0, &mut buf, flags).expect("read");
        assert!(buf[..4096].iter().all(|b| *b == 1) && buf[4096..].iter().all(|b| *b == 0), "{flags:?}");
    }
    dev.read_at(0, &mut buf[..4096], META).expect("metadata alone");
    assert_eq!(dev.dropped(), DroppedWrites { requests: 1, bytes: 8192 });
    // Bytes that are written as metadata, zeroed or discarded are no longer data.
    dev.write_at(4096, &[&[3; 4096]], META).expect("kept");
    dev.read_at(4096, &mut buf[..4096], META).expect("kept");
    assert_eq!(buf[0], 3);
    dev.read_at(8192, &mut buf[..4096], META).expect_err("still data");
    dev.write_zeroes(8192, 2048, META).expect("zeroed");
    dev.discard(10240, 2048).expect("discarded");
    dev.read_at(0, &mut buf, META).expect("no data is left");
    assert_eq!((dev.ranges(), mem.stats().writes), (0, 2));
    // Zeros without META are data, too.
    dev.write_zeroes(0, 512, NONE).expect("dropped");
    dev.read_at(0, &mut buf, META).expect_err("data");
    dev.write_at(0, &[&[1; 512]], META).expect("kept");
    // A write without data is a flush, and a dropped write keeps its flush flags.
    let flushes = mem.stats().flushes;
    dev.write_at(0, &[], BioFlags::PREFLUSH).expect("flushed");
    dev.write_at(0, &[&[1; 512]], BioFlags::FUA).expect("dropped");
    assert_eq!((mem.stats().flushes, dev.dropped().requests), (flushes + 2, 3));
    dev.write_at(1 << 20, &[&[1; 512]], NONE).expect_err("past the end");
    dev.read_at((1 << 20) - 512, &mut buf[..1024], NONE).expect_err("past the end");
}

/// Compares with a map of sectors.
#[test]
fn ranges_of_data_are_exact_and_touching_ones_are_one() {
    const SECTORS: u64 = 200;
    let dev = MetaOnlyDevice::new(Arc::new(MemDevice::new(SECTORS * 512)));
    let mut is_data = [false; SECTORS as usize];
    let mut rng = Rng::new(7);
    let bytes = vec![1; SECTORS as usize * 512];
    for _ in 0..20_000 {
        let first = rng.below(SECTORS);
        let n = 1 + rng.below((SECTORS - first).min(40));
        let (at, len, range) = (first * 512, n * 512, first as usize..(first + n) as usize);
        match rng.below(5) {
            0 | 1 => {
                dev.write_at(at, &[&bytes[..len as usize]], NONE).expect("dropped");
                is_data[range].fill(true);
            }
            2 => {
                dev.write_at(at, &[&bytes[..len as usize]], META).expect("kept");
                is_data[range].fill(false);
            }
            3 => {
                dev.discard(at, len).expect("discarded");
                is_data[range].fill(false);
            }
            _ => {
                let mut buf = vec![0; len as usize];
                let refused = dev.read_at(at, &mut buf, META).is_err();
                assert_eq!(refused, is_data[range].iter().any(|d| *d), "{first} {n}");
            }
        }
        let runs = (0..SECTORS as usize).filter(|i| is_data[*i] && (*i == 0 || !is_data[i - 1])).count();
        assert_eq!(dev.ranges(), runs);
    }
}
