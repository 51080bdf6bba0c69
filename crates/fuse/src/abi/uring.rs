//! FUSE over io_uring: the structures that a ring shares with the kernel. Linux: `struct fuse_uring_*`,
//! include/uapi/linux/fuse.h, 6.14.
//!
//! # Locking
//! None.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Room for [`InHeader`](super::InHeader) or [`OutHeader`](super::OutHeader), and for an operation's own header.
pub const URING_HEADER: usize = 128;

wire! {
    /// Linux: `struct fuse_uring_ent_in_out`.
    UringEntInOut = 32 {
        flags: u64,
        /// The number under which the reply is committed.
        commit_id: u64,
        /// Bytes of the payload: from the kernel with a request, to it with a reply.
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }
}

/// The header of one entry of a ring. Linux: `struct fuse_uring_req_header`.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringReqHeader {
    /// `InHeader` of a request, `OutHeader` of a reply.
    pub in_out: [u8; URING_HEADER],
    /// A request's first structure, for example `WriteIn`.
    pub op_in: [u8; URING_HEADER],
    pub ent: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);

wire! {
    /// The command, in its entry of the submission queue. Linux: `struct fuse_uring_cmd_req`.
    UringCmdReq = 24 {
        flags: u64,
        commit_id: u64,
        /// The queue's number, which is a processor's.
        qid: u16,
        padding: [u8; 6],
    }
}

/// Linux: `FUSE_IO_URING_CMD_REGISTER`: an entry waits for its first request.
pub const URING_REGISTER: u32 = 1;
/// Linux: `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: sends a reply, and the entry waits for its next request.
pub const URING_COMMIT_AND_FETCH: u32 = 2;
