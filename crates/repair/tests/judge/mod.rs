//! Judges a repair of an image whose undamaged state is known.

#![allow(dead_code, reason = "each test uses a part")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_block::device::{CowDevice, CrashDevice, MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::GroupNr;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, find_backup};
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::{Accept, Replay};
use extant_repair::{
    Decision, End, Layers, Loss, LossKind, Options, Outcome, Sharing, Stamp, Step, Undo, WriteMethod, commit, prove,
};
use extant_testkit::crash::state_files;
use extant_testkit::damage::census::{self, Census, Difference};
use extant_testkit::damage::fsck;

/// Room for a record.
pub const RECORD_BYTES: u64 = 8 << 20;

/// The part of a state that the image has, or the record.
pub fn part(state: &MemDevice, start: u64, len: u64) -> MemDevice {
    let part = OffsetDevice::new(Arc::new(state.snapshot()), start, len).expect("a part");
    MemDevice::over(Arc::new(part))
}

/// Recovers as a mount does, without a repair: a superblock that is torn comes from its backup, and the log is
/// replayed.
pub fn recovered(state: MemDevice) -> MemDevice {
    if read_super(&state).is_err() {
        let look = |at: u64| {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            state.read_at(at, &mut bytes, BioFlags::META).ok()?;
            SuperBlock::decode(&bytes, at).ok()
        };
        let mut read = |at: u64, into: &mut [u8]| state.read_at(at, into, BioFlags::META).is_ok();
        if let Some((sb, _)) = find_backup(state.size_bytes(), look, &mut read) {
            let (mut copy, marked) = (sb.backup_for(GroupNr(0)), sb.needs_recovery());
            copy.set_needs_recovery(marked);
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            copy.encode_into(&mut bytes);
            state.write_at(SUPERBLOCK_OFFSET, &[&bytes], BioFlags::META).expect("memory");
        }
    }
    let shared = Arc::new(state.snapshot());
    let Ok(sb) = read_super(&*shared) else { return state };
    if sb.needs_recovery()
        && let Ok(Some(mut journal)) = open_journal(shared.clone(), &sb)
    {
        let replay = Replay::load(&journal, &*shared, &mut |_| {}).expect("a log");
        replay.apply(&mut journal, &*shared, Accept::WholeOnly, &mut |_| {}).expect("replayed");
        return shared.snapshot();
    }
    state
}

/// The time of all repairs: behind every time in the images.
pub const NOW: i64 = 2_000_000_000;

pub fn options() -> Options {
    let check = extant_check::Options { threads: 1, now: NOW, ..extant_check::Options::default() };
    Options { check, layers: Layers::in_memory(), sharing: Sharing::Copy, now: NOW }
}

/// Plans and proves the repair of an image, taking every step.
pub fn proved(image: &MemDevice) -> extant_repair::Result<Outcome> {
    let base: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
    prove(Arc::new(CowDevice::new(base)), &options(), &mut |_, _| Decision::Yes)
}

/// Copies a device to the start of another one.
pub fn copy(from: &MemDevice, to: &MemDevice) {
    let mut bytes = vec![0; 64 << 10];
    for at in (0..from.size_bytes()).step_by(bytes.len()) {
        let count = bytes.len().min((from.size_bytes() - at) as usize);
        from.read_at(at, &mut bytes[..count], BioFlags::META).expect("memory");
        if bytes[..count].iter().any(|byte| *byte != 0) {
            to.write_at(at, &[&bytes[..count]], BioFlags::META).expect("memory");
        }
    }
}

/// A device that loses power, with an image at its start and room for a record behind it.
pub struct Cutting {
    pub crash: Arc<CrashDevice>,
    /// The part with the image.
    pub target: Arc<dyn BlockDevice>,
}

impl Cutting {
    /// `bytes`: the size of the part with the image, which may be larger than the image.
    pub fn new(image: &MemDevice, bytes: u64) -> Cutting {
        let whole = MemDevice::new(bytes + RECORD_BYTES);
        copy(image, &whole);
        let crash = Arc::new(CrashDevice::from_image(&whole));
        let target = OffsetDevice::new(crash.clone(), 0, bytes).expect("a part");
        Cutting { crash, target: Arc::new(target) }
    }

    /// Writes the proved changes to [`Cutting::target`].
    pub fn write(&self, name: &str, outcome: &Outcome) -> WriteMethod {
        let bytes = self.target.size_bytes();
        let mut make = |needed: u64| {
            assert!(needed <= RECORD_BYTES, "{name}: {needed}");
            let record = OffsetDevice::new(self.crash.clone(), bytes, RECORD_BYTES);
            Ok((Arc::new(record.expect("a part")) as Arc<dyn BlockDevice>, b"record".to_vec()))
        };
        let stamp = Stamp { sec: 2_000_000_000, nsec: 0 };
        commit(&self.target, outcome, 0, stamp, Undo::IfNeeded(&mut make)).expect("written")
    }
}

/// The image with the changes of an outcome, if these may be written.
pub fn result(image: &MemDevice, outcome: &Outcome) -> MemDevice {
    let after = image.snapshot();
    if matches!(outcome.end, End::Proved | End::Partial) {
        let mut bytes = vec![0; CowDevice::PIECE_BYTES as usize];
        for piece in outcome.device.pieces() {
            let at = piece * CowDevice::PIECE_BYTES;
            let len = CowDevice::PIECE_BYTES.min(after.size_bytes() - at) as usize;
            outcome.device.read_at(at, &mut bytes[..len], BioFlags::META).expect("memory");
            after.write_at(at, &[&bytes[..len]], BioFlags::META).expect("memory");
        }
    }
    after
}

/// The result for one image.
#[derive(Default)]
pub struct Verdict {
    pub name: String,
    pub end: Option<End>,
    /// e2fsck's exit status after the repair.
    pub e2fsck: Option<i32>,
    pub difference: Difference,
    pub losses: Vec<Loss>,
    /// Paths that are gone and that the plan did not name.
    pub unnamed: Vec<String>,
    pub steps: Vec<Step>,
    pub left: Vec<String>,
    pub rounds: usize,
    pub said: String,
    /// Why `-p` would change nothing.
    pub stops: Option<String>,
    /// Whether `-p` has written to the image.
    pub preen_changed: bool,
    /// The exit status of `e2fsck -fp`.
    pub e2fsck_preen: Option<i32>,
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        self.e2fsck == Some(0)
    }

    /// Whether `-p` stops where `e2fsck -fp` does, and goes on where that goes on.
    pub fn agrees_with_preen(&self) -> bool {
        let theirs = self.e2fsck_preen.is_none_or(|code| code & !3 != 0);
        self.stops.is_some() == theirs
    }

    /// One line, and the plan below it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {:?}, e2fsck {:?}, rounds {}, {} of {} paths (damaged {})\n",
            self.name,
            self.end,
            self.e2fsck,
            self.rounds,
            self.difference.after,
            self.difference.paths,
            self.difference.before,
        );
        for step in &self.steps {
            let _ = writeln!(text, "  {:?}: {step} <- {:?}: {}", step.layer, step.cause.problem, step.cause);
        }
        for loss in &self.losses {
            let _ = writeln!(text, "  lost: {loss}");
        }
        for left in &self.left {
            let _ = writeln!(text, "  left: {left}");
        }
        let d = &self.difference;
        for (what, paths) in
            [("gone", &d.gone), ("moved", &d.moved), ("attributes", &d.attributes), ("UNNAMED", &self.unnamed)]
        {
            if !paths.is_empty() {
                let _ = writeln!(text, "  {what}: {}: {}", paths.len(), paths[..paths.len().min(5)].join(" "));
            }
        }
        if !self.is_clean() && matches!(self.end, Some(End::Proved | End::Sound)) {
            let _ = writeln!(
                text,
                "  e2fsck: {}",
                self.said.lines().skip(1).take(12).collect::<Vec<_>>().join("\n          ")
            );
        }
        text
    }
}

/// Repairs an image and judges the result.
pub fn judge(name: String, sound: &Census, image: &MemDevice, dir: &Path) -> Verdict {
    let before = census::take(image);
    let mut verdict = Verdict { name, ..Verdict::default() };
    verdict.e2fsck_preen = fsck::e2fsck(image, dir, "-fp", false).code;
    // As -p does it: on a device that could be written.
    let device = Arc::new(image.snapshot());
    let planned = prove(Arc::new(CowDevice::new(device.clone())), &options(), &mut |_, _| Decision::Yes);
    verdict.preen_changed = device.first_difference(image).expect("compared").is_some();
    let outcome = match planned {
        Ok(outcome) => outcome,
        Err(e) => {
            verdict.left.push(e.to_string());
            verdict.stops = Some(e.to_string());
            verdict.difference = census::compare(sound, &before, &before);
            return verdict;
        }
    };
    let after = result(image, &outcome);
    let answer = fsck::judged(&after, dir);
    (verdict.e2fsck, verdict.said) = (answer.code, answer.output);
    verdict.difference = census::compare(sound, &before, &census::take(&after));
    let named = |path: &String, of: fn(&LossKind) -> bool| {
        outcome.losses.iter().any(|loss| of(&loss.lost) && path.as_bytes().starts_with(&loss.path))
    };
    let d = &verdict.difference;
    let content =
        d.gone.iter().chain(&d.moved).filter(|path| !named(path, |lost| !matches!(lost, LossKind::Attributes { .. })));
    let attributes = d.attributes.iter().filter(|path| !named(path, |_| true));
    verdict.unnamed = content.chain(attributes).cloned().collect();
    verdict.stops = outcome.needs_person();
    verdict.end = Some(outcome.end);
    verdict.rounds = outcome.rounds;
    verdict.left =
        outcome.left.iter().map(|(finding, why)| format!("{:?}: {finding}: {why}", finding.problem)).collect();
    (verdict.steps, verdict.losses) = (outcome.steps, outcome.losses);
    verdict
}

/// Judges many images on two threads, in their order.
pub fn all<T: Sync>(items: &[T], judge: impl Fn(&T, &Path) -> Verdict + Sync) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, Verdict)> = std::thread::scope(|scope| {
        let work = || {
            let dir = state_files();
            let mut own = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else { return own };
                own.push((at, judge(item, dir.path())));
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, verdict)| verdict).collect()
}

/// Sums over verdicts.
pub fn summary(verdicts: &[Verdict]) -> String {
    let count = |of: &dyn Fn(&&Verdict) -> bool| verdicts.iter().filter(of).count();
    let sum = |of: &dyn Fn(&Verdict) -> usize| verdicts.iter().map(of).sum::<usize>();
    let end = |end: End| move |verdict: &&Verdict| verdict.end == Some(end);
    format!(
        "{} images: sound {}, proved {} (e2fsck -fn is 0 for {}), partial {}, refused {}, not checked {}\n\
         paths {}, in place in the damaged images {}, after the repair {}\n\
         readable before and gone {}, names lost {}, attributes lost {}, losses that were not named {}\n",
        verdicts.len(),
        count(&end(End::Sound)),
        count(&end(End::Proved)),
        count(&|one| one.end == Some(End::Proved) && one.is_clean()),
        count(&end(End::Partial)),
        count(&end(End::Refused)),
        count(&|one| one.end.is_none()),
        sum(&|one| one.difference.paths as usize),
        sum(&|one| one.difference.before as usize),
        sum(&|one| one.difference.after as usize),
        sum(&|one| one.difference.gone.len()),
        sum(&|one| one.difference.moved.len()),
        sum(&|one| one.difference.attributes.len()),
        sum(&|one| one.unnamed.len()),
    )
}
