//! Tests of the allocator as a whole, over a store in memory that knows the true state of every block.

mod bounds;
mod enospc;
mod faults;
mod grow;
mod interleavings;
mod locality;
pub mod model;
mod prealloc;
mod stress;
mod zones;
