//! Open files, and the cursor with which a request reports lost writes.
//!
//! Main type: [`Openers`], the table of open files by handle. An open file has its own cursor and holds its inode.
//! Handle 0 means that there is no open file: with `no_open` the kernel sends no OPEN. The cursor is then that of the
//! request's process.
//!
//! What it does not do: it reports nothing; the ledgers of `fs` do.
//!
//! # Locking
//! `fuse openers` (151), a leaf.

use extant_base::hash::HashMap;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::{InodeRef, LossCursor};
use nix::unistd::{Pid, getpgid};

static CLASS: LockClass = LockClass::new("fuse openers", 151);

/// The bit of a handle whose file bypasses the kernel's page cache. A handle with only this bit has no open file
/// either.
const DIRECT: u64 = 1 << 63;

/// The inode number of the first PID namespace. Linux: include/linux/proc_ns.h.
const PROC_PID_INIT_INO: u64 = 0xefff_fffc;
/// The flag of a kernel thread. Linux: include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;

struct Open {
    cursor: LossCursor,
    /// The cursor is valid only for this inode in memory, not for one that is read again. None in tests.
    _inode: Option<InodeRef>,
}

pub(super) struct Openers {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Open>>,
    /// Whether kernel threads have process IDs here: only in the first PID namespace.
    sees_kernel: bool,
}

impl Openers {
    pub(super) fn new() -> Openers {
        let namespace = rustix::fs::stat("/proc/self/ns/pid");
        Openers {
            next: AtomicU64::new(1),
            open: Mutex::new(&CLASS, HashMap::default()),
            // Without /proc, assume the first namespace: reporting an error twice is harmless.
            sees_kernel: namespace.map_or(true, |namespace| namespace.st_ino == PROC_PID_INIT_INO),
        }
    }

    pub(super) fn add(&self, cursor: LossCursor, inode: Option<InodeRef>) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, Open { cursor, _inode: inode });
        handle
    }

    /// The handle, marked as bypassing the kernel's page cache.
    pub(super) fn direct(handle: u64) -> u64 {
        handle | DIRECT
    }

    pub(super) fn is_direct(handle: u64) -> bool {
        handle & DIRECT != 0
    }

    pub(super) fn remove(&self, handle: u64) {
        let handle = handle & !DIRECT;
        if handle != 0 {
            // A separate statement releases the lock before the inode is dropped.
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

    /// The cursor of a request: that of its open file, or else that of its process. A kernel thread sends requests for
    /// many processes (Linux: `aio_fsync_work`), which cannot be told apart.
    pub(super) fn cursor(&self, handle: u64, process: u32) -> LossCursor {
        let cursor = self.open.lock().get(&(handle & !DIRECT)).map(|open| open.cursor.clone());
        match cursor {
            Some(cursor) => cursor,
            None if self.sees_kernel && is_of_kernel(process) => LossCursor::Shared,
            None => cursor_of_process(process),
        }
    }
}

/// The cursor of a process. The kernel sends 0 for every process outside the server's PID namespace.
pub(super) fn cursor_of_process(process: u32) -> LossCursor {
    match process {
        0 => LossCursor::Shared,
        process => LossCursor::process(process),
    }
}

/// Whether a thread belongs to the kernel. Kernel threads are in no process group; neither is an init process that has
/// not created one, nor its children. A process whose flags cannot be read (hidepid) counts as a kernel thread.
fn is_of_kernel(thread: u32) -> bool {
    getpgid(Some(Pid::from_raw(thread as i32))).is_ok_and(|group| group.as_raw() == 0)
        && flags(thread).is_none_or(|flags| flags & PF_KTHREAD != 0)
}

/// The flags of a thread (proc_pid_stat(5)).
fn flags(thread: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name may contain spaces and parentheses.
    let (_name, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;
    use std::sync::Arc;

    use extant_fs::Party;

    use super::*;

    /// The process whose cursor a request without an open file moves; `None` for the shared cursor.
    fn process_of(openers: &Openers, process: u32) -> Option<u32> {
        match openers.cursor(0, process) {
            LossCursor::Of(Party::Process(id)) => Some(id),
            LossCursor::Shared => None,
            other => panic!("{other:?}"),
        }
    }

    /// With a cursor of its own, a kernel thread would report a loss only to the first process on whose behalf it calls
    /// fsync.
    #[test]
    fn a_kernel_thread_moves_the_shared_cursor() {
        let openers = Openers::new();
        let me = std::process::id();
        assert_eq!((process_of(&openers, me), process_of(&openers, 0)), (Some(me), None));
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(process_of(&openers, 2), None);
            // The init process of some systems is in no group, and neither are its children.
            assert_eq!(process_of(&openers, 1), Some(1));
        }
    }

    #[test]
    fn a_request_with_a_handle_moves_the_cursor_of_its_open_file() {
        let openers = Openers::new();
        let handle = openers.add(LossCursor::Open(Arc::default()), None);
        assert!(matches!(openers.cursor(handle, std::process::id()), LossCursor::Open(_)));
    }

    #[test]
    fn syncfs_moves_the_cursor_of_its_process_or_the_shared_one() {
        assert!(matches!(cursor_of_process(0), LossCursor::Shared));
        assert!(matches!(cursor_of_process(7), LossCursor::Of(Party::Process(7))));
    }

    /// The test runs itself once more in a namespace of its own, as a process whose group is outside.
    #[test]
    fn a_process_whose_group_is_outside_of_the_namespace_has_a_cursor() {
        const INSIDE: &str = "EXTANT_TEST_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            assert_eq!(getpgid(None).expect("a group").as_raw(), 0);
            let me = std::process::id();
            assert_eq!(process_of(&Openers::new(), me), Some(me));
            return println!("it has one");
        }
        let unshare = |command: &[&OsStr]| Command::new("unshare").arg("-Urpf").args(command).env(INSIDE, "1").output();
        if !unshare(&["true".as_ref()]).is_ok_and(|done| done.status.success()) {
            eprintln!("skipped: no PID namespaces");
            return;
        }
        let exe = std::env::current_exe().expect("this test");
        let name = "adapter::openers::tests::a_process_whose_group_is_outside_of_the_namespace_has_a_cursor";
        let mut command = vec![exe.as_os_str()];
        command.extend(["--exact", name, "--nocapture", "--test-threads=1"].map(OsStr::new));
        let done = unshare(&command).expect("started");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(said.contains("it has one"), "{said}");
    }
}
