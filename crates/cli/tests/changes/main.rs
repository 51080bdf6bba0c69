//! Checks, repairs, and changes of an image's size and features.

#[path = "../common/mod.rs"]
mod common;

mod fsck;
mod resize;
mod tune;
