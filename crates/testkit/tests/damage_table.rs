//! Checks the table of mutations against e2fsck: each damaged image has the problems that the table lists.
//!
//! `EXTANT_MUTATION=TEXT` runs only mutations whose names contain the text or that produce the problem of that name,
//! and prints the output of `e2fsck -fn`. `EXTANT_E2FSCK=FILE` runs another e2fsck instead of the installed one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_base::task;
use extant_testkit::damage::{Detection, Image, Mutation, PROBLEMS, WITHOUT, fsck, problem, table};

/// The document that lists the problems without a mutation.
const DOCUMENT: &str = include_str!("../../../docs/fsck.md");

/// Lines of e2fsck's log that frame those of [`Image::faults`]: differences of a bitmap begin and end, and a range of
/// blocks has a number of its own.
const OF_FAULTS: [u32; 3] = [0x05_0003, 0x05_0006, 0x05_0014];

/// Runs the cases on as many threads as there are processors. Returns the failures.
fn in_parallel<T: Send + Sync + 'static>(cases: Vec<T>, run: fn(&T) -> Option<String>) -> Vec<String> {
    let (cases, next) = (Arc::new(cases), Arc::new(AtomicUsize::new(0)));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let work = |_| {
        let (cases, next) = (cases.clone(), next.clone());
        task::spawn("e2fsck", move || {
            let mut complaints = Vec::new();
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                complaints.extend(run(case));
            }
            complaints
        })
        .expect("thread")
    };
    let workers: Vec<_> = (0..threads).map(work).collect();
    workers.into_iter().flat_map(|w| w.join().expect("a worker that ends")).collect()
}

/// The problems of a mutation that e2fsck does not report on an image.
fn unreported(&(mutation, image): &(&Mutation, Image)) -> Option<String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let dev = mutation.on(image);
    if std::env::var_os("EXTANT_MUTATION").is_some() {
        let answer = fsck::e2fsck(&dev, dir.path(), "-fn", true);
        println!("{} on {image:?}: {:?} {:x?}\n{}", mutation.name, answer.code, answer.codes, answer.output);
    }
    let missing = fsck::missing(&dev, dir.path(), &mutation.problems());
    let line = |(p, a): &(_, fsck::Answer)| {
        let (name, codes) = (mutation.name, &a.codes);
        format!("{name} on {image:?}: no {p:x?}; exit status {:?}, log {codes:x?}\n{}", a.code, a.output)
    };
    (!missing.is_empty()).then(|| missing.iter().map(line).collect())
}

/// The mutations that the environment selects, on each of their images.
fn cases(slow: bool) -> Vec<(&'static Mutation, Image)> {
    let chosen = std::env::var("EXTANT_MUTATION").unwrap_or_default();
    let named = |m: &&Mutation| m.name.contains(&chosen) || m.expected.contains(&chosen.as_str());
    let known = fsck::version();
    let mutations = table().filter(named).filter(|m| m.problems().iter().all(|p| p.since <= known));
    // One file of 2^25 blocks, or one cycle, takes e2fsck longer than all the others.
    let pairs = mutations.flat_map(|m| m.images.iter().map(move |&image| (m, image)));
    let is_slow = |m: &Mutation, image| image == Image::LargeBlocks || m.name == "quota tree leads in circles";
    pairs.filter(|&(m, image)| is_slow(m, image) == slow).collect()
}

#[test]
fn images_are_sound_before_damage() {
    let complaints = in_parallel(Image::ALL.to_vec(), |image| {
        let dir = tempfile::tempdir().expect("tempdir");
        // A check does not replay the journal; a repair does.
        let flags = if *image == Image::Dirty { "-fy" } else { "-fn" };
        let answer = fsck::e2fsck_of(*image, image.made(), dir.path(), flags, true);
        let faults: BTreeSet<u32> = image.faults().iter().map(|name| problem::named(name).code).collect();
        let known = |code: &u32| faults.contains(code) || OF_FAULTS.contains(code);
        let is_sound = if faults.is_empty() { answer.code == Some(0) } else { faults.is_subset(&answer.codes) };
        (!is_sound || !answer.codes.iter().all(known))
            .then(|| format!("{image:?}: {:?} {:x?}\n{}", answer.code, answer.codes, answer.output))
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn e2fsck_reports_the_problems_of_each_mutation() {
    let cases = cases(false);
    let count = cases.len();
    let complaints = in_parallel(cases, unreported);
    assert!(complaints.is_empty(), "{} of {count}:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
#[ignore = "takes half a minute"]
fn soak_e2fsck_reports_the_problems_of_slow_mutations() {
    let complaints = in_parallel(cases(true), unreported);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_mutation_gives_the_same_image_each_time() {
    for mutation in table().filter(|m| m.images.contains(&Image::Ext2)) {
        let (once, again) = (mutation.on(Image::Ext2), mutation.on(Image::Ext2));
        assert_eq!(once.first_difference(&again).expect("compared"), None, "{}", mutation.name);
        let untouched = Image::Ext2.made().first_difference(&once).expect("compared").is_none();
        assert!(!untouched, "{} changes nothing", mutation.name);
    }
}

#[test]
fn each_state_has_a_mutation_or_a_reason() {
    let shown: BTreeSet<_> = table().flat_map(|m| m.expected).copied().collect();
    let excused: BTreeSet<_> = WITHOUT.iter().map(|w| w.0).collect();
    let all: BTreeSet<_> = PROBLEMS.iter().map(|p| p.name).collect();
    assert_eq!(all.len(), PROBLEMS.len(), "names of problems are unique");
    let codes: BTreeSet<_> = PROBLEMS.iter().map(|p| p.code).collect();
    assert_eq!(codes.len(), PROBLEMS.len(), "numbers of problems are unique");
    let names: BTreeSet<_> = table().map(|m| m.name).collect();
    assert_eq!(names.len(), table().count(), "names of mutations are unique");
    let accounted: BTreeSet<_> = shown.union(&excused).copied().collect();
    assert_eq!(all, accounted);
    assert!(shown.is_disjoint(&excused), "shown and excused: {:?}", shown.intersection(&excused).collect::<Vec<_>>());
    assert!(shown.len() >= 210, "{} of {} states have a mutation", shown.len(), all.len());
}

#[test]
fn the_document_lists_the_problems_without_a_mutation() {
    let code = |name: &str| PROBLEMS.iter().find(|p| p.name == name).expect("a problem").code;
    let without = WITHOUT.iter().map(|(name, reason)| format!("| {name} | {:#08x} | {reason} |", code(name)));
    let other = PROBLEMS.iter().filter(|p| !WITHOUT.iter().any(|w| w.0 == p.name)).filter_map(|p| match p.shown {
        Detection::Check => None,
        Detection::Repair => Some(format!("| {} | {:#08x} | `-fy` reports it |", p.name, p.code)),
        Detection::Says(text) => Some(format!("| {} | {:#08x} | prints \"{text}\" and ends |", p.name, p.code)),
    });
    let expected: Vec<String> = without.chain(other).collect();
    let appendix = DOCUMENT.split_once("## Appendix").expect("an appendix").1;
    let listed: Vec<_> = appendix.lines().filter(|l| l.contains("| 0x")).collect();
    assert_eq!(listed, expected, "docs/fsck.md, appendix; the rows should be:\n{}", expected.join("\n"));
}
