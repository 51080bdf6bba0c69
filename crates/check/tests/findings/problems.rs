//! The table of damaged images: the checker finds each problem that a mutation makes, by e2fsck's number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_check::{Error, Options, Problem, Report, Severity, check};
use extant_testkit::damage::{self, problem};

fn checked(device: extant_block::device::MemDevice, threads: usize) -> Report {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let now = 1_900_000_000;
    check(&device, &Options { threads, now, ..Options::default() }).unwrap_or_else(|e| {
        // Without any superblock there is no report, and this error is the only one.
        assert!(matches!(e, Error::NoSuperblock { .. }), "{e}");
        let counts = [(Problem::SbCorrupt, 1)].into();
        Report { counts, ..Report::default() }
    })
}

#[test]
fn every_mutation_is_found_under_its_number() {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut missed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut sound = BTreeMap::new();
    for mutation in damage::table() {
        for image in mutation.images {
            // Advice that the sound image gets as well does not answer its damage.
            let before = sound.entry(format!("{image:?}")).or_insert_with(|| checked(image.made().snapshot(), 2));
            let report = checked(mutation.on(*image), 2);
            for name in mutation.expected {
                let code = problem::named(name).code;
                let known = Problem::from_code(code).unwrap_or_else(|| panic!("{name} is not in the table"));
                if report.count(known) > before.count(known) {
                    found.insert(name);
                } else {
                    let there: Vec<_> = report.counts.keys().map(|problem| problem.name()).collect();
                    missed.entry(name).or_default().push(format!("{} on {image:?}: {there:?}", mutation.name));
                }
            }
        }
    }
    let lines: Vec<_> = missed.iter().map(|(name, where_)| format!("{name}: {}", where_.join("; "))).collect();
    assert!(missed.is_empty(), "{} found, {} missed:\n{}", found.len(), missed.len(), lines.join("\n"));
}

#[test]
fn images_to_damage_have_no_damage() {
    for image in damage::Image::ALL {
        let report = checked(image.made().snapshot(), 2);
        let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        let faults: BTreeSet<&str> = image.faults().iter().copied().collect();
        let is_damage = |problem: &&Problem| problem.severity() >= Severity::Damage || faults.contains(problem.name());
        let named: BTreeSet<&str> = report.counts.keys().filter(is_damage).map(|problem| problem.name()).collect();
        // Counts that e2fsck makes otherwise because of a fault are not wrong here.
        let agrees = named.is_subset(&faults) && named.is_empty() == faults.is_empty();
        assert!(agrees && report.complete, "{image:?}: {found:#?}");
    }
}
