//! SIGINT, SIGTERM and SIGHUP, for commands that end what they are doing instead of dying in the middle.
//!
//! Main type: [`Stop`]. The exit status is what a shell reports of a program that the signal ended: 128 and its number.
//! Commands that only read have no handler: the signal itself ends them, which a shell reports alike.
//!
//! # Locking
//! None.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result};

/// What a shell adds to the number of a signal.
const SHELL_SIGNAL: u8 = 128;

/// Whether somebody wants us to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Listens from now on.
    pub fn watch() -> Stop {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Without a handler an interruption leaves an image that needs recovery: no reason to refuse.
            let _ = signal_hook::flag::register_usize(signal, stop.0.clone(), signal as usize);
        }
        stop
    }

    /// The failure to end with, once a signal has come.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(ended_by(signal as i32)),
        }
    }
}

/// The failure that a signal comes to.
pub fn ended_by(signal: i32) -> Failure {
    let what = match signal {
        SIGTERM => "terminated",
        SIGHUP => "hung up",
        _ => "interrupted",
    };
    Failure::new(SHELL_SIGNAL + signal as u8, what)
}
