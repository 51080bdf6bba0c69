//! The journal's superblock: 1024 bytes at the start of journal block 0 (Linux: `struct journal_superblock_s`).
//!
//! All fields that change while the journal is in use are in the first 512 bytes. So writing those bytes
//! ([`JournalSuperBlock::live_bytes`]) updates the superblock in one sector.
//!
//! # Locking
//! None.

use std::ops::Range;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::damage::{JournalContext, JournalSuperDamage};
use super::{
    BlockKind, DEFAULT_FAST_COMMIT_BLOCKS, LogCsum, LogFormat, MAGIC, MIN_LOG_BLOCKS, RawBlockHeader,
    SUPER_BLOCK_BYTES, SUPER_BLOCK_LIVE_BYTES, Tid, crc32c,
};
use crate::damage::first;
use crate::error::Result;
use crate::superblock::JournalDevice;

/// The start of the UUID of a journal that Extant has added to an image without one, for the duration of a mount. The
/// kernel and e2fsprogs use the UUID only of journals on other devices; they preserve this one.
const BORROWED_MARK: [u8; 8] = *b"ExtantBJ";

/// The value of `s_checksum_type` for crc32c (Linux: `JBD2_CRC32C_CHKSUM`).
pub(super) const CRC32C_CHKSUM: u8 = 4;

bitflags::bitflags! {
    /// Linux: `JBD2_FEATURE_COMPAT_*`. Unknown bits are harmless and preserved.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompatFeatures: u32 {
        /// Commit blocks contain a crc32 of their transaction.
        const CHECKSUM = 1;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Linux: `JBD2_FEATURE_INCOMPAT_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct IncompatFeatures: u32 {
        /// The log has revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// A commit block may reach the disk before the rest of its transaction.
        const ASYNC_COMMIT = 0x4;
        /// Each block of the log has a checksum, and the tags have checksums cut to 16 bits.
        const CSUM_V2 = 0x8;
        /// As `CSUM_V2`, with 32 bits in tags, which all have the same size.
        const CSUM_V3 = 0x10;
        /// The last blocks of the journal are a fast-commit area.
        const FAST_COMMIT = 0x20;
    }
}

bitflags::bitflags! {
    /// No read-only compatible feature has been defined.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RoCompatFeatures: u32 {}
}

/// Linux: `struct journal_superblock_s`, include/linux/jbd2.h.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawJournalSuperBlock {
    /// Magic number and version: [`BlockKind::SuperBlockV1`] or [`BlockKind::SuperBlockV2`].
    pub s_header: RawBlockHeader,
    /// Block size in bytes.
    pub s_blocksize: U32,
    /// Number of blocks in the journal, including this one and the fast-commit area.
    pub s_maxlen: U32,
    /// First block of the log.
    pub s_first: U32,
    /// The transaction that the log begins with.
    pub s_sequence: U32,
    /// Block where the log begins; 0 if there is nothing to replay.
    pub s_start: U32,
    /// A negative Linux error number that aborted the journal; 0 if none.
    pub s_errno: U32,
    /// `JBD2_FEATURE_COMPAT_*`. This field and the following ones exist only in version 2.
    pub s_feature_compat: U32,
    /// `JBD2_FEATURE_INCOMPAT_*`.
    pub s_feature_incompat: U32,
    /// `JBD2_FEATURE_RO_COMPAT_*`: none is defined.
    pub s_feature_ro_compat: U32,
    /// The journal's own uuid, which seeds its checksums.
    pub s_uuid: [u8; 16],
    /// Number of file systems that share the journal.
    pub s_nr_users: U32,
    /// Block with a copy of the changing part; not used.
    pub s_dynsuper: U32,
    /// Maximum number of log blocks in one transaction; not used by Linux.
    pub s_max_transaction: U32,
    /// Maximum number of data blocks in one transaction; not used by Linux.
    pub s_max_trans_data: U32,
    /// 1 CRC32, 2 MD5, 3 SHA1, 4 CRC32C; this format only ever uses 1 and 4.
    pub s_checksum_type: u8,
    /// Preserved.
    pub s_padding2: [u8; 3],
    /// Number of blocks in the fast-commit area; 0 means the default.
    pub s_num_fc_blks: U32,
    /// Block where the log ends; current only while the file system is clean.
    pub s_head: U32,
    /// Preserved.
    pub s_padding: [u8; 160],
    /// CRC32C of these 1024 bytes, with 0 in place of this field.
    pub s_checksum: U32,
    /// The uuids of the file systems that share the journal, 16 bytes each.
    pub s_users: [u8; 768],
}

const _: () = assert!(size_of::<RawJournalSuperBlock>() == SUPER_BLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(RawJournalSuperBlock, s_errno) == 0x20);
const _: () = assert!(std::mem::offset_of!(RawJournalSuperBlock, s_uuid) == 0x30);
const _: () = assert!(std::mem::offset_of!(RawJournalSuperBlock, s_checksum_type) == 0x50);
const _: () = assert!(std::mem::offset_of!(RawJournalSuperBlock, s_head) == 0x58);
const _: () = assert!(std::mem::offset_of!(RawJournalSuperBlock, s_checksum) == 0xFC);

/// The ring of log blocks, as block numbers within the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The first block of the log, inclusive.
    pub first: u32,
    /// The end of the log, exclusive (Linux: `j_last`).
    pub last: u32,
}

impl LogRange {
    /// The block after `block`, wrapping at the end.
    pub fn next(&self, block: u32) -> u32 {
        if block + 1 >= self.last { self.first } else { block + 1 }
    }

    /// The `n`th block after `block`, wrapping at the end. `block` lies in the range.
    pub fn advance(&self, block: u32, n: u32) -> u32 {
        let at = u64::from(block - self.first) + u64::from(n);
        self.first + (at % u64::from(self.len())) as u32
    }

    /// The number of blocks from `from` forward to `to`, both in the range; 0 if they are equal.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.len() - (from - to) }
    }

    /// The number of blocks.
    pub fn len(&self) -> u32 {
        self.last - self.first
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.last == self.first
    }

    /// Whether the range contains this block of the journal.
    pub fn contains(&self, block: u32) -> bool {
        (self.first..self.last).contains(&block)
    }
}

/// The validated superblock of the journal. Public fields may be changed. `encode` writes them over the bytes that were
/// read, so that unknown fields are preserved.
#[derive(Clone, Debug)]
pub struct JournalSuperBlock {
    raw: Box<RawJournalSuperBlock>,
    /// False for the old format without feature words.
    pub v2: bool,
    /// The block size, in bytes.
    pub block_size: u32,
    /// The number of blocks in the journal, including the superblock.
    pub max_len: u32,
    /// The first block of the log.
    pub first: u32,
    /// The transaction that begins at `start`; for an empty log, the newest number that may have been used.
    pub sequence: Tid,
    /// The first block of the log; 0 means that the log is empty.
    pub start: u32,
    /// A negative Linux error number that aborted the journal; 0 if none.
    pub errno: i32,
    /// Features that a reader may ignore.
    pub compat: CompatFeatures,
    /// Features that recovery must support.
    pub incompat: IncompatFeatures,
    /// Features that a writer must support.
    pub ro_compat: RoCompatFeatures,
    /// The journal's own uuid.
    pub uuid: [u8; 16],
    /// The number of file systems that share the journal.
    pub nr_users: u32,
    /// The stored value; 0 means [`DEFAULT_FAST_COMMIT_BLOCKS`].
    pub num_fc_blocks: u32,
    /// The block where the log ended at the last clean close. Ignore it if it is 0 or invalid.
    pub head: u32,
}

/// The offset of the list of users in the superblock.
const USERS_AT: usize = std::mem::offset_of!(RawJournalSuperBlock, s_users);

impl JournalSuperBlock {
    /// Decodes and validates the first 1024 bytes of journal block 0. `block_size` is the file system's block size in
    /// bytes.
    ///
    /// # Errors
    /// `Corrupt` for a broken rule or a wrong checksum; `Unsupported` for a feature that is not supported.
    pub fn decode(bytes: &[u8], block_size: u32) -> Result<JournalSuperBlock> {
        let context = JournalContext { block_size, blocks: None };
        let mut superblock = None;
        let fatal = first(|mut sink| superblock = JournalSuperBlock::parse(bytes, &context, &mut sink));
        match (fatal, superblock) {
            (None, Some(superblock)) => Ok(superblock),
            (Some(damage), _) => Err(damage.error()),
            (None, None) => Err(JournalSuperDamage::Length { found: bytes.len() as u32 }.error()),
        }
    }

    /// Reports all faults in the first 1024 bytes of journal block 0. Returns the superblock if it describes a log at
    /// all. Unknown features are not included in it, so it must not be written. A mount uses
    /// [`JournalSuperBlock::decode`].
    pub fn parse(
        bytes: &[u8],
        context: &JournalContext,
        sink: &mut impl FnMut(JournalSuperDamage),
    ) -> Option<JournalSuperBlock> {
        let Ok((raw, _)) = RawJournalSuperBlock::read_from_prefix(bytes) else {
            sink(JournalSuperDamage::Length { found: bytes.len() as u32 });
            return None;
        };
        if raw.s_header.h_magic.get() != MAGIC {
            sink(JournalSuperDamage::Magic { found: raw.s_header.h_magic.get() });
            return None;
        }
        let v2 = match BlockKind::from_raw(raw.s_header.h_blocktype.get()) {
            BlockKind::SuperBlockV1 => false,
            BlockKind::SuperBlockV2 => true,
            other => {
                sink(JournalSuperDamage::Kind { found: other.raw() });
                return None;
            }
        };
        // A v1 superblock has no feature words; any bytes there are meaningless.
        let words = |w: U32| if v2 { w.get() } else { 0 };
        let compat = CompatFeatures::from_bits_retain(words(raw.s_feature_compat));
        let incompat = words(raw.s_feature_incompat);
        let ro_compat = words(raw.s_feature_ro_compat);
        let unknown = incompat & !IncompatFeatures::all().bits();
        if unknown != 0 {
            sink(JournalSuperDamage::Incompat { unknown });
        }
        let unknown = ro_compat & !RoCompatFeatures::all().bits();
        if unknown != 0 {
            sink(JournalSuperDamage::RoCompat { unknown });
        }
        let incompat = IncompatFeatures::from_bits_truncate(incompat);
        let ro_compat = RoCompatFeatures::from_bits_truncate(ro_compat);
        let sb = JournalSuperBlock {
            v2,
            block_size: raw.s_blocksize.get(),
            max_len: raw.s_maxlen.get(),
            first: raw.s_first.get(),
            sequence: Tid(raw.s_sequence.get()),
            start: raw.s_start.get(),
            errno: raw.s_errno.get() as i32,
            compat,
            incompat,
            ro_compat,
            uuid: if v2 { raw.s_uuid } else { [0; 16] },
            nr_users: if v2 { raw.s_nr_users.get() } else { 1 },
            num_fc_blocks: if v2 { raw.s_num_fc_blks.get() } else { 0 },
            head: if v2 { raw.s_head.get() } else { 0 },
            raw: Box::new(raw),
        };
        sb.damage(context, sink).then_some(sb)
    }

    /// Reports the faults of the fields; returns whether they describe a log.
    fn damage(&self, context: &JournalContext, sink: &mut impl FnMut(JournalSuperDamage)) -> bool {
        use IncompatFeatures as I;
        if self.incompat.contains(I::CSUM_V2 | I::CSUM_V3) {
            sink(JournalSuperDamage::ChecksumsV2V3);
        }
        if self.has_block_csums() {
            if self.compat.contains(CompatFeatures::CHECKSUM) {
                sink(JournalSuperDamage::ChecksumsV1);
            }
            let (found, expected) = (self.raw.s_checksum.get(), checksum(&self.raw));
            if self.raw.s_checksum_type != CRC32C_CHKSUM {
                sink(JournalSuperDamage::ChecksumType { found: self.raw.s_checksum_type });
            } else if found != expected {
                sink(JournalSuperDamage::Checksum { found, expected });
            }
        }
        let (found, expected) = (self.block_size, context.block_size);
        if found != expected || !(1024..=65536).contains(&found) || !found.is_power_of_two() {
            sink(JournalSuperDamage::BlockSize { found, expected });
        }
        if let Some(most) = context.blocks.filter(|most| self.max_len > *most) {
            sink(JournalSuperDamage::TooLong { found: self.max_len, most });
        }
        if self.nr_users > 1 {
            sink(JournalSuperDamage::Users { found: self.nr_users });
        }
        // A log needs at least two blocks: a descriptor or revoke block, and a commit block.
        if self.first == 0 || self.max_len < 2 || self.first >= self.max_len - 1 {
            sink(JournalSuperDamage::Log { first: self.first, max_len: self.max_len });
            return false;
        }
        let log = self.log();
        if self.start != 0 && !log.contains(self.start) {
            sink(JournalSuperDamage::Start { found: self.start, first: log.first, last: log.last });
        }
        true
    }

    /// A new, empty journal: v2, `max_len` blocks of `block_size` bytes, with the log from block 1 (like e2fsprogs'
    /// `ext2fs_create_journal_superblock`). `wide` and `csum` must match the file system.
    pub fn create(block_size: u32, max_len: u32, uuid: [u8; 16], csum: LogCsum, wide: bool) -> JournalSuperBlock {
        let mut sb = JournalSuperBlock {
            raw: Box::new(RawJournalSuperBlock::zeroed()),
            v2: true,
            block_size,
            max_len,
            first: 1,
            sequence: Tid(1),
            start: 0,
            errno: 0,
            compat: CompatFeatures::empty(),
            incompat: IncompatFeatures::empty(),
            ro_compat: RoCompatFeatures::empty(),
            uuid,
            nr_users: 1,
            num_fc_blocks: 0,
            head: 0,
        };
        sb.set_csum(csum);
        sb.incompat.set(IncompatFeatures::BIT64, wide);
        sb
    }

    /// The same for a device that contains only the journal (e2fsprogs: `ext2fs_create_journal_superblock2` with
    /// `journal_dev`). No file system uses it yet.
    pub fn create_external(block_size: u32, max_len: u32, uuid: [u8; 16]) -> JournalSuperBlock {
        let mut sb = JournalSuperBlock::create(block_size, max_len, uuid, LogCsum::None, false);
        sb.first = JournalDevice::journal_super(block_size) + 1;
        sb.nr_users = 0;
        sb
    }

    /// The UUIDs of the file systems that use the journal; only for a journal on its own device.
    pub fn users(&self) -> impl Iterator<Item = [u8; 16]> + '_ {
        let count = if self.v2 { self.nr_users as usize } else { 0 };
        self.raw.s_users.as_chunks::<16>().0.iter().take(count).copied()
    }

    /// Makes the file system with this UUID the only user. Everything that changes is in the first sector.
    pub fn set_user(&mut self, uuid: [u8; 16]) {
        self.raw.s_users[..SUPER_BLOCK_LIVE_BYTES - USERS_AT].fill(0);
        self.raw.s_users[..16].copy_from_slice(&uuid);
        self.nr_users = 1;
    }

    /// No file system uses the journal.
    pub fn clear_users(&mut self) {
        self.raw.s_users[..SUPER_BLOCK_LIVE_BYTES - USERS_AT].fill(0);
        self.nr_users = 0;
    }

    /// The UUID of a borrowed journal; `random` prevents the checksums of one borrowed journal from matching
    /// another's.
    pub fn borrowed_uuid(random: [u8; 8]) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&BORROWED_MARK);
        uuid[8..].copy_from_slice(&random);
        uuid
    }

    /// Whether Extant has added this journal to the image, and will remove it at the next clean unmount.
    pub fn is_borrowed(&self) -> bool {
        self.v2 && self.uuid.starts_with(&BORROWED_MARK)
    }

    /// Chooses the log's checksums. The log must be empty, because this changes the size of the tags.
    pub fn set_csum(&mut self, csum: LogCsum) {
        self.compat.set(CompatFeatures::CHECKSUM, csum == LogCsum::V1);
        self.incompat.set(IncompatFeatures::CSUM_V2, csum == LogCsum::V2);
        self.incompat.set(IncompatFeatures::CSUM_V3, csum == LogCsum::V3);
    }

    fn has_block_csums(&self) -> bool {
        self.incompat.intersects(IncompatFeatures::CSUM_V2 | IncompatFeatures::CSUM_V3)
    }

    /// The checksums in the log.
    pub fn csum(&self) -> LogCsum {
        if self.incompat.contains(IncompatFeatures::CSUM_V3) {
            LogCsum::V3
        } else if self.incompat.contains(IncompatFeatures::CSUM_V2) {
            LogCsum::V2
        } else if self.compat.contains(CompatFeatures::CHECKSUM) {
            LogCsum::V1
        } else {
            LogCsum::None
        }
    }

    /// The layout of the log's blocks.
    pub fn format(&self) -> LogFormat {
        let wide = self.incompat.contains(IncompatFeatures::BIT64);
        LogFormat::new(self.block_size as usize, self.csum(), wide, self.uuid)
    }

    /// The ring of blocks that full commits use: the journal without its superblock and fast-commit area.
    pub fn log(&self) -> LogRange {
        let mut last = self.max_len;
        if self.incompat.contains(IncompatFeatures::FAST_COMMIT) {
            // As in the kernel, an area that would leave too short a log is ignored.
            let n = self.fast_commit_len();
            if last >= n && last - n >= MIN_LOG_BLOCKS && last - n > self.first {
                last -= n;
            }
        }
        LogRange { first: self.first, last }
    }

    fn fast_commit_len(&self) -> u32 {
        if self.num_fc_blocks == 0 { DEFAULT_FAST_COMMIT_BLOCKS } else { self.num_fc_blocks }
    }

    /// The journal blocks after the log that fast commits use; empty without the feature. Linux does not use the first
    /// block after the log (`j_fc_first` is `j_last + 1`).
    pub fn fast_commit_area(&self) -> Range<u32> {
        self.log().last.saturating_add(1).min(self.max_len)..self.max_len
    }

    /// Whether the log contains transactions to replay.
    pub fn is_live(&self) -> bool {
        self.start != 0
    }

    /// The 1024 bytes of the superblock, with the checksum.
    pub fn encode(&self) -> [u8; SUPER_BLOCK_BYTES] {
        let mut raw = *self.raw;
        let kind = if self.v2 { BlockKind::SuperBlockV2 } else { BlockKind::SuperBlockV1 };
        raw.s_header.h_magic.set(MAGIC);
        raw.s_header.h_blocktype.set(kind.raw());
        raw.s_blocksize.set(self.block_size);
        raw.s_maxlen.set(self.max_len);
        raw.s_first.set(self.first);
        raw.s_sequence.set(self.sequence.0);
        raw.s_start.set(self.start);
        raw.s_errno.set(self.errno as u32);
        if self.v2 {
            raw.s_feature_compat.set(self.compat.bits());
            raw.s_feature_incompat.set(self.incompat.bits());
            raw.s_feature_ro_compat.set(self.ro_compat.bits());
            raw.s_uuid = self.uuid;
            raw.s_nr_users.set(self.nr_users);
            raw.s_num_fc_blks.set(self.num_fc_blocks);
            raw.s_head.set(self.head);
            if self.has_block_csums() {
                raw.s_checksum_type = CRC32C_CHKSUM;
                raw.s_checksum.set(checksum(&raw));
            } else {
                raw.s_checksum_type = 0;
                raw.s_checksum.set(0);
            }
        }
        let mut bytes = [0; SUPER_BLOCK_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The first sector of [`encode`](Self::encode), which is all that must be written once the journal exists.
    pub fn live_bytes(&self) -> [u8; SUPER_BLOCK_LIVE_BYTES] {
        let mut live = [0; SUPER_BLOCK_LIVE_BYTES];
        live.copy_from_slice(&self.encode()[..SUPER_BLOCK_LIVE_BYTES]);
        live
    }
}

impl RawJournalSuperBlock {
    fn zeroed() -> RawJournalSuperBlock {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// The checksum of `raw`: without a seed, over all 1024 bytes, with zero in the field itself.
fn checksum(raw: &RawJournalSuperBlock) -> u32 {
    let mut copy = *raw;
    copy.s_checksum.set(0);
    crc32c(!0, copy.as_bytes())
}
