//! Devices that are models: the time that a disk would need, and the part of its image that a file system must keep.
//!
//! Main types: [`TimedDevice`] (adds up the service time of every request on a clock of its own), [`Timer`] (the same
//! for a recorded sequence, without a device), [`DeviceModel`] (the constants, from `params/`), [`Usage`] (counts and
//! times), [`MetaOnlyDevice`] (keeps metadata and drops data).
//!
//! They do not sleep, nor read the time of day: a result follows from the sequence of requests alone.
//!
//! # Locking
//! `block timed`: the state of a model. `block dropped`: which bytes were written as data. Both are released before the
//! device below is called.

mod disk;
mod meta_only;
mod parallel;
mod params;
mod timed;

pub use meta_only::{Dropped, MetaOnlyDevice};
pub use params::DeviceModel;
pub use timed::{Arrival, TimedDevice, Timer, Usage};
