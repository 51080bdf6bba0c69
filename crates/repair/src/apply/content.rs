//! Whole contents of files that the file system itself owns.
//!
//! Main functions: [`blocks`] (the blocks for a content, in logical order), [`set_blocks`] (makes them the map).
//!
//! # Locking
//! None.

use extant_ondisk::map::Run;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::error::StepResult;
use crate::view::Image;

/// Returns `count` blocks in logical order: those of `own` first, then free ones. The blocks of a cluster keep their
/// places in it.
pub fn blocks(image: &mut Image, own: Vec<BlockNr>, count: usize) -> StepResult<Vec<BlockNr>> {
    let mask = (1u64 << image.geo.cluster_bits) - 1;
    let mut blocks = own;
    blocks.truncate(count);
    let goal = blocks.first().copied().unwrap_or(image.geo.first_block_of_group(extant_ondisk::GroupNr(0)));
    while blocks.len() < count {
        let place = blocks.len() as u64 & mask;
        let next = match blocks.last() {
            Some(last) if place != 0 && last.0 & mask == place - 1 => BlockNr(last.0 + 1),
            _ => BlockNr(image.take_block(goal)?.0 + place),
        };
        blocks.push(next);
    }
    Ok(blocks)
}

/// The blocks of a file's old map that no other file has, in logical order.
pub fn own(image: &Image, ino: InodeNr) -> StepResult<Vec<BlockNr>> {
    let inode = image.inode(ino)?;
    let mine = |block: &BlockNr| {
        !image.facts.is_shared(image.facts.clusters(*block, 1))
            && !image.facts.is_metadata(*block)
            && !image.is_unreadable(*block, 1)
    };
    // In a file system with clusters, a block after a hole would be at the place of another one.
    let whole = |(at, (lblk, _)): &(usize, (u64, BlockNr))| image.geo.cluster_bits == 0 || *at as u64 == *lblk;
    let all: Vec<(u64, BlockNr)> = image.map(&inode).blocks().collect();
    Ok(all.into_iter().enumerate().take_while(whole).map(|(_, (_, block))| block).filter(mine).collect())
}

/// Maps an inode to the blocks, and sets its size.
pub fn set_blocks(image: &mut Image, ino: InodeNr, blocks: &[BlockNr], size: u64) -> StepResult {
    let run = |(lblk, block): (usize, &BlockNr)| Run {
        lblk: LogicalBlock(lblk as u32),
        len: 1,
        pblk: *block,
        unwritten: false,
    };
    let runs: Vec<Run> = blocks.iter().enumerate().map(run).collect();
    image.set_map(ino, &runs)?;
    image.set_size(ino, size)
}

/// Writes the whole content of an inode.
pub fn write(image: &mut Image, ino: InodeNr, bytes: &[u8]) -> StepResult {
    let size = image.geo.block_size as usize;
    let own = own(image, ino)?;
    let blocks = blocks(image, own, bytes.len().div_ceil(size))?;
    for (block, part) in blocks.iter().zip(bytes.chunks(size)) {
        let mut whole = part.to_vec();
        whole.resize(size, 0);
        image.put_block(*block, &whole)?;
    }
    set_blocks(image, ino, &blocks, bytes.len() as u64)
}
