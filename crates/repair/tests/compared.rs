//! Damaged images of twelve kinds, repaired beside e2fsck: runs until nothing is wrong, paths at their place, names
//! lost.
//!
//! `EXTANT_IMAGES=N`: N images of each kind. `EXTANT_SUMMARY=FILE` stores the summary. `EXTANT_SEED=KIND:SEED,...`
//! repairs single images, KIND by its place in [`KINDS`], and prints their plans; `EXTANT_SAVE=FILE` saves the
//! last of them.

mod judge;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::device::MemDevice;
use extant_repair::End;
use extant_testkit::crash::state_files;
use extant_testkit::damage::census::{self, Census, Difference};
use extant_testkit::damage::{Image, fsck, mixed};
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};

/// The kinds of images: the first ones of the table for the checker.
const KINDS: &[Image] = mixed::KINDS.split_at(12).0;

/// Runs of a program on one image.
const RUNS_MAX: usize = 3;

/// Repaired images that the kernel mounts, about.
const MOUNTED_MAX: u64 = 96;

/// Images of each sort that the summary names.
const SHOWN_MAX: usize = 40;

/// Why a repair is refused, by a part of what it says.
const REASONS: [(&str, &str); 6] = [
    ("superblock found", "Neither the superblock nor a backup is left. e2fsck cannot open the image either."),
    (
        "comes to an end",
        "The superblock describes a layout that cannot be. Neither other values nor a backup give one that can.",
    ),
    ("no superblock leaves", "Every superblock that can be tried leaves as much damage."),
    ("inode table is lost", "No descriptor says where a table is, and something else lies where mke2fs puts it."),
    (
        "too many rounds",
        "So much is damaged that eight rounds do not suffice. A second run begins anew, and ends there, too.",
    ),
    ("", "The steps for this damage leave it as it is."),
];

/// The reasons for refusals with their numbers.
fn by_reason(refused: &[String]) -> String {
    let reason = |one: &String| REASONS.iter().position(|(part, _)| one.contains(part)).unwrap_or(REASONS.len() - 1);
    let mut text = String::new();
    for (at, (_, why)) in REASONS.iter().enumerate() {
        let count = refused.iter().filter(|one| reason(one) == at).count();
        if count > 0 {
            let _ = writeln!(text, "- {count}: {why}");
        }
    }
    text
}

/// The counts of one program.
#[derive(Default, Debug)]
struct Count {
    one: usize,
    more: usize,
    never: usize,
    after: u64,
    gone: usize,
    moved: usize,
    attributes: usize,
}

impl Count {
    fn add(&mut self, runs: Option<usize>, difference: &Difference) {
        match runs {
            Some(1) => self.one += 1,
            Some(_) => self.more += 1,
            None => self.never += 1,
        }
        self.after += difference.after;
        self.gone += difference.gone.len();
        self.moved += difference.moved.len();
        self.attributes += difference.attributes.len();
    }

    fn merge(&mut self, other: &Count) {
        (self.one, self.more, self.never) = (self.one + other.one, self.more + other.more, self.never + other.never);
        self.after += other.after;
        self.gone += other.gone;
        self.moved += other.moved;
        self.attributes += other.attributes;
    }

    fn row(&self) -> String {
        let Count { one, more, never, after, gone, moved, attributes } = self;
        format!("{one} / {more} / {never} | {after} | {gone} | {moved} | {attributes} |")
    }
}

/// The counts of one kind, or of all.
#[derive(Default)]
struct Survey {
    images: usize,
    paths: u64,
    damaged: u64,
    ours: Count,
    theirs: Count,
    /// Images of which e2fsck leaves more paths in their place.
    worse: Vec<String>,
    /// Repairs after which e2fsck finds damage.
    doubted: Vec<String>,
    /// Images for which there is no proved repair.
    refused: Vec<String>,
    /// Losses that no plan names.
    unnamed: Vec<String>,
    /// Sound images that a second run would write to.
    restless: Vec<String>,
    /// Repaired images that the kernel has mounted and read whole.
    mounted: usize,
    /// Repaired images that the kernel does not mount, or does not read.
    unread: Vec<String>,
}

impl Survey {
    fn merge(&mut self, other: &Survey) {
        self.images += other.images;
        self.paths += other.paths;
        self.damaged += other.damaged;
        self.ours.merge(&other.ours);
        self.theirs.merge(&other.theirs);
        self.worse.extend(other.worse.iter().cloned());
        self.doubted.extend(other.doubted.iter().cloned());
        self.refused.extend(other.refused.iter().cloned());
        self.unnamed.extend(other.unnamed.iter().cloned());
        self.restless.extend(other.restless.iter().cloned());
        self.mounted += other.mounted;
        self.unread.extend(other.unread.iter().cloned());
    }

    fn add(&mut self, (kind, seed): (usize, u64), sound: &Census, mounts: bool, dir: &Path) {
        let (image, what) = mixed::damaged(KINDS[kind], seed);
        let name = format!("{kind}:{seed} ({:?}: {what})", KINDS[kind]);
        let verdict = judge::judge(name.clone(), sound, &image, dir);
        let (runs, after) = theirs(&image, dir);
        let other = census::compare(sound, &census::take(&image), &census::take(&after));
        self.images += 1;
        self.paths += verdict.difference.paths as u64;
        self.damaged += verdict.difference.before as u64;
        let is_done = matches!(verdict.end, Some(End::Proved | End::Sound));
        self.ours.add((is_done && verdict.is_clean()).then_some(1), &verdict.difference);
        self.theirs.add(runs, &other);
        if is_done && !verdict.is_clean() {
            self.doubted.push(verdict.text());
        }
        if !is_done {
            let why = verdict.left.first().map_or("no check of it comes to an end", String::as_str);
            // Without the name of the image, which changes.
            let why = if why.starts_with('/') { why.split_once(": ").map_or(why, |(_, rest)| rest) } else { why };
            self.refused.push(format!("{name}: {why}"));
        }
        if verdict.difference.after < other.after {
            self.worse.push(format!("{name}: {} paths in place, e2fsck {}", verdict.difference.after, other.after));
        }
        if !verdict.unnamed.is_empty() {
            self.unnamed.push(verdict.text());
        }
        if verdict.end == Some(End::Proved) {
            let repaired = judge::result(&image, &judge::proved(&image).expect("proved before"));
            let again = judge::proved(&repaired);
            if mounts {
                match read_by_kernel(&repaired, dir) {
                    Ok(files) if files > 0 || verdict.difference.after == 0 => self.mounted += 1,
                    Ok(files) => self.unread.push(format!("{name}: {files} files of {}", verdict.difference.after)),
                    Err(why) => self.unread.push(format!("{name}: {why}")),
                }
            }
            if !again.is_ok_and(|outcome| outcome.end == End::Sound) {
                self.restless.push(name);
            }
        }
    }

    fn rows(&self, name: &str) -> String {
        let Survey { images, paths, damaged, ours, theirs, .. } = self;
        let (ours, theirs) = (ours.row(), theirs.row());
        format!(
            "| {name} | {images} | {paths} | {damaged} | extant fsck -y | {ours}\n| | | | | e2fsck -fy | {theirs}\n"
        )
    }
}

/// Mounts an image with the kernel's own driver, and reads every file and target. Returns the number of files.
fn read_by_kernel(image: &MemDevice, dir: &Path) -> Result<usize, String> {
    let (file, top) = (dir.join("kernel"), dir.join("mounted"));
    image.save(&file).expect("saved");
    std::fs::create_dir_all(&top).expect("a mount point");
    let mount = LoopMount::new(&file, &top, "ro").map_err(|e| e.to_string())?;
    let read = read_tree(&top);
    Box::new(mount).unmount().map_err(|e| e.to_string())?;
    read.map_err(|e| e.to_string())
}

fn read_tree(dir: &Path) -> std::io::Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let kind = std::fs::symlink_metadata(&path)?.file_type();
        files += 1;
        if kind.is_dir() {
            files += read_tree(&path)?;
        } else if kind.is_symlink() {
            std::fs::read_link(&path)?;
        } else if kind.is_file() {
            std::io::copy(&mut std::fs::File::open(&path)?, &mut std::io::sink())?;
        }
    }
    Ok(files)
}

/// Runs `e2fsck -fy` until `e2fsck -fn` finds nothing: the runs that this took, and the image then.
fn theirs(image: &MemDevice, dir: &Path) -> (Option<usize>, MemDevice) {
    let mut now = image.snapshot();
    for run in 1..=RUNS_MAX {
        let answer = fsck::e2fsck(&now, dir, "-fy", false);
        now = MemDevice::load(&dir.join("image")).expect("loaded");
        if fsck::judged(&now, dir).code == Some(0) {
            return (Some(run), now);
        }
        if answer.code.is_none_or(|code| code & 8 != 0) {
            break;
        }
    }
    (None, now)
}

/// Repairs `each` images of each kind, on two threads. The kernel mounts up to [`MOUNTED_MAX`] of the repaired ones.
fn survey(each: u64) -> BTreeMap<usize, Survey> {
    let kinds = KINDS.len() as u64;
    // Of each kind that the kernel knows, the first ones with an odd seed, whose damage is mixed.
    let dir = state_files();
    let is_known = |kind: &Image| loop_mounts_work() && read_by_kernel(kind.made(), dir.path()).is_ok();
    let known: Vec<bool> = KINDS.iter().map(is_known).collect();
    let mounts =
        |kind: usize, seed: u64| known[kind] && loop_mounts_work() && seed % 2 == 1 && seed / 2 < MOUNTED_MAX / kinds;
    let sound: Vec<Census> = KINDS.iter().map(|kind| census::take(kind.made())).collect();
    let next = AtomicU64::new(0);
    let mut all: BTreeMap<usize, Survey> = BTreeMap::new();
    std::thread::scope(|scope| {
        let work = || {
            let mut own: BTreeMap<usize, Survey> = BTreeMap::new();
            let dir = state_files();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= each * kinds {
                    return own;
                }
                let kind = (at % kinds) as usize;
                let seed = at / kinds;
                own.entry(kind).or_default().add((kind, seed), &sound[kind], mounts(kind, seed), dir.path());
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            for (kind, survey) in thread.join().expect("no panic") {
                all.entry(kind).or_default().merge(&survey);
            }
        }
    });
    all
}

fn text(each: &BTreeMap<usize, Survey>, all: &Survey) -> String {
    let version = fsck::version();
    let mut text = format!(
        "{} damaged images of {} kinds, each repaired once by `extant fsck -y`, and by `e2fsck -fy` (1.47.{version}) up to \
         {RUNS_MAX} times.\n`e2fsck -fn` judges both. The undamaged image tells which paths belong where.\n\n\
         | kind | images | paths | in place when damaged | | clean after one run / more / never | in place after | \
         readable before and gone | names lost | attributes lost |\n\
         |---|---:|---:|---:|---|---:|---:|---:|---:|---:|\n",
        all.images,
        each.len()
    );
    for (kind, survey) in each {
        text.push_str(&survey.rows(&format!("{:?}", KINDS[*kind])));
    }
    text.push_str(&all.rows("all"));
    let _ = writeln!(text, "\nThe kernel mounts and reads whole: {} repaired images.", all.mounted);
    for (what, list) in [
        ("e2fsck leaves more paths in their place", &all.worse),
        ("No repair was proved, so the image is untouched", &all.refused),
        ("e2fsck finds damage after the repair", &all.doubted),
        ("Losses that the plan does not name", &all.unnamed),
        ("A second run would write", &all.restless),
        ("The kernel does not mount or read the repaired image", &all.unread),
    ] {
        let _ = writeln!(text, "\n{what}: {}.", list.len());
        if !list.is_empty() {
            text.push('\n');
        }
        for one in list.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "- {}", one.lines().next().unwrap_or_default());
        }
        if list.len() > SHOWN_MAX {
            let _ = writeln!(text, "- and {} more", list.len() - SHOWN_MAX);
        }
        if what.starts_with("No repair") && !list.is_empty() {
            let _ = write!(text, "\nBy reason:\n\n{}", by_reason(list));
        }
    }
    text
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

/// Repairs one image, and prints the plan beside what e2fsck leaves.
fn show(one: &str) {
    let (kind, seed) = one.split_once(':').expect("KIND:SEED");
    let (kind, seed): (usize, u64) = (kind.parse().expect("a number"), seed.parse().expect("a number"));
    let (image, what) = mixed::damaged(KINDS[kind], seed);
    if let Some(file) = std::env::var_os("EXTANT_SAVE") {
        image.save(Path::new(&file)).expect("saved");
    }
    let sound = census::take(KINDS[kind].made());
    let dir = state_files();
    let verdict = judge::judge(format!("{one} ({what})"), &sound, &image, dir.path());
    let (runs, after) = theirs(&image, dir.path());
    let (damaged, after) = (census::take(&image), census::take(&after));
    let other = census::compare(&sound, &damaged, &after);
    let outcome = judge::proved(&image);
    if let Ok(outcome) = outcome {
        let again = judge::proved(&judge::result(&image, &outcome));
        let again = again.map(|outcome| (outcome.end, outcome.device.pieces(), outcome.steps));
        println!("again: {:?}", again.map_err(|e| e.to_string()));
    }
    println!("{}  e2fsck -fy: {runs:?} runs, {} paths", verdict.text(), other.after);
    let missing = |path: &&Vec<u8>| after.contains_key(*path) && !damaged.contains_key(*path);
    let names: Vec<_> = sound.keys().filter(missing).map(|path| String::from_utf8_lossy(path)).take(9).collect();
    println!("  paths that e2fsck brings back: {names:?}");
}

#[test]
#[ignore = "some minutes: scripts/repair-compared.sh"]
fn soak_more_paths_stay_in_place_than_with_e2fsck() {
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        one.split(',').for_each(show);
        return;
    }
    let each = survey(number("EXTANT_IMAGES", 10));
    let mut all = Survey::default();
    each.values().for_each(|survey| all.merge(survey));
    let text = text(&each, &all);
    println!("{text}");
    all.doubted.iter().chain(&all.unnamed).for_each(|one| println!("{one}"));
    if let Some(file) = std::env::var_os("EXTANT_SUMMARY") {
        let head = "<!-- Made by scripts/repair-compared.sh; do not edit. -->\n# `extant fsck -y` beside e2fsck\n\n";
        std::fs::write(file, format!("{head}{text}")).expect("written");
    }
    assert!(all.doubted.is_empty() && all.unnamed.is_empty(), "{} {}", all.doubted.len(), all.unnamed.len());
    assert!(all.restless.is_empty() && all.unread.is_empty(), "{:?} {:?}", all.restless, all.unread);
    assert!(all.ours.after >= all.theirs.after, "{:?} {:?}", all.ours, all.theirs);
}
