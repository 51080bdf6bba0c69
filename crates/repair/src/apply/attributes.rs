//! Attributes: keeps those that can be read.
//!
//! # Locking
//! None.

use extant_check::InodeState;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::xattr::{
    EntryRef, Fate, MAGIC, XattrContext, block_checksum, entry_hash, entry_hash_signed, mend_area, mend_block,
};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::inode::Inode;

/// The offset of the reference count in an attribute block.
const REFERENCES_AT: usize = 4;
/// The offset of the checksum.
const CHECKSUM_AT: usize = 16;

fn context(image: &Image) -> XattrContext {
    let geo = &image.geo;
    let seed = geo.metadata_csum.then(|| geo.seed.raw());
    XattrContext { seed, ea_inode: geo.ea_inode, inodes: (geo.first_ino, geo.inodes_count) }
}

/// The maximum number of bytes of a value (Linux: `XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 64 << 10;

/// Whether an attribute can be kept. If its value is in an inode, that must be an inode for values and have the right
/// size. The hash is that of the value's bytes, not the stored one.
fn fate(image: &Image, entry: &EntryRef<'_>) -> Fate {
    let Some((ino, size)) = entry.outside else { return Fate::Stays };
    let value = image.inode(ino).ok().filter(|value| {
        value.is_file() && value.has(InodeFlags::EA_INODE) && value.size() == size.into() && size <= VALUE_MAX
    });
    let Some(value) = value else { return Fate::Goes };
    let Some(hash) = value_hash(image, &value, size) else { return Fate::Stays };
    let names = [entry_hash, entry_hash_signed].map(|name| name(entry.name.suffix, &[0; 4]) ^ hash);
    let fits = names.contains(&entry.hash);
    if !fits && is_lustre(image, &value) {
        return Fate::Stays;
    }
    if value.raw.i_atime.get() != hash && image.change_inode(ino, |raw| raw.i_atime.set(hash)).is_err() {
        return Fate::Goes;
    }
    Fate::StaysWith { hash: if fits { entry.hash } else { names[0] } }
}

/// Whether the value stores an inode in use as its owner, like values of Lustre (Linux: `ext4_xattr_inode_iget`). Such
/// a value has no hash.
fn is_lustre(image: &Image, value: &Inode) -> bool {
    let owner = InodeNr(value.raw.i_mtime.get());
    image.inode(owner).is_ok_and(|owner| owner.links() > 0 && owner.generation() == value.generation())
}

/// The hash of a value's bytes; `None` if some of them cannot be read.
fn value_hash(image: &Image, value: &Inode, size: u32) -> Option<u32> {
    let mapped = image.map(value);
    let mut bytes = Vec::new();
    for lblk in 0..u64::from(size).div_ceil(image.geo.block_size.into()) {
        let place = mapped.place(lblk).filter(|block| !image.is_unreadable(*block, 1))?;
        bytes.extend(image.block(place).ok()?);
    }
    Some(image.geo.seed.checksum(&bytes[..size as usize]))
}

/// Rewrites the attributes of an inode, and those of its block if they refer to invalid values.
pub fn in_inode(image: &mut Image, ino: InodeNr) -> StepResult {
    image.touch(ino);
    let inode = image.inode(ino)?;
    let rules = context(image);
    let mut bytes = inode.bytes.clone();
    let extra = usize::from(u16::from_le_bytes([*bytes.get(128).unwrap_or(&0), *bytes.get(129).unwrap_or(&0)]));
    if let Some(area) = bytes.get_mut(128 + extra..).filter(|area| area.starts_with(&MAGIC.to_le_bytes())) {
        mend_area(area, &rules, &mut |entry| fate(image, entry));
    }
    image.change_inode_bytes(ino, |now| now[128.min(bytes.len())..].copy_from_slice(&bytes[128.min(bytes.len())..]))?;
    match inode.file_acl(image).filter(|block| image.can_have(*block, 1)) {
        Some(acl) => block(image, acl, 0),
        None => Ok(()),
    }
}

/// Rewrites an attribute block with the attributes that can be read. `references` is the number of inodes that refer to
/// it, or 0 to keep the stored one.
pub fn block(image: &mut Image, nr: BlockNr, references: u32) -> StepResult {
    let mut bytes = image.block(nr)?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if references > 0 && word(0) == MAGIC {
        return write_block(image, nr, bytes, Some(references));
    }
    let stored = if word(0) == MAGIC { word(REFERENCES_AT) } else { 1 };
    let (_, kept) = mend_block(&mut bytes, nr, stored, &context(image), &mut |entry| fate(image, entry));
    for ino in inodes_with(image, nr) {
        image.touch(ino);
    }
    if kept == 0 { drop_block(image, nr) } else { image.put_block(nr, &bytes) }
}

/// Writes an attribute block with a reference count and its checksum, which also covers its place.
pub fn write_block(image: &Image, nr: BlockNr, mut bytes: Vec<u8>, references: Option<u32>) -> StepResult {
    if let Some(count) = references {
        bytes[REFERENCES_AT..REFERENCES_AT + 4].copy_from_slice(&count.to_le_bytes());
    }
    if image.geo.metadata_csum {
        let checksum = block_checksum(image.geo.seed.raw(), nr, &bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    image.put_block(nr, &bytes)
}

/// The inodes in use that refer to an attribute block.
fn inodes_with(image: &Image, block: BlockNr) -> Vec<InodeNr> {
    let used = |group| image.facts.inodes_of(group).filter(|(_, state)| state.has(InodeState::USED));
    let all = image.geo.groups().flat_map(|group| used(group).map(|(ino, _)| ino).collect::<Vec<_>>());
    all.filter(|ino| image.inode(*ino).is_ok_and(|inode| inode.file_acl(image) == Some(block))).collect()
}

/// Drops all references to an attribute block.
pub fn drop_block(image: &mut Image, block: BlockNr) -> StepResult {
    let inodes = inodes_with(image, block);
    if inodes.is_empty() {
        return Err(Refusal::Lost("no inode refers to the attribute block"));
    }
    for ino in inodes {
        image.touch(ino);
        image.change_inode(ino, |raw| {
            raw.i_file_acl_lo.set(0);
            raw.l_i_file_acl_high.set(0);
        })?;
        image.count_blocks(ino)?;
    }
    Ok(())
}
