//! The xattr block that `i_file_acl` points to; several inodes may share one (Linux: `struct ext4_xattr_header`).

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::damage::{XattrContext, XattrDamage};
use super::entry::{EntryRef, Hashes, Place, lay_out, parse, scan};
use super::{EntryList, MAGIC, NoSpace, block_hash};
use crate::csum::crc32c;
use crate::damage::refuse;
use crate::{BlockNr, Error, Result, Structure};

/// The header at the start of the block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    h_magic: U32,
    h_refcount: U32,
    h_blocks: U32,
    h_hash: U32,
    h_checksum: U32,
    h_reserved: [U32; 3],
}

/// The size of the header in bytes.
pub const HEADER_LEN: usize = 32;
const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);
const _: () = assert!(std::mem::offset_of!(RawHeader, h_checksum) == CHECKSUM_AT);
const CHECKSUM_AT: usize = 16;
/// The maximum number of inodes that share a block (Linux: `EXT4_XATTR_REFCOUNT_MAX`).
pub const REFCOUNT_MAX: u32 = 1024;

/// `h_checksum`: covers the block's number and its bytes, with the checksum zeroed. It depends on no inode, because
/// inodes share the block, but a block that moves needs a new checksum. `seed` is the file system's checksum seed.
pub fn block_checksum(seed: u32, nr: BlockNr, block: &[u8]) -> u32 {
    let (head, tail) = block.split_at(CHECKSUM_AT.min(block.len()));
    let sum = crc32c(crc32c(seed, &nr.0.to_le_bytes()), head);
    crc32c(crc32c(sum, &[0; 4]), tail.get(4..).unwrap_or_default())
}

/// A decoded xattr block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrBlock<'a> {
    /// The number of inodes that refer to the block, at least 1.
    pub refcount: u32,
    /// The stored `h_hash`; 0 means "never share".
    pub hash: u32,
    /// The entries, in the order of the block.
    pub entries: Vec<EntryRef<'a>>,
}

fn place(nr: BlockNr) -> Place {
    let hashes = Hashes::Stored;
    Place { structure: Structure::XattrBlock, number: nr.0, first: HEADER_LEN, value_base: 0, hashes }
}

fn header(block: &[u8], nr: BlockNr, seed: Option<u32>) -> Result<&RawHeader> {
    refuse(Structure::XattrBlock, nr.0, |mut sink| header_damage(block, nr, seed, &mut sink))?;
    RawHeader::ref_from_prefix(block)
        .map(|(h, _)| h)
        .map_err(|_| Error::corrupt(Structure::XattrBlock, nr.0, "shorter than its header"))
}

fn header_damage(block: &[u8], nr: BlockNr, seed: Option<u32>, sink: &mut impl FnMut(XattrDamage)) {
    let Ok((h, _)) = RawHeader::ref_from_prefix(block) else {
        return sink(XattrDamage::Length { found: block.len() as u32 });
    };
    if h.h_magic.get() != MAGIC {
        sink(XattrDamage::Magic { found: h.h_magic.get() });
    }
    if h.h_blocks.get() != 1 {
        sink(XattrDamage::Blocks { found: h.h_blocks.get() });
    }
    if h.h_refcount.get() == 0 {
        sink(XattrDamage::NoReferences);
    }
    if let Some(seed) = seed {
        let (found, expected) = (h.h_checksum.get(), block_checksum(seed, nr, block));
        if found != expected {
            sink(XattrDamage::Checksum { found, expected });
        }
    }
}

/// Reads a block in one pass for the checker: reports every attribute without fatal damage, and every fault. Returns
/// the header, or nothing if the magic number is missing, because the block is then no xattr block.
pub fn scan_block<'a>(
    block: &'a [u8],
    nr: BlockNr,
    context: &XattrContext,
    sink: &mut impl FnMut(std::result::Result<EntryRef<'a>, XattrDamage>),
) -> Option<References> {
    header_damage(block, nr, context.seed, &mut |damage| sink(Err(damage)));
    let (h, _) = RawHeader::ref_from_prefix(block).ok().filter(|(h, _)| h.h_magic.get() == MAGIC)?;
    scan(block, &place(nr), context, sink);
    Some(References { count: h.h_refcount.get(), hash: h.h_hash.get() })
}

impl<'a> XattrBlock<'a> {
    /// Validates a block. `seed` is the checksum seed of a file system with metadata checksums, otherwise `None`.
    ///
    /// # Errors
    /// `Corrupt` if the header, the checksum or an entry is wrong.
    pub fn parse(block: &'a [u8], nr: BlockNr, seed: Option<u32>) -> Result<XattrBlock<'a>> {
        let h = header(block, nr, seed)?;
        let entries = parse(block, &place(nr))?;
        Ok(XattrBlock { refcount: h.h_refcount.get(), hash: h.h_hash.get(), entries })
    }

    /// The entries as an editable list.
    pub fn to_list(&self) -> EntryList {
        EntryList::from_refs(&self.entries)
    }

    /// The reference count and hash of the header.
    pub fn references(&self) -> References {
        References { count: self.refcount, hash: self.hash }
    }

    /// Whether the block has the same contents as `list`, in any order.
    pub fn holds(&self, list: &EntryList) -> bool {
        let mut sorted = list.clone();
        sorted.sort_for_block();
        let same = |e: &EntryRef<'_>, own: &super::Entry| {
            e.outside() == own.outside && e.name == own.name() && e.value == own.value.as_slice()
        };
        self.entries.len() == sorted.len() && self.entries.iter().zip(sorted.iter()).all(|(e, own)| same(e, own))
    }

    /// The `h_hash` that a block with `list` has.
    pub fn hash_of(list: &EntryList) -> u32 {
        let mut sorted = list.clone();
        sorted.sort_for_block();
        block_hash(sorted.iter().map(super::Entry::hash))
    }

    /// Writes `list`, sorted, as the whole content of the block, with hashes and (if there is a seed) the checksum.
    ///
    /// # Errors
    /// [`NoSpace`] if the list does not fit into the block. Nothing is written then.
    pub fn encode(
        list: &EntryList,
        refcount: u32,
        block: &mut [u8],
        nr: BlockNr,
        seed: Option<u32>,
    ) -> std::result::Result<(), NoSpace> {
        if block.len() < HEADER_LEN {
            return Err(NoSpace { needed: HEADER_LEN + list.stored_len(), available: block.len() });
        }
        let mut sorted = list.clone();
        sorted.sort_for_block();
        let mut hashes = Vec::with_capacity(sorted.len());
        lay_out(&sorted, block, &place(nr), |e| {
            hashes.push(e.hash());
            hashes[hashes.len() - 1]
        })?;
        let raw = RawHeader {
            h_magic: U32::new(MAGIC),
            h_refcount: U32::new(refcount),
            h_blocks: U32::new(1),
            h_hash: U32::new(block_hash(hashes)),
            h_checksum: U32::new(0),
            h_reserved: [U32::new(0); 3],
        };
        block[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        seal(block, nr, seed);
        Ok(())
    }
}

/// Updates the checksum of an attribute block. `seed` is that of the file system; without it, nothing changes.
pub fn seal_block(block: &mut [u8], nr: BlockNr, seed: Option<u32>) {
    seal(block, nr, seed);
}

pub(super) fn seal(block: &mut [u8], nr: BlockNr, seed: Option<u32>) {
    if let Some(seed) = seed {
        let sum = block_checksum(seed, nr, block);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The number of inodes that refer to a block, and the hash by which identical blocks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct References {
    /// `h_refcount`.
    pub count: u32,
    /// `h_hash`; 0 means "never share".
    pub hash: u32,
}

impl References {
    /// Reads the references in the header of a block.
    ///
    /// # Errors
    /// The header or the block's checksum is damaged.
    pub fn read(block: &[u8], nr: BlockNr, seed: Option<u32>) -> Result<References> {
        let h = header(block, nr, seed)?;
        Ok(References { count: h.h_refcount.get(), hash: h.h_hash.get() })
    }

    /// Whether another inode may refer to the block.
    pub fn may_grow(&self) -> bool {
        self.hash != 0 && self.count < REFCOUNT_MAX
    }

    fn write(self, block: &mut [u8], nr: BlockNr, seed: Option<u32>) -> References {
        block[4..8].copy_from_slice(&self.count.to_le_bytes());
        seal(block, nr, seed);
        self
    }
}

/// Adds one inode's reference in place, and returns the new state. Returns `None`, without a change, for a block that
/// no other inode may refer to.
///
/// # Errors
/// Those of [`References::read`].
pub fn add_reference(block: &mut [u8], nr: BlockNr, seed: Option<u32>) -> Result<Option<References>> {
    let now = References::read(block, nr, seed)?;
    Ok(now.may_grow().then(|| References { count: now.count + 1, ..now }.write(block, nr, seed)))
}

/// Removes one inode's reference in place, and returns the new state. If that is 0, the block does not change, and the
/// caller frees and revokes it.
///
/// # Errors
/// Those of [`References::read`].
pub fn drop_reference(block: &mut [u8], nr: BlockNr, seed: Option<u32>) -> Result<References> {
    let now = References::read(block, nr, seed)?;
    let left = References { count: now.count - 1, ..now };
    Ok(if left.count > 0 { left.write(block, nr, seed) } else { left })
}
