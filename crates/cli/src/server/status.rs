//! How an unmount learns of the result: a file that the server maintains while it lives.
//!
//! umount(2) on a FUSE mount does not wait for the server, and cannot return its error. So the server writes a small
//! file, named after the mount's device number, into a directory of its user:
//!
//! - The directory is `/run/extant` for root. Otherwise, or if that is not possible, it is `$XDG_RUNTIME_DIR/extant`,
//!   `/run/user/UID/extant` or `/tmp/extant-UID`. For root of a user namespace, UID is the user ID outside. It must be
//!   a directory (not a link) that belongs to the user and that no other user can enter. It is used through one
//!   descriptor, because in `/tmp` any user can create one of that name first.
//! - The first line is `serving`, with the mount's options on the next line, which a remount needs. At the end it is
//!   `unmounted`, or `failed` with the error on the lines that follow.
//! - The server holds a lock on the file from its creation until the server has closed the image, or has died. The lock
//!   belongs to a process (fcntl), so the kernel reports its owner. The server has ended when its process no longer
//!   holds the lock, even if another process holds one then. If the file then still says `serving`, the server died.
//!
//! After a success, the server's agent removes the file ([`crate::server::sandbox`]), or the server if it has no agent.
//! An unmount that waits has the file open already. The server itself only writes into the file, which it opened before
//! it dropped its privileges. All servers of a user share the directory, and a compromised server must not report for
//! another. Without such a directory there is no file. An unmount then waits for the lock on the image, and checks
//! whether the superblock marks it as cleanly unmounted ([`crate::commands::unmount`]).
//!
//! The directory also holds the server's messages if there is no system log ([`crate::server::log`]).
//!
//! The kernel reuses a mount's number before its server has ended, so two servers may use one name. Therefore a process
//! locks the directory while it creates or removes a name.
//!
//! Another user's file may contain anything, and any process may have locked it from the beginning. So an unmount
//! waits for it only for a limited time ([`crate::commands::unmount`]), and never for a lock on another user's
//! directory.
//!
//! # Locking
//! The fcntl lock of the file, as above; the directory's (flock), for two system calls.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_fuse::kernel_uid;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::process::geteuid;

/// The maximum length of a file that is read, bytes.
const STATUS_MAX: u64 = 4096;

/// The directories where the server of user `uid` may have its file, best first.
fn directories(uid: u32) -> Vec<PathBuf> {
    let outside = outside_of_namespace(uid);
    let mut dirs: Vec<PathBuf> = Vec::new();
    if uid == 0 {
        dirs.push("/run/extant".into());
    }
    // In a user namespace, root's directory may be that of the user outside.
    if outside != 0
        && uid == kernel_uid().as_raw()
        && let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR")
        && Path::new(&runtime).is_absolute()
    {
        dirs.push(Path::new(&runtime).join("extant"));
    }
    dirs.push(format!("/run/user/{outside}/extant").into());
    dirs.push(format!("/tmp/extant-{outside}").into());
    dirs
}

/// The ID of user `uid` in the parent of our user namespace, which the names in /run and /tmp use.
fn outside_of_namespace(uid: u32) -> u32 {
    mapped(uid, &std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default()).unwrap_or(uid)
}

/// Converts with a map of user IDs (user_namespaces(7)).
fn mapped(uid: u32, map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let within = uid.checked_sub(inside).filter(|within| *within < count)?;
        outside.checked_add(within)
    })
}

/// The owner that fstat(2) reports for files of user `uid`. Under fakeroot(1), this process's own files belong to the
/// user that geteuid(2) returns.
fn shown_owner(uid: u32) -> u32 {
    if uid == kernel_uid().as_raw() { geteuid().as_raw() } else { uid }
}

/// Opens `dir` if it is a directory that `uid` owns. The check is made on the descriptor that is then used, so
/// replacing the name has no effect. If the directory is this user's and is open to other users (as older versions made
/// it), access for others is removed.
fn open_private(dir: &Path, uid: u32) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(CWD, dir, flags, Mode::empty()).ok()?;
    let owner = shown_owner(uid);
    let private = |fd: &OwnedFd| fstat(fd).is_ok_and(|st| st.st_uid == owner && st.st_mode & 0o077 == 0);
    if !private(&fd) && fstat(&fd).is_ok_and(|st| st.st_uid == owner && st.st_mode & 0o022 == 0) {
        let _ = fchmod(&fd, Mode::RWXU);
    }
    private(&fd).then_some(fd)
}

/// The directory of this user; creates it if it is missing.
pub fn own_directory() -> Option<(OwnedFd, PathBuf)> {
    let uid = kernel_uid().as_raw();
    directories(uid).into_iter().find_map(|dir| {
        let _ = mkdirat(CWD, &dir, Mode::RWXU);
        open_private(&dir, uid).map(|fd| (fd, dir))
    })
}

/// A lock of a whole file.
fn whole(kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// The server's side. The process must not open this file again: closing the second descriptor would release the lock.
#[derive(Debug)]
pub struct ServerStatus {
    file: File,
    dir: OwnedFd,
    name: String,
}

impl ServerStatus {
    /// Reports that the mount with this device number is served with these options. `None` if no directory is usable.
    pub fn create(device: &str, options: &str) -> Option<ServerStatus> {
        let (dir, _) = own_directory()?;
        // The file gets its name when it is locked, so that an unmount that sees it can wait. It replaces a file left
        // by a server that died.
        let temporary = format!(".{device}.{}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&dir, &temporary, flags, Mode::RUSR | Mode::WUSR).ok()?);
        let ready = fcntl(&file, FcntlArg::F_SETLK(&whole(libc::F_WRLCK))).is_ok()
            && file.write_all(format!("serving\n{options}\n").as_bytes()).is_ok()
            && alone_in(&dir, || renameat(&dir, &temporary, &dir, device)).is_ok();
        if !ready {
            let _ = unlinkat(&dir, &temporary, AtFlags::empty());
            return None;
        }
        Some(ServerStatus { file, dir, name: device.to_owned() })
    }

    /// Reports the result. The image must be closed already, because the report signals that. `removes`: no agent will
    /// remove the file after a success.
    pub fn finish(mut self, result: Result<(), String>, removes: bool) {
        let text = match &result {
            Ok(()) => "unmounted\n".to_owned(),
            Err(e) => format!("failed\n{e}\n"),
        };
        let written = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64));
        // The lock ends when any descriptor is closed. Only then may this code wait for the directory, which its owner
        // may have locked.
        let Ok(unlocked) = self.file.try_clone() else { return };
        drop(self.file);
        if removes && result.is_ok() && written.is_ok() {
            alone_in(&self.dir, || remove(&unlocked, &self.dir, &self.name));
        }
    }
}

/// Removes the name of `file`, unless another mount has the device number, and therefore the name, by now.
fn remove(file: &File, dir: &OwnedFd, name: &str) {
    if let (Ok(a), Ok(b)) = (file.metadata(), statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
        && (a.dev(), a.ino()) == (b.st_dev, b.st_ino)
    {
        let _ = unlinkat(dir, name, AtFlags::empty());
    }
}

/// Runs `f` while no other process creates or removes a name in `dir`. So the name still refers to the same file when
/// `f` removes it. If the lock fails, mounts still begin and end.
fn alone_in<R>(dir: &OwnedFd, f: impl FnOnce() -> R) -> R {
    let _ = rustix::io::retry_on_intr(|| flock(dir, FlockOperation::LockExclusive));
    let result = f();
    let _ = flock(dir, FlockOperation::Unlock);
    result
}

/// As [`alone_in`], but does nothing if the lock is not free: it does not wait.
fn if_alone_in<R>(dir: &OwnedFd, f: impl FnOnce() -> R) -> Option<R> {
    flock(dir, FlockOperation::NonBlockingLockExclusive).ok()?;
    let result = f();
    let _ = flock(dir, FlockOperation::Unlock);
    Some(result)
}

/// The unmount's side.
#[derive(Debug)]
pub struct Watch {
    file: File,
    dir: OwnedFd,
    name: String,
    /// The process that held the lock on the file at first.
    server: Option<i32>,
}

/// How a server ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerExit {
    Unmounted,
    Failed(String),
    /// Killed, without a report.
    Died,
    /// There is no report, and the image shows no result.
    Unknown,
}

impl Watch {
    /// Opens the status file, before unmounting. `uid`: the user who mounted. `None` also if the kernel cannot report a
    /// lock's owner.
    pub fn open(device: &str, uid: u32) -> Option<Watch> {
        directories(uid).iter().find_map(|dir| {
            let dir = open_private(dir, uid)?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&dir, device, flags, Mode::empty()).ok()?;
            let st = fstat(&file).ok()?;
            let sound = st.st_uid == shown_owner(uid) && FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
            let server = holder(&file).ok()?;
            sound.then(|| Watch { file: file.into(), dir, name: device.to_owned(), server })
        })
    }

    /// How the server ended; `None` while it is running.
    pub fn poll(&mut self) -> Option<ServerExit> {
        if self.server.is_some() && holder(&self.file).ok()? == self.server {
            return None;
        }
        let (word, rest) = self.read();
        Some(match word.as_str() {
            "unmounted" => ServerExit::Unmounted,
            "failed" => ServerExit::Failed(rest),
            _ => ServerExit::Died,
        })
    }

    /// The options of a mount that is being served.
    pub fn options(&mut self) -> Option<String> {
        let (word, rest) = self.read();
        (word == "serving").then_some(rest)
    }

    /// The first line, and the rest.
    fn read(&mut self) -> (String, String) {
        let mut text = Vec::new();
        let _ = self.file.seek(SeekFrom::Start(0));
        let _ = (&self.file).take(STATUS_MAX).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let (word, rest) = text.split_once('\n').unwrap_or((&text, ""));
        (word.to_owned(), rest.trim_end().to_owned())
    }

    /// Waits until the server has ended, and removes the file if it has unmounted. For the server's agent.
    pub fn clear_at_the_end(mut self) {
        const TRIES: u32 = 500;
        const PAUSE: Duration = Duration::from_millis(20);
        for _ in 0..TRIES {
            match self.poll() {
                None => Clock::real().sleep(PAUSE),
                Some(ServerExit::Unmounted) => {
                    return alone_in(&self.dir, || remove(&self.file, &self.dir, &self.name));
                }
                Some(_) => return,
            }
        }
    }

    /// Removes the file of a server that failed or died, if permitted. It does not wait for a lock on the directory,
    /// which another user may hold: the next server with this number replaces the file.
    pub fn clear(self) {
        if_alone_in(&self.dir, || remove(&self.file, &self.dir, &self.name));
    }
}

/// The process that holds the lock and may write `file`; 0 for a process in another PID namespace.
fn holder(file: impl AsFd) -> nix::Result<Option<i32>> {
    let mut lock = whole(libc::F_RDLCK);
    // Queried as an open file description lock: a query as a process would ignore this process's own lock.
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

#[cfg(test)]
mod tests {
    use extant_base::task;

    use super::*;

    /// Removes the file of a server. It does not wait for a lock on the directory, which other tests hold at times.
    fn cleared(watch: Watch, device: &str, uid: u32) -> bool {
        watch.clear();
        (0..1000).any(|_| {
            let Some(watch) = Watch::open(device, uid) else { return true };
            Clock::real().sleep(Duration::from_millis(10));
            watch.clear();
            false
        })
    }

    #[test]
    fn a_watch_waits_for_the_server() {
        let uid = geteuid().as_raw();
        let device = format!("test-{}", std::process::id());
        let Some(server) = ServerStatus::create(&device, "noatime,cache=64M") else { return };
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        assert_eq!(watch.poll(), None);
        assert_eq!(watch.options().as_deref(), Some("noatime,cache=64M"));
        server.finish(Ok(()), true);
        assert_eq!(watch.poll(), Some(ServerExit::Unmounted));
        assert_eq!(watch.options(), None);
        assert!(Watch::open(&device, uid).is_none());

        let server = ServerStatus::create(&device, "").expect("again");
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        server.finish(Err("disk.img: no\nspace".into()), true);
        assert_eq!(watch.poll(), Some(ServerExit::Failed("disk.img: no\nspace".into())));

        let server = ServerStatus::create(&device, "").expect("replaces the old file");
        let mut watch = Watch::open(&device, uid).expect("the file is there");
        drop(server);
        assert_eq!(watch.poll(), Some(ServerExit::Died));
        assert!(cleared(watch, &device, uid));
    }

    #[test]
    fn an_agent_removes_the_file_of_a_server_that_has_unmounted() {
        let uid = geteuid().as_raw();
        let device = format!("test-agent-{}", std::process::id());
        for result in [Ok(()), Err("no space".to_owned())] {
            let Some(server) = ServerStatus::create(&device, "") else { return };
            let watch = Watch::open(&device, uid).expect("the file is there");
            let failed = result.is_err();
            server.finish(result, false);
            let other = Watch::open(&device, uid).expect("the server does not remove it");
            watch.clear_at_the_end();
            assert_eq!(Watch::open(&device, uid).is_some(), failed);
            assert!(!failed || cleared(other, &device, uid));
        }
    }

    /// The kernel reuses a number while the server that had it is still ending.
    #[test]
    fn a_mount_with_a_reused_number_keeps_its_file() {
        let uid = geteuid().as_raw();
        let device = format!("test-again-{}", std::process::id());
        for round in 0..1000 {
            let Some(old) = ServerStatus::create(&device, "old") else { return };
            let ending = task::spawn("ending", move || old.finish(Ok(()), true)).expect("a thread");
            let new = ServerStatus::create(&device, "new").expect("again");
            ending.join().expect("ended");
            let mut watch = Watch::open(&device, uid).unwrap_or_else(|| panic!("round {round}: the file is gone"));
            assert_eq!(watch.options().as_deref(), Some("new"));
            new.finish(Ok(()), true);
        }
    }

    #[test]
    fn root_of_a_user_namespace_uses_its_number_outside() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!((mapped(0, map), mapped(1, map), mapped(65536, map)), (Some(1000), Some(100_000), Some(165_535)));
        assert_eq!((mapped(65537, map), mapped(0, ""), mapped(0, "0 x 1")), (None, None, None));
        assert_eq!(mapped(4711, "0 0 4294967295"), Some(4711));
    }

    #[test]
    fn only_a_private_directory_is_used() {
        let uid = geteuid().as_raw();
        let top = tempfile::tempdir().expect("directory");
        let mode = |dir: &Path| dir.metadata().expect("there").mode() & 0o777;
        let at = |name: &str, mode: u32| {
            let dir = top.path().join(name);
            std::fs::create_dir(&dir).expect("made");
            std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("mode");
            dir
        };
        assert!(open_private(&at("mine", 0o700), uid).is_some());
        let open = at("old", 0o755);
        assert!(open_private(&open, uid).is_some());
        assert_eq!(mode(&open), 0o700);
        assert!(open_private(&at("anybody", 0o777), uid).is_none(), "another user may have written to it");
        let link = top.path().join("link");
        std::os::unix::fs::symlink("mine", &link).expect("link");
        assert!(open_private(&link, uid).is_none());
        assert!(open_private(&top.path().join("mine"), uid + 1).is_none());
        std::fs::write(top.path().join("file"), "").expect("file");
        assert!(open_private(&top.path().join("file"), uid).is_none());
    }
}
