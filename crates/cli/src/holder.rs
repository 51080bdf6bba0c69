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

use crate::failure::Failure;
use crate::image::ImageSpec;
use crate::mount_table::{self, Mount};
use crate::text::shown;

/// Processes that are named; more would be no help.
const PROCESSES_MAX: usize = 3;

#[derive(Debug, Default)]
pub struct Holder {
    mounts: Vec<PathBuf>,
    /// Number and name.
    processes: Vec<(u32, String)>,
}

/// Who has the image, or some of it. Mounts of another partition are left out; its processes are not, for it takes more
/// than a descriptor to tell what they do with it.
pub fn find(spec: &ImageSpec) -> Holder {
    let path = mount_table::absolute(&spec.path);
    let wanted = ImageSpec { path: path.clone(), ..spec.clone() }.source();
    let touches = |m: &Mount| spec.partition().is_none() || m.source == path || m.source == wanted;
    let mounts = mount_table::read().unwrap_or_default();
    let mounts = mounts.into_iter().filter(|m| m.is_extant() && m.is_trusted() && m.is_of(&path) && touches(m));
    Holder { mounts: mounts.map(|m| m.dir).collect(), processes: processes(&path) }
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
        self.mounts.is_empty() && (self.processes.is_empty() || self.processes.iter().any(server))
    }

    /// "process 12 (extant)", and more.
    pub fn processes(&self) -> String {
        let one = |(pid, name): &(u32, String)| format!("process {pid} ({name})");
        match self.processes.as_slice() {
            [] => "another process".to_owned(),
            all => all.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }

    /// The message for `image`, which could not be had.
    pub fn explain(&self, image: &str, busy: DeviceError) -> Failure {
        if let Some(dir) = self.mounts.last() {
            let dir = shown(dir.as_os_str().as_bytes());
            let by = self.processes();
            return Failure::op(format!(
                "{image}: in use: mounted on {dir}, served by {by}: use it there, or unmount it"
            ));
        }
        match busy {
            DeviceError::Busy { by, .. } if self.processes.is_empty() || by.starts_with("mounted") => {
                Failure::op(format!("{image}: in use: {by}"))
            }
            _ => Failure::op(format!("{image}: in use: {} has it", self.processes())),
        }
    }
}
