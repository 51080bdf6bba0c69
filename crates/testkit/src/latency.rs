//! Measures the effect of a large background write on all other clients exactly: the whole engine runs with its threads
//! on a device of a fixed rate, in virtual time.
//!
//! One client streams pieces of 1 MiB. Beside it others write 4 KiB, write 4 KiB and fsync, read cached data, read
//! uncached data, look up and stat, and create files. The clock of the run ([`extant_base::sim`]) times each operation,
//! so a latency is a number and not a distribution over machines. The same seed gives the same figures.
//!
//! Main types: [`Setting`] (cache, rate, seed), [`Figures`] (the results), [`Operation`] (one client's work).
//!
//! The device stores metadata and drops data. Otherwise a run would need as much memory as it writes, although no
//! client checks the content.
//!
//! # Locking
//! None of its own.

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::task::{self, JoinHandle};
use extant_block::device::{MemDevice, RateDevice};
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, Wrapper, submit_inline};
use extant_fs::{Budget, Cred, Filesystem, InodeRef, MountOptions, Mounted, NewNode, WriteFlags};

use crate::oracle::{MkfsOptions, make_image};

/// The size of the image, with space for everything that a run writes.
const IMAGE_BYTES: u64 = 4 << 30;
/// The length of the streaming client's writes.
pub const PIECE_BYTES: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// The size of a file that is larger than any cache.
const COLD_BYTES: u64 = 512 << 20;
/// When the measurement of the share begins. Before, the cache absorbs the writes that the device cannot take.
const SETTLED: Duration = Duration::from_secs(2);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub cache_bytes: u64,
    /// The rate of the device, bytes per second.
    pub rate: u64,
    pub seed: u64,
    /// The rate of a second device, bytes per second. Its mount shares the budget, and another client streams to it.
    pub beside: Option<u64>,
    /// How often the file of [`Operation::ReadHot`] was read before the load. After a single read, a cache cannot know
    /// that a file is hot.
    pub hot_readings: u64,
    /// The virtual time under load.
    pub time: Duration,
}

/// An operation that a client repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appends [`PIECE_BYTES`], without a pause.
    Stream,
    /// Writes one block every millisecond, to a different place each time.
    Write,
    /// Writes one block and syncs the file, every 10 ms.
    WriteAndSync,
    /// Every millisecond, reads a block of a file that was read before and takes half of the cache.
    ReadHot,
    /// Every 10 ms, reads a block of a file that is larger than the cache.
    ReadCold,
    /// Looks up a name and its attributes, every millisecond.
    Stat,
    /// Creates a file, every 10 ms.
    Create,
}

impl Operation {
    pub const ALL: [Operation; 7] = [
        Operation::Stream,
        Operation::Write,
        Operation::WriteAndSync,
        Operation::ReadHot,
        Operation::ReadCold,
        Operation::Stat,
        Operation::Create,
    ];

    fn pause(self) -> Duration {
        match self {
            Operation::Stream => Duration::ZERO,
            Operation::Write | Operation::ReadHot | Operation::Stat => Duration::from_millis(1),
            Operation::WriteAndSync | Operation::ReadCold | Operation::Create => Duration::from_millis(10),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Operation::Stream => "stream 1 MiB",
            Operation::Write => "write 4 KiB",
            Operation::WriteAndSync => "write, fsync",
            Operation::ReadHot => "read hot",
            Operation::ReadCold => "read cold",
            Operation::Stat => "lookup, stat",
            Operation::Create => "create",
        }
    }
}

/// The latencies of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    pub operation: Operation,
    /// Latencies in virtual nanoseconds, sorted.
    pub ns: Vec<u64>,
    /// The number of operations that read from the device.
    pub reached: u64,
}

impl Latencies {
    pub fn max_ns(&self) -> u64 {
        self.ns.last().copied().unwrap_or(0)
    }

    /// The value that `permille` of 1000 operations do not exceed.
    pub fn quantile_ns(&self, permille: usize) -> u64 {
        let at = (self.ns.len() * permille).div_ceil(1000).max(1) - 1;
        self.ns.get(at).copied().unwrap_or(0)
    }
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// One entry for each of [`Operation::ALL`].
    pub clients: Vec<Latencies>,
    /// The maximum number of bytes that waited for the device at once.
    pub waiting_bytes_max: u64,
    /// The maximum use of the memory budget, bytes.
    pub used_max: u64,
    pub limit: u64,
    /// The streaming client's share, per mille, of the rate that the others left.
    pub stream_permille: u64,
    /// The fraction of the time during which the device had work, per mille.
    pub busy_permille: u64,
    /// The fingerprint of the schedule.
    pub fingerprint: u64,
}

impl Figures {
    pub fn of(&self, operation: Operation) -> &Latencies {
        &self.clients[Operation::ALL.iter().position(|o| *o == operation).expect("all are listed")]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (stream, busy) = (self.stream_permille as f64 / 10.0, self.busy_permille as f64 / 10.0);
        write!(f, "waiting at most {:.1} MiB, memory {:.1} of ", mib(self.waiting_bytes_max), mib(self.used_max))?;
        writeln!(f, "{:.0} MiB, stream {stream:.1} % of what is left, device busy {busy:.1} %", mib(self.limit))?;
        for c in &self.clients {
            let ms = |ns: u64| ns as f64 / 1e6;
            let (median, p99, max) = (ms(c.quantile_ns(500)), ms(c.quantile_ns(990)), ms(c.max_ns()));
            write!(f, "  {:13} {:6} times: median {median:7.2}", c.operation.name(), c.ns.len())?;
            writeln!(f, " p99 {p99:7.1} max {max:7.1} ms; {} from the device", c.reached)?;
        }
        Ok(())
    }
}

thread_local! {
    /// How many reads of a [`Hollow`] device this thread has made.
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Stores metadata and drops data; counts the reads of each thread.
struct Hollow {
    below: MemDevice,
    written: AtomicU64,
    read: AtomicU64,
}

impl Wrapper for Hollow {
    fn inner(&self) -> &dyn BlockDevice {
        &self.below
    }

    fn submit(&self, bio: Bio) {
        if bio.op == BioOp::Write && !bio.flags.contains(BioFlags::META) {
            self.written.fetch_add(bio.len, Ordering::Relaxed);
            return bio.complete(Ok(()));
        }
        submit_inline(self, bio);
    }
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        READS.with(|reads| reads.set(reads.get() + 1));
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.below.read_at(offset, buf, flags)
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        self.written.fetch_add(pieces.iter().map(|p| p.len() as u64).sum(), Ordering::Relaxed);
        self.below.write_at(offset, pieces, flags)
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.below.write_zeroes(offset, len, flags)
    }
}

/// An empty image, made once.
fn image() -> MemDevice {
    static IMAGE: OnceLock<MemDevice> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = make_image(dir.path(), &MkfsOptions::new("ext4", IMAGE_BYTES)).expect("an image");
        MemDevice::load(Path::new(&path)).expect("the image")
    });
    made.snapshot()
}

/// Runs all clients for the time of the setting.
///
/// # Panics
/// If the run does not end well.
pub fn measure(setting: Setting) -> Figures {
    let device = image();
    let options = sim::Options {
        strategy: sim::Strategy::Random { preempt_permille: 5 },
        steps_max: 4_000_000_000,
        watchdog: Duration::from_secs(120),
        ..sim::Options::new(setting.seed)
    };
    let outcome = sim::run(&options, move || run(device, setting));
    match outcome.result {
        Ok(figures) => Figures { fingerprint: outcome.trace.fingerprint(), ..figures },
        Err(failure) => panic!("{setting:?}: {failure}"),
    }
}

/// The state that the clients share.
struct Scene {
    fs: Arc<Filesystem>,
    setting: Setting,
    clock: Clock,
    hollow: Arc<Hollow>,
    stop: AtomicBool,
    /// Bytes written by the streaming client.
    streamed: AtomicU64,
    /// The maximum use of the budget that the clients observed under load.
    used_max: AtomicU64,
}

impl Scene {
    fn create(&self, name: &str) -> InodeRef {
        let root = self.fs.root().expect("root");
        self.fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created")
    }

    fn fill(&self, file: &InodeRef, bytes: u64) {
        let piece = vec![1; PIECE_BYTES as usize];
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            self.fs.write(file, at, &piece, WriteFlags::default()).expect("written");
        }
        self.fs.fsync(file, false).expect("synced");
    }

    /// Performs the operation number `i` on the client's file.
    fn perform(&self, operation: Operation, file: &InodeRef, i: u64, rng: &mut Rng, piece: &mut [u8]) {
        let fs = &self.fs;
        let block = &mut [5; BLOCK as usize];
        match operation {
            Operation::Stream => {
                fs.write(file, i * PIECE_BYTES, piece, WriteFlags::default()).expect("written");
                self.streamed.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            }
            Operation::Write => {
                fs.write(file, i * BLOCK, block, WriteFlags::default()).expect("written");
            }
            Operation::WriteAndSync => {
                fs.write(file, i % 256 * BLOCK, block, WriteFlags::default()).expect("written");
                fs.fsync(file, false).expect("synced");
            }
            Operation::ReadHot | Operation::ReadCold => {
                fs.read(file, rng.below(file.size() / BLOCK) * BLOCK, block).expect("read");
            }
            Operation::Stat => {
                let found = fs.lookup(&fs.root().expect("root"), b"ReadHot").expect("found");
                let _ = fs.getattr(&found);
            }
            Operation::Create => {
                self.create(&format!("new{i}"));
            }
        }
    }

    fn client(&self, operation: Operation, file: &InodeRef) -> Latencies {
        let mut rng = Rng::new(self.setting.seed ^ operation as u64);
        let mut piece = vec![2; if operation == Operation::Stream { PIECE_BYTES as usize } else { 0 }];
        let (mut ns, mut reached, mut i) = (Vec::new(), 0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let (reads, since) = (READS.with(Cell::get), self.clock.now_ns());
            self.perform(operation, file, i, &mut rng, &mut piece);
            ns.push(self.clock.now_ns() - since);
            self.used_max.fetch_max(self.fs.budget().used(), Ordering::Relaxed);
            reached += u64::from(READS.with(Cell::get) > reads);
            i += 1;
            if !operation.pause().is_zero() {
                self.clock.sleep(operation.pause());
            }
        }
        ns.sort_unstable();
        Latencies { operation, ns, reached }
    }
}

/// Another mount with the same budget, and its streaming client.
struct SecondMount {
    rated: Arc<RateDevice>,
    mounted: Mounted,
    rate: u64,
    stop: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl SecondMount {
    fn mount(rate: u64, options: &MountOptions) -> SecondMount {
        let hollow = Hollow { below: image(), written: AtomicU64::new(0), read: AtomicU64::new(0) };
        let rated = Arc::new(RateDevice::new(Arc::new(hollow)).expect("a thread"));
        let mounted = Filesystem::mount(rated.clone(), options.clone()).expect("mounted");
        SecondMount { rated, mounted, rate, stop: Arc::new(AtomicBool::new(false)), client: None }
    }

    fn start(mut self) -> SecondMount {
        self.rated.set_rate(self.rate);
        let (fs, stop): (Arc<Filesystem>, _) = ((*self.mounted).clone(), self.stop.clone());
        let stream = move || {
            let root = fs.root().expect("root");
            let file = fs.create(&root, b"stream", NewNode::file(0o644), Cred::default()).expect("created");
            let piece = vec![3; PIECE_BYTES as usize];
            for at in (0..IMAGE_BYTES / 2).step_by(PIECE_BYTES as usize) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                fs.write(&file, at, &piece, WriteFlags::default()).expect("written");
            }
        };
        self.client = Some(task::spawn("beside", stream).expect("a thread"));
        self
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.rated.set_rate(0);
        if let Some(client) = self.client {
            client.join().expect("joined");
        }
        self.mounted.unmount().expect("unmounted");
        self.rated.stop();
    }
}

/// Creates the files of all operations, and fills those that are read. Then reads the hot file as often as required;
/// the cold file stays out of the cache.
fn prepare(scene: &Scene) -> Vec<InodeRef> {
    let setting = scene.setting;
    let files: Vec<_> = Operation::ALL.iter().map(|o| scene.create(&format!("{o:?}"))).collect();
    let hot = setting.cache_bytes / 2;
    for (operation, file) in Operation::ALL.iter().zip(&files) {
        match operation {
            Operation::ReadHot => scene.fill(file, hot),
            Operation::ReadCold => scene.fill(file, COLD_BYTES),
            _ => {}
        }
    }
    scene.fs.sync().expect("synced");
    let _ = scene.fs.budget().shrink_all();
    let mut piece = vec![0; PIECE_BYTES as usize];
    for (operation, file) in Operation::ALL.iter().zip(&files) {
        let readings = if *operation == Operation::ReadHot { setting.hot_readings } else { 0 };
        for at in (0..readings).flat_map(|_| (0..hot).step_by(PIECE_BYTES as usize)) {
            scene.fs.read(file, at, &mut piece).expect("read");
        }
    }
    files
}

fn run(device: MemDevice, setting: Setting) -> Figures {
    let hollow = Arc::new(Hollow { below: device, written: AtomicU64::new(0), read: AtomicU64::new(0) });
    let rated = Arc::new(RateDevice::new(hollow.clone()).expect("a thread"));
    let budget = Some(Budget::new(setting.cache_bytes));
    let options = MountOptions { budget, seed: Some(setting.seed), ..MountOptions::default() };
    let beside = setting.beside.map(|rate| SecondMount::mount(rate, &options));
    let mounted = Filesystem::mount(rated.clone(), options).expect("mounted");
    let fs: Arc<Filesystem> = (*mounted).clone();
    let (stop, streamed, used_max) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let scene = Arc::new(Scene { fs, setting, clock: Clock::real(), hollow, stop, streamed, used_max });
    let files = prepare(&scene);
    let beside = beside.map(SecondMount::start);
    rated.set_rate(setting.rate);
    let _ = rated.take_waiting_max();
    let threads: Vec<JoinHandle<Latencies>> = Operation::ALL
        .iter()
        .zip(&files)
        .map(|(operation, file)| {
            let (scene, operation, file) = (scene.clone(), *operation, file.clone());
            task::spawn("client", move || scene.client(operation, &file)).expect("a thread")
        })
        .collect();
    let peak_before = scene.fs.budget().peak();
    let moved = |scene: &Scene| {
        let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (bytes(&scene.hollow.written) + bytes(&scene.hollow.read), bytes(&scene.streamed))
    };
    let since = scene.clock.now_ns();
    let mut settled = None;
    loop {
        let now = scene.clock.now_ns() - since;
        if now >= SETTLED.as_nanos() as u64 && settled.is_none() {
            settled = Some((now, moved(&scene), scene.fs.statistics().delayed().0));
        }
        if now >= setting.time.as_nanos() as u64 {
            break;
        }
        scene.clock.sleep(Duration::from_millis(1));
    }
    let (begin, (moved_then, streamed_then), dirty_then) = settled.expect("a run is longer than that");
    let took = scene.clock.now_ns() - since - begin;
    let (moved_now, streamed_now) = moved(&scene);
    let dirty_now = scene.fs.statistics().delayed().0;
    let peak = scene.fs.budget().peak();
    let waiting_bytes_max = rated.take_waiting_max();
    scene.stop.store(true, Ordering::Relaxed);
    let clients: Vec<Latencies> = threads.into_iter().map(|t| t.join().expect("joined")).collect();
    rated.set_rate(0);
    if let Some(beside) = beside {
        beside.end();
    }
    drop(files);
    mounted.unmount().expect("unmounted");
    rated.stop();
    let rate_allows = (u128::from(setting.rate) * u128::from(took) / 1_000_000_000) as u64;
    let moved = moved_now - moved_then;
    let streamed = (streamed_now - streamed_then) as i64;
    // Everything that the device transferred came from the streaming client, except for the writes of the others.
    let others = moved as i64 + (dirty_now as i64 - dirty_then as i64) - streamed;
    Figures {
        clients,
        waiting_bytes_max,
        // The peak is exact. If it occurred before the load, the largest value that the clients observed replaces it.
        used_max: Some(peak).filter(|peak| *peak > peak_before).unwrap_or(scene.used_max.load(Ordering::Relaxed)),
        limit: scene.fs.budget().limit(),
        stream_permille: (streamed * 1000 / (rate_allows as i64 - others).max(1)).max(0) as u64,
        busy_permille: moved * 1000 / rate_allows,
        fingerprint: 0,
    }
}
