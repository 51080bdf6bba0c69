//! The server behind a mount, from the mount point to the last message.
//!
//! Main modules: [`serve`] (its sequence of steps), [`sandbox`] (the privileges that it drops), [`status`] (how an
//! unmount learns that it has ended), [`signals`], [`log`] (its messages in the background), [`cgroup`] and
//! [`headroom`] (the memory limit, and a cache that follows it).
//!
//! What it does not do: it does not decide whether to mount, and ends no other server ([`crate::commands`]).
//!
//! # Locking
//! None.

mod allocator;
pub mod cgroup;
pub mod headroom;
pub mod log;
pub mod sandbox;
pub mod serve;
pub mod signals;
pub mod status;
