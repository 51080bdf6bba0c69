//! The sub-commands, one file each.
//!
//! | command | what |
//! |---|---|
//! | `mount`, `unmount` | a mount of the kernel, served by [`crate::serve`] |
//! | `freeze`, `thaw` | keep a mount's device as it is, for a copy |
//! | `info` | superblock, journal, space, partitions |
//! | `ls`, `cat`, `stat`, `tree` | look into an image, without mounting |
//! | `cp` | copy in and out |
//! | `lab` | workloads, contestants, figures |
//! | `completions`, `man` | made from the command line's definition |
//!
//! # Locking
//! None.

pub mod cat;
pub mod completions;
pub mod cp;
pub mod freeze;
pub mod info;
pub mod lab;
pub mod ls;
pub mod man;
pub mod mount;
pub mod stat;
pub mod tree;
pub mod unmount;
