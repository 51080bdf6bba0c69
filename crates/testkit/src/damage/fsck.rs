//! Runs e2fsck to find the problems of an image.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::path::Path;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use super::Image;
use super::edit::word;
use super::problem::{Detection, Problem};
use crate::oracle::{run_bounded, run_command};

/// The result of e2fsck.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit status; None if it was killed or crashed.
    pub code: Option<i32>,
    /// Its output.
    pub output: String,
    /// The numbers of the problems in its log.
    pub codes: BTreeSet<u32>,
    /// The log.
    pub log: String,
}

/// The program to run.
fn program() -> String {
    std::env::var("EXTANT_E2FSCK").unwrap_or_else(|_| "e2fsck".to_owned())
}

/// N, if e2fsck's version is 1.47.N, otherwise 0: some versions do not know all problems.
///
/// # Panics
/// If it cannot be started.
pub fn version() -> u32 {
    let (_, said) = run_command(program(), &["-V"]).unwrap_or_else(|e| panic!("{e}"));
    let digits = |s: &str| s.chars().take_while(char::is_ascii_digit).collect::<String>();
    said.split_once(" 1.47.").and_then(|(_, rest)| digits(rest).parse().ok()).unwrap_or(0)
}

/// Runs e2fsck with `flags` on a copy of `image` in `dir`, with its problem log if `log`. On some images e2fsck crashes
/// when it writes the log: to get the exit status, run it without.
///
/// # Panics
/// If it cannot be started.
pub fn e2fsck(image: &MemDevice, dir: &Path, flags: &str, log: bool) -> Answer {
    save(image, None, dir);
    run(dir, &[flags], log)
}

/// As [`e2fsck`], for an image of `kind`, which may have a disk for its journal.
///
/// # Panics
/// If it cannot be started.
pub fn e2fsck_of(kind: Image, image: &MemDevice, dir: &Path, flags: &str, log: bool) -> Answer {
    save(image, kind.journal_at(), dir);
    run(dir, &[flags], log)
}

/// Saves the image in `dir`, and the journal's disk, which begins at byte `journal_at`.
fn save(image: &MemDevice, journal_at: Option<u64>, dir: &Path) {
    let (path, journal) = (dir.join("image"), dir.join("journal"));
    image.save(&path).expect("saved");
    let _ = std::fs::remove_file(&journal);
    if let Some(at) = journal_at {
        let mut bytes = vec![0; (image.size_bytes() - at) as usize];
        image.read_at(at, &mut bytes, BioFlags::empty()).expect("memory");
        std::fs::write(&journal, bytes).expect("saved");
        let file = std::fs::File::options().write(true).open(&path).expect("opened");
        file.set_len(at).expect("cut off");
    }
}

/// Runs e2fsck on the image in `dir`, with the journal there.
fn run(dir: &Path, flags: &[&str], log: bool) -> Answer {
    let (path, list) = (dir.join("image"), dir.join("log"));
    let _ = std::fs::remove_file(&list);
    let option = format!("problem_log={}", list.display());
    let program = program();
    let mut args = flags.to_vec();
    let journal = dir.join("journal");
    if journal.exists() {
        args.extend(["-j", journal.to_str().expect("UTF-8")]);
    }
    if log {
        args.extend(["-E", &option]);
    }
    args.push(path.to_str().expect("UTF-8"));
    // e2fsck hangs on some images.
    let (code, output) = run_bounded(20, &program, &args).unwrap_or_else(|e| panic!("{e}"));
    let text = String::from_utf8_lossy(&std::fs::read(&list).unwrap_or_default()).into_owned();
    let codes = text.split("<problem code=\"0x").skip(1).filter_map(|p| u32::from_str_radix(p.get(..6)?, 16).ok());
    let codes = codes.collect();
    Answer { code, output, codes, log: text }
}

/// The problems that e2fsck finds in an image after its log has been replayed, on a copy in `dir`. The exit status is
/// that of a run without the problem log. The statuses of replay and check are merged.
///
/// # Panics
/// If it cannot be started.
pub fn judged(image: &MemDevice, dir: &Path) -> Answer {
    save(image, None, dir);
    judged_in(image, dir)
}

/// As [`judged`], for an image of `kind`, which may have a disk for its journal.
///
/// # Panics
/// If it cannot be started.
pub fn judged_of(kind: Image, image: &MemDevice, dir: &Path) -> Answer {
    save(image, kind.journal_at(), dir);
    judged_in(image, dir)
}

/// The problems of the image that is saved in `dir`.
fn judged_in(image: &MemDevice, dir: &Path) -> Answer {
    let mut replay = None;
    if waits_for_replay(image) {
        let log = run(dir, &["-y", "-E", "journal_only"], false);
        replay = Some(log);
    }
    let code = run(dir, &["-fn"], false).code;
    let mut answer = run(dir, &["-fn"], true);
    answer.code = code;
    if let Some(replay) = replay {
        answer.output.insert_str(0, &replay.output);
        // Status 1 means that it has replayed the log. With a backup of the superblock, it continues and repairs.
        let repaired = if replay.output.contains("Pass 1") { 4 } else { 0 };
        answer.code = code.zip(replay.code).map(|(code, replay)| code | (replay & !1) | repaired);
    }
    answer
}

/// Whether the superblock requires a replay of the journal.
fn waits_for_replay(image: &MemDevice) -> bool {
    const HAS_JOURNAL: u32 = 4;
    const NEEDS_RECOVERY: u32 = 4;
    let mut sb = [0; SUPERBLOCK_SIZE];
    let read = image.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::empty());
    read.is_ok() && word(&sb, 0x5c) & HAS_JOURNAL != 0 && word(&sb, 0x60) & NEEDS_RECOVERY != 0
}

/// Those of `problems` that e2fsck does not report, each in the way in which it is reported.
pub fn missing(image: &MemDevice, dir: &Path, problems: &[Problem]) -> Vec<(Problem, Answer)> {
    let mut check = None;
    let mut repair = None;
    let mut left = Vec::new();
    for &problem in problems {
        let answer = match problem.shown {
            Detection::Repair => repair.get_or_insert_with(|| e2fsck(image, dir, "-fy", true)),
            _ => check.get_or_insert_with(|| e2fsck(image, dir, "-fn", true)),
        };
        let found = match problem.shown {
            Detection::Says(text) => answer.output.contains(text),
            _ => answer.codes.contains(&problem.code),
        };
        if !found {
            left.push((problem, answer.clone()));
        }
    }
    left
}
