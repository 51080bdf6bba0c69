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

use extant_block::device::{KernelMount, has_writer, is_locked, range_in_use};

use crate::mounts::{self, Mount};
use crate::open::place;
use crate::shown;
use crate::spec::ImageSpec;

/// Processes that are named; more would be no help.
const PROCESSES_MAX: usize = 3;

/// Who has an image.
#[derive(Clone, Debug, Default)]
pub struct Holder {
    /// Where it is mounted by Extant.
    pub mounts: Vec<PathBuf>,
    /// As the kernel's own driver has it.
    pub kernel: Option<KernelMount>,
    /// Number and name.
    pub processes: Vec<(u32, String)>,
}

/// Whether the server of a mount of ours has these bytes of an image file: not one that has died and left its mount.
pub(crate) fn is_served(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    is_locked(&spec.path, start, len).unwrap_or(false) && !mounts_of(spec).is_empty()
}

/// Whether a mount of ours writes these bytes of an image file. Beside locks of strangers for reading it has no lock
/// that would keep another reader away.
pub(crate) fn is_written(spec: &ImageSpec, start: u64, len: Option<u64>) -> bool {
    let writes = |m: &Mount| !m.super_options.split(',').any(|option| option == "ro") && !m.is_dead();
    // Where it has a lock for writing, the next one to open the image is refused anyway, and a server that does not
    // answer need not be asked.
    let beside_readers =
        is_locked(&spec.path, start, len).unwrap_or(false) && !has_writer(&spec.path, start, len).unwrap_or(false);
    beside_readers && mounts_of(spec).iter().any(writes)
}

/// Where it is mounted by us.
fn mounts_of(spec: &ImageSpec) -> Vec<Mount> {
    let path = mounts::absolute(&spec.path);
    let wanted = ImageSpec { path: path.clone(), ..spec.clone() }.source();
    let touches = |m: &Mount| spec.partition().is_none() || m.source == path || m.source == wanted;
    let mounts = mounts::mounts().unwrap_or_default();
    mounts.into_iter().filter(|m| m.is_extant() && m.is_trusted() && m.is_of(&path) && touches(m)).collect()
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
    /// Who has the image, or some of it. Mounts of another partition are left out; its processes are not, for it takes
    /// more than a descriptor to tell what they do with it.
    pub fn of(spec: &ImageSpec) -> Holder {
        let path = mounts::absolute(&spec.path);
        let (start, len) = place(spec).unwrap_or((0, None));
        let kernel = range_in_use(&path, start, len).ok().flatten();
        let mounts = mounts_of(spec).into_iter().map(|m| m.dir).collect();
        Holder { mounts, kernel, processes: processes(&path) }
    }

    /// The processes and mounts that have this partition of a disk. `None`: it is neither locked nor mounted, whatever
    /// is with the disk's other partitions.
    pub fn of_partition(spec: &ImageSpec) -> Option<Holder> {
        let spec = spec.clone().resolved();
        let (start, len) = place(&spec).ok()?;
        let locked = !spec.is_block_device() && is_locked(&spec.path, start, len).unwrap_or(false);
        let holder = Holder::of(&spec);
        // A mount on a block device is the kernel's, too.
        (locked || holder.kernel.is_some()).then_some(holder)
    }

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

    /// As [`Holder::who`]; `by`, the device's word, where nobody can be found.
    pub fn who_or(&self, by: &str) -> String {
        let nobody = self.mounts.is_empty() && self.processes.is_empty() && self.kernel.is_none();
        if nobody { by.to_owned() } else { self.who() }
    }
}
