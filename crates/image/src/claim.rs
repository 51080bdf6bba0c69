//! The exclusive open of a block device by us, before and after a `fuseblk` mount.
//!
//! Main types: [`BlockClaim`], and [`Tenant`], the file system on the device. We open such a device exclusively while
//! a replay may write, and the kernel does so for as long as it is mounted. If the mount fails, or ends by force,
//! there is more to write, and no process has the device open exclusively. We then open it exclusively again before
//! we write. If another process has done so meanwhile, we write nothing. Until that is known, a [`GateDevice`] delays
//! all writes.
//!
//! What it does not do: image files, which have locks; the end of the exclusive open at a normal unmount.
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

/// While this exists, no other process can open the device exclusively.
pub type Held = Box<dyn Any + Send>;

/// A file system on a device that we have open exclusively.
pub trait Tenant {
    /// Why the unmount failed.
    type Error;

    /// Ends the file system without another write.
    fn cut_off(&self);

    /// Unmounts in order.
    ///
    /// # Errors
    /// Not everything could be written.
    fn unmount(&self) -> std::result::Result<(), Self::Error>;
}

/// Why the device could not be handed to the kernel.
#[derive(Debug)]
pub enum NotLent<M, U> {
    /// The mount failed, and the file system was unmounted; one mounted read-only is left to the caller.
    Failed {
        /// The error of the mount.
        mount: M,
        /// The error of the unmount, if that failed, too.
        unmount: Option<U>,
    },
    /// Another process has the device, or has had it: the file system was cut off.
    Foreign {
        /// The error of the mount, if it failed.
        mount: Option<M>,
        /// The evidence of the other process.
        why: Error,
    },
}

/// How long an unmount by force may take after it has ended the connection.
const FORCED_PATIENCE_NS: u64 = 500_000_000;

/// Our exclusive open of a block device: before the kernel's own for a mount of it, and after that if the mount ends
/// by force.
pub struct BlockClaim {
    spec: ImageSpec,
    access: Access,
    claimed: Option<Arc<dyn BlockDevice>>,
    /// The device that the file system uses.
    dev: Arc<GateDevice>,
}

impl BlockClaim {
    /// `claimed` is the device at `spec`, opened with this `access`, and `dev` the device that the file system on it
    /// uses.
    pub fn new(spec: ImageSpec, access: Access, claimed: Arc<dyn BlockDevice>, dev: Arc<GateDevice>) -> BlockClaim {
        BlockClaim { spec, access, claimed: Some(claimed), dev }
    }

    /// The device that the file system uses.
    pub fn device(&self) -> &GateDevice {
        &self.dev
    }

    /// Closes our exclusive open, so that `mount` can make the kernel's. If that fails, unmounts the file system,
    /// unless it is read-only. Another process may open the device in between. Then nothing more is written to it,
    /// and the new mount is dropped again.
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
            // The kernel has the device open exclusively. If the mount is dropped, its end waits while the gate is
            // shut.
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

    /// Returns `held` if we have the device and no other process has changed it (`same`): writes may go on. Otherwise
    /// cuts the file system off.
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
                // First release the threads that wait at the gate: they hold locks that the cut waits for.
                drop(shut);
                fs.cut_off();
                Err(e)
            }
        }
    }

    /// Opens the device exclusively again, after the kernel has ended the connection by force and perhaps closed the
    /// device, while there is more to write. The caller must keep the result until the file system is unmounted. None
    /// for a read-only mount.
    ///
    /// # Errors
    /// Another process has the device, or has had it: the file system is cut off.
    pub fn regain(&self, fs: &impl Tenant) -> Result<Option<Held>> {
        // A mount that has failed is read-only, too, but still writes its error. So only `access` counts.
        if self.access.read_only {
            return Ok(None);
        }
        // Before any call to the file system, whose locks an unmount in progress may hold.
        let shut = self.dev.shut();
        let clock = Clock::real();
        let held = loop {
            // The connection ends first, then the mount, then the kernel's exclusive open.
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

    /// A busy mount stays, dead, and still has the device: under any bind mount, or in no visible place. If it is
    /// visible, an open descriptor prevents its end.
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
        // The device number in the kernel's form (Linux: fuse_ctl_add_conn). The connection vanishes with the file
        // system, and nothing here prevents that: see docs/crash-consistency.md.
        let connection = format!("/sys/fs/fuse/connections/{}", u64::from(major) << 20 | u64::from(minor));
        rustix::fs::stat(connection).is_ok().then(|| Box::new(()) as Held)
    }

    /// Whether no process has mounted or checked it since: it has the superblock that we wrote last.
    fn is_still(&self) -> Result<bool> {
        let found = of_mount(&super_block(&*self.dev)?);
        Ok(found.is_some() && self.dev.remembered().iter().any(|ours| of_mount(ours) == found))
    }
}

/// The fields of a superblock that a mount or a check changes without the log.
type OfMount = (u16, i64, Incompat, bool);

/// Errors and labels are not among them. None: it is no superblock.
fn of_mount(bytes: &[u8]) -> Option<OfMount> {
    let sb = SuperBlock::decode(bytes, SUPERBLOCK_OFFSET).ok()?;
    Some((sb.mount_count(), sb.mount_time(), sb.incompat(), sb.state().contains(FsState::VALID)))
}

/// The superblock as it is on the device.
fn super_block(dev: &dyn BlockDevice) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(sb)
}
