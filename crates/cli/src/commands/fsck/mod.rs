//! `extant fsck`: checks an image, and repairs it.
//!
//! `extant_check` does the check and `extant_repair` the repair; this module turns their results into lines or JSON,
//! with e2fsck's exit statuses. [`repair`] opens the image and writes, [`ask`] asks on a terminal, [`show`] prints.
//!
//! # Locking
//! None of its own.

mod ask;
mod journal;
mod progress;
mod repair;
mod show;

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::task;
use extant_block::BlockDevice;
use extant_check::{Note, Options};
use extant_image::probe;
use extant_ondisk::superblock::FsState;
use serde_json::json;

use self::progress::progress;
use crate::args::{FsckArgs, FsckProgram, ImageArgs};
use crate::beside;
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec};
use crate::record::escaped;
use crate::text::{Output, argument};

/// Damage that was repaired.
const CORRECTED: u8 = 1;
/// Damage that was not repaired.
const UNCORRECTED: u8 = 4;
/// The check was not possible.
const OPERATIONAL: u8 = 8;
/// Wrong arguments.
pub const USAGE: u8 = 16;

/// Whether `name` is a program that checks file systems.
pub fn is_name(name: &str) -> bool {
    ["e2fsck", "fsck.ext2", "fsck.ext3", "fsck.ext4", "fsck.extant"].contains(&name)
}

/// Runs under one of e2fsck's names.
pub fn run_program(program: FsckProgram) -> Result<()> {
    run(&FsckArgs { letters: program.letters, ..FsckArgs::default() })
}

pub fn run(args: &FsckArgs) -> Result<()> {
    let letters = &args.letters;
    let image = letters.image.display();
    if let Some(record) = &args.undo {
        return repair::undo(args, record);
    }
    let asks = !(letters.no || letters.preen || letters.yes);
    if asks && !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        let message = format!("{image}: not checked: there is no terminal for questions; give -n, -p or -y");
        return Err(Failure::new(USAGE, message));
    }
    if letters.block_size.is_some_and(|size| !size.is_power_of_two() || !(1024..=65536).contains(&size)) {
        return Err(Failure::new(USAGE, "-B: a block has 1024, 2048, 4096, … or 65536 bytes"));
    }
    let how = ImageArgs {
        partition: args.partition,
        offset: args.offset,
        // The check finds the superblock itself; the image is opened whatever its first bytes are.
        sb: letters.superblock.map(|_| 1),
        ..ImageArgs::default()
    };
    let spec = how.spec(&letters.image);
    if letters.no { check(args, &how, &spec) } else { repair::run(args, &how, &spec) }
}

/// Wrong options for images exit with fsck's own status.
fn operational(e: Failure) -> Failure {
    if e.status == crate::failure::USAGE { e.with_status(USAGE) } else { e }
}

/// The options of the check.
fn options(args: &FsckArgs, name: &str) -> Result<Options> {
    let letters = &args.letters;
    Ok(Options {
        superblock: letters.superblock,
        block_size: letters.block_size,
        threads: args.threads.unwrap_or_else(task::processors),
        now: Clock::real().wall().sec,
        progress: letters.progress.map(|fd| progress(fd, name)).transpose()?,
        journal: None,
    })
}

/// The failure of a check that was not possible, with the next step.
fn failed(e: extant_check::Error, device: &dyn BlockDevice, spec: &ImageSpec) -> Failure {
    let name = spec.shown();
    match e {
        extant_check::Error::NoSuperblock { .. } => {
            let checks = |image: &str, start| format!("'extant fsck -fn --offset {start} {image}' checks it");
            let report = image::search_report(device, checks);
            Failure::new(OPERATIONAL, format!("{name}: no ext2, ext3 or ext4 superblock: {report}"))
        }
        extant_check::Error::BadSuperblock { .. } => Failure::new(OPERATIONAL, format!("{e}; {}", search(spec))),
        e => Failure::new(OPERATIONAL, e.to_string()),
    }
}

fn search(spec: &ImageSpec) -> String {
    let whole = argument(spec.path.as_os_str().as_bytes(), "");
    format!("\"extant info --scan {whole}\" looks for superblocks and backups everywhere")
}

/// If the image is marked clean and may be skipped, prints that and returns true.
fn skip(args: &FsckArgs, device: &Arc<dyn BlockDevice>, spec: &ImageSpec, options: &Options) -> Result<bool> {
    let letters = &args.letters;
    let may_skip = !letters.force && letters.superblock.is_none() && !letters.optimize;
    let Some(line) = may_skip.then(|| clean(&**device)).flatten() else { return Ok(false) };
    if !extant_check::is_described(device, options).map_err(|e| failed(e, &**device, spec))? {
        return Ok(false);
    }
    let (mut out, name) = (Output::new(), spec.shown());
    match args.json {
        true => writeln!(out, "{}", escaped(&format!("{:#}", json!({ "image": name, "skipped": true }))))?,
        false => writeln!(out, "{name}: {line}")?,
    }
    out.flush()?;
    Ok(true)
}

/// Checks, and plans the repair of the findings. Nothing is written.
fn check(args: &FsckArgs, how: &ImageArgs, spec: &ImageSpec) -> Result<()> {
    let letters = &args.letters;
    let (device, beside) = beside::open(spec, how).map_err(operational)?;
    let name = spec.shown();
    let (clock, mut options) = (Clock::real(), options(args, &name)?);
    options.journal = journal::open(args, how, &*device, spec, true)?;
    if beside.is_none() && skip(args, &device, spec, &options)? {
        return Ok(());
    }
    repair::mention_unfinished(&*device, spec);
    let begin = clock.now_ns();
    let report = extant_check::check(&device, &options).map_err(|e| failed(e, &*device, spec))?;
    let took = clock.now_ns().saturating_sub(begin);
    for note in &report.notes {
        warn(&format!("{name}: {note}"));
    }
    // A plan needs memory for its changes. If an image has more damage than a report holds, -n shows no plan.
    let is_listed = report.counts.values().sum::<u64>() == report.findings.len() as u64;
    // The plan would be one for the image without its log.
    let has_log_elsewhere =
        options.journal.is_some() && report.notes.iter().any(|note| matches!(note, Note::Replayed { .. }));
    let wants_plan = report.is_damaged() && beside.is_none() && !has_log_elsewhere;
    let plan = (wants_plan && is_listed).then(|| repair::plan(&device, &options)).flatten();
    if wants_plan && !is_listed {
        warn(&format!("{name}: no repair plan is shown: there are more findings than the report holds"));
    }
    let mut out = Output::new();
    if args.json {
        let mut value = show::as_json(&name, &report);
        value["seconds"] = (took as f64 / 1e9).into();
        if let Some(plan) = &plan {
            value["plan"] = show::plan_as_json(plan);
        }
        writeln!(out, "{}", escaped(&format!("{value:#}")))?;
    } else {
        if let Some(plan) = &plan {
            show::plan(&mut out, plan)?;
        }
        show::print(&mut out, &name, &report, letters.verbose)?;
    }
    if letters.time > 0 && !args.json {
        let totals = report.totals;
        let (seconds, mib) = (took as f64 / 1e9, totals.read_bytes as f64 / f64::from(1 << 20));
        writeln!(out, "{name}: {seconds:.2} s, {mib:.1} MiB in {} requests", totals.reads)?;
    }
    out.flush()?;
    if let Some(beside) = beside {
        beside.end();
    }
    if !report.complete {
        warn(&format!("{name}: {}", search(spec)));
    }
    match (report.is_damaged(), report.complete) {
        (false, true) => Ok(()),
        (true, true) => Err(Failure::silent(UNCORRECTED)),
        (true, false) => Err(Failure::silent(UNCORRECTED | OPERATIONAL)),
        (false, false) => Err(Failure::silent(OPERATIONAL)),
    }
}

/// The message for an image that is marked clean and therefore not checked; `None` if it must be checked.
fn clean(device: &dyn BlockDevice) -> Option<String> {
    let (sb, backup) = probe(device).ok()?;
    let state = sb.state();
    if backup.is_some() || sb.needs_recovery() || !state.contains(FsState::VALID) || state.contains(FsState::ERROR) {
        return None;
    }
    let inodes = sb.inodes_count - sb.free_inodes().min(sb.inodes_count);
    let blocks = sb.blocks_count - sb.free_blocks().min(sb.blocks_count);
    Some(format!(
        "clean, {inodes}/{} files, {blocks}/{} blocks (-f checks it anyway)",
        sb.inodes_count, sb.blocks_count
    ))
}
