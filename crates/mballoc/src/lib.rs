//! Extant's multi-block allocator: *where* blocks go. Linux: fs/ext4/mballoc.c.
//!
//! Purpose: allocates runs of blocks near a goal, keeps a buddy bitmap per group, and preallocates for growing and for
//! small files. It counts free and promised blocks, and makes freed blocks unavailable until their transaction is
//! durable.
//!
//! Main types: [`Allocator`] (one per mount), [`GroupStore`] (its interface to the file system), [`Request`] and
//! [`Allocation`], [`InodePreallocation`] (one per in-core inode), [`Geometry`], [`Policy`] (which group next),
//! [`MetaPolicy`] (where metadata goes).
//!
//! A block has three states: *used on disk*; *held*; *free*. A held block is free in the on-disk bitmap but
//! unavailable. It is preallocated, or freed in a transaction that is not yet durable, or chosen and not yet marked
//! because its data is being written. The buddy of a group records "not free". The held ranges are recorded beside it,
//! so that a buddy can be dropped and rebuilt at any time.
//!
//! Under `bigalloc` a block is a cluster everywhere in this crate, and the file system translates.
//!
//! What it does not do: it does no I/O (the store loads and journals bitmaps) and chooses no goals for data (the Orlov
//! allocator and others are in `fs`). It does not know which blocks of a cluster are used.
//!
//! # Locking
//! In order of rank: [`lock::OWNER`] (an inode's list of preallocations) or [`lock::LOCALITY`] (a locality group's) →
//! [`lock::PREALLOCATION`] (one preallocation) → [`lock::SPACE`] (counters near zero), [`lock::IN_TRANSIT`] (waiting
//! when nothing is free) and [`lock::GROUP`] (one group; never two) → [`lock::LISTS`] (a policy's).
//! [`GroupStore::mark`] runs under the group's lock, so the store may take locks of a higher rank only;
//! [`GroupStore::load`] and [`GroupStore::prepare`] run under none of these.
#![forbid(unsafe_code)]

mod allocator;
mod buddy;
mod error;
mod free;
mod geometry;
mod group;
pub mod group_choice;
mod grow;
mod in_transit;
mod load;
pub mod meta_place;
mod prealloc;
mod ranges;
mod request;
mod search;
mod space;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod zones;

pub use allocator::{Allocator, Chosen, FreedExtents, GroupState, Options};
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use group_choice::Policy;
pub use meta_place::MetaPolicy;
pub use prealloc::InodePreallocation;
pub use request::{Allocation, Kind, MetaRequest, MetaRole, Neighbour, Pointers, Request, RequestFlags};
pub use stats::Statistics;
pub use store::{GroupStore, GroupSummary};

/// The lock classes of this crate and their ranks.
pub mod lock {
    use extant_base::sync::LockClass;

    /// The list of preallocations of one inode.
    pub static OWNER: LockClass = LockClass::new("inode preallocations", 66);
    /// One locality group.
    pub static LOCALITY: LockClass = LockClass::new("locality group", 66);
    /// One preallocation.
    pub static PREALLOCATION: LockClass = LockClass::new("preallocation", 68);
    /// Waiting for blocks that other threads hold in flight; no other lock is held.
    pub static IN_TRANSIT: LockClass = LockClass::new("space in transit", 69);
    /// The free-space counters while they are near zero.
    pub static SPACE: LockClass = LockClass::new("space counters", 69);
    /// One block group.
    pub static GROUP: LockClass = LockClass::new("group", 70);
    /// A policy's list of groups.
    pub static LISTS: LockClass = LockClass::new("group list", 71);
}
