//! The crash explorer checks the states that a power cut may leave, at every write, against the promises.
//!
//! A seeded [`workload`] runs on Extant in process over a `CrashDevice`, and records its operations and
//! acknowledgements in a [`history`]. Then [`explore()`] takes images that a power cut could have left (writes in
//! order, random subsets of the unflushed writes, torn writes). It recovers each (Extant's replay; for a sample also
//! e2fsck's and the kernel's), reads the tree ([`seen`]) and calls the [`oracle`]. The oracle checks that everything
//! acknowledged is there, that the namespace is one that existed, and that every byte belongs to its file. [`pattern`]
//! makes bytes that identify file, write and offset; [`image`] makes the images, with poison in all free space.
//!
//! What it does not do: the engine has no threads here (the same seed must give the same writes), and the device has no
//! faults (another test has them).
//!
//! # Locking
//! One leaf lock protects the explorer's work list.

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
    CASEFOLD, CLUSTERS, CrashImage, ENCRYPTED, ENCRYPTED_TOP, FAST_COMMIT, GROWING, IMAGES, INLINE, JOURNAL_DEV, QUOTA,
    TOGETHER, TWO_WAVES, VALUES,
};
pub use workload::{Recording, Wrap, record};
