//! Block devices, and the path of a request to them: bio → request → tag → hardware queue.
//!
//! Main types: [`BlockDevice`] (with which the crates above read, write and flush), [`Bio`] (one asynchronous request
//! with its completion), [`AlignedBuf`] (memory that O_DIRECT accepts), the devices in [`device`], and [`queue`]
//! (merging, plugging, a limited number of tags).
//!
//! It does not know ext4.
//!
//! # Locking
//! There are only leaf locks (ranks 800 to 999, listed in `ranks`), and no callback runs while one is held.
//!
//! `unsafe` is confined to `device::file::uring` (which passes addresses to the kernel) and `device::file::ioctl`.
#![deny(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

pub mod bio;
pub mod buf;
pub mod device;
pub mod error;
pub mod queue;
mod ranks;

pub use bio::{Bio, BioData, BioFlags, BioOp, BioVec, Completion, EndIo};
pub use buf::AlignedBuf;
pub use device::wrapper::Wrapper;
pub use device::{BlockDevice, IoCounters, IoStats, Limits, submit_inline};
pub use error::{BusyBy, Error, Result};
