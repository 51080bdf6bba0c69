//! Sizes, as `extant_base` reads and shows them.
//!
//! # Locking
//! None.

pub use extant_base::size::{human, parse};
