//! The users of an image, for the message that it is in use.
//!
//! Main type: [`Holder`]: the mounts of it that the kernel shows, and the processes that have it open, as far as this
//! process may see either.
//!
//! # Locking
//! None.

#[cfg(target_os = "linux")]
use std::os::unix::fs::MetadataExt;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::path::PathBuf;

use extant_block::BusyBy;
#[cfg(target_os = "linux")]
use extant_block::device::has_writer;
use extant_block::device::{KernelMount, is_locked, range_in_use};
#[cfg(target_os = "linux")]
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

#[cfg(target_os = "linux")]
use crate::mounts::{self, Mount};
use crate::open::place;
use crate::shown;
use crate::spec::ImageSpec;

/// How many processes a message names; more would be no help.
#[cfg(target_os = "linux")]
const PROCESSES_MAX: usize = 3;

/// The mounts and processes that use an image.
#[derive(Clone, Debug, Default)]
pub struct Holder {
    /// Its mounts by Extant.
    pub mounts: Vec<PathBuf>,
    /// Its use by the kernel's own driver.
    pub kernel: Option<KernelMount>,
    /// Number and name.
    pub processes: Vec<(u32, String)>,
}

/// Whether the server of one of our mounts has these bytes of an image file. A mount whose server has died does not
/// count.
#[cfg(target_os = "linux")]
pub(crate) fn is_served(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    is_locked(&spec.path, start, len).unwrap_or(false) && !mounts_of(spec).is_empty()
}

/// Whether one of our mounts writes these bytes of an image file. While other programs have locks for reading, such a
/// mount has no lock that would exclude another reader.
#[cfg(target_os = "linux")]
pub(crate) fn is_written(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    let writes = |m: &Mount| !m.super_options.split(',').any(|option| option == "ro") && !m.is_dead();
    // If it has a lock for writing, the next open fails anyway, and this sends no request to a server that may not
    // answer.
    let beside_readers =
        is_locked(&spec.path, start, len).unwrap_or(false) && !has_writer(&spec.path, start, len).unwrap_or(false);
    beside_readers && mounts_of(spec).iter().any(writes)
}

/// Our mounts of the image.
#[cfg(target_os = "linux")]
fn mounts_of(spec: &ImageSpec) -> Vec<Mount> {
    let path = mounts::absolute(&spec.path);
    let wanted = ImageSpec { path: path.clone(), ..spec.clone() }.source();
    let touches = |m: &Mount| spec.partition().is_none() || m.source == path || m.source == wanted;
    let mounts = mounts::mounts().unwrap_or_default();
    mounts.into_iter().filter(|m| m.is_extant() && m.is_trusted() && m.is_of(&path) && touches(m)).collect()
}

#[cfg(target_os = "linux")]
fn processes(path: &Path) -> Vec<(u32, String)> {
    let Ok(image) = path.metadata() else { return Vec::new() };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|pid| *pid != std::process::id());
    let has = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // Through the link: in another mount namespace its path would not be found.
        files
            .filter_map(|f| numbers_of(&f.path()))
            .any(|(file, device)| file == (image.dev(), image.ino()) || (image.rdev() != 0 && device == image.rdev()))
    };
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    others.filter(has).take(PROCESSES_MAX).map(|pid| (pid, shown(name(pid).trim_end().as_bytes()))).collect()
}

/// Device and inode of an open file, and the device that it is, if any. The file may lie on a mount whose server does
/// not answer: nothing is asked that the kernel does not know.
#[cfg(target_os = "linux")]
fn numbers_of(link: &Path) -> Option<((u64, u64), u64)> {
    let stat = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    let file = (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino);
    Some((file, makedev(stat.stx_rdev_major, stat.stx_rdev_minor)))
}

/// This system shows no mounts.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_served(_: &ImageSpec, _: u64, _: Option<u64>) -> bool {
    false
}

/// As [`is_served`].
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_written(_: &ImageSpec, _: u64, _: Option<u64>) -> bool {
    false
}

impl Holder {
    /// The users of the image, or of a part of it. Mounts of another partition are left out. Processes are not: an
    /// open descriptor does not show which partition a process uses.
    pub fn of(spec: &ImageSpec) -> Holder {
        let (start, len) = place(spec).unwrap_or((0, None));
        #[cfg(target_os = "linux")]
        {
            let path = mounts::absolute(&spec.path);
            let kernel = range_in_use(&path, start, len).ok().flatten();
            let mounts = mounts_of(spec).into_iter().map(|m| m.dir).collect();
            Holder { mounts, kernel, processes: processes(&path) }
        }
        #[cfg(not(target_os = "linux"))]
        Holder { kernel: range_in_use(&spec.path, start, len).ok().flatten(), ..Holder::default() }
    }

    /// The processes and mounts that use this partition of a disk. `None`: it is neither locked nor mounted,
    /// regardless of the disk's other partitions.
    pub fn of_partition(spec: &ImageSpec) -> Option<Holder> {
        let spec = spec.clone().resolved();
        let (start, len) = place(&spec).ok()?;
        let locked = !spec.is_block_device() && is_locked(&spec.path, start, len).unwrap_or(false);
        let holder = Holder::of(&spec);
        // The kernel reports a mount on a block device, too.
        (locked || holder.kernel.is_some()).then_some(holder)
    }

    /// Whether a server whose mount is gone may have the image: only such a process releases it soon.
    pub fn may_be_ending(&self) -> bool {
        let server = |(_, name): &(u32, String)| name.starts_with("extant") || name == "exe";
        self.mounts.is_empty()
            && self.kernel.is_none()
            && (self.processes.is_empty() || self.processes.iter().any(server))
    }

    /// The processes as a phrase: "process 12 (extant)", and more.
    pub fn processes(&self) -> String {
        let one = |(pid, name): &(u32, String)| format!("process {pid} ({name})");
        match self.processes.as_slice() {
            [] => "another process".to_owned(),
            all => all.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }

    /// Its mount, or its other users: "mounted on /mnt, served by process 12 (extant)".
    pub fn who(&self) -> String {
        match (self.mounts.last(), &self.kernel) {
            (Some(dir), _) => {
                format!("mounted on {}, served by {}", shown(dir.as_os_str().as_encoded_bytes()), self.processes())
            }
            (None, Some(kernel)) => shown(kernel.to_string().as_bytes()),
            (None, None) => format!("{} has it open", self.processes()),
        }
    }

    /// As [`Holder::who`]; if no user is found, the user `by` that the device's open found.
    pub fn description_or(&self, by: &BusyBy) -> String {
        let is_unknown = self.mounts.is_empty() && self.processes.is_empty() && self.kernel.is_none();
        if is_unknown { by.to_string() } else { self.who() }
    }
}
