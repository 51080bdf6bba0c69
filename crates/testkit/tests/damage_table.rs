//! The table of mutations against e2fsck: each damaged image has the problems that the table says.
//!
//! `EXTANT_MUTATION=text` runs those whose names contain it, on all of their images, and prints what e2fsck says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use extant_base::task;
use extant_testkit::damage::{Image, Mutation, PROBLEMS, Shown, WITHOUT, fsck, problem, table};

/// Runs each case on its own thread's turn; what they return, in the order of the cases.
fn in_parallel<T: Send + Sync + 'static>(cases: Vec<T>, run: fn(&T) -> Option<String>) -> Vec<String> {
    let (cases, next) = (Arc::new(cases), Arc::new(AtomicUsize::new(0)));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let work = |_| {
        let (cases, next) = (cases.clone(), next.clone());
        task::spawn("e2fsck", move || {
            let mut found = Vec::new();
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                found.extend(run(case));
            }
            found
        })
        .expect("thread")
    };
    let workers: Vec<_> = (0..threads).map(work).collect();
    workers.into_iter().flat_map(|w| w.join().expect("ended")).collect()
}

/// What e2fsck does not report of a mutation on an image.
fn unseen(&(mutation, image): &(&Mutation, Image)) -> Option<String> {
    let t0 = std::time::Instant::now();
    let r = unseen2(&(mutation, image));
    eprintln!("TIME {:?} {} {image:?}", t0.elapsed().as_millis(), mutation.name);
    r
}
fn unseen2(&(mutation, image): &(&Mutation, Image)) -> Option<String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let dev = mutation.on(image);
    let loud = std::env::var_os("EXTANT_MUTATION").is_some();
    let plain = fsck::e2fsck(&dev, dir.path(), "-fn", false);
    eprintln!("CODE {:?} {} {image:?}", plain.code, mutation.name);
    if loud {
        let answer = fsck::e2fsck(&dev, dir.path(), "-fn", true);
        println!("{} on {image:?}: {:?} {:x?}\n{}", mutation.name, answer.code, answer.codes, answer.output);
    }
    let missing = fsck::missing(&dev, dir.path(), &mutation.problems());
    let lines: Vec<_> = missing
        .iter()
        .map(|(p, a)| format!("{} on {image:?}: no {} ({:#08x}); exit {:?}, log {:x?}\n{}", mutation.name, p.name, p.code, a.code, a.codes, a.output))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[test]
fn images_to_damage_are_sound() {
    let failed = in_parallel(Image::ALL.to_vec(), |image| {
        let dir = tempfile::tempdir().expect("tempdir");
        let flags = if *image == Image::Dirty { "-fy" } else { "-fn" };
        let answer = fsck::e2fsck(image.made(), dir.path(), flags, false);
        (answer.code != Some(0)).then(|| format!("{image:?}: {:?}\n{}", answer.code, answer.output))
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn e2fsck_reports_what_the_table_says() {
    let chosen = std::env::var("EXTANT_MUTATION").ok();
    let cases: Vec<_> = table()
        .filter(|m| chosen.as_ref().is_none_or(|c| m.name.contains(c.as_str()) || m.expected.contains(&c.as_str())))
        .flat_map(|m| m.images.iter().map(move |&i| (m, i)))
        .collect();
    let count = cases.len();
    let failed = in_parallel(cases, unseen);
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn each_state_has_a_mutation_or_a_reason() {
    let shown: BTreeSet<_> = table().flat_map(|m| m.expected).copied().collect();
    let excused: BTreeSet<_> = WITHOUT.iter().map(|w| w.0).collect();
    let all: BTreeSet<_> = PROBLEMS.iter().map(|p| p.name).collect();
    assert_eq!(all.len(), PROBLEMS.len(), "names of problems are unique");
    let names: BTreeSet<_> = table().map(|m| m.name).collect();
    assert_eq!(names.len(), table().count(), "names of mutations are unique");
    let both: Vec<_> = shown.intersection(&excused).collect();
    assert!(both.is_empty(), "shown and excused: {both:?}");
    let neither: Vec<_> = all.iter().filter(|p| !shown.contains(*p) && !excused.contains(*p)).collect();
    println!("{} of {} states have a mutation", shown.len(), all.len());
    assert!(neither.is_empty(), "{} states have neither: {neither:?}", neither.len());
    let _ = (Shown::Check, problem::named("BB_NOT_GROUP"));
}
