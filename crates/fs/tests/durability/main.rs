//! Durability: what a barrier, a commit, a fast commit and a power cut leave, also when requests fail.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/damaged.rs"]
mod damaged;
#[path = "../common/tree.rs"]
mod tree;

mod after_an_error;
mod barrier;
mod disk_size;
mod error_reports;
mod failed_recovery;
mod fast_commit;
mod fast_commit_cost;
mod fast_commit_written;
mod flushes;
mod freeze;
mod fsync_many;
mod journal_device;
mod lost_writes;
mod narrow_races;
mod overlap;
mod writeback_races;
