//! Finds the mount of a path, for unmounting, remounting and freezing. Without /proc, it finds a mount of Extant by its
//! directory.
//!
//! Main type: [`FoundMount`], a mount and the mount point on which it is the topmost one, resolved once.
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant_fuse::{MountPoint, Top, kernel_uid};
use extant_image::{ImageSpec, Mount, absolute, mounts};

use crate::failure::{Failure, MOUNT, Result};
use crate::server::status::Watch;
use crate::text;

/// A mount, and the mount point on which it is the topmost one.
#[derive(Debug)]
pub struct FoundMount {
    pub mount: Mount,
    pub point: MountPoint,
    pub top: Top,
}

/// The topmost mount at `path`, a directory; or, if `path` is an image, the newest mount of it by this user or by root.
/// Fails if `path` is a whole disk and several of its partitions are mounted.
pub fn find(path: &Path) -> Result<Option<FoundMount>> {
    // First without sending a request to a mount there: its server may not answer.
    if let Ok(point) = MountPoint::open(path)
        && let Ok(found) = find_at(point)?
    {
        return Ok(Some(found));
    }
    let spec = ImageSpec::parse(path.as_os_str());
    let image = ImageSpec { path: absolute(&spec.path), ..spec }.resolved().source();
    let mounts = mounts()?;
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

/// The topmost mount at `point`, or the point itself. Sends no request to a server there.
pub fn find_at(point: MountPoint) -> Result<std::result::Result<FoundMount, MountPoint>> {
    let Ok(top) = point.top() else { return Ok(Err(point)) };
    let is = |m: &Mount| match top.id {
        Some(id) => top.is_mount && m.id == id,
        // Before Linux 5.8.
        None => m.dir == point.path() && m.device == number(top.device),
    };
    let mount = match mounts() {
        Ok(all) => all.into_iter().rfind(is),
        Err(e) if proc_is_missing() => Some(without_table(&point, top).ok_or(e)?),
        Err(e) => return Err(e.into()),
    };
    Ok(match mount {
        Some(mount) => Ok(FoundMount { mount, point, top }),
        None => Err(point),
    })
}

fn proc_is_missing() -> bool {
    !Path::new("/proc/self").exists()
}

/// A device number in the format of the mount table.
pub fn number((major, minor): (u32, u32)) -> String {
    format!("{major}:{minor}")
}

/// A mount of Extant at `point`, identified by the topmost device if /proc is missing. The status file of its server
/// shows that it is Extant's; the image is unknown.
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
