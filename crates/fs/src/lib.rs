//! The ext2/3/4 file system in user space: what is here so far stands on its own and is joined by the mount.
#![forbid(unsafe_code)]

pub mod dir;
pub mod xattr;

pub mod map;
