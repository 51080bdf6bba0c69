//! Decides which memory is freed, and when.
//!
//! Main types: [`Core`] and [`Reclaimer`] (the decisions), [`ReclaimPolicy`] (the policies), [`FrameId`], [`Touches`]
//! (use counts).
//!
//! Folios, metadata buffers and idle inodes are *frames*. Their owner reports when a frame is created, is used again,
//! becomes dirty or clean, and is removed. The policy chooses which frames are freed when memory is short.
//!
//! What it does not do: I/O. It neither writes nor waits, but it reports that something should be written.

mod core;
mod engine;
mod frame;
mod ghost;
mod policy;

pub use self::core::{Answer, Class, Core, Counts, Host, Next, Reclaimer, Room, Tried, Victim, Why, Wrote};
pub use self::engine::{FrameOwner, Reclaim};
pub use self::frame::{FrameCell, FrameId, Key, OwnerId, State, Touches};
pub use self::policy::ReclaimPolicy;
