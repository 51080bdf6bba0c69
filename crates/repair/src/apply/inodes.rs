//! Fields of inodes, and kinds that other structures imply.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags, inline};
use extant_ondisk::time::Timestamp;
use extant_ondisk::xattr::MAGIC;

use super::{content, directories, search};
use crate::error::{Refusal, StepResult};
use crate::plan::InodeField;
use crate::view::Image;

/// The number of bytes of an inode before its extra fields.
const GOOD_OLD: usize = 128;

/// Sets a field.
pub fn field(image: &mut Image, ino: InodeNr, field: InodeField, value: u64) -> StepResult {
    let content = matches!(field, InodeField::Size | InodeField::SizeHigh | InodeField::Acl | InodeField::AclHigh);
    if content {
        image.touch(ino);
    }
    let hurd = image.geo.hurd;
    image.change_inode_bytes(ino, |bytes| {
        if matches!(field, InodeField::Frag | InodeField::Fsize) {
            // Only the Hurd has them, in bytes in which Linux has high halves.
            let at = if field == InodeField::Frag { 0x74 } else { 0x75 };
            if hurd {
                bytes[at] = 0;
            }
        }
    })?;
    image.change_inode(ino, |raw| match field {
        InodeField::Dtime => raw.i_dtime.set(value as u32),
        InodeField::Size => {
            raw.i_size_lo.set(value as u32);
            raw.i_size_high.set((value >> 32) as u32);
        }
        InodeField::SizeHigh => raw.i_size_high.set(value as u32),
        InodeField::BlocksHigh => raw.l_i_blocks_high.set(value as u16),
        InodeField::Faddr => raw.i_obso_faddr.set(value as u32),
        InodeField::Frag | InodeField::Fsize => {}
        InodeField::AclHigh => raw.l_i_file_acl_high.set(value as u16),
        InodeField::Acl => {
            raw.i_file_acl_lo.set(value as u32);
            raw.l_i_file_acl_high.set((value >> 32) as u16);
        }
        InodeField::References => {
            raw.i_ctime.set((value >> 32) as u32);
            raw.l_i_version.set(value as u32);
        }
    })
}

/// Sets and clears flags.
pub fn flags(image: &mut Image, ino: InodeNr, set: u32, clear: u32) -> StepResult {
    image.touch(ino);
    image.change_inode(ino, |raw| raw.i_flags.set((raw.i_flags.get() | set) & !clear))
}

/// Sets the stored count of blocks.
pub fn blocks(image: &mut Image, ino: InodeNr, blocks: u64) -> StepResult {
    image.change_inode(ino, |raw| {
        raw.i_blocks_lo.set(blocks as u32);
        raw.l_i_blocks_high.set((blocks >> 32) as u16);
    })
}

/// Marks an inode as in use again if it has a name and was never deleted. Its links are counted later.
pub fn revive(image: &mut Image, ino: InodeNr) -> StepResult {
    image.touch(ino);
    image.change_inode(ino, |raw| {
        raw.i_links_count.set(1);
        raw.i_dtime.set(0);
    })
}

/// Recreates an inode as a file of this kind without content.
pub fn fresh(image: &mut Image, ino: InodeNr, kind: FileType, permissions: u16, links: u16) -> StepResult {
    image.zero_inode(ino)?;
    let mut desc = InodeDesc::new(kind.mode_bits() | permissions, &image.geo);
    desc.links = links;
    let now = Timestamp::from_seconds(image.now);
    (desc.atime, desc.ctime, desc.mtime) = (now, now, now);
    desc.crtime = desc.crtime.map(|_| now);
    if image.geo.extents {
        desc.flags = InodeFlags::EXTENTS;
        extant_ondisk::extent::NodeMut::init(&mut desc.i_block, 0);
    }
    let geo = image.geo.clone();
    image.change_inode_bytes(ino, |bytes| {
        // The fields are valid, because they are those of an empty file.
        let _ = desc.encode_into(bytes, ino, &geo);
    })
}

/// Sets the kind of an inode according to the superblock, its content or its names.
pub fn kind(image: &mut Image, ino: InodeNr) -> StepResult {
    let sb = image.sb.raw();
    let system = [
        sb.s_journal_inum.get(),
        sb.s_usr_quota_inum.get(),
        sb.s_grp_quota_inum.get(),
        sb.s_prj_quota_inum.get(),
        sb.s_orphan_file_inum.get(),
    ];
    let kind = if ino == InodeNr::ROOT {
        FileType::Directory
    } else if system.contains(&ino.0) {
        FileType::Regular
    } else {
        shown_kind(image, ino)?
    };
    image.touch(ino);
    image.set_kind(ino, kind)?;
    if kind == FileType::Directory {
        // A file may have flags and a size that no directory can have.
        image.change_inode(ino, |raw| raw.i_size_high.set(0))?;
    }
    Ok(())
}

fn shown_kind(image: &Image, ino: InodeNr) -> StepResult<FileType> {
    let inode = image.inode(ino)?;
    let form = inode.form(image);
    let first = image.map_as(&inode, form).place(0);
    let is_directory = first.and_then(|block| image.block(block).ok()).is_some_and(|bytes| search::begins(&bytes, ino));
    if is_directory {
        return Ok(FileType::Directory);
    }
    let said = image.names_of(|named| named == ino.0);
    let kinds = said.iter().filter_map(|(_, entry)| FileType::from_dirent_code(entry.kind));
    Ok(kinds.into_iter().find(|kind| *kind != FileType::Directory).unwrap_or(FileType::Regular))
}

/// Sets the size of the extra fields. If there are attributes, they begin with their magic number.
pub fn extra_isize(image: &mut Image, ino: InodeNr) -> StepResult {
    image.touch(ino);
    let most = image.geo.inode_size.saturating_sub(GOOD_OLD);
    let usual = image.geo.want_extra_isize;
    image.change_inode_bytes(ino, |bytes| {
        let is_magic = |at: &usize| bytes.get(GOOD_OLD + at..GOOD_OLD + at + 4) == Some(&MAGIC.to_le_bytes()[..]);
        let found = (4..most).step_by(4).find(is_magic).map_or(usual, |at| at as u16);
        if bytes.len() >= GOOD_OLD + 2 {
            bytes[GOOD_OLD..GOOD_OLD + 2].copy_from_slice(&found.to_le_bytes());
        }
    })
}

/// Repairs inline data without its attribute, or with flags that exclude each other.
///
/// The bytes in `i_block` are kept, followed by an empty attribute, or in a block if the inode has no room for one. The
/// bytes after them are lost. If `i_block` may be a map of any form, nothing of the content is known.
pub fn inline(image: &mut Image, ino: InodeNr) -> StepResult {
    let inode = image.inode(ino)?;
    image.touch(ino);
    if !image.geo.inline_data {
        return flags(image, ino, 0, InodeFlags::INLINE_DATA.bits());
    }
    if inode.is_dir() {
        return directories::inline(image, &inode, &[]);
    }
    if inode.has(InodeFlags::EXTENTS) {
        without_content(image, ino)?;
        return content::write(image, ino, &[]);
    }
    let size = inode.size().min(inline::ROOM as u64);
    if inode.is_symlink() && size < inline::ROOM as u64 {
        // Its target is in `i_block` even so.
        return flags(image, ino, 0, InodeFlags::INLINE_DATA.bits());
    }
    image.set_size(ino, size)?;
    match image.set_inline_rest(ino, &[]) {
        Err(Refusal::Lost(_)) => {
            let bytes = inode.raw.i_block[..size as usize].to_vec();
            without_content(image, ino)?;
            content::write(image, ino, &bytes)
        }
        done => done,
    }
}

/// Replaces the inline data of an inode with an empty map.
pub fn without_content(image: &mut Image, ino: InodeNr) -> StepResult {
    let extents = image.geo.extents;
    image.change_inode(ino, |raw| {
        let flags = raw.i_flags.get() & !(InodeFlags::INLINE_DATA | InodeFlags::INDEX | InodeFlags::EXTENTS).bits();
        raw.i_flags.set(if extents { flags | InodeFlags::EXTENTS.bits() } else { flags });
        raw.i_block = [0; 60];
        if extents {
            extant_ondisk::extent::NodeMut::init(&mut raw.i_block, 0);
        }
    })
}
