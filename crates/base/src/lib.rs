//! Extant's ground floor: everything that waits, ticks, counts or draws random numbers.
//!
//! Purpose: the crates above take locks, start threads, read clocks and emit trace points only through here, so that a
//! lock has a name, a rank and statistics, and so that the same code runs on the operating system or, every thread of
//! it, from one seed in virtual time.
//!
//! Main modules: [`sync`] (ranked locks), [`task`] (named threads), [`clock`] (real and virtual time), [`trace`] (trace
//! points named as Linux names them), [`counter`] (per-core counters), [`rng`] (a seedable generator), [`hash`] (tables
//! whose order a seed decides), [`policy`] (how policies that stand side by side are declared), [`sim`] (the scheduler
//! that decides everything).
//!
//! What it does not do: it contains not one storage word.
//!
//! # Locking
//! The ranks that the crates above use are listed in `docs/locking.md`; debug builds check them at every acquisition.
#![forbid(unsafe_code)]

pub mod clock;
pub mod counter;
pub mod hash;
pub mod policy;
pub mod rng;
pub mod sim;
pub mod size;
pub mod sync;
pub mod task;
pub mod trace;
