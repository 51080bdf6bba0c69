//! One asynchronous request (Linux: `struct bio`, include/linux/blk_types.h) and its completion.

use std::fmt;
use std::sync::Arc;

use crate::buf::AlignedBuf;
use crate::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BioOp {
    Read,
    Write,
    Flush,
    Discard,
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
    /// Linux: the `REQ_*` flags of the same names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BioFlags: u32 {
        /// File-system metadata.
        const META = 1;
        /// Somebody waits for it.
        const SYNC = 2;
        /// Durable when complete.
        const FUA = 4;
        /// Everything completed before this was submitted is made durable first.
        const PREFLUSH = 8;
        /// Readahead: may be dropped under load.
        const RAHEAD = 16;
    }
}

/// A piece of memory to write from. Holding the `Arc` keeps it stable: a writer that wants to change the buffer
/// meanwhile gets a copy (`Arc::make_mut`).
#[derive(Clone, Debug)]
pub struct BioVec {
    pub buf: Arc<AlignedBuf>,
    /// In bytes, within `buf`.
    pub offset: usize,
    pub len: usize,
}

impl BioVec {
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.offset..self.offset + self.len]
    }
}

/// The memory of a request.
#[derive(Debug)]
pub enum BioData {
    None,
    /// Written one after the other, from `Bio::offset` on.
    Write(Vec<BioVec>),
    /// Filled by the read and handed back in the [`Completion`].
    Read(AlignedBuf),
}

/// What happened to a [`Bio`].
#[derive(Debug)]
pub struct Completion {
    pub op: BioOp,
    /// In bytes.
    pub offset: u64,
    /// The memory that the bio brought; for a successful read, filled.
    pub data: BioData,
    pub result: Result<()>,
}

/// Called once when a bio has finished (Linux: `bi_end_io`). Must not block: it may run on the device's completion
/// thread or on the submitter itself, before `submit` returns.
pub trait EndIo: Send {
    fn end_io(self: Box<Self>, done: Completion);
}

impl<F: FnOnce(Completion) + Send> EndIo for F {
    fn end_io(self: Box<Self>, done: Completion) {
        (*self)(done)
    }
}

/// One request. `offset` and `len` are bytes and multiples of the device's logical block.
pub struct Bio {
    pub op: BioOp,
    pub flags: BioFlags,
    pub offset: u64,
    pub len: u64,
    pub data: BioData,
    pub end_io: Box<dyn EndIo>,
}

impl Bio {
    pub fn write(offset: u64, vecs: Vec<BioVec>, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        let len = vecs.iter().map(|v| v.len as u64).sum();
        Bio { op: BioOp::Write, flags, offset, len, data: BioData::Write(vecs), end_io }
    }

    pub fn read(offset: u64, buf: AlignedBuf, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        let len = buf.len() as u64;
        Bio { op: BioOp::Read, flags, offset, len, data: BioData::Read(buf), end_io }
    }

    /// Makes durable everything that has completed before the bio is submitted.
    pub fn flush(end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::Flush, flags: BioFlags::empty(), offset: 0, len: 0, data: BioData::None, end_io }
    }

    pub fn discard(offset: u64, len: u64, end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::Discard, flags: BioFlags::empty(), offset, len, data: BioData::None, end_io }
    }

    pub fn write_zeroes(offset: u64, len: u64, flags: BioFlags, end_io: Box<dyn EndIo>) -> Bio {
        Bio { op: BioOp::WriteZeroes, flags, offset, len, data: BioData::None, end_io }
    }

    /// Finishes the bio with `result`.
    pub fn complete(self, result: Result<()>) {
        self.end_io.end_io(Completion { op: self.op, offset: self.offset, data: self.data, result });
    }
}
