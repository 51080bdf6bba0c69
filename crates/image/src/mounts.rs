//! The kernel's mounts: `/proc/self/mountinfo`, and their lines in fstab.
//!
//! Main type: [`Mount`], one line of the table.
//!
//! # Locking
//! None.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_block::device::unescape;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// A number that no other mount has at the same time.
    pub id: u64,
    /// `major:minor`, which no other file system has at the same time.
    pub device: String,
    /// The mount point.
    pub dir: PathBuf,
    /// Options of the mount itself: `rw,nosuid`.
    pub options: String,
    /// Options of its file system: `rw,sync,allow_other`.
    pub super_options: String,
    /// `fuse.extant` and `fuseblk.extant` are ours.
    pub fs_type: String,
    /// The image, for our mounts.
    pub source: PathBuf,
    /// The user who mounted, for FUSE.
    pub user_id: Option<u32>,
}

impl Mount {
    /// Whether the mount is one of ours.
    pub fn is_extant(&self) -> bool {
        self.fs_type == "fuse.extant" || self.fs_type == "fuseblk.extant"
    }

    /// Whether its source can be trusted: any user may mount with any source.
    pub fn is_trusted(&self) -> bool {
        self.user_id.is_some_and(|uid| uid == 0 || Some(uid) == effective_uid())
    }

    /// A mount whose server is gone.
    pub fn is_dead(&self) -> bool {
        matches!(rustix::fs::statfs(&self.dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
    }

    /// Whether both show the same file system: a bind mount of it, or in another namespace. The number does not
    /// suffice: the next mount may get it as soon as this one is gone.
    pub fn is_same(&self, other: &Mount) -> bool {
        self.device == other.device && self.source == other.source
    }

    /// Whether it is a mount of the image at `path`, an absolute path, or of a partition of it.
    pub fn is_of(&self, path: &Path) -> bool {
        let (source, path) = (self.source.as_os_str().as_bytes(), path.as_os_str().as_bytes());
        match source.strip_prefix(path) {
            Some([]) => true,
            Some([b'@', number @ ..]) => !number.is_empty() && number.iter().all(u8::is_ascii_digit),
            _ => false,
        }
    }
}

/// All mounts, the newest last.
///
/// # Errors
/// The table cannot be read.
pub fn mounts() -> Result<Vec<Mount>> {
    let path = "/proc/self/mountinfo";
    let table = std::fs::read(path).map_err(|e| Error::Host { path: path.into(), source: Arc::new(e) })?;
    Ok(lines(&table).collect())
}

/// The effective user as the kernel knows it. Under fakeroot(1) the C library returns root.
fn effective_uid() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

fn lines(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|b| *b == b'\n').filter_map(parse)
}

/// A process whose mount namespace contains `mount`, if this process may look there.
pub fn seen_by(mount: &Mount) -> Option<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    // Most processes share a few namespaces.
    let mut namespaces = HashSet::new();
    let new = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).map_or(true, |ns| namespaces.insert(ns));
    numbers.filter(new).find(|pid| {
        let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        lines(&table).any(|other| other.is_same(mount))
    })
}

fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let text = |i: usize| fields.get(i).map(|f| String::from_utf8_lossy(f).into_owned());
    let super_options = text(dash + 3).unwrap_or_default();
    let id = text(0)?.parse().ok()?;
    let user_id = super_options.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
    Some(Mount {
        id,
        device: text(2)?,
        dir: path(fields.get(4)?),
        options: text(5)?,
        fs_type: text(dash + 1)?,
        source: path(fields.get(dash + 2)?),
        super_options,
        user_id,
    })
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// The options in fstab for mounting `source` on `dir`. mount(8) does not pass on its defaults, `suid` and `dev`
/// among them.
pub fn fstab_options(source: &Path, dir: &Path) -> Option<String> {
    let table = std::fs::read("/etc/fstab").ok()?;
    table.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| b.is_ascii_whitespace()).filter(|f| !f.is_empty());
        let (from, at) = (path(fields.next()?), path(fields.next()?));
        let options = fields.nth(1)?;
        (absolute(&from) == source && absolute(&at) == dir)
            .then(|| String::from_utf8_lossy(&unescape(options)).into_owned())
    })
}

/// `path` without symbolic links, even if the server of a mount there no longer answers.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().ok().or_else(|| in_its_directory(path)).unwrap_or_else(|| path.into())
}

/// `path` without symbolic links on the way to its last name.
fn in_its_directory(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Some(parent.canonicalize().ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = b"99 28 0:57 / /mnt/a\\040b rw,nosuid,nodev shared:7 - fuse.extant /img/x\\134y.img \
                     rw,user_id=1000,group_id=100,default_permissions";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.device.as_str()), (99, "0:57"));
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!(mount.source, Path::new("/img/x\\y.img"));
        assert_eq!((mount.user_id, mount.options.as_str()), (Some(1000), "rw,nosuid,nodev"));
        assert_eq!(mount.super_options, "rw,user_id=1000,group_id=100,default_permissions");
        assert!(mount.is_extant());
        assert!(mount.is_of(Path::new("/img/x\\y.img")));
        let next = Mount { source: "/img/next".into(), ..mount.clone() };
        assert!(mount.is_same(&Mount { dir: "/bound".into(), ..mount.clone() }) && !mount.is_same(&next));
        let part = Mount { source: "/img/a@12".into(), ..mount.clone() };
        assert!(part.is_of(Path::new("/img/a")) && part.is_of(Path::new("/img/a@12")));
        assert!(!part.is_of(Path::new("/img/a@1")) && !part.is_of(Path::new("/img")));
        for (user_id, believed) in [(Some(0), true), (effective_uid(), true), (Some(4711), false), (None, false)] {
            assert_eq!(Mount { user_id, ..mount.clone() }.is_trusted(), believed);
        }
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3 - x"), None);
        assert!(!mounts().unwrap().is_empty());
    }
}
