//! Moves blocks of files, maps and attributes to the places of a plan.
//!
//! Main function: [`relocate`].
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::map::Run;
use extant_ondisk::{BlockNr, InodeNr, orphan, xattr};

use super::content::Content;
use super::plan::Plan;
use super::renumber::Numbers;
use crate::apply::journal;
use crate::error::StepResult;
use crate::view::Image;

/// The number of blocks that are copied at once.
const COPIED_BLOCKS: u32 = 64;

/// Moves everything after the new end. The inodes have their new numbers already.
pub fn relocate(old: &Image, new: &mut Image, contents: &[Content], plan: Plan, numbers: &Numbers) -> StepResult {
    new.set_aside(plan.taken);
    let mut attributes = BTreeMap::new();
    for content in contents {
        move_attributes(old, new, content, numbers.of(content.ino), &mut attributes)?;
    }
    for (index, runs) in plan.maps {
        move_map(old, new, &contents[index], numbers.of(contents[index].ino), &runs)?;
    }
    Ok(())
}

/// Moves the block of attributes, which several inodes may share.
fn move_attributes(
    old: &Image,
    new: &mut Image,
    content: &Content,
    ino: InodeNr,
    moved: &mut BTreeMap<u64, BlockNr>,
) -> StepResult {
    let end = new.geo.blocks_count;
    let Some(block) = content.attributes.filter(|block| block.0 >= end) else { return Ok(()) };
    let place = match moved.get(&block.0) {
        Some(place) => *place,
        None => {
            let place = new.take_block(BlockNr(0))?;
            let mut bytes = old.block(block)?;
            xattr::seal_block(&mut bytes, place, new.geo.metadata_csum.then(|| new.geo.seed.raw()));
            new.put_block(place, &bytes)?;
            moved.insert(block.0, place);
            place
        }
    };
    new.change_inode(ino, |raw| {
        raw.i_file_acl_lo.set(place.0 as u32);
        raw.l_i_file_acl_high.set((place.0 >> 32) as u16);
    })
}

/// Moves the data and the map of one inode.
fn move_map(old: &Image, new: &mut Image, content: &Content, ino: InodeNr, runs: &[Run]) -> StepResult {
    let inode = new.inode(ino)?;
    for run in runs {
        let from = content.mapped.place(run.lblk.0.into());
        if let Some(from) = from.filter(|from| *from != run.pblk && !run.unwritten) {
            copy(old, new, from, run)?;
        }
    }
    // Values of attributes in separate inodes count for an inode, too.
    let (stored, before) = (new.desc(&inode)?.blocks, old.sectors(&inode, &content.mapped));
    new.set_map(ino, runs)?;
    let after = new.inode(ino)?;
    let after = new.sectors(&after, &new.map(&after));
    new.put_blocks(ino, stored.saturating_sub(before) + after)?;
    if old.sb.orphan_file() == Some(content.ino) {
        seal_orphan_file(new, ino)?;
    }
    if old.sb.journal_inode() == Some(content.ino) {
        journal::note(new, ino)?;
    }
    Ok(())
}

/// Copies the blocks of a run, which are also adjacent in their old places.
fn copy(old: &Image, new: &Image, from: BlockNr, run: &Run) -> StepResult {
    let bits = new.geo.block_bits;
    for first in (0..run.len).step_by(COPIED_BLOCKS as usize) {
        let count = COPIED_BLOCKS.min(run.len - first);
        let bytes = old.bytes((from.0 + u64::from(first)) << bits, (count as usize) << bits)?;
        new.write((run.pblk.0 + u64::from(first)) << bits, &bytes)?;
    }
    Ok(())
}

/// Updates the checksums of the orphan file's blocks, which also cover their places and the inode number.
pub fn seal_orphan_file(image: &Image, ino: InodeNr) -> StepResult {
    let inode = image.inode(ino)?;
    let seed = image.seed(ino, inode.generation());
    for (_, block) in image.map(&inode).blocks() {
        let mut bytes = image.block(block)?;
        orphan::update_checksum(&mut bytes, block, seed);
        image.put_block(block, &bytes)?;
    }
    Ok(())
}
