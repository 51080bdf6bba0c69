//! Trials of the lab: what they run, copy and conclude.

#[path = "../common/mod.rs"]
mod common;

mod age;
mod copies_and_models;
mod resampling;
mod runs;
