//! Messages from the kernel. Linux: `struct fuse_*_in`. Names (terminated by NUL) and data follow these structures.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// The header of every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
}
wire! {
    /// The part that every kernel sends; from 7.36 on `flags2` and spare words follow.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
}
wire! { InitInExt = 48 { flags2: u32, unused: [u32; 11] } }
wire! { ForgetIn = 8 { nlookup: u64 } }
wire! {
    /// The kernel drops `nlookup` references to `nodeid`.
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
}
wire! { BatchForgetIn = 8 { count: u32, dummy: u32 } }
wire! { GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 } }
wire! { StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 } }
wire! { MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 } }
wire! { MkdirIn = 8 { mode: u32, umask: u32 } }
wire! { RenameIn = 8 { newdir: u64 } }
wire! { Rename2In = 16 { newdir: u64, flags: u32, padding: u32 } }
wire! { LinkIn = 8 { oldnodeid: u64 } }
wire! {
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
}
wire! { OpenIn = 8 { flags: u32, open_flags: u32 } }
wire! {
    /// CREATE and TMPFILE.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
}
wire! { ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 } }
wire! { FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 } }
wire! {
    /// READ, READDIR and READDIRPLUS.
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
}
wire! {
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
}
wire! { FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 } }
wire! {
    /// The part that is sent even without SETXATTR_EXT.
    SetxattrIn = 8 { size: u32, flags: u32 }
}
wire! { SetxattrInExt = 8 { setxattr_flags: u32, padding: u32 } }
wire! {
    /// GETXATTR and LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32 }
}
wire! { AccessIn = 8 { mask: u32, padding: u32 } }
wire! { InterruptIn = 8 { unique: u64 } }
wire! { BmapIn = 16 { block: u64, blocksize: u32, padding: u32 } }
wire! { IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 } }
wire! { FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 } }
wire! { LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 } }
wire! {
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
wire! { SyncfsIn = 8 { padding: u64 } }
