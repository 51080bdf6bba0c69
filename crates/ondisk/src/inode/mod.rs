//! Inodes: decoding, checking, encoding.
//!
//! Main types: [`InodeDesc`] (decoded), [`InodeDamage`] (one fault), [`RawInode`] and [`RawInodeExtra`] (the bytes),
//! [`InodeFlags`], [`FileType`], [`DeviceNr`]. What it does not do: interpret `i_block` (extents, indirect blocks and
//! inline text have their own modules) or the xattrs after the extra fields. [`InodeDesc::encode_into`] includes those
//! bytes in the checksum and does not change them.
//!
//! # Locking
//! None.

mod damage;
pub mod inline;
mod mode;
mod raw;
#[cfg(test)]
mod tests;

pub use damage::{InodeDamage, TimeField};
pub use mode::{DeviceNr, FileType, MODE_TYPE_MASK};
pub use raw::{InodeFlags, RawInode, RawInodeExtra};

use crate::csum::crc32c;
use crate::damage::refuse;
use crate::superblock::Geometry;
use crate::time::Timestamp;
use crate::{BlockNr, Error, InodeNr, Result, Structure};
use std::mem::{offset_of, size_of};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The size of the part of an inode that every revision has, in bytes.
pub const GOOD_OLD_INODE_SIZE: usize = size_of::<RawInode>();
/// Shorter symlink targets are stored in `i_block`.
pub const FAST_SYMLINK_LIMIT: u64 = 60;
/// The maximum number of links that can be counted (Linux: `EXT4_LINK_MAX`).
pub const LINK_MAX: u16 = 65_000;

const CHECKSUM_LO_AT: usize = offset_of!(RawInode, l_i_checksum_lo);
const CHECKSUM_HI_AT: usize = GOOD_OLD_INODE_SIZE + offset_of!(RawInodeExtra, i_checksum_hi);

/// An inode with its halves joined (Linux: the on-disk part of `struct ext4_inode_info`). The fields may be changed;
/// [`InodeDesc::encode_into`] splits them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeDesc {
    /// The type and the permissions.
    pub mode: u16,
    /// Owner, 32 bits.
    pub uid: u32,
    /// Owning group, 32 bits.
    pub gid: u32,
    /// The size, in bytes.
    pub size: u64,
    /// Data, indirect, extent and xattr blocks in 512-byte units, even if the inode counts in another unit.
    pub blocks: u64,
    /// The number of names of the inode; 1 for a directory with too many to count, 0 if it is deleted or was never
    /// used.
    pub links: u16,
    /// `i_flags`.
    pub flags: InodeFlags,
    /// Distinguishes successive files with this inode number, for NFS handles and checksums.
    pub generation: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Time of creation; `None` where the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// The time of deletion, in seconds since 1970, or the next inode while this one is on the orphan list.
    pub dtime: u32,
    /// The root of an extent tree, 15 block numbers, a short symlink's target, or a device number.
    pub i_block: [u8; 60],
    /// The block with xattrs; 0 if there is none.
    pub file_acl: BlockNr,
    /// The change counter (Linux: `i_version`); 32 bits if the inode has no room for more.
    pub version: u64,
    /// The project; 0 if the inode has no room for it.
    pub projid: u32,
    /// The size of the fields after the first 128 bytes; 0 in 128-byte inodes, and in inodes from before extra fields.
    pub extra_isize: u16,
}

impl InodeDesc {
    /// Decodes an inode. Checks the checksum, and that mode, size and extra fields are possible. `bytes` begins with
    /// the inode and has at least `inode_size` bytes. An inode of zeros, which was never used, is accepted.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` is too short or the checksum is wrong, and the errors of [`InodeDesc::check`].
    pub fn decode(bytes: &[u8], ino: InodeNr, geometry: &Geometry) -> Result<InodeDesc> {
        let desc = InodeDesc::parse(bytes, ino, geometry)?;
        refuse(Structure::Inode, ino.0, |mut sink| desc.damage(bytes, ino, geometry, &mut sink))?;
        Ok(desc)
    }

    /// Decodes an inode and checks only its length; [`InodeDesc::damage`] checks the rest. If `extra_isize` is
    /// impossible, the inode is decoded without extra fields, but keeps the value.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` is shorter than an inode.
    pub fn parse(bytes: &[u8], ino: InodeNr, geometry: &Geometry) -> Result<InodeDesc> {
        let bytes = whole(bytes, ino, geometry)?;
        let Ok((raw, rest)) = RawInode::read_from_prefix(bytes) else {
            return Err(corrupt(ino, "shorter than 128 bytes"));
        };
        let (extra, extra_isize) = read_extra(rest);
        let possible = usize::from(extra_isize) <= rest.len() && extra_isize.is_multiple_of(4);
        let has = |field: usize| possible && field_fits(field, extra_isize);
        let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
        let mode = raw.i_mode.get();

        let mut size = u64::from(raw.i_size_lo.get());
        if size_has_high(mode, geometry) {
            size |= u64::from(raw.i_size_high.get()) << 32;
        }
        let mut blocks = u64::from(raw.i_blocks_lo.get());
        if geometry.huge_file {
            blocks |= u64::from(raw.l_i_blocks_high.get()) << 32;
            if flags.contains(InodeFlags::HUGE_FILE) {
                blocks <<= geometry.block_bits - 9;
            }
        }
        let mut file_acl = u64::from(raw.i_file_acl_lo.get());
        if geometry.bit64 {
            file_acl |= u64::from(raw.l_i_file_acl_high.get()) << 32;
        }
        let time = |seconds: U32, at: usize, extra: U32| Timestamp::decode(seconds.get(), has(at).then(|| extra.get()));
        Ok(InodeDesc {
            mode,
            uid: u32::from(raw.i_uid.get()) | u32::from(raw.l_i_uid_high.get()) << 16,
            gid: u32::from(raw.i_gid.get()) | u32::from(raw.l_i_gid_high.get()) << 16,
            size,
            blocks,
            links: raw.i_links_count.get(),
            flags,
            generation: raw.i_generation.get(),
            atime: time(raw.i_atime, ATIME_EXTRA, extra.i_atime_extra),
            ctime: time(raw.i_ctime, CTIME_EXTRA, extra.i_ctime_extra),
            mtime: time(raw.i_mtime, MTIME_EXTRA, extra.i_mtime_extra),
            crtime: has(CRTIME).then(|| time(extra.i_crtime, CRTIME_EXTRA, extra.i_crtime_extra)),
            dtime: raw.i_dtime.get(),
            i_block: raw.i_block,
            file_acl: BlockNr(file_acl),
            version: u64::from(raw.l_i_version.get())
                | if has(VERSION_HI) { u64::from(extra.i_version_hi.get()) << 32 } else { 0 },
            projid: if has(PROJID) { extra.i_projid.get() } else { 0 },
            extra_isize,
        })
    }

    /// Whether the inode has room for a project.
    pub fn has_project(&self) -> bool {
        field_fits(PROJID, self.extra_isize)
    }

    /// An inode for a slot that was filled with zeros. Only the mode and the size of the extra fields are set.
    pub fn new(mode: u16, geometry: &Geometry) -> InodeDesc {
        InodeDesc {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            links: 0,
            flags: InodeFlags::empty(),
            generation: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: field_fits(CRTIME, geometry.want_extra_isize).then(Timestamp::default),
            dtime: 0,
            i_block: [0; 60],
            file_acl: BlockNr(0),
            version: 0,
            projid: 0,
            extra_isize: geometry.want_extra_isize,
        }
    }

    /// Checks that the fields do not contradict the format or each other.
    ///
    /// # Errors
    /// `Corrupt` with the first field that is wrong.
    pub fn check(&self, ino: InodeNr, geometry: &Geometry) -> Result<()> {
        refuse(Structure::Inode, ino.0, |mut sink| {
            self.extra_size_damage(geometry, &mut sink);
            self.field_damage(ino, geometry, &mut sink);
        })
    }

    /// The type; `None` if the mode has no valid one, as in an inode that was never used.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }

    /// Whether the mode is that of a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    /// Whether the mode is that of a regular file.
    pub fn is_regular(&self) -> bool {
        self.file_type() == Some(FileType::Regular)
    }

    /// Whether the mode is that of a symbolic link, fast or not.
    pub fn is_symlink(&self) -> bool {
        self.file_type() == Some(FileType::Symlink)
    }

    /// Whether `i_block` contains an extent tree.
    pub fn has_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }

    /// Whether the target of this symlink is in `i_block`. (Linux: `ext4_inode_is_fast_symlink`. Such a symlink owns no
    /// block except that of its xattrs. With `ea_inode` it may own more, so its size decides.)
    pub fn is_fast_symlink(&self, geometry: &Geometry) -> bool {
        let xattr_units =
            if self.file_acl.0 != 0 { u64::from(geometry.block_size >> 9) << geometry.cluster_bits } else { 0 };
        let owns_nothing = if geometry.ea_inode { self.size > 0 } else { self.blocks == xattr_units };
        self.is_symlink()
            && self.size < FAST_SYMLINK_LIMIT
            && owns_nothing
            && !self.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
    }

    /// Whether `i_block` maps content, or contains content in place of a map (Linux: `ext4_can_truncate`). It contains
    /// neither a device number nor a symlink's target.
    pub fn has_map(&self, geometry: &Geometry) -> bool {
        self.is_regular() || self.is_dir() || (self.is_symlink() && !self.is_fast_symlink(geometry))
    }

    /// The target of a fast symlink.
    pub fn fast_symlink_target(&self, geometry: &Geometry) -> Option<&[u8]> {
        if !self.is_fast_symlink(geometry) {
            return None;
        }
        self.i_block.get(..self.size as usize)
    }

    /// The number of a device inode; `None` for other types.
    pub fn device(&self) -> Option<DeviceNr> {
        self.file_type().filter(|kind| kind.is_device()).map(|_| DeviceNr::decode(&self.i_block))
    }

    /// The range of in-inode xattrs in the inode's bytes, including the magic number; `None` if there can be none.
    pub fn xattr_area(&self, geometry: &Geometry) -> Option<Range<usize>> {
        // Inodes from before extra fields contain garbage there.
        if self.extra_isize == 0 {
            return None;
        }
        let start = GOOD_OLD_INODE_SIZE + usize::from(self.extra_isize);
        (start + 4 <= geometry.inode_size).then_some(start..geometry.inode_size)
    }

    /// Adds extra fields to an inode that has room but none, as Linux does when it loads one. The caller must zero its
    /// bytes after the first 128.
    pub fn claim_extra_isize(&mut self, geometry: &Geometry) -> bool {
        if self.extra_isize != 0 || geometry.want_extra_isize == 0 {
            return false;
        }
        self.extra_isize = geometry.want_extra_isize;
        true
    }

    /// Whether the inode contains the value of attributes instead of a file (`ea_inode`).
    pub fn is_value(&self) -> bool {
        self.flags.contains(InodeFlags::EA_INODE)
    }

    /// The number of entries that refer to the value in this inode (Linux: `ext4_xattr_inode_get_ref`).
    pub fn value_references(&self) -> u64 {
        u64::from(self.ctime.seconds as u32) << 32 | u64::from(self.version as u32)
    }

    /// Sets [`InodeDesc::value_references`].
    pub fn set_value_references(&mut self, count: u64) {
        self.ctime = Timestamp::from_seconds(i64::from((count >> 32) as u32 as i32));
        self.version = count & u64::from(u32::MAX);
    }

    /// The hash of the value in this inode (Linux: `ext4_xattr_inode_get_hash`).
    pub fn value_hash(&self) -> u32 {
        self.atime.seconds as u32
    }

    /// Sets [`InodeDesc::value_hash`].
    pub fn set_value_hash(&mut self, hash: u32) {
        // Encode it as a time that inodes of any size have room for.
        self.atime = Timestamp::from_seconds(i64::from(hash as i32));
    }

    /// Whether the inode contains a value that Lustre stored: it names its only owner and has no reference count
    /// (Linux: `EXT4_STATE_LUSTRE_EA_INODE`). The caller has found that no hash matches.
    pub fn is_lustre_value_of(&self, owner: InodeNr, generation: u32) -> bool {
        self.mtime.seconds as u32 == owner.0 && self.generation == generation
    }

    /// Whether times have nanoseconds, and years after 2038.
    pub fn has_extra_times(&self) -> bool {
        field_fits(ATIME_EXTRA, self.extra_isize)
    }

    /// The maximum value of `blocks` that can be stored.
    pub fn max_blocks(geometry: &Geometry) -> u64 {
        if geometry.huge_file { ((1 << 48) - 1) << (geometry.block_bits - 9) } else { u32::MAX.into() }
    }

    /// Writes the inode, with its checksum, over the `inode_size` bytes at the start of `out`. Bytes of `out` outside
    /// the inode's fields (xattrs, reserved words) do not change. Times outside the range are clamped.
    ///
    /// # Errors
    /// `Unsupported` if `blocks` exceeds [`InodeDesc::max_blocks`]; `Corrupt` if `extra_isize` does not fit. `out` has
    /// not changed then.
    ///
    /// # Panics
    /// If `out` is shorter than `inode_size`.
    pub fn encode_into(&self, out: &mut [u8], ino: InodeNr, geometry: &Geometry) -> Result<()> {
        let out = &mut out[..geometry.inode_size];
        let (blocks, in_fs_blocks) = self.stored_blocks(ino, geometry)?;
        if !self.extra_size_fits(geometry) {
            return Err(corrupt(ino, format!("cannot store {} extra bytes", self.extra_isize)));
        }
        let (head, rest) = out.split_at_mut(GOOD_OLD_INODE_SIZE);
        let Ok(raw) = RawInode::mut_from_bytes(head) else {
            return Err(corrupt(ino, "shorter than 128 bytes"));
        };
        let has = |field: usize| field_fits(field, self.extra_isize);
        let mut flags = self.flags;
        flags.set(InodeFlags::HUGE_FILE, in_fs_blocks);
        raw.i_mode = U16::new(self.mode);
        (raw.i_uid, raw.l_i_uid_high) = split(self.uid);
        (raw.i_gid, raw.l_i_gid_high) = split(self.gid);
        raw.i_size_lo = U32::new(self.size as u32);
        if size_has_high(self.mode, geometry) {
            raw.i_size_high = U32::new((self.size >> 32) as u32);
        }
        raw.i_dtime = U32::new(self.dtime);
        raw.i_links_count = U16::new(self.links);
        raw.i_blocks_lo = U32::new(blocks as u32);
        if geometry.huge_file {
            raw.l_i_blocks_high = U16::new((blocks >> 32) as u16);
        }
        raw.i_flags = U32::new(flags.bits());
        raw.l_i_version = U32::new(self.version as u32);
        raw.i_block = self.i_block;
        raw.i_generation = U32::new(self.generation);
        raw.i_file_acl_lo = U32::new(self.file_acl.0 as u32);
        if geometry.bit64 {
            raw.l_i_file_acl_high = U16::new((self.file_acl.0 >> 32) as u16);
        }

        let (mut extra, _) = read_extra(rest);
        extra.i_extra_isize = U16::new(self.extra_isize);
        let time = |stamp: Timestamp, at: usize, word: &mut U32| {
            if !has(at) {
                return U32::new(stamp.encode_without_extra());
            }
            let (seconds, extra) = stamp.encode();
            *word = U32::new(extra);
            U32::new(seconds)
        };
        raw.i_atime = time(self.atime, ATIME_EXTRA, &mut extra.i_atime_extra);
        raw.i_ctime = time(self.ctime, CTIME_EXTRA, &mut extra.i_ctime_extra);
        raw.i_mtime = time(self.mtime, MTIME_EXTRA, &mut extra.i_mtime_extra);
        if let Some(crtime) = self.crtime {
            extra.i_crtime = time(crtime, CRTIME_EXTRA, &mut extra.i_crtime_extra);
        }
        extra.i_version_hi = U32::new((self.version >> 32) as u32);
        extra.i_projid = U32::new(self.projid);
        // Copying at most the extra size preserves the following bytes, and drops fields set above that do not fit.
        let length = match usize::from(self.extra_isize) {
            0 => rest.len().min(2),
            size => size.min(size_of::<RawInodeExtra>()),
        };
        rest[..length].copy_from_slice(&extra.as_bytes()[..length]);
        update_checksum(out, ino, geometry);
        Ok(())
    }

    /// The stored form of `i_blocks`, and whether it counts file system blocks. (Linux: `ext4_inode_blocks_set`.)
    fn stored_blocks(&self, ino: InodeNr, geometry: &Geometry) -> Result<(u64, bool)> {
        let limit = if geometry.huge_file { 1 << 48 } else { 1 << 32 };
        if self.blocks < limit {
            return Ok((self.blocks, false));
        }
        if self.blocks > InodeDesc::max_blocks(geometry) {
            return Err(Error::unsupported(format!("{ino} with {} sectors", self.blocks)));
        }
        Ok((self.blocks >> (geometry.block_bits - 9), true))
    }
}

const CTIME_EXTRA: usize = offset_of!(RawInodeExtra, i_ctime_extra);
const MTIME_EXTRA: usize = offset_of!(RawInodeExtra, i_mtime_extra);
const ATIME_EXTRA: usize = offset_of!(RawInodeExtra, i_atime_extra);
const CRTIME: usize = offset_of!(RawInodeExtra, i_crtime);
const CRTIME_EXTRA: usize = offset_of!(RawInodeExtra, i_crtime_extra);
const VERSION_HI: usize = offset_of!(RawInodeExtra, i_version_hi);
const PROJID: usize = offset_of!(RawInodeExtra, i_projid);

/// Whether the inode has a four-byte field at this offset of [`RawInodeExtra`] (Linux: `EXT4_FITS_IN_INODE`).
fn field_fits(field: usize, extra_isize: u16) -> bool {
    field + 4 <= usize::from(extra_isize)
}

/// The extra fields, with zeros past the end of the inode, and their size.
fn read_extra(rest: &[u8]) -> (RawInodeExtra, u16) {
    let mut extra = RawInodeExtra::new_zeroed();
    let length = rest.len().min(size_of::<RawInodeExtra>());
    extra.as_mut_bytes()[..length].copy_from_slice(&rest[..length]);
    (extra, extra.i_extra_isize.get())
}

/// Whether `i_size_high` is part of the size. In directories it once was `i_dir_acl`.
fn size_has_high(mode: u16, geometry: &Geometry) -> bool {
    geometry.large_dir || FileType::from_mode(mode) == Some(FileType::Regular)
}

fn whole<'a>(bytes: &'a [u8], ino: InodeNr, geometry: &Geometry) -> Result<&'a [u8]> {
    bytes
        .get(..geometry.inode_size)
        .ok_or_else(|| corrupt(ino, format!("{} bytes, {} needed", bytes.len(), geometry.inode_size)))
}

/// Checks the checksum of an inode's `inode_size` bytes. All zeros are accepted, because such an inode was never used.
///
/// # Errors
/// `Corrupt` if `bytes` is too short or the checksum differs.
pub fn verify_checksum(bytes: &[u8], ino: InodeNr, geometry: &Geometry) -> Result<()> {
    let bytes = whole(bytes, ino, geometry)?;
    match checksums(bytes, ino, geometry) {
        Some((found, expected)) if found != expected => {
            Err(corrupt(ino, InodeDamage::Checksum { found, expected }.to_string()))
        }
        _ => Ok(()),
    }
}

/// Whether an inode was never used, or has been zeroed.
pub fn is_zeros(bytes: &[u8]) -> bool {
    // Work in pieces: the compiler compares a whole piece at once, but leaves a loop over bytes at each byte.
    let (pieces, rest) = bytes.as_chunks::<64>();
    bytes.first().is_none_or(|byte| *byte == 0)
        && pieces.iter().all(|piece| *piece == [0; 64])
        && rest.iter().all(|byte| *byte == 0)
}

/// The stored checksum and the expected one; `None` without `metadata_csum`, and for an inode of zeros.
fn checksums(bytes: &[u8], ino: InodeNr, geometry: &Geometry) -> Option<(u32, u32)> {
    if !geometry.metadata_csum {
        return None;
    }
    let bytes = bytes.get(..geometry.inode_size)?;
    let (computed, has_high) = compute_checksum(bytes, ino, geometry);
    let mut stored = u32::from(u16::from_le_bytes([bytes[CHECKSUM_LO_AT], bytes[CHECKSUM_LO_AT + 1]]));
    if has_high {
        stored |= u32::from(u16::from_le_bytes([bytes[CHECKSUM_HI_AT], bytes[CHECKSUM_HI_AT + 1]])) << 16;
    }
    (stored == computed || !is_zeros(bytes)).then_some((stored, computed))
}

/// Updates the checksum of an inode's `inode_size` bytes after a change of them (of its xattrs, for example). Does
/// nothing without `metadata_csum`.
pub fn update_checksum(bytes: &mut [u8], ino: InodeNr, geometry: &Geometry) {
    if !geometry.metadata_csum || bytes.len() < geometry.inode_size {
        return;
    }
    let bytes = &mut bytes[..geometry.inode_size];
    let (checksum, has_high) = compute_checksum(bytes, ino, geometry);
    bytes[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].copy_from_slice(&(checksum as u16).to_le_bytes());
    if has_high {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].copy_from_slice(&((checksum >> 16) as u16).to_le_bytes());
    }
}

/// The maximum size of inodes whose checksum is computed in one call over an aligned copy. Nine of ten inodes have 256
/// bytes.
const COPIED_MAX: usize = 512;

/// An inode's number, its generation and its bytes, in the form that the checksum covers.
#[repr(align(8))]
struct Covered([u8; 8 + COPIED_MAX]);

/// The checksum, and whether the inode has room for its high half; if not, it is cut to 16 bits. The checksum fields
/// count as zero. `bytes` is exactly one inode.
fn compute_checksum(bytes: &[u8], ino: InodeNr, geometry: &Geometry) -> (u32, bool) {
    let extra_isize = |bytes: &[u8]| u16::from_le_bytes([bytes[GOOD_OLD_INODE_SIZE], bytes[GOOD_OLD_INODE_SIZE + 1]]);
    let has_high = bytes.len() >= CHECKSUM_HI_AT + 2 && extra_isize(bytes) >= 4;
    let at = offset_of!(RawInode, i_generation);
    let crc = if bytes.len() <= COPIED_MAX {
        let mut covered = Covered([0; 8 + COPIED_MAX]);
        let all = &mut covered.0[..8 + bytes.len()];
        let (front, inode) = all.split_at_mut(8);
        front[..4].copy_from_slice(&ino.0.to_le_bytes());
        front[4..].copy_from_slice(&bytes[at..at + 4]);
        inode.copy_from_slice(bytes);
        inode[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].fill(0);
        if has_high {
            inode[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].fill(0);
        }
        geometry.seed.checksum(all)
    } else {
        let generation = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut crc = geometry.seed.for_inode(ino, generation).checksum(&bytes[..CHECKSUM_LO_AT]);
        crc = crc32c(crc, &[0; 2]);
        match has_high {
            true => {
                crc = crc32c(crc, &bytes[CHECKSUM_LO_AT + 2..CHECKSUM_HI_AT]);
                crc32c(crc32c(crc, &[0; 2]), &bytes[CHECKSUM_HI_AT + 2..])
            }
            false => crc32c(crc, &bytes[CHECKSUM_LO_AT + 2..]),
        }
    };
    if has_high { (crc, true) } else { (crc & 0xffff, false) }
}

fn split(number: u32) -> (U16, U16) {
    (U16::new(number as u16), U16::new((number >> 16) as u16))
}

fn corrupt(ino: InodeNr, detail: impl Into<String>) -> Error {
    Error::corrupt(Structure::Inode, ino.0, detail)
}
