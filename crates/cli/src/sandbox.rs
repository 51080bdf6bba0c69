//! What the process behind a mount gives up once the mount stands: an image may be anybody's, and should a mistake of
//! ours let it take the process over, it is to find little.
//!
//! What remains to it: the image (its open descriptors), the mount (/dev/fuse), and of the system what [`READABLE`]
//! names, the run folder ([`crate::status`]) and local sockets, which the log needs. In detail:
//!
//! - **No new programs.** no_new_privs, and a seccomp filter that answers EPERM to execve and execveat, to fork and to
//!   any clone that is not a thread (so to new namespaces), to sockets other than AF_UNIX, to all that mounts, unmounts
//!   or changes the root, to ptrace and what looks into other processes, to a second io_uring, and to the calls for
//!   modules, kexec, BPF, perf, userfaultfd, keys, handles, clocks, quotas, swap and reboot ([`DENIED`]); TIOCSTI too,
//!   which types into the user's terminal. It is a list of what is denied. One of what is allowed would be shorter on
//!   paper, but what the C library, the allocator and the runtime call differs with their versions and the machine, and
//!   a call that is missing would hit a mount that is in use.
//! - **No privileges** but [`KEPT`], which are about time and memory: CAP_SYS_NICE (a worker that steps aside for its
//!   client comes back from SCHED_IDLE with it) and CAP_SYS_RESOURCE (a worker says with it that the kernel's writeback
//!   waits for it).
//! - **No files** (Landlock, Linux 5.13): nothing is opened for writing but the run folder's, /dev/fuse, /dev/null and
//!   the block device of the mount, and nothing read but what is [`READABLE`]. What was open before stays open.
//!
//! seccomp reaches all threads at once. Landlock and capabilities are each thread's own: those that start before the
//! mount stands begin with giving them up ([`prepare`]), those that start later inherit.
//!
//! Unmounting at a signal takes a privilege, or the set-user-ID program fusermount3. A second process does that, and
//! only that, for this mount alone ([`extant_fuse::Agent`], [`AGENT`]); it never sees the image.
//!
//! What it does not do: it is no container. Files that are open, signals to other processes of the user, memory and
//! processor time are not restricted. An io_uring could open files and sockets where seccomp does not look: Landlock
//! holds there, the filter for sockets does not. A kernel without one of the three gets the others, and a warning.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use extant_fuse::{Agent, Unmounter};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::failure::Failure;
use crate::program;
use crate::signals::Stop;
use crate::status;

/// As what this binary is called to be the agent.
pub const AGENT: &str = "extant-unmount";

/// See the module.
pub const KEPT: CapabilitySet = CapabilitySet::SYS_NICE.union(CapabilitySet::SYS_RESOURCE);

/// Where clients run, what the kernel says of devices, and this program (for a backtrace).
const READABLE: [&str; 3] = ["/proc", "/sys", "/proc/self/exe"];
const WRITABLE_FILES: [&str; 2] = ["/dev/fuse", "/dev/null"];

/// Which files may be opened. None before [`prepare`], and where the kernel has no Landlock.
static FILES: OnceLock<Option<RulesetCreated>> = OnceLock::new();

/// Calls that a server has no use for, whatever their arguments.
const DENIED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// x86-64 kernels with the x32 ABI take each call under a second number, and a few under a third.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;
/// execve, ptrace, kexec_load, process_vm_readv, process_vm_writev, execveat. Linux:
/// arch/x86/entry/syscalls/syscall_64.tbl.
#[cfg(target_arch = "x86_64")]
const X32_OWN: [libc::c_long; 6] = [520, 521, 528, 539, 540, 545];

/// Of another type in each C library. Linux: include/uapi/asm-generic/ioctls.h.
const TIOCSTI: u64 = 0x5412;

/// What [`crate::main`] does under the name [`AGENT`].
pub fn run_agent(dir: &Path) -> Result<(), Failure> {
    // Who ends the server by a signal to its group or session wants an unmount, which is ours to do.
    let _stop = Stop::watch();
    let _ = std::fs::write("/proc/self/comm", AGENT);
    crate::serve::let_go_of_files();
    extant_fuse::serve_agent(dir).map_err(|e| Failure::io(dir, e))
}

/// To be called before the first thread is started: from now on each begins with giving up what is its own to give up.
/// `device`: what may be opened once more, to be claimed.
pub fn prepare(device: Option<&Path>) {
    let _ = FILES.set(allowed_files(device).ok());
    extant_base::task::at_start(|| {
        // Who cannot is told of once, by `enter`.
        let _ = drop_capabilities();
        let _ = confine_files();
    });
}

/// Gives up what is not needed any more; the rest of the process's life is inside. `unmounter` unmounts by the agent
/// from now on. Err: what could not be done, with everything else done.
pub fn enter(unmounter: &Unmounter) -> Result<(), String> {
    // First: without it there would be no way to end at a signal.
    let mut command = Command::new(program::itself());
    command.arg0(AGENT).arg(unmounter.path()).current_dir("/").process_group(0);
    let agent = Agent::start(command).map_err(|e| format!("no process to unmount with: {e}"))?;
    unmounter.delegate(agent);
    // seccomp last: it would stop the others.
    let failed: Vec<String> =
        [drop_capabilities(), confine_files(), filter_calls()].into_iter().filter_map(Result::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn drop_capabilities() -> Result<(), String> {
    let kept = |e| format!("capabilities are kept: {e}");
    let has = capabilities(None).map_err(kept)?;
    let less = CapabilitySets {
        effective: has.effective & KEPT,
        permitted: has.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, less).map_err(kept)
}

fn allowed_files(device: Option<&Path>) -> Result<RulesetCreated, String> {
    // Up to truncation; what came later is about sockets and ioctls, of which the devices' are needed.
    const KNOWN: ABI = ABI::V3;
    let failed = |e: landlock::RulesetError| e.to_string();
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let in_folder = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))
        .and_then(Ruleset::create)
        .map_err(failed)?;
    let folder = status::own_directory().map(|(_, dir)| dir);
    let readable = READABLE.iter().map(|p| (PathBuf::from(p), read));
    let files = WRITABLE_FILES.iter().map(Path::new).chain(device);
    let files = files.map(|p| (p.to_path_buf(), AccessFs::ReadFile | AccessFs::WriteFile));
    for (path, access) in readable.chain(files).chain(folder.map(|dir| (dir, in_folder))) {
        // What is not there needs no rule. A right that is none of a file's is left out by the crate.
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
    for program in filters().map_err(|e| not(&e))? {
        apply_filter_all_threads(&program).map_err(|e| not(&e))?;
    }
    Ok(())
}

/// One for each answer.
fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let when = |arg, op, value| {
        SeccompRule::new(vec![SeccompCondition::new(arg, SeccompCmpArgLen::Dword, op, value)?]).map(|rule| vec![rule])
    };
    let not_a_thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_clone, when(0, not_a_thread, 0)?);
    rules.insert(libc::SYS_socket, when(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?);
    rules.insert(libc::SYS_ioctl, when(1, SeccompCmpOp::Eq, TIOCSTI)?);
    // Its flags are in memory, where a filter cannot look. The C library takes this answer for an old kernel, and calls
    // clone.
    let mut missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    #[cfg(target_arch = "x86_64")]
    {
        let again: Vec<_> = rules.iter().map(|(call, when)| (call | X32, when.clone())).collect();
        rules.extend(again);
        rules.extend(X32_OWN.map(|call| (call | X32, Vec::new())));
        missing.insert(libc::SYS_clone3 | X32, Vec::new());
    }
    let compile = |rules, errno: i32| -> Result<BpfProgram, seccompiler::BackendError> {
        let arch = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)?.try_into()
    };
    Ok([compile(rules, libc::EPERM)?, compile(missing, libc::ENOSYS)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::PermissionDenied;
    use std::os::unix::net::UnixDatagram;
    use std::process::Stdio;

    /// What each thread inside finds: of another process, for there is no way back.
    #[test]
    #[ignore = "what_is_given_up_is_refused_to_every_thread runs it in a process of its own"]
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
            UnixDatagram::unbound().expect("the log's socket");
            extant_base::task::spawn("more", || ()).expect("started").join().expect("a thread");
            std::fs::read("/proc/self/stat").expect("where clients run");
            let caps = capabilities(None).expect("asked");
            assert!(KEPT.contains(caps.permitted | caps.effective | caps.inheritable));
        };
        let (go, wait) = std::sync::mpsc::channel::<()>();
        prepare(None);
        // One that is there before.
        let before = extant_base::task::spawn("before", move || {
            wait.recv().expect("told");
            look();
        });
        let confined = drop_capabilities().and(confine_files());
        filter_calls().expect("a filter");
        go.send(()).expect("heard");
        look();
        before.expect("started").join().expect("as here");
        extant_base::task::spawn("after", look).expect("started").join().expect("as here");
        if confined.is_ok() {
            refused("reading", std::fs::read("/etc/passwd").err());
            refused("writing", std::fs::write("/tmp/extant-outside", "").err());
            std::fs::write("/dev/null", "x").expect("for the background");
        }
        println!("all was refused");
    }

    #[test]
    fn what_is_given_up_is_refused_to_every_thread() {
        let exe = std::env::current_exe().expect("this test");
        let args = ["--exact", "sandbox::tests::inside", "--ignored", "--nocapture", "--test-threads=1"];
        let done = Command::new(exe).args(args).stdin(Stdio::null()).output().expect("started");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(said.contains("all was refused"), "{said}");
    }
}
