//! The same workload through a mount under test and through the kernel: answers and trees must be equal.
//!
//! Main functions: [`writes`] (the mount under test writes, the kernel checks), [`reads`] (the kernel writes, the mount
//! under test reads), [`alternates`] (both write the same image in turn), [`trees`] (a large tree, both ways). Main
//! type: [`Plan`].
//!
//! The mount under test is a closure from image and directory to a mount, so the kernel can take its place, which tests
//! the harness.
//!
//! # Locking
//! None.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::kinds::ImageKind;
use crate::mount::{ExtantMount, LoopMount, Mounted};
use crate::oracle::{expect_clean, make_image};
use crate::tree::{Fingerprint, diff, fingerprint};
use crate::workload::{Report, Workload, change, materialize};
use crate::{Error, Result};

/// Mounts an image on a directory.
pub type MountFn<'a> = dyn Fn(&Path, &Path) -> Result<Box<dyn Mounted>> + 'a;

/// How much to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub workload: Workload,
    /// The total number of operations.
    pub operations: usize,
    /// The number of mounts that share the operations.
    pub rounds: usize,
}

impl Plan {
    /// All classes of operations.
    pub fn new(seed: u64, operations: usize, rounds: usize) -> Plan {
        Plan { workload: Workload::new(seed), operations, rounds: rounds.max(1) }
    }

    /// The plan with the operations that only this kind of image supports.
    fn of(&self, kind: &ImageKind) -> Plan {
        let mut plan = *self;
        plan.workload.mix.large_values = kind.options.features.contains("ea_inode");
        plan
    }

    fn range(&self, round: usize) -> Range<usize> {
        self.operations * round / self.rounds..self.operations * (round + 1) / self.rounds
    }
}

/// The kernel's own mount, as a mount under test.
pub fn kernel(image: &Path, dir: &Path) -> Result<Box<dyn Mounted>> {
    Ok(Box::new(LoopMount::new(image, dir, "")?))
}

/// Extant's mount: `binary mount OPTIONS IMAGE DIR`. In a test of the crate that builds the binary:
/// `writes(&extant(env!("CARGO_BIN_EXE_extant").as_ref(), &[]), &kind, &Plan::new(1, 400, 3))`.
pub fn extant<'a>(binary: &'a Path, options: &'a [&'a str]) -> impl Fn(&Path, &Path) -> Result<Box<dyn Mounted>> + 'a {
    move |image, dir| Ok(Box::new(ExtantMount::new(binary, options, image, dir)?))
}

/// An image in a separate directory, and a place to mount it.
struct Bench {
    _dir: tempfile::TempDir,
    image: PathBuf,
    mount_point: PathBuf,
}

impl Bench {
    fn new(kind: &ImageKind) -> Result<Bench> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("{}-", kind.name))
            .tempdir()
            .map_err(Error::io("create a directory for the image"))?;
        let image = make_image(dir.path(), &kind.options)?;
        let mount_point = dir.path().join("mnt");
        std::fs::create_dir(&mount_point).map_err(Error::io("create the mount point"))?;
        Ok(Bench { _dir: dir, image, mount_point })
    }

    /// Runs `work` in the directory of the workload, on a mount, and unmounts.
    fn with<T>(&self, mount: &MountFn<'_>, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mounted = mount(&self.image, &self.mount_point)?;
        let top = self.mount_point.join("work");
        let result = match std::fs::create_dir(&top) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists && !top.is_dir() => {
                Err(Error::io("create the directory of the workload")(e))
            }
            _ => work(&top),
        };
        let ended = mounted.unmount();
        let result = result?;
        ended?;
        Ok(result)
    }

    fn fingerprint(&self, mount: &MountFn<'_>) -> Result<Fingerprint> {
        self.with(mount, fingerprint)
    }

    /// One round of the plan: the operations, then fixed times, then the visible tree.
    fn round(&self, mount: &MountFn<'_>, plan: &Plan, round: usize) -> Result<(Report, Fingerprint)> {
        self.with(mount, |top| {
            let report = plan.workload.apply(top, plan.range(round));
            plan.workload.settle(top)?;
            Ok((report, fingerprint(top)?))
        })
    }
}

fn expect_equal(what: String, left: &Fingerprint, right: &Fingerprint) -> Result<()> {
    let difference = diff(left, right);
    if difference.is_empty() { Ok(()) } else { Err(Error::Mismatch { what, difference }) }
}

fn expect_same_answers(what: String, left: &Report, right: &Report) -> Result<()> {
    match left.first_difference(right) {
        None => Ok(()),
        Some(difference) => Err(Error::Mismatch { what, difference }),
    }
}

/// The mount under test runs the workload with remounts in between. In each round, answers and tree must equal those of
/// the kernel on a separate image. e2fsck must find nothing, and the kernel must see the same tree in the image.
pub fn writes(under_test: &MountFn<'_>, kind: &ImageKind, plan: &Plan) -> Result<()> {
    let plan = &plan.of(kind);
    let (ours, reference) = (Bench::new(kind)?, Bench::new(kind)?);
    let what = |round: usize, s: &str| format!("{}, seed {}, round {round}: {s}", kind.name, plan.workload.seed);
    for round in 0..plan.rounds {
        let (report, seen) = ours.round(under_test, plan, round)?;
        let (expected_report, expected) = reference.round(&kernel, plan, round)?;
        expect_same_answers(what(round, "answers (under test / kernel)"), &report, &expected_report)?;
        expect_equal(what(round, "trees (under test / kernel)"), &seen, &expected)?;
        expect_clean(&ours.image)?;
        let again = ours.fingerprint(under_test)?;
        expect_equal(what(round, "trees (before / after remounting)"), &seen, &again)?;
        let by_kernel = ours.fingerprint(&kernel)?;
        expect_equal(what(round, "trees (as written / as the kernel reads it)"), &seen, &by_kernel)?;
    }
    expect_clean(&ours.image)
}

/// The kernel runs the workload; the mount under test must see the tree that the kernel sees, and leave a clean image.
pub fn reads(under_test: &MountFn<'_>, kind: &ImageKind, plan: &Plan) -> Result<()> {
    let plan = &plan.of(kind);
    let bench = Bench::new(kind)?;
    for round in 0..plan.rounds {
        let (_, expected) = bench.round(&kernel, plan, round)?;
        let seen = bench.fingerprint(under_test)?;
        let what = format!("{}, seed {}, round {round}: trees (kernel / read)", kind.name, plan.workload.seed);
        expect_equal(what, &expected, &seen)?;
        expect_clean(&bench.image)?;
    }
    Ok(())
}

/// Kernel and mount under test take turns on one image; only the kernel uses the reference image.
pub fn alternates(under_test: &MountFn<'_>, kind: &ImageKind, plan: &Plan) -> Result<()> {
    let plan = &plan.of(kind);
    let (shared, reference) = (Bench::new(kind)?, Bench::new(kind)?);
    for round in 0..plan.rounds {
        let turn: &MountFn<'_> = if round % 2 == 0 { &kernel } else { under_test };
        let (report, seen) = shared.round(turn, plan, round)?;
        let (expected_report, expected) = reference.round(&kernel, plan, round)?;
        let what = |s: &str| format!("{}, seed {}, turn {round}: {s}", kind.name, plan.workload.seed);
        expect_same_answers(what("answers (in turn / kernel)"), &report, &expected_report)?;
        expect_equal(what("trees (in turn / kernel)"), &seen, &expected)?;
        expect_clean(&shared.image)?;
    }
    Ok(())
}

/// A tree of `files` regular files: one mount builds it, another of the same kind changes it, and the other side reads
/// it. First the mount under test writes and the kernel reads, then the reverse. Both trees must also be equal to one
/// another, except for their times. Returns how many nodes each has.
pub fn trees(under_test: &MountFn<'_>, kind: &ImageKind, files: usize, seed: u64) -> Result<usize> {
    /// The average space for one file; files have 20 KiB on average.
    const ROOM: u64 = 40 << 10;
    let mut kind = kind.clone();
    kind.options.size = kind.options.size.max(files as u64 * ROOM);
    let what = |s: &str| format!("{}, {files} files, seed {seed}: {s}", kind.name);
    let both_ways = |writer: &MountFn<'_>, reader: &MountFn<'_>, names: &str| {
        let bench = Bench::new(&kind)?;
        bench.with(writer, |top| materialize(top, files, seed))?;
        expect_clean(&bench.image)?;
        let (changed, seen) = bench.with(writer, |top| Ok((change(top, seed)?, fingerprint(top)?)))?;
        if changed < files / 3 {
            let difference = format!("only {changed} operations succeeded");
            return Err(Error::Mismatch { what: what("changes"), difference });
        }
        expect_clean(&bench.image)?;
        let other = bench.fingerprint(reader)?;
        expect_equal(what(&format!("trees ({names})")), &seen, &other)?;
        expect_clean(&bench.image)?;
        Ok(seen)
    };
    let timeless = |mut tree: Fingerprint| {
        for node in tree.values_mut() {
            (node.atime, node.mtime) = ((0, 0), (0, 0));
        }
        tree
    };
    let ours = timeless(both_ways(under_test, &kernel, "as written / as the kernel reads it")?);
    if kind.options.features.contains("inline_data") {
        // Linux 6.18 forgets a hole that it punches into a file with inline data, and finds the old bytes after a
        // remount.
        return Ok(ours.len());
    }
    let kernels = timeless(both_ways(&kernel, under_test, "kernel / read")?);
    expect_equal(what("trees (under test / kernel)"), &ours, &kernels)?;
    Ok(ours.len())
}
