//! Shared parts of the tests of several crates: real tools as oracles, mounts, comparison of trees, replay of
//! workloads.
//!
//! Everything works on paths of mounted directories, so the same test runs on the kernel's mount and on Extant's.
//!
//! Main modules:
//! - [`crash`]: power cuts at every write, with an oracle;
//! - [`sched`]: threads, power cuts and faults under one scheduler;
//! - [`damage`]: a table of damaged images;
//! - [`oracle`]: mke2fs, e2fsck, debugfs (a crate of its own);
//! - [`mount`]: its mounts, which end when their value is dropped;
//! - [`tree`]: the fingerprint of a directory tree, and the differences between two;
//! - [`shown`]: what a mount shows of a damaged image;
//! - [`verity`]: files with a Merkle tree;
//! - [`workload`]: operations from a seed;
//! - [`differential`]: the same workload through a mount under test and through the kernel, compared;
//! - [`kinds`]: the images to try;
//! - [`latency`]: clients beside a large write, in virtual time.
//!
//! What it does not do: it does not run in production; other crates depend on it only for their tests.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

pub mod crash;
pub mod damage;
pub mod differential;
pub mod kinds;
pub mod latency;
pub mod sched;
pub mod shown;
pub mod tree;
pub mod verity;
pub mod workload;

pub use extant_oracle as oracle;
pub use extant_oracle::{Error, Result, mount};
