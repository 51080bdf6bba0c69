//! Restricts the process behind a mount once the mount exists. An image may come from anyone. If a bug lets an image
//! take control of the process, the attacker should gain little.
//!
//! The process keeps the image, the mount (/dev/fuse), the log's socket or files and its status file, all opened
//! before. Of the system it can read the files in [`READABLE`]. In detail:
//!
//! - **Few system calls.** no_new_privs, and a seccomp filter that allows only the calls of a server ([`ALLOWED`], and
//!   [`checked`] with some arguments). All others fail with EPERM, including those of later kernels. So there are no
//!   programs, processes, namespaces, sockets or mounts. Modes, owners, times and attributes of the host's files cannot
//!   be changed. The server cannot send signals to other processes or change their limits, make memory executable, or
//!   create an io_uring. The existing ring of the device allows four operations (`extant_block`), the rings of a mount
//!   two (`extant_fuse`). A system call in the i386 ABI ends the process.
//! - **No privileges** but [`KEPT`], which are about time and memory: CAP_SYS_NICE (a worker that yields to its
//!   client needs it to leave SCHED_IDLE) and CAP_SYS_RESOURCE (a worker needs it to declare that the kernel's
//!   writeback waits for it).
//! - **No files** (Landlock, Linux 5.13): only /dev/fuse, /dev/null and the block device of the mount can be opened for
//!   writing, and only [`READABLE`] for reading. No file can be created, renamed or removed. Descriptors that were open
//!   before stay open.
//!
//! seccomp applies to all threads at once. Landlock and capabilities belong to each thread: threads that start before
//! the mount exists drop them first ([`prepare`]); later threads inherit the restrictions.
//!
//! Unmounting at a signal requires a privilege, or the set-user-ID program fusermount3. Looking up a caller's
//! privileges in /proc requires the right to trace it. A second process does both, for this mount only
//! ([`extant_fuse::Agent`], [`AGENT`]), and finally removes the status file. It never sees the image.
//!
//! What it does not do: it is not a container. It does not restrict open files, attributes of files by name, memory or
//! processor time. With CAP_SYS_NICE the server may move other processes between processors, or give them the policy
//! SCHED_IDLE. If a kernel lacks one of the three, the server uses the others, and warns.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use extant_fuse::{Agent, Unmounter};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::failure::Failure;
use crate::mount_table;
use crate::program;
use crate::server::signals::Stop;
use crate::server::status::Watch;

/// The name under which this binary runs as the agent.
pub const AGENT: &str = "extant-unmount";

/// The privileges that the server keeps; see the module.
pub const KEPT: CapabilitySet = CapabilitySet::SYS_NICE.union(CapabilitySet::SYS_RESOURCE);

/// For the state of clients, the kernel's information about devices, and this program (for a backtrace).
const READABLE: [&str; 3] = ["/proc", "/sys", "/proc/self/exe"];
const WRITABLE_FILES: [&str; 2] = ["/dev/fuse", "/dev/null"];

/// The files that may be opened. None before [`prepare`], and on a kernel without Landlock.
static FILES: OnceLock<Option<RulesetCreated>> = OnceLock::new();

/// System calls that the server needs, with any arguments. From Linux 5.11 on the kernel answers these from a bitmap,
/// without running the filter.
const ALLOWED: &[libc::c_long] = &[
    // The image, the FUSE device, the log and the status file.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_io_uring_enter,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    // Opening by name: Landlock decides which files.
    libc::SYS_openat,
    libc::SYS_getdents64,
    // Attributes and link targets by name, of all files.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_munlock,
    // Threads. Those that start before the filter may drop their privileges after it.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals to this process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Clocks and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getpgid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// The flags of a thread, as glibc passes them to clone. musl adds [`CLONE_DETACHED`](libc::CLONE_DETACHED).
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// FUSE_DEV_IOC_CLONE, BLKDISCARD, BLKSSZGET, BLKPBSZGET, BLKGETSIZE64. Linux: include/uapi/linux/{fuse,fs}.h.
const IOCTLS: [u64; 5] = [0x8004_e500, 0x1277, 0x1268, 0x127b, 0x8008_1272];

/// Excludes F_SETOWN, which makes the kernel send signals to any process.
const FCNTLS: [i32; 7] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_OFD_SETLK,
    libc::F_OFD_GETLK,
];

/// Linux: include/uapi/linux/prctl.h.
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;

/// The last one names a mapping, for readers of /proc.
const PRCTLS: [i32; 5] =
    [libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS, PR_SET_IO_FLUSHER, PR_GET_IO_FLUSHER, libc::PR_SET_VMA];

/// The main function under the name [`AGENT`], called from [`crate::main`]. `args`: the mount point's path, and the
/// major and minor numbers of the mount's device.
pub fn run_agent(args: &[OsString]) -> Result<(), Failure> {
    let number = |arg: &OsString| arg.to_str()?.parse().ok();
    let [dir, major, minor] = args else { return Err(Failure::usage("this program is not for direct use")) };
    let (dir, device) = (Path::new(dir), number(major).zip(number(minor)));
    let device = device.ok_or(Failure::usage("not the numbers of a device"))?;
    // A signal to the server's process group or session requests an unmount, for which this process is needed.
    let _stop = Stop::watch();
    let _ = std::fs::write("/proc/self/comm", AGENT);
    crate::server::serve::let_go_of_files();
    let status = Watch::open(&mount_table::number(device), extant_fuse::kernel_uid().as_raw());
    let served = extant_fuse::serve_agent(dir, device).map_err(|e| Failure::io(dir, e));
    if let Some(status) = status {
        status.clear_at_the_end();
    }
    served
}

/// Must be called before the first thread starts: from then on, each thread first drops its privileges. `device`: a
/// file that may be opened again, exclusively.
pub fn prepare(device: Option<&Path>) {
    let _ = FILES.set(allowed_files(device).ok());
    extant_base::task::at_start(|| {
        // If a step fails, `enter` reports it once.
        let _ = drop_capabilities();
        let _ = confine_files();
    });
}

/// Drops all privileges that are no longer needed, for the rest of the process's life. From then on `unmounter`
/// unmounts through the agent. On an error, returns the steps that failed; all others are done.
pub fn enter(unmounter: &Unmounter) -> Result<(), String> {
    // First, because without the agent the process could not end at a signal.
    let (major, minor) = unmounter.device().ok_or("no process to unmount with: the device is unknown")?;
    let mut command = Command::new(program::itself());
    command.arg0(AGENT).arg(unmounter.path()).args([major, minor].map(|n| n.to_string()));
    command.current_dir("/").process_group(0);
    let agent = Agent::start(command).map_err(|e| format!("no process to unmount with: {e}"))?;
    unmounter.delegate(agent);
    // seccomp last: it would forbid the other steps.
    let failed: Vec<String> =
        [drop_capabilities(), confine_files(), filter_calls()].into_iter().filter_map(Result::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn drop_capabilities() -> Result<(), String> {
    let kept = |e| format!("capabilities could not be dropped: {e}");
    let has = capabilities(None).map_err(kept)?;
    let less = CapabilitySets {
        effective: has.effective & KEPT,
        permitted: has.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, less).map_err(kept)
}

fn allowed_files(device: Option<&Path>) -> Result<RulesetCreated, String> {
    const KNOWN: ABI = ABI::V6;
    let failed = |e: landlock::RulesetError| e.to_string();
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))
        // No TCP, no abstract sockets and no signals to other processes, even if the filter can be bypassed.
        .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
        .map_err(failed)?;
    let readable = READABLE.iter().map(|p| (PathBuf::from(p), read));
    let files = WRITABLE_FILES.iter().map(Path::new).chain(device);
    let files = files.map(|p| (p.to_path_buf(), AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev));
    for (path, access) in readable.chain(files) {
        // A missing file needs no rule. The crate leaves out rights that do not apply to a file.
        if let Ok(fd) = PathFd::new(&path) {
            rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(failed)?;
        }
    }
    Ok(rules)
}

fn confine_files() -> Result<(), String> {
    const MISSING: &str = "files are not confined: the kernel has no Landlock";
    let rules = FILES.get().and_then(Option::as_ref).ok_or(MISSING)?;
    let rules = rules.try_clone().map_err(|e| format!("files are not confined: {e}"))?;
    match rules.restrict_self() {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => Err(MISSING.into()),
        Ok(_) => Ok(()),
        Err(e) => Err(format!("files are not confined: {e}")),
    }
}

fn filter_calls() -> Result<(), String> {
    let not = |e: &dyn std::fmt::Display| format!("system calls are not filtered: {e}");
    let filter = filter(std::process::id()).map_err(|e| not(&e))?;
    apply_filter_all_threads(&filter).map_err(|e| not(&e))
}

/// The filter has three parts; each ends where the next begins. The calls whose arguments matter come first, because
/// the kernel runs the filter for them. `process`: the process ID of this process.
fn filter(process: u32) -> Result<BpfProgram, seccompiler::BackendError> {
    let compile = |rules, answer: SeccompAction| -> Result<BpfProgram, seccompiler::BackendError> {
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        SeccompFilter::new(rules, refuse, answer, std::env::consts::ARCH.try_into()?)?.try_into()
    };
    let always = |calls: &[libc::c_long]| calls.iter().map(|call| (*call, Vec::new())).collect();
    let mut filter = compile(checked(process)?, SeccompAction::Allow)?;
    // Removes each part's last instruction, which would refuse all other calls.
    filter.pop();
    filter.extend(compile(always(ALLOWED), SeccompAction::Allow)?);
    filter.pop();
    // The flags of clone3 are in memory, which a filter cannot read. With this error the C library assumes an old
    // kernel, and calls clone.
    filter.extend(compile(always(&[libc::SYS_clone3]), SeccompAction::Errno(libc::ENOSYS as u32))?);
    Ok(filter)
}

/// System calls that the server needs with certain arguments only.
fn checked(process: u32) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq};
    let rule = |arg, len, op, value| SeccompRule::new(vec![SeccompCondition::new(arg, len, op, value)?]);
    let one_of = |arg, values: &[u64]| values.iter().map(|v| rule(arg, Dword, Eq, *v)).collect::<Result<Vec<_>, _>>();
    let numbers = |values: &[i32]| values.iter().map(|v| *v as u32 as u64).collect::<Vec<_>>();
    let no_code = || rule(2, Dword, MaskedEq(libc::PROT_EXEC as u64), 0);
    let own_limits = SeccompRule::new(vec![
        SeccompCondition::new(0, Dword, Eq, 0)?,
        // The limits may be read, but not set.
        SeccompCondition::new(2, Qword, Eq, 0)?,
    ])?;
    Ok(BTreeMap::from([
        (libc::SYS_mmap, vec![no_code()?]),
        (libc::SYS_mprotect, vec![no_code()?]),
        (libc::SYS_ioctl, one_of(1, &IOCTLS)?),
        // Only to the connected peer, without an address.
        (libc::SYS_sendto, vec![rule(4, Qword, Eq, 0)?]),
        (libc::SYS_clone, one_of(0, &numbers(&[THREAD, THREAD | libc::CLONE_DETACHED]))?),
        (libc::SYS_fcntl, one_of(1, &numbers(&FCNTLS))?),
        (libc::SYS_sched_setscheduler, one_of(1, &numbers(&[libc::SCHED_OTHER, libc::SCHED_IDLE]))?),
        (libc::SYS_prctl, one_of(0, &numbers(&PRCTLS))?),
        (libc::SYS_tgkill, one_of(0, &[process.into()])?),
        (libc::SYS_prlimit64, vec![own_limits]),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::PermissionDenied;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
    use std::process::Stdio;

    /// The variable that describes the processes outside to a process inside the sandbox.
    const OUTSIDE: &str = "EXTANT_TEST_OUTSIDE";

    /// The abstract address of a datagram socket: each name belongs to one socket, of any type.
    fn datagram_address(name: &str) -> SocketAddr {
        SocketAddr::from_abstract_name(format!("{name}-datagrams")).expect("a name")
    }

    /// The checks of each thread inside. They run in a separate process, because there is no way back.
    #[test]
    #[ignore = "dropped_rights_are_refused_to_every_thread runs it in a process of its own"]
    fn inside() {
        let refused = |what: &str, e: Option<std::io::Error>| {
            assert_eq!(e.as_ref().map(std::io::Error::kind), Some(PermissionDenied), "{what}: {e:?}");
        };
        let look = move || {
            let os = |r: rustix::io::Result<()>| r.err().map(std::io::Error::from);
            refused("execve", Command::new("true").spawn().err());
            refused("socket", std::net::TcpListener::bind("127.0.0.1:0").err());
            refused("socket", std::net::UdpSocket::bind("[::1]:0").err());
            refused("mount", os(rustix::mount::unmount("/nothing", rustix::mount::UnmountFlags::DETACH)));
            refused("chroot", os(rustix::process::chroot("/")));
            #[allow(deprecated)]
            let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWUSER);
            refused("unshare", os(unshared));
            refused("socket", UnixDatagram::unbound().err());
            extant_base::task::spawn("more", || ()).expect("started").join().expect("a thread");
            std::fs::read("/proc/self/stat").expect("where clients run");
            let caps = capabilities(None).expect("asked");
            assert!(KEPT.contains(caps.permitted | caps.effective | caps.inheritable));
        };
        let (go, wait) = std::sync::mpsc::channel::<()>();
        prepare(None);
        // A thread that already exists.
        let before = extant_base::task::spawn("before", move || {
            wait.recv().expect("told");
            look();
        });
        let confined = drop_capabilities().and(confine_files());
        filter_calls().expect("a filter");
        go.send(()).expect("heard");
        look();
        before.expect("started").join().expect("the same checks");
        extant_base::task::spawn("after", look).expect("started").join().expect("the same checks");
        if confined.is_ok() {
            refused("reading", std::fs::read("/etc/passwd").err());
            refused("writing", std::fs::write("/tmp/extant-outside", "").err());
            std::fs::write("/dev/null", "x").expect("for the background");
        }
        println!("all was refused");
    }

    /// Runs an ignored test in a separate process.
    fn run_inside(test: &str, outside: &str) {
        let exe = std::env::current_exe().expect("this test");
        let name = format!("server::sandbox::tests::{test}");
        let args = ["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"];
        let done = Command::new(exe).args(args).env(OUTSIDE, outside).stdin(Stdio::null()).output().expect("started");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(said.contains("all was refused"), "{said}");
    }

    #[test]
    fn dropped_rights_are_refused_to_every_thread() {
        run_inside("inside", "");
    }

    /// Whether the kernel's Landlock supports `rules`.
    fn has_landlock(rules: impl FnOnce(Ruleset) -> Result<Ruleset, landlock::RulesetError>) -> bool {
        rules(Ruleset::default().set_compatibility(CompatLevel::HardRequirement)).and_then(Ruleset::create).is_ok()
    }

    /// Runs without the filter of system calls, which would refuse these calls before Landlock sees them.
    #[test]
    #[ignore = "landlock_by_itself_keeps_the_server_from_other_processes runs it in a process of its own"]
    fn inside_landlock() {
        let outside = std::env::var(OUTSIDE).expect("set");
        let [port, name, process] = outside.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let process = rustix::process::Pid::from_raw(process.parse().expect("a number")).expect("a process");
        let tcp = || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).map(drop);
        let stream = || UnixStream::connect_addr(&address).map(drop);
        let datagram = || UnixDatagram::unbound()?.send_to_addr(b"x", &datagram_address(name)).map(drop);
        let signal = || rustix::process::test_kill_process(process).map_err(std::io::Error::from);
        let reached = [tcp(), stream(), datagram(), signal()];
        assert!(reached.iter().all(Result::is_ok), "outside of the sandbox: {reached:?}");
        prepare(None);
        confine_files().expect("confined");
        let refused = |what: &str, done: std::io::Result<()>| {
            assert_eq!(done.as_ref().map_err(std::io::Error::kind).err(), Some(PermissionDenied), "{what}: {done:?}");
        };
        refused("a file", std::fs::read("/etc/passwd").map(drop));
        if has_landlock(|rules| rules.handle_access(AccessNet::from_all(ABI::V4))) {
            refused("TCP, connect", tcp());
            refused("TCP, listen", std::net::TcpListener::bind("127.0.0.1:0").map(drop));
        }
        if has_landlock(|rules| rules.scope(Scope::from_all(ABI::V6))) {
            refused("an abstract socket", stream());
            refused("an abstract socket of datagrams", datagram());
            refused("a signal", signal());
            rustix::process::test_kill_process(rustix::process::getpid()).expect("a signal to itself");
        }
        println!("all was refused");
    }

    #[test]
    fn landlock_by_itself_keeps_the_server_from_other_processes() {
        if !has_landlock(|rules| rules.handle_access(AccessFs::from_all(ABI::V1))) {
            eprintln!("skipped: no Landlock");
            return;
        }
        let process = std::process::id();
        let name = format!("extant-test-{process}");
        let _stream = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("bound");
        let _datagrams = UnixDatagram::bind_addr(&datagram_address(&name)).expect("bound");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = tcp.local_addr().expect("bound").port();
        run_inside("inside_landlock", &format!("{port} {name} {process}"));
    }
}
