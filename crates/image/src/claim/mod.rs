//! The block device of a mount, and the one owner of the fact whose that device is.
//!
//! Main types: [`DeviceClaim`], which is the device that the file system uses; its [`ClaimState`]. We open the device
//! exclusively while a replay may write, and the kernel does so for as long as it is mounted (`fuseblk`). If the mount
//! fails, or ends by force, there is more to write, and no process has the device open exclusively. The claim then
//! opens it exclusively again before it lets a write pass. If another process has it, or has changed it meanwhile, the
//! claim lets none pass.
//!
//! The state decides what a request does. Change: a write, a flush, a discard.
//!
//! | state | open exclusively | Read | Change |
//! |---|---|---|---|
//! | Ours | by the claim | passes | passes |
//! | Lent | by no process, then by the kernel | passes | waits |
//! | Kernels | by the kernel | passes | passes |
//! | Unknown | by no process, or by any | passes | waits |
//! | Foreign | by another process | passes | fails |
//!
//! A transition is refused unless the table has the state that it meets. One to a state in which changes wait returns
//! when none is in flight; one from such a state sends those that wait.
//!
//! | transition | from and to | event |
//! |---|---|---|
//! | Lend | Ours → Lent | a mount begins |
//! | Mounted | Lent → Kernels | the kernel has the device open exclusively, unchanged |
//! | ConnectionEnded | Kernels → Unknown | the mount has ended by force |
//! | Regain | Lent → Ours, Unknown → Ours | the claim has it open exclusively again, unchanged |
//! | GiveUp | Lent → Foreign, Unknown → Foreign | neither |
//!
//! A read-only image is never open exclusively, and nothing is written: its claim leaves `Lent` unchecked, and ignores
//! the end of the connection.
//!
//! What it does not do: image files, which have locks. At a normal unmount it stays `Kernels`: the kernel closes the
//! device after the last write.
//!
//! # Locking
//! One lock (`device claim`, 815), released before the device below, a completion or the file system is called.

mod gate;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BioFlags;
use extant_block::device::{BlockDevice, Engine};
use extant_ondisk::features::Incompat;
use extant_ondisk::superblock::{FsState, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::gate::{Gate, SuperBlockBytes};
use crate::error::{Error, Result};
use crate::mounts;
use crate::open::{self, Access, open_whole};
use crate::spec::ImageSpec;

/// How long the kernel may take to close the device of a mount whose connection has ended by force.
const KERNEL_CLOSE_NS: u64 = 500_000_000;

/// While this exists, no other process can open the device exclusively.
type DeviceHold = Box<dyn Any + Send>;

/// The state of a claim. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// We have the device open exclusively.
    Ours,
    /// We have closed our exclusive open, so that the kernel can make its own.
    Lent,
    /// The kernel has the device open exclusively, for a mount.
    Kernels,
    /// The mount has ended by force, and another process may have opened the device since.
    Unknown,
    /// Another process has the device, or has had it.
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    Lend,
    Mounted,
    ConnectionEnded,
    Regain,
    GiveUp,
}

/// The answer of a state to a change of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Passes,
    Waits,
    Fails,
}

impl ClaimState {
    const fn change(self) -> Change {
        match self {
            ClaimState::Ours | ClaimState::Kernels => Change::Passes,
            ClaimState::Lent | ClaimState::Unknown => Change::Waits,
            ClaimState::Foreign => Change::Fails,
        }
    }

    const fn after(self, transition: Transition) -> Option<ClaimState> {
        use {ClaimState as S, Transition as T};
        match (transition, self) {
            (T::Lend, S::Ours) => Some(S::Lent),
            (T::Mounted, S::Lent) => Some(S::Kernels),
            (T::ConnectionEnded, S::Kernels) => Some(S::Unknown),
            (T::Regain, S::Lent | S::Unknown) => Some(S::Ours),
            (T::GiveUp, S::Lent | S::Unknown) => Some(S::Foreign),
            _ => None,
        }
    }
}

/// The device of a `fuseblk` mount. See the module.
pub struct DeviceClaim {
    spec: ImageSpec,
    access: Access,
    inner: Arc<dyn BlockDevice>,
    gate: Arc<Gate>,
}

/// When dropped in the state `Lent`, gives the device up: a mount that panics must not leave requests that wait.
struct UndecidedClaim<'a>(&'a DeviceClaim);

impl Drop for UndecidedClaim<'_> {
    fn drop(&mut self) {
        self.0.go(Transition::GiveUp);
    }
}

impl DeviceClaim {
    /// Opens the device at `spec` twice: exclusively until the kernel does, and for the requests of the file system.
    ///
    /// # Errors
    /// As [`crate::open()`].
    pub fn open(spec: &ImageSpec, access: &Access) -> Result<DeviceClaim> {
        let whole = Access { engine: Engine::Psync, ..access.clone() };
        // Also for a part of a device: the kernel opens the whole device exclusively.
        let exclusive = open_whole(spec, &whole)?.device;
        let inner = open::open(spec, &Access { exclusive: false, ..access.clone() })?.device;
        Ok(DeviceClaim::new(spec.clone(), whole, exclusive, inner))
    }

    /// `exclusive` is the device at `spec`, opened with this `access`, and `inner` the same device, not opened
    /// exclusively, for the file system's requests.
    pub fn new(spec: ImageSpec, access: Access, exclusive: Arc<dyn BlockDevice>, inner: Arc<dyn BlockDevice>) -> Self {
        DeviceClaim { spec, access, inner, gate: Arc::new(Gate::new(Box::new(exclusive))) }
    }

    /// Closes our exclusive open, so that `mount` can make the kernel's; returns its result. If it fails, the device is
    /// open exclusively again until the claim is dropped.
    ///
    /// The second result is an error if another process has the device, or has had it in between. Then `cut_off` has
    /// ended the file system, nothing more is written, and the caller must drop the new mount.
    pub fn lend<T, M>(
        &self,
        cut_off: impl FnOnce(),
        mount: impl FnOnce() -> std::result::Result<T, M>,
    ) -> (std::result::Result<T, M>, Result<()>) {
        self.go(Transition::Lend);
        let _undecided = UndecidedClaim(self);
        let before = super_block(&*self.inner);
        self.gate.close(before.as_ref().ok().cloned());
        let mounted = mount();
        let is_same = || Ok(self.access.read_only || super_block(&*self.inner)? == before?);
        let (transition, held) = match &mounted {
            Ok(_) => (Transition::Mounted, Ok(None)),
            Err(_) if self.access.read_only => (Transition::Regain, Ok(None)),
            Err(_) => (
                Transition::Regain,
                open_whole(&self.spec, &self.access).map(|again| Some(Box::new(again) as DeviceHold)),
            ),
        };
        // The new mount outlives the decision: its end waits while changes wait.
        let decided = self.decide(cut_off, transition, held, is_same);
        (mounted, decided)
    }

    /// The kernel has ended the connection by force, and perhaps closed the device, while there is more to write.
    /// Opens the device exclusively again until the claim is dropped.
    ///
    /// # Errors
    /// Another process has the device, or has had it: `cut_off` has ended the file system.
    pub fn connection_ended(&self, cut_off: impl FnOnce()) -> Result<()> {
        // A mount that has failed is read-only, too, but still writes its error. So only `access` counts. The
        // transition comes before any call to the file system, whose locks an unmount in progress may hold.
        if self.access.read_only || !self.go(Transition::ConnectionEnded) {
            return Ok(());
        }
        self.decide(cut_off, Transition::Regain, self.open_again().map(Some), || self.is_still())
    }

    /// The state of the claim.
    pub fn state(&self) -> ClaimState {
        self.gate.state()
    }

    /// Makes the transition if we or the kernel have the device open exclusively (`held`) and no other process has
    /// changed it (`is_same`). Otherwise gives the device up.
    fn decide(
        &self,
        cut_off: impl FnOnce(),
        transition: Transition,
        held: Result<Option<DeviceHold>>,
        is_same: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        let decided = held.and_then(|held| {
            if !is_same()? {
                return Err(Error::Changed { image: self.spec.shown() });
            }
            self.gate.hold(held);
            self.go(transition).then_some(()).ok_or_else(|| self.taken())
        });
        if decided.is_err() {
            // First release the threads whose requests wait: they hold locks that the cut waits for.
            self.go(Transition::GiveUp);
            cut_off();
        }
        decided
    }

    fn taken(&self) -> Error {
        Error::Taken { image: self.spec.shown() }
    }

    /// Our exclusive open, or that of a dead mount, which excludes other processes as well.
    fn open_again(&self) -> Result<DeviceHold> {
        let clock = Clock::real();
        loop {
            // The connection ends first, then the mount, then the kernel's exclusive open.
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::open(&self.spec.path, flags, Mode::empty()) {
                Ok(again) => return Ok(Box::new(again)),
                Err(Errno::BUSY) if clock.now_ns() <= KERNEL_CLOSE_NS => clock.sleep(Duration::from_millis(2)),
                Err(Errno::BUSY) => return self.dead_mount().ok_or_else(|| self.taken()),
                Err(e) => return Err(Error::Host { path: self.spec.path.clone(), source: Arc::new(e.into()) }),
            }
        }
    }

    /// A busy mount remains after its server, and still has the device. It may be visible only under a bind mount, or
    /// nowhere. If it is visible, an open descriptor prevents its end.
    fn dead_mount(&self) -> Option<DeviceHold> {
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
        rustix::fs::stat(connection).is_ok().then(|| Box::new(()) as DeviceHold)
    }

    /// Whether no process has mounted or checked it since: it has the superblock that we wrote last.
    fn is_still(&self) -> Result<bool> {
        let found = of_mount(&super_block(&*self.inner)?[..]);
        Ok(found.is_some() && self.gate.superblocks().iter().any(|ours| of_mount(&ours[..]) == found))
    }
}

/// The fields of a superblock that a mount or a check changes without the log.
type MountFields = (u16, i64, Incompat, bool);

/// These fields of a superblock; errors and labels are not among them. `None`: it is no superblock.
fn of_mount(bytes: &[u8]) -> Option<MountFields> {
    let sb = SuperBlock::decode(bytes, SUPERBLOCK_OFFSET).ok()?;
    Some((sb.mount_count(), sb.mount_time(), sb.incompat(), sb.state().contains(FsState::VALID)))
}

/// The superblock as it is on the device.
fn super_block(dev: &dyn BlockDevice) -> Result<SuperBlockBytes> {
    let mut sb = Box::new([0; SUPERBLOCK_SIZE]);
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb[..], BioFlags::META)?;
    Ok(sb)
}

#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod tests;
