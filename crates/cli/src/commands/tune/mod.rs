//! `extant tune`: changes label, UUID, limits and features; also as tune2fs and e2label.
//!
//! `extant_repair::tune` makes the changes and verifies them. [`words`] turns the options into changes, [`list`] prints
//! a superblock.
//!
//! What it does not do: it changes no image that is in use, as tune2fs does with some options.
//!
//! # Locking
//! None.

mod list;
mod words;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::task;
use extant_build::options::ExternalJournal;
use extant_check::Options;
use extant_image::probe;
use extant_ondisk::features::Compat;
use extant_ondisk::superblock::SuperBlock;
use extant_repair::tune::{CannotTune, Change, Feature, tune};
use extant_repair::{Unsound, WriteMethod};

use super::change;
use super::journal_device::Journal;
use crate::args::{ImageArgs, LabelProgram, TuneArgs, TuneLetters, TuneProgram};
use crate::beside;
use crate::failure::{Failure, Result, plain_text, warn};
use crate::image::{self, ImageSpec};
use crate::text::{Output, argument};

/// The feature that a journal comes and goes with.
const HAS_JOURNAL: Feature = Feature::Compat(Compat::HAS_JOURNAL);
/// As in tune2fs, the status of every failure.
const FAILED: u8 = 1;

/// Whether `name` is a program that changes file systems like tune2fs.
pub fn is_name(name: &str) -> bool {
    name == "tune2fs"
}

/// Whether `name` is a program that prints and changes labels.
pub fn is_label_name(name: &str) -> bool {
    name == "e2label"
}

/// Runs under the name tune2fs.
pub fn run_program(program: TuneProgram) -> Result<()> {
    run(&TuneArgs { letters: program.letters, ..TuneArgs::default() })
}

/// Runs under the name e2label.
pub fn run_label(program: LabelProgram) -> Result<()> {
    let how = ImageArgs::default();
    let spec = how.spec(&program.image);
    if let Some(label) = program.label {
        let letters = TuneLetters { image: program.image, label: Some(label), ..TuneLetters::default() };
        return run(&TuneArgs { letters, ..TuneArgs::default() });
    }
    let print = || -> Result<()> {
        let (device, _beside) = beside::open(&spec, &how)?;
        let (sb, _) = probe(&*device)?;
        let label = sb.raw().s_volume_name;
        let end = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
        let mut out = Output::new();
        out.name(&label[..end])?;
        writeln!(out)?;
        Ok(out.flush()?)
    };
    print().map_err(|e| e.with_status(FAILED))
}

pub fn run(args: &TuneArgs) -> Result<()> {
    let how = ImageArgs { partition: args.partition, offset: args.offset, ..ImageArgs::default() };
    let spec = how.spec(&args.letters.image);
    work(args, &how, &spec).map_err(|e| e.with_status(FAILED))
}

fn work(args: &TuneArgs, how: &ImageArgs, spec: &ImageSpec) -> Result<()> {
    let letters = &args.letters;
    let name = spec.shown();
    let (device, beside) = match letters.list && !words::has_changes(letters) {
        true => beside::open(spec, how)?,
        false => (image::open(spec, &how.access(false))?.device, None),
    };
    let (sb, backup) = probe(&*device)?;
    let mut asked = words::changes(letters, &sb, spec)?;
    let mut out = Output::new();
    if asked.changes.is_empty() && !matches!(asked.journal, JournalAsked::Device(_)) {
        if !letters.list {
            return Err(Failure::usage(format!("{name}: nothing to change: -l prints what there is")));
        }
        list::print(&mut out, &sb)?;
        drop(beside);
        return Ok(out.flush()?);
    }
    if !asked.changes.contains(&Change::ClearMmp) {
        change::refuse_elsewhere(&*device, spec)?;
    }
    change::refuse_unfinished(&*device, spec)?;
    if backup.is_some() {
        let image = shown(spec);
        return Err(Failure::op(format!(
            "{name}: not changed: its superblock cannot be used; 'extant fsck -fy {image}' repairs it"
        )));
    }
    let journal_blocks = match asked.journal {
        JournalAsked::Blocks(blocks) => Some(blocks),
        _ => None,
    };
    let mut journal = open_journal(&mut asked, &sb, letters.force > 0, spec)?;
    let check = Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() };
    let overlay = Arc::new(change::layers().over(device.clone()));
    let tuned = tune(overlay, &check, &asked.changes, journal_blocks).map_err(|e| refusal(spec, &e))?;
    if let (JournalAsked::Device(_), Some(journal)) = (&asked.journal, &mut journal) {
        journal.bind(sb.uuid()).map_err(|e| Failure::op(plain_text(&format!("{name}: not changed: {e}"))))?;
    }
    let (written, record) = change::write(spec, &device, &tuned.outcome, letters.undo_file.as_deref(), false);
    let how = written.map_err(|e| change::failed(spec, &device, &tuned.before, record.as_deref(), &e))?;
    if let (JournalAsked::Released(path), Some(journal)) = (&asked.journal, &mut journal) {
        // The file system does not use it any more, whatever it says.
        journal.release().map_err(|e| Failure::op(plain_text(&format!("{path}: it still names {name}: {e}"))))?;
    }
    for line in words::told(&asked.changes) {
        writeln!(out, "{name}: {line}")?;
    }
    match (how, record) {
        (WriteMethod::Journal { .. }, _) | (_, None) => {}
        (_, Some(record)) if letters.undo_file.is_some() => {
            writeln!(out, "{name}: '{}' undoes it", change::undo_command(&record, spec))?;
        }
        (_, Some(record)) => {
            if let Err(e) = std::fs::remove_file(&record) {
                warn(&format!("{}: not removed: {e}; nothing needs it any more", record.display()));
            }
        }
    }
    if letters.list {
        list::print(&mut out, &tuned.after)?;
    }
    Ok(out.flush()?)
}

fn shown(spec: &ImageSpec) -> String {
    argument(spec.source().as_os_str().as_bytes(), "")
}

/// Why a change is refused, and the next step.
fn refusal(spec: &ImageSpec, e: &CannotTune) -> Failure {
    let image = shown(spec);
    let next = match e {
        CannotTune::Unsound(Unsound::Damaged { .. } | Unsound::Unchecked { .. }) => {
            format!("; 'extant fsck -fn {image}' shows more, and 'extant fsck -fy {image}' repairs it")
        }
        CannotTune::Feature { feature, on, .. } => {
            let from = argument(&[b"image:", spec.source().as_os_str().as_bytes()].concat(), "");
            let sign = if *on { "" } else { "^" };
            format!("; 'extant mkfs --from {from} -O {sign}{feature} NEW' makes a new image with the same files")
        }
        _ => String::new(),
    };
    Failure::op(format!("{}: not changed: {e}{next}", spec.shown()))
}

/// Opens the journal on another device that is added or removed. An added one becomes a change.
fn open_journal(asked: &mut TuneRequest, sb: &SuperBlock, forced: bool, spec: &ImageSpec) -> Result<Option<Journal>> {
    let removes = Change::Feature { feature: HAS_JOURNAL, on: false };
    match (&asked.journal, sb.external_journal()) {
        (JournalAsked::Released(path), Some(uuid)) => Ok(Some(Journal::of(path, uuid, sb.uuid())?)),
        (JournalAsked::Device(path), _) => {
            let journal = Journal::open(path, Some(sb.uuid()), forced, false)?;
            let ExternalJournal { uuid, number, block_size } = journal.external();
            asked.changes.retain(|change| *change != Change::Feature { feature: HAS_JOURNAL, on: true });
            asked.changes.push(Change::ExternalJournal { uuid, number, block_size });
            Ok(Some(journal))
        }
        (_, Some(_)) if asked.changes.contains(&removes) && !forced => Err(Failure::op(format!(
            "{}: not changed: its journal is on another device, which would still name it; '-J device=DEVICE' clears \
             that, and '-f' leaves the device as it is",
            spec.shown()
        ))),
        _ => Ok(None),
    }
}

/// The changes that a command line requests.
struct TuneRequest {
    changes: Vec<Change>,
    journal: JournalAsked,
}

/// The journal that a command line requests.
enum JournalAsked {
    /// Nothing but whether there is to be one.
    Default,
    /// Its length, in the file system.
    Blocks(u32),
    /// It is on this device.
    Device(String),
    /// It is on this device, and is removed.
    Released(String),
}
