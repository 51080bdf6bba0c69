//! Features of the format, each in changes of its own and beside others.

#[path = "../common/mod.rs"]
mod common;

mod bigalloc;
mod casefold;
mod encrypt;
mod feature_pairs;
mod flags;
mod grow;
mod large_blocks;
mod large_values;
mod metadata_flags;
mod mmp;
mod quota;
mod shared_attributes;
mod verity;
