//! The FUSE protocol as bytes, version 7.45 (Linux: include/uapi/linux/fuse.h).
//!
//! Purpose: every structure that crosses /dev/fuse, in the machine's own byte order, with its size asserted at compile
//! time. Field names are those of the header, so that the two can be read side by side.
//!
//! Main parts: [`Opcode`], the flag sets of [`flags`], messages from the kernel ([`InHeader`] and the `*In`
//! structures of [`request`]), messages to it ([`OutHeader`] and the `*Out` structures of [`reply`]).
//!
//! What it does not do: no I/O, no decisions, no validation beyond length and layout.
//!
//! # Locking
//! None.

/// Declares one wire structure: C layout, no implicit padding (zerocopy refuses it), size asserted.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

pub mod flags;
pub mod reply;
pub mod request;
pub mod uring;

pub use flags::*;
pub use reply::*;
pub use request::*;
pub use uring::*;

/// Protocol version that this crate speaks. The kernel may offer a lower minor.
pub const KERNEL_VERSION: u32 = 7;
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest minor version that is accepted (Linux 4.20), which introduced MAX_PAGES and the present reply sizes.
pub const OLDEST_MINOR_VERSION: u32 = 28;

/// The nodeid of the root directory. Not an inode number of the file system: ext's root is inode 2.
pub const ROOT_ID: u64 = 1;

/// The kernel refuses reads from /dev/fuse into a smaller buffer.
pub const MIN_READ_BUFFER: usize = 8192;

/// Linux: `FUSE_NAME_MAX`, fs/fuse/fuse_i.h: a longer name in a directory reply fails the whole reply.
pub const NAME_MAX: usize = 1024;

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// The operations that the kernel requests. Linux: `enum fuse_opcode`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $value),* }

        impl Opcode {
            /// None for an opcode that this version does not know.
            pub fn from_raw(raw: u32) -> Option<Opcode> {
                match raw {
                    $($value => Some(Opcode::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

impl Opcode {
    /// False for messages that have no reply.
    pub fn has_reply(self) -> bool {
        !matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }
}

/// Unsolicited messages to the kernel. The code is sent in the error field of a header whose `unique` is 0. Linux:
/// `enum fuse_notify_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    InvalInode = 2,
    InvalEntry = 3,
    Retrieve = 5,
    Delete = 6,
    IncEpoch = 8,
}
