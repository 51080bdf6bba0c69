//! One operation, short enough to print.

use std::path::PathBuf;

/// The kinds of files that mknod makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    Fifo,
    Socket,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
}

/// The flag of renameat2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// The modes of fallocate. All except `Allocate` keep the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Falloc {
    Allocate,
    KeepSize,
    PunchHole,
    ZeroRange,
}

/// An operation; paths are relative to the directory that it is applied to. File content is derived from `fill`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        path: PathBuf,
        mode: u32,
    },
    Write {
        path: PathBuf,
        offset: u64,
        len: usize,
        fill: u64,
    },
    Append {
        path: PathBuf,
        len: usize,
        fill: u64,
    },
    Truncate {
        path: PathBuf,
        size: u64,
    },
    Fallocate {
        path: PathBuf,
        how: Falloc,
        offset: u64,
        len: u64,
    },
    Fsync {
        path: PathBuf,
    },
    /// Create, unlink, write and read back through the open file.
    UnlinkOpen {
        path: PathBuf,
        len: usize,
        fill: u64,
    },
    Unlink {
        path: PathBuf,
    },
    Mkdir {
        path: PathBuf,
        mode: u32,
    },
    Rmdir {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        mode: RenameMode,
    },
    Symlink {
        path: PathBuf,
        target: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Mknod {
        path: PathBuf,
        node: NodeType,
        mode: u32,
    },
    Chmod {
        path: PathBuf,
        mode: u32,
    },
    Chown {
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Access and modification time, as seconds and nanoseconds.
    Utimens {
        path: PathBuf,
        atime: (i64, u32),
        mtime: (i64, u32),
    },
    /// `flags`: 0, 1 (create) or 2 (replace).
    SetXattr {
        path: PathBuf,
        name: Vec<u8>,
        len: usize,
        fill: u64,
        flags: u32,
    },
    RemoveXattr {
        path: PathBuf,
        name: Vec<u8>,
    },
    /// `blob` is the value of `system.posix_acl_access` or `_default`.
    SetAcl {
        path: PathBuf,
        default: bool,
        blob: Vec<u8>,
    },
    RemoveAcl {
        path: PathBuf,
        default: bool,
    },
    /// Creates `count` empty files with names of `name_len` bytes; existing ones are kept.
    Fill {
        dir: PathBuf,
        count: u32,
        name_len: usize,
    },
    /// Removes every `every`th name of [`Op::Fill`].
    Thin {
        dir: PathBuf,
        count: u32,
        name_len: usize,
        every: u32,
    },
}

/// The names of [`Op::Fill`].
pub(super) fn bulk_name(i: u32, len: usize) -> String {
    let mut name = format!("e{i:05}-");
    while name.len() < len {
        name.push(char::from(b'a' + (name.len() as u32 * 7 + i) as u8 % 26));
    }
    name
}
