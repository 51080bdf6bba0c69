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
use extant_check::Options;
use extant_image::probe;
use extant_repair::tune::{CannotTune, Change, tune};
use extant_repair::{How, Unsound};

use super::change;
use crate::args::{ImageArgs, LabelProgram, TuneArgs, TuneLetters, TuneProgram};
use crate::beside;
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec};
use crate::text::{Output, argument};

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
    let changes = words::changes(letters, &sb, spec)?;
    let mut out = Output::new();
    if changes.changes.is_empty() {
        if !letters.list {
            return Err(Failure::usage(format!("{name}: nothing to change: -l prints what there is")));
        }
        list::print(&mut out, &sb)?;
        drop(beside);
        return Ok(out.flush()?);
    }
    if !changes.changes.iter().any(|change| matches!(change, Change::ClearMmp)) {
        change::refuse_elsewhere(&*device, spec)?;
    }
    change::refuse_unfinished(&*device, spec)?;
    if backup.is_some() {
        let image = shown(spec);
        return Err(Failure::op(format!(
            "{name}: not changed: its superblock cannot be used; 'extant fsck -fy {image}' repairs it"
        )));
    }
    let check = Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() };
    let overlay = Arc::new(change::layers().over(device.clone()));
    let tuned = tune(overlay, &check, &changes.changes, changes.journal_blocks).map_err(|e| refusal(spec, &e))?;
    let (written, record) = change::write(spec, &device, &tuned.outcome, letters.undo_file.as_deref(), false);
    let how = written.map_err(|e| change::failed(spec, &device, &tuned.before, record.as_deref(), &e))?;
    for line in words::told(&changes.changes) {
        writeln!(out, "{name}: {line}")?;
    }
    match (how, record) {
        (How::Journal { .. }, _) | (_, None) => {}
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

/// The changes that a command line requests.
struct Asked {
    changes: Vec<Change>,
    journal_blocks: Option<u32>,
}
