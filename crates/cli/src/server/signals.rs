//! SIGINT, SIGTERM and SIGHUP, for commands that finish their current step instead of being killed in the middle.
//!
//! Main types: [`Stop`]; [`ending`], the signals; [`Input`], which interrupts a blocked read. The exit status is that
//! of a program ended by the signal, as a shell reports it: 128 plus its number. Commands that only read have no
//! handler: the signal itself ends them, which a shell reports the same way.
//!
//! # Locking
//! None.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::failure::{Failure, Result};

/// A shell adds this to the number of a signal.
const SHELL_SIGNAL: u8 = 128;

/// The signals that end the command. A caller that makes it ignore SIGHUP (nohup(1)) wants it to outlive the terminal.
/// Shells make background jobs ignore SIGINT without such a reason: a SIGINT sent to this process is meant for it.
pub fn ending() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let hangs_up = ignored.unwrap_or(0) & 1 << (SIGHUP - 1) == 0;
    [SIGINT, SIGTERM].into_iter().chain(hangs_up.then_some(SIGHUP))
}

/// Makes a write past the limit on the size of files (`ulimit -f`) fail with an error instead of ending the process,
/// like a write past the end of the disk.
pub fn survive_file_size_limit() {
    // A handler, because child processes would inherit an ignored signal.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether a signal has requested the end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Installs the handlers.
    pub fn watch() -> Stop {
        let stop = Stop::default();
        for signal in ending() {
            // Without a handler, an interruption leaves an image that needs recovery. That is no reason to refuse.
            let _ = signal_hook::flag::register_usize(signal, stop.0.clone(), signal as usize);
        }
        stop
    }

    /// Acts as if `signal` had arrived.
    #[cfg(test)]
    pub fn come(&self, signal: i32) {
        self.0.store(signal as usize, Ordering::Relaxed);
    }

    /// Returns an error with the signal's status after a signal has arrived.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(ended_by(signal as i32)),
        }
    }
}

/// How long a signal that arrives right before a wait may go unnoticed.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

impl Stop {
    /// Waits until `fd` is ready, or a signal has arrived; a plain read or write would continue to wait after a signal.
    pub fn wait_for(&self, fd: impl AsFd, events: PollFlags) -> Result<()> {
        loop {
            self.check()?;
            match poll(&mut [PollFd::new(&fd, events)], Some(&POLL)) {
                Ok(0) | Err(Errno::INTR) => {}
                // If `fd` cannot be polled, the read or write reports the error.
                _ => return Ok(()),
            }
        }
    }
}

/// A file whose read fails once a signal has arrived.
pub struct Input<'a, F> {
    file: F,
    stop: &'a Stop,
}

impl<'a, F: AsFd> Input<'a, F> {
    pub fn new(file: F, stop: &'a Stop) -> Input<'a, F> {
        Input { file, stop }
    }
}

impl<F: AsFd> Read for Input<'_, F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stop.wait_for(&self.file, PollFlags::IN).map_err(|e| io::Error::other(e.message))?;
            match rustix::io::read(&self.file, &mut *buf) {
                // Another reader took the data first.
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// The failure after a signal.
pub fn ended_by(signal: i32) -> Failure {
    let what = match signal {
        SIGTERM => "terminated",
        SIGHUP => "hung up",
        _ => "interrupted",
    };
    Failure::new(SHELL_SIGNAL + signal as u8, what)
}
