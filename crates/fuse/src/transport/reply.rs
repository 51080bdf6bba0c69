//! Reply objects: each answers one request, once, from any thread.
//!
//! An answer consumes its object. A reply that is dropped unanswered answers EIO. Answers that change the server's
//! counts (lookups, handles) return whether they were delivered.
//!
//! # Locking
//! None.

use std::cell::RefCell;
use std::io::IoSlice;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::buffer::Buffer;
use super::dirbuf::{DirAdd, DirBuf};
use super::origin::Origin;
use crate::abi;
use crate::error::Undelivered;
use crate::types::{Attr, Entry, OpenFlags, Statfs};

/// Largest READ that is answered whole; the kernel sends at most a MiB unless its limit was raised.
pub const FILL_MAX: usize = 16 << 20;
/// Smallest buffer for data that goes through the device, bytes.
const FILL_BUFFER_MIN: usize = 128 << 10;

thread_local! {
    static FILL_BUFFER: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// The duty to answer one request.
pub(crate) struct Pending {
    /// None once the request is answered.
    origin: Option<Origin>,
    unique: u64,
}

impl Pending {
    pub fn new(origin: Origin, unique: u64) -> Pending {
        Pending { origin: Some(origin), unique }
    }

    pub fn error(mut self, errno: Errno) {
        if let Some(origin) = self.origin.take() {
            origin.answer_error(self.unique, errno);
        }
    }

    fn empty(self) {
        let _ = self.pieces(&[]);
    }

    fn pieces(mut self, body: &[IoSlice<'_>]) -> Result<(), Undelivered> {
        match self.origin.take() {
            Some(origin) => origin.answer(self.unique, body),
            None => Err(Undelivered { errno: Errno::NOENT }),
        }
    }

    fn filled(mut self, len: usize) {
        if let Some(origin) = self.origin.take() {
            origin.answer_filled(self.unique, len);
        }
    }

    fn value<T: IntoBytes + Immutable>(self, value: &T) -> Result<(), Undelivered> {
        self.pieces(&[IoSlice::new(value.as_bytes())])
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(origin) = self.origin.take() {
            origin.answer_error(self.unique, Errno::IO);
        }
    }
}

macro_rules! reply {
    ($(#[$doc:meta])* $name:ident { $($field:ident : $ty:ty),* }) => {
        $(#[$doc])*
        #[must_use = "dropping a reply answers EIO"]
        pub struct $name {
            pending: Pending,
            $($field: $ty,)*
        }

        impl $name {
            pub(crate) fn new(pending: Pending, $($field: $ty),*) -> $name {
                $name { pending, $($field),* }
            }

            /// Answers with an error.
            pub fn error(self, errno: Errno) {
                self.pending.error(errno);
            }

            /// Answers that the operation is not implemented.
            pub fn nosys(self) {
                self.error(Errno::NOSYS);
            }

            /// The request's number, as INTERRUPT names it.
            pub fn unique(&self) -> u64 {
                self.pending.unique
            }
        }
    };
}

reply!(
    /// Answers with success and nothing else.
    ReplyEmpty {}
);
reply!(
    /// Answers LOOKUP and the operations that create names.
    ReplyEntry {}
);
reply!(
    /// Answers GETATTR and SETATTR.
    ReplyAttr {}
);
reply!(
    /// Answers STATX.
    ReplyStatx {}
);
reply!(
    /// Answers OPEN and OPENDIR.
    ReplyOpen {}
);
reply!(
    /// Answers CREATE and TMPFILE.
    ReplyCreate {}
);
reply!(
    /// Answers READ and READLINK with at most `size` bytes.
    ReplyData { size: usize }
);
reply!(
    /// Answers WRITE.
    ReplyWrite {}
);
reply!(
    /// Answers STATFS.
    ReplyStatfs {}
);
reply!(
    /// Answers GETXATTR and LISTXATTR: with the value, or with its length if the kernel requests only the length.
    ReplyXattr { size: usize }
);
reply!(
    /// Answers LSEEK.
    ReplyLseek {}
);
reply!(
    /// Answers COPY_FILE_RANGE in its 32-bit and 64-bit form.
    ReplyCopy { wide: bool }
);
reply!(
    /// Answers IOCTL.
    ReplyIoctl { out_size: usize }
);
reply!(
    /// Answers BMAP.
    ReplyBmap {}
);
reply!(
    /// Answers READDIR.
    ReplyDir { buf: DirBuf }
);
reply!(
    /// Answers READDIRPLUS.
    ReplyDirPlus { buf: DirBuf }
);

impl ReplyEmpty {
    pub fn ok(self) {
        self.pending.empty();
    }
}

impl ReplyEntry {
    /// Answers that the name refers to this inode. Once this is delivered, the kernel has one more reference to
    /// `entry.nodeid`.
    pub fn ok(self, entry: &Entry) -> Result<(), Undelivered> {
        self.pending.value(&entry.to_abi())
    }

    /// Answers that the name does not exist, which the kernel may cache for `valid`.
    pub fn negative(self, valid: Duration) {
        let out = abi::EntryOut {
            entry_valid: valid.as_secs(),
            entry_valid_nsec: valid.subsec_nanos(),
            ..abi::EntryOut::default()
        };
        let _ = self.pending.value(&out);
    }
}

impl ReplyAttr {
    /// Answers with attributes, which the kernel may cache for `valid`.
    pub fn ok(self, attr: &Attr, valid: Duration) {
        let out = abi::AttrOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            dummy: 0,
            attr: attr.to_abi(),
        };
        let _ = self.pending.value(&out);
    }
}

impl ReplyStatx {
    /// Answers with attributes, which the kernel may cache for `valid`.
    pub fn ok(self, attr: &Attr, valid: Duration) {
        let out = abi::StatxOut {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            stat: attr.to_statx(),
            ..abi::StatxOut::default()
        };
        let _ = self.pending.value(&out);
    }
}

fn open_out(fh: u64, flags: OpenFlags) -> abi::OpenOut {
    abi::OpenOut { fh, open_flags: flags.bits(), backing_id: 0 }
}

impl ReplyOpen {
    /// Answers with a handle. Once this is delivered, a RELEASE of `fh` will come.
    pub fn ok(self, fh: u64, flags: OpenFlags) -> Result<(), Undelivered> {
        self.pending.value(&open_out(fh, flags))
    }
}

impl ReplyCreate {
    /// Answers with a new file. Once this is delivered, the kernel has one more reference to `entry.nodeid`, and a
    /// RELEASE of `fh` will come.
    pub fn ok(self, entry: &Entry, fh: u64, flags: OpenFlags) -> Result<(), Undelivered> {
        self.pending.value(&abi::CreateOut { entry: entry.to_abi(), open: open_out(fh, flags) })
    }
}

impl ReplyData {
    /// The maximum length of the answer, bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn ok(self, data: &[u8]) {
        self.vectored(&[IoSlice::new(data)]);
    }

    /// Answers with the data that `fill` writes into a page-aligned buffer of [`size`](ReplyData::size) bytes, or of
    /// [`FILL_MAX`] if that is less. `fill` returns how many bytes there are. A ring sends the buffer without a copy.
    pub fn fill(mut self, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let size = self.size.min(FILL_MAX);
        let place = self.pending.origin.as_mut().and_then(Origin::payload).and_then(|p| p.get_mut(..size));
        if let Some(place) = place {
            return match fill(place) {
                Ok(n) => self.pending.filled(n.min(size)),
                Err(errno) => self.error(errno),
            };
        }
        FILL_BUFFER.with_borrow_mut(|buffer| {
            if buffer.as_mut().is_none_or(|b| b.payload().len() < size) {
                *buffer = Buffer::new(size.next_power_of_two().max(FILL_BUFFER_MIN));
            }
            let Some(buffer) = buffer else { return self.error(Errno::NOMEM) };
            match fill(&mut buffer.payload()[..size]) {
                Ok(n) => self.ok(&buffer.payload()[..n.min(size)]),
                Err(errno) => self.error(errno),
            }
        });
    }

    /// Answers with the concatenated pieces, without copying them into one buffer.
    pub fn vectored(self, pieces: &[IoSlice<'_>]) {
        let len: usize = pieces.iter().map(|p| p.len()).sum();
        if len > self.size {
            debug_assert!(false, "{len} bytes in a reply to a request for {}", self.size);
            return self.error(Errno::IO);
        }
        let _ = self.pending.pieces(pieces);
    }
}

impl ReplyWrite {
    /// Answers that `written` bytes were written.
    pub fn ok(self, written: u32) {
        let _ = self.pending.value(&abi::WriteOut { size: written, padding: 0 });
    }
}

impl ReplyStatfs {
    pub fn ok(self, st: &Statfs) {
        let out = abi::StatfsOut {
            blocks: st.blocks,
            bfree: st.bfree,
            bavail: st.bavail,
            files: st.files,
            ffree: st.ffree,
            bsize: st.bsize,
            namelen: st.namelen,
            frsize: st.frsize,
            ..abi::StatfsOut::default()
        };
        let _ = self.pending.value(&out);
    }
}

impl ReplyXattr {
    /// The size of the caller's buffer, bytes; 0 requests only the length.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Answers with `value`, its length, or ERANGE, according to the request's size.
    pub fn ok(self, value: &[u8]) {
        if self.size == 0 {
            self.length(value.len());
        } else if value.len() > self.size {
            self.error(Errno::RANGE);
        } else {
            let _ = self.pending.pieces(&[IoSlice::new(value)]);
        }
    }

    /// Answers a request for the length only (`size()` is 0).
    pub fn length(self, bytes: usize) {
        match u32::try_from(bytes) {
            Ok(size) if self.size == 0 => {
                let _ = self.pending.value(&abi::GetxattrOut { size, padding: 0 });
            }
            _ => self.error(Errno::RANGE),
        }
    }
}

impl ReplyLseek {
    pub fn ok(self, offset: u64) {
        let _ = self.pending.value(&abi::LseekOut { offset });
    }
}

impl ReplyCopy {
    /// Answers that `bytes` were copied.
    pub fn ok(self, bytes: u64) {
        let _ = if self.wide {
            self.pending.value(&abi::CopyFileRangeOut { bytes_copied: bytes })
        } else {
            let size = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.pending.value(&abi::WriteOut { size, padding: 0 })
        };
    }
}

impl ReplyIoctl {
    /// Makes ioctl(2) return `result` and `data`.
    pub fn ok(self, result: i32, data: &[u8]) {
        if data.len() > self.out_size {
            return self.error(Errno::IO);
        }
        let out = abi::IoctlOut { result, ..abi::IoctlOut::default() };
        let _ = self.pending.pieces(&[IoSlice::new(out.as_bytes()), IoSlice::new(data)]);
    }
}

impl ReplyBmap {
    pub fn ok(self, block: u64) {
        let _ = self.pending.value(&abi::BmapOut { block });
    }
}

impl ReplyDir {
    /// Adds an entry; see [`DirBuf::add`].
    pub fn add(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> DirAdd {
        self.buf.add(ino, next, kind, name)
    }

    /// Answers with the added entries; an empty reply means the end of the directory.
    pub fn ok(self) {
        let _ = self.pending.pieces(&[IoSlice::new(self.buf.as_bytes())]);
    }
}

impl ReplyDirPlus {
    /// Adds an entry. Once it is delivered, it counts as one lookup of `entry.nodeid`.
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> DirAdd {
        self.buf.add_plus(Some(entry), entry.attr.ino, next, (entry.attr.mode >> 12) & 15, name)
    }

    /// Adds an entry without attributes, which counts as no lookup ("." and "..").
    pub fn add_plain(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> DirAdd {
        self.buf.add_plus(None, ino, next, kind, name)
    }

    /// Answers with the added entries. On `Err` the kernel has counted none of them.
    pub fn ok(self) -> Result<(), Undelivered> {
        self.pending.pieces(&[IoSlice::new(self.buf.as_bytes())])
    }
}
