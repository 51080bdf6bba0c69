//! Tests the harness with the kernel on both sides: equal trees pass, and a damaged one is detected.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::task;
use extant_testkit::differential::{MountFn, Plan, alternates, kernel, reads, writes};
use extant_testkit::kinds::{ImageKind, kind, matrix};
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{debugfs_write, expect_clean, make_image};
use extant_testkit::tests_of_kinds;
use extant_testkit::tree::{diff, fingerprint};
use extant_testkit::workload::{Workload, apply, materialize};
use extant_testkit::{Error, Result};

fn skip() -> bool {
    let skip = !loop_mounts_work();
    if skip {
        eprintln!("skipped: no loop mounts here");
    }
    skip
}

fn same_twice(kind: &ImageKind, place: usize) {
    if skip() {
        return;
    }
    let plan = Plan::new(place as u64 + 1, 100, 2);
    writes(&kernel, kind, &plan).unwrap_or_else(|e| panic!("{e}"));
}

tests_of_kinds!(the_kernel_agrees_with_itself, same_twice);

#[test]
fn reading_and_taking_turns() {
    if skip() {
        return;
    }
    let kind = kind("ext4", "", None, 1024);
    reads(&kernel, &kind, &Plan::new(77, 300, 2)).unwrap_or_else(|e| panic!("{e}"));
    alternates(&kernel, &kind, &Plan::new(78, 300, 3)).unwrap_or_else(|e| panic!("{e}"));
}

/// A mount that secretly changes one inode when it ends.
struct Vandal {
    inner: Box<dyn Mounted>,
    image: std::path::PathBuf,
    request: &'static str,
}

impl Mounted for Vandal {
    fn unmount(self: Box<Self>) -> Result<()> {
        self.inner.unmount()?;
        debugfs_write(&self.image, self.request)?;
        Ok(())
    }
}

/// A new mount namespace has a copy of each mount: an image is complete only when the last copy is gone.
#[test]
fn copies_of_a_mount_are_waited_for() {
    if skip() || !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|s| s.success()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), &kind("ext4", "", None, 1024).options).unwrap();
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let mount = LoopMount::new(&image, &mnt, "").unwrap();
    std::fs::write(mnt.join("file"), vec![1; 1 << 20]).unwrap();
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo there; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut there = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut there).unwrap();
    // The end of the process is no indication: its mounts are gone before wait(2) can return.
    let let_go = Arc::new(AtomicBool::new(false));
    let (keeps, lets_go) = (other.stdin.take(), let_go.clone());
    let other_ends = task::spawn("holds the mount", move || {
        Clock::real().sleep(Duration::from_secs(1));
        lets_go.store(true, Ordering::SeqCst);
        drop(keeps);
    })
    .unwrap();
    Box::new(mount).unmount().unwrap();
    assert!(let_go.load(Ordering::SeqCst), "another process still had the mount");
    expect_clean(&image).unwrap();
    other_ends.join().unwrap();
    other.wait().unwrap();
}

#[test]
fn damage_is_found() {
    if skip() {
        return;
    }
    // A difference that e2fsck accepts, and one that it reports.
    for (request, expected) in [("sif /work mode 040711", "mode"), ("sif /work links_count 9", "e2fsck")] {
        let vandal = |image: &Path, dir: &Path| -> Result<Box<dyn Mounted>> {
            let inner: Box<dyn Mounted> = Box::new(LoopMount::new(image, dir, "")?);
            Ok(Box::new(Vandal { inner, image: image.to_owned(), request }))
        };
        let vandal: &MountFn<'_> = &vandal;
        let error = writes(vandal, &kind("ext4", "", None, 4096), &Plan::new(5, 40, 1)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_seed_determines_the_tree() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let reports: Vec<_> = dirs.iter().zip([3, 3, 4]).map(|(d, seed)| apply(d.path(), seed, 400).unwrap()).collect();
    let trees: Vec<_> = dirs.iter().map(|d| fingerprint(d.path()).unwrap()).collect();
    assert_eq!(reports[0].first_difference(&reports[1]), None);
    assert_eq!(diff(&trees[0], &trees[1]), "");
    assert_ne!(diff(&trees[0], &trees[2]), "");
    assert!(trees[0].len() > 50, "{} nodes", trees[0].len());
}

#[test]
fn most_operations_succeed_and_all_kinds_occur() {
    let ops = Workload::new(11).operations(0..3000);
    assert_eq!(ops[1000..], Workload::new(11).operations(1000..3000), "a later range is the same sequence");
    let names: std::collections::BTreeSet<String> =
        ops.iter().map(|op| format!("{op:?}").split([' ', '{']).next().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 23, "{names:?}");
    if skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = extant_testkit::oracle::make_image(dir.path(), &kind("ext4", "", None, 4096).options).unwrap();
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let mounted = kernel(&image, &mnt).unwrap();
    let report = Workload::new(11).apply(&mnt, 0..3000);
    mounted.unmount().unwrap();
    let failed: Vec<_> = report.outcomes.iter().filter(|o| o.errno.is_some()).collect();
    assert!(failed.len() < 400, "{} failed: {:#?}", failed.len(), &failed[..40]);
    // The generator's model of the tree is correct: nothing is missing, and no unexpected name is in the way.
    let lost = failed.iter().filter(|o| o.errno == Some(2)).count();
    assert_eq!(lost, 0, "{failed:#?}");
}

#[test]
fn a_source_tree_is_the_same_on_both_mounts() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let built = materialize(a.path(), 200, 1).unwrap();
    assert_eq!(built, materialize(b.path(), 200, 1).unwrap());
    let tree = fingerprint(a.path()).unwrap();
    assert_eq!(tree.len(), 1 + built.files + built.directories + built.symlinks);
    let content = |t: &extant_testkit::tree::Fingerprint| {
        t.iter().map(|(p, n)| (p.clone(), n.content, n.size)).collect::<Vec<_>>()
    };
    assert_eq!(content(&tree), content(&fingerprint(b.path()).unwrap()));
}

#[test]
fn failing_tools_say_what_they_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = kind("ext4", "", None, 4096).options;
    options.features = "no_such_feature".into();
    match extant_testkit::oracle::make_image(dir.path(), &options) {
        Err(Error::Command { output, .. }) => assert!(output.contains("no_such_feature"), "{output}"),
        other => panic!("{other:?}"),
    }
}

/// Many seeds: `EXTANT_SEEDS=200 cargo test -p extant-testkit --test kernel_vs_kernel -- --ignored soak`.
#[test]
#[ignore = "long"]
fn soak() {
    let seeds = std::env::var("EXTANT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let kinds = matrix();
    for seed in 0..seeds {
        let kind = &kinds[seed as usize % kinds.len()];
        writes(&kernel, kind, &Plan::new(1000 + seed, 600, 3)).unwrap_or_else(|e| panic!("{e}"));
    }
}
