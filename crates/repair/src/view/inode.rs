//! Inodes: read from their tables, and changed with their checksums.
//!
//! Main type: [`Inode`].
//!
//! # Locking
//! None.

use extant_ondisk::indirect;
use extant_ondisk::inode::{
    FAST_SYMLINK_LIMIT, FileType, InodeDesc, InodeFlags, MODE_TYPE_MASK, RawInode, update_checksum,
};
use extant_ondisk::map::Form;
use extant_ondisk::{BlockNr, InodeNr};
use zerocopy::FromBytes;

use super::Image;
use crate::error::{Refusal, StepResult};

/// The list of bad blocks has a map without a mode.
pub const BAD_BLOCKS: InodeNr = InodeNr(1);

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    pub ino: InodeNr,
    pub bytes: Vec<u8>,
    pub raw: RawInode,
}

impl Inode {
    /// The kind according to its mode.
    pub fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.raw.i_mode.get())
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileType::Directory)
    }

    pub fn is_file(&self) -> bool {
        self.kind() == Some(FileType::Regular)
    }

    pub fn is_symlink(&self) -> bool {
        self.kind() == Some(FileType::Symlink)
    }

    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.raw.i_flags.get())
    }

    pub fn has(&self, flags: InodeFlags) -> bool {
        self.flags().intersects(flags)
    }

    pub fn links(&self) -> u16 {
        self.raw.i_links_count.get()
    }

    /// The stored size, from both halves.
    pub fn size(&self) -> u64 {
        u64::from(self.raw.i_size_lo.get()) | u64::from(self.raw.i_size_high.get()) << 32
    }

    pub fn generation(&self) -> u32 {
        self.raw.i_generation.get()
    }

    /// The attribute block; `None` if there is none.
    pub fn file_acl(&self, image: &Image) -> Option<BlockNr> {
        let high = if image.geo.bit64 { u64::from(self.raw.l_i_file_acl_high.get()) << 32 } else { 0 };
        let block = BlockNr(u64::from(self.raw.i_file_acl_lo.get()) | high);
        (block.0 != 0).then_some(block)
    }

    /// Whether this is a symlink that, according to its size, has its target in the inode.
    fn is_short_symlink(&self) -> bool {
        self.is_symlink() && self.size() != 0 && self.size() < FAST_SYMLINK_LIMIT
    }

    /// Whether `i_block` contains a map.
    pub fn has_map(&self, image: &Image) -> bool {
        if self.ino == BAD_BLOCKS {
            return true;
        }
        if self.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        if !self.is_symlink() {
            let system = self.ino.0 < image.geo.first_ino && self.kind().is_none();
            return self.is_dir() || self.is_file() || system;
        }
        match self.file_acl(image) {
            None => self.raw.i_blocks_lo.get() != 0 && !self.is_short_symlink(),
            Some(_) => {
                let second = indirect::pointer(&self.raw.i_block, 1);
                self.size() >= FAST_SYMLINK_LIMIT || (self.size() > 4 && second == Some(0))
            }
        }
    }

    /// The form of its map.
    pub fn form(&self, image: &Image) -> Form {
        let extents = image.geo.extents && self.has(InodeFlags::EXTENTS);
        if extents { Form::Extents } else { Form::Indirect }
    }

    /// Whether all of its bytes are zero.
    pub fn is_zero(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }
}

impl Image {
    /// The offset of an inode on the device, in bytes.
    pub fn inode_at(&self, ino: InodeNr) -> Option<u64> {
        let place = self.geo.inode_location(ino).ok()?;
        let table = self.descs.get(place.group.0 as usize)?.inode_table;
        let block = BlockNr(table.0.checked_add(u64::from(place.table_block))?);
        let exists = table.0 != 0 && self.can_have(block, 1);
        exists.then(|| (block.0 << self.geo.block_bits) + place.offset as u64)
    }

    /// Reads an inode.
    pub fn inode(&self, ino: InodeNr) -> StepResult<Inode> {
        let lost = Refusal::Lost("the inode has no place in a table");
        let bytes = self.bytes(self.inode_at(ino).ok_or(lost.clone())?, self.geo.inode_size)?;
        let (raw, _) = RawInode::read_from_prefix(&bytes).map_err(|_| lost)?;
        Ok(Inode { ino, raw, bytes })
    }

    /// Whether the block of the table that contains the inode can be read.
    pub fn is_inode_readable(&self, ino: InodeNr) -> bool {
        self.inode_at(ino).is_some_and(|at| !self.is_unreadable(BlockNr(at >> self.geo.block_bits), 1))
    }

    /// The decoded inode.
    pub fn desc(&self, inode: &Inode) -> StepResult<InodeDesc> {
        InodeDesc::parse(&inode.bytes, inode.ino, &self.geo).map_err(|_| Refusal::Lost("the inode is cut off"))
    }

    /// Changes the bytes of an inode, and then its checksum.
    pub fn change_inode_bytes(&self, ino: InodeNr, change: impl FnOnce(&mut [u8])) -> StepResult {
        let at = self.inode_at(ino).ok_or(Refusal::Lost("the inode has no place in a table"))?;
        let mut bytes = self.bytes(at, self.geo.inode_size)?;
        change(&mut bytes);
        update_checksum(&mut bytes, ino, &self.geo);
        self.write(at, &bytes)
    }

    /// Changes the fields of an inode.
    pub fn change_inode(&self, ino: InodeNr, change: impl FnOnce(&mut RawInode)) -> StepResult {
        self.change_inode_bytes(ino, |bytes| {
            if let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) {
                change(raw);
            }
        })
    }

    /// Sets the size of a file.
    pub fn set_size(&self, ino: InodeNr, size: u64) -> StepResult {
        self.change_inode(ino, |raw| {
            raw.i_size_lo.set(size as u32);
            raw.i_size_high.set((size >> 32) as u32);
        })
    }

    /// Zeroes an inode, as if it had never been used.
    pub fn zero_inode(&mut self, ino: InodeNr) -> StepResult {
        self.touch(ino);
        let at = self.inode_at(ino).ok_or(Refusal::Lost("the inode has no place in a table"))?;
        self.write(at, &vec![0; self.geo.inode_size])
    }

    /// Sets the kind in an inode's mode. Permissions are kept; if there are none, the owner may read and write.
    pub fn set_kind(&self, ino: InodeNr, kind: FileType) -> StepResult {
        self.change_inode(ino, |raw| {
            let permissions = raw.i_mode.get() & !MODE_TYPE_MASK;
            let least = if kind == FileType::Directory { 0o700 } else { 0o600 };
            let permissions = if permissions == 0 { least } else { permissions };
            raw.i_mode.set(kind.mode_bits() | permissions);
        })
    }
}
