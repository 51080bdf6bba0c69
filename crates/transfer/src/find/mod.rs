//! The expression of find(1) over files of an image.
//!
//! Main types: [`Search`] (a parsed expression and its options), [`Expression`], [`Candidate`] (a file to which it is
//! applied). The walk is `extant_fs::walk`; there is no `-exec`.
//!
//! # Locking
//! None.

mod expression;
mod test;

pub use expression::{Expression, Outcome, Search, Words};
pub use test::{Candidate, Modes, Number, Spot, Test};
