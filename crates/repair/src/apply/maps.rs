//! Maps, and the sizes that follow from contents.
//!
//! # Locking
//! None.

use extant_ondisk::inode::{FAST_SYMLINK_LIMIT, InodeFlags};
use extant_ondisk::map::{Form, Run};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::inode::{BAD_BLOCKS, Inode};
use crate::view::map::Mapped;

/// The maximum size of directories that must not be larger than 2 GiB, as a power of two.
const DIR_BYTES_LOG2: u32 = 31;

/// Rewrites a map with the part of it that can be used.
pub fn rewrite(image: &mut Image, ino: InodeNr) -> StepResult {
    let inode = image.inode(ino)?;
    let mut mapped = image.map(&inode);
    if mapped.runs.is_empty() && inode.has_map(image) {
        mapped = other_form(image, &inode);
    }
    if image.geo.cluster_bits > 0 && inode.form(image) == Form::Indirect && ino.0 >= image.geo.first_ino {
        // Clusters need extents.
        image.change_inode(ino, |raw| raw.i_flags.set(raw.i_flags.get() | InodeFlags::EXTENTS.bits()))?;
    }
    let behind = end_of(image, &inode, &mapped);
    let mut runs = mapped.runs;
    if ino == BAD_BLOCKS {
        runs = without_primary(image, &runs);
    }
    runs.retain_mut(|run| {
        let first = u64::from(run.lblk.0);
        let is_cut = !run.unwritten || inode.is_dir();
        if is_cut && first + u64::from(run.len) > behind {
            run.len = behind.saturating_sub(first) as u32;
        }
        run.len > 0
    });
    if image.geo.cluster_bits > 0 {
        runs = aligned(image, &runs)?;
    }
    image.set_map(ino, &runs)?;
    let bits = image.geo.block_bits;
    let is_longer = inode.is_file() && behind != u64::MAX && behind > inode.size().div_ceil(1 << bits);
    if is_longer { image.set_size(ino, behind << bits) } else { Ok(()) }
}

/// The list of bad blocks without the primary superblock and descriptors, which have been read, and cannot be moved.
fn without_primary(image: &Image, runs: &[Run]) -> Vec<Run> {
    let (first, descs) = (image.geo.super_location(GroupNr(0)).0.0, image.geo.desc_blocks);
    let behind = image.geo.first_meta_bg.map_or(descs, |first| first.min(descs));
    let primary = first..first + 1 + u64::from(behind);
    let single = runs.iter().flat_map(|run| {
        (0..run.len).map(|step| Run {
            lblk: LogicalBlock(run.lblk.0 + step),
            len: 1,
            pblk: BlockNr(run.pblk.0 + u64::from(step)),
            unwritten: false,
        })
    });
    single.filter(|run| !primary.contains(&run.pblk.0)).collect()
}

/// The map of an inode without the extents flag, read as an extent tree; empty for other inodes. If the map is
/// unusable, the inode may have lost the flag.
fn other_form(image: &Image, inode: &Inode) -> Mapped {
    match inode.form(image) {
        Form::Extents => Mapped::default(),
        Form::Indirect if image.geo.extents => image.map_as(inode, Form::Extents),
        Form::Indirect => Mapped::default(),
    }
}

/// One past the last logical block that is kept. Blocks after a file's end belong to it if its size is wrong. This is
/// the case if the bitmap has them in use, no other file has them, and nothing shows that an entry is wrong.
fn end_of(image: &mut Image, inode: &Inode, mapped: &Mapped) -> u64 {
    let bits = image.geo.block_bits;
    if inode.is_dir() {
        return if image.geo.large_dir { u64::MAX } else { 1 << (DIR_BYTES_LOG2 - bits) };
    }
    if inode.is_symlink() {
        return 1;
    }
    if inode.ino == BAD_BLOCKS || !inode.is_file() {
        return u64::MAX;
    }
    let end = inode.size().div_ceil(1 << bits);
    if image.is_astray(inode, mapped) {
        return end;
    }
    let is_own = |image: &mut Image, run: &Run| {
        let blocks = run.pblk.0..run.pblk.0 + u64::from(run.len);
        let clusters = image.facts.clusters(run.pblk, run.len.into());
        !image.facts.is_shared(clusters) && blocks.into_iter().all(|block| image.is_marked(BlockNr(block)))
    };
    let mut last = end;
    for run in &mapped.runs {
        let behind = u64::from(run.lblk.0) + u64::from(run.len);
        if behind > end && !run.unwritten && is_own(image, run) {
            last = last.max(behind);
        }
    }
    last
}

/// In a file system with clusters, the place of a logical block in its cluster is fixed, and all blocks of a logical
/// cluster are in one cluster. Runs that break this are copied to new clusters.
fn aligned(image: &mut Image, runs: &[Run]) -> StepResult<Vec<Run>> {
    let mask = (1u64 << image.geo.cluster_bits) - 1;
    let mut out: Vec<Run> = Vec::new();
    // The last logical cluster, and its place.
    let mut last: Option<(u64, u64)> = None;
    for run in runs {
        for step in 0..run.len {
            let (lblk, block) = (u64::from(run.lblk.0 + step), run.pblk.0 + u64::from(step));
            let logical = lblk & !mask;
            let wanted = match last {
                Some((of, base)) if of == logical => base,
                _ if block & mask == lblk & mask => block & !mask,
                _ => image.take_block(run.pblk)?.0,
            };
            last = Some((logical, wanted));
            let place = BlockNr(wanted + (lblk & mask));
            if place.0 != block {
                let bytes = image.block(BlockNr(block))?;
                image.put_block(place, &bytes)?;
            }
            match out.last_mut() {
                Some(last)
                    if last.lblk.0 + last.len == run.lblk.0 + step
                        && last.pblk.0 + u64::from(last.len) == place.0
                        && last.unwritten == run.unwritten =>
                {
                    last.len += 1;
                }
                _ => out.push(Run { lblk: LogicalBlock(lblk as u32), len: 1, pblk: place, unwritten: run.unwritten }),
            }
        }
    }
    Ok(out)
}

/// Sets the size of a symlink to that of its target, which ends with NUL.
pub fn target(image: &mut Image, ino: InodeNr) -> StepResult {
    let inode = image.inode(ino)?;
    image.touch(ino);
    let length = |bytes: &[u8]| match inode.has(InodeFlags::ENCRYPT) {
        true => usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) + 2,
        false => bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()),
    };
    let lost = Refusal::Lost("the symlink has no target");
    if inode.has(InodeFlags::INLINE_DATA) {
        let rest = image.inline_rest(&inode).ok_or(lost)?;
        let all = [&inode.raw.i_block[..], &rest].concat();
        return image.set_size(ino, length(&all) as u64);
    }
    let short = length(&inode.raw.i_block) as u64;
    let first = image.map(&inode).place(0).or_else(|| image.map_as(&inode, inode.form(image)).place(0));
    let in_block = first.and_then(|block| image.block(block).ok().map(|bytes| (block, bytes)));
    let is_text = |bytes: &[u8]| bytes.iter().all(|byte| *byte != 0 && !byte.is_ascii_control());
    let own_text = short > 0 && short < FAST_SYMLINK_LIMIT && is_text(&inode.raw.i_block[..short as usize]);
    match in_block {
        Some((block, bytes)) if !own_text => {
            let size = length(&bytes);
            if size == 0 || size >= bytes.len() {
                return Err(lost);
            }
            let flags = InodeFlags::INDEX.bits();
            image.change_inode(ino, |raw| raw.i_flags.set(raw.i_flags.get() & !flags))?;
            image.set_size(ino, size as u64)?;
            if image.inode(ino)?.has_map(image) {
                let run = Run { lblk: LogicalBlock(0), len: 1, pblk: block, unwritten: false };
                image.set_map(ino, &[run])?;
            }
            Ok(())
        }
        _ if own_text => {
            image.set_size(ino, short)?;
            let flags = (InodeFlags::EXTENTS | InodeFlags::INDEX).bits();
            image.change_inode(ino, |raw| {
                raw.i_flags.set(raw.i_flags.get() & !flags);
                raw.i_block[short as usize..].fill(0);
            })
        }
        _ => Err(lost),
    }
}
