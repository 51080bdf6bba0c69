//! One asynchronous request (Linux: `struct bio`, include/linux/blk_types.h) and its completion.

use std::fmt;
use std::sync::Arc;

use crate::buf::AlignedBuf;
use crate::error::Result;

/// The operation of a request (Linux: `REQ_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BioOp {
    /// Fills memory from the device (`REQ_OP_READ`).
    Read,
    /// Writes memory to the device (`REQ_OP_WRITE`).
    Write,
    /// Makes durable all requests that completed before it (`REQ_OP_FLUSH`); has no range.
    Flush,
    /// The range no longer contains anything useful (`REQ_OP_DISCARD`). The device chooses the bytes that it then reads
    /// as.
    Discard,
    /// The range reads as zeros afterwards (`REQ_OP_WRITE_ZEROES`).
    WriteZeroes,
}

impl fmt::Display for BioOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BioOp::Read => "read",
            BioOp::Write => "write",
            BioOp::Flush => "flush",
            BioOp::Discard => "discard",
            BioOp::WriteZeroes => "write zeroes",
        })
    }
}

bitflags::bitflags! {
    /// Flags of a request (Linux: the `REQ_*` flags with the same names).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BioFlags: u32 {
        /// File-system metadata.
        const META = 1;
        /// A thread waits for it.
        const SYNC = 2;
        /// Durable when complete.
        const FUA = 4;
        /// Everything completed before this was submitted is made durable first.
        const PREFLUSH = 8;
        /// Readahead: may be dropped under load.
        const RAHEAD = 16;
        /// For a write of zeros: the device may free the storage, as Linux does without `REQ_NOUNMAP`.
        const UNMAP = 32;
    }
}

/// A piece of memory to write from. While the `Arc` is held, it does not change: a writer that wants to change the
/// buffer in the meantime gets a copy (`Arc::make_mut`).
#[derive(Clone, Debug)]
pub struct BioVec {
    /// Shared with the code that fills or caches it.
    pub buf: Arc<AlignedBuf>,
    /// The start within `buf`, in bytes.
    pub offset: usize,
    /// The length in bytes; `offset + len` is within `buf`.
    pub len: usize,
}

impl BioVec {
    /// The piece itself.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.offset..self.offset + self.len]
    }
}

/// The memory of a request.
#[derive(Debug)]
pub enum BioData {
    /// For operations without memory: flushes, discards, zeroing.
    None,
    /// The pieces are written one after the other, from `Bio::offset` on.
    Write(Vec<BioVec>),
    /// The memory is filled by the read and returned in the [`Completion`].
    Read(AlignedBuf),
}

/// The result of a [`Bio`].
#[derive(Debug)]
pub struct Completion {
    /// The bio's operation.
    pub op: BioOp,
    /// The bio's start in bytes.
    pub offset: u64,
    /// The memory of the bio; filled, for a successful read.
    pub data: BioData,
    /// The result of the whole bio. After an error, the contents of its range are unknown.
    pub result: Result<()>,
}

/// Called once when a bio has finished (Linux: `bi_end_io`). Must not block, because it may run on the device's
/// completion thread or on the submitter itself, before `submit` returns.
pub trait EndIo: Send {
    /// Takes the bio's result and its memory.
    fn end_io(self: Box<Self>, done: Completion);
}

impl<F: FnOnce(Completion) + Send> EndIo for F {
    fn end_io(self: Box<Self>, done: Completion) {
        (*self)(done)
    }
}

/// One request. `offset` and `len` are bytes and multiples of the device's logical block.
pub struct Bio {
    /// The operation.
    pub op: BioOp,
    /// The flags of the request: PREFLUSH, FUA, META …
    pub flags: BioFlags,
    /// The start in bytes.
    pub offset: u64,
    /// The length in bytes; 0 for a flush.
    pub len: u64,
    /// The memory from which the request writes, or into which it reads.
    pub data: BioData,
    /// Called once, even if the bio is rejected.
    pub end_io: Box<dyn EndIo>,
}

impl Bio {
    /// Writes the pieces one after the other, from byte `offset` on.
    pub fn write(offset: u64, vecs: Vec<BioVec>, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        let len = vecs.iter().map(|v| v.len as u64).sum();
        Bio { op: BioOp::Write, flags, offset, len, data: BioData::Write(vecs), end_io }
    }

    /// Fills `buf` from byte `offset` on; the [`Completion`] returns it.
    pub fn read(offset: u64, buf: AlignedBuf, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        let len = buf.len() as u64;
        Bio { op: BioOp::Read, flags, offset, len, data: BioData::Read(buf), end_io }
    }

    /// Makes durable everything that has completed before the bio is submitted.
    pub fn flush(end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::Flush, flags: BioFlags::empty(), offset: 0, len: 0, data: BioData::None, end_io }
    }

    /// Discards `len` bytes from `offset` on.
    pub fn discard(offset: u64, len: u64, end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::Discard, flags: BioFlags::empty(), offset, len, data: BioData::None, end_io }
    }

    /// Makes `len` bytes from `offset` on read as zeros. `flags` are the same as for a write.
    pub fn write_zeroes(offset: u64, len: u64, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::WriteZeroes, flags, offset, len, data: BioData::None, end_io }
    }

    /// Finishes the bio with `result`.
    pub fn complete(self, result: Result<()>) {
        self.end_io.end_io(Completion { op: self.op, offset: self.offset, data: self.data, result });
    }
}
