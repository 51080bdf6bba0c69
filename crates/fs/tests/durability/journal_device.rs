//! A journal on a device of its own: which device each step waits for, and what failing requests of either leave.

use std::path::Path;
use std::sync::Arc;

use crate::common::{content_of, create, put};
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_block::{BioOp, BlockDevice};
use extant_fs::{Filesystem, JournalDevice, MountOptions, Mounted};
use extant_oracle::{arg, run_command};
use extant_testkit::crash::{CrashImage, JOURNAL_DEV};

const KIND: CrashImage = JOURNAL_DEV[0];

/// A file system and its journal. Requests to either can fail.
struct Pair {
    both: Arc<MemDevice>,
    disk: Arc<FaultyDevice>,
    log: Arc<FaultyDevice>,
}

impl Pair {
    fn over(both: Arc<MemDevice>) -> Pair {
        let (disk, log) = KIND.disks(both.clone());
        let faulty = |device| Arc::new(FaultyDevice::new(device));
        Pair { both, disk: faulty(disk), log: faulty(log.expect("its own disk")) }
    }

    fn new() -> Pair {
        let dir = tempfile::tempdir().expect("directory");
        Pair::over(Arc::new(KIND.build(dir.path()).expect("image")))
    }

    /// The same bytes, on devices that work.
    fn mended(&self) -> Pair {
        Pair::over(Arc::new(self.both.snapshot()))
    }

    fn mount(&self) -> extant_fs::Result<Mounted> {
        let journal_device = Some(JournalDevice(self.log.clone()));
        let options = MountOptions { journal_device, threads: false, seed: Some(1), ..MountOptions::default() };
        Filesystem::mount(self.disk.clone(), options)
    }

    /// Flushes of the file system's device, and of the journal's.
    fn flushes(&self) -> (u64, u64) {
        (self.disk.stats().flushes, self.log.stats().flushes)
    }

    fn assert_clean(&self) {
        let dir = tempfile::tempdir().expect("directory");
        let save = |device: &Arc<FaultyDevice>, name: &str| {
            let path = dir.path().join(name);
            MemDevice::over(device.clone()).save(&path).expect("saved");
            path
        };
        let (disk, log) = (save(&self.disk, "disk"), save(&self.log, "log"));
        let check = |disk: &Path, log: &Path| run_command("e2fsck", &["-fn", "-j", arg(log), arg(disk)]);
        let (code, said) = check(&disk, &log).expect("e2fsck");
        assert_eq!(code, Some(0), "{said}");
    }
}

/// A commit flushes the file system's device before its commit block, which is a durable write of the journal's device.
/// An fsync without a change of metadata has nothing to do there.
#[test]
fn each_fsync_flushes_the_devices_that_it_has_written() {
    let pair = Pair::new();
    let fs = pair.mount().expect("mounted");
    let f = create(&fs, "f");
    put(&fs, &f, 0, &[1; 8192]);
    fs.fsync(&f, false).expect("synced");
    let mut before = pair.flushes();
    let mut since = || {
        let now = pair.flushes();
        let since = (now.0 - before.0, now.1 - before.1);
        before = now;
        since
    };
    put(&fs, &f, 8192, &[2; 8192]);
    fs.fsync(&f, false).expect("synced");
    // The commit block has PREFLUSH and FUA, each of which counts.
    assert_eq!(since(), (1, 2), "an append");
    put(&fs, &f, 0, &[3; 4096]);
    fs.fsync(&f, true).expect("synced");
    assert_eq!(since(), (1, 0), "an overwrite");
    drop(f);
    fs.unmount().expect("unmounted");
    pair.assert_clean();
}

/// Creates files, each durable before the next, until something fails. Returns how many are durable.
fn work(pair: &Pair) -> u8 {
    let Ok(fs) = pair.mount() else { return 0 };
    let mut durable = 0;
    for n in 0..6u8 {
        let root = fs.root().expect("root");
        let name = format!("f{n}");
        let new = extant_fs::NewNode::file(0o644);
        let Ok(f) = fs.create(&root, name.as_bytes(), new, extant_fs::Cred::default()) else { break };
        let wrote = fs.write(&f, 0, &[n; 5000], extant_fs::WriteFlags::default());
        if wrote.is_err() || fs.fsync(&f, false).is_err() {
            break;
        }
        durable = n + 1;
    }
    let _ = fs.unmount();
    durable
}

/// Each request of the kind fails, and all that follow, on one device or the other.
#[test]
fn acknowledged_files_survive_failing_requests_of_either_device() {
    let base = Pair::new();
    let mut failed = 0;
    for op in [BioOp::Write, BioOp::Flush] {
        for on_log in [false, true] {
            for n in 0.. {
                let pair = base.mended();
                let device = if on_log { &pair.log } else { &pair.disk };
                device.inject(Fault::eio().op(op).after(n));
                let durable = work(&pair);
                let what = format!("{op:?} {n} of the {}", if on_log { "journal" } else { "file system" });
                if device.injected() == 0 {
                    assert_eq!(durable, 6, "{what}");
                    break;
                }
                failed += 1;
                let pair = pair.mended();
                let fs = pair.mount().unwrap_or_else(|e| panic!("{what}: {e}"));
                for file in 0..durable {
                    let content = content_of(&fs, &format!("f{file}"));
                    assert_eq!(content, Some(vec![file; 5000]), "{what}: file {file}");
                }
                fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
                if n % 5 == 0 {
                    pair.assert_clean();
                }
            }
        }
    }
    assert!(failed > 40, "{failed} requests failed");
}
