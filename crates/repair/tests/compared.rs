//! Damaged images of twelve kinds, repaired beside e2fsck: runs until nothing is wrong, paths at their place, names
//! lost.
//!
//! `EXTANT_IMAGES=N`: N images of each kind. `EXTANT_SUMMARY=FILE` stores the summary. `EXTANT_SEED=KIND:SEED` repairs
//! one image, KIND by its place in `mixed::KINDS`.

mod judge;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::device::MemDevice;
use extant_repair::End;
use extant_testkit::crash::state_files;
use extant_testkit::damage::census::{self, Census, Difference};
use extant_testkit::damage::{fsck, mixed};

/// Runs of a program on one image.
const RUNS_MAX: usize = 3;

/// Images of each sort that the summary names.
const SHOWN_MAX: usize = 40;

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
    }

    fn add(&mut self, kind: usize, seed: u64, sound: &Census, dir: &Path) {
        let (image, what) = mixed::damaged(mixed::KINDS[kind], seed);
        let name = format!("{kind}:{seed} ({:?}: {what})", mixed::KINDS[kind]);
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

/// Repairs so many images of each kind, on two threads.
fn survey(each: u64) -> BTreeMap<usize, Survey> {
    let kinds = mixed::KINDS.len() as u64;
    let sound: Vec<Census> = mixed::KINDS.iter().map(|kind| census::take(kind.made())).collect();
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
                own.entry(kind).or_default().add(kind, at / kinds, &sound[kind], dir.path());
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
        text.push_str(&survey.rows(&format!("{:?}", mixed::KINDS[*kind])));
    }
    text.push_str(&all.rows("all"));
    for (what, list) in [
        ("e2fsck leaves more paths in their place", &all.worse),
        ("No repair was proved, so the image is untouched", &all.refused),
        ("e2fsck finds damage after the repair", &all.doubted),
        ("Losses that the plan does not name", &all.unnamed),
        ("A second run would write", &all.restless),
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
    }
    text
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

#[test]
#[ignore = "some minutes: scripts/repair-compared.sh"]
fn soak_more_paths_stay_in_place_than_with_e2fsck() {
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        let (kind, seed) = one.split_once(':').expect("KIND:SEED");
        let (kind, seed): (usize, u64) = (kind.parse().expect("a number"), seed.parse().expect("a number"));
        let (image, what) = mixed::damaged(mixed::KINDS[kind], seed);
        let sound = census::take(mixed::KINDS[kind].made());
        println!("{}", judge::judge(what, &sound, &image, state_files().path()).text());
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
    assert!(all.ours.after >= all.theirs.after, "{:?} {:?}", all.ours, all.theirs);
}
