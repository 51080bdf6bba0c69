//! The lowest layer of Extant: threads, locks, clocks, counters and random numbers.
//!
//! The crates above take locks, start threads, read clocks and emit trace points only through this crate. So each lock
//! has a name, a rank and statistics. Also, the same code can run either on the operating system or in a simulation, in
//! which one seed determines all of its threads and time is virtual.
//!
//! Main modules: [`sync`] (ranked locks), [`task`] (named threads), [`clock`] (real and virtual time), [`trace`] (trace
//! points with Linux's names), [`counter`] (per-core counters), [`rng`] (a seedable generator), [`hash`] (tables with a
//! seeded order), [`append`] (vectors that only grow), [`policy`] (the declaration of alternative policies), [`secret`]
//! (memory for keys), [`sim`] (the deterministic scheduler).
//!
//! It knows nothing about storage. `unsafe` is confined to [`secret`], which locks memory.
//!
//! # Locking
//! `docs/locking.md` lists the ranks that the crates above use; debug builds check them at every acquisition.
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
