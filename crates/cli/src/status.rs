//! How an unmount learns how it went: a file that the server keeps while it lives.
//!
//! umount(2) on a FUSE mount does not wait for the server, and has no way to pass its error on. So the server writes a
//! small file, named after the mount's device number, into a directory of its user:
//!
//! - `/run/extant` for root; else `$XDG_RUNTIME_DIR/extant`, else `/run/user/UID/extant`, else `/tmp/extant-UID`;
//! - first line: `serving`, then `unmounted`, or `failed` with the error on the lines that follow;
//! - it is locked (flock) from the moment it has its name until the server has let go of the image, or has died. Who gets
//!   the lock knows that the server is done; if the file then still says `serving`, it died.
//!
//! The server removes the file when all went well; who waits has it open already. Without such a directory there is no
//! file, and an unmount can only wait for the lock on the image.
//!
//! # Locking
//! flock, as above.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

/// Longest file that is read, bytes.
const STATUS_MAX: u64 = 4096;

/// The directories where the server of user `uid` may keep its file, best first.
fn directories(uid: u32) -> Vec<PathBuf> {
    if uid == 0 {
        return vec!["/run/extant".into()];
    }
    let mut dirs = Vec::new();
    if uid == geteuid().as_raw()
        && let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR")
        && Path::new(&runtime).is_absolute()
    {
        dirs.push(Path::new(&runtime).join("extant"));
    }
    dirs.push(format!("/run/user/{uid}/extant").into());
    dirs.push(format!("/tmp/extant-{uid}").into());
    dirs
}

/// A directory that is `uid`'s and that nobody else can write to.
fn is_private(dir: &Path, uid: u32) -> bool {
    dir.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0)
}

/// The server's side.
#[derive(Debug)]
pub struct ServerStatus {
    file: File,
    path: PathBuf,
}

impl ServerStatus {
    /// Says that the mount with this device number is served. `None` when there is no place for it.
    pub fn create(device: &str) -> Option<ServerStatus> {
        let uid = geteuid().as_raw();
        directories(uid).iter().find_map(|dir| {
            let _ = DirBuilder::new().mode(0o755).create(dir);
            if !is_private(dir, uid) {
                return None;
            }
            // It appears under its name locked, so that who sees it can wait; it replaces one left by a server that died.
            let temporary = dir.join(format!(".{device}.{}", std::process::id()));
            let path = dir.join(device);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .custom_flags(nofollow())
                .open(&temporary)
                .ok()?;
            let ready = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && file.write_all(b"serving\n").is_ok()
                && std::fs::rename(&temporary, &path).is_ok();
            if !ready {
                let _ = std::fs::remove_file(&temporary);
                return None;
            }
            Some(ServerStatus { file, path })
        })
    }

    /// Says how it ended. The image must have been let go of by now: this is the signal for it.
    pub fn finish(mut self, result: Result<(), String>) {
        let text = match &result {
            Ok(()) => "unmounted\n".to_owned(),
            Err(e) => format!("failed\n{e}\n"),
        };
        let written = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64));
        if result.is_ok() && written.is_ok() {
            remove(&self.file, &self.path);
        }
    }
}

/// Removes the name of `file`, unless another mount has got the number, and with it the name.
fn remove(file: &File, path: &Path) {
    if let (Ok(a), Ok(b)) = (file.metadata(), path.symlink_metadata())
        && (a.dev(), a.ino()) == (b.dev(), b.ino())
    {
        let _ = std::fs::remove_file(path);
    }
}

fn nofollow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32
}

/// The side of who unmounts.
#[derive(Debug)]
pub struct Watch {
    file: File,
    path: PathBuf,
}

/// How a server ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Unmounted,
    Failed(String),
    /// Without a word: killed.
    Died,
}

impl Watch {
    /// Opened before unmounting. `uid`: who mounted.
    pub fn open(device: &str, uid: u32) -> Option<Watch> {
        directories(uid).into_iter().find_map(|dir| {
            if !is_private(&dir, uid) {
                return None;
            }
            let path = dir.join(device);
            let file = OpenOptions::new().read(true).custom_flags(nofollow()).open(&path).ok()?;
            file.metadata().is_ok_and(|m| m.is_file() && m.uid() == uid).then_some(Watch { file, path })
        })
    }

    /// `None` while the server is at work.
    pub fn poll(&mut self) -> Option<Ended> {
        flock(&self.file, FlockOperation::NonBlockingLockShared).ok()?;
        let mut text = Vec::new();
        let _ = self.file.seek(SeekFrom::Start(0));
        let _ = (&self.file).take(STATUS_MAX).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        let (word, rest) = text.split_once('\n').unwrap_or((&text, ""));
        Some(match word {
            "unmounted" => Ended::Unmounted,
            "failed" => Ended::Failed(rest.trim_end().to_owned()),
            _ => Ended::Died,
        })
    }

    /// Removes what a server that failed or died has left, if it is ours to remove.
    pub fn clear(self) {
        remove(&self.file, &self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_waited_for() {
        let uid = geteuid().as_raw();
        let device = format!("test-{}", std::process::id());
        let Some(server) = ServerStatus::create(&device) else { return };
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        assert_eq!(watch.poll(), None);
        server.finish(Ok(()));
        assert_eq!(watch.poll(), Some(Ended::Unmounted));
        assert!(Watch::open(&device, uid).is_none());

        let server = ServerStatus::create(&device).expect("again");
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        server.finish(Err("disk.img: no\nspace".into()));
        assert_eq!(watch.poll(), Some(Ended::Failed("disk.img: no\nspace".into())));

        let server = ServerStatus::create(&device).expect("replaces it");
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        drop(server);
        assert_eq!(watch.poll(), Some(Ended::Died));
        watch.clear();
        assert!(Watch::open(&device, uid).is_none());
    }
}
