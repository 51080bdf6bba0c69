//! The crash explorer: what does a power cut leave behind, at every write, and is it what was promised?
//!
//! A seeded [`workload`] runs on Extant in process over a `CrashDevice`, and writes down in a [`history`] what it did
//! and what it was told was durable. Then [`explore()`] takes images that a power cut could have left (writes in order,
//! random subsets of what was not flushed, torn writes), recovers each (Extant's replay; for a sample also e2fsck's and
//! the kernel's), reads the tree ([`seen`]) and asks the [`oracle`]: is everything there that was acknowledged, is the
//! namespace one that existed, did every byte of every file belong there? [`pattern`] makes bytes that tell file, write
//! and offset apart; [`image`] makes the images, with poison in all free space.
//!
//! What it does not do: threads in the engine (the same seed must give the same writes), faults (a device that fails is
//! another test).
//!
//! # Locking
//! The explorer's work list is behind one leaf lock.

pub mod explore;
pub mod history;
pub mod image;
pub mod oracle;
pub mod pattern;
pub mod seen;
pub mod workload;

pub use explore::{Explore, Failure, Report, Spec, explore, state_files};
pub use history::{Cut, History};
pub use image::{CrashImage, IMAGES, TWO_WAVES};
pub use workload::{Recording, Wrap, record};
