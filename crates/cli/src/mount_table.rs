//! What the kernel has mounted, for unmounting: `/proc/self/mountinfo`. Without /proc, a mount of ours is found by its
//! directory.
//!
//! Main types: [`Mount`], one line of the table; [`Found`], a mount and the mount point that it is on top of, resolved
//! once.
//!
//! # Locking
//! None.

use std::collections::HashSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use extant_fuse::{MountPoint, Top, kernel_uid};

use crate::failure::{Failure, MOUNT, Result};
use crate::image::ImageSpec;
use crate::status::Watch;
use crate::text;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Which no other mount has at the same time.
    pub id: u64,
    /// `major:minor`, which no other file system has at the same time.
    pub device: String,
    pub dir: PathBuf,
    /// Of the mount itself: `rw,nosuid`.
    pub options: String,
    /// Of its file system: `rw,sync,allow_other`.
    pub super_options: String,
    pub fs_type: String,
    /// The image, for ours.
    pub source: PathBuf,
    /// Who mounted, for FUSE.
    pub user_id: Option<u32>,
}

impl Mount {
    pub fn is_extant(&self) -> bool {
        self.fs_type == "fuse.extant" || self.fs_type == "fuseblk.extant"
    }

    /// What it says of itself is to be believed: whoever mounts may name any source.
    pub fn is_trusted(&self) -> bool {
        self.user_id.is_some_and(|uid| uid == 0 || uid == kernel_uid().as_raw())
    }

    /// Of the same file system: a bind mount of it, or in another namespace. The number alone does not tell, for the
    /// next mount of anything may have it as soon as this one is gone.
    pub fn is_same(&self, other: &Mount) -> bool {
        self.device == other.device && self.source == other.source
    }

    /// A mount of the image at `path`, an absolute path, or of a partition of it.
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
pub fn read() -> Result<Vec<Mount>> {
    let path = Path::new("/proc/self/mountinfo");
    let table = std::fs::read(path).map_err(|e| Failure::io(path, e))?;
    Ok(lines(&table).collect())
}

fn lines(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|b| *b == b'\n').filter_map(parse)
}

/// A process in whose mount namespace `mount` is, as far as this one may look.
pub fn seen_by(mount: &Mount) -> Option<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    // Most processes share a few.
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
        dir: unescape(fields.get(4)?),
        options: text(5)?,
        fs_type: text(dash + 1)?,
        source: unescape(fields.get(dash + 2)?),
        super_options,
        user_id,
    })
}

/// Undoes the kernel's `\040` for blanks and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        (rest, _) = match code {
            Some(byte) if *first == b'\\' => (&tail[3..], out.push(byte)),
            _ => (tail, out.push(*first)),
        };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// The options that fstab has for mounting `source` on `dir`. mount(8) does not pass on those that are its defaults,
/// `suid` and `dev` among them.
pub fn fstab_options(source: &Path, dir: &Path) -> Option<String> {
    let table = std::fs::read("/etc/fstab").ok()?;
    table.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| b.is_ascii_whitespace()).filter(|f| !f.is_empty());
        let (from, at) = (unescape(fields.next()?), unescape(fields.next()?));
        let options = fields.nth(1)?;
        (absolute(&from) == source && absolute(&at) == dir).then(|| unescape(options).to_string_lossy().into_owned())
    })
}

/// `path` without symbolic links, also when what is mounted there does not answer any more.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().ok().or_else(|| in_its_directory(path)).unwrap_or_else(|| path.into())
}

/// `path` without symbolic links on the way to its last name.
fn in_its_directory(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Some(parent.canonicalize().ok()?.join(path.file_name()?))
}

/// A mount, and where it is on top.
#[derive(Debug)]
pub struct Found {
    pub mount: Mount,
    pub point: MountPoint,
    pub top: Top,
}

/// The mount on top at `path`, a directory; or, if it is an image, the newest mount of it by this user or by root.
/// Fails when those are of several partitions of a disk that is named as a whole.
pub fn find(path: &Path) -> Result<Option<Found>> {
    // First without a look at what is mounted there: its server may not answer.
    if let Ok(point) = MountPoint::open(path)
        && let Ok(found) = find_at(point)?
    {
        return Ok(Some(found));
    }
    let spec = ImageSpec::parse(path.as_os_str());
    let image = ImageSpec { path: absolute(&spec.path), ..spec }.resolved().source();
    let mounts = read()?;
    let mut of: Vec<&Mount> = mounts.iter().filter(|m| m.is_extant() && m.is_trusted() && m.is_of(&image)).collect();
    let Some(newest) = of.pop() else { return Ok(None) };
    let shown = |path: &Path| text::shown(path.as_os_str().as_bytes());
    let one = |m: &Mount| format!("{} on {}", shown(&m.source), shown(&m.dir));
    if of.iter().any(|m| m.source != newest.source) {
        let all = of.into_iter().chain([newest]).map(one).collect::<Vec<_>>().join(", ");
        return Err(Failure::new(
            MOUNT,
            format!("{}: several partitions are mounted ({all}): name one", shown(&image)),
        ));
    }
    let found = MountPoint::open(&newest.dir).ok().map(find_at).transpose()?.and_then(std::result::Result::ok);
    match found.filter(|found| found.mount.id == newest.id) {
        Some(found) => Ok(Some(found)),
        None => Err(Failure::new(MOUNT, format!("{}: another mount covers it: unmount that first", one(newest)))),
    }
}

/// The mount on top at `point`, or the point again. Asks nothing of what is mounted there.
pub fn find_at(point: MountPoint) -> Result<std::result::Result<Found, MountPoint>> {
    let Ok(top) = point.top() else { return Ok(Err(point)) };
    let is = |m: &Mount| match top.id {
        Some(id) => top.is_mount && m.id == id,
        // Before Linux 5.8.
        None => m.dir == point.path() && m.device == number(top.device),
    };
    let mount = match read() {
        Ok(all) => all.into_iter().rfind(is),
        Err(e) if proc_is_missing() => Some(without_table(&point, top).ok_or(e)?),
        Err(e) => return Err(e),
    };
    Ok(match mount {
        Some(mount) => Ok(Found { mount, point, top }),
        None => Err(point),
    })
}

fn proc_is_missing() -> bool {
    !Path::new("/proc/self").exists()
}

/// A device's number as the table shows it.
pub fn number((major, minor): (u32, u32)) -> String {
    format!("{major}:{minor}")
}

/// A mount of ours at `point`, found by the device on top where /proc is missing. The status file of its server shows
/// that it is ours; the image is unknown.
fn without_table(point: &MountPoint, top: Top) -> Option<Mount> {
    let (device, me) = (number(top.device), kernel_uid().as_raw());
    let ours = top.is_mount && Watch::open(&device, me).is_some();
    ours.then(|| Mount {
        id: top.id.unwrap_or(0),
        device,
        dir: point.path().into(),
        options: String::new(),
        super_options: String::new(),
        fs_type: "fuse.extant".into(),
        source: point.path().into(),
        user_id: Some(me),
    })
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
        for (user_id, believed) in
            [(Some(0), true), (Some(kernel_uid().as_raw()), true), (Some(4711), false), (None, false)]
        {
            assert_eq!(Mount { user_id, ..mount.clone() }.is_trusted(), believed);
        }
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3 - x"), None);
        assert!(!read().unwrap().is_empty());
    }
}
