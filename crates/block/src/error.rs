//! What a block device can answer.

use std::sync::Arc;

use crate::bio::BioOp;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device failed the request.
    #[error("{device}: {op} of {len} bytes at byte {offset}: {source}")]
    Io { device: String, op: BioOp, offset: u64, len: u64, source: Arc<std::io::Error> },
    /// The request reaches past the end of the device.
    #[error("{device}: {op} of {len} bytes at byte {offset} is past the end ({size} bytes)")]
    OutOfRange { device: String, op: BioOp, offset: u64, len: u64, size: u64 },
    /// The device was opened read-only.
    #[error("{device}: {op} refused: opened read-only")]
    ReadOnly { device: String, op: BioOp },
    /// The request itself is malformed: not a multiple of the logical block, or memory that does not match its length.
    #[error("{device}: {op} of {len} bytes at byte {offset}: {why}")]
    BadRequest { device: String, op: BioOp, offset: u64, len: u64, why: &'static str },
    /// The device could not be opened.
    #[error("{device}: {source}")]
    Open { device: String, source: Arc<std::io::Error> },
    /// Somebody else uses the device.
    #[error("{device}: in use: {by}")]
    Busy { device: String, by: String },
}

impl Error {
    /// An [`Error::Io`] of `device`.
    pub fn io(device: &str, op: BioOp, offset: u64, len: u64, source: impl Into<std::io::Error>) -> Error {
        Error::Io { device: device.to_owned(), op, offset, len, source: Arc::new(source.into()) }
    }

    /// An [`Error::Open`] of `device`.
    pub fn open(device: &str, source: impl Into<std::io::Error>) -> Error {
        Error::Open { device: device.to_owned(), source: Arc::new(source.into()) }
    }
}

pub type Result<T> = std::result::Result<T, Error>;
