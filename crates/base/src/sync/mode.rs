//! One byte of flags that every lock operation tests first.
//!
//! The flags are whether lock statistics are on, whether any simulation runs in this process, and whether any of them
//! models locks and cache lines. All of these are rare, so an acquisition tests one byte that is hardly ever written.
//!
//! # Locking
//! A leaf lock without a class protects the numbers of simulations.

use std::sync::atomic::{AtomicU8, Ordering};

/// Acquisitions and waits are counted.
pub(crate) const STATS: u8 = 1;
/// Some threads of this process belong to a [`crate::sim`] run.
pub(crate) const SIMULATED: u8 = 2;
/// Some of these runs model shared cache lines.
pub(crate) const MODELLED: u8 = 4;

pub(crate) static MODE: AtomicU8 = AtomicU8::new(0);

/// The number of all simulations, and of those that model cache lines.
static SIMULATIONS: parking_lot::Mutex<[usize; 2]> = parking_lot::Mutex::new([0, 0]);

#[inline(always)]
pub(crate) fn is(bit: u8) -> bool {
    MODE.load(Ordering::Relaxed) & bit != 0
}

pub(crate) fn set(bit: u8, on: bool) {
    if on {
        MODE.fetch_or(bit, Ordering::Relaxed);
    } else {
        MODE.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Registers one more run. Its threads are started later, so they see the bits.
pub(crate) fn begin_simulation(lines: bool) {
    let mut n = SIMULATIONS.lock();
    n[0] += 1;
    n[1] += usize::from(lines);
    set(SIMULATED, true);
    set(MODELLED, n[1] > 0);
}

pub(crate) fn end_simulation(lines: bool) {
    let mut n = SIMULATIONS.lock();
    n[0] -= 1;
    n[1] -= usize::from(lines);
    set(SIMULATED, n[0] > 0);
    set(MODELLED, n[1] > 0);
}
