//! The server behind a mount, from the mount point to the last message.
//!
//! Main modules: [`serve`] (its course), [`sandbox`] (the privileges that it gives up), [`status`] (how an unmount
//! learns of its end), [`signals`], [`log`] (its messages in the background), [`cgroup`] and [`headroom`] (the memory
//! limit, and a cache that follows it).
//!
//! What it does not do: decide whether to mount, or end another server ([`crate::commands`]).
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
