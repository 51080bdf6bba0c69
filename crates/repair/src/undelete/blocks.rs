//! Maps of deleted files, and whether their blocks still have the old content.
//!
//! Main function: [`judge`].
//!
//! # Locking
//! None.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::extent::{NodeMut, NodeRef};
use extant_ondisk::inode::{FileType, InodeFlags, inline};
use extant_ondisk::map::{Form, Run};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::{History, JournalFile};

use super::names::Names;
use super::versions::Version;
use super::{Chance, Deleted};
use crate::error::Result;
use crate::view::Image;
use crate::view::map::{Mapped, data_clusters};

/// The number of times that deleted files may map the blocks of the file system before the rest is left out.
const MAPPED_MAX: u64 = 64;

/// Blocks that were later allocated to another file, with the transaction.
struct Reuse {
    /// The runs of bits, by group: first bit, end, order.
    set: BTreeMap<u32, Vec<(u32, u32, i32)>>,
}

/// Examines all versions of files and symbolic links.
pub fn judge(
    image: &mut Image,
    journal: &JournalFile,
    past: &History,
    mut versions: Vec<Version>,
    names: &Names,
) -> Result<Vec<Deleted>> {
    let reuse = Reuse::read(image, journal, past)?;
    // Of two files with the same blocks, only the newer one may be whole.
    versions.sort_by_key(|version| (std::cmp::Reverse(version.order), version.inode.ino.0));
    let mut taken: BTreeSet<u64> = BTreeSet::new();
    let mut files = Vec::new();
    let mut budget = image.geo.blocks_count.saturating_mul(MAPPED_MAX);
    for version in versions {
        let Some(kind) = version.inode.kind() else { continue };
        let (mapped, from_home) = map(image, journal, past, &version);
        if kind != FileType::Directory && kind != FileType::Regular && kind != FileType::Symlink {
            continue;
        }
        let size = version.desc.size;
        let mapped_blocks: u64 = mapped.runs.iter().map(|run| u64::from(run.len)).sum();
        budget = budget.saturating_sub(mapped_blocks);
        if mapped_blocks > image.geo.blocks_count || budget == 0 {
            // No file system has written such maps.
            continue;
        }
        let mut lost_blocks = 0;
        let bits = image.geo.cluster_bits;
        for run in mapped.runs.iter().filter(|run| !run.unwritten) {
            for step in 0..u64::from(run.len) {
                let block = BlockNr(run.pblk.0 + step);
                let is_lost = !image.is_free_now(block)
                    || taken.contains(&(block.0 >> bits))
                    || reuse.is_newer(image, block, version.order)
                    || is_logged_since(past, block, version.order);
                lost_blocks += u64::from(is_lost);
            }
        }
        let lost_nodes = from_home.iter().any(|block| {
            !image.is_free_now(*block)
                || taken.contains(&(block.0 >> bits))
                || reuse.is_newer(image, *block, version.order)
        });
        let own = (mapped.blocks().map(|(_, block)| block)).chain(mapped.nodes.iter().copied());
        taken.extend(own.map(|block| block.0 >> bits));
        if kind == FileType::Directory {
            continue;
        }
        let inline = inline(image, &version, kind);
        let lost = (lost_blocks << image.geo.block_bits).min(size);
        let partial = |why| Chance::Partial { lost, why };
        let chance = match () {
            () if version.inode.has(InodeFlags::ENCRYPT) => partial("it is encrypted"),
            () if lost_blocks > 0 => partial("other files have had its blocks since"),
            () if is_discarded(image, &mapped.runs)? => partial("its blocks were discarded, or are zeros"),
            () if lost_nodes => partial("a block of its map may have been overwritten"),
            () if inline.is_none() && !is_complete(image, &version, &mapped) => partial("its map is not complete"),
            () if inline.as_ref().is_some_and(|bytes| bytes.len() as u64 != size) => {
                partial("its end is not in the log")
            }
            () => Chance::Whole,
        };
        let now = image.inode(version.inode.ino).ok();
        let dtime = now.filter(|now| now.generation() == version.inode.generation());
        let dtime = dtime.map(|now| i64::from(now.raw.i_dtime.get())).filter(|dtime| *dtime != 0);
        files.push(Deleted {
            ino: version.inode.ino,
            path: names.path(version.inode.ino, version.order),
            kind,
            inode: version.desc,
            deleted: dtime,
            version: past.time_of(version.tid),
            chance,
            runs: mapped.runs,
            inline,
        });
    }
    files.sort_by(|one, other| (&one.path, one.ino.0).cmp(&(&other.path, other.ino.0)));
    Ok(files)
}

/// Whether blocks of a file are in a hole of the image file, because they were punched out when the file was deleted. A
/// device shows no holes, so there a file whose runs all begin with zeros counts as discarded.
fn is_discarded(image: &Image, runs: &[Run]) -> Result<bool> {
    let (bits, mut is_zero, mut written) = (image.geo.block_bits, true, false);
    for run in runs.iter().filter(|run| !run.unwritten) {
        let start = run.pblk.0 << bits;
        let data = image.device.base().next_data(start)?;
        if data.is_none_or(|data| data > start) {
            return Ok(true);
        }
        written = true;
        let first = image.block(run.pblk).unwrap_or_default();
        is_zero &= first.iter().all(|byte| *byte == 0);
    }
    Ok(written && is_zero)
}

/// The content in the inode itself.
fn inline(image: &Image, version: &Version, kind: FileType) -> Option<Vec<u8>> {
    let (inode, size) = (&version.inode, version.desc.size as usize);
    let has_data = inode.has(InodeFlags::INLINE_DATA);
    if !has_data && (kind != FileType::Symlink || inode.has_map(image)) {
        return None;
    }
    let mut bytes = inode.raw.i_block[..inline::ROOM.min(size)].to_vec();
    if has_data && size > inline::ROOM {
        bytes.extend(image.inline_rest(inode).unwrap_or_default());
        bytes.truncate(size);
    }
    Some(bytes)
}

/// Whether the map has as many blocks as the inode counts.
fn is_complete(image: &Image, version: &Version, mapped: &Mapped) -> bool {
    let clusters = data_clusters(&mapped.runs, &image.geo)
        + mapped.nodes.len() as u64
        + u64::from(version.inode.file_acl(image).is_some());
    (clusters << image.geo.cluster_bits) << (image.geo.block_bits - 9) == version.desc.blocks
}

/// The map of a version, and those of its blocks that are not copies from the log.
fn map(image: &Image, journal: &JournalFile, past: &History, version: &Version) -> (Mapped, Vec<BlockNr>) {
    let inode = &version.inode;
    if !inode.has_map(image) {
        return (Mapped::default(), Vec::new());
    }
    let form = inode.form(image);
    let seed = image.seed(inode.ino, inode.generation()).map(|seed| seed.raw());
    let is_node = |bytes: &[u8]| match (form, seed) {
        (Form::Indirect, _) => true,
        (Form::Extents, None) => NodeRef::sound(bytes).is_some(),
        (Form::Extents, Some(seed)) => is_sealed(bytes, seed),
    };
    let from_home = RefCell::new(Vec::new());
    let read = |block: BlockNr| {
        let copies = past.copies.get(&block).map_or(&[][..], |copies| &copies[..]);
        let before = copies.iter().rev().filter(|copy| past.order(copy.tid) <= version.order);
        for copy in before {
            if let Ok(bytes) = past.bytes(journal, copy)
                && is_node(&bytes)
            {
                return Some(bytes);
            }
        }
        let home = image.block(block).ok().filter(|bytes| is_node(bytes))?;
        from_home.borrow_mut().push(block);
        Some(home)
    };
    let mapped = image.map_by(inode, form, &read);
    (mapped, from_home.into_inner())
}

/// Whether the checksum of a node is correct.
fn is_sealed(bytes: &[u8], seed: u32) -> bool {
    let mut copy = bytes.to_vec();
    let Ok(mut node) = NodeMut::parse(&mut copy, 0) else { return false };
    node.seal(Some(seed));
    copy == bytes
}

/// Whether the log has a newer copy of the block, so that it has been metadata since.
fn is_logged_since(past: &History, block: BlockNr, order: i32) -> bool {
    let newest = past.copies.get(&block).and_then(|copies| copies.last());
    newest.is_some_and(|copy| past.order(copy.tid) > order)
}

impl Reuse {
    /// Follows the block bitmaps through the log, to find bits that were clear and are set later.
    fn read(image: &Image, journal: &JournalFile, past: &History) -> Result<Reuse> {
        let mut set: BTreeMap<u32, Vec<(u32, u32, i32)>> = BTreeMap::new();
        for group in image.geo.groups() {
            let place = image.descs[group.0 as usize].block_bitmap;
            let Some(copies) = past.copies.get(&place) else { continue };
            let mut before: Option<Vec<u8>> = None;
            for copy in copies {
                let bytes = past.bytes(journal, copy)?;
                if let Some(before) = &before {
                    let order = past.order(copy.tid);
                    came(before, &bytes, |start, end| set.entry(group.0).or_default().push((start, end, order)));
                }
                before = Some(bytes);
            }
        }
        Ok(Reuse { set })
    }

    /// Whether the block was allocated to a file in a transaction after this one.
    fn is_newer(&self, image: &Image, block: BlockNr, order: i32) -> bool {
        let Some((GroupNr(group), index)) = image.geo.group_of_block(block) else { return true };
        let bit = index >> image.geo.cluster_bits;
        let all = self.set.get(&group).map_or(&[][..], |all| &all[..]);
        all.iter().any(|(start, end, when)| *when > order && (*start..*end).contains(&bit))
    }
}

/// The runs of bits that are set in `now` and not in `before`.
fn came(before: &[u8], now: &[u8], mut each: impl FnMut(u32, u32)) {
    let mut open: Option<u32> = None;
    for (at, (old, new)) in before.iter().zip(now).enumerate() {
        let bits = new & !old;
        if bits == 0 && open.is_none() {
            continue;
        }
        for bit in 0..8 {
            let index = at as u32 * 8 + bit;
            match (bits >> bit & 1 == 1, open) {
                (true, None) => open = Some(index),
                (false, Some(start)) => {
                    each(start, index);
                    open = None;
                }
                _ => {}
            }
        }
    }
    if let Some(start) = open {
        each(start, before.len() as u32 * 8);
    }
}

impl Image {
    /// Whether the block is used neither by a file nor in a bitmap.
    fn is_free_now(&mut self, block: BlockNr) -> bool {
        !self.facts.is_claimed(self.facts.clusters(block, 1)) && !self.is_marked(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_come_are_found_as_runs() {
        let mut runs = Vec::new();
        came(&[0b0000_1111, 0, 0xff], &[0b1100_1101, 0b0000_0011, 0xff], |start, end| runs.push((start, end)));
        assert_eq!(runs, [(6, 10)]);
    }
}
