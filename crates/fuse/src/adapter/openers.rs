//! Open files that the server hears of: each is told of lost data by itself, and holds its inode.
//!
//! Main type: [`Openers`]. A handle is its number; 0 stands for none, where the kernel was spared OPEN (`no_open`).
//!
//! # Locking
//! `fuse openers` (151), a leaf.

use std::sync::Arc;

use extant_base::hash::HashMap;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::{Asker, InodeRef, Opener};
use nix::unistd::{Pid, getpgid};

static CLASS: LockClass = LockClass::new("fuse openers", 151);

/// The first PID namespace. Linux: include/linux/proc_ns.h.
const PROC_PID_INIT_INO: u64 = 0xefff_fffc;
/// A thread of the kernel's. Linux: include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;

struct Open {
    opener: Arc<Opener>,
    /// What the opener was told counts for this inode in memory, not for one that is read again. None in tests.
    _inode: Option<InodeRef>,
}

pub(super) struct Openers {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Open>>,
    /// The kernel's own threads have numbers here: in the first PID namespace alone.
    sees_kernel: bool,
}

impl Openers {
    pub(super) fn new() -> Openers {
        let namespace = rustix::fs::stat("/proc/self/ns/pid");
        Openers {
            next: AtomicU64::new(1),
            open: Mutex::new(&CLASS, HashMap::default()),
            // Without /proc it may be: then too much is told rather than too little.
            sees_kernel: namespace.map_or(true, |namespace| namespace.st_ino == PROC_PID_INIT_INO),
        }
    }

    pub(super) fn add(&self, opener: Arc<Opener>, inode: Option<InodeRef>) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, Open { opener, _inode: inode });
        handle
    }

    pub(super) fn remove(&self, handle: u64) {
        if handle != 0 {
            // Dropped outside of the lock, which is held for the statement alone.
            let gone = self.open.lock().remove(&handle);
            drop(gone);
        }
    }

    /// Drops everything, at the end of the mount.
    pub(super) fn clear(&self) {
        let gone = std::mem::take(&mut *self.open.lock());
        drop(gone);
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// Who asks: the open file, or without one the process. A thread of the kernel's asks for many of them (Linux:
    /// `aio_fsync_work`), as one that cannot be seen.
    pub(super) fn asker(&self, handle: u64, process: u32) -> Asker {
        let opener = self.open.lock().get(&handle).map(|open| open.opener.clone());
        match opener {
            Some(opener) => Asker::Opener(opener),
            None if self.sees_kernel && is_of_kernel(process) => Asker::Process(0),
            None => Asker::Process(process),
        }
    }
}

/// Threads of the kernel's are in no process group; nor is an init that made itself none, and what it starts. One that
/// cannot be looked at (hidepid) is taken for the kernel's.
fn is_of_kernel(thread: u32) -> bool {
    getpgid(Some(Pid::from_raw(thread as i32))).is_ok_and(|group| group.as_raw() == 0)
        && flags(thread).is_none_or(|flags| flags & PF_KTHREAD != 0)
}

/// What the kernel says of a thread (proc_pid_stat(5)).
fn flags(thread: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name may hold anything.
    let (_name, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    /// Who was told is not told again: but another one for whom the same thread asks would not be told at all.
    #[test]
    fn a_thread_of_the_kernels_is_nobody() {
        let openers = Openers::new();
        let asks = |process| match openers.asker(0, process) {
            Asker::Process(id) => id,
            other => panic!("{other:?}"),
        };
        let me = std::process::id();
        assert_eq!((asks(me), asks(0)), (me, 0));
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(asks(2), 0);
            // The init process of some systems is in no group, and with it all that it starts.
            assert_eq!(asks(1), 1);
        }
        let handle = openers.add(Arc::default(), None);
        assert!(matches!(openers.asker(handle, me), Asker::Opener(_)));
    }

    /// In a namespace of its own this test is run once more, by a process whose group is outside.
    #[test]
    fn a_process_whose_group_is_outside_of_the_namespace_is_somebody() {
        const INSIDE: &str = "EXTANT_TEST_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            assert_eq!(getpgid(None).expect("a group").as_raw(), 0);
            let me = std::process::id();
            match Openers::new().asker(0, me) {
                Asker::Process(id) => assert_eq!(id, me),
                other => panic!("{other:?}"),
            }
            return println!("it is somebody");
        }
        let unshare = |command: &[&OsStr]| Command::new("unshare").arg("-Urpf").args(command).env(INSIDE, "1").output();
        if !unshare(&["true".as_ref()]).is_ok_and(|done| done.status.success()) {
            eprintln!("skipped: no PID namespaces");
            return;
        }
        let exe = std::env::current_exe().expect("this test");
        let name = "adapter::openers::tests::a_process_whose_group_is_outside_of_the_namespace_is_somebody";
        let mut command = vec![exe.as_os_str()];
        command.extend(["--exact", name, "--nocapture", "--test-threads=1"].map(OsStr::new));
        let done = unshare(&command).expect("started");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(said.contains("it is somebody"), "{said}");
    }
}
