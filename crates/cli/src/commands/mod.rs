//! The sub-commands, one file each.
//!
//! | command | what |
//! |---|---|
//! | `mount`, `unmount` | a mount of the kernel, served by [`crate::server::serve`] |
//! | `freeze`, `thaw` | keep a mount's device as it is, for a copy |
//! | `info` | superblock, journal, space, partitions |
//! | `info --scan` | [`mod@scan`]: what is left on a damaged disk |
//! | `fsck` | check an image for damage, and repair it; [`change`] is what it shares with `resize` and `tune` |
//! | `resize` | make a file system larger or smaller |
//! | `tune` | label, UUID, limits and features |
//! | `undelete` | deleted files, by the journal |
//! | `image` | [`metadata`]: a copy without the content of files |
//! | `mkfs` | make a file system |
//! | `ls`, `cat`, `stat`, `tree` | look into an image, without mounting |
//! | `find`, `du`, `df` | search and count in one |
//! | `cp` | copy in and out |
//! | `export` | a tree as a tar archive |
//! | `rm`, `mkdir`, `ln`, `mv`, `chmod`, `chown`, `mknod`, `touch`, `xattr` | change one; [`verb`] is what they share |
//! | `chattr`, `lsattr` | [`attributes`]: flags of files |
//! | `encrypt` | gives empty directories an encryption policy |
//! | `trim` | punches out what is free |
//! | `script` | many of these at once |
//! | `lab` | workloads, contestants, figures |
//! | `completions`, `man` | made from the command line's definition |
//!
//! # Locking
//! None.

pub mod attributes;
pub mod cat;
pub mod change;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod cp;
pub mod df;
pub mod du;
pub mod encrypt;
pub mod export;
pub mod find;
pub mod freeze;
pub mod fsck;
pub mod info;
pub mod lab;
pub mod ln;
pub mod ls;
pub mod man;
pub mod metadata;
pub mod mkdir;
pub mod mkfs;
pub mod mknod;
pub mod mount;
pub mod mv;
pub mod quota;
pub mod resize;
pub mod rm;
pub mod scan;
pub mod script;
pub mod stat;
pub mod touch;
pub mod tree;
pub mod trim;
pub mod tune;
pub mod undelete;
pub mod unmount;
pub mod verb;
pub mod xattr;
