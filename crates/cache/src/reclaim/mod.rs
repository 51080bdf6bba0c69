//! Which memory is given back, and when.
//!
//! Main types: [`Core`] and [`Reclaimer`] (the decisions), [`ReclaimPolicy`] (the policies), [`FrameId`], [`Touches`]
//! (what owners note of their frames).
//!
//! Folios, metadata buffers and idle inodes are *frames*. Whoever holds one says when it appears, is used again,
//! becomes dirty or clean, and goes; the policy says which go when memory is short.
//!
//! What it does not do: I/O. It neither writes nor waits; it says that something is to be written.

mod core;
mod engine;
mod frame;
mod ghost;
mod policy;

pub use self::core::{Answer, Class, Core, Counts, Host, Next, Reclaimer, Room, Tried, Victim, Why, Wrote};
pub use self::engine::{FrameOwner, Reclaim};
pub use self::frame::{FrameCell, FrameId, Key, OwnerId, State, Touches};
pub use self::policy::ReclaimPolicy;
