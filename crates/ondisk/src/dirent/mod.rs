//! Linear directory blocks as bytes: entries, the room between them, and the checksum tail.
//!
//! Main types: [`DirBlockFormat`] (how this file system writes a block, and every operation on one), [`Dirent`] (one
//! decoded entry), [`StoredEntry`] (one for a reader that judges it), [`Entries`] (a walk that validates),
//! [`WholeFormat`] (lays out whole directories), [`InlineDir`] (the names of a directory in its inode), [`DirDamage`]
//! (one fault).
//!
//! A block is a chain of entries, each `rec_len` bytes long. The chain ends exactly at the end of the block, or at the
//! twelve-byte tail if the file system has metadata checksums. The space from an entry's name to the end of its
//! `rec_len` is free. Deleting an entry adds its bytes to the one before it. The first entry of a block is marked with
//! inode 0 instead.
//!
//! What it does not do: hash trees (see [`crate::htree`]), case-insensitive names (see [`crate::casefold`]), or
//! encryption. An index block that is read as entries has no names except `.` and `..`, which is how the format hides
//! the index from old readers.
//!
//! # Locking
//! None: pure functions over slices. No function panics on any bytes. Every walk ends, because each step advances by at
//! least twelve bytes.

mod damage;
mod inline;
mod types;
mod whole;

#[cfg(test)]
mod tests;

pub use damage::{DirDamage, DirRule, tail_damage};
pub use inline::InlineDir;
pub use types::{RawDirent, RawDirentTail};
pub use whole::{DirectoryLayout, Target, WholeFormat};

use zerocopy::{FromBytes, IntoBytes};

use crate::csum::ChecksumSeed;
use crate::inode::FileType;

/// The longest name, in bytes (Linux: `EXT4_NAME_LEN`).
pub const NAME_MAX: usize = 255;
/// The size of the checksum tail, in bytes (Linux: `struct ext4_dir_entry_tail`).
pub const TAIL_LEN: usize = 12;
/// The size of the header before the name, in bytes.
pub const HEADER_LEN: usize = 8;
/// The length of the shortest legal entry: a header and a name of one to four bytes.
pub const REC_LEN_MIN: usize = 12;
/// The file type that marks the tail (Linux: `EXT4_FT_DIR_CSUM`).
const TAIL_FILE_TYPE: u8 = 0xDE;

/// The number of bytes that an entry with a name of `name_len` bytes needs (Linux: `ext4_dir_rec_len`, fs/ext4/ext4.h).
pub const fn rec_len_needed(name_len: usize) -> usize {
    (HEADER_LEN + name_len + 3) & !3
}

/// Decodes the 16-bit length. With blocks of 64 KiB, the length of a whole block does not fit and is written as 0xFFFF
/// or 0. The two low bits contain bits 16 and 17 (Linux: `ext4_rec_len_from_disk`).
#[inline(always)]
pub fn rec_len_from_disk(raw: u16, block_size: usize) -> usize {
    let len = usize::from(raw);
    if block_size < 1 << 16 {
        len
    } else if raw == u16::MAX || raw == 0 {
        block_size
    } else {
        (len & 0xFFFC) | ((len & 3) << 16)
    }
}

/// Encodes a length; the inverse of [`rec_len_from_disk`]. `len` must not exceed the block size.
pub fn rec_len_to_disk(len: usize, block_size: usize) -> u16 {
    debug_assert!(len <= block_size && len.is_multiple_of(4));
    if len < 1 << 16 {
        len as u16
    } else if len == block_size {
        u16::MAX
    } else {
        ((len & 0xFFFC) | ((len >> 16) & 3)) as u16
    }
}

/// Whether `name` may be written as a directory entry: 1 to 255 bytes, no slash, no NUL.
pub fn name_is_legal(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|&b| b == 0 || b == b'/')
}

/// An entry as it lies in its block, for a reader that judges it by rules of its own.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntry<'a> {
    /// The inode number; 0 when the entry is unused.
    pub ino: u32,
    /// How far the next entry is, in bytes.
    pub rec_len: usize,
    /// The length of the name: eight bits of 16 without the FILETYPE feature.
    pub name_len: usize,
    /// The byte with the type.
    pub file_type: u8,
    /// The name, as far as it lies in the block.
    pub name: &'a [u8],
    /// The byte behind the name; NUL where the name reaches the end of the block.
    pub after: u8,
}

impl<'a> StoredEntry<'a> {
    /// The entry at this byte, whatever its lengths are; `None` where the block has no room for one.
    #[inline(always)]
    pub fn at(block: &'a [u8], offset: usize) -> Option<StoredEntry<'a>> {
        let (raw, rest) = RawDirent::ref_from_prefix(block.get(offset..)?).ok()?;
        let name_len = usize::from(raw.name_len);
        Some(StoredEntry {
            ino: raw.inode.get(),
            rec_len: rec_len_from_disk(raw.rec_len.get(), block.len()),
            name_len,
            file_type: raw.file_type,
            name: rest.get(..name_len).unwrap_or(rest),
            after: rest.get(name_len).copied().unwrap_or(0),
        })
    }

    /// The entry at this byte, if its name fits and it leads to the next one or to `limit`, the end of the entries.
    ///
    /// # Errors
    /// [`DirDamage`] of its lengths.
    #[inline(always)]
    pub fn checked(block: &'a [u8], offset: usize, limit: usize) -> Result<StoredEntry<'a>, DirDamage> {
        let damage = |what| Err(DirDamage::new(offset, what));
        let room = limit.saturating_sub(offset);
        let Some(entry) = StoredEntry::at(block, offset).filter(|_| room >= HEADER_LEN) else {
            return damage(DirRule::HeaderCut);
        };
        let (found, needed) = (entry.rec_len as u32, rec_len_needed(entry.name_len));
        if entry.rec_len < REC_LEN_MIN {
            return damage(DirRule::RecLen { found });
        }
        if !entry.rec_len.is_multiple_of(4) {
            return damage(DirRule::RecLenUnaligned { found });
        }
        if entry.rec_len < needed {
            return damage(DirRule::NameLen { found, needed: needed as u32 });
        }
        if entry.rec_len > room {
            return damage(DirRule::PastEnd { found, room: room as u32 });
        }
        Ok(entry)
    }
}

/// One decoded entry, which is validated (Linux: `struct ext4_dir_entry_2`, fs/ext4/ext4.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The offset of the entry in its block, in bytes.
    pub offset: u32,
    /// The distance to the next entry, in bytes.
    pub rec_len: u32,
    /// The inode number; 0 if the entry is unused.
    pub ino: u32,
    /// The type; `None` if it is not stored (without the FILETYPE feature), or is a number that Extant does not know.
    pub file_type: Option<FileType>,
    /// The name, without terminator.
    pub name: &'a [u8],
}

impl Dirent<'_> {
    /// Whether the entry refers to a file.
    pub fn is_used(&self) -> bool {
        self.ino != 0
    }

    /// Whether the entry is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }

    /// The number of bytes that the entry itself needs; the rest of `rec_len` is free.
    pub fn needed(&self) -> usize {
        if self.is_used() { rec_len_needed(self.name.len()) } else { 0 }
    }
}

/// The result of [`DirBlockFormat::find_room`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The entry at this offset has enough free bytes.
    At {
        /// The offset from the start of the block, in bytes.
        offset: u32,
    },
    /// The block already contains the name.
    Exists {
        /// The offset of the entry with that name, in bytes.
        offset: u32,
    },
    /// No entry has enough free bytes in one piece.
    Full,
}

/// The result of [`DirBlockFormat::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// The new entry starts at this offset.
    Done {
        /// The offset from the start of the block, in bytes.
        offset: u32,
    },
    /// The block already contains the name; nothing changed.
    Exists {
        /// The offset of the entry with that name, in bytes.
        offset: u32,
    },
    /// There is no room; nothing changed.
    Full,
}

/// The format of this file system's directory blocks. The block size is the length of the slices passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirBlockFormat {
    /// The FILETYPE feature: entries contain the type of their inode.
    pub has_filetype: bool,
    /// The metadata_csum feature: leaf blocks end in a tail.
    pub has_csum: bool,
    /// Larger inode numbers are damage.
    pub inodes_count: u32,
    /// Names are ciphertext (fscrypt): they may contain any bytes, but `.` and `..` are plain.
    pub encrypted: bool,
}

impl DirBlockFormat {
    /// Whether an entry may have these bytes as its name. Ciphertext may be any 1 to 255 bytes.
    pub fn may_store(&self, name: &[u8]) -> bool {
        name_is_legal(name) || self.encrypted && !name.is_empty() && name.len() <= NAME_MAX
    }

    /// The number of bytes of a block that entries may use.
    pub fn limit(&self, block_size: usize) -> usize {
        if self.has_csum { block_size.saturating_sub(TAIL_LEN) } else { block_size }
    }

    /// Decodes the entry at `offset` and checks everything except the characters of its name.
    #[inline(always)]
    fn decode<'a>(&self, block: &'a [u8], offset: usize) -> Result<Dirent<'a>, DirDamage> {
        let entry = self.link(block, offset)?;
        if entry.ino > self.inodes_count {
            let rule = DirRule::Inode { found: entry.ino, most: self.inodes_count };
            return Err(DirDamage::new(offset, rule));
        }
        Ok(entry)
    }

    /// As [`DirBlockFormat::decode`], for callers that only need a valid distance to the next entry.
    #[inline(always)]
    fn link<'a>(&self, block: &'a [u8], offset: usize) -> Result<Dirent<'a>, DirDamage> {
        let damage = |what| Err(DirDamage::new(offset, what));
        let entry = StoredEntry::checked(block, offset, block.len())?;
        let (end, limit) = (offset + entry.rec_len, self.limit(block.len()));
        if end > limit {
            // An index block shows itself as one entry, or as `.` and `..`, that reaches the very end of the block.
            let hides_index = (offset == 0 && entry.ino == 0) || offset == REC_LEN_MIN;
            if end != block.len() || !hides_index {
                let found = entry.rec_len as u32;
                return damage(DirRule::InTail { found, room: limit.saturating_sub(offset) as u32 });
            }
        } else if end != limit && limit - end < REC_LEN_MIN {
            return damage(DirRule::ShortRest { left: (limit - end) as u32 });
        }
        let StoredEntry { ino, rec_len, name, .. } = entry;
        let file_type = if self.has_filetype { FileType::from_dirent_code(entry.file_type) } else { None };
        Ok(Dirent { offset: offset as u32, rec_len: rec_len as u32, ino, file_type, name })
    }

    /// All entries of a block, including unused ones, without the tail. A damaged entry appears as an error, and the
    /// iteration continues after it if its length is valid.
    pub fn entries<'a>(&self, block: &'a [u8]) -> Entries<'a> {
        Entries { format: *self, block, offset: 0 }
    }

    /// Finds a used entry by name. This is a hot path: it does not allocate memory, and does not look at the bytes of
    /// names with another length.
    ///
    /// # Errors
    /// [`DirDamage`] if the chain of entries breaks before the match, or if the matching entry is damaged. Other
    /// entries may be damaged.
    pub fn find<'a>(&self, block: &'a [u8], name: &[u8]) -> Result<Option<Dirent<'a>>, DirDamage> {
        self.find_by(block, |stored| stored == name)
    }

    /// As [`DirBlockFormat::find`], for the first used entry whose name `is` accepts.
    ///
    /// # Errors
    /// Those of [`DirBlockFormat::find`].
    #[inline(always)]
    pub fn find_by<'a>(&self, block: &'a [u8], is: impl Fn(&[u8]) -> bool) -> Result<Option<Dirent<'a>>, DirDamage> {
        let limit = self.limit(block.len());
        let mut offset = 0;
        while offset < limit {
            let entry = self.link(block, offset)?;
            if entry.is_used() && is(entry.name) {
                return self.decode(block, offset).map(Some);
            }
            offset += entry.rec_len as usize;
        }
        Ok(None)
    }

    /// Searches for `name`, and for the first entry that has room for it.
    ///
    /// # Errors
    /// [`DirDamage`] anywhere in the block, and for index blocks of file systems with checksums.
    pub fn find_room(&self, block: &[u8], name: &[u8]) -> Result<Room, DirDamage> {
        let limit = self.limit(block.len());
        let needed = rec_len_needed(name.len());
        let mut room = Room::Full;
        let mut offset = 0;
        while offset < limit {
            let entry = self.decode(block, offset)?;
            let end = offset + entry.rec_len as usize;
            if end > limit {
                return Err(DirDamage { offset: entry.offset, what: DirRule::IndexForLeaf });
            }
            if entry.is_used() && entry.name == name {
                return Ok(Room::Exists { offset: entry.offset });
            }
            if room == Room::Full && entry.rec_len as usize - entry.needed() >= needed {
                room = Room::At { offset: entry.offset };
            }
            offset = end;
        }
        Ok(room)
    }

    /// Adds an entry where there is room, in the free bytes of another entry (Linux: `ext4_insert_dentry`).
    ///
    /// # Errors
    /// [`DirDamage`] of the block, or a name that may not be written.
    pub fn insert(
        &self,
        block: &mut [u8],
        name: &[u8],
        ino: u32,
        file_type: Option<FileType>,
    ) -> Result<Insert, DirDamage> {
        if !self.may_store(name) || ino == 0 {
            return Err(DirDamage { offset: 0, what: DirRule::Unwritable });
        }
        let offset = match self.find_room(block, name)? {
            Room::At { offset } => offset as usize,
            Room::Exists { offset } => return Ok(Insert::Exists { offset }),
            Room::Full => return Ok(Insert::Full),
        };
        let entry = self.decode(block, offset)?;
        let (used, rec_len) = (entry.needed(), entry.rec_len as usize);
        if used > 0 {
            write_rec_len(block, offset, used);
        }
        self.write_entry(block, offset + used, rec_len - used, name, ino, file_type);
        Ok(Insert::Done { offset: (offset + used) as u32 })
    }

    /// Removes the used entry at `offset`. Its bytes are added to the entry before it; if it is the first, it is marked
    /// as unused. The name is wiped (Linux: `ext4_generic_delete_entry`, fs/ext4/namei.c).
    ///
    /// # Errors
    /// [`DirDamage`] if no used entry starts there, or if the chain before it is broken; nothing has changed then.
    pub fn remove(&self, block: &mut [u8], offset: u32) -> Result<(), DirDamage> {
        let (previous, entry) = self.entry_with_previous(block, offset as usize)?;
        let (start, rec_len) = (offset as usize, entry.rec_len as usize);
        if start + rec_len > self.limit(block.len()) {
            return Err(DirDamage { offset, what: DirRule::IndexForLeaf });
        }
        match previous {
            Some((before, before_len)) => {
                block[start..start + rec_len].fill(0);
                write_rec_len(block, before, before_len + rec_len);
            }
            None => {
                block[start..start + rec_len].fill(0);
                write_rec_len(block, start, rec_len);
            }
        }
        Ok(())
    }

    /// Changes the inode of the used entry at `offset`; the name does not change.
    ///
    /// # Errors
    /// [`DirDamage`] if no used entry starts there.
    pub fn set_inode(
        &self,
        block: &mut [u8],
        offset: u32,
        ino: u32,
        file_type: Option<FileType>,
    ) -> Result<(), DirDamage> {
        self.entry_with_previous(block, offset as usize)?;
        let at = offset as usize;
        block[at..at + 4].copy_from_slice(&ino.to_le_bytes());
        block[at + 7] = if self.has_filetype { file_type.map_or(0, FileType::dirent_code) } else { 0 };
        Ok(())
    }

    /// Writes another name into the used entry at `offset`. Returns false, without a change, if the name needs more
    /// bytes than the old one.
    ///
    /// # Errors
    /// [`DirDamage`] if no used entry starts there, or for a name that may not be written.
    pub fn set_name(&self, block: &mut [u8], offset: u32, name: &[u8]) -> Result<bool, DirDamage> {
        if !name_is_legal(name) {
            return Err(DirDamage { offset, what: DirRule::Unwritable });
        }
        let (_, entry) = self.entry_with_previous(block, offset as usize)?;
        let (needed, rec_len, ino, file_type) = (entry.needed(), entry.rec_len as usize, entry.ino, entry.file_type);
        if rec_len_needed(name.len()) > needed {
            return Ok(false);
        }
        let at = offset as usize;
        block[at + HEADER_LEN..at + needed].fill(0);
        self.write_entry(block, at, rec_len, name, ino, file_type);
        Ok(true)
    }

    /// The used entry that starts at `offset`, found by following the chain from the start of the block.
    ///
    /// # Errors
    /// [`DirDamage`] if there is none.
    pub fn entry_at<'a>(&self, block: &'a [u8], offset: u32) -> Result<Dirent<'a>, DirDamage> {
        self.entry_with_previous(block, offset as usize).map(|(_, entry)| entry)
    }

    fn entry_with_previous<'a>(
        &self,
        block: &'a [u8],
        target: usize,
    ) -> Result<(Option<(usize, usize)>, Dirent<'a>), DirDamage> {
        let mut previous = None;
        let mut offset = 0;
        while offset <= target && offset < self.limit(block.len()) {
            let entry = self.decode(block, offset)?;
            if offset == target && entry.is_used() {
                return Ok((previous, entry));
            }
            previous = Some((offset, entry.rec_len as usize));
            offset += entry.rec_len as usize;
        }
        Err(DirDamage { offset: target as u32, what: DirRule::NotThere })
    }

    /// Turns `block` into an empty leaf, including the tail.
    pub fn init_leaf(&self, block: &mut [u8]) {
        block.fill(0);
        write_rec_len(block, 0, self.limit(block.len()));
        self.init_tail(block);
    }

    /// Turns `block` into the first block of a new directory: `.`, `..`, and the tail (Linux: `ext4_init_dot_dotdot`).
    pub fn init_dots(&self, block: &mut [u8], ino: u32, parent: u32) {
        let limit = self.limit(block.len());
        block.fill(0);
        self.write_entry(block, 0, REC_LEN_MIN, b".", ino, Some(FileType::Directory));
        self.write_entry(block, REC_LEN_MIN, limit - REC_LEN_MIN, b"..", parent, Some(FileType::Directory));
        self.init_tail(block);
    }

    /// The inode numbers of `.` and `..`, and the offset of the latter's entry. Works for the first block of a linear
    /// directory and for an index root.
    ///
    /// # Errors
    /// [`DirDamage`] if the block does not start with these two.
    pub fn dots(&self, block: &[u8]) -> Result<(u32, u32, u32), DirDamage> {
        let dot = self.decode(block, 0)?;
        if dot.name != b"." || !dot.is_used() {
            return Err(DirDamage::new(0, DirRule::DotName));
        }
        let dotdot = self.decode(block, dot.rec_len as usize)?;
        if dotdot.name != b".." || !dotdot.is_used() {
            return Err(DirDamage { offset: dot.rec_len, what: DirRule::DotDotName });
        }
        Ok((dot.ino, dotdot.ino, dotdot.offset))
    }

    /// Fills `block` with copies of `entries`, without gaps; the last one extends to the end of the block (Linux:
    /// `dx_pack_dirents`, `dx_move_dirents`).
    ///
    /// # Errors
    /// [`DirDamage`] if they do not fit.
    pub fn pack<'a>(&self, block: &mut [u8], entries: impl Iterator<Item = Dirent<'a>>) -> Result<(), DirDamage> {
        let limit = self.limit(block.len());
        self.init_leaf(block);
        let mut last: Option<(usize, usize)> = None;
        let mut offset = 0;
        for entry in entries.filter(Dirent::is_used) {
            let needed = entry.needed();
            if limit - offset < needed {
                return Err(DirDamage { offset: entry.offset, what: DirRule::DoNotFit });
            }
            self.write_entry(block, offset, needed, entry.name, entry.ino, entry.file_type);
            last = Some((offset, needed));
            offset += needed;
        }
        if let Some((start, needed)) = last {
            write_rec_len(block, start, needed + (limit - offset));
        }
        Ok(())
    }

    fn write_entry(
        &self,
        block: &mut [u8],
        offset: usize,
        rec_len: usize,
        name: &[u8],
        ino: u32,
        ft: Option<FileType>,
    ) {
        let raw = RawDirent {
            inode: ino.into(),
            rec_len: rec_len_to_disk(rec_len, block.len()).into(),
            name_len: name.len() as u8,
            file_type: if self.has_filetype { ft.map_or(0, FileType::dirent_code) } else { 0 },
        };
        let end = rec_len_needed(name.len());
        let bytes = &mut block[offset..offset + end];
        bytes.fill(0);
        bytes[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        bytes[HEADER_LEN..HEADER_LEN + name.len()].copy_from_slice(name);
    }

    fn init_tail(&self, block: &mut [u8]) {
        if self.has_csum {
            let at = block.len() - TAIL_LEN;
            let tail = RawDirentTail {
                reserved_zero1: 0.into(),
                rec_len: (TAIL_LEN as u16).into(),
                reserved_zero2: 0,
                reserved_ft: TAIL_FILE_TYPE,
                checksum: 0.into(),
            };
            block[at..].copy_from_slice(tail.as_bytes());
        }
    }
}

/// Writes the tail's checksum into a leaf that has a tail. `seed` is the seed of the directory's inode.
pub fn seal_leaf(block: &mut [u8], seed: ChecksumSeed) {
    if block.len() >= TAIL_LEN {
        let at = block.len() - TAIL_LEN;
        let checksum = seed.checksum(&block[..at]);
        block[at + 8..].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Checks a leaf's tail and its checksum (Linux: `ext4_dirblock_csum_verify`, fs/ext4/namei.c).
///
/// # Errors
/// [`DirDamage`] if the tail is missing or the checksum does not match.
pub fn verify_leaf(block: &[u8], seed: ChecksumSeed) -> Result<(), DirDamage> {
    let mut first = None;
    tail_damage(block, seed, &mut |damage| first = first.or(Some(damage)));
    first.map_or(Ok(()), Err)
}

pub(crate) fn write_rec_len(block: &mut [u8], offset: usize, rec_len: usize) {
    let raw = rec_len_to_disk(rec_len, block.len());
    block[offset + 4..offset + 6].copy_from_slice(&raw.to_le_bytes());
}

/// An iterator over the entries of a block, from [`DirBlockFormat::entries`]. It includes unused entries. It ends if
/// the chain of entries breaks.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    format: DirBlockFormat,
    block: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Dirent<'a>, DirDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        let limit = self.format.limit(self.block.len());
        if self.offset >= limit {
            return None;
        }
        let entry = match self.format.link(self.block, self.offset) {
            Ok(entry) => entry,
            Err(damage) => {
                self.offset = limit;
                return Some(Err(damage));
            }
        };
        self.offset += entry.rec_len as usize;
        let broken = self.format.broken_rule(&entry);
        Some(broken.map_or(Ok(entry), |what| Err(DirDamage { offset: entry.offset, what })))
    }
}
