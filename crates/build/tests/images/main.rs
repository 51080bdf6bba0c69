//! Images that are built: their content, their bytes, and what remains of one that is not finished.

#[path = "../common/mod.rs"]
mod common;

mod content;
mod empty;
mod oci;
mod odd_options;
mod sparse;
mod tars;
mod trees;
mod unfinished;
