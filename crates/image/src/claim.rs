//! Our claim on the block device of a `fuseblk` mount.
//!
//! Main types: [`BlockClaim`], and [`Tenant`], the file system on the device. Such a device is opened exclusively by us
//! while a replay may write, then by the kernel for as long as it is mounted. Where there is no mount in the end, or it
//! ends by force, there is more to write and no process holds the claim: the device is only written to once it is
//! claimed again, and is left as it is if another process has claimed it by then. While that is not known, a
//! [`GateDevice`] keeps back what would be written.
//!
//! What it does not do: image files, which have locks; a claim that ends as it should, with the mount.
//!
//! # Locking
//! None.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BioFlags;
use extant_block::device::{BlockDevice, GateDevice, Shut};
use extant_ondisk::features::Incompat;
use extant_ondisk::superblock::{FsState, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::mounts;
use crate::open::{Access, open_whole};
use crate::spec::ImageSpec;

/// Held, nobody else has the device.
pub type Held = Box<dyn Any + Send>;

/// A file system on a claimed device.
pub trait Tenant {
    /// Why it could not be unmounted.
    type Error;

    /// Ends without another write.
    fn cut_off(&self);

    /// Ends as it should.
    ///
    /// # Errors
    /// Not everything could be written.
    fn unmount(&self) -> std::result::Result<(), Self::Error>;
}

/// Why a claim was not lent.
#[derive(Debug)]
pub enum NotLent<M, U> {
    /// The mount failed, and the file system was unmounted; one that is only read is left to the caller.
    Failed {
        /// Why.
        mount: M,
        /// What its unmount came to, if that failed, too.
        unmount: Option<U>,
    },
    /// Somebody else has the device, or has had it: the file system is cut off.
    Foreign {
        /// Why the mount failed, if it did.
        mount: Option<M>,
        /// What tells.
        why: Error,
    },
}

/// How long an unmount by force may take after it has ended the connection.
const FORCED_PATIENCE_NS: u64 = 500_000_000;

/// Our claim on a block device: before the kernel's own claim for a mount of it, and after that if the mount ends in
/// the middle.
pub struct BlockClaim {
    spec: ImageSpec,
    access: Access,
    claimed: Option<Arc<dyn BlockDevice>>,
    /// What the file system has.
    dev: Arc<GateDevice>,
}

impl BlockClaim {
    /// `claimed` is the device at `spec`, opened with this `access`, and `dev` what the file system on it has.
    pub fn new(spec: ImageSpec, access: Access, claimed: Arc<dyn BlockDevice>, dev: Arc<GateDevice>) -> BlockClaim {
        BlockClaim { spec, access, claimed: Some(claimed), dev }
    }

    /// What the file system has.
    pub fn device(&self) -> &GateDevice {
        &self.dev
    }

    /// Lets go of it for `mount`. Should that fail, the file system is unmounted, unless it is only read. Somebody who
    /// was faster may have the device, or have had it: then nothing more is written to it, and a mount that is there is
    /// dropped again.
    ///
    /// # Errors
    /// See [`NotLent`].
    pub fn lend<T, M, F: Tenant>(
        &mut self,
        fs: &F,
        mount: impl FnOnce() -> std::result::Result<T, M>,
    ) -> std::result::Result<T, NotLent<M, F::Error>> {
        let shut = self.dev.shut();
        let before = super_block(&*self.dev);
        if let Ok(before) = &before {
            self.dev.remember(SUPERBLOCK_OFFSET, before);
        }
        self.claimed = None;
        let mounted = mount();
        if self.access.read_only {
            shut.open();
            return mounted.map_err(|mount| NotLent::Failed { mount, unmount: None });
        }
        let same = || Ok(super_block(&*self.dev)? == before?);
        let mount = match mounted {
            // The kernel has the claim. Dropped, the mount ends, which waits at the gate as long as that is shut.
            Ok(mounted) => match self.unless_foreign(fs, shut, Ok(Box::new(())), same) {
                Ok(_) => return Ok(mounted),
                Err(why) => return Err(NotLent::Foreign { mount: None, why }),
            },
            Err(e) => e,
        };
        let again = open_whole(&self.spec, &self.access).map(|claimed| Box::new(claimed) as Held);
        match self.unless_foreign(fs, shut, again, same) {
            Ok(_held) => Err(NotLent::Failed { mount, unmount: fs.unmount().err() }),
            Err(why) => Err(NotLent::Foreign { mount: Some(mount), why }),
        }
    }

    /// `held`, if there is a claim to hold and nobody else has had the device: it is the `same`, and may be written to
    /// again. If not, the file system is cut off.
    fn unless_foreign(
        &self,
        fs: &impl Tenant,
        shut: Shut<'_>,
        held: Result<Held>,
        same: impl FnOnce() -> Result<bool>,
    ) -> Result<Held> {
        let held = held.and_then(|held| match same()? {
            true => Ok(held),
            false => Err(Error::Changed { image: self.spec.shown() }),
        });
        match held {
            Ok(held) => {
                shut.open();
                Ok(held)
            }
            Err(e) => {
                // Those first that wait there: they hold what a cut waits for.
                drop(shut);
                fs.cut_off();
                Err(e)
            }
        }
    }

    /// The kernel has ended the connection by force, and perhaps let go of the device, while there is more to write to
    /// it. What is returned is to be held until the file system is unmounted; nothing, where nothing is written.
    ///
    /// # Errors
    /// Somebody else has the device, or has had it: the file system is cut off.
    pub fn regain(&self, fs: &impl Tenant) -> Result<Option<Held>> {
        // A mount that has failed is read-only, too, but still writes why.
        if self.access.read_only {
            return Ok(None);
        }
        // Before anything of the file system is asked for: an unmount that is under way has its locks.
        let shut = self.dev.shut();
        let clock = Clock::real();
        let held = loop {
            // First the connection ends, then the mount, then the kernel's claim.
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::open(&self.spec.path, flags, Mode::empty()) {
                Ok(claimed) => break Ok(Box::new(claimed) as Held),
                Err(Errno::BUSY) if clock.now_ns() <= FORCED_PATIENCE_NS => clock.sleep(Duration::from_millis(2)),
                Err(Errno::BUSY) => {
                    break self.dead_mount().ok_or_else(|| Error::Taken { image: self.spec.shown() });
                }
                Err(e) => break Err(Error::Host { path: self.spec.path.clone(), source: Arc::new(e.into()) }),
            }
        };
        self.unless_foreign(fs, shut, held, || self.is_still()).map(Some)
    }

    /// A mount that is in use stays, dead, and has the device still: wherever it is bound to, or seen no more. Where it
    /// is seen, it cannot go while it is held.
    fn dead_mount(&self) -> Option<Held> {
        let device = rustix::fs::stat(&self.spec.path).ok()?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let shown = format!("{major}:{minor}");
        let all = mounts::mounts().unwrap_or_default();
        let dead = all.iter().filter(|m| m.is_extant() && m.device == shown).find_map(|m| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&m.dir, flags, Mode::empty()).ok()?;
            matches!(rustix::fs::fstatfs(&root), Err(Errno::NOTCONN | Errno::CONNABORTED)).then_some(root)
        });
        if let Some(root) = dead {
            return Some(Box::new(root));
        }
        // The number as it is in the kernel (Linux: fuse_ctl_add_conn). There is none once the file system is gone, and
        // nothing here keeps that from going: see docs/crash-consistency.md.
        let connection = format!("/sys/fs/fuse/connections/{}", u64::from(major) << 20 | u64::from(minor));
        rustix::fs::stat(connection).is_ok().then(|| Box::new(()) as Held)
    }

    /// Nobody has mounted or checked it since: it holds the superblock that we wrote last.
    fn is_still(&self) -> Result<bool> {
        let found = of_mount(&super_block(&*self.dev)?);
        Ok(found.is_some() && self.dev.remembered().iter().any(|ours| of_mount(ours) == found))
    }
}

/// What a mount, or a check, changes of a superblock past the log.
type OfMount = (u16, i64, Incompat, bool);

/// That there was an error, or what a label says, is none of it. None: it is no superblock.
fn of_mount(bytes: &[u8]) -> Option<OfMount> {
    let sb = SuperBlock::decode(bytes, SUPERBLOCK_OFFSET).ok()?;
    Some((sb.mount_count(), sb.mount_time(), sb.incompat(), sb.state().contains(FsState::VALID)))
}

/// As it is on the device.
fn super_block(dev: &dyn BlockDevice) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(sb)
}
