//! Which group to search next: the interface between the search (mechanism) and its [`policy`].
//!
//! # Locking
//! None: policies read numbers that groups publish in atomics; changes are published under the group's lock.

mod group_set;
mod maxima;
pub mod policy;

pub use policy::Policy;
