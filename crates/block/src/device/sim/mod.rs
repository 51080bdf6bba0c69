//! Devices that are models: the time that a disk would need, and the part of its image that a file system must keep.
//!
//! Main types: [`TimedDevice`] (adds up the service time of every request on a clock of its own), [`Timer`] (the same
//! for a recorded sequence, without a device), [`DeviceModel`] (the constants, from `params/`), [`Usage`] (counts and
//! times), [`MetaOnlyDevice`] (keeps metadata and drops data).
//!
//! They neither sleep nor read the clock: a result depends only on the sequence of requests.
//!
//! # Locking
//! `block timed` protects the state of a model, and `block dropped` the ranges that were written as data. Both are
//! released before the device below is called.

mod disk;
mod meta_only;
mod parallel;
mod params;
mod timed;

pub use meta_only::{DroppedWrites, MetaOnlyDevice};
pub use params::DeviceModel;
pub use timed::{Arrival, TimedDevice, Timer, Usage};
