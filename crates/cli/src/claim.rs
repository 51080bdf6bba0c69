//! Our claim on the block device of a `fuseblk` mount.
//!
//! Main type: [`Claim`]. Such a device is opened exclusively by us while a replay may write, then by the kernel for as
//! long as it is mounted. Where there is no mount in the end, or it ends by force, there is more to write and the claim
//! is nobody's: it is only written to once it is claimed again, and left as it is if it is somebody else's by then.
//!
//! What it does not do: image files, which have locks; a claim that ends as it should, with the mount.
//!
//! # Locking
//! None.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BioFlags;
use extant_block::device::BlockDevice;
use extant_fs::Filesystem;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use rustix::fs::{Mode, OFlags};

use crate::failure::{Failure, Result};
use crate::image::{Access, ImageSpec, open_whole};

/// How long an unmount by force may take after it has ended the connection.
const FORCED_PATIENCE_NS: u64 = 500_000_000;

/// Our claim on a block device: before the kernel's own claim for a mount of it, and after that if the mount ends in
/// the middle.
pub struct Claim {
    spec: ImageSpec,
    access: Access,
    claimed: Option<Arc<dyn BlockDevice>>,
    /// What the file system has.
    dev: Arc<dyn BlockDevice>,
}

impl Claim {
    /// `claimed` is the device at `spec`, opened with this `access`, and `dev` what the file system on it has.
    pub fn new(spec: ImageSpec, access: Access, claimed: Arc<dyn BlockDevice>, dev: Arc<dyn BlockDevice>) -> Claim {
        Claim { spec, access, claimed: Some(claimed), dev }
    }

    /// Lets go of it for `mount`. Should that fail, the file system is ended here: whoever was faster may have the
    /// device, or have had it, and then nothing more is written to it.
    pub fn lend<T>(&mut self, fs: &Filesystem, mount: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = super_block(&*self.dev);
        self.claimed = None;
        let failed = match mount() {
            Err(e) if !self.access.read_only => e,
            done => return done,
        };
        let ended = match self.again(fs, || Ok(super_block(&*self.dev)? == before?)) {
            Ok(_held) => fs.unmount().map_err(|e| format!("{}: unmount: {e}", self.spec.shown())),
            Err(e) => Err(e.message),
        };
        match ended {
            Ok(()) => Err(failed),
            Err(e) => {
                failed.print();
                Err(Failure::new(failed.status, e))
            }
        }
    }

    /// Claims it once more. If somebody else has it, or has had it (it is not the `same`), the file system is cut off.
    fn again(&self, fs: &Filesystem, same: impl FnOnce() -> Result<bool>) -> Result<Arc<dyn BlockDevice>> {
        let again = open_whole(&self.spec, &self.access).and_then(|claimed| match same()? {
            true => Ok(claimed),
            false => Err(Failure::op(format!("{}: somebody else has changed it", self.spec.shown()))),
        });
        again.map_err(|e| {
            fs.cut_off();
            Failure { message: format!("{}; nothing more is written to it, and it may need recovery", e.message), ..e }
        })
    }

    /// The kernel has ended the mount by force, and perhaps let go of the device, while there is more to write to it.
    /// A mount that stays, dead, has it still. What is returned is to be held until the file system is unmounted.
    pub fn regain(&self, fs: &Filesystem, is_mounted: impl Fn() -> bool) -> Option<Arc<dyn BlockDevice>> {
        // A mount that has failed is read-only, too, but still writes why.
        if self.access.read_only {
            return None;
        }
        let clock = Clock::real();
        loop {
            // First the connection ends, then the mount, then the claim.
            let over = clock.now_ns() > FORCED_PATIENCE_NS;
            if !is_mounted() && (over || self.is_free()) {
                return self.again(fs, || self.is_ours(fs)).inspect_err(Failure::print).ok();
            }
            if over {
                return None;
            }
            clock.sleep(Duration::from_millis(2));
        }
    }

    /// Nobody has mounted or checked it since.
    fn is_ours(&self, fs: &Filesystem) -> Result<bool> {
        // What is written past the log.
        let of_mount = |sb: &SuperBlock| (sb.mount_count(), sb.mount_time(), sb.incompat(), sb.state());
        let (found, _) = extant_fs::probe_superblock(&*self.dev).map_err(|e| Failure::op(e.to_string()))?;
        Ok(of_mount(&found) == of_mount(&fs.superblock()))
    }

    fn is_free(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(&self.spec.path, flags, Mode::empty()).is_ok()
    }
}

/// As it is on the device.
fn super_block(dev: &dyn BlockDevice) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(sb)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use extant_fs::{Cred, NewNode};
    use extant_testkit::oracle::{MkfsOptions, make_image};

    use super::*;
    use crate::failure::MOUNT;
    use crate::mount_options::MountConfig;
    use crate::serve::{Job, open};

    /// An image on a loop device, for as long as it is there.
    struct Loop {
        _dir: tempfile::TempDir,
        spec: ImageSpec,
    }

    impl Loop {
        fn new() -> Loop {
            let dir = tempfile::tempdir().expect("directory");
            let image = make_image(dir.path(), &MkfsOptions::new("ext4", 16 << 20)).expect("image");
            let made = Command::new("losetup").args(["-f", "--show"]).arg(image).output().expect("losetup");
            let path = String::from_utf8(made.stdout).expect("a path").trim().into();
            Loop { _dir: dir, spec: ImageSpec { path, partition: None } }
        }

        fn job(&self) -> Job {
            Job {
                spec: self.spec.clone(),
                dir: "/nowhere".into(),
                config: MountConfig::parse(&[], false).expect("options"),
                options: String::new(),
                verbose: false,
                background: false,
                stats: None,
            }
        }

        /// As somebody else would have it.
        fn claim(&self) -> Result<Arc<dyn BlockDevice>> {
            open_whole(&self.spec, &Access::tool(false))
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

    /// What `mount` fails with, and whether the bytes of the device are then the ones that it left; and its end.
    fn failed(device: &Loop, mount: impl FnOnce()) -> (Failure, bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let left = Cell::new(Vec::new());
        let lent = claim.expect("a claim").lend(&fs, || {
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

    /// What is on the device once a mount with something to write has been ended by force, after `between`; and whether
    /// anything was written since.
    fn forced(device: &Loop, still_mounted: bool, between: impl FnOnce()) -> (bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let root = fs.root().expect("root");
        drop(fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create"));
        drop(root);
        let mut claim = claim.expect("a claim");
        // The kernel's own is left out: it is gone.
        claim.lend(&fs, || Ok(())).expect("lent");
        between();
        let before = device.bytes();
        let held = claim.regain(&fs, || still_mounted);
        let _ = fs.unmount();
        drop((held, fs));
        let after = device.bytes();
        (before == after, after)
    }

    #[test]
    fn a_mount_that_is_forced_leaves_alone_what_is_somebody_elses() {
        if !rustix::process::geteuid().is_root() || !extant_testkit::mount::loop_mounts_work() {
            eprintln!("skipped: needs loop devices");
            return;
        }
        let device = Loop::new();
        // Nobody was there, and the mount is gone; or it stays, and has the device.
        for still_mounted in [false, true] {
            let (same, now) = forced(&device, still_mounted, || {});
            assert_eq!((same, needs_recovery(&now)), (false, false), "{still_mounted}");
            let _ = Command::new("debugfs").args(["-w", "-R", "rm new"]).arg(&device.spec.path).output();
        }
        // Somebody has it.
        let mut other = None;
        let (same, _) = forced(&device, false, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to");
        drop(other);
        // Somebody had it.
        let (same, _) = forced(&device, false, || {
            let checked = Command::new("e2fsck").args(["-fy"]).arg(&device.spec.path).output().expect("e2fsck");
            assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        });
        assert!(same, "written to");
    }

    #[test]
    fn a_mount_that_fails_leaves_alone_what_is_somebody_elses() {
        if !rustix::process::geteuid().is_root() || !extant_testkit::mount::loop_mounts_work() {
            eprintln!("skipped: needs loop devices");
            return;
        }
        let device = Loop::new();
        // Nobody was there: as if there had been no mount.
        let (e, same, now) = failed(&device, || {});
        assert_eq!((e.status, e.message.as_str(), same, needs_recovery(&now)), (MOUNT, "refused", false, false));
        // Somebody has it.
        let mut other = None;
        let (e, same, _) = failed(&device, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to: {}", e.message);
        assert!(e.message.contains("in use") && e.message.contains("nothing more is written"), "{}", e.message);
        assert_eq!(e.status, MOUNT);
        drop(other);
        // Somebody had it, and has changed it.
        let (e, same, _) = failed(&device, || {
            let other = device.claim().expect("claimed");
            let mut sb = super_block(&*other).expect("read");
            sb[120..126].copy_from_slice(b"theirs");
            other.write_at(SUPERBLOCK_OFFSET, &[&sb], BioFlags::FUA).expect("written");
        });
        assert!(same, "written to: {}", e.message);
        assert!(e.message.contains("changed") && e.message.contains("nothing more is written"), "{}", e.message);
    }
}
