//! The operations that workloads consist of, the same on every target.
//!
//! Main types: [`Vfs`] (a target's root directory), [`Node`] (an open file), [`Op`] (kinds of operations). [`PosixVfs`]
//! goes through system calls, [`EngineVfs`] calls the file system in this process, [`Worker`] is one process of a
//! workload: it calls a [`Vfs`] and times each operation.
//!
//! Paths are relative to the target's root, separated by `/`, without `.` and `..`.
//!
//! It knows nothing about workloads.
//!
//! # Locking
//! `lab paths` (4), in [`engine`]; nothing else is shared.

pub mod engine;
pub mod posix;
mod worker;

use std::os::fd::OwnedFd;
use std::path::Path;

use extant_fs::InodeRef;

pub use engine::EngineVfs;
pub use posix::PosixVfs;
pub use worker::{Histograms, Worker};

macro_rules! ops {
    ($($variant:ident $name:literal,)*) => {
        /// Kinds of operations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Op { $($variant,)* }

        impl Op {
            /// All kinds; the position is `op as usize`.
            pub const ALL: &'static [Op] = &[$(Op::$variant,)*];

            /// Stable name, as in results.
            pub const fn name(self) -> &'static str {
                match self { $(Op::$variant => $name,)* }
            }
        }
    };
}

ops! {
    Mkdir "mkdir",
    Create "create",
    Open "open",
    Write "write",
    Read "read",
    Fsync "fsync",
    Fdatasync "fdatasync",
    FsyncMany "fsync-many",
    Close "close",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Stat "stat",
    Readdir "readdir",
    Symlink "symlink",
    Truncate "truncate",
    Sync "sync",
}

/// The number of kinds.
pub const OPS: usize = Op::ALL.len();

/// The error of a target.
#[derive(Debug, thiserror::Error)]
pub enum VfsError {
    /// A system call failed.
    #[error("{0}")]
    System(std::io::Error),
    /// An error of the file system in this process.
    #[error("{0}")]
    Engine(extant_fs::Error),
    /// Fewer bytes than requested were transferred.
    #[error("{done} of {wanted} bytes")]
    Short {
        /// Bytes that were transferred.
        done: usize,
        /// The number of bytes requested.
        wanted: usize,
    },
    /// An open file of another target.
    #[error("not a file of this target")]
    Foreign,
}

impl VfsError {
    /// Whether the error is that the name exists already.
    pub fn exists(&self) -> bool {
        match self {
            VfsError::System(e) => e.kind() == std::io::ErrorKind::AlreadyExists,
            VfsError::Engine(e) => matches!(e, extant_fs::Error::Exists),
            VfsError::Short { .. } | VfsError::Foreign => false,
        }
    }
}

impl From<rustix::io::Errno> for VfsError {
    fn from(e: rustix::io::Errno) -> VfsError {
        VfsError::System(e.into())
    }
}

impl From<extant_fs::Error> for VfsError {
    fn from(e: extant_fs::Error) -> VfsError {
        VfsError::Engine(e)
    }
}

/// The result of a [`Vfs`].
pub type VfsResult<T> = std::result::Result<T, VfsError>;

/// An open file.
#[derive(Debug)]
pub enum Node {
    /// A file descriptor.
    Fd(OwnedFd),
    /// An inode in use in this process.
    Inode(InodeRef),
    /// No state, for targets that keep none.
    None,
}

/// The fields of stat(2) that workloads read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Whether it is a directory.
    pub directory: bool,
}

/// A target's root directory. Any number of threads may call at once.
pub trait Vfs: Send + Sync {
    /// The fraction of its own time by which each operation takes longer, on purpose (`Worker` spins for that time).
    fn slow(&self) -> f64 {
        0.0
    }

    /// The root directory as other programs name it, if it has one.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Creates a directory, mode 0755.
    fn mkdir(&self, path: &str) -> VfsResult<()>;
    /// Opens a file for reading and writing. Creates it with mode 0644 if it does not exist, and truncates it if it
    /// does.
    fn create(&self, path: &str) -> VfsResult<Node>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &str) -> VfsResult<Node>;
    /// Writes all of `data`.
    fn write_at(&self, node: &Node, offset: u64, data: &[u8]) -> VfsResult<()>;
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, node: &Node, offset: u64, buf: &mut [u8]) -> VfsResult<usize>;
    /// Makes the file durable.
    fn fsync(&self, node: &Node) -> VfsResult<()>;
    /// Makes the file's content durable.
    fn fdatasync(&self, node: &Node) -> VfsResult<()>;
    /// Makes these files durable, with their fsyncs in progress at the same time. If each needs a waiting thread, at
    /// most `waiters` threads are used.
    fn fsync_many(&self, nodes: &[Node], waiters: usize) -> VfsResult<()> {
        let _ = waiters;
        nodes.iter().try_for_each(|node| self.fsync(node))
    }
    /// Closes the file.
    fn close(&self, node: Node) -> VfsResult<()>;
    /// Removes a name that is not a directory.
    fn unlink(&self, path: &str) -> VfsResult<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &str) -> VfsResult<()>;
    /// Renames, replacing a file at `to`.
    fn rename(&self, from: &str, to: &str) -> VfsResult<()>;
    /// Looks up a name; a symbolic link at the end is not followed.
    fn stat(&self, path: &str) -> VfsResult<Stat>;
    /// Lists a directory to its end; returns the number of entries, without `.` and `..`.
    fn readdir(&self, path: &str) -> VfsResult<u64>;
    /// Creates a symbolic link at `path`.
    fn symlink(&self, target: &str, path: &str) -> VfsResult<()>;
    /// Sets the size in bytes.
    fn truncate(&self, node: &Node, size: u64) -> VfsResult<()>;
    /// Makes everything in the target durable.
    fn sync_all(&self) -> VfsResult<()>;
}
