//! Descriptor blocks: the home addresses of the copies that follow them in the log.
//!
//! The header is followed by tags, one for each copy. The first tag of each descriptor is followed by the journal's
//! uuid, and later ones have the flag "same uuid"; the last tag has its own flag. With V2/V3 checksums, the last four
//! bytes of the block are its checksum.
//!
//! # Locking
//! None.

use super::{BlockHeader, BlockKind, HEADER_BYTES, LogCsum, LogFormat, MAGIC, Tid, crc32c};
use crate::units::BlockNr;

const UUID_BYTES: usize = 16;

bitflags::bitflags! {
    /// Linux: `JBD2_FLAG_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TagFlags: u16 {
        /// The original block begins with the journal's magic number, which is zeroed in the log.
        const ESCAPE = 1;
        /// No uuid follows the tag.
        const SAME_UUID = 2;
        /// The transaction deleted the block; no writer has ever set this.
        const DELETED = 4;
        /// This is the last tag of its descriptor.
        const LAST_TAG = 8;
        const _ = !0;
    }
}

/// One copy that a descriptor lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The home block of the copy.
    pub block: BlockNr,
    /// Whether the copy is escaped, and the tag's other flags.
    pub flags: TagFlags,
    /// The crc32c of the copy in the log; 16 bits of it with V2, 0 if the format has none.
    pub checksum: u32,
}

impl Tag {
    /// Whether `data`, a copy in the log of transaction `tid`, matches the tag. Always true if the format has no
    /// checksums.
    pub fn matches(&self, format: &LogFormat, tid: Tid, data: &[u8]) -> bool {
        match format.csum {
            LogCsum::V3 => tag_checksum(format.seed, tid, data) == self.checksum,
            LogCsum::V2 => tag_checksum(format.seed, tid, data) & 0xFFFF == self.checksum,
            LogCsum::V1 | LogCsum::None => true,
        }
    }

    /// Whether the home block begins with the magic number, which the log replaces by zeros.
    pub fn is_escaped(&self) -> bool {
        self.flags.contains(TagFlags::ESCAPE)
    }
}

/// The checksum of a copy in transaction `tid` (Linux: `jbd2_block_tag_csum_set`). `data` is the copy in the log, after
/// [`escape`].
pub fn tag_checksum(seed: u32, tid: Tid, data: &[u8]) -> u32 {
    crc32c(crc32c(seed, &tid.0.to_be_bytes()), data)
}

/// Whether a block begins with the magic number, so that in the log it would look like a jbd2 block.
pub fn needs_escape(image: &[u8]) -> bool {
    image.starts_with(&MAGIC.to_be_bytes())
}

/// Zeroes the first four bytes of a copy, for the log.
pub fn escape(copy: &mut [u8]) {
    copy[..4].fill(0);
}

/// Restores the magic number in a copy whose tag has [`TagFlags::ESCAPE`].
pub fn unescape(copy: &mut [u8]) {
    copy[..4].copy_from_slice(&MAGIC.to_be_bytes());
}

/// Builds a descriptor block. Push up to [`capacity`](Self::capacity) tags, then call `finish`.
#[derive(Debug)]
pub struct DescriptorBuilder<'a> {
    format: &'a LogFormat,
    tid: Tid,
    tags: Vec<Tag>,
}

impl<'a> DescriptorBuilder<'a> {
    /// A descriptor without tags.
    pub fn new(format: &'a LogFormat, tid: Tid) -> DescriptorBuilder<'a> {
        DescriptorBuilder { format, tid, tags: Vec::new() }
    }

    /// The number of tags that fit in one descriptor. Like the kernel's writer, this stops where another uuid would not
    /// fit, so that all readers agree on whether there is room for one more.
    pub const fn capacity_of(format: &LogFormat) -> usize {
        let room = format.block_size - HEADER_BYTES - UUID_BYTES - format.tail_bytes();
        (room - UUID_BYTES) / format.tag_bytes()
    }

    /// The number of tags that fit.
    pub fn capacity(&self) -> usize {
        Self::capacity_of(self.format)
    }

    /// The number of tags added since the last block was written.
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Adds the copy of home block `block`. `checksum` is its [`tag_checksum`] (ignored if the format has none).
    /// `escaped` means that the first four bytes of the copy were zeroed. Returns true if the descriptor is now full.
    pub fn push(&mut self, block: BlockNr, escaped: bool, checksum: u32) -> bool {
        debug_assert!(self.tags.len() < self.capacity(), "descriptor of {} is full", self.tid);
        debug_assert!(block.0 <= self.format.max_block(), "{block} does not fit a tag");
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, !self.tags.is_empty());
        self.tags.push(Tag { block, flags, checksum });
        self.tags.len() >= self.capacity()
    }

    /// Writes the descriptor to `buf` (one block, overwritten completely), and empties the builder for the next one.
    pub fn finish(&mut self, buf: &mut [u8]) {
        assert_eq!(buf.len(), self.format.block_size);
        BlockHeader { kind: BlockKind::Descriptor, tid: self.tid }.start(buf);
        if let Some(last) = self.tags.last_mut() {
            last.flags |= TagFlags::LAST_TAG;
        }
        let mut at = HEADER_BYTES;
        for tag in self.tags.drain(..) {
            put_tag(self.format, &tag, &mut buf[at..at + self.format.tag_bytes()]);
            at += self.format.tag_bytes();
            if !tag.flags.contains(TagFlags::SAME_UUID) {
                buf[at..at + UUID_BYTES].copy_from_slice(&self.format.uuid);
                at += UUID_BYTES;
            }
        }
        self.format.set_tail(buf);
    }
}

fn put_tag(format: &LogFormat, tag: &Tag, out: &mut [u8]) {
    let (low, high) = (tag.block.0 as u32, (tag.block.0 >> 32) as u32);
    out[0..4].copy_from_slice(&low.to_be_bytes());
    if format.csum == LogCsum::V3 {
        out[4..8].copy_from_slice(&u32::from(tag.flags.bits()).to_be_bytes());
        out[8..12].copy_from_slice(&if format.wide { high } else { 0 }.to_be_bytes());
        out[12..16].copy_from_slice(&tag.checksum.to_be_bytes());
        return;
    }
    if format.csum == LogCsum::V2 {
        out[4..6].copy_from_slice(&(tag.checksum as u16).to_be_bytes());
    }
    out[6..8].copy_from_slice(&tag.flags.bits().to_be_bytes());
    if format.wide {
        out[8..12].copy_from_slice(&high.to_be_bytes());
    }
}

/// The tags of a descriptor block, in order. Ends at the last tag or at the end of the block, for any content of the
/// block.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    format: &'a LogFormat,
    block: &'a [u8],
    at: usize,
    done: bool,
}

/// Reads the tags of `block`. The caller has checked the header and, optionally, [`LogFormat::tail_valid`].
pub fn descriptor_tags<'a>(format: &'a LogFormat, block: &'a [u8]) -> Tags<'a> {
    Tags { format, block, at: HEADER_BYTES, done: false }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let size = self.format.tag_bytes();
        if self.done || self.at + size > self.block.len().saturating_sub(self.format.tail_bytes()) {
            return None;
        }
        let raw = &self.block[self.at..self.at + size];
        let be16 = |at: usize| u16::from_be_bytes([raw[at], raw[at + 1]]);
        let be32 = |at: usize| u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let high = if self.format.wide { be32(8) } else { 0 };
        let checksum = match self.format.csum {
            LogCsum::V3 => be32(12),
            LogCsum::V2 => u32::from(be16(4)),
            LogCsum::V1 | LogCsum::None => 0,
        };
        // V3 has 32 bits of flags at byte 4. Their low half is in the same place as the flags of the other formats.
        let flags = TagFlags::from_bits_retain(be16(6));
        self.at += size;
        if !flags.contains(TagFlags::SAME_UUID) {
            self.at += UUID_BYTES;
        }
        self.done = flags.contains(TagFlags::LAST_TAG);
        Some(Tag { block: BlockNr(u64::from(high) << 32 | u64::from(be32(0))), flags, checksum })
    }
}
