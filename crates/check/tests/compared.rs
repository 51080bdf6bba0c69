//! Damaged images of ten kinds, beside e2fsck: damage wherever e2fsck finds some, none where it finds none, and the
//! objects that it names.
//!
//! `EXTANT_SEED=KIND:SEED` looks at one image and prints both answers, KIND by its place in `mixed::KINDS`;
//! `EXTANT_SAVE=FILE` also keeps it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_check::{Finding, Options, Place, Problem, Report, Result, Severity, check};
use extant_testkit::crash::state_files;
use extant_testkit::damage::compare::{Named, Object, Tally, leave_out_echoes, named};
use extant_testkit::damage::{Edit, fsck, mixed};

fn checked(device: &MemDevice) -> Result<Report> {
    let device: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() })
}

/// The inode that the journal has.
const JOURNAL: u32 = 8;

/// What a finding names. `per_group`: inodes.
fn objects(finding: &Finding, per_group: u32) -> Vec<Object> {
    let (found, problem) = (finding.found, finding.problem);
    match finding.place {
        Place::Volume => Vec::new(),
        Place::Journal if problem == Problem::JournalBadInode => vec![Object::inode(found as u32)],
        Place::Journal => vec![Object::inode(JOURNAL)],
        Place::Group(group) => {
            let mut all = vec![Object::Group(group.0)];
            if [Problem::BbConflict, Problem::IbConflict, Problem::ItableConflict].contains(&problem) {
                all.push(Object::Blocks(found, found + finding.expected.max(1) - 1));
            }
            all
        }
        Place::Blocks(block) => {
            let counted = [Problem::BlockUsed, Problem::BlockUnused].contains(&problem);
            vec![Object::Blocks(block.0, block.0 + if counted { found.max(1) - 1 } else { 0 })]
        }
        Place::Inode(ino) => {
            let counted = [Problem::InodeUsed, Problem::InodeUnused].contains(&problem);
            vec![Object::Inodes(ino.0, ino.0 + if counted { found.max(1) as u32 - 1 } else { 0 })]
        }
        Place::Mapped { ino, lblk, block } => {
            let counted = [Problem::DupBlock, Problem::MisalignedCluster].contains(&problem);
            let count = if counted { found.max(1) } else { 1 };
            let holes = if problem == Problem::DirectoryHole { found.max(1) } else { 1 };
            vec![
                Object::inode(ino.0),
                Object::Blocks(block.0, block.0 + count - 1),
                Object::DirBlocks(ino.0, lblk, lblk + holes - 1),
            ]
        }
        Place::Attributes { ino, block } => vec![Object::inode(ino.0), Object::block(block.0)],
        Place::Entry { dir, lblk, .. } => {
            let mut all = vec![Object::inode(dir.0), Object::dir_block(dir.0, lblk.into())];
            if [Problem::InorefBgInoUninit, Problem::InorefInUnused].contains(&problem) {
                all.push(Object::Group((found as u32).saturating_sub(1) / per_group));
            }
            all
        }
    }
}

fn all_named(report: &Report, per_group: u32) -> Vec<Named> {
    let of = |finding: &Finding| {
        let code = finding.problem.code();
        objects(finding, per_group).into_iter().map(move |object| Named { code, object }).collect::<Vec<_>>()
    };
    report.findings.iter().flat_map(of).collect()
}

/// What a survey comes to.
#[derive(Default)]
struct Survey {
    images: u64,
    /// Images that e2fsck neither checked nor refused: it was stopped, or crashed.
    unanswered: u64,
    damaged: u64,
    /// What e2fsck named because of something else that it named.
    echoes: u64,
    /// Images that we call damaged and e2fsck does not, and the other way round.
    alarms: Vec<String>,
    misses: Vec<String>,
    tally: Tally,
}

impl Survey {
    fn merge(&mut self, other: Survey) {
        self.images += other.images;
        self.unanswered += other.unanswered;
        self.damaged += other.damaged;
        self.echoes += other.echoes;
        self.alarms.extend(other.alarms);
        self.misses.extend(other.misses);
        self.tally.merge(other.tally);
    }

    fn add(&mut self, kind: usize, seed: u64, dir: &std::path::Path) {
        let (image, damage) = mixed::damaged(mixed::KINDS[kind], seed);
        let what = format!("{kind}:{seed} ({:?}, {damage})", mixed::KINDS[kind]);
        if let Some(file) = std::env::var_os("EXTANT_SAVE") {
            image.save(file.as_ref()).expect("saved");
        }
        let before = image.snapshot();
        let ours = checked(&image);
        assert_eq!(image.first_difference(&before).expect("compared"), None, "{what} was changed");
        let theirs = fsck::judged(&image, dir);
        self.images += 1;
        let mut names = named(&theirs.log);
        self.echoes += leave_out_echoes(&mut names, theirs.output.contains("trying backup blocks"));
        let per_group = Edit::new(mixed::KINDS[kind].made()).geometry().inodes_per_group;
        let (found, damaged) = match &ours {
            Ok(report) => (all_named(report, per_group), report.is_damaged() || !report.complete),
            Err(_) => (Vec::new(), true),
        };
        if std::env::var_os("EXTANT_SEED").is_some() {
            println!("{what}\n{:?}\n{}\n{}", theirs.code, theirs.output, theirs.log);
            match &ours {
                Ok(report) => report.findings.iter().for_each(|f| println!("{} {f}", f.problem.name())),
                Err(e) => println!("{e}"),
            }
            let ours: BTreeSet<Named> = found.iter().copied().collect();
            println!("not named by us: {:x?}", names.iter().filter(|n| !ours.contains(n)).collect::<Vec<_>>());
        }
        let alarm = |report: &Report| {
            let damage = report.findings.iter().filter(|finding| finding.problem.severity() == Severity::Damage);
            let names: BTreeSet<&str> = damage.map(|finding| finding.problem.name()).collect();
            format!("{what}: {names:?}")
        };
        match theirs.code {
            None => self.unanswered += 1,
            Some(0) if damaged => {
                self.alarms.push(ours.as_ref().map_or_else(|e| format!("{what}: {e}"), alarm));
            }
            Some(code) if code & 12 != 0 => {
                self.damaged += 1;
                if !damaged {
                    self.misses.push(format!("{what}: {code}, {}", theirs.output));
                }
            }
            Some(_) => {}
        }
        self.tally.add(&what, &names, &found);
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} images, {} of them damaged by e2fsck's exit status; {} it did not come to an end with.\n\n",
            self.images, self.damaged, self.unanswered
        );
        let (objects, ours) = self.tally.objects;
        let _ = writeln!(text, "Of {objects} objects that its log names, {ours} are named here.\n");
        text + &self.tally.table()
    }
}

/// Looks at so many images of each kind, on two threads.
fn survey(seeds: std::ops::Range<u64>) -> Survey {
    let mut all = Survey::default();
    let next = AtomicU64::new(0);
    let count = (seeds.end - seeds.start) * mixed::KINDS.len() as u64;
    std::thread::scope(|scope| {
        let work = || {
            let mut survey = Survey::default();
            let dir = state_files();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return survey;
                }
                let kinds = mixed::KINDS.len() as u64;
                survey.add((at % kinds) as usize, seeds.start + at / kinds, dir.path());
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            all.merge(thread.join().expect("no panic"));
        }
    });
    all
}

#[test]
#[ignore = "prints what there is to mend"]
fn look() {
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        let (kind, seed) = one.split_once(':').expect("KIND:SEED");
        let mut survey = Survey::default();
        survey.add(kind.parse().expect("a number"), seed.parse().expect("a number"), state_files().path());
        return;
    }
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let from = number("EXTANT_FROM", 0);
    let survey = survey(from..from + number("EXTANT_IMAGES", 20));
    println!("{}", survey.text());
    println!("MISSES {}\n{}", survey.misses.len(), survey.misses.join("\n"));
    println!("ALARMS {}\n{}", survey.alarms.len(), survey.alarms.join("\n"));
    for (code, count) in &survey.tally.counts {
        for one in &count.missing {
            let name = Problem::from_code(*code).map_or("?", Problem::name);
            println!("MISSING {name} {one}");
        }
    }
}
