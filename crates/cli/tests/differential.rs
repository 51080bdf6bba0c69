//! The same work through Extant's mount and through the kernel's driver: answers, trees and e2fsck must agree, for
//! every kind of image.
//!
//! Both mount with noatime: a look at the trees must not change them.
//!
//! Needs root (loop mounts) and /dev/fuse; otherwise prints a line and passes.

use std::path::Path;
use std::time::Instant;

use extant_testkit::Result;
use extant_testkit::differential::{MountFn, Plan, alternates, extant, reads, trees, writes};
use extant_testkit::kinds::{ImageKind, chosen};
use extant_testkit::mount::{fuse_works, loop_mounts_work};

const BINARY: &str = env!("CARGO_BIN_EXE_extant");

/// With the writeback cache the kernel maintains the times of open files itself, and its FUSE has no bounds of times:
/// a time outside of the image's range appears clamped only after the kernel has dropped the file.
///
/// EXTANT_SEED is added to the seed, for long runs over many.
fn plan(seed: u64, operations: usize, odd_times: bool) -> Plan {
    let more: u64 = std::env::var("EXTANT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut plan = Plan::new(seed + more, operations, 3);
    plan.workload.mix.odd_times = odd_times;
    plan
}

fn for_all(options: &[&str], plan: &Plan, run: impl Fn(&MountFn<'_>, &ImageKind, &Plan) -> Result<()>) {
    for_each_kind(options, |mount, kind| run(mount, kind, plan));
}

/// EXTANT_KINDS chooses kinds.
fn for_each_kind(options: &[&str], run: impl Fn(&MountFn<'_>, &ImageKind) -> Result<()>) {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs loop mounts and /dev/fuse");
        return;
    }
    let mut failures = Vec::new();
    for kind in chosen() {
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
    for_all(&["-o", "noatime"], &plan(1, 100, true), writes);
}

#[test]
fn the_kernel_reads_what_extant_writes_without_shortcuts() {
    for_all(&["-o", "noatime,no_open=0,engine=psync"], &plan(4, 75, true), writes);
}

#[test]
fn extant_reads_what_the_kernel_writes() {
    for_all(&["-o", "noatime"], &plan(2, 100, true), reads);
}

#[test]
fn both_drivers_write_in_turns() {
    for_all(&["-o", "noatime,writeback_cache"], &plan(3, 100, false), alternates);
}

#[test]
fn both_drivers_write_in_turns_past_the_page_cache() {
    for_all(&["-o", "noatime,io=direct,cache=16M"], &plan(5, 75, false), alternates);
}

#[test]
#[ignore = "long: a thousand operations each way, on each kind of image; make soak"]
fn soak_the_drivers_agree_on_long_workloads() {
    for_all(&["-o", "noatime"], &plan(1, 1000, true), writes);
    for_all(&["-o", "noatime"], &plan(2, 1000, true), reads);
    for_all(&["-o", "noatime,writeback_cache"], &plan(3, 1000, false), alternates);
}

/// Both ways, a tree of `files` files.
fn large_trees(files: usize) {
    for_each_kind(&["-o", "noatime"], |mount, kind| {
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
