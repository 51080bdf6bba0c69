//! Directory replies: entries packed until the kernel's buffer is full.
//!
//! Main types: [`DirBuf`], [`DirAdd`].
//!
//! # Locking
//! None. Each thread keeps one spare buffer, so that listing a directory does not allocate.

use std::cell::Cell;

use zerocopy::IntoBytes;

use crate::abi::{Dirent, NAME_MAX};
use crate::types::Entry;

/// Largest buffer that is filled, bytes. If the kernel asks for more, it gets this much.
const LIMIT_MAX: usize = 1 << 20;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The outcome of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DirAdd {
    Added,
    /// The entry does not fit: it is not in the reply and must not be counted. Answer now.
    Full,
    /// The name is empty, too long, or contains '/' or NUL. The kernel would refuse the whole reply, so the entry was
    /// left out.
    BadName,
}

/// Entries of a READDIR or READDIRPLUS reply.
pub struct DirBuf {
    bytes: Vec<u8>,
    limit: usize,
}

impl DirBuf {
    /// A buffer for at most `limit` bytes (the size that the kernel requested).
    pub fn new(limit: usize) -> DirBuf {
        let mut bytes = SPARE.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        DirBuf { bytes, limit: limit.min(LIMIT_MAX) }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a READDIR entry. `next` is the cookie that continues after it; `kind` a DT_* value (file type >> 12).
    pub fn add(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> DirAdd {
        self.put(None, ino, next, kind, name)
    }

    /// Adds a READDIRPLUS entry, which counts as a lookup of `entry.nodeid`. Without `entry` it has no attributes and
    /// counts as no lookup ("." and "..", or an inode that could not be read).
    pub fn add_plus(&mut self, entry: Option<&Entry>, ino: u64, next: u64, kind: u32, name: &[u8]) -> DirAdd {
        let out = entry.map(|e| e.to_abi()).unwrap_or_default();
        self.put(Some(out.as_bytes()), ino, next, kind, name)
    }

    fn put(&mut self, lead: Option<&[u8]>, ino: u64, next: u64, kind: u32, name: &[u8]) -> DirAdd {
        if name.is_empty() || name.len() > NAME_MAX || name.iter().any(|&c| c == 0 || c == b'/') {
            return DirAdd::BadName;
        }
        let lead = lead.unwrap_or_default();
        let dirent_len = size_of::<Dirent>() + name.len();
        let padded_len = dirent_len.next_multiple_of(8);
        if self.bytes.len() + lead.len() + padded_len > self.limit {
            return DirAdd::Full;
        }
        if self.bytes.capacity() < self.limit {
            self.bytes.reserve_exact(self.limit - self.bytes.len());
        }
        self.bytes.extend_from_slice(lead);
        let dirent = Dirent { ino, off: next, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(&[0; 8][..padded_len - dirent_len]);
        DirAdd::Added
    }
}

impl Drop for DirBuf {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // Cannot fail on a worker; a thread that is ending needs no spare buffer.
        let _ = SPARE.try_with(|s| s.set(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_does_not_fit_leaves_the_buffer_unchanged() {
        let mut b = DirBuf::new(64);
        assert_eq!(b.add(11, 1, 8, b"abcdefgh"), DirAdd::Added);
        assert_eq!(b.as_bytes().len(), 32);
        assert_eq!(b.add(12, 2, 8, b"abcdefghi"), DirAdd::Full);
        assert_eq!(b.as_bytes().len(), 32);
        assert_eq!(b.add(12, 2, 8, b"b"), DirAdd::Added);
        assert_eq!(b.as_bytes().len(), 64);
        assert_eq!(b.add(13, 3, 8, b"c"), DirAdd::Full);
    }

    #[test]
    fn names_that_the_kernel_would_refuse_are_left_out() {
        let mut b = DirBuf::new(4096);
        for name in [&b""[..], b"a/b", b"a\0b", &[b'x'; NAME_MAX + 1]] {
            assert_eq!(b.add(1, 1, 8, name), DirAdd::BadName);
        }
        assert!(b.is_empty());
    }

    #[test]
    fn plus_entries_are_larger() {
        let mut b = DirBuf::new(4096);
        assert_eq!(b.add_plus(None, 1, 1, 4, b"."), DirAdd::Added);
        assert_eq!(b.as_bytes().len(), 128 + 32);
    }
}
