//! The structures, constants and function types of `extant.h`.
//!
//! They have C's names, because the header has them from here.
//!
//! # Locking
//! None.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

/// An image: a file, a device or memory, and how it is to be used. Nothing is opened before it is mounted or checked.
pub enum extant_image {}

/// A mounted file system.
pub enum extant_fs {}

/// An open file.
pub enum extant_file {}

/// An open directory.
pub enum extant_dir {}

/// Room for the reason of a failure. Every function takes one as its last argument, or NULL, and fills it only if it
/// fails.
#[repr(C)]
pub struct extant_error {
    /// A positive error number of Linux, also on other systems: the function has returned its negative.
    pub number: c_int,
    /// IMAGE: PATH: REASON, in UTF-8, ended by a zero; a longer text is cut.
    pub text: [c_char; 1020],
}

/// A function that gets the messages of a mount: damage that was met, writes that were lost. Several threads may call
/// it at once. It must not call functions of this library.
pub type extant_message_fn = Option<extern "C" fn(user: *mut c_void, text: *const c_char)>;

/// A function that gets one problem of a check. `damage` is 0 for mere advice.
pub type extant_problem_fn = Option<extern "C" fn(user: *mut c_void, damage: c_int, text: *const c_char)>;

/// A function that gets the next `size` bytes of an archive. Returns 0, or a negative error number, which ends the
/// export.
pub type extant_output_fn = Option<extern "C" fn(user: *mut c_void, data: *const c_void, size: usize) -> c_int>;

/// A function of a device: fills `buffer` with `size` bytes from byte `offset` on. Returns 0, or a negative error
/// number.
pub type extant_read_fn =
    Option<extern "C" fn(user: *mut c_void, buffer: *mut c_void, size: usize, offset: u64) -> c_int>;

/// A function of a device: writes `size` bytes from byte `offset` on. Returns 0, or a negative error number.
pub type extant_write_fn =
    Option<extern "C" fn(user: *mut c_void, data: *const c_void, size: usize, offset: u64) -> c_int>;

/// A function of a device: makes durable what was written. Returns 0, or a negative error number.
pub type extant_flush_fn = Option<extern "C" fn(user: *mut c_void) -> c_int>;

/// A function of a device: its last user is gone, and `user` can be freed.
pub type extant_release_fn = Option<extern "C" fn(user: *mut c_void)>;

/// Nothing is written to the image. A journal is replayed in memory.
pub const EXTANT_READ_ONLY: u32 = 1;
/// Reads what can be read of a damaged image; implies EXTANT_READ_ONLY.
pub const EXTANT_RESCUE: u32 = 2;

/// How an image is used. Begin with { .size = sizeof(extant_options) }: zero means the default for every other field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_options {
    /// sizeof(extant_options).
    pub size: usize,
    /// EXTANT_READ_ONLY and the like.
    pub flags: u32,
    /// The partition; 0 for the only one that has a file system.
    pub partition: u32,
    /// The byte at which the file system begins, if it is not a partition.
    pub offset: u64,
    /// Memory for the caches of the mount, in bytes.
    pub cache_bytes: u64,
    /// The owner of files that are created.
    pub uid: u32,
    /// The group of files that are created.
    pub gid: u32,
    /// Gets the messages of the mount, with message_user.
    pub message: extant_message_fn,
    /// The first argument of message.
    pub message_user: *mut c_void,
}

/// A device of the caller. Its functions are called by several threads, but never by two at once. They must not call
/// functions of this library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_device {
    /// sizeof(extant_device).
    pub size: usize,
    /// The bytes of the device; the last part of a sector of 512 is not used.
    pub bytes: u64,
    /// The first argument of every function.
    pub user: *mut c_void,
    /// Must be given.
    pub read: extant_read_fn,
    /// NULL: the device can only be read.
    pub write: extant_write_fn,
    /// NULL: what was written is durable.
    pub flush: extant_flush_fn,
    /// NULL: nothing to be done at the end.
    pub release: extant_release_fn,
}

/// A time: seconds since 1970, and nanoseconds from 0 to 999999999.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// The attributes of a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_metadata {
    /// The inode number.
    pub ino: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Storage in units of 512 bytes.
    pub blocks: u64,
    /// The kind (S_IFREG 0100000, S_IFDIR 0040000 and so on) and the permissions, as st_mode of Linux.
    pub mode: u32,
    /// Names of the file.
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a device inode.
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub accessed: extant_time,
    pub modified: extant_time,
    pub changed: extant_time,
    /// The creation; zero if it is not known.
    pub created: extant_time,
}

/// A name in a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_dirent {
    /// The inode number.
    pub ino: u64,
    /// The kind, as in the mode of extant_metadata; 0 if it is not known.
    pub kind: u32,
    /// Bytes of the name.
    pub length: u32,
    /// The name, ended by a zero.
    pub name: [c_char; 256],
}

/// The space of a file system.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_space {
    /// All of it, in bytes, without the file system's own structures.
    pub total: u64,
    /// Free bytes, the reserve for root included.
    pub free: u64,
    /// Free bytes for users without privilege.
    pub available: u64,
    /// Files that there can be.
    pub files: u64,
    /// Files that can still be created.
    pub files_free: u64,
}

/// extant_open: reads are permitted.
pub const EXTANT_READ: u32 = 1;
/// extant_open: writes are permitted.
pub const EXTANT_WRITE: u32 = 2;
/// extant_open: each write goes to the end of the file.
pub const EXTANT_APPEND: u32 = 4;
/// extant_open: a missing file is created.
pub const EXTANT_CREATE: u32 = 8;
/// extant_open: the file is created and must not exist.
pub const EXTANT_NEW: u32 = 16;
/// extant_open: the content is removed.
pub const EXTANT_TRUNCATE: u32 = 32;

/// extant_chown and extant_lchown: leaves owner or group as it is.
pub const EXTANT_UNCHANGED: u32 = 0xffff_ffff;
