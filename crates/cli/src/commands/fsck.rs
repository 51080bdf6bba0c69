//! `extant fsck`: checks an image.
//!
//! `extant_check` does the check; this module turns its findings into lines or JSON, with e2fsck's exit statuses.
//!
//! # Locking
//! `fsck progress` (962), a leaf: the progress shown last. Held while a line is written.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::BlockDevice;
use extant_check::{Finding, Options, Place, Preen, Progress, Report, Severity};
use extant_fs::probe_superblock;
use extant_ondisk::superblock::FsState;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::args::{FsckArgs, FsckProgram, ImageArgs};
use crate::beside;
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec};
use crate::record::escaped;
use crate::text::{Output, argument};

/// Damage that was not repaired.
const UNCORRECTED: u8 = 4;
/// The check was not possible.
const OPERATIONAL: u8 = 8;
/// Wrong arguments.
pub const USAGE: u8 = 16;

static CLASS: LockClass = LockClass::new("fsck progress", 962);

/// Whether a program of this name checks file systems.
pub fn is_name(name: &str) -> bool {
    ["e2fsck", "fsck.ext2", "fsck.ext3", "fsck.ext4"].contains(&name)
}

/// Runs under one of e2fsck's names.
pub fn run_program(program: FsckProgram) -> Result<()> {
    run(&FsckArgs { letters: program.letters, threads: None, json: false, partition: None, offset: None })
}

pub fn run(args: &FsckArgs) -> Result<()> {
    let letters = &args.letters;
    if !(letters.no || letters.preen || letters.yes) {
        let image = letters.image.display();
        let message = format!("{image}: not checked: this version cannot repair yet; 'extant fsck -n' checks only");
        return Err(Failure::new(USAGE, message));
    }
    if letters.block_size.is_some_and(|size| !size.is_power_of_two() || !(1024..=65536).contains(&size)) {
        return Err(Failure::new(USAGE, "-B: a block has 1024, 2048, 4096, … or 65536 bytes"));
    }
    let how = ImageArgs {
        partition: args.partition,
        offset: args.offset,
        // The check finds the superblock itself; the image is opened regardless of its first bytes.
        sb: letters.superblock.map(|_| 1),
        ..ImageArgs::default()
    };
    let spec = how.spec(&letters.image);
    let checked = check(args, &how, &spec);
    match checked {
        Err(failure) if !letters.no && failure.status & UNCORRECTED != 0 => {
            let command = if letters.yes { "e2fsck -fy" } else { "e2fsck -fp" };
            let image = argument(spec.path.as_os_str().as_bytes(), "");
            let message =
                format!("{}: not repaired: this version cannot repair; '{command} {image}' does", spec.shown());
            Err(Failure::new(OPERATIONAL, message))
        }
        checked => checked,
    }
}

fn check(args: &FsckArgs, how: &ImageArgs, spec: &ImageSpec) -> Result<()> {
    let letters = &args.letters;
    let operational = |e: Failure| if e.status == crate::failure::USAGE { e.with_status(USAGE) } else { e };
    let (device, beside) = beside::open(spec, how).map_err(operational)?;
    let name = spec.shown();
    let clock = Clock::real();
    let options = Options {
        superblock: letters.superblock,
        block_size: letters.block_size,
        threads: args.threads.unwrap_or_else(task::processors),
        now: clock.wall().sec,
        progress: letters.progress.map(|fd| progress(fd, &name)).transpose()?,
    };
    let whole = argument(spec.path.as_os_str().as_bytes(), "");
    let search = format!("\"extant info --scan {whole}\" looks for superblocks and backups everywhere");
    let failed = |e: extant_check::Error| match e {
        extant_check::Error::NoSuperblock { .. } => {
            let checks = |image: &str, start| format!("'extant fsck -fn --offset {start} {image}' checks it");
            Failure::new(
                OPERATIONAL,
                format!("{name}: no ext2, ext3 or ext4 superblock: {}", image::search_report(&*device, checks)),
            )
        }
        extant_check::Error::BadSuperblock { .. } => Failure::new(OPERATIONAL, format!("{e}; {search}")),
        e => Failure::new(OPERATIONAL, e.to_string()),
    };
    let may_skip = !letters.force && letters.superblock.is_none() && beside.is_none();
    let marked = may_skip.then(|| clean(&*device)).flatten();
    if let Some(line) = marked
        && extant_check::is_described(&device, &options).map_err(failed)?
    {
        let mut out = Output::new();
        match args.json {
            true => writeln!(out, "{}", escaped(&format!("{:#}", json!({ "image": name, "skipped": true }))))?,
            false => writeln!(out, "{name}: {line}")?,
        }
        return Ok(out.flush()?);
    }
    let begin = clock.now_ns();
    let report = extant_check::check(&device, &options).map_err(failed)?;
    let took = clock.now_ns().saturating_sub(begin);
    for note in &report.notes {
        warn(&format!("{name}: {note}"));
    }
    let mut out = Output::new();
    if args.json {
        let mut value = as_json(&name, &report);
        value["seconds"] = (took as f64 / 1e9).into();
        writeln!(out, "{}", escaped(&format!("{value:#}")))?;
    } else {
        print(&mut out, &name, &report, letters.verbose)?;
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
        warn(&format!("{name}: {search}"));
    }
    match (report.is_damaged(), report.complete) {
        (false, true) => Ok(()),
        (true, true) => Err(Failure::silent(UNCORRECTED)),
        (true, false) => Err(Failure::silent(UNCORRECTED | OPERATIONAL)),
        (false, false) => Err(Failure::silent(OPERATIONAL)),
    }
}

/// The message for an image that is marked as clean and therefore not checked; `None`: it has to be checked.
fn clean(device: &dyn BlockDevice) -> Option<String> {
    let (sb, backup) = probe_superblock(device).ok()?;
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

fn print(out: &mut Output, name: &str, report: &Report, verbose: bool) -> Result<()> {
    for finding in &report.findings {
        let advice = if finding.problem.severity() == Severity::Advice { " (harmless)" } else { "" };
        writeln!(out, "{finding}{advice}")?;
    }
    let mut kept = BTreeMap::new();
    for finding in &report.findings {
        *kept.entry(finding.problem).or_insert(0u64) += 1;
    }
    for (problem, count) in &report.counts {
        let more = count - kept.get(problem).copied().unwrap_or(0);
        if more > 0 {
            writeln!(out, "{} {more} times more", problem.name())?;
        }
    }
    let totals = &report.totals;
    if verbose {
        writeln!(out, "{} inodes in use, {} of them directories", totals.inodes_used, totals.directories)?;
        writeln!(out, "{} blocks in use", totals.blocks_used)?;
    }
    let state = match (report.is_damaged(), report.complete) {
        (false, true) => "no damage",
        (true, true) => "damaged",
        (true, false) => "damaged, and only the superblock could be checked",
        (false, false) => "not checked: the superblock cannot be used",
    };
    let count: u64 = report.counts.values().sum();
    let findings = match count {
        0 => String::new(),
        1 => ", 1 finding".to_owned(),
        _ => format!(", {count} findings"),
    };
    writeln!(
        out,
        "{name}: {state}{findings}, {}/{} files, {}/{} blocks",
        totals.inodes_used, totals.inodes, totals.blocks_used, totals.blocks
    )?;
    Ok(())
}

fn as_json(name: &str, report: &Report) -> Value {
    let totals = &report.totals;
    json!({
        "image": name,
        "damaged": report.is_damaged(),
        "complete": report.complete,
        "notes": report.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "counts": report.counts.iter().map(|(problem, count)| (problem.name(), *count)).collect::<BTreeMap<_, _>>(),
        "inodes_used": totals.inodes_used,
        "inodes": totals.inodes,
        "directories": totals.directories,
        "blocks_used": totals.blocks_used,
        "blocks": totals.blocks,
        "requests": totals.reads,
        "read_bytes": totals.read_bytes,
    })
}

fn finding(finding: &Finding) -> Value {
    let mut value = json!({
        "code": format!("{:#08x}", finding.problem.code()),
        "name": finding.problem.name(),
        "damage": finding.problem.severity() == Severity::Damage,
        "automatic": finding.problem.preen() == Preen::Fix,
        "found": finding.found,
        "expected": finding.expected,
        "text": finding.to_string(),
    });
    if let Place::Field(name) = finding.place {
        value["field"] = name.into();
    }
    let mut put = |key: &str, number: u64| value[key] = number.into();
    match finding.place {
        Place::Volume | Place::Field(_) | Place::Journal => {}
        Place::Group(group) => put("group", group.0.into()),
        Place::Blocks(block) => put("block", block.0),
        Place::Inode(ino) => put("inode", ino.0.into()),
        Place::Usage { file, id, .. } => {
            put("inode", file.0.into());
            put("owner", id.into());
        }
        Place::Mapped { ino, lblk, block } => {
            put("inode", ino.0.into());
            put("logical_block", lblk);
            put("block", block.0);
        }
        Place::Node { ino, node, lblk, block } => {
            put("inode", ino.0.into());
            put("node", node.0);
            put("logical_block", lblk);
            put("block", block.0);
        }
        Place::Attributes { ino, block } => {
            put("inode", ino.0.into());
            put("block", block.0);
        }
        Place::Entry { dir, lblk, offset, ino } => {
            put("directory", dir.0.into());
            put("logical_block", lblk.into());
            put("offset", offset.into());
            put("inode", ino.0.into());
        }
    }
    value
}

/// The output for the progress.
enum Shown {
    Bar(ProgressBar),
    Lines(File, String),
}

struct Far {
    pass: u32,
    done: u64,
    to: Shown,
}

/// Reports the progress by a bar, or by lines of pass, part, whole and image on a file descriptor.
fn progress(fd: i32, name: &str) -> Result<Progress> {
    let to = if fd == 0 {
        let bar = ProgressBar::new(1000);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:50}] {percent}%") {
            bar.set_style(style);
        }
        Shown::Bar(bar)
    } else {
        let path = format!("/proc/self/fd/{}", fd.unsigned_abs());
        let open = OpenOptions::new().append(true).open(&path).or_else(|_| OpenOptions::new().write(true).open(&path));
        Shown::Lines(open.map_err(|e| Failure::new(USAGE, format!("-C {fd}: {e}")))?, name.to_owned())
    };
    let far = Mutex::new(&CLASS, Far { pass: 0, done: 0, to });
    Ok(Progress(Arc::new(move |pass, done, total| tell(&mut far.lock(), pass, done, total))))
}

/// Threads are not in step, so only progress beyond the last report is shown.
fn tell(far: &mut Far, pass: u32, done: u64, total: u64) {
    if (pass, done) <= (far.pass, far.done) {
        return;
    }
    (far.pass, far.done) = (pass, done);
    match &mut far.to {
        Shown::Bar(bar) => {
            bar.set_message(format!("pass {pass}"));
            bar.set_position(done * 1000 / total.max(1));
        }
        // If the reader has ended, the check goes on.
        Shown::Lines(file, name) => drop(writeln!(file, "{pass} {done} {total} {name}")),
    }
}
