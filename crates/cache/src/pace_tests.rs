//! Tests the measured rate of devices with known rates, the limit on bulk data in flight, and how writers share a
//! device.

use super::*;

use extant_base::sync::Mutex;
use extant_base::sync::atomic::AtomicU64;
use extant_block::device::MemDevice;
use extant_block::{AlignedBuf, BioFlags, BioVec, Wrapper};

static HELD: LockClass = LockClass::new("test held", 0);

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// A device with a fixed rate, first come, first served. A request completes when the test says so.
struct Fifo {
    rate: u64,
    now: u64,
    free: u64,
    queue: VecDeque<(u64, u64)>,
}

impl Fifo {
    fn new(rate: u64) -> Fifo {
        Fifo { rate, now: 0, free: 0, queue: VecDeque::new() }
    }

    fn submit(&mut self, meter: &mut Meter, bytes: u64) {
        meter.submitted(self.now, bytes);
        self.free = self.free.max(self.now) + time_ns(bytes, self.rate);
        self.queue.push_back((self.free, bytes));
    }

    fn complete(&mut self, meter: &mut Meter) {
        let (at, bytes) = self.queue.pop_front().expect("a request is in flight");
        self.now = at;
        meter.completed(at, bytes);
    }
}

/// Sends as much as the meter admits for some time. Returns the longest time that bulk data waited.
fn stream(fifo: &mut Fifo, meter: &mut Meter, unit: u64, units: u64) -> u64 {
    let mut longest = 0;
    for _ in 0..units {
        while meter.admits(unit) {
            fifo.submit(meter, unit);
        }
        longest = longest.max(fifo.free - fifo.now);
        fifo.complete(meter);
    }
    longest
}

#[test]
fn the_measured_rate_of_a_device_bounds_the_bytes_in_flight() {
    for rate in [5_000_000, 25_000_000, 100_000_000, 3_000_000_000] {
        let (mut fifo, mut meter) = (Fifo::new(rate), Meter::default());
        assert!(meter.admits(FIRST_WINDOW), "one request is always admitted");
        stream(&mut fifo, &mut meter, 256 << 10, 1000);
        let found = meter.rate().expect("measured");
        assert!(found.abs_diff(rate) <= rate / 100, "{found} of {rate}");
        let longest = stream(&mut fifo, &mut meter, 256 << 10, 100);
        assert!(longest <= WINDOW_NS.max(time_ns(256 << 10, rate)) + MS, "{longest} ns at {rate}");
    }
}

/// One request at a time gives a low rate, but a device that can process many at the same time soon gets many.
#[test]
fn a_fast_device_is_not_held_back_by_a_slow_start() {
    // A request takes two milliseconds, regardless of how many there are.
    let (mut meter, mut now, mut under_way) = (Meter::default(), 0, VecDeque::new());
    let mut depth = 0;
    for _ in 0..10_000 {
        while under_way.len() < 128 && meter.admits(MIB) {
            meter.submitted(now, MIB);
            under_way.push_back(now + 2 * MS);
        }
        depth = under_way.len();
        now = under_way.pop_front().expect("at least one");
        meter.completed(now, MIB);
    }
    assert_eq!(depth, 128, "rate {:?}", meter.rate());
}

#[test]
fn the_window_shrinks_within_a_second_when_a_device_slows_down() {
    let (mut fifo, mut meter) = (Fifo::new(500_000_000), Meter::default());
    stream(&mut fifo, &mut meter, 256 << 10, 1000);
    fifo.rate = 20_000_000;
    let begin = fifo.now;
    while meter.rate().is_none_or(|rate| rate > 30_000_000) {
        stream(&mut fifo, &mut meter, 256 << 10, 1);
        assert!(fifo.now - begin < 2_000 * MS, "{:?} after {} ms", meter.rate(), (fifo.now - begin) / MS);
    }
}

#[test]
fn occasional_small_writes_give_no_rate() {
    let mut meter = Meter::default();
    for n in 0..50 {
        meter.submitted(n * 1000 * MS, 4096);
        meter.completed(n * 1000 * MS + 10 * MS, 4096);
    }
    assert_eq!(meter.rate(), None);
}

const LEVELS: Levels = Levels { begin: 24 * MIB, limit: 32 * MIB };

/// Writers that never stop, on a device of 25 MB/s: the amount of dirty bytes becomes stable between the two levels,
/// each writer gets its share, and no pause exceeds the limit.
#[test]
fn heavy_writers_share_the_rate_and_level_off_below_the_limit() {
    let rate = 25_000_000;
    for writers in 1..=3u64 {
        let mut ready = vec![0u64; writers as usize];
        let mut wrote = vec![0u64; writers as usize];
        let (mut dirty, mut now, mut highest) = (28 * MIB as i64, 0u64, 0);
        let mut written = 0;
        while now < 20_000 * MS {
            let (who, at) = ready.iter().copied().enumerate().min_by_key(|(_, at)| *at).expect("some");
            now = at;
            let gone = bytes_in(now, rate) - written;
            written += gone;
            dirty += MIB as i64 - gone as i64;
            highest = highest.max(dirty);
            let pause = pause_ns(LEVELS, dirty as u64, MIB, rate, false);
            assert!(pause > 0, "dirty {dirty}: the device has nothing to do");
            assert!(pause <= time_ns(MIB, rate) + EXTRA_NS_MAX);
            wrote[who] += MIB;
            ready[who] = now + pause;
        }
        assert!(highest <= LEVELS.limit as i64, "{writers}: {highest}");
        let (least, most) = (wrote.iter().min().expect("some"), wrote.iter().max().expect("some"));
        assert!(most - least <= 2 * MIB, "{wrote:?}");
        let all: u64 = wrote.iter().sum();
        assert!(all >= bytes_in(now, rate) * 97 / 100, "{writers}: {all}");
    }
}

#[test]
fn a_light_writer_becomes_heavy_by_dirtying_and_light_again_with_time() {
    let (rate, note) = (25_000_000, Lightness::default());
    let mut now = 0;
    assert!((0..10_000).all(|_| {
        now += MS;
        note.is_light(now, 4096, rate)
    }));
    assert!(!note.is_light(now, MIB, rate));
    assert!(!note.is_light(now, 4096, rate));
    now += 3 * time_ns(LIGHT_START, rate / LIGHT_SHARE);
    assert!(note.is_light(now, 4096, rate));
}

/// Stores the bios submitted to it.
struct Keeper {
    below: MemDevice,
    kept: Mutex<Vec<Bio>>,
    bytes: AtomicU64,
}

impl Wrapper for Keeper {
    fn inner(&self) -> &dyn BlockDevice {
        &self.below
    }

    fn completes_later(&self) -> bool {
        true
    }
    fn submit(&self, bio: Bio) {
        self.bytes.fetch_add(bio.len, Ordering::Relaxed);
        self.kept.lock().push(bio);
    }
}

#[test]
fn units_beyond_the_window_wait_without_a_thread_and_leave_in_order() {
    let clock = Clock::virtual_at(0);
    let below = MemDevice::new(64 * MIB);
    let kept = Mutex::new(&HELD, Vec::new());
    let keeper = Arc::new(Keeper { below, kept, bytes: AtomicU64::new(0) });
    let window = Arc::new(BulkWindow::new(clock.clone(), keeper.clone()));
    let buf = Arc::new(AlignedBuf::zeroed(MIB as usize));
    let bio = |at: u64| {
        let window = window.clone();
        let vec = BioVec { buf: buf.clone(), offset: 0, len: MIB as usize };
        let done = move |_: extant_block::Completion| window.completed(MIB);
        Bio::write(at * MIB, vec![vec], BioFlags::empty(), Box::new(done))
    };
    let sent: Vec<Sent> = (0..20).map(|at| window.send(vec![bio(at)])).collect();
    assert_eq!(keeper.kept.lock().len(), 1, "exactly one while the rate is unknown");
    // A device of 100 MiB per second.
    let (mut served, mut next) = (0, 0);
    while served < 20 {
        clock.advance(std::time::Duration::from_millis(10));
        let bio = keeper.kept.lock().remove(0);
        assert_eq!(bio.offset, next * MIB, "in order");
        next += 1;
        bio.complete(Ok(()));
        served += 1;
        let under_way = keeper.kept.lock().len() as u64;
        assert!(under_way <= 5, "{under_way} MiB in flight");
        assert!(under_way >= 4.min(20 - served), "{under_way} MiB in flight, the device could take more");
    }
    window.wait_for(sent[19]);
    assert_eq!(window.rate(), 100 * MIB);
}
