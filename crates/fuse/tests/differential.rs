//! The file system through FUSE against the kernel's own driver: the same operations give the same answers and trees,
//! and clean images.

mod common;

use common::{Setup, can_mount};
use extant_fuse::ServerOptions;
use extant_testkit::differential::{Plan, alternates, reads, writes};
use extant_testkit::kinds::{ImageKind, kind, matrix};
use extant_testkit::tests_of_kinds;

/// With the writeback cache the kernel maintains mtime itself, and its FUSE client has no bounds for times. A time
/// outside the format's range appears clamped only after the next mount.
fn plan(seed: u64, operations: usize, rounds: usize) -> Plan {
    let mut plan = Plan::new(seed, operations, rounds);
    plan.workload.mix.odd_times = false;
    plan
}

fn same_writes(kind: &ImageKind, place: usize) {
    if !can_mount() {
        return;
    }
    let plan = plan(100 + place as u64, 100, 2);
    let server = ServerOptions { writeback_cache: place.is_multiple_of(2), ..ServerOptions::default() };
    let setup = Setup { server, ..Setup::default() };
    writes(&setup.mounting(), kind, &plan).unwrap_or_else(|e| panic!("{e}"));
}

tests_of_kinds!(writes_match_the_kernels_driver, same_writes);

#[test]
fn results_match_without_the_kernels_shortcuts() {
    if !can_mount() {
        return;
    }
    let server = ServerOptions {
        writeback_cache: false,
        no_open: false,
        no_opendir: false,
        readdirplus: false,
        ..ServerOptions::default()
    };
    let setup = Setup { server, ..Setup::default() };
    for (i, kind) in [kind("ext4", "", None, 4096), kind("ext3", "", None, 1024)].iter().enumerate() {
        let plan = Plan::new(200 + i as u64, 300, 2);
        writes(&setup.clone().mounting(), kind, &plan).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn reads_match_when_both_drivers_take_turns() {
    if !can_mount() {
        return;
    }
    for (i, kind) in [kind("ext4", "", None, 1024), kind("ext2", "", None, 4096)].iter().enumerate() {
        let seed = 300 + i as u64;
        reads(&Setup::default().mounting(), kind, &plan(seed, 300, 2)).unwrap_or_else(|e| panic!("{e}"));
        alternates(&Setup::default().mounting(), kind, &plan(seed, 300, 3)).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Many seeds: `EXTANT_SEEDS=200 cargo test -p extant-fuse --test differential -- --ignored soak`.
#[test]
#[ignore = "long"]
fn soak() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let (first, seeds) = (number("EXTANT_FIRST_SEED", 5000), number("EXTANT_SEEDS", 20));
    let kinds = matrix();
    let mut failed = 0;
    for seed in first..first + seeds {
        let kind = &kinds[seed as usize % kinds.len()];
        if let Err(e) = writes(&Setup::default().mounting(), kind, &plan(seed, 600, 3)) {
            eprintln!("{e}");
            failed += 1;
        }
    }
    assert_eq!(failed, 0);
}
