//! Errors of block devices.

use std::sync::Arc;

use crate::bio::BioOp;
use crate::device::KernelMount;

/// The reason why a request, or opening a device, failed. All messages begin with the device's name.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device failed the request.
    #[error("{device}: {op} of {len} bytes at byte {offset}: {source}")]
    Io {
        /// The device's name ([`BlockDevice::name`](crate::BlockDevice::name)).
        device: String,
        /// The operation.
        op: BioOp,
        /// The start of the request in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The error of the system.
        source: Arc<std::io::Error>,
    },
    /// The request extends past the end of the device.
    #[error("{device}: {op} of {len} bytes at byte {offset} is past the end ({size} bytes)")]
    OutOfRange {
        /// The device's name ([`BlockDevice::name`](crate::BlockDevice::name)).
        device: String,
        /// The operation.
        op: BioOp,
        /// The start of the request in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The end of the device, in bytes.
        size: u64,
    },
    /// The device was opened read-only.
    #[error("{device}: {op} refused: opened read-only")]
    ReadOnly {
        /// The device's name ([`BlockDevice::name`](crate::BlockDevice::name)).
        device: String,
        /// The operation.
        op: BioOp,
    },
    /// The request itself is malformed: not a multiple of the logical block, or memory that does not match its length.
    #[error("{device}: {op} of {len} bytes at byte {offset}: {why}")]
    BadRequest {
        /// The device's name ([`BlockDevice::name`](crate::BlockDevice::name)).
        device: String,
        /// The operation.
        op: BioOp,
        /// The start of the request in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The device cannot become longer: it is a partition, a block device, or a part of a file.
    #[error("{device}: it has {size} bytes and cannot be extended to {wanted}")]
    FixedSize {
        /// The device's name ([`BlockDevice::name`](crate::BlockDevice::name)).
        device: String,
        /// The device's size in bytes.
        size: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The device could not be opened.
    #[error("{device}: {source}")]
    Open {
        /// The path, or [`OpenOptions::shown_as`](crate::device::OpenOptions::shown_as).
        device: String,
        /// The error of the system.
        source: Arc<std::io::Error>,
    },
    /// An image file should be written, but the host cannot lock files.
    #[error(
        "{device}: files cannot be locked here ({source}), so nothing keeps another program from writing it as well"
    )]
    NoLocks {
        /// The path, or [`OpenOptions::shown_as`](crate::device::OpenOptions::shown_as).
        device: String,
        /// The error of the system.
        source: Arc<std::io::Error>,
    },
    /// Another process or the kernel uses the device.
    #[error("{device}: in use: {by}")]
    Busy {
        /// The path, or [`OpenOptions::shown_as`](crate::device::OpenOptions::shown_as).
        device: String,
        /// The user of the device, if the system shows it.
        by: BusyBy,
    },
    /// The request was dropped before its completion, because its owner panicked. It is unknown whether it was carried
    /// out.
    #[error("a request was dropped before the device completed it")]
    Lost,
}

/// The user of a device that is in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusyBy {
    /// The kernel has it mounted, or attached to a loop device.
    #[error("{0}")]
    Kernel(KernelMount),
    /// Another open of the image file has a lock on the bytes.
    #[error("locked by another process or another opener")]
    Lock,
    /// Another process has the block device open exclusively.
    #[error("opened exclusively by another process")]
    ExclusiveOpen,
    /// Our exclusive open has ended, and another process may have opened the block device since.
    #[error("another process may have opened it")]
    Unclaimed,
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

/// The result of a device call.
pub type Result<T> = std::result::Result<T, Error>;
