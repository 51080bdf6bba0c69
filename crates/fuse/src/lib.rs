//! Extant's own thin layer over /dev/fuse: mount, transport, and the trait that a file system implements.
//!
//! Purpose: everything that knows the FUSE protocol. It exists because Extant needs `fuseblk`, SYNCFS, TMPFILE and
//! STATX. (Only with `fuseblk` does syncfs(2) reach the server and umount(2) wait for it.) It also needs replies that
//! are sent as a vector of page-cache pieces, and replies that another thread sends.
//!
//! Main types: [`Server`] (the trait), [`Session`] (one mount and its workers), [`MountOptions`], [`Unmounter`],
//! [`Notifier`], and the replies `Reply*`; [`FsServer`] (an ext file system as a `Server`). Folders: [`abi`] (bytes),
//! [`mount`] (mount(2), fusermount3, unmounting), [`transport`] (workers, decoding, replies), [`adapter`] (the file
//! system).
//!
//! What it does not do: splice, file locks (the kernel's own are right for one mount), CUSE.
//!
//! # Locking
//! `fuse gate` (rank 1): one per worker, held while that worker calls the server, so that DESTROY can wait until the
//! last call has ended. `fuse worker pool` (rank 1001) guards the parked workers; it is not taken for every request.
//! The adapter's locks are described in [`adapter`].
#![deny(unsafe_code)]
#![cfg_attr(not(target_os = "linux"), allow(unused))]

pub mod abi;
pub mod adapter;
mod error;
pub mod mount;
mod server;
mod sys;
pub mod transport;
pub mod types;

pub use adapter::{DirectIo, FsServer, ServerOptions};
pub use error::{FuseError, Undelivered};
pub use mount::{
    Agent, Callers, MountKind, MountMethod, MountOptions, MountPoint, Top, Transport, Unmounter, Unmounting,
    serve_agent,
};
pub use rustix::io::Errno;
pub use server::{Config, InitOffer, Server};
pub use sys::{
    Control, GrowOutcome, GrowRecord, QuotaRecord, QuotaRequest, control, grow_control, kernel_gid, kernel_uid,
    quota_control,
};
pub use transport::dirbuf::{DirAdd, DirBuf};
pub use transport::notify::Notifier;
pub use transport::reply::*;
pub use transport::session::{Hold, Session};
pub use types::*;
