//! Where metadata goes: the seam between the search (mechanism) and its [`policy`].
//!
//! # Locking
//! None.

pub mod policy;

pub use policy::MetaPolicy;
