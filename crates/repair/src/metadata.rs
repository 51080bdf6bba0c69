//! A copy of the metadata that describes files, without their content, to be sent with a bug report.
//!
//! Main type: [`Metadata`] (the blocks of a copy, and the way to read them). Main function: [`Metadata::of`].
//!
//! The copy contains superblocks, descriptors, bitmaps, inode tables, maps, directories, attributes, targets of
//! symbolic links, quota, the orphan file and the journal. Names can be scrambled: each is replaced by another one of
//! the same length, directories are rewritten, targets become letters, and the log is left out, because it contains old
//! names.
//!
//! What it does not do: hide attributes and the label, or copy damaged structures that it cannot find.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{InodeState, Options};
use extant_ondisk::features::Incompat;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{BlockNr, InodeNr};

use crate::apply::{directories, journal};
use crate::error::{Error, Refusal};
use crate::sound::look;
use crate::view::Image;
use crate::view::inode::Inode;

/// The letters of scrambled names.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
/// A name that tools look up.
const LOST_FOUND: &[u8] = b"lost+found";

/// The reason why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CannotCopy {
    /// The check found no file system.
    #[error("it has no superblock that can be used")]
    NoSuperBlock,
    /// Small files are stored in inodes, between the metadata.
    #[error("its feature inline_data puts content of files into inodes, which a scrambled copy would show")]
    InlineData,
    /// A structure cannot be changed.
    #[error("{0}")]
    Step(Refusal),
    /// A device or the check failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Refusal> for CannotCopy {
    fn from(refusal: Refusal) -> CannotCopy {
        match refusal {
            Refusal::Device(e) => CannotCopy::Failed(e.into()),
            other => CannotCopy::Step(other),
        }
    }
}

/// The blocks of a copy.
pub struct Metadata {
    image: Image,
    /// The first block and the end of each run, ascending and not adjacent.
    runs: Vec<(u64, u64)>,
    /// Blocks that are zeros in the copy: those of the journal, if names are scrambled.
    hidden: BTreeSet<u64>,
}

impl Metadata {
    /// Finds the metadata of the file system on `device`, to which changed names are written.
    ///
    /// # Errors
    /// [`CannotCopy`].
    pub fn of(device: Arc<CowDevice>, check: &Options, scramble: bool) -> Result<Metadata, CannotCopy> {
        let mut checked = look(&device, check)?;
        if scramble && checked.facts.as_ref().is_some_and(|facts| facts.is_replayed()) {
            journal::replay(&device)?;
            checked = look(&device, check)?;
        }
        let (mut image, _) = Image::new(device, checked, check.now).ok_or(CannotCopy::NoSuperBlock)?;
        if scramble {
            if image.sb.incompat().contains(Incompat::INLINE_DATA) {
                return Err(CannotCopy::InlineData);
            }
            scramble_names(&mut image)?;
        }
        let (mut blocks, mut hidden) = (fixed(&image), BTreeSet::new());
        for group in image.geo.groups() {
            let used: Vec<InodeNr> =
                image.facts.inodes_of(group).filter(|(_, state)| is_used(*state)).map(|(ino, _)| ino).collect();
            for ino in used {
                of_inode(&image, ino, scramble, &mut blocks, &mut hidden);
            }
        }
        blocks.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, end) in blocks {
            match runs.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => runs.push((start, end)),
            }
        }
        Ok(Metadata { image, runs, hidden })
    }

    /// The superblock.
    pub fn super_block(&self) -> &SuperBlock {
        &self.image.sb
    }

    /// The size of the whole file system in bytes, which is that of the copy including its holes.
    pub fn bytes(&self) -> u64 {
        self.image.geo.blocks_count << self.image.geo.block_bits
    }

    /// The number of bytes of metadata.
    pub fn copied(&self) -> u64 {
        let blocks: u64 = self.runs.iter().map(|(start, end)| end - start).sum();
        blocks << self.image.geo.block_bits
    }

    /// Passes the metadata to `put`, in ascending order, with its offset in bytes. A block that cannot be read is left
    /// out. Returns the number of such blocks.
    ///
    /// # Errors
    /// Those of `put`.
    pub fn read<E>(&self, mut put: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<u64, E> {
        /// The number of blocks that are read at once.
        const PIECE: u64 = 256;
        let bits = self.image.geo.block_bits;
        let mut unread = 0;
        for (start, end) in &self.runs {
            let mut at = *start;
            while at < *end {
                let count = PIECE.min(end - at);
                let mut bytes = vec![0; (count << bits) as usize];
                let whole = self.image.device.read_at(at << bits, &mut bytes, BioFlags::META).is_ok();
                if !whole {
                    for (step, part) in bytes.chunks_mut(1 << bits).enumerate() {
                        let read = self.image.device.read_at((at + step as u64) << bits, part, BioFlags::META);
                        if read.is_err() {
                            part.fill(0);
                            unread += 1;
                        }
                    }
                }
                for hidden in self.hidden.range(at..at + count) {
                    let from = ((hidden - at) << bits) as usize;
                    bytes[from..from + (1 << bits)].fill(0);
                }
                put(at << bits, &bytes)?;
                at += count;
            }
        }
        Ok(unread)
    }
}

fn is_used(state: InodeState) -> bool {
    state.has(InodeState::USED)
}

/// Superblocks, descriptors, bitmaps and tables, and everything before the first block.
fn fixed(image: &Image) -> Vec<(u64, u64)> {
    let geo = &image.geo;
    let mut blocks = vec![(0, geo.first_data_block + 1)];
    for group in geo.groups() {
        blocks.extend(geo.base_metadata(group).ranges().map(|(start, count)| (start.0, start.0 + u64::from(count))));
        let desc = &image.descs[group.0 as usize];
        let table = u64::from(geo.inode_table_blocks);
        for (block, count) in [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)] {
            if image.can_have(block, count) {
                blocks.push((block.0, block.0 + count));
            }
        }
    }
    let mmp = BlockNr(image.sb.raw().s_mmp_block.get());
    if image.sb.incompat().contains(Incompat::MMP) && image.can_have(mmp, 1) {
        blocks.push((mmp.0, mmp.0 + 1));
    }
    blocks
}

/// The blocks of one inode that are metadata.
fn of_inode(image: &Image, ino: InodeNr, hides: bool, blocks: &mut Vec<(u64, u64)>, hidden: &mut BTreeSet<u64>) {
    let Ok(inode) = image.inode(ino) else { return };
    let mut one = |block: BlockNr| blocks.push((block.0, block.0 + 1));
    if let Some(block) = inode.file_acl(image).filter(|block| image.can_have(*block, 1)) {
        one(block);
    }
    let mapped = image.map(&inode);
    mapped.nodes.iter().for_each(|block| one(*block));
    if !is_described_by_content(image, &inode) {
        return;
    }
    for run in &mapped.runs {
        blocks.push((run.pblk.0, run.pblk.0 + u64::from(run.len)));
    }
    if hides && image.sb.journal_inode() == Some(ino) {
        // The first block of the journal is its superblock.
        hidden.extend(mapped.blocks().filter(|(lblk, _)| *lblk > 0).map(|(_, block)| block.0));
    }
}

/// Whether the content of an inode is metadata itself.
fn is_described_by_content(image: &Image, inode: &Inode) -> bool {
    let raw = image.sb.raw();
    let system = [
        raw.s_journal_inum.get(),
        raw.s_usr_quota_inum.get(),
        raw.s_grp_quota_inum.get(),
        raw.s_prj_quota_inum.get(),
        raw.s_orphan_file_inum.get(),
    ];
    // The resize inode maps reserved blocks, which are already included with the groups.
    let reserved = inode.ino.0 < image.geo.first_ino && inode.ino != InodeNr::RESIZE && inode.ino.0 != 1;
    inode.is_dir() || inode.is_symlink() || reserved || system.contains(&inode.ino.0) || inode.has(InodeFlags::EA_INODE)
}

/// Replaces the name of every file, and the target of every symbolic link.
fn scramble_names(image: &mut Image) -> Result<(), Refusal> {
    let old = image.with(image.device.clone());
    for ino in old.facts.directories().collect::<Vec<_>>() {
        let inode = old.inode(ino)?;
        if inode.has(InodeFlags::ENCRYPT) {
            continue;
        }
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        directories::rename_all(&old, image, ino, |name| {
            if name == LOST_FOUND {
                return name.to_vec();
            }
            let count = counts.entry(name.len()).or_insert(0);
            *count += 1;
            letters(*count - 1, name)
        })?;
    }
    for group in image.geo.groups() {
        let links: Vec<InodeNr> =
            old.facts.inodes_of(group).filter(|(_, state)| is_used(*state)).map(|(ino, _)| ino).collect();
        for ino in links {
            let inode = old.inode(ino)?;
            if inode.is_symlink() && !inode.has(InodeFlags::ENCRYPT) {
                hide_target(image, &inode)?;
            }
        }
    }
    Ok(())
}

/// The `count`th name of letters with the length of `name`. If there are too few such names, the name is kept.
fn letters(mut count: u64, name: &[u8]) -> Vec<u8> {
    let mut out = vec![LETTERS[0]; name.len()];
    for place in out.iter_mut().rev() {
        *place = LETTERS[(count % 64) as usize];
        count /= 64;
    }
    if count == 0 { out } else { name.to_vec() }
}

fn hide_target(image: &Image, inode: &Inode) -> Result<(), Refusal> {
    let size = inode.size() as usize;
    if !inode.has_map(image) {
        return image.change_inode(inode.ino, |raw| {
            let len = size.min(raw.i_block.len());
            raw.i_block[..len].fill(b'x');
        });
    }
    for (_, block) in image.map(inode).blocks() {
        let mut bytes = image.block(block)?;
        let len = size.min(bytes.len());
        bytes[..len].fill(b'x');
        bytes[len..].fill(0);
        image.put_block(block, &bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambled_names_keep_their_length_and_differ() {
        assert_eq!(letters(0, b"abc"), b"aaa");
        assert_eq!(letters(65, b"abc"), b"abb");
        assert_eq!(letters(64, b"q"), b"q");
    }
}
