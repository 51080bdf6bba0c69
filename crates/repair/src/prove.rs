//! The proof: it plans the lowest layer, carries it out in an overlay, and checks again, until nothing is wrong.
//!
//! Main types: [`Options`], [`Outcome`], [`End`], [`Layers`] (where changes are stored), [`Decision`]. Main function:
//! [`prove`].
//!
//! Before the first round, the log is replayed and orphans are finished, as a mount would do. The files that can be
//! read then are compared with those at the end.
//!
//! # Locking
//! None of its own.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_check::{Checked, Facts, Finding, Note, Problem, Report, Severity, examine};

use extant_ondisk::superblock::{FsState, SuperBlock};
use extant_ondisk::{BlockNr, InodeNr};
use extant_recovery::Newest;

use crate::apply::{self, Owners, journal};
use crate::error::{Error, Refusal, Result, SHARED_MAX, StepResult, UNREADABLE};
use crate::evidence;
use crate::evidence::log::LoggedBlock;
use crate::loss::{Loss, losses};
use crate::plan::{self, Action, Layer, Plan, Step};
use crate::view::Image;

pub use crate::apply::Sharing;

/// The maximum number of rounds of plan and check.
pub const ROUNDS_MAX: usize = 8;
/// The number of rounds in which the same step may be tried.
const TRIES_MAX: usize = 2;

/// The reason for damage that is left because a step was declined.
const DECLINED: &str = "declined";

/// Creates the overlay for changes over another device.
pub type Overlay = dyn Fn(Arc<dyn BlockDevice>) -> CowDevice + Send + Sync;

/// Where changes are stored.
#[derive(Clone)]
pub struct Layers(Arc<Overlay>);

impl Layers {
    /// Stores changes in memory, regardless of their size.
    pub fn in_memory() -> Layers {
        Layers(Arc::new(CowDevice::new))
    }

    /// Stores changes on devices that the caller creates.
    pub fn by(make: Arc<Overlay>) -> Layers {
        Layers(make)
    }

    /// A device for changes over this one.
    pub fn over(&self, base: Arc<dyn BlockDevice>) -> CowDevice {
        (self.0)(base)
    }
}

/// Rejects an image that maps blocks too often, before each of them is examined: a small image can map a block millions
/// of times.
fn refuse_oversized(image: &Image) -> Result<()> {
    let limit = image.geo.blocks_count.saturating_mul(SHARED_MAX);
    let mut mapped = 0u64;
    for ino in image.facts.sharers() {
        let Ok(inode) = image.inode(InodeNr(*ino)) else { continue };
        let blocks: u64 = image.map(&inode).runs.iter().map(|run| u64::from(run.len)).sum();
        // The census stores each name, so all directories together may have as many as fit into their blocks once.
        let weight = if inode.is_dir() { SHARED_MAX } else { 1 };
        mapped = mapped.saturating_add(blocks.saturating_mul(weight));
        if mapped > limit {
            return Err(Error::Oversized { ino: *ino });
        }
    }
    Ok(())
}

/// The parameters of a repair.
#[derive(Clone)]
pub struct Options {
    /// The parameters of the check.
    pub check: extant_check::Options,
    /// Where changes are stored until they are written.
    pub layers: Layers,
    /// The rule for blocks that several files claim.
    pub sharing: Sharing,
    /// Seconds since 1970.
    pub now: i64,
}

/// The answer to a question about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Carry it out.
    Yes,
    /// Leave it out, and plan without it.
    No,
}

/// The result of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing is damaged, and nothing has to be written.
    Sound,
    /// The changes make the file system sound.
    Proved,
    /// The changes repair everything that was allowed; the rest is left.
    Partial,
    /// There is damage that no plan repairs.
    Refused,
}

/// The result of a proof.
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The changes, in an overlay. They are valid only if `end` says so.
    pub device: Arc<CowDevice>,
    /// The steps in the order in which they were carried out.
    pub steps: Vec<Step>,
    /// Content that can no longer be read as before.
    pub losses: Vec<Loss>,
    /// Damage that is left, with the reason.
    pub left: Vec<(Finding, String)>,
    /// The findings before the first step.
    pub report: Report,
    /// The number of transactions in the log that were replayed.
    pub replayed: u32,
    /// The number of fast commits that could not be applied.
    pub fast_commits: usize,
    /// The number of times that steps were planned.
    pub rounds: usize,
    /// The blocks that are not in use until the changes are written.
    pub fresh: FreshBlocks,
}

/// Blocks that the file system on the device does not use, so that they are written first.
pub enum FreshBlocks {
    /// None.
    Nothing,
    /// Those after its end, if the changes make it longer.
    From(BlockNr),
    /// Those that nothing in it claims, if its log is empty. Otherwise a replay could write any of them.
    Unclaimed(Arc<Facts>),
}

impl FreshBlocks {
    /// Whether the file system on the device does not use the block.
    pub fn has(&self, block: BlockNr) -> bool {
        match self {
            FreshBlocks::Nothing => false,
            FreshBlocks::From(end) => block >= *end,
            FreshBlocks::Unclaimed(facts) => {
                let geo = facts.geometry();
                geo.contains_range(block, 1) && !facts.is_claimed(facts.clusters(block, 1))
            }
        }
    }
}

impl Outcome {
    /// The reason why `-p` must not make this repair by itself. It may if all steps are safe without confirmation,
    /// nothing readable is lost, and nothing wrong is left. `None` if it may, or there is nothing to repair.
    pub fn needs_person(&self) -> Option<String> {
        match self.end {
            End::Sound => return None,
            End::Proved => {}
            End::Partial | End::Refused => return Some("not all of the damage can be repaired".to_owned()),
        }
        if let Some(step) = self.steps.iter().find(|step| !step.is_safe) {
            return Some(format!("a person has to decide about \"{step}\""));
        }
        self.losses.iter().find(|loss| loss.lost.is_content()).map(|loss| format!("the repair would lose {loss}"))
    }
}

/// Carries out an action. Tests replace it by wrong ones, which the proof has to detect.
pub(crate) type Apply = fn(&mut Image, &Action, &mut Owners) -> StepResult;

/// The searches that a proof makes only once.
struct PendingSearches {
    /// For a log that a choice has restored.
    log: bool,
    /// For other places of bitmaps and tables.
    places: bool,
    /// For copies in the log.
    copies: bool,
    /// For orphans whose list could not be read before.
    orphans: bool,
}

/// The next action of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Replay,
    Orphans,
    Totals,
    Steps,
    End,
}

/// A proof in progress.
struct Proof<'a> {
    options: &'a Options,
    apply: Apply,
    /// The device with its log replayed.
    ground: Arc<CowDevice>,
    /// The changes of the steps.
    work: Arc<CowDevice>,
    /// Actions that were declined, or that cannot be carried out, with the reason.
    without: BTreeMap<Action, String>,
    declined: BTreeSet<Action>,
    tried: BTreeMap<Action, usize>,
    steps: Vec<Step>,
    touched: BTreeSet<u32>,
    owners: Owners,
    rounds: usize,
    /// The number of inodes and blocks in use according to the last check.
    in_use: u64,
    /// The log, after it was searched for older copies of damaged structures.
    history: Option<Arc<Newest>>,
    /// The copies to use from it; `None` if they have to be chosen.
    copies: Option<BTreeSet<LoggedBlock>>,
    seeks: PendingSearches,
    /// Whether the totals and the mark in the superblock are those of a sound file system, or of the last changes.
    is_finished: bool,
}

/// Plans the repair of the file system on `device`, to which the changes are written, and proves it. `decide` answers
/// for each step.
///
/// # Errors
/// Nothing can be checked, or a device fails.
pub fn prove(
    device: Arc<CowDevice>,
    options: &Options,
    decide: &mut dyn FnMut(&Step, &Report) -> Decision,
) -> Result<Outcome> {
    prove_by(device, options, decide, apply::apply)
}

/// The same as [`prove`], with a function that carries out actions.
pub(crate) fn prove_by(
    device: Arc<CowDevice>,
    options: &Options,
    decide: &mut dyn FnMut(&Step, &Report) -> Decision,
    apply: Apply,
) -> Result<Outcome> {
    let (mut replayed, mut fast_commits) = (0, 0);
    let mut options = options.clone();
    let mut checked = look(&device, &options)?;
    let backup = checked.report.notes.iter().find(|note| matches!(note, Note::BackupSuperblock { .. })).cloned();
    if backup.is_some() && evidence::super_block(&device, &checked.report, &options.layers, &options.check)? {
        // The primary has its content now.
        (options.check.superblock, options.check.block_size) = (None, None);
        checked = look(&device, &options)?;
    }
    let options = &options;
    if is_replayed(&checked.report) && !has_backup(&checked.report) {
        (replayed, fast_commits) = journal::replay(&device)?;
        checked = look(&device, options)?;
    }
    let work = Arc::new(options.layers.over(device.clone()));
    let mut proof = Proof::new(options, apply, device, work);
    proof.orphans(&mut checked)?;
    let is_marked = checked.facts.as_ref().is_some_and(|facts| is_marked(facts.super_block()));
    let totals = [Problem::FreeBlockCount, Problem::FreeInodeCount];
    proof.is_finished = !is_marked && totals.iter().all(|total| checked.report.count(*total) == 0);
    let mut outcome = proof.run(checked, decide)?;
    if !has_backup(&outcome.report) {
        outcome.report.notes.extend(backup);
    }
    Ok(Outcome { replayed, fast_commits, ..outcome })
}

/// Checks the state of a device.
fn look(device: &Arc<CowDevice>, options: &Options) -> Result<Checked> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    Ok(examine(&shared, &options.check)?)
}

/// Whether the superblock says that the file system may be damaged, because an error was found, or it was not
/// unmounted.
fn is_marked(sb: &SuperBlock) -> bool {
    let state = sb.state();
    state.contains(FsState::ERROR) || !state.contains(FsState::VALID)
}

/// Whether the check has replayed a log in memory.
fn is_replayed(report: &Report) -> bool {
    report.notes.iter().any(|note| matches!(note, Note::Replayed { .. }))
}

fn has_backup(report: &Report) -> bool {
    report.notes.iter().any(|note| matches!(note, Note::BackupSuperblock { .. }))
}

/// The findings that are damage.
fn damage(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.problem.severity() == Severity::Damage)
}

impl<'a> Proof<'a> {
    fn new(options: &'a Options, apply: Apply, ground: Arc<CowDevice>, work: Arc<CowDevice>) -> Proof<'a> {
        Proof {
            options,
            apply,
            ground,
            work,
            without: BTreeMap::new(),
            declined: BTreeSet::new(),
            tried: BTreeMap::new(),
            steps: Vec::new(),
            touched: BTreeSet::new(),
            owners: Owners::new(options.sharing),
            rounds: 0,
            in_use: 0,
            history: None,
            copies: None,
            seeks: PendingSearches { log: true, places: true, copies: true, orphans: true },
            is_finished: true,
        }
    }

    /// Finishes orphans, if nothing below them is damaged.
    fn orphans(&mut self, checked: &mut Checked) -> Result<()> {
        let below = |finding: &Finding| finding.problem.code() < 0x01_0000;
        let has = checked.facts.as_ref().is_some_and(|facts| !facts.orphans().is_empty());
        if !has || damage(&checked.report).any(below) {
            return Ok(());
        }
        let fresh = look(&self.ground, self.options)?;
        let taken = std::mem::replace(checked, fresh);
        let Some((mut image, _)) = Image::new(self.ground.clone(), taken, self.options.now) else { return Ok(()) };
        match apply::orphans::finish(&mut image) {
            Ok(()) => *checked = look(&self.ground, self.options)?,
            Err(refusal) if refusal.is_unreadable() => {}
            Err(Refusal::Device(e)) => return Err(e.into()),
            Err(_) => {}
        }
        Ok(())
    }

    fn run(&mut self, checked: Checked, decide: &mut dyn FnMut(&Step, &Report) -> Decision) -> Result<Outcome> {
        let first = checked.report.clone();
        let Some((before, mut report)) = Image::new(self.ground.clone(), checked, self.options.now) else {
            return Ok(self.outcome(End::Refused, first, Vec::new(), Vec::new()));
        };
        refuse_oversized(&before)?;
        let mut last: Option<Image> = None;
        self.seeks.orphans = self.is_repair(&before, &report);
        loop {
            let current = last.as_ref().unwrap_or(&before);
            let clean = report.complete && damage(&report).next().is_none();
            let plan = self.plan(current, &report, clean)?;
            let turn = self.turn(current, &report, clean, !plan.steps.is_empty());
            if turn == Turn::End {
                self.in_use = report.totals.inodes_used + report.totals.blocks_used;
                let left = if clean { Vec::new() } else { self.left(&report, plan) };
                return self.end(clean, &before, last.as_ref(), first, left);
            }
            // Each turn changes the image that the last check has examined.
            let mut image = last.take().unwrap_or_else(|| before.with(self.work.clone()));
            match turn {
                Turn::Replay => {
                    journal::replay(&self.work)?;
                    self.is_finished = false;
                }
                Turn::Orphans => self.late_orphans(&mut image)?,
                Turn::Totals => self.finish(&mut image, true)?,
                Turn::Steps | Turn::End => self.carry_out(&mut image, plan.steps, &report, decide)?,
            }
            match self.again()? {
                Some((image, next)) => (last, report) = (Some(image), next),
                None => return Ok(self.outcome(End::Refused, first, Vec::new(), Vec::new())),
            }
        }
    }

    /// The steps of the lowest layer, and the damage that no step repairs. Choices that only a check can make come
    /// first.
    fn plan(&mut self, image: &Image, report: &Report, clean: bool) -> Result<Plan> {
        let mut plan = plan::plan(image, report, &self.without);
        if evidence::is_doubtful(report) && !self.without.contains_key(&Action::SuperBlock) {
            self.doubt(report, &mut plan);
        }
        let has_layout = plan.steps.iter().all(|step| step.action != Action::SuperBlock);
        if has_layout && !clean && !self.needs_replay(report) && std::mem::take(&mut self.seeks.places) {
            let steps = self.places(image, report)?;
            if !steps.is_empty() {
                plan.steps = steps;
            }
        }
        // The superblock and the journal come first, because they determine where the log is.
        let may_wait = |step: &Step| step.layer > Layer::Volume || step.action == Action::NewJournal;
        let is_settled = plan.steps.iter().all(may_wait) && self.rounds < ROUNDS_MAX;
        if is_settled && !clean && !self.needs_replay(report) && std::mem::take(&mut self.seeks.copies) {
            let copies = self.copies(image, report)?;
            if !copies.is_empty() {
                plan.steps = copies;
            }
        }
        let layer = plan.steps.iter().map(|step| step.layer).min();
        plan.steps.retain(|step| Some(step.layer) == layer);
        Ok(plan)
    }

    /// Whether a log that a choice has restored must be replayed now, because a later replay would undo repairs.
    fn needs_replay(&self, report: &Report) -> bool {
        self.seeks.log && is_replayed(report) && !has_backup(report)
    }

    /// The next turn.
    fn turn(&mut self, image: &Image, report: &Report, clean: bool, has_steps: bool) -> Turn {
        if self.needs_replay(report) {
            self.seeks.log = false;
            return Turn::Replay;
        }
        if clean && !image.facts.orphans().is_empty() && std::mem::take(&mut self.seeks.orphans) {
            return Turn::Orphans;
        }
        match clean {
            true if self.is_finished => Turn::End,
            true => Turn::Totals,
            false if has_steps && self.rounds < ROUNDS_MAX => Turn::Steps,
            false => Turn::End,
        }
    }

    /// Finishes orphans whose list could not be read before.
    fn late_orphans(&mut self, image: &mut Image) -> Result<()> {
        let done = apply::orphans::finish(image);
        self.touched.append(&mut image.touched);
        self.is_finished = false;
        match done {
            Err(refusal) if refusal.is_unreadable() => Ok(()),
            Err(Refusal::Device(e)) => Err(e.into()),
            // Other orphans are left to the next mount.
            _ => Ok(()),
        }
    }

    /// Whether finishing orphans after everything else is part of the repair: not if that was possible from the start.
    fn is_repair(&self, before: &Image, report: &Report) -> bool {
        before.facts.orphans().is_empty() || damage(report).next().is_some()
    }

    /// Checks the changes so far.
    fn again(&self) -> Result<Option<(Image, Report)>> {
        Ok(Image::new(self.work.clone(), look(&self.work, self.options)?, self.options.now))
    }

    /// Sets the totals, and marks the file system as checked.
    fn finish(&mut self, image: &mut Image, is_sound: bool) -> Result<()> {
        let done = apply::super_block::totals(image).and_then(|()| apply::super_block::mark_checked(image, is_sound));
        self.is_finished = true;
        match done {
            Err(refusal) if refusal.is_unreadable() => Ok(()),
            Err(Refusal::Device(e)) => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Adds the choice of another superblock as the first step.
    fn doubt(&self, report: &Report, plan: &mut Plan) {
        let Some(cause) = report.findings.iter().find(|finding| finding.problem.severity() == Severity::Damage) else {
            return;
        };
        let step = Step { layer: Layer::Volume, action: Action::SuperBlock, cause: *cause, findings: 1, is_safe: true };
        plan.steps.insert(0, step);
    }

    /// Steps that put bitmaps and tables where mke2fs puts them, if the check then finds less.
    fn places(&self, image: &Image, report: &Report) -> Result<Vec<Step>> {
        let Some(cause) = damage(report).next() else { return Ok(Vec::new()) };
        let step = |group| {
            let action = Action::UsualPlaces(group);
            Step { layer: Layer::Volume, action, cause: *cause, findings: 1, is_safe: false }
        };
        Ok(evidence::places(image, report, self.options)?.into_iter().map(step).collect())
    }

    /// Steps that use copies from the log, if the repair is better with them.
    fn copies(&mut self, image: &Image, report: &Report) -> Result<Vec<Step>> {
        let chosen = match self.copies.take() {
            Some(chosen) => chosen,
            None => {
                self.history = evidence::log::history(image).map(Arc::new);
                let Some(history) = &self.history else { return Ok(Vec::new()) };
                let chosen = evidence::log::choose(image, report, history, self.options)?;
                if chosen.is_empty() || !self.is_better_with(&chosen)? {
                    return Ok(Vec::new());
                }
                chosen
            }
        };
        let Some(first) = damage(report).next() else { return Ok(Vec::new()) };
        let cause = |one: &LoggedBlock| {
            let same = |finding: &&Finding| {
                finding.place.block() == Some(one.block) || one.ino.is_some() && finding.place.ino() == one.ino
            };
            *damage(report).find(same).unwrap_or(first)
        };
        let step = |one: &LoggedBlock| {
            let action = Action::LogCopy { block: one.block, ino: one.ino };
            Step { layer: Layer::Volume, action, cause: cause(one), findings: 1, is_safe: false }
        };
        Ok(chosen.iter().map(step).collect())
    }

    /// Whether the repair with copies from the log has a better end than the one without, or loses no more. If the one
    /// without copies needs no confirmation, it must also leave less in use, because otherwise the newest bytes are
    /// known without a copy.
    fn is_better_with(&self, copies: &BTreeSet<LoggedBlock>) -> Result<bool> {
        let (plain, in_use) = self.trial(BTreeSet::new())?;
        let (with, in_use_with) = self.trial(copies.clone())?;
        let rank = |outcome: &Outcome| match outcome.end {
            End::Sound | End::Proved => 2,
            End::Partial => 1,
            End::Refused => 0,
        };
        let lost = |outcome: &Outcome| outcome.losses.iter().filter(|loss| loss.lost.is_content()).count();
        Ok(match rank(&with).cmp(&rank(&plain)) {
            Ordering::Greater => true,
            Ordering::Equal if plain.needs_person().is_none() => lost(&with) == 0 && in_use_with > in_use,
            Ordering::Equal => lost(&with) <= lost(&plain),
            Ordering::Less => false,
        })
    }

    /// Continues the proof from here with these copies, in a separate overlay. Returns the outcome, and the resulting
    /// number of inodes and blocks in use.
    fn trial(&self, copies: BTreeSet<LoggedBlock>) -> Result<(Outcome, u64)> {
        let ground = Arc::new(self.options.layers.over(self.work.clone()));
        let work = Arc::new(self.options.layers.over(ground.clone()));
        let checked = look(&ground, self.options)?;
        let mut proof = Proof::new(self.options, self.apply, ground, work);
        (proof.history, proof.copies) = (self.history.clone(), Some(copies));
        let outcome = proof.run(checked, &mut |_, _| Decision::Yes)?;
        Ok((outcome, proof.in_use))
    }

    /// Carries out steps of one layer.
    fn carry_out(
        &mut self,
        image: &mut Image,
        steps: Vec<Step>,
        report: &Report,
        decide: &mut dyn FnMut(&Step, &Report) -> Decision,
    ) -> Result<()> {
        self.owners.forget();
        let is_choice = steps.iter().any(|step| {
            let choices = [Action::SuperBlock, Action::UnmentionedLog, Action::NewJournal];
            choices.contains(&step.action) || matches!(step.action, Action::LogCopy { .. } | Action::UsualPlaces(_))
        });
        for step in steps {
            let tries = self.tried.entry(step.action.clone()).or_default();
            *tries += 1;
            if *tries > TRIES_MAX {
                self.without.insert(step.action.clone(), "the repair does not help".to_owned());
                continue;
            }
            if decide(&step, report) == Decision::No {
                self.without.insert(step.action.clone(), DECLINED.to_owned());
                self.declined.insert(step.action);
                continue;
            }
            let done = match step.action {
                Action::SuperBlock => {
                    let (layers, check) = (&self.options.layers, &self.options.check);
                    let found = evidence::super_block(&self.work, report, layers, check)?;
                    if found { Ok(()) } else { Err(Refusal::Lost("no superblock leaves fewer findings")) }
                }
                Action::UnmentionedLog => {
                    evidence::unmentioned_log(&self.work, &self.options.layers, &self.options.check)?;
                    Ok(())
                }
                Action::LogCopy { block, ino } => match &self.history {
                    Some(history) => evidence::log::take(image, history, LoggedBlock { block, ino }),
                    None => Err(Refusal::Lost("there is no log")),
                },
                ref action => (self.apply)(image, action, &mut self.owners),
            };
            // Everything that was planned with another superblock must be planned again.
            let is_new_super = step.action == Action::SuperBlock && done.is_ok();
            match done {
                Ok(()) => self.steps.push(step),
                Err(refusal) if refusal.is_unreadable() => {
                    self.without.insert(step.action, UNREADABLE.to_owned());
                }
                Err(Refusal::Device(e)) => return Err(e.into()),
                Err(refusal) => drop(self.without.insert(step.action, refusal.to_string())),
            }
            if is_new_super {
                break;
            }
        }
        self.touched.append(&mut image.touched);
        // A choice between candidates, or a log that was found, may have changed the layout, which only the next check
        // shows. It does not count as a round, because nothing is repaired before the choice is made.
        self.rounds += usize::from(!is_choice);
        match is_choice {
            true => self.is_finished = false,
            false => self.finish(image, true)?,
        }
        Ok(())
    }

    /// The damage that is left.
    fn left(&self, report: &Report, plan: Plan) -> Vec<(Finding, String)> {
        let mut left = plan.refused;
        if left.is_empty() {
            let why = if self.rounds == ROUNDS_MAX { "too many rounds" } else { "no step repairs it" };
            left.extend(damage(report).map(|finding| (*finding, why.to_owned())));
        }
        left
    }

    fn end(
        &mut self,
        clean: bool,
        before: &Image,
        last: Option<&Image>,
        first: Report,
        left: Vec<(Finding, String)>,
    ) -> Result<Outcome> {
        let lost = last.map_or_else(Vec::new, |after| losses(before, after, &self.touched));
        let changed = !self.ground.is_unchanged() || !self.work.is_unchanged();
        let tolerated = |(finding, why): &(Finding, String)| {
            finding.problem == Problem::Unreadable || why == DECLINED || why == UNREADABLE
        };
        let end = match (clean, changed) {
            (true, false) => End::Sound,
            (true, true) => End::Proved,
            (false, true) if !self.steps.is_empty() && left.iter().all(tolerated) => End::Partial,
            (false, _) => End::Refused,
        };
        if matches!(end, End::Proved | End::Partial) {
            self.ground.absorb(&self.work)?;
        }
        Ok(self.outcome(end, first, lost, left))
    }

    fn outcome(&mut self, end: End, report: Report, losses: Vec<Loss>, left: Vec<(Finding, String)>) -> Outcome {
        let steps = std::mem::take(&mut self.steps);
        let device = self.ground.clone();
        Outcome {
            end,
            device,
            steps,
            losses,
            left,
            report,
            replayed: 0,
            fast_commits: 0,
            rounds: self.rounds,
            fresh: FreshBlocks::Nothing,
        }
    }
}
