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
    /// The device could not be opened.
    #[error("{device}: {source}")]
    Open { device: String, source: Arc<std::io::Error> },
    /// Somebody else uses the device.
    #[error("{device}: in use: {by}")]
    Busy { device: String, by: String },
}

pub type Result<T> = std::result::Result<T, Error>;
