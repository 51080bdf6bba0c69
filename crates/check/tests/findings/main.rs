//! Findings of a check, in sound and in damaged images.

mod canaries;
mod clean;
mod crashes;
mod details;
mod devices;
mod directories;
mod fast_commits;
mod features;
mod linear;
mod orphans;
mod problems;
mod quota;
mod random;
mod shared_blocks;
mod superblock;
