//! The schedule explorer: what happens where threads meet, with power cuts and failing requests on top.
//!
//! One [`plan::Plan`] is a configuration, a seed and the operations that are left of it; everything else follows from
//! these. [`run`] carries it out inside of a [`extant_base::sim`] run: a small image is mounted with all threads of its
//! own over a device whose requests complete later and in any order, and two to eight [`client`]s work on it at once
//! while the flusher, the journal and the evictions do what they do. Every read is compared with what was written. Then
//! [`check`] takes a few images that a power cut could have left, recovers them, and asks the crash explorer's oracle
//! about each client: each has files and names of its own, so its history is one of a single thread, and whatever
//! anybody was told is durable is a floor of it. [`explore()`] does so for many seeds and makes failing plans smaller.
//!
//! A failure prints one line that repeats it:
//! `EXTANT_SCHEDULE='config=… seed=… keep=…' cargo test -p extant-testkit --test schedules repeat -- --nocapture`.
//!
//! What it does not do: the kernel's recovery, FUSE; both are other tests' work.
//!
//! # Locking
//! `schedule shared` (0): what clients tell each other, held for a moment.

pub mod check;
pub mod client;
pub mod config;
pub mod explore;
pub mod plan;
pub mod run;

pub use config::{CONFIGS, Config};
pub use explore::{Report, Search, explore, repeat_line, shrink};
pub use plan::Plan;
pub use run::{Bad, Ran, Trick, try_plan};
