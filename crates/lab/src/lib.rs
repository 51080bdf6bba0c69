//! The lab: one workload, many contestants, rounds that interleave them, and a verdict that says how sure it is.
//!
//! A *workload* (`workload`) is a deterministic sequence of file operations with a scale. It runs on a *target*
//! (`target`): the engine in this process, Extant's mount, the kernel's driver, fuse2fs, any directory. A target with
//! its options and policies is a *contestant*. One run of a workload by a contestant is a *trial* ([`result::Trial`]);
//! *measures* (`measure`) are the figures of a trial, and `layout` finds the map blocks of an image. `model` lets the
//! policies of one mechanism compete without any file system. `timing` computes a modelled device's time for recorded
//! requests. `sweep` runs a workload or a model at many points. `stats` compares trials, `regression` decides whether
//! something got worse, `report` draws them.
//!
//! It does not parse command lines and holds no policy of its own.
//!
//! # Locking
//! Workloads of several processes are threads that share nothing but the target; histograms are one a thread, merged
//! after.

#![forbid(unsafe_code)]

pub mod compare;
pub mod environment;
pub mod error;
pub mod export;
pub mod figure;
pub mod layout;
pub mod load;
pub mod measure;
pub mod model;
pub mod names;
mod plot;
pub mod regression;
pub mod report;
pub mod result;
pub mod run;
pub mod stats;
pub mod sweep;
pub mod table;
pub mod target;
pub mod timing;
pub mod vfs;
pub mod workload;

pub use error::{Error, Result};
