//! The crash explorer: the states that a power cut may leave, at every write, against the promises.
//!
//! A seeded [`workload`] runs on Extant in process over a `CrashDevice`, and records its operations and
//! acknowledgements in a [`history`]. Then [`explore()`] takes images that a power cut could have left (writes in
//! order, random subsets of the unflushed writes, torn writes). It recovers each (Extant's replay; for a sample also
//! e2fsck's and the kernel's), reads the tree ([`seen`]) and calls the [`oracle`]. The oracle checks that everything
//! acknowledged is there, that the namespace is one that existed, and that every byte belongs to its file. [`pattern`]
//! makes bytes that tell file, write and offset apart; [`image`] makes the images, with poison in all free space.
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
pub use image::{
    CASEFOLD, CLUSTERS, CrashImage, ENCRYPTED, ENCRYPTED_TOP, GROWING, IMAGES, INLINE, JOURNAL_DEV, QUOTA, TOGETHER,
    TWO_WAVES, VALUES,
};
pub use workload::{Recording, Wrap, record};
