//! The superblock: decoding, validation, changes by a mount, and encoding.
//!
//! Main types: [`SuperBlock`] (validated; keeps the raw bytes, so that unknown fields survive a rewrite), [`Geometry`]
//! (the layout, which a mount clones and shares without a lock; `SuperBlock` derefs to it), [`RawSuperBlock`] (the
//! bytes), [`SuperDamage`] (one fault), [`backup_candidates`] (where to look if the primary superblock is lost).
//! [`crate::features::check`] decides whether the features allow a mount.
//!
//! # Locking
//! None. A mount that changes fields protects the `SuperBlock` with its own lock.

mod borrowed;
mod damage;
mod find;
mod geometry;
mod journal_device;
mod layout;
mod raw;
#[cfg(test)]
pub(crate) mod tests;
mod unfinished;

pub use borrowed::JournalPlace;
pub use damage::{SpecialInode, SuperContext, SuperDamage};
pub use find::{Ballot, Read, Start, backup_at, begins_at_zero, find, find_backup, find_start, vote};
pub use geometry::{BackupRule, BaseMetadata, DescChecksum, Geometry, InodeLocation, backup_candidates};
pub use journal_device::{JournalDevice, NewJournalDevice, NotAJournal};
pub use layout::{Layout, LayoutError, LayoutRequest};
pub use raw::{MAGIC, RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, has_magic};

use crate::casefold;
use crate::csum::ChecksumSeed;
use crate::damage::Damage;
use crate::features::{Compat, Incompat, RoCompat};
use crate::{BlockNr, Error, InodeNr, Result, Structure};
use std::ops::Deref;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

bitflags::bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FsState: u16 {
        /// The file system was unmounted cleanly (Linux: `EXT4_VALID_FS`).
        const VALID = 0x0001;
        /// An error was found; only fsck clears this (Linux: `EXT4_ERROR_FS`).
        const ERROR = 0x0002;
        /// Orphans are being recovered (Linux: `EXT4_ORPHAN_FS`).
        const ORPHAN = 0x0004;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// `s_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SuperFlags: u32 {
        /// Directory hashes read bytes as signed.
        const SIGNED_HASH = 0x0001;
        /// Directory hashes read bytes as unsigned.
        const UNSIGNED_HASH = 0x0002;
        /// The file system is for development code.
        const TEST_FILESYS = 0x0004;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// `s_default_mount_opts`: options for each mount (`tune2fs -o`; Linux: `EXT4_DEFM_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DefaultMountOpts: u32 {
        /// Print debugging information at each mount.
        const DEBUG = 0x0001;
        /// New files get the group of their directory.
        const BSDGROUPS = 0x0002;
        /// User attributes are available. The kernel supports them even if this bit is clear.
        const XATTR_USER = 0x0004;
        /// ACLs are available. The kernel supports them even if this bit is clear.
        const ACL = 0x0008;
        /// User and group ids have only 16 bits.
        const UID16 = 0x0010;
        /// File data goes through the journal.
        const JMODE_DATA = 0x0020;
        /// File data is written before the metadata that refers to it. With both bits: in any order.
        const JMODE_ORDERED = 0x0040;
        /// The device's cache is not flushed.
        const NOBARRIER = 0x0100;
        /// Block pointers are checked against the file system's own blocks.
        const BLOCK_VALIDITY = 0x0200;
        /// Freed blocks are discarded.
        const DISCARD = 0x0400;
        /// Blocks are allocated at the write, not at writeback.
        const NODELALLOC = 0x0800;
        const _ = !0;
    }
}

impl DefaultMountOpts {
    /// The option names of ext4(5) for the bits, in the kernel's order. Bits that the kernel does not know have none.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let data = match (self.contains(DefaultMountOpts::JMODE_DATA), self.contains(DefaultMountOpts::JMODE_ORDERED)) {
            (true, true) => Some("data=writeback"),
            (true, false) => Some("data=journal"),
            (false, true) => Some("data=ordered"),
            (false, false) => None,
        };
        let plain = [
            (DefaultMountOpts::DEBUG, "debug"),
            (DefaultMountOpts::BSDGROUPS, "grpid"),
            (DefaultMountOpts::XATTR_USER, "user_xattr"),
            (DefaultMountOpts::ACL, "acl"),
            (DefaultMountOpts::UID16, "nouid32"),
            (DefaultMountOpts::BLOCK_VALIDITY, "block_validity"),
            (DefaultMountOpts::DISCARD, "discard"),
            (DefaultMountOpts::NOBARRIER, "nobarrier"),
            (DefaultMountOpts::NODELALLOC, "nodelalloc"),
        ];
        plain.into_iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, word)| word).chain(data)
    }
}

/// The reaction to an error (`s_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorBehaviour {
    /// Continue (`errors=continue`); 1 on disk.
    Continue,
    /// Write nothing more (`errors=remount-ro`); 2 on disk.
    RemountReadOnly,
    /// Stop the machine (`errors=panic`); 3 on disk. Extant treats it as `RemountReadOnly`.
    Panic,
}

/// The contents of the superblock's error fields when damage is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEvent<'a> {
    /// Seconds since 1970.
    pub time: i64,
    /// The inode; 0 if no inode is concerned.
    pub ino: u32,
    /// The block; 0 if no block is concerned.
    pub block: u64,
    /// The function that found it; truncated to 31 bytes.
    pub function: &'a str,
    /// The line of the source file.
    pub line: u32,
    /// The kind of error (Linux: `EXT4_ERR_*`), e.g. 2 for EIO, 5 for a corrupt structure.
    pub code: u8,
}

/// A validated superblock (Linux: `s_es` and the derived part of `struct ext4_sb_info`).
#[derive(Clone, Debug)]
pub struct SuperBlock {
    raw: RawSuperBlock,
    geometry: Geometry,
}

/// Most code uses a [`Geometry`] for questions about the layout. Code that has the whole superblock may use it
/// directly.
impl Deref for SuperBlock {
    type Target = Geometry;

    fn deref(&self) -> &Geometry {
        &self.geometry
    }
}

const INODE_SIZE_GOOD_OLD: u16 = 128;
/// The first inode number that is not reserved (Linux: `EXT4_GOOD_OLD_FIRST_INO`). Newer file systems store it.
pub const FIRST_INO_GOOD_OLD: u32 = 11;
const DESC_SIZE_GOOD_OLD: u16 = 32;
/// The size of the fields that the kernel defines after byte 128.
const EXTRA_ISIZE_DEFAULT: u16 = 32;
const CHECKSUM_TYPE_CRC32C: u8 = 1;

impl SuperBlock {
    /// Decodes and validates a superblock. `place` is its byte offset on the device, for messages.
    ///
    /// # Errors
    /// `Corrupt` if it breaks the format. `Unsupported` for a journal device, or an unknown revision, checksum type or
    /// incompatible feature. Known features that cannot be mounted are accepted, because tools inspect them.
    ///
    /// ```
    /// use extant_ondisk::superblock::{MAGIC, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
    ///
    /// // The minimum that the format requires: inodes, blocks, the first block, and blocks and inodes per group.
    /// let mut bytes = [0; SUPERBLOCK_SIZE];
    /// for (at, value) in [(0x00, 16), (0x04, 64), (0x14, 1), (0x20, 8192), (0x28, 16_u32)] {
    ///     bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    /// }
    /// let error = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).unwrap_err();
    /// assert_eq!(error.to_string(), "superblock at byte 1024: magic 0x0000, expected 0xef53");
    ///
    /// bytes[0x38..0x3a].copy_from_slice(&MAGIC.to_le_bytes());
    /// let superblock = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET)?;
    /// assert_eq!(superblock.geometry().block_size, 1024);
    /// assert_eq!(superblock.geometry().group_count, 1);
    /// # Ok::<(), extant_ondisk::Error>(())
    /// ```
    pub fn decode(bytes: &[u8], place: u64) -> Result<SuperBlock> {
        SuperBlock::decode_unless(bytes, place, &mut Err)
    }

    /// Decodes a superblock for a reader that recovers as much as possible: a wrong checksum and unknown incompatible
    /// features are returned next to the superblock and do not end the decoding. The fields of the layout are still
    /// checked.
    ///
    /// # Errors
    /// The same as [`SuperBlock::decode`], except for these two.
    pub fn decode_damaged(bytes: &[u8], place: u64) -> Result<(SuperBlock, Vec<Error>)> {
        let mut passed = Vec::new();
        let superblock = SuperBlock::decode_unless(bytes, place, &mut |error| {
            passed.push(error);
            Ok(())
        })?;
        Ok((superblock, passed))
    }

    /// Decodes a superblock. `doubt` decides whether a wrong checksum or an unknown feature ends the decoding.
    fn decode_unless(bytes: &[u8], place: u64, doubt: &mut dyn FnMut(Error) -> Result<()>) -> Result<SuperBlock> {
        let mut verdict = Ok(());
        let superblock = SuperBlock::parse(bytes, &SuperContext::default(), &mut |damage| {
            if verdict.is_ok() && damage.is_fatal() {
                let error = damage.error(place);
                verdict = if damage.is_doubt() { doubt(error) } else { Err(error) };
            }
        });
        verdict?;
        superblock.ok_or_else(|| Error::corrupt(Structure::SuperBlock, place, "no layout can be derived from it"))
    }

    /// Writes the superblock and its checksum over the first 1024 bytes of `out`. Fields that were not changed are
    /// written as they were read.
    ///
    /// # Panics
    /// If `out` is shorter than [`SUPERBLOCK_SIZE`].
    pub fn encode_into(&self, out: &mut [u8]) {
        let mut raw = self.raw;
        if self.ro_compat().contains(RoCompat::METADATA_CSUM) {
            raw.s_checksum = U32::new(raw.compute_checksum());
        }
        out[..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
    }

    /// The copy for the backup in this group. It differs only in its group number and, like every backup that e2fsprogs
    /// writes, is neither clean nor in need of recovery.
    pub fn backup_for(&self, group: crate::GroupNr) -> SuperBlock {
        let mut copy = self.clone();
        copy.raw.s_block_group_nr = U16::new(u16::try_from(group.0).unwrap_or(u16::MAX));
        copy.set_needs_recovery(false);
        copy.set_state(copy.state().difference(FsState::VALID));
        copy
    }

    /// The bytes, including changes.
    pub fn raw(&self) -> &RawSuperBlock {
        &self.raw
    }

    /// The layout, which does not change.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The same as [`Geometry::cut_to`]. The stored fields do not change.
    pub fn cut_to(&mut self, groups: u32) {
        self.geometry.cut_to(groups);
    }

    /// The features that never prevent a mount, including unknown ones.
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.raw.s_feature_compat.get())
    }

    /// The features that must be known in order to read. All of them are known.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.raw.s_feature_incompat.get())
    }

    /// The features that must be known in order to write, including unknown ones.
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(self.raw.s_feature_ro_compat.get())
    }

    /// The start value of metadata checksums.
    pub fn checksum_seed(&self) -> ChecksumSeed {
        self.geometry.seed
    }

    /// `s_state`: clean, damaged, or recovering orphans.
    pub fn state(&self) -> FsState {
        FsState::from_bits_retain(self.raw.s_state.get())
    }

    /// `s_flags`.
    pub fn flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.raw.s_flags.get())
    }

    /// The reaction to an error. If the field is invalid, continue, as in Linux.
    pub fn error_behaviour(&self) -> ErrorBehaviour {
        match self.raw.s_errors.get() {
            2 => ErrorBehaviour::RemountReadOnly,
            3 => ErrorBehaviour::Panic,
            _ => ErrorBehaviour::Continue,
        }
    }

    /// The volume's `s_uuid`.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.s_uuid
    }

    /// The label, up to its NUL. Bytes that are not UTF-8 are replaced.
    pub fn volume_name(&self) -> String {
        text(&self.raw.s_volume_name)
    }

    /// Sets the label, truncated to the field.
    pub fn set_volume_name(&mut self, name: &[u8]) {
        let room = &mut self.raw.s_volume_name;
        let n = name.len().min(room.len());
        room.fill(0);
        room[..n].copy_from_slice(&name[..n]);
    }

    /// The directory of the last mount, as that mount saw it. Bytes that are not UTF-8 are replaced.
    pub fn last_mounted(&self) -> String {
        text(&self.raw.s_last_mounted)
    }

    /// `s_r_blocks_count`: the number of blocks reserved for root (mke2fs: 5 %), at most all blocks.
    pub fn reserved_blocks(&self) -> u64 {
        let count = join(self.raw.s_r_blocks_count_lo, self.raw.s_r_blocks_count_hi, self.geometry.bit64);
        count.min(self.geometry.blocks_count)
    }

    /// The uid and gid that may use the reserved blocks, apart from root.
    pub fn reserved_owner(&self) -> (u32, u32) {
        (self.raw.s_def_resuid.get().into(), self.raw.s_def_resgid.get().into())
    }

    /// The number of free blocks. A hint: the descriptors are authoritative.
    pub fn free_blocks(&self) -> u64 {
        join(self.raw.s_free_blocks_count_lo, self.raw.s_free_blocks_count_hi, self.geometry.bit64)
    }

    /// The number of free inodes. A hint: the descriptors are authoritative.
    pub fn free_inodes(&self) -> u32 {
        self.raw.s_free_inodes_count.get()
    }

    /// The inode of an internal journal; `None` without a journal or with one on another device.
    pub fn journal_inode(&self) -> Option<InodeNr> {
        let ino = self.raw.s_journal_inum.get();
        (self.compat().contains(Compat::HAS_JOURNAL) && ino != 0).then_some(InodeNr(ino))
    }

    /// The UUID of a journal on another device.
    pub fn external_journal(&self) -> Option<[u8; 16]> {
        (self.compat().contains(Compat::HAS_JOURNAL) && self.raw.s_journal_inum.get() == 0)
            .then_some(self.raw.s_journal_uuid)
    }

    /// Whether the journal contains transactions to replay.
    pub fn needs_recovery(&self) -> bool {
        self.incompat().contains(Incompat::NEEDS_RECOVERY)
    }

    /// The head of the orphan list. It is not checked, so the inode may not exist.
    pub fn last_orphan(&self) -> Option<InodeNr> {
        let ino = self.raw.s_last_orphan.get();
        (ino != 0).then_some(InodeNr(ino))
    }

    /// The inode of the orphan file. It is not checked, so the inode may not exist.
    pub fn orphan_file(&self) -> Option<InodeNr> {
        let ino = self.raw.s_orphan_file_inum.get();
        (self.compat().contains(Compat::ORPHAN_FILE) && ino != 0).then_some(InodeNr(ino))
    }

    /// `s_hash_seed`; all zero for the default constants.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.s_hash_seed.map(U32::get)
    }

    /// The stored number of the hash for new directory indexes: 0 legacy, 1 half MD4, 2 TEA, 6 SipHash.
    pub fn default_hash_version(&self) -> u8 {
        self.raw.s_def_hash_version
    }

    /// Whether hashes read the bytes of names as unsigned. If neither flag is set, Linux uses the signedness of its
    /// machine. This function then uses that of x86.
    pub fn hash_unsigned(&self) -> bool {
        self.flags().contains(SuperFlags::UNSIGNED_HASH)
    }

    /// Whether case-insensitive directories reject names that are not valid text.
    pub fn strict_encoding(&self) -> bool {
        self.raw.s_encoding_flags.get() & casefold::STRICT != 0
    }

    /// The options for each mount, as bits (`tune2fs -o`).
    pub fn default_mount_opts(&self) -> DefaultMountOpts {
        DefaultMountOpts::from_bits_retain(self.raw.s_default_mount_opts.get())
    }

    /// The options for each mount, as text (`tune2fs -E mount_opts=`), which overrides the bits. Bytes that are not
    /// UTF-8 are replaced.
    pub fn mount_options(&self) -> String {
        text(&self.raw.s_mount_opts)
    }

    /// The number of mounts since the last check.
    pub fn mount_count(&self) -> u16 {
        self.raw.s_mnt_count.get()
    }

    /// The time of the last mount, in seconds since 1970.
    pub fn mount_time(&self) -> i64 {
        RawSuperBlock::time(self.raw.s_mtime, self.raw.s_mtime_hi)
    }

    /// The time of the last write, in seconds since 1970.
    pub fn write_time(&self) -> i64 {
        RawSuperBlock::time(self.raw.s_wtime, self.raw.s_wtime_hi)
    }

    /// The number of errors found since the last check (`s_error_count`).
    pub fn error_count(&self) -> u32 {
        self.raw.s_error_count.get()
    }

    /// The number of KiB written since the file system was created.
    pub fn kbytes_written(&self) -> u64 {
        self.raw.s_kbytes_written.get()
    }

    /// Sets `s_state`.
    pub fn set_state(&mut self, state: FsState) {
        self.raw.s_state = U16::new(state.bits());
    }

    /// Sets the time of the last mount, in seconds since 1970, clamped to 40 bits.
    pub fn set_mount_time(&mut self, seconds: i64) {
        (self.raw.s_mtime, self.raw.s_mtime_hi) = RawSuperBlock::split_time(seconds);
    }

    /// Sets the time of the last write, in seconds since 1970, clamped to 40 bits.
    pub fn set_write_time(&mut self, seconds: i64) {
        (self.raw.s_wtime, self.raw.s_wtime_hi) = RawSuperBlock::split_time(seconds);
    }

    /// Sets the number of mounts since the last check.
    pub fn set_mount_count(&mut self, count: u16) {
        self.raw.s_mnt_count = U16::new(count);
    }

    /// Sets the directory of the last mount, truncated to 63 bytes.
    pub fn set_last_mounted(&mut self, path: &[u8]) {
        put_text(&mut self.raw.s_last_mounted, path);
    }

    /// Sets whether the journal contains, or may contain, transactions to replay.
    pub fn set_needs_recovery(&mut self, on: bool) {
        let mut incompat = self.incompat();
        incompat.set(Incompat::NEEDS_RECOVERY, on);
        self.raw.s_feature_incompat = U32::new(incompat.bits());
    }

    /// Sets whether the orphan file contains, or may contain, entries.
    pub fn set_orphan_present(&mut self, on: bool) {
        let mut ro_compat = self.ro_compat();
        ro_compat.set(RoCompat::ORPHAN_PRESENT, on);
        self.raw.s_feature_ro_compat = U32::new(ro_compat.bits());
    }

    /// Records that inodes have attribute blocks.
    pub fn set_ext_attr(&mut self) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::EXT_ATTR).bits());
    }

    /// Records that a file of 2 GiB or more exists. Returns true if the bit was not set before.
    pub fn set_large_file(&mut self) -> bool {
        self.add_ro_compat(RoCompat::LARGE_FILE)
    }

    /// Records that a directory with more links than can be counted exists. Returns true if the bit was not set before.
    pub fn set_dir_nlink(&mut self) -> bool {
        self.add_ro_compat(RoCompat::DIR_NLINK)
    }

    fn add_ro_compat(&mut self, bit: RoCompat) -> bool {
        let old = self.ro_compat();
        self.raw.s_feature_ro_compat = U32::new(old.union(bit).bits());
        !old.contains(bit)
    }

    /// Sets the number of free blocks. A hint: the descriptors and bitmaps are authoritative.
    pub fn set_free_blocks(&mut self, blocks: u64) {
        self.raw.s_free_blocks_count_lo = U32::new(blocks as u32);
        if self.geometry.bit64 {
            self.raw.s_free_blocks_count_hi = U32::new((blocks >> 32) as u32);
        }
    }

    /// Sets the number of free inodes. A hint: the descriptors and bitmaps are authoritative.
    pub fn set_free_inodes(&mut self, inodes: u32) {
        self.raw.s_free_inodes_count = U32::new(inodes);
    }

    /// Sets the number of KiB written since the file system was created.
    pub fn set_kbytes_written(&mut self, kbytes: u64) {
        self.raw.s_kbytes_written = U64::new(kbytes);
    }

    /// Sets the head of the orphan list; `None` for an empty list.
    pub fn set_last_orphan(&mut self, ino: Option<InodeNr>) {
        self.raw.s_last_orphan = U32::new(ino.map_or(0, |ino| ino.0));
    }

    /// Counts an error and stores it as the last one, and as the first if there was none. Sets the error state.
    pub fn record_error(&mut self, event: &ErrorEvent<'_>) {
        let raw = &mut self.raw;
        let (time, time_hi) = RawSuperBlock::split_time(event.time);
        if raw.s_error_count.get() == 0 {
            (raw.s_first_error_time, raw.s_first_error_time_hi) = (time, time_hi);
            raw.s_first_error_ino = U32::new(event.ino);
            raw.s_first_error_block = U64::new(event.block);
            raw.s_first_error_line = U32::new(event.line);
            raw.s_first_error_errcode = event.code;
            put_text(&mut raw.s_first_error_func, event.function.as_bytes());
        }
        (raw.s_last_error_time, raw.s_last_error_time_hi) = (time, time_hi);
        raw.s_last_error_ino = U32::new(event.ino);
        raw.s_last_error_block = U64::new(event.block);
        raw.s_last_error_line = U32::new(event.line);
        raw.s_last_error_errcode = event.code;
        put_text(&mut raw.s_last_error_func, event.function.as_bytes());
        raw.s_error_count = U32::new(raw.s_error_count.get().saturating_add(1));
        self.set_state(self.state().union(FsState::ERROR));
    }

    /// Copies the error fields of another copy. A mount uses this to keep them across a replay, which may write an
    /// older superblock.
    pub fn copy_errors_from(&mut self, other: &SuperBlock) {
        if other.raw.s_error_count.get() < self.raw.s_error_count.get() {
            return;
        }
        let (to, from) = (&mut self.raw, &other.raw);
        to.s_error_count = from.s_error_count;
        to.s_first_error_time = from.s_first_error_time;
        to.s_first_error_time_hi = from.s_first_error_time_hi;
        to.s_first_error_ino = from.s_first_error_ino;
        to.s_first_error_block = from.s_first_error_block;
        to.s_first_error_func = from.s_first_error_func;
        to.s_first_error_line = from.s_first_error_line;
        to.s_first_error_errcode = from.s_first_error_errcode;
        to.s_last_error_time = from.s_last_error_time;
        to.s_last_error_time_hi = from.s_last_error_time_hi;
        to.s_last_error_ino = from.s_last_error_ino;
        to.s_last_error_block = from.s_last_error_block;
        to.s_last_error_func = from.s_last_error_func;
        to.s_last_error_line = from.s_last_error_line;
        to.s_last_error_errcode = from.s_last_error_errcode;
        let error = other.state().intersection(FsState::ERROR);
        self.set_state(self.state().union(error));
    }

    /// The block that contains the primary superblock, and the offset in it in bytes.
    pub fn primary_location(&self) -> (BlockNr, usize) {
        self.geometry.super_location(crate::GroupNr(0))
    }
}

fn join(low: U32, high: U32, bit64: bool) -> u64 {
    u64::from(low.get()) | if bit64 { u64::from(high.get()) << 32 } else { 0 }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Stores a NUL-terminated string, truncated to the field.
fn put_text(field: &mut [u8], value: &[u8]) {
    field.fill(0);
    let length = value.len().min(field.len() - 1);
    field[..length].copy_from_slice(&value[..length]);
}
