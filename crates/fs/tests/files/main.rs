//! Files and directories of sound images: their content, their places, their caches and their space.

#[path = "../common/mod.rs"]
mod common;

mod dropped;
mod es_budget;
mod map_readahead;
mod meta_inline;
mod meta_zones;
mod metadata;
mod parallel;
mod readable;
mod reclaim;
mod renames;
mod smoke;
mod space;
mod zero_range;
