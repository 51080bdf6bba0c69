//! The same work through Extant's mount and through the kernel's driver: answers, trees and e2fsck must agree, for
//! every kind of image.
//!
//! Both mount with noatime: comparing the trees must not change them.
//!
//! Needs root (loop mounts) and /dev/fuse; otherwise prints a line and passes.

use std::path::Path;

use extant_testkit::Result;
use extant_testkit::differential::{MountFn, Plan, alternates, extant, reads, trees, writes};
use extant_testkit::kinds::{ImageKind, chosen};
use extant_testkit::mount::{fuse_works, loop_mounts_work};
use extant_testkit::tests_of_kinds;

const BINARY: &str = env!("CARGO_BIN_EXE_extant");
const NOATIME: &[&str] = &["-o", "noatime"];
const WITHOUT_SHORTCUTS: &[&str] = &["-o", "noatime,no_open=0,engine=psync"];
const WRITEBACK_CACHE: &[&str] = &["-o", "noatime,writeback_cache"];
const DIRECT: &[&str] = &["-o", "noatime,io=direct,cache=16M"];

/// A workload of `operations` operations. EXTANT_SEED is added to `seed`, so that long runs can try many seeds.
///
/// `odd_times`: use times outside the image's range, too. Not with the writeback cache: there the kernel maintains the
/// times of open files itself, without bounds. Such a time is clamped only once the kernel has dropped the file.
fn plan(seed: u64, operations: usize, odd_times: bool) -> Plan {
    let more: u64 = std::env::var("EXTANT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut plan = Plan::new(seed + more, operations, 3);
    plan.workload.mix.odd_times = odd_times;
    plan
}

/// Panics if `run` finds a difference between Extant with these options and the kernel.
fn agrees(options: &[&str], kind: &ImageKind, run: impl FnOnce(&MountFn<'_>, &ImageKind) -> Result<()>) {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs loop mounts and /dev/fuse");
        return;
    }
    run(&extant(Path::new(BINARY), options), kind).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
}

fn kernel_reads(kind: &ImageKind, _: usize) {
    agrees(NOATIME, kind, |mount, kind| writes(mount, kind, &plan(1, 100, true)));
}

fn extant_reads(kind: &ImageKind, _: usize) {
    agrees(NOATIME, kind, |mount, kind| reads(mount, kind, &plan(2, 100, true)));
}

/// Three sets of options share the kinds; in the soak test, each covers all.
fn with_other_options(kind: &ImageKind, place: usize) {
    match place % 3 {
        0 => agrees(WITHOUT_SHORTCUTS, kind, |mount, kind| writes(mount, kind, &plan(4, 75, true))),
        1 => agrees(WRITEBACK_CACHE, kind, |mount, kind| alternates(mount, kind, &plan(3, 100, false))),
        _ => agrees(DIRECT, kind, |mount, kind| alternates(mount, kind, &plan(5, 75, false))),
    }
}

/// Copies in both directions, with a tree of `files` files.
fn large_trees(kind: &ImageKind, files: usize) {
    agrees(NOATIME, kind, |mount, kind| {
        let nodes = trees(mount, kind, files, 6)?;
        assert!(nodes > files, "{}: {nodes} nodes of {files} files", kind.name);
        Ok(())
    });
}

fn five_hundred_files(kind: &ImageKind, _: usize) {
    large_trees(kind, 500);
}

tests_of_kinds!(the_kernel_reads_what_extant_writes, kernel_reads);
tests_of_kinds!(extant_reads_what_the_kernel_writes, extant_reads);
tests_of_kinds!(drivers_agree_with_other_options, with_other_options);
tests_of_kinds!(trees_of_five_hundred_files, five_hundred_files);

/// Kinds whose names EXTANT_KINDS has, or all.
#[test]
#[ignore = "long: a thousand operations each way, on each kind of image; make soak"]
fn soak_the_drivers_agree_on_long_workloads() {
    for kind in chosen() {
        agrees(NOATIME, &kind, |mount, kind| writes(mount, kind, &plan(1, 1000, true)));
        agrees(WITHOUT_SHORTCUTS, &kind, |mount, kind| writes(mount, kind, &plan(4, 1000, true)));
        agrees(NOATIME, &kind, |mount, kind| reads(mount, kind, &plan(2, 1000, true)));
        agrees(WRITEBACK_CACHE, &kind, |mount, kind| alternates(mount, kind, &plan(3, 1000, false)));
        agrees(DIRECT, &kind, |mount, kind| alternates(mount, kind, &plan(5, 1000, false)));
        eprintln!("{}: ok", kind.name);
    }
}

#[test]
#[ignore = "60,000 files for each kind of image, both ways: an hour on a small machine; make soak"]
fn soak_trees_of_sixty_thousand_files() {
    chosen().iter().for_each(|kind| large_trees(kind, 60_000));
}
