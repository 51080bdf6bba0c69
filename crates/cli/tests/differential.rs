//! The same work through Extant's mount and through the kernel's driver: answers, trees and e2fsck must agree, for
//! every kind of image.
//!
//! Both mount with noatime: comparing the trees must not change them.
//!
//! Needs root (loop mounts) and /dev/fuse; otherwise prints a line and passes.

use std::path::Path;
use std::time::Instant;

use extant_testkit::Result;
use extant_testkit::differential::{MountFn, Plan, alternates, extant, reads, trees, writes};
use extant_testkit::kinds::{ImageKind, chosen};
use extant_testkit::mount::{fuse_works, loop_mounts_work};

const BINARY: &str = env!("CARGO_BIN_EXE_extant");
const WITHOUT_SHORTCUTS: &[&str] = &["-o", "noatime,no_open=0,engine=psync"];
const WRITEBACK_CACHE: &[&str] = &["-o", "noatime,writeback_cache"];
const DIRECT: &[&str] = &["-o", "noatime,io=direct,cache=16M"];

/// With the writeback cache the kernel maintains the times of open files itself, and its FUSE client has no bounds for
/// times. A time outside the image's range appears clamped only after the kernel has dropped the file.
///
/// EXTANT_SEED is added to the seed, for long runs over many.
fn plan(seed: u64, operations: usize, odd_times: bool) -> Plan {
    let more: u64 = std::env::var("EXTANT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut plan = Plan::new(seed + more, operations, 3);
    plan.workload.mix.odd_times = odd_times;
    plan
}

/// The kinds of image that a test covers. Tests of one direction with unusual options share the kinds in `make test`;
/// in the soak test, each covers all.
#[derive(Clone, Copy)]
enum Kinds {
    All,
    /// Every third kind, from this one.
    Third(usize),
}

impl Kinds {
    /// EXTANT_KINDS selects kinds by name; the test then takes its share of these.
    fn list(self) -> Vec<ImageKind> {
        let named = std::env::var_os("EXTANT_KINDS").is_some();
        match self {
            Kinds::Third(first) if !named => chosen().into_iter().skip(first).step_by(3).collect(),
            _ => chosen(),
        }
    }
}

fn for_all(kinds: Kinds, options: &[&str], plan: &Plan, run: impl Fn(&MountFn<'_>, &ImageKind, &Plan) -> Result<()>) {
    for_each_kind(kinds, options, |mount, kind| run(mount, kind, plan));
}

fn for_each_kind(kinds: Kinds, options: &[&str], run: impl Fn(&MountFn<'_>, &ImageKind) -> Result<()>) {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs loop mounts and /dev/fuse");
        return;
    }
    let mut failures = Vec::new();
    for kind in kinds.list() {
        let start = Instant::now();
        match run(&extant(Path::new(BINARY), options), &kind) {
            Ok(()) => eprintln!("{}: ok, {:.0} s", kind.name, start.elapsed().as_secs_f64()),
            Err(e) => failures.push(format!("{}: {e}", kind.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn the_kernel_reads_what_extant_writes() {
    for_all(Kinds::All, &["-o", "noatime"], &plan(1, 100, true), writes);
}

#[test]
fn the_kernel_reads_what_extant_writes_without_shortcuts() {
    for_all(Kinds::Third(0), WITHOUT_SHORTCUTS, &plan(4, 75, true), writes);
}

#[test]
fn extant_reads_what_the_kernel_writes() {
    for_all(Kinds::All, &["-o", "noatime"], &plan(2, 100, true), reads);
}

#[test]
fn both_drivers_write_in_turns() {
    for_all(Kinds::Third(1), WRITEBACK_CACHE, &plan(3, 100, false), alternates);
}

#[test]
fn both_drivers_write_in_turns_past_the_page_cache() {
    for_all(Kinds::Third(2), DIRECT, &plan(5, 75, false), alternates);
}

#[test]
#[ignore = "long: a thousand operations each way, on each kind of image; make soak"]
fn soak_the_drivers_agree_on_long_workloads() {
    for_all(Kinds::All, &["-o", "noatime"], &plan(1, 1000, true), writes);
    for_all(Kinds::All, WITHOUT_SHORTCUTS, &plan(4, 1000, true), writes);
    for_all(Kinds::All, &["-o", "noatime"], &plan(2, 1000, true), reads);
    for_all(Kinds::All, WRITEBACK_CACHE, &plan(3, 1000, false), alternates);
    for_all(Kinds::All, DIRECT, &plan(5, 1000, false), alternates);
}

/// Copies in both directions, with a tree of `files` files.
fn large_trees(files: usize) {
    for_each_kind(Kinds::All, &["-o", "noatime"], |mount, kind| {
        let nodes = trees(mount, kind, files, 6)?;
        assert!(nodes > files, "{}: {nodes} nodes of {files} files", kind.name);
        Ok(())
    });
}

#[test]
fn trees_of_five_hundred_files() {
    large_trees(500);
}

#[test]
#[ignore = "60,000 files for each kind of image, both ways: an hour on a small machine; make soak"]
fn soak_trees_of_sixty_thousand_files() {
    large_trees(60_000);
}
