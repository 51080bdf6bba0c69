//! Images that a power cut left with fast commits: the log's full commits are judged, the fast commits are counted.

use std::path::Path;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_check::{Note, Options, Report, check};
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{MkfsOptions, e2fsck, make_image, run_ok};

/// The kernel's operations between the last full commit and the power cut; every step is fsynced.
const WORKLOADS: &[(&str, &str)] = &[
    (
        "names",
        "echo new > n1; sync n1; ln n1 n2; sync n1; rm n1; sync n2; rm f2; sync f1; mv f3 moved; sync moved; \
         mkdir d/sub; echo x > d/sub/x; sync d/sub/x; chmod 755 f6; chown 5:6 f6; sync f6",
    ),
    (
        "ranges",
        "truncate -s 10000 big; sync big; truncate -s 300000 big; sync big; fallocate -p -o 8192 -l 16384 big2; \
         sync big2; fallocate -l 100000 pre; sync pre; echo more >> f1; sync f1",
    ),
    (
        "orphans",
        "exec 7<>f7 8<>f8; rm f7 f8; sync -f .; exec 7<&-; echo new > n1; sync n1; echo more >&8; \
         sync /proc/self/fd/8; exec 9<>f1; rm f1; echo more >&9; sync /proc/self/fd/9; echo last > last; sync last",
    ),
];

/// The image as a power cut leaves it behind the workload.
fn cut(dir: &Path, features: &str, work: &str) -> std::path::PathBuf {
    let mut options = MkfsOptions::new("ext4", 64 << 20);
    (options.features, options.block_size) = (features.to_owned(), 1024);
    options.extra_args = ["-J", "size=8,fast_commit_size=1024"].map(str::to_owned).to_vec();
    let image = make_image(dir, &options).expect("made");
    let (at, crashed) = (dir.join("mnt"), dir.join("crashed"));
    std::fs::create_dir_all(&at).expect("made");
    let mount = LoopMount::new(&image, &at, "commit=300").expect("mounted");
    // A fast commit needs a full one before it. A single shell runs all commands, so that its open files stay open.
    let script = format!(
        "set -e; cd {}; mkdir d; for i in 1 2 3 4 5 6 7 8; do echo old $i > f$i; done; \
         dd if=/dev/urandom of=big bs=4k count=60 2>/dev/null; cp big big2; sync -f .; {work}; cp {} {}",
        at.display(),
        image.display(),
        crashed.display()
    );
    let done = run_ok("bash", &["-c", &script]);
    Box::new(mount).unmount().expect("unmounted");
    done.expect("worked");
    crashed
}

fn checked(image: &Path) -> Report {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(image).expect("loaded"));
    check(&device, &Options { threads: 2, now: 4_000_000_000, ..Options::default() }).expect("checked")
}

#[test]
fn images_with_pending_fast_commits_have_no_finding_where_e2fsck_has_none() {
    if !loop_mounts_work() {
        return;
    }
    for features in ["fast_commit", "fast_commit,orphan_file,^metadata_csum"] {
        for (name, work) in WORKLOADS {
            let what = format!("{name} with {features}");
            // The kernel falls back to a full commit now and then, when it is busy.
            let found = (0..5).find_map(|_| {
                let dir = tempfile::tempdir().expect("directory");
                let image = cut(dir.path(), features, work);
                let report = checked(&image);
                let pending = report.notes.iter().any(|note| matches!(note, Note::FastCommits { count } if *count > 0));
                pending.then_some((dir, image, report))
            });
            let Some((_dir, image, report)) = found else { panic!("{what}: the kernel wrote no fast commit") };
            let texts: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
            assert!(report.complete && !report.is_damaged(), "{what}: {texts:#?}");
            e2fsck(&image, &["-E", "journal_only", "-fy"]).expect("run");
            let fsck = e2fsck(&image, &["-fn"]).expect("run");
            let after = checked(&image);
            let texts: Vec<_> = after.findings.iter().map(ToString::to_string).collect();
            assert!(after.notes.iter().all(|note| !matches!(note, Note::FastCommits { .. })), "{what}");
            assert_eq!(after.is_damaged(), fsck.code != 0, "{what}: {texts:#?}\n{}", fsck.output);
        }
    }
}
