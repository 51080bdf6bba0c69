//! `extant fsck -p`, `-y` and with questions: plans, verifies and writes.
//!
//! Only this module opens the image for writing. It writes only if the check of the planned result finds nothing,
//! except what the user declined to repair. [`undo`] restores the old blocks of a record.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{CowDevice, FileDevice};
use extant_check::{Note, Options, Problem, Report};
use extant_fs::{Filesystem, MountOptions};
use extant_image::probe;
use extant_recovery::Replay;
use extant_recovery::locate::open_journal;
use extant_repair::{Decision, End, ImageState, Layers, Outcome, Sharing, Step, WriteMethod, prove, unfinished};

use super::super::change;
use super::{CORRECTED, OPERATIONAL, UNCORRECTED, ask, failed, journal, operational, options, show, skip};
use crate::args::{FsckArgs, ImageArgs, Shared};
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec};
use crate::record::escaped;
use crate::text::{Output, image_argument};

fn repair_options(check: &Options, shared: Shared) -> extant_repair::Options {
    let sharing = match shared {
        Shared::Copy => Sharing::Copy,
        Shared::Winner => Sharing::Winner,
        Shared::Hole => Sharing::Hole,
    };
    extant_repair::Options { check: check.clone(), layers: change::layers(), sharing, now: check.now }
}

/// The plan for an image that is only read; `None` if it could not be made.
pub fn plan(device: &Arc<dyn BlockDevice>, check: &Options) -> Option<Outcome> {
    let options = repair_options(check, Shared::Copy);
    let overlay = ground(device, &options.layers);
    prove(overlay, &options, &mut |_, _| Decision::Yes).ok()
}

/// The device with the changes of fast commits, as a mount applies them. If they cannot be applied, the device without
/// them.
fn ground(device: &Arc<dyn BlockDevice>, layers: &Layers) -> Arc<CowDevice> {
    let plain = || Arc::new(layers.over(device.clone()));
    let fast = || {
        let (sb, _) = probe(&**device).ok()?;
        let journal = open_journal(device.clone(), &sb).ok()??;
        let replay = Replay::load(&journal, &**device, &mut |_| {}).ok()?;
        (sb.needs_recovery() && !replay.fast_commits.is_empty()).then_some(())
    };
    if fast().is_none() {
        return plain();
    }
    let with = plain();
    let options = MountOptions { threads: false, counted: false, ..MountOptions::default() };
    let applied = Filesystem::mount(with.clone(), options).and_then(|fs| fs.unmount());
    if applied.is_ok() { with } else { plain() }
}

/// Repairs an image.
pub fn run(args: &FsckArgs, how: &ImageArgs, spec: &ImageSpec) -> Result<()> {
    let name = spec.shown();
    let opened = image::open(spec, &how.access(false)).map_err(operational)?;
    let device = opened.device;
    let mut check = options(args, &name)?;
    check.journal = journal::open(args, how, &*device, spec, false)?;
    if skip(args, &device, spec, &check)? {
        return Ok(());
    }
    change::refuse_elsewhere(&*device, spec).map_err(|e| e.with_status(OPERATIONAL))?;
    change::refuse_unfinished(&*device, spec).map_err(|e| e.with_status(OPERATIONAL))?;
    let replayed = journal::replay(args, &device, &check, spec)?;
    // Its log is empty, and a repair does not write through it.
    check.journal = None;
    let repair = repair_options(&check, args.shared);
    let overlay = ground(&device, &repair.layers);
    let mut questions = ask::Questions::new(name.clone());
    let mut decide = |step: &Step, report: &Report| match args.letters.preen || args.letters.yes {
        true => Decision::Yes,
        false => questions.ask(step, report),
    };
    let outcome = prove(overlay, &repair, &mut decide).map_err(|e| match e {
        extant_repair::Error::Check(e) => failed(e, &*device, spec),
        e => Failure::new(OPERATIONAL, format!("{name}: not repaired: {e}")),
    })?;
    for note in &outcome.report.notes {
        warn(&format!("{name}: {note}"));
    }
    print(args, &name, &outcome)?;
    let written_before = replayed > 0;
    if args.letters.preen
        && let Some(why) = outcome.needs_person()
    {
        let image = image_argument(spec);
        let message = format!(
            "{name}: not changed: {why}; 'extant fsck -fn {image}' shows the plan, and 'extant fsck -y {image}' carries it \
             out"
        );
        return Err(Failure::new(if outcome.report.complete { UNCORRECTED } else { OPERATIONAL }, message));
    }
    let allowed = match outcome.end {
        End::Sound | End::Refused => false,
        End::Proved => questions.confirm(&outcome)?,
        End::Partial => questions.confirm(&outcome)?,
    };
    if allowed {
        write(args, spec, &device, &outcome)?;
    }
    end(&name, &outcome, allowed, written_before)
}

fn print(args: &FsckArgs, name: &str, outcome: &Outcome) -> Result<()> {
    let mut out = Output::new();
    if args.json {
        let mut value = show::as_json(name, &outcome.report);
        value["plan"] = show::plan_as_json(outcome);
        writeln!(out, "{}", escaped(&format!("{value:#}")))?;
    } else {
        if outcome.replayed > 0 {
            writeln!(out, "replay: {} transactions of the log", outcome.replayed)?;
        }
        show::plan(&mut out, outcome)?;
        if outcome.fast_commits > 0 {
            writeln!(out, "loses: {} fast commits of the log, which could not be applied", outcome.fast_commits)?;
        }
    }
    Ok(out.flush()?)
}

/// `replayed`: the log on another device was replayed before the check.
fn end(name: &str, outcome: &Outcome, written: bool, replayed: bool) -> Result<()> {
    let (mut out, steps) = (Output::new(), outcome.steps.len());
    let by_backup = outcome.report.notes.iter().any(|note| matches!(note, Note::BackupSuperblock { .. }));
    let totals = [Problem::FreeBlockCount, Problem::FreeInodeCount];
    let has_totals = totals.iter().any(|total| outcome.report.count(*total) > 0);
    let line = match (outcome.end, written) {
        (End::Sound, _) if replayed => "the log is replayed, no damage".to_owned(),
        (End::Sound, _) => "no damage".to_owned(),
        (End::Proved, true) if steps == 0 && outcome.replayed > 0 => "the log is replayed, no damage".to_owned(),
        (End::Proved, true) if steps == 0 && by_backup => "the superblock is repaired, no other damage".to_owned(),
        (End::Proved, true) if steps == 0 && has_totals => {
            "no damage, and the superblock's totals are right now".to_owned()
        }
        (End::Proved, true) if steps == 0 => "no damage, and marked as clean".to_owned(),
        (End::Proved, true) => format!("repaired in {steps} steps"),
        (End::Partial, true) => format!("repaired in {steps} steps, but not all of it"),
        (End::Refused, _) => "damaged, and not changed: no repair makes it free of errors".to_owned(),
        (_, false) => "damaged, and not changed".to_owned(),
    };
    writeln!(out, "{name}: {line}")?;
    out.flush()?;
    let status = match (outcome.end, written) {
        (End::Sound, _) if replayed => CORRECTED,
        (End::Sound, _) => return Ok(()),
        (End::Proved, true) => CORRECTED,
        (End::Partial, true) => CORRECTED | UNCORRECTED,
        (End::Refused, _) if !outcome.report.complete => UNCORRECTED | OPERATIONAL,
        _ => UNCORRECTED,
    };
    Err(Failure::silent(status))
}

/// Writes a verified repair.
fn write(args: &FsckArgs, spec: &ImageSpec, device: &Arc<dyn BlockDevice>, outcome: &Outcome) -> Result<()> {
    let wanted = args.letters.undo_file.as_ref().map(Path::new);
    let (written, record) = change::write(spec, device, outcome, wanted, args.no_undo);
    let name = spec.shown();
    let image = image_argument(spec);
    let how = |record: &Path| format!("'{}'", change::undo_command(record, spec));
    match (written, record) {
        (Ok(WriteMethod::Journal { blocks }), _) if !args.json => {
            writeln!(std::io::stdout(), "{name}: {blocks} blocks written as one transaction of the journal")?;
        }
        (Ok(WriteMethod::Undo { blocks }), Some(record)) if !args.json => {
            writeln!(std::io::stdout(), "{name}: {blocks} blocks written; {} undoes it", how(&record))?;
        }
        (Ok(WriteMethod::Plain { blocks }), _) if !args.json => {
            writeln!(std::io::stdout(), "{name}: {blocks} blocks written, without a record of the old ones")?;
        }
        (Ok(_), _) => {}
        (Err(e), record) => {
            let stands = if let extant_repair::Error::Write { stands, .. } = e { stands } else { ImageState::Old };
            let (state, next) = match (stands, &record) {
                (ImageState::Old, Some(record)) => {
                    // Nothing refers to the record.
                    let _ = std::fs::remove_file(record);
                    let places = format!("'extant fsck -y -z FILE {image}' keeps the old blocks in another place");
                    ("the image is not changed", places)
                }
                (ImageState::Old, None) => ("the image is not changed", again(&image)),
                (ImageState::Log, _) => ("the repair is in the image's log, or not begun", again(&image)),
                (ImageState::Recorded, Some(record)) => {
                    let undone = how(record);
                    let anew = format!("{undone} brings back the state before it, and then {}", again(&image));
                    ("the repair may be written in part", anew)
                }
                (ImageState::Mixture | ImageState::Recorded, _) => ("the repair may be written in part", again(&image)),
            };
            return Err(Failure::new(OPERATIONAL, format!("{name}: {state}: {e}; {next}")));
        }
    }
    Ok(())
}

/// The next step after a failed write.
fn again(image: &str) -> String {
    format!("'extant fsck -y {image}' goes on")
}

/// Warns about an interrupted repair.
pub fn mention_unfinished(device: &dyn BlockDevice, spec: &ImageSpec) {
    if let Some(record) = unfinished(device) {
        let undone = change::undo_command(Path::new(OsStr::from_bytes(&record)), spec);
        warn(&format!("{}: a repair was interrupted; '{undone}' undoes it", spec.shown()));
    }
}

/// Restores the old blocks of a record.
pub fn undo(args: &FsckArgs, record: &Path) -> Result<()> {
    let how = ImageArgs { partition: args.partition, offset: args.offset, sb: Some(1), ..ImageArgs::default() };
    let spec = how.spec(&args.letters.image);
    let device = image::open(&spec, &how.access(false)).map_err(operational)?.device;
    let from = FileDevice::open(record, extant_block::device::OpenOptions { read_only: true, ..Default::default() })
        .map_err(|e| Failure::new(OPERATIONAL, e.to_string()))?;
    let blocks = extant_repair::undo(&from, &*device, args.letters.force).map_err(|e| {
        let hint = if matches!(e, extant_repair::Error::Changed { .. }) { "; -f undoes it all the same" } else { "" };
        Failure::new(OPERATIONAL, format!("{}: not undone: {e}{hint}", spec.shown()))
    })?;
    writeln!(std::io::stdout(), "{}: {blocks} blocks are as they were before the repair", spec.shown())?;
    Ok(())
}
