//! Requests in, replies out.
//!
//! Purpose: read requests from /dev/fuse on several threads, decode them with every length checked, call the
//! [`Server`](crate::Server), and send its replies, from any thread.
//!
//! Main types: [`session::Session`] (one mount), [`reply`] (the `Reply*` objects), [`dirbuf::DirBuf`] (directory
//! replies), [`notify::Notifier`] (unsolicited messages). Inside: `channel` (one descriptor), `buffer` (a worker's
//! memory), `pool` (which workers read), `follow` (on which processor), `aside` (at which priority), `dispatch`
//! (decoding), `init` (negotiation).
//!
//! What it does not do: it has no inodes, handles or lookup counts; those are the server's.
//!
//! # Locking
//! `fuse gate` (rank 1), one per worker: held by a worker while it calls the server. The worker that got DESTROY takes
//! all gates, one after the other. `fuse worker pool` (1001): the parked workers. Everything else is owned by one
//! worker.

mod aside;
pub(crate) mod buffer;
pub(crate) mod channel;
pub mod dirbuf;
pub(crate) mod dispatch;
pub(crate) mod follow;
pub(crate) mod init;
pub mod notify;
pub(crate) mod origin;
pub(crate) mod pool;
pub mod reply;
pub(crate) mod ring;
pub mod session;

#[cfg(test)]
mod tests;
