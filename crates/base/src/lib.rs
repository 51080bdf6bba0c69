//! Extant's ground floor: everything that waits, ticks, counts or draws random numbers.
//!
//! Purpose: the crates above take locks, start threads, read clocks and emit trace points only through here. So each
//! lock has a name, a rank and statistics. And the same code runs either on the operating system or, with all of its
//! threads, from one seed in virtual time.
//!
//! Main modules: [`sync`] (ranked locks), [`task`] (named threads), [`clock`] (real and virtual time), [`trace`]
//! (trace points with Linux's names), [`counter`] (per-core counters), [`rng`] (a seedable generator), [`hash`]
//! (tables with a seeded order), [`append`] (vectors that only grow), [`policy`] (how alternative policies are
//! declared), [`secret`] (memory for keys), [`sim`] (the scheduler that decides everything).
//!
//! It knows nothing about storage. `unsafe` is confined to [`secret`], which locks memory.
//!
//! # Locking
//! The ranks that the crates above use are listed in `docs/locking.md`; debug builds check them at every acquisition.
#![deny(unsafe_code)]

pub mod append;
pub mod clock;
pub mod counter;
pub mod hash;
pub mod policy;
pub mod rng;
pub mod secret;
pub mod sim;
pub mod size;
pub mod sync;
pub mod task;
pub mod trace;
