//! Disks of virtual machines, which qemu-nbd shows: starting and ending it.
//!
//! Main function: [`served`]; main types: [`Process`], [`Failure`].
//!
//! qemu-nbd listens on a socket in a folder that only this user can enter. As soon as all connections exist, socket and
//! folder are removed, so that no other process can connect. A shell is its parent ([`SCRIPT`]): it sends SIGTERM when
//! a pipe from this process closes, also if this process is killed. The server of a mount may not send signals. Left to
//! itself, qemu-nbd 7.2 does not always notice that its last client has gone. The device's drop waits for its end.
//!
//! What it does not do: choose the image, read a foreign format itself. Files that a disk refers to (a backing file, an
//! extent) are opened by qemu-nbd, as the disk says; it opens a backing file for reading only.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::task;
use extant_block::device::{NbdAddress, NbdDevice, NbdOptions, NbdServer};
use extant_block::{Bio, BioFlags, BlockDevice, Error as DeviceError, IoStats, Wrapper};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::shown;

pub(crate) const PROGRAM: &str = "qemu-nbd";
/// Runs its arguments until its standard input closes: process `$k` waits for that and ends the program. If the program
/// ends by itself, `$k` is ended, so that no later process of the program's number gets the signal.
const SCRIPT: &str = r#"exec 3<&0
"$@" 3<&- </dev/null & p=$!
{ read -r x <&3; kill "$p"; } & k=$!
wait "$p"; s=$?
kill "$k" 2>/dev/null
exit "$s""#;
/// The status of a shell whose program does not exist.
const NOT_FOUND: i32 = 127;
/// How long the program may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to write what it holds, after the last connection has closed.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Why an image could not be shown.
pub(crate) enum Failure {
    /// A file or folder of the host, or the shell.
    Host(PathBuf, std::io::Error),
    /// The program is not installed.
    NoProgram,
    /// The program ends, or does not begin, with this message.
    Program(String),
    /// Another process has locked the disk.
    Busy,
    /// The connection failed.
    Device(DeviceError),
}

/// Starts qemu-nbd for the disk and connects to it.
pub(crate) fn served(
    path: &Path,
    driver: &str,
    options: &NbdOptions,
    beside_others: bool,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let host = |path: &Path, e: std::io::Error| Failure::Host(path.to_path_buf(), e);
    let folder = private_folder().map_err(|e| host(&std::env::temp_dir(), e))?;
    let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
    let path = std::path::absolute(path).map_err(|e| host(path, e))?;
    let messages = File::create(&log).map_err(|e| host(&log, e))?;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SCRIPT, "sh", PROGRAM, "--persistent", "--image-opts"])
        .arg("--cache=writeback")
        .arg("--discard=unmap");
    command.arg(format!("--shared={}", options.connections)).arg(option("--socket=", socket.as_os_str()));
    if options.read_only {
        command.arg("--read-only");
    }
    let mut disk = OsString::from(format!("driver={driver},file.driver=file,"));
    if beside_others {
        disk.push("force-share=on,");
    }
    disk.push("file.filename=");
    disk.push(without_commas(path.as_os_str()));
    command.arg("--").arg(disk);
    // A terminal's interrupt is for this process, which still has to write.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(messages).process_group(0);
    task::before_child();
    let child = command.spawn().map_err(|e| host(Path::new("/bin/sh"), e))?;
    let mut process = Process::new(child);
    let address = NbdAddress { server: NbdServer::Unix(socket.clone()), export: String::new() };
    let clock = Clock::real();
    let mut wait = Duration::from_millis(1);
    // The socket is there before qemu-nbd listens on it, and it listens before it has opened the disk.
    let device = loop {
        if process.has_ended() || clock.now_ns() > START_LIMIT.as_nanos() as u64 {
            return Err(process.failure(&log));
        }
        match NbdDevice::open(&address, options) {
            Ok(device) => break device,
            Err(DeviceError::Open { source, .. }) if is_early(&source) => {}
            Err(e) => return Err(Failure::Device(e)),
        }
        clock.sleep(wait);
        wait = (wait * 2).min(Duration::from_millis(20));
    };
    Ok(Arc::new(Served { device, _process: process }))
}

/// Whether the error comes from a server that does not listen yet, or is about to fail.
fn is_early(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let kinds = [NotFound, ConnectionRefused, ConnectionReset, BrokenPipe, UnexpectedEof];
    // An export that does not exist is "not found" as well, in the server's own words.
    kinds.contains(&e.kind()) && (e.kind() != NotFound || e.raw_os_error().is_some())
}

fn option(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(name);
    word.push(value);
    word
}

/// A path as a value in one of qemu's lists, which commas separate.
fn without_commas(path: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(path.len());
    for byte in path.as_bytes() {
        out.push(*byte);
        if *byte == b',' {
            out.push(b',');
        }
    }
    OsString::from_vec(out)
}

/// A folder of mode 0700 whose path leaves room for a socket's name (`sun_path` has 108 bytes).
fn private_folder() -> std::io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("extant-").permissions(std::fs::Permissions::from_mode(0o700));
    let usual = std::env::temp_dir();
    let place = if usual.as_os_str().len() > 70 { Path::new("/tmp") } else { &usual };
    builder.tempdir_in(place)
}

/// A process that serves one image.
struct Process {
    child: Child,
    /// The process as a descriptor, if the kernel has these: the server of a mount may poll it, but not wait for a
    /// child.
    ended: Option<OwnedFd>,
}

impl Process {
    fn new(child: Child) -> Process {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Process { child, ended }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process has ended by itself; `false` after the time limit.
    fn wait(&mut self, limit: Duration) -> bool {
        if let Some(ended) = &self.ended {
            let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
            return !matches!(poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&limit)), Ok(0));
        }
        let clock = Clock::real();
        while !self.has_ended() {
            if clock.now_ns() > limit.as_nanos() as u64 {
                return false;
            }
            clock.sleep(Duration::from_millis(5));
        }
        true
    }

    /// Why it does not serve, in its own words.
    fn failure(&mut self, log: &Path) -> Failure {
        if matches!(self.child.try_wait(), Ok(Some(status)) if status.code() == Some(NOT_FOUND)) {
            return Failure::NoProgram;
        }
        let said = std::fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[..said.len().min(2000)]).into_owned();
        let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it does not listen");
        let why = shown(line.trim().trim_start_matches("qemu-nbd: ").as_bytes());
        if why.contains("lock") && why.contains("Failed to get") {
            return Failure::Busy;
        }
        Failure::Program(why)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !self.wait(END_LIMIT) {
            let _ = self.child.kill();
        }
        let _ = self.child.try_wait();
    }
}

/// The device of a process, which ends with it.
struct Served {
    device: NbdDevice,
    /// Dropped after the device, because it ends when the connections close.
    _process: Process,
}

impl Wrapper for Served {
    fn inner(&self) -> &dyn BlockDevice {
        &self.device
    }

    fn completes_later(&self) -> bool {
        self.inner().completes_later()
    }

    fn submit(&self, bio: Bio) {
        self.inner().submit(bio);
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        self.inner().submit_all(bios);
    }

    fn next_data(&self, offset: u64) -> extant_block::Result<Option<u64>> {
        self.inner().next_data(offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.inner().write_zeroes(offset, len, flags)
    }

    fn stats(&self) -> IoStats {
        self.inner().stats()
    }
}
