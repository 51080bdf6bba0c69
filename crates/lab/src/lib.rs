//! The lab: one workload, many contestants, interleaved rounds, and a verdict with its confidence.
//!
//! A *workload* (`workload`) is a deterministic sequence of file operations with a scale. It runs on a *target*
//! (`target`): the engine in this process, Extant's mount, the kernel's driver, fuse2fs, any directory. A target with
//! its options and policies is a *contestant*. One run of a workload by a contestant is a *trial* ([`result::Trial`]);
//! *measures* (`measure`) are the figures of a trial, and `layout` finds the map blocks of an image. `model` lets the
//! policies of one mechanism compete without any file system. `timing` computes a modelled device's time for recorded
//! requests. `sweep` runs a workload or a model at many points. `stats` compares trials, `regression` decides whether
//! something got worse, `report` draws them.
//!
//! It does not parse command lines, and has no policy of its own.
//!
//! # Locking
//! The processes of a workload are threads that share only the target. Each thread has its own histograms, which are
//! merged afterwards.

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
