//! Trees on their way into an image, out of it, and through it.
//!
//! [`copy`] copies between images and the host's files, [`archive`] writes a tree as an archive, [`find`] is the
//! expression that chooses files. [`content`] reads one file of an image, a damaged one included. Main types:
//! [`copy::Copy`] (a copy in progress), [`Watch`] (the caller, which learns of each event and decides), [`Error`].
//!
//! Images are not trusted. Names that could lead out of the destination are refused, host directories are opened
//! without following links, and a directory that is reached twice is left out.
//!
//! What it does not do: print, ask, handle signals or open images. The caller does, through [`Watch`].
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(target_os = "linux")]
pub mod archive;
pub mod attributes;
pub mod content;
pub mod copy;
mod error;
pub mod find;
pub mod owners;
pub mod path;
mod watch;

pub use error::{Cause, Error, Place, Result, Step, plain, plain_text};
pub use owners::Owners;
pub use watch::{Silent, Watch};
