//! The schedule explorer: threads that race, with power cuts and failing requests on top.
//!
//! A [`plan::Plan`] consists of a configuration, a seed and the operations that are kept; everything else follows from
//! these. [`run`] executes it inside an [`extant_base::sim`] run. It mounts a small image with all its threads over a
//! device whose requests complete later and in any order. Two to eight [`client`]s use it concurrently, beside the
//! flusher, the journal and evictions. Every read is compared with the written data. Then [`check`] takes a few images
//! that a power cut could have left, recovers them, and calls the crash explorer's oracle for each client. Each client
//! has its own files and names, so its history is that of a single thread, and every acknowledgement is a floor of it.
//! [`explore()`] does this for many seeds, and shrinks failing plans.
//!
//! A failure prints one line that repeats it:
//! `EXTANT_SCHEDULE='config=… seed=… keep=…' cargo test -p extant-testkit --test schedules repeat -- --nocapture`.
//!
//! What it does not do: it uses neither the kernel's recovery nor FUSE; other tests cover both.
//!
//! # Locking
//! `schedule shared`, `schedule stripes` (0): the state that clients share, held for a moment.

pub mod acks;
pub mod check;
pub mod client;
pub mod config;
pub mod explore;
pub mod plan;
pub mod run;
pub mod stripes;

pub use config::{CONFIGS, Config};
pub use explore::{Report, Search, explore, repeat_line, shrink};
pub use plan::{Plan, Trick};
pub use run::{PlanFailure, PlanResult, try_plan};
