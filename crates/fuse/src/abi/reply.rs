//! Messages to the kernel. Linux: `struct fuse_*_out`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// The header of every reply. `error` is 0 or a negated errno.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
}
wire! {
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
}
wire! {
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
}
wire! { AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr } }
wire! { SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 } }
wire! {
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
wire! { StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx } }
wire! { OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 } }
wire! { CreateOut = 144 { entry: EntryOut, open: OpenOut } }
wire! {
    /// WRITE and COPY_FILE_RANGE.
    WriteOut = 8 { size: u32, padding: u32 }
}
wire! { CopyFileRangeOut = 8 { bytes_copied: u64 } }
wire! {
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
}
wire! { GetxattrOut = 8 { size: u32, padding: u32 } }
wire! { BmapOut = 8 { block: u64 } }
wire! { IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 } }
wire! { LseekOut = 8 { offset: u64 } }
wire! {
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
}
wire! {
    /// Header of one READDIR entry; the name follows, padded with NUL to 8 bytes. `kind` is a DT_* value.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}
wire! { NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64 } }
wire! { NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 } }
wire! { NotifyDeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 } }
wire! { NotifyRetrieveOut = 32 { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 } }
