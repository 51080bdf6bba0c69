//! A second process that unmounts and examines callers for a server that has dropped these rights.
//!
//! The agent is a process that never sees the image. It knows one mount, by its path and its device, and unmounts it on
//! request. Requests arrive on standard input; the agent exits at end of file. A request is one byte: `u` (unmount),
//! `z` (unmount lazily) or `d` (unmount lazily, if the mount is dead). Or it is `p` and the ID of a thread (four
//! bytes): is that thread privileged over the mount? An answer is one line: `ok`, `errno NUMBER`, or `said TEXT`. The
//! agent also prints `ok` when it is ready.
//!
//! Main types: [`Agent`], the server's side; [`serve_agent`], the agent's main function.
//!
//! # Locking
//! `fuse agent` (3), a leaf: one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use extant_base::sync::{LockClass, Mutex};
use rustix::io::Errno;

use super::{Unmounter, caller};
use crate::error::FuseError;

static CLASS: LockClass = LockClass::new("fuse agent", 3);

const UNMOUNT: u8 = b'u';
const LAZY: u8 = b'z';
const DEAD: u8 = b'd';
const PRIVILEGED: u8 = b'p';

/// Messages of fusermount3 are shorter.
const ANSWER_MAX: u64 = 4096;

/// The process that unmounts, and examines callers, for this process. It exits when this is dropped.
#[derive(Debug)]
pub struct Agent {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    process: Child,
}

impl Agent {
    /// Starts `command`, which must call [`serve_agent`], and waits until it is ready.
    pub fn start(mut command: Command) -> io::Result<Agent> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let (Some(ask), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let agent = Agent { pipes: Mutex::new(&CLASS, (ask, BufReader::new(answers))), process };
        match answer(&mut agent.pipes.lock().1)?.as_str() {
            "ok" => {}
            other => return Err(io::Error::other(other.to_owned())),
        }
        Ok(agent)
    }

    /// The agent's process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn unmount(&self, path: &Path, lazy: bool) -> Result<(), FuseError> {
        self.ask(path, if lazy { LAZY } else { UNMOUNT })
    }

    pub(super) fn detach_if_dead(&self, path: &Path) -> Result<(), FuseError> {
        self.ask(path, DEAD)
    }

    /// False also if the agent has exited.
    pub(super) fn is_privileged(&self, thread: u32) -> bool {
        let [a, b, c, d] = thread.to_le_bytes();
        self.exchange(&[PRIVILEGED, a, b, c, d]).is_ok_and(|said| said == "ok")
    }

    fn ask(&self, path: &Path, request: u8) -> Result<(), FuseError> {
        let failed = |what: String| Err(FuseError::Fusermount { path: path.into(), what });
        let said = match self.exchange(&[request]) {
            Ok(said) => said,
            Err(e) => return failed(format!("the process that unmounts has ended: {e}")),
        };
        match said.split_once(' ') {
            None if said == "ok" => Ok(()),
            Some(("errno", number)) => {
                let errno = Errno::from_raw_os_error(number.parse().unwrap_or(libc::EIO));
                Err(FuseError::Unmount { path: path.into(), errno })
            }
            Some(("said", what)) => failed(what.to_owned()),
            _ => failed(said),
        }
    }

    fn exchange(&self, request: &[u8]) -> io::Result<String> {
        let mut pipes = self.pipes.lock();
        let (ask, answers) = &mut *pipes;
        ask.write_all(request)?;
        ask.flush()?;
        answer(answers)
    }
}

fn answer(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    match from.take(ANSWER_MAX).read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Unmounts the mount of `device` at `path` for each request on standard input, until end of file.
pub fn serve_agent(path: &Path, device: (u32, u32)) -> io::Result<()> {
    answer_all(&Unmounter::new(path.into(), Some(device)), io::stdin().lock(), io::stdout().lock())
}

fn answer_all(mount: &Unmounter, mut ask: impl Read, mut say: impl Write) -> io::Result<()> {
    writeln!(say, "{}", if mount.is_mounted() { "ok" } else { "said no mount there" })?;
    say.flush()?;
    let mut request = [0];
    while ask.read_exact(&mut request).is_ok() {
        let done = match request[0] {
            UNMOUNT | LAZY => mount.unmount_here(request[0] == LAZY),
            DEAD => mount.detach_if_dead_here(),
            PRIVILEGED => {
                let mut thread = [0; 4];
                ask.read_exact(&mut thread)?;
                match caller::is_privileged(u32::from_le_bytes(thread)) {
                    true => Ok(()),
                    false => Err(FuseError::Unmount { path: mount.path.clone(), errno: Errno::PERM }),
                }
            }
            _ => Err(FuseError::Unmount { path: mount.path.clone(), errno: Errno::INVAL }),
        };
        match done {
            Ok(()) => writeln!(say, "ok")?,
            Err(FuseError::Unmount { errno, .. }) => writeln!(say, "errno {}", errno.raw_os_error())?,
            Err(FuseError::Fusermount { what, .. }) => writeln!(say, "said {}", what.replace('\n', "; "))?,
            Err(e) => writeln!(say, "said {}", e.to_string().replace('\n', "; "))?,
        }
        say.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_unmounts_only_its_own_mount() {
        let dir = tempfile::tempdir().expect("directory");
        let mut said = Vec::new();
        // Simulates another mount at the same path.
        let gone = Unmounter::new(dir.path().into(), Some((0, u32::MAX)));
        answer_all(&gone, &b"uzdx"[..], &mut said).expect("written");
        let inval = format!("errno {}\n", libc::EINVAL);
        assert_eq!(String::from_utf8_lossy(&said), format!("said no mount there\n{inval}{inval}ok\n{inval}"));
    }

    #[test]
    fn answers_of_the_agent_become_errors() {
        let script = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let ask = |text: &str| Agent::start(script(text)).expect("ready").unmount(Path::new("/x"), false);
        assert!(ask("echo ok; head -c 1 >/dev/null; echo ok").is_ok());
        let busy = ask(&format!("echo ok; head -c 1 >/dev/null; echo errno {}", libc::EBUSY));
        assert!(matches!(busy, Err(FuseError::Unmount { errno: Errno::BUSY, .. })), "{busy:?}");
        let said = ask("echo ok; head -c 1 >/dev/null; echo said no, it is used");
        assert!(matches!(&said, Err(FuseError::Fusermount { what, .. }) if what == "no, it is used"), "{said:?}");
        assert!(matches!(ask("echo ok"), Err(FuseError::Fusermount { .. })));
        assert!(Agent::start(script("echo said no")).is_err() && Agent::start(script("true")).is_err());
    }
}
