//! Takes the images that a power cut could have left, recovers them, and calls the oracle.
//!
//! Main types: [`Spec`] (which image: printed with a failure, and read back from `EXTANT_CRASH_STATE`), [`Explore`],
//! [`Report`].
//!
//! For each state with a journal, Extant mounts (and replays), the tree is checked, Extant unmounts, and `e2fsck -fn`
//! must find nothing. For every n-th state, `e2fsck -p` also replays a copy, which must then be clean and pass the same
//! check through the kernel. The kernel also replays a copy, which must pass the check and be clean after the unmount.
//! A borrowed journal must be removed by Extant's unmount. Without a journal, `e2fsck -p` repairs (exit status 0 or 1),
//! then Extant mounts and the tree is checked.
//!
//! # Locking
//! `crash work` (0, a leaf): the list of remaining states.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::device::{CrashDevice, CrashEvent, CrashMode, MemDevice};
use extant_block::{BioFlags, BioOp};
use extant_fs::{Filesystem, JournalDevice, MountOptions, probe_superblock};
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::superblock::FsState;
use extant_recovery::Replay;
use extant_recovery::locate::{open_journal, read_super};

use crate::crash::history::Cut;
use crate::crash::image::{CrashImage, declare_atomic};
use crate::crash::workload::{EPOCH_S, Recording, disks, options_for};
use crate::crash::{oracle, seen};
use crate::mount::{AttachedFile, LoopMount, Mounted, loop_mounts_work};
use crate::oracle::{Fsck, e2fsck};

static WORK_CLASS: LockClass = LockClass::new("crash work", 0);

/// One image that a power cut could have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    pub events: usize,
    /// Whether the next event was in progress.
    pub during: bool,
    pub mode: CrashMode,
    /// Distinguishes the possible images of this kind.
    pub variant: u32,
}

/// Prints `812+torn.0` for a torn write during event 812, and `812=subset.3` for a random subset after 812 events.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            CrashMode::InOrder => "order",
            CrashMode::RandomSubset => "subset",
            CrashMode::Torn => "torn",
        };
        write!(f, "{}{}{mode}.{}", self.events, if self.during { '+' } else { '=' }, self.variant)
    }
}

impl FromStr for Spec {
    type Err = String;
    fn from_str(s: &str) -> Result<Spec, String> {
        let bad = || format!("'{s}' is not like 812+torn.0");
        let at = s.find(['+', '=']).ok_or_else(bad)?;
        let (mode, variant) = s[at + 1..].split_once('.').ok_or_else(bad)?;
        Ok(Spec {
            events: s[..at].parse().map_err(|_| bad())?,
            during: &s[at..=at] == "+",
            mode: match mode {
                "order" => CrashMode::InOrder,
                "subset" => CrashMode::RandomSubset,
                "torn" => CrashMode::Torn,
                _ => return Err(bad()),
            },
            variant: variant.parse().map_err(|_| bad())?,
        })
    }
}

impl Spec {
    pub fn cut(&self) -> Cut {
        Cut { events: self.events, in_flight: self.during }
    }

    /// Builds the image.
    pub fn image(&self, device: &CrashDevice, seed: u64) -> Result<MemDevice, String> {
        let mut rng = Rng::new(seed ^ (self.events as u64) << 20 ^ u64::from(self.variant) << 8 ^ self.mode as u64);
        let r = match self.during {
            true => device.state_during(self.events, &mut rng, self.mode),
            false => device.state_after(self.events, &mut rng, self.mode),
        };
        r.map_err(|e| format!("state {self}: {e}"))
    }
}

/// The states of a recording to explore.
#[derive(Clone, Debug)]
pub struct Explore {
    pub states: Vec<Spec>,
    /// Every n-th state also goes through recovery by e2fsck and the kernel; 0 for none.
    pub external_every: usize,
    pub threads: usize,
    /// Stop after this many failures.
    pub failures_max: usize,
    /// Whether `e2fsck -p` must be enough without a journal. Otherwise `e2fsck -fy` may be needed.
    pub preen: bool,
}

impl Explore {
    /// `count` states spread evenly over all events, with alternating modes; at least one per event if `count` is
    /// larger. If `EXTANT_CRASH_STATE` names a state, only that one.
    pub fn spread(events: usize, count: usize) -> Explore {
        let mut states = Vec::with_capacity(count);
        for i in 0..count {
            let at = i * (events + 1) / count.max(1);
            // Two thirds of the states are cuts in the middle of a request.
            let (mode, during) = match i % 6 {
                0 => (CrashMode::InOrder, false),
                1 => (CrashMode::Torn, true),
                2 => (CrashMode::RandomSubset, false),
                3 => (CrashMode::Torn, false),
                4 => (CrashMode::RandomSubset, true),
                _ => (CrashMode::Torn, true),
            };
            states.push(Spec { events: at, during, mode, variant: i as u32 });
        }
        if let Ok(one) = std::env::var("EXTANT_CRASH_STATE") {
            states = vec![one.parse().expect("EXTANT_CRASH_STATE")];
        }
        Explore {
            external_every: if states.len() == 1 { 1 } else { 10 },
            states,
            threads: 2,
            failures_max: 3,
            preen: true,
        }
    }

    /// Every event of every mount and unmount of a recording, at most `count` of each, in four modes. These are the
    /// times at which Extant adds and removes a borrowed journal.
    pub fn mounts(recording: &Recording, count: usize) -> Explore {
        let mounts = recording.history.ops.iter().filter(|o| o.text == "mount" || o.text == "unmount");
        let ranges = std::iter::once((0, recording.mounted)).chain(mounts.map(|o| (o.start, o.end)));
        let mut states = Vec::new();
        for (start, end) in ranges {
            let step = (end - start).div_ceil(count).max(1);
            for (i, events) in (start..=end).rev().step_by(step).enumerate() {
                for (mode, during) in [
                    (CrashMode::InOrder, false),
                    (CrashMode::RandomSubset, false),
                    (CrashMode::RandomSubset, true),
                    (CrashMode::Torn, true),
                ] {
                    states.push(Spec { events, during, mode, variant: i as u32 });
                }
            }
        }
        Explore { states, external_every: 7, threads: 2, failures_max: 3, preen: true }
    }

    /// About `count` states of the growths of a recording, in four modes.
    pub fn growths(recording: &Recording, count: usize) -> Explore {
        let growths = recording.history.growths.iter();
        let events: Vec<usize> = growths.flat_map(|growth| growth.start..=growth.end).collect();
        let modes = [
            (CrashMode::InOrder, false),
            (CrashMode::RandomSubset, false),
            (CrashMode::RandomSubset, true),
            (CrashMode::Torn, true),
        ];
        let at = |i: usize| {
            let (mode, during) = modes[i % modes.len()];
            Spec { events: events[i * events.len() / count], during, mode, variant: i as u32 }
        };
        let mut states: Vec<Spec> = if events.is_empty() { Vec::new() } else { (0..count).map(at).collect() };
        if let Ok(one) = std::env::var("EXTANT_CRASH_STATE") {
            states = vec![one.parse().expect("EXTANT_CRASH_STATE")];
        }
        Explore { states, external_every: 5, threads: 2, failures_max: 3, preen: true }
    }

    /// Up to `count` states in which a commit block is torn, each also recovered by e2fsck and the kernel.
    pub fn torn_commits(recording: &Recording, count: usize) -> Explore {
        let bs = u64::from(recording.image.block_size);
        let commit = |e: &CrashEvent| e.op == BioOp::Write && e.flags.contains(BioFlags::FUA) && e.len <= bs;
        let all: Vec<usize> =
            recording.device.events().iter().enumerate().filter(|(_, e)| commit(e)).map(|(i, _)| i).collect();
        let at = |i: usize| Spec {
            events: all[i * all.len() / count],
            during: true,
            mode: CrashMode::Torn,
            variant: i as u32,
        };
        let states = if all.is_empty() { Vec::new() } else { (0..count).map(at).collect() };
        Explore { states, external_every: 1, threads: 2, failures_max: 3, preen: true }
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub spec: Spec,
    pub what: String,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub states: usize,
    pub external: usize,
    pub failures: Vec<Failure>,
}

impl Report {
    /// Panics with all failures and the lines that reproduce them.
    pub fn expect_clean(&self, recording: &Recording) {
        assert!(self.failures.is_empty(), "{}", self.describe(recording));
    }

    pub fn describe(&self, recording: &Recording) -> String {
        let mut out = format!("{} of {} states failed\n", self.failures.len(), self.states);
        for f in &self.failures {
            out.push_str(&format!(
                "---- {} seed {} state {}\n     again: EXTANT_CRASH_SEED={} EXTANT_CRASH_STATE={} (same test)\n{}\n",
                recording.image.name, recording.seed, f.spec, recording.seed, f.spec, f.what
            ));
        }
        out
    }
}

/// The directory for images of states: in memory, if there is such a file system.
pub fn state_files() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let builder = tempfile::Builder::new().prefix("extant-crash-").to_owned();
    if shm.is_dir() { builder.tempdir_in(shm) } else { builder.tempdir() }.expect("a temporary directory")
}

/// Checks all states of `what`.
pub fn explore(recording: &Arc<Recording>, what: &Explore) -> Report {
    struct Shared {
        next: usize,
        report: Report,
    }
    let shared = Arc::new(Mutex::new(&WORK_CLASS, Shared { next: 0, report: Report::default() }));
    let mut threads = Vec::new();
    for _ in 0..what.threads.max(1) {
        let (shared, recording, what) = (shared.clone(), recording.clone(), what.clone());
        threads.push(
            task::spawn("crash-check", move || {
                let mut files = Files::new();
                loop {
                    let at = {
                        let mut s = shared.lock();
                        if s.next >= what.states.len() || s.report.failures.len() >= what.failures_max {
                            return;
                        }
                        s.next += 1;
                        s.next - 1
                    };
                    let spec = what.states[at];
                    let external = what.external_every > 0 && at.is_multiple_of(what.external_every);
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        check_state(&recording, spec, external, what.preen, &mut files)
                    }))
                    .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))));
                    let mut s = shared.lock();
                    s.report.states += 1;
                    s.report.external += usize::from(external);
                    if let Err(e) = result {
                        s.report.failures.push(Failure { spec, what: e });
                    }
                }
            })
            .expect("a thread"),
        );
    }
    for t in threads {
        t.join().expect("states are checked under catch_unwind");
    }
    std::mem::take(&mut shared.lock().report)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_default()
}

/// The files of one thread, for programs that read and change images.
struct Files {
    dir: tempfile::TempDir,
    /// The state that e2fsck checks or repairs, and its known content: successive states share most of it.
    state: PathBuf,
    known: Option<MemDevice>,
}

impl Files {
    fn new() -> Files {
        let dir = state_files();
        Files { state: dir.path().join("state"), dir, known: None }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Stores the image for a program that only reads it.
    fn put(&mut self, image: &MemDevice) -> Result<(), String> {
        self.lend(image)?;
        self.known = Some(image.snapshot());
        Ok(())
    }

    /// Stores the image for a program that changes it.
    fn lend(&mut self, image: &MemDevice) -> Result<(), String> {
        image.save_over(&self.state, self.known.take().as_ref()).map_err(|e| e.to_string())
    }

    /// Reads the image back after the program has changed it.
    fn get(&mut self, lent: &MemDevice) -> Result<Arc<MemDevice>, String> {
        let image = MemDevice::load_over(&self.state, lent).map_err(|e| e.to_string())?;
        self.known = Some(image.snapshot());
        Ok(Arc::new(image))
    }

    /// A separate file for a program that changes the image. The caller must remove it, and not overwrite it: a loop
    /// device that closes it late would continue with stale pages.
    fn copy(&self, image: &MemDevice, name: &str) -> Result<PathBuf, String> {
        let path = self.path().join(name);
        image.save(&path).map_err(|e| e.to_string())?;
        Ok(path)
    }
}

fn check_state(
    recording: &Recording,
    spec: Spec,
    external: bool,
    preen: bool,
    files: &mut Files,
) -> Result<(), String> {
    let image = spec.image(&recording.device, recording.seed)?;
    if recording.image.has_journal() {
        with_journal(recording, spec, image, external, files)
    } else {
        without_journal(recording, spec, image, external, preen, files)
    }
}

/// A clock set somewhat later than the end of the workload.
fn later() -> Clock {
    Clock::virtual_at(EPOCH_S + 100_000)
}

/// Mounts with Extant, checks the tree, and unmounts.
pub fn check_by_extant(recording: &Recording, image: Arc<MemDevice>, cut: Cut) -> Result<(), String> {
    let (disk, journal) = recording.image.disks(image);
    let journal_device = journal.map(JournalDevice);
    let options = MountOptions { journal_device, ..options_for(&recording.image, later()) };
    let fs = Filesystem::mount(disk, options).map_err(|e| format!("Extant does not mount: {e}"))?;
    let (blocks, possible) = (fs.geometry().blocks_count, recording.history.sizes(cut));
    if !possible.is_empty() && !possible.contains(&blocks) {
        return Err(format!("after Extant's recovery: {blocks} blocks; possible are {possible:?}"));
    }
    let tree = seen::by_extant(&fs).map_err(|e| format!("after Extant's recovery: {e}"))?;
    oracle::check(&recording.history, &tree, cut, recording.image.unjournalled())
        .map_err(|e| format!("after Extant's recovery: {e}"))?;
    fs.unmount().map_err(|e| format!("Extant does not unmount: {e}"))
}

fn with_journal(
    recording: &Recording,
    spec: Spec,
    image: MemDevice,
    external: bool,
    files: &mut Files,
) -> Result<(), String> {
    let image = Arc::new(image);
    if recording.image.external {
        if external {
            recover_two_disks(recording, spec, &image, files.path())?;
        }
        check_by_extant(recording, image.clone(), spec.cut())?;
        return TwoDisks::save(&recording.image, &image, files.path(), "extant")?.clean("after Extant's recovery");
    }
    if external {
        let by_fsck = files.copy(&image, "fsck")?;
        let by_kernel = files.copy(&image, "kernel")?;
        let done = external_recovery(recording, spec, &image, &by_fsck, &by_kernel, files.path());
        for path in [by_fsck, by_kernel] {
            std::fs::remove_file(path).map_err(|e| e.to_string())?;
        }
        done?;
    }
    check_by_extant(recording, image.clone(), spec.cut())?;
    given_back(recording, &image)?;
    files.put(&image)?;
    clean(&files.state, "after Extant's recovery")
}

/// A state of a file system and its journal, each in a file. The files are removed with it.
pub(crate) struct TwoDisks {
    disk: PathBuf,
    journal: PathBuf,
}

impl TwoDisks {
    pub(crate) fn save(kind: &CrashImage, image: &Arc<MemDevice>, dir: &Path, name: &str) -> Result<TwoDisks, String> {
        let (disk, journal) = kind.disks(image.clone());
        let files = TwoDisks { disk: dir.join(name), journal: dir.join(format!("{name}-journal")) };
        for (part, path) in [(Some(disk), &files.disk), (journal, &files.journal)] {
            let part = part.ok_or("there is one disk alone")?;
            MemDevice::over(part).save(path).map_err(|e| e.to_string())?;
        }
        Ok(files)
    }

    /// e2fsck with `arg` may have exit codes up to `most`.
    fn fsck(&self, arg: &str, most: i32, when: &str) -> Result<(), String> {
        let f = fsck(&self.disk, &[arg, "-j", crate::oracle::arg(&self.journal)])?;
        if f.code <= most { Ok(()) } else { Err(format!("{when}: e2fsck {arg}: exit code {}\n{}", f.code, f.output)) }
    }

    /// e2fsck finds nothing.
    pub(crate) fn clean(&self, when: &str) -> Result<(), String> {
        self.fsck("-fn", 0, when)
    }

    fn by_kernel(&self, recording: &Recording, cut: Cut, dir: &Path, options: &str) -> Result<(), String> {
        let journal = AttachedFile::new(&self.journal).map_err(|e| e.to_string())?;
        let options = format!("{options}journal_path={}", journal.path());
        check_by_kernel(recording, cut, &self.disk, dir, &options)
    }
}

impl Drop for TwoDisks {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.disk);
        let _ = std::fs::remove_file(&self.journal);
    }
}

/// As [`external_recovery`], of a file system whose journal is on another disk.
fn recover_two_disks(recording: &Recording, spec: Spec, image: &Arc<MemDevice>, dir: &Path) -> Result<(), String> {
    let by_fsck = TwoDisks::save(&recording.image, image, dir, "fsck")?;
    by_fsck.fsck("-p", 1, "replay")?;
    by_fsck.clean("after e2fsck -p replayed it")?;
    if !loop_mounts_work() {
        return Ok(());
    }
    by_fsck.by_kernel(recording, spec.cut(), dir, "ro,").map_err(|e| format!("after e2fsck's replay: {e}"))?;
    let by_kernel = TwoDisks::save(&recording.image, image, dir, "kernel")?;
    by_kernel.by_kernel(recording, spec.cut(), dir, "").map_err(|e| format!("after the kernel's replay: {e}"))?;
    by_kernel.clean("after the kernel replayed it")
}

/// After a clean unmount nothing is left of a borrowed journal.
fn given_back(recording: &Recording, image: &MemDevice) -> Result<(), String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    let raw = sb.raw();
    let left = sb.compat().contains(Compat::HAS_JOURNAL) || raw.s_jnl_blocks.iter().any(|w| w.get() != 0);
    if recording.image.borrows && (left || !sb.state().contains(FsState::VALID)) {
        return Err(format!("unmounted by Extant: {:?}, {:?}, {:x?}", sb.compat(), sb.state(), raw.s_jnl_blocks));
    }
    Ok(())
}

/// Whether the kernel may use the image without e2fsck: it has a journal, or is clean, and no quotas and no directories
/// that ignore case, for which some kernels are not built.
fn is_for_the_kernel(image: &MemDevice) -> Result<bool, String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    let replayed = sb.compat().contains(Compat::HAS_JOURNAL) || sb.state().contains(FsState::VALID);
    Ok(replayed && !has_quotas(image)? && !ignores_case(image)?)
}

fn ignores_case(image: &MemDevice) -> Result<bool, String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    Ok(sb.incompat().contains(Incompat::CASEFOLD))
}

fn has_quotas(image: &MemDevice) -> Result<bool, String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    Ok(sb.ro_compat().contains(RoCompat::QUOTA))
}

/// The flags with which e2fsck must run again, if it must: e2fsck 1.47.0 leaves errors when it clears orphans. An
/// orphan with inline content still counts as a user of its attribute block, which `-p` does not correct. With quotas,
/// an orphan's share of a shared attribute block is still charged to its owner.
fn second_run(image: &MemDevice) -> Result<Option<&'static str>, String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    let inline = sb.incompat().contains(Incompat::INLINE_DATA);
    Ok(if inline { Some("-fy") } else { has_quotas(image)?.then_some("-fp") })
}

/// Whether attribute values may have their own inodes. Such images are recovered only by the kernel: e2fsck 1.47.0
/// deletes orphans and keeps their references to values. It then gives a value without other references a name, which
/// the kernel refuses.
fn has_values(image: &MemDevice) -> Result<bool, String> {
    let (sb, _) = probe_superblock(image).map_err(|e| e.to_string())?;
    Ok(sb.incompat().contains(Incompat::EA_INODE))
}

/// Whether the area for fast commits begins with a head that the newest full commit has made obsolete. Such states are
/// recovered only by Extant and the kernel: e2fsck 1.47.0 takes that head for an error, and drops the log.
fn has_old_head(image: &Arc<MemDevice>) -> Result<bool, String> {
    let text = |e: extant_recovery::Error| e.to_string();
    let sb = read_super(&**image).map_err(text)?;
    if !sb.compat().contains(Compat::FAST_COMMIT) {
        return Ok(false);
    }
    let Some(journal) = open_journal(image.clone(), &sb).map_err(text)? else { return Ok(false) };
    let Some(first) = journal.super_block().fast_commit_area().next() else { return Ok(false) };
    let mut block = vec![0; sb.block_size as usize];
    journal.read(first, &mut block).map_err(text)?;
    let replay = Replay::load(&journal, &**image, &mut |_| {}).map_err(text)?;
    Ok(replay.live && replay.fast_commits.is_empty() && block.starts_with(&FAST_COMMIT_HEAD))
}

/// The tag of the record at the start of an area with fast commits (Linux: `EXT4_FC_TAG_HEAD`).
const FAST_COMMIT_HEAD: [u8; 2] = [9, 0];

/// Recovers copies of `image` with e2fsck and with the kernel, and checks both.
fn external_recovery(
    recording: &Recording,
    spec: Spec,
    image: &Arc<MemDevice>,
    by_fsck: &Path,
    by_kernel: &Path,
    dir: &Path,
) -> Result<(), String> {
    let by_fsck_too = !has_values(image)? && !has_old_head(image)?;
    if by_fsck_too {
        mend(by_fsck)?;
        if let Some(how) = second_run(image)? {
            fsck(by_fsck, &[how])?;
        }
        clean(by_fsck, "after e2fsck -p replayed it")?;
    }
    if ignores_case(image)? {
        let recovered = MemDevice::load(by_fsck).map_err(|e| e.to_string())?;
        return check_by_extant(recording, Arc::new(recovered), spec.cut())
            .map_err(|e| format!("after e2fsck's replay: {e}"));
    }
    if !loop_mounts_work() {
        return Ok(());
    }
    if by_fsck_too {
        check_by_kernel(recording, spec.cut(), by_fsck, dir, "ro")
            .map_err(|e| format!("after e2fsck's replay: {e}"))?;
    }
    if !is_for_the_kernel(image)? {
        return Ok(());
    }
    check_by_kernel(recording, spec.cut(), by_kernel, dir, "")
        .map_err(|e| format!("after the kernel's replay: {e}"))?;
    if recording.image.room > 0 {
        // The kernel replayed a growth after it had counted its groups, so only the next mount knows the new ones.
        check_by_kernel(recording, spec.cut(), by_kernel, dir, "")
            .map_err(|e| format!("after the kernel's second mount: {e}"))?;
    }
    clean(by_kernel, "after the kernel replayed it")
}

fn check_by_kernel(recording: &Recording, cut: Cut, file: &Path, dir: &Path, options: &str) -> Result<(), String> {
    let top = dir.join("mnt");
    std::fs::create_dir_all(&top).map_err(|e| e.to_string())?;
    let mount = LoopMount::new(file, &top, options).map_err(|e| format!("the kernel does not mount: {e}"))?;
    let of_workload = recording.image.top_of(&top).map_err(|e| e.to_string());
    let result = of_workload
        .and_then(|top| seen::by_kernel(&top))
        .and_then(|tree| oracle::check(&recording.history, &tree, cut, recording.image.unjournalled()));
    Box::new(mount).unmount().map_err(|e| e.to_string())?;
    result
}

fn without_journal(
    recording: &Recording,
    spec: Spec,
    image: MemDevice,
    external: bool,
    preen: bool,
    files: &mut Files,
) -> Result<(), String> {
    files.lend(&image)?;
    let mended = mend(&files.state);
    if preen {
        mended?;
    } else if mended.is_err() {
        let f = fsck(&files.state, &["-fy"])?;
        if f.code > 1 {
            return Err(format!("e2fsck -fy: exit code {}\n{}", f.code, f.output));
        }
    }
    let mended = files.get(&image)?;
    if external && loop_mounts_work() {
        let copy = files.copy(&mended, "kernel")?;
        let seen = check_by_kernel(recording, spec.cut(), &copy, files.path(), "ro");
        std::fs::remove_file(copy).map_err(|e| e.to_string())?;
        seen.map_err(|e| format!("by the kernel: {e}"))?;
    }
    check_by_extant(recording, mended.clone(), spec.cut())?;
    files.put(&mended)?;
    clean(&files.state, "after Extant used the image that e2fsck repaired")
}

fn fsck(path: &Path, args: &[&str]) -> Result<Fsck, String> {
    e2fsck(path, args).map_err(|e| e.to_string())
}

/// Checks that `e2fsck -p` repairs the image without help.
pub fn mend(path: &Path) -> Result<(), String> {
    let f = fsck(path, &["-p"])?;
    if f.code <= 1 { Ok(()) } else { Err(format!("e2fsck -p: exit code {}\n{}", f.code, f.output)) }
}

/// Checks that `e2fsck -fn` finds nothing.
pub fn clean(path: &Path, when: &str) -> Result<(), String> {
    let f = fsck(path, &["-fn"])?;
    if f.code == 0 { Ok(()) } else { Err(format!("{when}: e2fsck -fn: exit code {}\n{}", f.code, f.output)) }
}

/// Cuts the power inside Extant's recovery of each state, at up to `cuts` of its writes (if there are no more, at each,
/// in three ways). Then Extant, e2fsck and the kernel in turn recover again: the result must be clean and complete.
/// Returns the number of second cuts for each of them.
pub fn interrupt_recovery(recording: &Recording, states: &[Spec], cuts: usize) -> Result<[usize; 3], String> {
    let mut files = Files::new();
    let mut tried = [0; 3];
    for spec in states {
        let first = spec.image(&recording.device, recording.seed)?;
        let device = Arc::new(CrashDevice::from_image(&first));
        declare_atomic(&device, &recording.image);
        let (disk, journal) = disks(&device, &recording.image);
        let journal_device = journal.map(JournalDevice);
        let options = MountOptions { journal_device, ..options_for(&recording.image, later()) };
        let fs = Filesystem::mount(disk, options).map_err(|e| format!("{spec}: mount: {e}"))?;
        fs.step();
        fs.unmount().map_err(|e| format!("{spec}: unmount: {e}"))?;
        drop(fs);
        let events = device.write_log();
        let again = Explore::spread(events, cuts.min(3 * (events + 1)));
        for (n, second) in again.states.into_iter().enumerate() {
            let image = Arc::new(second.image(&device, recording.seed)?);
            let by = recover_again(recording, spec.cut(), &image, &mut files, n % 3)
                .map_err(|e| format!("state {spec}, recovery cut at {second} of {events} events: {e}"))?;
            tried[by] += 1;
        }
    }
    Ok(tried)
}

/// Recovers with Extant (0), e2fsck (1) or the kernel (2, if possible); returns which of them did.
fn recover_again(
    recording: &Recording,
    cut: Cut,
    image: &Arc<MemDevice>,
    files: &mut Files,
    by: usize,
) -> Result<usize, String> {
    if recording.image.external {
        let when = "after a recovery that was cut off";
        let state = TwoDisks::save(&recording.image, image, files.path(), "again")?;
        match by {
            1 => state.fsck("-p", 1, when)?,
            2 if loop_mounts_work() => state.by_kernel(recording, cut, files.path(), "")?,
            _ => {
                check_by_extant(recording, image.clone(), cut)?;
                TwoDisks::save(&recording.image, image, files.path(), "extant")?.clean(when)?;
                return Ok(0);
            }
        }
        return state.clean(when).map(|()| by);
    }
    if by == 1 {
        files.lend(image)?;
        mend(&files.state)?;
        clean(&files.state, "after e2fsck replayed a recovery that was cut off")?;
        check_by_extant(recording, files.get(image)?, cut)?;
        return Ok(1);
    }
    if by == 2 && loop_mounts_work() && is_for_the_kernel(image)? {
        let copy = files.copy(image, "kernel")?;
        let done = check_by_kernel(recording, cut, &copy, files.path(), "")
            .map_err(|e| format!("after the kernel's replay: {e}"))
            .and_then(|()| clean(&copy, "after the kernel replayed a recovery that was cut off"));
        std::fs::remove_file(copy).map_err(|e| e.to_string())?;
        return done.map(|()| 2);
    }
    check_by_extant(recording, image.clone(), cut)?;
    files.put(image)?;
    clean(&files.state, "after a recovery that was cut off")?;
    Ok(0)
}
