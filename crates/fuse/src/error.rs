//! Errors of mounting and serving.

use std::path::PathBuf;

use rustix::io::Errno;

/// Why mounting, unmounting or serving failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    #[error("cannot open /dev/fuse: {errno} (you need to be able to read and write it: ls -l /dev/fuse)")]
    Device { errno: Errno },
    #[error("{}: not a usable mount point: {errno}", path.display())]
    MountPoint { path: PathBuf, errno: Errno },
    #[error("mount option '{option}' cannot be used: {reason}")]
    Option { option: String, reason: &'static str },
    #[error("mounting {kind} on {} failed: {errno}", path.display())]
    Mount { kind: &'static str, path: PathBuf, errno: Errno },
    #[error("unmounting {} failed: {errno}", path.display())]
    Unmount { path: PathBuf, errno: Errno },
    #[error("fusermount3 for {} failed: {what}", path.display())]
    Fusermount { path: PathBuf, what: String },
    #[error("the kernel speaks FUSE {major}.{minor}; at least 7.{} is needed", crate::abi::OLDEST_MINOR_VERSION)]
    Version { major: u32, minor: u32 },
    #[error("the INIT handshake failed: {what}")]
    Handshake { what: &'static str },
    #[error("requests cannot come through io_uring: {reason}")]
    Ring { reason: String },
    #[error("reading requests failed: {errno}")]
    Read { errno: Errno },
    #[error("cannot start a worker thread: {source}")]
    Thread { source: std::io::Error },
}

/// A reply did not reach the kernel, so the kernel counted neither a lookup nor an open handle for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply was not delivered: {errno}")]
pub struct Undelivered {
    /// ENOENT if the request was aborted.
    pub errno: Errno,
}
