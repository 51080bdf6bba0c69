//! Fast commits (Linux: fs/ext4/fast_commit.h): the fsyncs since the newest full commit, as a list of changes.
//!
//! Main types: [`FastCommit`] (one fsync), [`FastCommitRecord`] (one change), [`FastCommitScan`] (reads the blocks of
//! the fast-commit area in order and finds its end).
//!
//! A fast commit begins at the start of a block and ends with a tail record, which fills its block. The tail contains
//! the checksum of all records of the commit (raw crc32c from 0, including the tail up to its transaction number). The
//! first fast commit of the area begins with a head record. Records do not cross blocks; a pad record fills the rest,
//! unless the rest is shorter than a record's header. All numbers are little-endian, unlike in the rest of the journal.
//!
//! What it does not do: lay fast commits out ([`super::FastCommitWriter`]); check whether an inode or a block exists;
//! `extant-fs` applies the changes.
//!
//! # Locking
//! None.

use super::Tid;
use crate::csum::crc32c;
use crate::error::{Error, Result, Structure};
use crate::extent::{ENTRY_BYTES, Extent};
use crate::inode::GOOD_OLD_INODE_SIZE;
use crate::{InodeNr, LogicalBlock};

/// Bytes of a record's header: tag and length of the body.
pub(super) const HEADER_BYTES: usize = 4;
/// The most bytes of records in an area that a recovery accepts: in memory, they take five times as much. Linux's area
/// has 256 blocks unless mke2fs is told otherwise, and most of their bytes are pads.
pub const FAST_COMMIT_BYTES_MAX: usize = 8 << 20;
/// The longest name of a directory entry.
const NAME_MAX: usize = 255;

pub(super) const TAG_ADD_RANGE: u16 = 1;
pub(super) const TAG_DEL_RANGE: u16 = 2;
pub(super) const TAG_CREATE: u16 = 3;
pub(super) const TAG_LINK: u16 = 4;
pub(super) const TAG_UNLINK: u16 = 5;
pub(super) const TAG_INODE: u16 = 6;
pub(super) const TAG_PAD: u16 = 7;
pub(super) const TAG_TAIL: u16 = 8;
pub(super) const TAG_HEAD: u16 = 9;

/// The place where a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCommitPlace {
    /// The block, counted from the start of the journal.
    pub log_block: u32,
    /// The byte within the block.
    pub offset: u32,
}

impl std::fmt::Display for FastCommitPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the fast commit at log block {}, byte {}", self.log_block, self.offset)
    }
}

/// The directory entry that a change affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastCommitName {
    /// The directory.
    pub parent: InodeNr,
    /// The inode that the name refers to.
    pub ino: InodeNr,
    /// The name, 1 to 255 bytes.
    pub name: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastCommitRecord {
    /// Blocks are added to a file (Linux: `EXT4_FC_TAG_ADD_RANGE`); the length is at least 1.
    AddRange {
        /// The file.
        ino: InodeNr,
        /// The extent that maps them.
        extent: Extent,
    },
    /// Blocks are removed from a file (Linux: `EXT4_FC_TAG_DEL_RANGE`).
    DelRange {
        /// The file.
        ino: InodeNr,
        /// The first block of the hole.
        lblk: LogicalBlock,
        /// The number of blocks; the range may extend past the end of a map.
        len: u32,
    },
    /// A new inode gets its first name; the inode's own record comes before this one (Linux: `EXT4_FC_TAG_CREAT`).
    Create(FastCommitName),
    /// An inode gets a further name (Linux: `EXT4_FC_TAG_LINK`).
    Link(FastCommitName),
    /// An inode loses a name (Linux: `EXT4_FC_TAG_UNLINK`).
    Unlink(FastCommitName),
    /// The fields of an inode change (Linux: `EXT4_FC_TAG_INODE`).
    Inode {
        /// The inode number.
        ino: InodeNr,
        /// The first bytes of the inode, at least 128: all fields, without the attributes after them. `i_block` is a
        /// copy of the one in memory; the map of a file is in its ranges instead.
        raw: Vec<u8>,
    },
}

/// The changes of one fsync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastCommit {
    /// The changes, in the order in which they are applied.
    pub records: Vec<(FastCommitPlace, FastCommitRecord)>,
}

/// Reads the fast-commit area block by block (Linux: `ext4_fc_replay_scan`).
pub struct FastCommitScan {
    tid: Tid,
    crc: u32,
    /// The commit that is being read.
    open: FastCommit,
    /// An invalid record in it. It is damage if the checksum proves that it was written so, otherwise a leftover.
    odd: Option<Error>,
    /// Whether the head record has been read.
    begun: bool,
    /// The bytes of the changes in `open` and `done`.
    bytes: usize,
    done: Vec<FastCommit>,
}

/// The next step after a record.
enum Step {
    /// More records of the same commit may follow in the block.
    Next,
    /// A commit is complete, and nothing more follows in its block.
    Complete,
    /// These bytes were not written to the area since the newest full commit.
    End,
}

impl FastCommitScan {
    /// `tid` is the first transaction that is not in the log; fast commits contain its first changes.
    pub fn new(tid: Tid) -> FastCommitScan {
        let open = FastCommit::default();
        FastCommitScan { tid, crc: 0, open, odd: None, begun: false, bytes: 0, done: Vec::new() }
    }

    /// Reads the next block. Returns false if neither this block nor any later one belongs to a commit of this
    /// transaction. A commit that a power cut has torn was never acknowledged, so it may be dropped.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Unsupported`] for a complete commit with an invalid record.
    pub fn block(&mut self, log_block: u32, bytes: &[u8]) -> Result<bool> {
        let mut at = 0;
        while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
            let (tag, len) = (le16_at(header, 0), usize::from(le16_at(header, 2)));
            let Some(value) = bytes.get(at + HEADER_BYTES..at + HEADER_BYTES + len) else { return Ok(false) };
            let record = &bytes[at..at + HEADER_BYTES + len];
            let place = FastCommitPlace { log_block, offset: at as u32 };
            match self.record(place, tag, value, record)? {
                Step::Next => at += record.len(),
                Step::Complete => return Ok(true),
                Step::End => return Ok(false),
            }
        }
        Ok(self.begun)
    }

    /// Whether the records are more than [`FAST_COMMIT_BYTES_MAX`]; then the caller stops.
    pub fn is_too_long(&self) -> bool {
        self.bytes > FAST_COMMIT_BYTES_MAX
    }

    /// The complete commits, in order.
    pub fn finish(self) -> Vec<FastCommit> {
        self.done
    }

    fn record(&mut self, place: FastCommitPlace, tag: u16, value: &[u8], record: &[u8]) -> Result<Step> {
        match tag {
            TAG_HEAD if value.len() == 8 => {
                if le32_at(value, 4) != self.tid.0 {
                    return Ok(Step::End);
                }
                self.begun = true;
                if le32_at(value, 0) != 0 {
                    let detail = format!("{place}: features {:#x}", le32_at(value, 0));
                    self.odd.get_or_insert(Error::unsupported(detail));
                }
            }
            _ if !self.begun => return Ok(Step::End),
            TAG_TAIL => return self.tail(value, record),
            TAG_PAD => {}
            // The commit is dropped or refused as a whole: what follows matters only for its checksum.
            _ if self.odd.is_some() => {}
            _ => match decode(tag, value) {
                Ok(change) => {
                    self.bytes += record.len();
                    self.open.records.push((place, change));
                }
                Err(detail) => {
                    let detail = format!("byte {}: {detail}", place.offset);
                    self.odd = Some(Error::corrupt(Structure::FastCommit, place.log_block, detail));
                }
            },
        }
        self.crc = crc32c(self.crc, record);
        Ok(Step::Next)
    }

    fn tail(&mut self, value: &[u8], record: &[u8]) -> Result<Step> {
        if value.len() < 8 || le32_at(value, 0) != self.tid.0 {
            return Ok(Step::End);
        }
        let crc = crc32c(self.crc, &record[..HEADER_BYTES + 4]);
        if crc != le32_at(value, 4) {
            return Ok(Step::End);
        }
        self.crc = 0;
        if let Some(e) = self.odd.take() {
            return Err(e);
        }
        self.done.push(std::mem::take(&mut self.open));
        Ok(Step::Complete)
    }
}

fn le16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn decode(tag: u16, value: &[u8]) -> std::result::Result<FastCommitRecord, String> {
    let wrong = || format!("{} bytes in a record with tag {tag}", value.len());
    let ino = |at| InodeNr(le32_at(value, at));
    match tag {
        TAG_ADD_RANGE => {
            let raw: &[u8; ENTRY_BYTES] = value.get(4..).and_then(|v| v.try_into().ok()).ok_or_else(wrong)?;
            let extent = Extent::decode(raw);
            if extent.len == 0 {
                return Err("a range of 0 blocks".to_owned());
            }
            Ok(FastCommitRecord::AddRange { ino: ino(0), extent })
        }
        TAG_DEL_RANGE if value.len() == 12 => Ok(FastCommitRecord::DelRange {
            ino: ino(0),
            lblk: LogicalBlock(le32_at(value, 4)),
            len: le32_at(value, 8),
        }),
        TAG_CREATE | TAG_LINK | TAG_UNLINK if (9..=8 + NAME_MAX).contains(&value.len()) => {
            let name = FastCommitName { parent: ino(0), ino: ino(4), name: value[8..].to_vec() };
            Ok(match tag {
                TAG_CREATE => FastCommitRecord::Create(name),
                TAG_LINK => FastCommitRecord::Link(name),
                _ => FastCommitRecord::Unlink(name),
            })
        }
        TAG_INODE if value.len() >= 4 + GOOD_OLD_INODE_SIZE => {
            Ok(FastCommitRecord::Inode { ino: ino(0), raw: value[4..].to_vec() })
        }
        TAG_DEL_RANGE | TAG_CREATE | TAG_LINK | TAG_UNLINK | TAG_INODE | TAG_HEAD => Err(wrong()),
        _ => Err(format!("unknown tag {tag}")),
    }
}
