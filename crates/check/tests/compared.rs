//! Damaged images of every kind of `mixed::KINDS`, beside e2fsck: damage wherever e2fsck finds some, none where it
//! finds none, and the objects that it names.
//!
//! `EXTANT_SEED=KIND:SEED` checks one image and prints both answers, KIND by its place in `mixed::KINDS`;
//! `EXTANT_SAVE=FILE` also stores it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::device::MemDevice;
use extant_check::{Finding, JournalDevice, Options, Place, Problem, Report, Result, Severity, check};
use extant_recovery::locate::read_super;
use extant_recovery::{Error, JournalFile};
use extant_testkit::crash::state_files;
use extant_testkit::damage::compare::{Echo, Named, Object, Tally, leave_out_echoes, named};
use extant_testkit::damage::{Edit, Image, fsck, mixed, problem};
use extant_testkit::tests_of_cases;

/// The report, and why the command would end before it, if it would: the journal's disk is of another file system.
fn checked(kind: Image, image: &MemDevice) -> (Result<Report>, Option<String>) {
    let (device, journal) = kind.disks(image.snapshot());
    let options = Options { threads: 2, now: 2_000_000_000, ..Options::default() };
    let Some(journal) = journal else { return (check(&device, &options), None) };
    let sb = read_super(&*device).ok();
    let opened = sb.and_then(|sb| {
        let uuid = sb.external_journal()?;
        JournalFile::open_external(journal.clone(), sb.block_size, uuid, sb.uuid()).err()
    });
    let refused = opened.filter(|e| matches!(e, Error::NoJournal { .. })).map(|e| e.to_string());
    (check(&device, &Options { journal: Some(JournalDevice(journal)), ..options }), refused)
}

/// The inode that the journal has.
const JOURNAL: u32 = 8;
/// The lowest code of inodes and of the passes after them; below are the superblock, the journal and orphans.
const PASS_1: u32 = 0x01_0000;

/// The objects that a finding names. `per_group`: the inodes of a group.
fn objects(finding: &Finding, per_group: u32) -> Vec<Object> {
    let (found, problem) = (finding.found, finding.problem);
    match finding.place {
        Place::Volume | Place::Field(_) | Place::Usage { .. } => Vec::new(),
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
        Place::Node { ino, node, lblk, block } => {
            let first = if block.0 == 0 { node.0 } else { block.0 };
            let count = if problem == Problem::MisalignedCluster { found.max(1) } else { 1 };
            vec![Object::inode(ino.0), Object::Blocks(first, first + count - 1), Object::dir_block(ino.0, lblk)]
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

/// Damage for which e2fsck ends with 0, and its consequences; `docs/fsck.md` has a row for each.
const MORE_HERE: [(Problem, &[Problem], &str); 4] = [
    (Problem::EaInodeFeature, &[Problem::BadIBlocks], "values in inodes without the feature"),
    (Problem::ExtentHeaderInvalid, &[Problem::BadIBlocks, Problem::BlockUnused], "extent node of another depth"),
    (Problem::ExtentTooDeep, &[Problem::BadIBlocks, Problem::BlockUnused], "extent tree of more than five levels"),
    (Problem::AttrNameLen, &[], "attributes of an inode without an end"),
];

/// Why an image is damaged here although e2fsck ends with 0, if that explains all of the damage.
fn explained(report: &Report) -> Option<&'static str> {
    let damage = report.findings.iter().map(|finding| finding.problem);
    let damage: BTreeSet<Problem> = damage.filter(|problem| problem.severity() == Severity::Damage).collect();
    let reason = |problem: &Problem| {
        let known = problem::PROBLEMS.iter().find(|known| known.code == problem.code());
        let more = MORE_HERE
            .iter()
            .find(|(cause, with, _)| cause == problem || (damage.contains(cause) && with.contains(problem)));
        match () {
            () if problem.code() < PASS_1 => Some("superblock, descriptors, journal, list of orphans"),
            () if known.is_some_and(|known| known.since > fsck::version()) => Some("unknown to this e2fsck"),
            () => more.map(|(_, _, why)| *why),
        }
    };
    let reasons: Option<Vec<_>> = damage.iter().map(reason).collect();
    reasons?.last().copied()
}

/// Whether e2fsck calls an image damaged only because it has pending orphans: with `-n` it does not process them.
fn has_only_orphans(named: &BTreeSet<Named>) -> bool {
    let waiting = problem::named("ORPHAN_BLOCK_DIRTY").code;
    !named.is_empty() && named.iter().all(|one| one.code == waiting)
}

/// The objects that e2fsck names in a sound image of a kind, because of a pair of features.
fn of_faults(kind: Image, dir: &Path) -> &'static BTreeSet<Named> {
    static NAMED: [OnceLock<BTreeSet<Named>>; mixed::KINDS.len()] = [const { OnceLock::new() }; mixed::KINDS.len()];
    let at = mixed::KINDS.iter().position(|one| *one == kind).expect("one of the list");
    NAMED[at].get_or_init(|| match kind.faults() {
        [] => BTreeSet::new(),
        _ => named(&fsck::judged_of(kind, kind.made(), dir).log),
    })
}

/// The results of a survey.
#[derive(Default)]
struct Survey {
    images: u64,
    /// Images that e2fsck neither checked nor refused: it was stopped, or crashed.
    unanswered: u64,
    damaged: u64,
    /// Objects that e2fsck named because of another object.
    echoes: BTreeMap<Echo, u64>,
    /// Images that we call damaged and e2fsck does not: explained, by the reason; and not.
    explained: BTreeMap<&'static str, u64>,
    alarms: Vec<String>,
    /// Images that e2fsck calls damaged and we do not.
    misses: Vec<String>,
    /// Images that e2fsck calls damaged because of orphans.
    orphans: u64,
    tally: Tally,
}

impl Survey {
    fn merge(&mut self, other: Survey) {
        self.images += other.images;
        self.unanswered += other.unanswered;
        self.damaged += other.damaged;
        for (echo, count) in other.echoes {
            *self.echoes.entry(echo).or_default() += count;
        }
        for (why, count) in other.explained {
            *self.explained.entry(why).or_default() += count;
        }
        self.alarms.extend(other.alarms);
        self.misses.extend(other.misses);
        self.orphans += other.orphans;
        self.tally.merge(other.tally);
    }

    fn add(&mut self, at: usize, seed: u64, dir: &Path) {
        let kind = mixed::KINDS[at];
        let (image, damage) = mixed::damaged(kind, seed);
        let what = format!("{at}:{seed} ({kind:?}, {damage})");
        if let Some(file) = std::env::var_os("EXTANT_SAVE") {
            image.save(file.as_ref()).expect("saved");
        }
        let before = image.snapshot();
        let (ours, refused) = checked(kind, &image);
        assert_eq!(image.first_difference(&before).expect("compared"), None, "{what} was changed");
        let of_faults = of_faults(kind, dir);
        let theirs = fsck::judged_of(kind, &image, dir);
        self.images += 1;
        let mut names = named(&theirs.log);
        names.retain(|one| !of_faults.contains(one));
        for echo in leave_out_echoes(&mut names, theirs.output.contains("trying backup blocks")).into_values() {
            *self.echoes.entry(echo).or_default() += 1;
        }
        let per_group = Edit::new(kind.made()).geometry().inodes_per_group;
        let (found, damaged) = match &ours {
            Ok(report) => (all_named(report, per_group), report.is_damaged() || !report.complete || refused.is_some()),
            Err(_) => (Vec::new(), true),
        };
        if std::env::var_os("EXTANT_SEED").is_some() {
            println!("{what}\n{:?}\n{}\n{}", theirs.code, theirs.output, theirs.log);
            println!("{refused:?}");
            match &ours {
                Ok(report) => report.findings.iter().for_each(|f| println!("{} {f}", f.problem.name())),
                Err(e) => println!("{e}"),
            }
        }
        if theirs.codes.contains(&problem::named("FIRST_META_BG_TOO_BIG").code) {
            // It goes on with descriptors that it reads from wrong places.
            names.clear();
            *self.echoes.entry(Echo::Descriptors).or_default() += 1;
        }
        match theirs.code {
            None => self.unanswered += 1,
            // It looks for the journal's UUID alone.
            Some(0) if refused.is_some() && ours.as_ref().is_ok_and(|report| !report.is_damaged()) => {
                *self.explained.entry("a journal that does not name the file system").or_default() += 1;
            }
            Some(0) if damaged => match &ours {
                Err(e) => self.alarms.push(format!("{what}: {e}")),
                Ok(report) => match explained(report) {
                    Some(why) => *self.explained.entry(why).or_default() += 1,
                    None => self.alarms.push(format!("{what}: {:?} {refused:?}", report.counts)),
                },
            },
            Some(code) if code & 12 != 0 => {
                self.damaged += 1;
                if !damaged && has_only_orphans(&names) {
                    self.orphans += 1;
                } else if !damaged {
                    self.misses.push(format!("{what}: {code}, {}", theirs.output));
                }
            }
            Some(_) => {}
        }
        self.tally.add(&what, &names, &found);
    }

    /// The summary, as Markdown.
    fn text(&self) -> String {
        let (named, ours) = self.tally.objects;
        let kinds: Vec<_> = mixed::KINDS.iter().map(|kind| format!("{kind:?}")).collect();
        let mut text = format!(
            "{} images of {} kinds ({}), checked beside e2fsck 1.47.{}.\n\n\
             - Images that e2fsck calls damaged (exit status 4 or 8): {}. Of these, Extant calls undamaged: {}.\n\
             - Images that e2fsck calls damaged only because of pending orphans, and Extant does not: {}.\n\
             - Images on which e2fsck did not finish: {}.\n\
             - Images that only Extant calls damaged, without a known reason: {}.\n",
            self.images,
            kinds.len(),
            kinds.join(", "),
            fsck::version(),
            self.damaged,
            self.misses.len(),
            self.orphans,
            self.unanswered,
            self.alarms.len(),
        );
        for (why, count) in &self.explained {
            let _ = writeln!(text, "- Images that only Extant calls damaged ({why}): {count}.");
        }
        let _ = writeln!(
            text,
            "- Damaged objects in e2fsck's log: {named}. Extant reports {ours} of them ({:.2} %).",
            ours as f64 * 100.0 / named.max(1) as f64,
        );
        for (echo, count) in &self.echoes {
            let why = match echo {
                Echo::Index => "blocks of indexes that Extant calls unusable or holes",
                Echo::InodeChecksum => "blocks of inodes with wrong checksums",
                Echo::Backup => "counts and bitmaps of a backup's descriptors",
                Echo::Descriptors => "images, with everything that descriptors in wrong places lead to",
                Echo::Context => "directories with a name of an encrypted file whose context is missing",
            };
            let _ = writeln!(text, "- Objects not counted, because other reported damage implies them: {count} {why}.");
        }
        text.push('\n');
        text + &self.tally.table()
    }

    /// Panics unless the answers agree as they must.
    fn expect_agreement(&self) {
        let (misses, alarms) = (self.misses.join("\n"), self.alarms.join("\n"));
        let agree = self.misses.is_empty() && self.alarms.is_empty();
        assert!(agree, "e2fsck alone finds damage in:\n{misses}\ne2fsck finds nothing in:\n{alarms}");
        assert!(self.damaged > self.images / 2 && self.unanswered <= self.images / 100, "{}", self.text());
        let (named, ours) = self.tally.objects;
        let missing = self.tally.counts.values().flat_map(|count| &count.missing).cloned().collect::<Vec<_>>();
        assert!(ours * 100 >= named * 99, "{ours} of {named} objects:\n{}", missing.join("\n"));
    }
}

/// Checks the images of these seeds, of each kind, on two threads.
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

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

/// In a half of the seeds.
fn agrees_with_e2fsck(half: u64) {
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        let (kind, seed) = one.split_once(':').expect("KIND:SEED");
        if half == 1 {
            return;
        }
        let mut survey = Survey::default();
        survey.add(kind.parse().expect("a number"), seed.parse().expect("a number"), state_files().path());
        survey.expect_agreement();
        return;
    }
    let images = number("EXTANT_IMAGES", 15);
    survey(images * half / 2..images * (half + 1) / 2).expect_agreement();
}

tests_of_cases!(
    damage_and_its_objects_are_found_as_e2fsck_finds_them,
    agrees_with_e2fsck,
    first_half_of_the_images: 0,
    second_half_of_the_images: 1,
);

/// `EXTANT_IMAGES=N`: N images of each kind, from `EXTANT_FROM` on. `EXTANT_SUMMARY=FILE` stores the summary.
#[test]
#[ignore = "some minutes: make soak"]
fn soak_damage_of_three_hundred_images_of_each_kind_is_found_as_e2fsck_finds_it() {
    let from = number("EXTANT_FROM", 0);
    let survey = survey(from..from + number("EXTANT_IMAGES", 300));
    println!("{}", survey.text());
    for (code, count) in &survey.tally.counts {
        let name = Problem::from_code(*code).map_or("?", Problem::name);
        count.missing.iter().for_each(|one| println!("missing: {name} {one}"));
    }
    if let Some(file) = std::env::var_os("EXTANT_SUMMARY") {
        let head = "<!-- Made by scripts/fsck-compared.sh; do not edit. -->\n# `extant fsck -n` beside e2fsck\n\n";
        std::fs::write(file, format!("{head}{}", survey.text())).expect("written");
    }
    survey.expect_agreement();
}
