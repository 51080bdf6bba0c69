//! Points on this machine: exact points run concurrently, the others alone.
//!
//! Main type: [`Local`]. Each point is a process of `extant lab`, so that all begin in the same state. A process that
//! fails leaves its finished trials, and the sweep continues with the next point.
//!
//! # Locking
//! None.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};

use super::{Engine, Point};
use crate::error::{Error, Result};
use crate::target::one_line;

/// The interval of checks for the end of a process.
const LOOK: Duration = Duration::from_millis(5);
/// How long a process may take to clean up after it has been asked to end.
const GRACE_NS: u64 = 30_000_000_000;
/// Name of the file with the messages of a point that failed, in its folder.
const LOG: &str = "log.txt";
/// The bytes of messages that are read.
const LOG_MAX: usize = 1 << 20;

/// Runs points as processes on this machine.
pub struct Local {
    /// The `extant` binary.
    pub program: PathBuf,
    /// How many exact points run at the same time.
    pub jobs: usize,
    /// Arguments of runs that do not affect a trial: `--quiet`, `--overwrite`.
    pub extra: Vec<String>,
}

/// A running point.
struct Process<'a> {
    point: &'a Point,
    child: Child,
    /// Its messages, in memory: where the disk is full, they say so.
    log: File,
}

impl Engine for Local {
    fn run(
        &self,
        due: &[&Point],
        output: &Path,
        lock: &File,
        stop: &AtomicBool,
        done: &mut dyn FnMut(&Point, Option<String>),
    ) -> Result<()> {
        let (exact, alone): (Vec<&Point>, Vec<&Point>) = due.iter().partition(|p| p.exact);
        self.some(&exact, self.jobs, output, lock, stop, done)?;
        self.some(&alone, 1, output, lock, stop, done)
    }
}

impl Local {
    fn some(
        &self,
        due: &[&Point],
        jobs: usize,
        output: &Path,
        lock: &File,
        stop: &AtomicBool,
        done: &mut dyn FnMut(&Point, Option<String>),
    ) -> Result<()> {
        let clock = Clock::real();
        let mut running: Vec<Process<'_>> = Vec::new();
        let mut next = due.iter();
        let mut failed = None;
        while failed.is_none() && !stop.load(Ordering::Relaxed) {
            while running.len() < jobs.max(1) {
                let Some(point) = next.next() else { break };
                match self.start(point, output, lock) {
                    Ok(process) => running.push(process),
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
            }
            if running.is_empty() {
                break;
            }
            running = ended(running, output, done)?;
            clock.sleep(LOOK);
        }
        // After an error in this process, running points may finish; after Ctrl-C they must end.
        if stop.load(Ordering::Relaxed) {
            for process in &running {
                let _ = kill_process(Pid::from_child(&process.child), Signal::INT);
            }
        }
        let end = clock.now_ns().saturating_add(GRACE_NS);
        while !running.is_empty() {
            running = ended(running, output, done)?;
            if stop.load(Ordering::Relaxed) && clock.now_ns() > end {
                running.iter_mut().for_each(|process| {
                    let _ = process.child.kill();
                });
            }
            clock.sleep(LOOK);
        }
        failed.map_or(Ok(()), Err)
    }

    fn start<'a>(&self, point: &'a Point, output: &Path, lock: &File) -> Result<Process<'a>> {
        let folder = point.folder(output);
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let failed = |e: std::io::Error| Error::Failed(format!("point {}: no memory for its messages: {e}", point.id));
        let log = File::from(memfd_create(LOG, MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?);
        let out = log.try_clone().map_err(failed)?;
        let err = log.try_clone().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(&point.arguments).args(&self.extra).arg("--output").arg(&folder);
        // The process holds the lock of the sweep through its standard input, which it does not read.
        let held = lock.try_clone().map_err(Error::file(output))?;
        command.stdin(Stdio::from(held)).stdout(out).stderr(err);
        let child = command.spawn().map_err(Error::file(&self.program))?;
        Ok(Process { point, child, log })
    }
}

/// Removes the processes that have ended.
fn ended<'a>(
    running: Vec<Process<'a>>,
    output: &Path,
    done: &mut dyn FnMut(&Point, Option<String>),
) -> Result<Vec<Process<'a>>> {
    let mut left = Vec::new();
    for mut process in running {
        let Some(status) = process.child.try_wait().map_err(|e| Error::Failed(e.to_string()))? else {
            left.push(process);
            continue;
        };
        // Failed trials are in the result, and the merge counts them.
        let failure = match process.point.is_complete(output) {
            Ok(true) => None,
            Ok(false) => Some(format!("{status}: {}", said(&process.log, &process.point.folder(output).join(LOG)))),
            Err(e) => Some(e.to_string()),
        };
        done(process.point, failure);
    }
    Ok(left)
}

/// The last line of the messages: the error comes last. All of them are left in the file `kept`, if there is room.
fn said(log: &File, kept: &Path) -> String {
    let mut text = vec![0; log.metadata().map_or(0, |m| m.len() as usize).min(LOG_MAX)];
    let read = log.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(read);
    let _ = std::fs::write(kept, &text);
    let text = String::from_utf8_lossy(&text);
    one_line(text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing"))
}
