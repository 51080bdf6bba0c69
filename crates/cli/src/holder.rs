//! Who has an image, for the message that it is in use.
//!
//! Main type: [`Holder`]: the mounts of it that the kernel shows, and the processes that have it open, as far as this
//! process may see either.
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use extant_block::Error as DeviceError;
use extant_block::device::{KernelMount, is_locked, range_in_use};
use extant_fuse::mount::is_dead;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::image::{self, ImageSpec};
use crate::mount_table::{self, Mount};
use crate::text::shown;

/// Processes that are named; more would be no help.
const PROCESSES_MAX: usize = 3;

#[derive(Debug, Default)]
pub struct Holder {
    mounts: Vec<PathBuf>,
    /// As the kernel's own driver has it.
    kernel: Option<KernelMount>,
    /// Number and name.
    processes: Vec<(u32, String)>,
}

/// Who has the image, or some of it. Mounts of another partition are left out; its processes are not, for it takes more
/// than a descriptor to tell what they do with it.
pub fn find(spec: &ImageSpec) -> Holder {
    let path = mount_table::absolute(&spec.path);
    let (start, len) = image::place(spec).unwrap_or((0, None));
    let kernel = range_in_use(&path, start, len).ok().flatten();
    Holder { mounts: mounts(spec), kernel, processes: processes(&path) }
}

/// Whether the server of a mount of ours has these bytes of an image file: not one that has died and left its mount.
pub fn is_served(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    is_locked(&spec.path, start, len).unwrap_or(false) && !mounts(spec).is_empty()
}

/// Whether a mount of ours writes these bytes of an image file. Beside locks of strangers for reading it has no lock
/// that would keep another reader away.
pub fn is_written(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    let writes = |m: &Mount| !m.super_options.split(',').any(|option| option == "ro") && !is_dead(&m.dir);
    is_locked(&spec.path, start, len).unwrap_or(false) && mounts_of(spec).iter().any(writes)
}

/// Where it is mounted by us.
fn mounts(spec: &ImageSpec) -> Vec<PathBuf> {
    mounts_of(spec).into_iter().map(|m| m.dir).collect()
}

fn mounts_of(spec: &ImageSpec) -> Vec<Mount> {
    let path = mount_table::absolute(&spec.path);
    let wanted = ImageSpec { path: path.clone(), ..spec.clone() }.source();
    let touches = |m: &Mount| spec.partition().is_none() || m.source == path || m.source == wanted;
    let mounts = mount_table::read().unwrap_or_default();
    mounts.into_iter().filter(|m| m.is_extant() && m.is_trusted() && m.is_of(&path) && touches(m)).collect()
}

/// Who has a partition of a disk of several, if anybody: one that nobody has locked or mounted is nobody's, whoever has
/// another one.
pub fn find_of_partition(spec: &ImageSpec) -> Option<Holder> {
    let spec = spec.clone().resolved();
    let (start, len) = image::place(&spec).ok()?;
    let locked = !spec.is_block_device() && is_locked(&spec.path, start, len).unwrap_or(false);
    let holder = find(&spec);
    // A mount on a block device is the kernel's, too.
    (locked || holder.kernel.is_some()).then_some(holder)
}

fn processes(path: &Path) -> Vec<(u32, String)> {
    let Ok(image) = path.metadata() else { return Vec::new() };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|pid| *pid != std::process::id());
    let has = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // Through the link: a path would not be found in another mount namespace.
        files.filter_map(|f| f.path().metadata().ok()).any(|m| {
            let same_file = (m.dev(), m.ino()) == (image.dev(), image.ino());
            same_file || (image.rdev() != 0 && m.rdev() == image.rdev())
        })
    };
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    others.filter(has).take(PROCESSES_MAX).map(|pid| (pid, shown(name(pid).trim_end().as_bytes()))).collect()
}

impl Holder {
    /// Perhaps a server whose mount is gone already; nobody else lets go of an image soon.
    pub fn may_be_ending(&self) -> bool {
        let server = |(_, name): &(u32, String)| name.starts_with("extant") || name == "exe";
        self.mounts.is_empty()
            && self.kernel.is_none()
            && (self.processes.is_empty() || self.processes.iter().any(server))
    }

    /// "process 12 (extant)", and more.
    pub fn processes(&self) -> String {
        let one = |(pid, name): &(u32, String)| format!("process {pid} ({name})");
        match self.processes.as_slice() {
            [] => "another process".to_owned(),
            all => all.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }

    /// Its mount, or who else has it: "mounted on /mnt, served by process 12 (extant)".
    pub fn who(&self) -> String {
        match (self.mounts.last(), &self.kernel) {
            (Some(dir), _) => {
                format!("mounted on {}, served by {}", shown(dir.as_os_str().as_bytes()), self.processes())
            }
            (None, Some(kernel)) => shown(kernel.to_string().as_bytes()),
            (None, None) => format!("{} has it", self.processes()),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let kernel = self.kernel.as_ref().filter(|_| self.mounts.is_empty());
        let one = |(pid, name): &(u32, String)| json!({ "pid": pid, "name": name });
        json!({
            "mounted_on": self.mounts.last().map(|dir| path(dir)).or_else(|| kernel?.at.clone()),
            "by_kernel": kernel.is_some(),
            "through": kernel.and_then(|kernel| kernel.through.as_deref()).map(path),
            "processes": self.processes.iter().map(one).collect::<Vec<_>>(),
        })
    }

    /// The message for `image`, which could not be had.
    pub fn explain(&self, image: &str, busy: DeviceError) -> Failure {
        let who = self.who();
        match busy {
            _ if !self.mounts.is_empty() => Failure::op(format!("{image}: in use: {who}: use it there, or unmount it")),
            DeviceError::Busy { by, .. } if self.processes.is_empty() && self.kernel.is_none() => {
                Failure::op(format!("{image}: in use: {by}"))
            }
            _ => Failure::op(format!("{image}: in use: {who}")),
        }
    }
}
