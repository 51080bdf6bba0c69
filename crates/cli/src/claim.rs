//! The claim of the block device of a `fuseblk` mount, with the file system on it.
//!
//! Main functions: [`lend`] and [`connection_ended`]. They wrap those of [`DeviceClaim`]; on failure they cut off the
//! [`Filesystem`] and report the reason.
//!
//! # Locking
//! None.

use extant_fs::Filesystem;
use extant_image::DeviceClaim;

use crate::failure::{Failure, MOUNT, Result};

/// As [`DeviceClaim::lend`]. If the mount also failed, prints its error; the status is that of the mount.
pub fn lend<T>(claim: &DeviceClaim, fs: &Filesystem, mount: impl FnOnce() -> Result<T>) -> Result<T> {
    let (mounted, claimed) = claim.lend(|| fs.cut_off(), mount);
    let Err(why) = claimed else { return mounted };
    let status = mounted.err().inspect(Failure::print).map_or(MOUNT, |e| e.status);
    Err(cut_off(why).with_status(status))
}

/// As [`DeviceClaim::connection_ended`]; prints an error.
pub fn connection_ended(claim: &DeviceClaim, fs: &Filesystem) {
    if let Err(why) = claim.connection_ended(|| fs.cut_off()) {
        cut_off(why).print();
    }
}

fn cut_off(why: extant_image::Error) -> Failure {
    let failure = Failure::from(why);
    let message = format!("{}; nothing more is written to it, and it may need recovery", failure.message);
    Failure { message, ..failure }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use extant_base::clock::Clock;
    use extant_block::BioFlags;
    use extant_block::device::{BlockDevice, Catch, Engine, HeldDevice, IoMode};
    use extant_fs::{Cred, NewNode};
    use extant_image::ClaimState;
    use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
    use extant_testkit::oracle::{MkfsOptions, arg, debugfs_write, e2fsck, make_image, tool};

    use super::*;
    use crate::image::{self, Access, ImageSpec, open_device, open_whole};
    use crate::mount_options::MountConfig;
    use crate::server::serve::{Job, open};

    const LONG: Duration = Duration::from_secs(20);

    /// An image on a loop device, for the lifetime of this value.
    struct Loop {
        _dir: tempfile::TempDir,
        spec: ImageSpec,
    }

    impl Loop {
        fn new() -> Option<Loop> {
            Loop::with("ext4")
        }

        fn with(format: &'static str) -> Option<Loop> {
            if !rustix::process::geteuid().is_root() || !extant_testkit::mount::loop_mounts_work() {
                eprintln!("skipped: needs loop devices");
                return None;
            }
            let dir = tempfile::tempdir().expect("directory");
            let image = make_image(dir.path(), &MkfsOptions::new(format, 32 << 20)).expect("image");
            let path = tool("losetup", &["-f", "--show", arg(&image)]);
            Some(Loop { _dir: dir, spec: ImageSpec::whole(path.trim()) })
        }

        fn job(&self) -> Job {
            Job {
                spec: self.spec.clone(),
                dir: "/nowhere".into(),
                // No commit happens by itself.
                config: MountConfig::parse(&["commit=600".into()], false).expect("options"),
                options: String::new(),
                verbose: false,
                background: false,
                stats: None,
            }
        }

        /// Opens the device as another process would.
        fn claim(&self) -> Result<Arc<dyn BlockDevice>> {
            open_whole(&self.spec, &Access::tool(false)).map(|opened| opened.device)
        }

        /// Another process has the device for a moment, and changes it.
        fn make_theirs(&self) {
            let other = self.claim().expect("claimed");
            let mut sb = [0; SUPERBLOCK_SIZE];
            other.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META).expect("read");
            sb[120..126].copy_from_slice(b"theirs");
            other.write_at(SUPERBLOCK_OFFSET, &[&sb], BioFlags::FUA).expect("written");
        }

        fn bytes(&self) -> Vec<u8> {
            std::fs::read(&self.spec.path).expect("read")
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("-d").arg(&self.spec.path).status();
        }
    }

    /// Runs a failing `mount`. Returns its error, whether the device still has the bytes that `mount` left, and the
    /// present bytes.
    fn failed(device: &Loop, mount: impl FnOnce()) -> (Failure, bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let left = Cell::new(Vec::new());
        let lent = lend(&claim.expect("a claim"), &fs, || {
            mount();
            left.set(device.bytes());
            Err::<(), _>(Failure::new(MOUNT, "refused"))
        });
        let e = lent.expect_err("no mount");
        drop(fs);
        let now = device.bytes();
        (e, left.take() == now, now)
    }

    fn needs_recovery(bytes: &[u8]) -> bool {
        let sb = &bytes[SUPERBLOCK_OFFSET as usize..];
        u32::from_le_bytes([sb[96], sb[97], sb[98], sb[99]]) & 4 != 0
    }

    /// Ends a mount with dirty data by force, and runs `between`. Returns whether the device is unchanged after
    /// `between`, and its bytes.
    fn forced(device: &Loop, between: impl FnOnce()) -> (bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let root = fs.root().expect("root");
        drop(fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create"));
        drop(root);
        let claim = claim.expect("a claim");
        // Runs without the kernel's exclusive open, which has ended.
        lend(&claim, &fs, || Ok(())).expect("mounted");
        between();
        let before = device.bytes();
        connection_ended(&claim, &fs);
        let _ = fs.unmount();
        drop((claim, fs));
        let after = device.bytes();
        (before == after, after)
    }

    #[test]
    fn a_forced_unmount_does_not_write_to_a_foreign_device() {
        let Some(device) = Loop::new() else { return };
        let debugfs = |request: &str| debugfs_write(&device.spec.path, request).expect("changed");
        // No other process has opened the device; in the second case only the mount's own superblock records an error.
        for error in [false, true] {
            let (same, now) = forced(&device, || {
                if error {
                    debugfs("ssv state 3");
                    assert_eq!(device.bytes()[SUPERBLOCK_OFFSET as usize + 58], 3);
                }
            });
            assert_eq!((same, needs_recovery(&now)), (false, false), "{error}");
            debugfs("rm new");
        }
        // Another process has the device.
        let mut other = None;
        let (same, _) = forced(&device, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to");
        drop(other.take());
        // Another process had the device.
        let (same, _) = forced(&device, || {
            let checked = e2fsck(&device.spec.path, &["-fy"]).expect("e2fsck");
            assert!(checked.code < 4, "{}", checked.output);
        });
        assert!(same, "written to");
    }

    /// While it is unknown whether another process has the device, a sync waits, and then fails; so does an unmount in
    /// progress.
    #[test]
    fn a_forced_unmount_writes_nothing_until_it_has_the_device() {
        let Some(device) = Loop::new() else { return };
        for ask in [|fs: &Filesystem| fs.sync(), |fs: &Filesystem| fs.unmount()] {
            writes_nothing_meanwhile(&device, ask);
        }
    }

    fn writes_nothing_meanwhile(device: &Loop, ask: fn(&Filesystem) -> extant_fs::Result<()>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let root = fs.root().expect("root");
        drop(fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create"));
        drop(root);
        let claim = claim.expect("a claim");
        lend(&claim, &fs, || Ok(())).expect("mounted");
        let other = device.claim().expect("claimed");
        let (before, synced) = std::thread::scope(|threads| {
            let ending = threads.spawn(|| connection_ended(&claim, &fs));
            while claim.state() == ClaimState::Kernels && !ending.is_finished() {
                std::thread::yield_now();
            }
            let before = device.bytes();
            let synced = ask(&fs);
            ending.join().expect("no panic");
            (before, synced)
        });
        assert_eq!(claim.state(), ClaimState::Foreign);
        assert!(synced.is_err(), "{synced:?}");
        assert!(fs.unmount().is_err());
        drop(fs);
        assert!(before == device.bytes(), "written to");
        drop(other);
    }

    /// A journal that exists only during the mount is removed in many writes, under the superblock's lock.
    #[test]
    fn a_forced_unmount_stops_the_removal_of_a_borrowed_journal() {
        let Some(device) = Loop::with("ext2") else { return };
        for theirs in [false, true] {
            let (before, after, unmounted) = giving_back(&device, theirs);
            assert_eq!(unmounted, !theirs);
            // The write in flight has arrived, and nothing after it.
            let superblock = SUPERBLOCK_OFFSET as usize..SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE;
            let decoded =
                |bytes: &[u8]| SuperBlock::decode(&bytes[superblock.clone()], SUPERBLOCK_OFFSET).expect("whole");
            assert!(before[superblock.clone()] != after[superblock.clone()]);
            assert_eq!(decoded(&after).journal_under_way().is_some(), theirs);
            let rest = |bytes: &[u8]| [&bytes[..superblock.start], &bytes[superblock.end..]].concat();
            assert_eq!(rest(&before) == rest(&after), theirs);
            let checked = e2fsck(&device.spec.path, &["-p"]).expect("e2fsck");
            assert_eq!(checked.code, i32::from(theirs), "{}", checked.output);
        }
    }

    /// Two states of the device: during the first write of the superblock that removes the journal, and after a forced
    /// end of the mount at that moment. Also returns whether the unmount succeeded.
    fn giving_back(device: &Loop, theirs: bool) -> (Vec<u8>, Vec<u8>, bool) {
        let job = device.job();
        let how = Access { engine: Engine::Psync, io: IoMode::Direct, ..Access::tool(false) };
        let claimed = open_whole(&job.spec, &how).expect("claimed").device;
        let below = open_device(&job.spec, &Access { exclusive: false, ..how.clone() }).expect("opened");
        let held = Arc::new(HeldDevice::new(below).expect("thread"));
        let claim = Arc::new(DeviceClaim::new(job.spec.clone(), how, claimed, held.clone()));
        let fs = image::mount(claim.clone(), job.config.fs.clone()).expect("mounted");
        assert!(fs.has_borrowed_journal());
        lend(&claim, &fs, || Ok(())).expect("mounted");
        let superblock = SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64;
        held.catch(Catch::hold().writes().range(superblock));
        let found = std::thread::scope(|threads| {
            let unmount = threads.spawn(|| fs.unmount());
            loop {
                assert!(held.wait_held(1, LONG), "the unmount writes the superblock");
                let request = held.held()[0];
                // Skips the journal's checkpoint writes.
                if request.flags.contains(BioFlags::FUA) {
                    break;
                }
                held.release(request.id);
            }
            let other = theirs.then(|| device.claim().expect("claimed"));
            let before = device.bytes();
            let ending = threads.spawn(|| connection_ended(&claim, &fs));
            let clock = Clock::real();
            while claim.state() == ClaimState::Kernels && clock.now_ns() < LONG.as_nanos() as u64 {
                std::thread::yield_now();
            }
            let meanwhile = claim.state();
            held.let_go();
            ending.join().expect("no panic");
            let unmounted = unmount.join().expect("no panic").is_ok();
            let after = device.bytes();
            assert_eq!(meanwhile, ClaimState::Unknown, "the write in flight has not ended");
            assert_eq!(claim.state() == ClaimState::Foreign, theirs);
            drop(other);
            (before, after, unmounted)
        });
        drop(fs);
        found
    }

    #[test]
    fn a_failed_mount_does_not_write_to_a_foreign_device() {
        let Some(device) = Loop::new() else { return };
        // No other process has opened the device: as if there had been no mount.
        let (e, same, now) = failed(&device, || {});
        assert_eq!((e.status, e.message.as_str(), same, needs_recovery(&now)), (MOUNT, "refused", false, false));
        // Another process has the device.
        let mut other = None;
        let (e, same, _) = failed(&device, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to: {}", e.message);
        assert!(e.message.contains("in use") && e.message.contains("nothing more is written"), "{}", e.message);
        assert_eq!(e.status, MOUNT);
        drop(other);
        // Another process had the device, and has changed it.
        let (e, same, _) = failed(&device, || device.make_theirs());
        assert!(same, "written to: {}", e.message);
        assert!(e.message.contains("changed") && e.message.contains("nothing more is written"), "{}", e.message);
    }

    /// The kernel has the device now, but another process had it before.
    #[test]
    fn a_mount_does_not_write_to_a_device_that_another_process_changed() {
        let Some(device) = Loop::new() else { return };
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let mut left = Vec::new();
        let lent = lend(&claim.expect("a claim"), &fs, || {
            device.make_theirs();
            left = device.bytes();
            Ok(Session(&fs))
        });
        let e = lent.map(drop).expect_err("refused");
        assert!(e.message.contains("changed") && e.message.contains("nothing more is written"), "{}", e.message);
        assert_eq!(e.status, MOUNT);
        drop(fs);
        assert!(left == device.bytes(), "written to");
    }

    /// Unmounts its file system when it is dropped.
    struct Session<'a>(&'a Filesystem);

    impl Drop for Session<'_> {
        fn drop(&mut self) {
            let _ = self.0.unmount();
        }
    }
}
