//! System calls of an attacker who controls the server of a mount.
//!
//! The test traces a running server, and makes its main thread execute them, as injected code would. So it tests the
//! real sandbox, and the program needs no special code for the test.
#![cfg(target_arch = "x86_64")]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use common::{Dir, extant, fsck_clean, run};
use extant_base::clock::Clock;
use extant_testkit::mount::{fuse_works, is_mount_point};
use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::geteuid;

const EPERM: i64 = -(libc::EPERM as i64);
const ENOSYS: i64 = -(libc::ENOSYS as i64);
/// An argument that no system call accepts as an address, a descriptor, a length or flags.
const BAD: u64 = u64::MAX;
/// How long a call may take, even on a busy machine.
const CALL_NS_MAX: u64 = 20_000_000_000;
/// Greater than the last system call number of any kernel.
const NUMBERS: i64 = 1024;
/// The numbers of the x32 ABI.
const X32: i64 = 0x4000_0000;

/// The calls that the sandbox must allow, with any arguments. Repeated here, so that the server's own list grows only
/// together with this one.
const LET_THROUGH: &[libc::c_long] = &[
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
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
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
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
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
    libc::SYS_munlock,
];

/// Allowed as well, but not tested: they end the thread, or replace its registers.
const LAST_ONES: [libc::c_long; 3] = [libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

/// uretprobe and uprobe: traps of the kernel's own tracing, which pass every filter. Outside a probe they do nothing.
const TRAPS: [libc::c_long; 2] = [335, 336];

/// A server's main thread, stopped.
struct Intruder {
    thread: Pid,
    regs: libc::user_regs_struct,
    memory: File,
    stack: Vec<u8>,
    scratch: u64,
    /// Whether the server has been resumed with its original state.
    left: bool,
}

/// If a failed test left the server inside a system call, the end of the mount would block, and so would the test.
impl Drop for Intruder {
    fn drop(&mut self) {
        if !self.left {
            let _ = kill(self.thread, Signal::SIGKILL);
        }
    }
}

impl Intruder {
    const SCRATCH: usize = 512;

    fn enter(process: i32) -> Intruder {
        let thread = Pid::from_raw(process);
        ptrace::seize(thread, ptrace::Options::empty()).expect("traced");
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem")).expect("memory");
        // Most of the time the thread waits in a system call.
        let clock = Clock::real();
        let regs = loop {
            ptrace::interrupt(thread).expect("interrupted");
            let stopped = waitpid(thread, None).expect("waited");
            assert!(matches!(stopped, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)), "{stopped:?}");
            let regs = ptrace::getregs(thread).expect("registers");
            let mut code = [0; 2];
            memory.read_exact_at(&mut code, regs.rip - 2).expect("code");
            if code == [0x0f, 0x05] {
                break regs;
            }
            assert!(clock.now_ns() < CALL_NS_MAX, "the thread does not reach a system call");
            ptrace::cont(thread, None).expect("continued");
            clock.sleep(Duration::from_millis(1));
        };
        // Below the red zone, the part of the stack that a function may use without moving the pointer.
        let scratch = (regs.rsp - 1024) & !15;
        let mut stack = vec![0; Self::SCRATCH];
        memory.read_exact_at(&mut stack, scratch).expect("stack");
        Intruder { thread, regs, memory, stack, scratch, left: false }
    }

    /// Makes system call `number`, and returns its result.
    fn call(&mut self, number: i64, args: [u64; 6]) -> i64 {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        // Prevents a restart of the interrupted system call.
        let (rax, orig_rax) = (number as u64, u64::MAX);
        let rip = self.regs.rip - 2;
        let regs = libc::user_regs_struct { rdi, rsi, rdx, r10, r8, r9, rax, orig_rax, rip, ..self.regs };
        ptrace::setregs(self.thread, regs).expect("registers");
        ptrace::step(self.thread, None).expect("stepped");
        let stopped = self.wait(number);
        assert!(matches!(stopped, WaitStatus::Stopped(_, Signal::SIGTRAP)), "call {number}: {stopped:?}");
        ptrace::getregs(self.thread).expect("registers").rax as i64
    }

    /// Waits for the thread to stop. A call that blocks was allowed by the filter; it fails the test instead of
    /// hanging it.
    fn wait(&self, number: i64) -> WaitStatus {
        let clock = Clock::real();
        loop {
            match waitpid(self.thread, Some(WaitPidFlag::WNOHANG)).expect("waited") {
                WaitStatus::StillAlive => clock.sleep(Duration::from_micros(20)),
                stopped => return stopped,
            }
            assert!(clock.now_ns() < CALL_NS_MAX, "call {number} blocks");
        }
    }

    /// Stores `bytes` where the thread can pass them to the kernel.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        assert!(bytes.len() < Self::SCRATCH);
        self.memory.write_all_at(bytes, self.scratch).expect("stack");
        self.memory.write_all_at(&[0], self.scratch + bytes.len() as u64).expect("stack");
        self.scratch
    }

    fn leave(mut self) {
        self.memory.write_all_at(&self.stack, self.scratch).expect("stack");
        ptrace::setregs(self.thread, self.regs).expect("registers");
        ptrace::detach(self.thread, None).expect("detached");
        self.left = true;
    }
}

/// A mount, its server, and the unmount in case the test fails.
struct Server {
    dir: Dir,
    image: String,
    mnt: String,
    process: i32,
}

impl Server {
    fn start() -> Option<Server> {
        if !fuse_works() || !geteuid().is_root() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let dir = Dir::new();
        let (image, mnt) = (dir.image("ext4", &[]), dir.text("mnt"));
        std::fs::create_dir(&mnt).expect("directory");
        let said = extant(&["mount", "-v", &image, &mnt]).ok();
        let process = said.lines().next().and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("its number");
        Some(Server { dir, image, mnt, process })
    }

    /// Checks that the server still serves, and that it ends normally.
    fn end(self) {
        std::fs::write(format!("{}/after", self.mnt), "served").expect("written");
        extant(&["unmount", &self.mnt]).ok();
        assert_eq!(extant(&["cat", &self.image, "after"]).ok(), "served");
        fsck_clean(&self.image);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if is_mount_point(Path::new(&self.mnt)) {
            run("umount", &["-i", "-l", &self.mnt]);
        }
    }
}

#[test]
fn server_makes_exactly_the_system_calls_of_the_list() {
    let Some(server) = Server::start() else { return };
    let mut intruder = Intruder::enter(server.process);
    let numbers = (0..NUMBERS).chain(X32..X32 + NUMBERS).filter(|n| !LAST_ONES.contains(n) && !TRAPS.contains(n));
    let mut let_through = BTreeSet::new();
    for number in numbers {
        match intruder.call(number, [BAD; 6]) {
            EPERM => {}
            ENOSYS if number == libc::SYS_clone3 => {}
            _ => assert!(let_through.insert(number)),
        }
    }
    intruder.leave();
    assert_eq!(let_through, LET_THROUGH.iter().copied().collect());
    server.end();
}

/// Allowed system calls with arguments that the server never passes. `path`: the address of a file name; `me`: a
/// process outside.
fn foreign_calls(path: u64, me: u64) -> Vec<(&'static str, libc::c_long, [u64; 6])> {
    let here = libc::AT_FDCWD as u32 as u64;
    let thread = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;
    let code = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let flags = |f: i32| f as u32 as u64;
    vec![
        ("chmod", libc::SYS_chmod, [path, 0o666, 0, 0, 0, 0]),
        ("fchmod", libc::SYS_fchmod, [0, 0o666, 0, 0, 0, 0]),
        ("fchmodat", libc::SYS_fchmodat, [here, path, 0o666, 0, 0, 0]),
        ("fchmodat2", 452, [here, path, 0o666, 0, 0, 0]),
        ("chown", libc::SYS_chown, [path, 1, 1, 0, 0, 0]),
        ("fchownat", libc::SYS_fchownat, [here, path, 1, 1, 0, 0]),
        ("setxattr", libc::SYS_setxattr, [path, path, path, 1, 0, 0]),
        ("removexattr", libc::SYS_removexattr, [path, path, 0, 0, 0, 0]),
        ("utimensat", libc::SYS_utimensat, [here, path, 0, 0, 0, 0]),
        ("truncate", libc::SYS_truncate, [path, 0, 0, 0, 0, 0]),
        ("unlink", libc::SYS_unlinkat, [here, path, 0, 0, 0, 0]),
        ("rename", libc::SYS_renameat, [here, path, here, path, 0, 0]),
        ("flock", libc::SYS_flock, [0, libc::LOCK_EX as u64, 0, 0, 0, 0]),
        ("link", libc::SYS_linkat, [here, path, here, path, 0, 0]),
        ("socket AF_UNIX", libc::SYS_socket, [1, 1, 0, 0, 0, 0]),
        ("socket AF_INET", libc::SYS_socket, [2, 1, 0, 0, 0, 0]),
        ("connect", libc::SYS_connect, [0, path, 110, 0, 0, 0]),
        ("bind", libc::SYS_bind, [0, path, 110, 0, 0, 0]),
        ("sendmsg", libc::SYS_sendmsg, [0, path, 0, 0, 0, 0]),
        ("sendto an address", libc::SYS_sendto, [0, path, 1, 0, path, 110]),
        ("kill", libc::SYS_kill, [me, 0, 0, 0, 0, 0]),
        ("tgkill of another process", libc::SYS_tgkill, [me, me, 0, 0, 0, 0]),
        ("tkill", libc::SYS_tkill, [me, 0, 0, 0, 0, 0]),
        ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [me, 0, path, 0, 0, 0]),
        ("pidfd_open", libc::SYS_pidfd_open, [me, 0, 0, 0, 0, 0]),
        ("fcntl F_SETOWN", libc::SYS_fcntl, [0, libc::F_SETOWN as u64, me, 0, 0, 0]),
        ("ioctl FIOSETOWN", libc::SYS_ioctl, [0, 0x8901, path, 0, 0, 0]),
        ("ioctl TIOCSTI", libc::SYS_ioctl, [0, 0x5412, path, 0, 0, 0]),
        ("prlimit64 of another process", libc::SYS_prlimit64, [me, 7, 0, path, 0, 0]),
        ("prlimit64 that sets", libc::SYS_prlimit64, [0, 7, path, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [16, me, 0, 0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [me, path, 1, path, 1, 0]),
        ("prctl PR_SET_PDEATHSIG", libc::SYS_prctl, [1, 9, 0, 0, 0, 0]),
        ("sched_setscheduler SCHED_FIFO", libc::SYS_sched_setscheduler, [0, 1, path, 0, 0, 0]),
        ("setpriority", libc::SYS_setpriority, [0, me, 19, 0, 0, 0]),
        ("fork", libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
        ("namespace", libc::SYS_clone, [thread | flags(libc::CLONE_NEWUSER), 0, 0, 0, 0, 0]),
        ("execve", libc::SYS_execve, [path, 0, 0, 0, 0, 0]),
        ("mmap of code", libc::SYS_mmap, [0, 4096, code, anonymous, BAD, 0]),
        ("mprotect to code", libc::SYS_mprotect, [path & !4095, 4096, code, 0, 0, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [8, path, 0, 0, 0, 0]),
        ("io_uring_register", libc::SYS_io_uring_register, [0, 0, path, 0, 0, 0]),
    ]
}

#[test]
fn server_cannot_change_host_files_or_reach_other_processes() {
    let Some(server) = Server::start() else { return };
    let Some(other) = Server::start() else { return };
    let number = std::fs::metadata(&other.mnt).expect("mounted").dev();
    let name = format!("/run/extant/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let status = Path::new(&name);
    assert!(status.exists(), "{name}");
    let victim = server.dir.text("victim");
    std::fs::write(&victim, "mine").expect("file");
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).expect("mode");
    let me = u64::from(std::process::id());
    let itself = server.process as u64;
    let here = libc::AT_FDCWD as u32 as u64;
    let mut intruder = Intruder::enter(server.process);
    let path = intruder.put(victim.as_bytes());
    let got: Vec<_> =
        foreign_calls(path, me).iter().map(|(what, number, args)| (*what, intruder.call(*number, *args))).collect();
    // The server's own calls succeed; they differ in one argument.
    let needed = [
        intruder.call(libc::SYS_tgkill, [itself, itself, 0, 0, 0, 0]),
        intruder.call(libc::SYS_prlimit64, [0, 7, 0, path, 0, 0]),
    ];
    let path = intruder.put(victim.as_bytes());
    let opened = intruder.call(libc::SYS_openat, [here, path, 0, 0, 0, 0]);
    // The status file of another server.
    let theirs = intruder.put(status.to_str().expect("UTF-8").as_bytes());
    let written = intruder.call(libc::SYS_openat, [here, theirs, libc::O_WRONLY as u64, 0, 0, 0]);
    intruder.leave();
    let through: Vec<_> = got.iter().filter(|(_, answer)| *answer != EPERM).collect();
    assert!(through.is_empty(), "{through:?}");
    assert_eq!(needed, [0, 0]);
    if landlock_works() {
        assert_eq!([opened, written], [-(libc::EACCES as i64); 2]);
        assert_eq!(std::fs::read(&victim).expect("there"), b"mine");
        assert_eq!(std::fs::metadata(&victim).expect("there").permissions().mode() & 0o777, 0o600);
    }
    server.end();
    other.end();
    // The agent removes it when the server has ended.
    common::wait_until("the status file is gone", || !status.exists());
}

fn landlock_works() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
}
