//! Orphans: inodes that have to be deleted or truncated after a crash.
//!
//! Main functions: [`finish`] (all of them, and their lists), [`renew_file`] (an orphan file that cannot be used).
//!
//! # Locking
//! None.

use std::collections::BTreeSet;

use extant_ondisk::inode::InodeFlags;
use extant_ondisk::map::Run;
use extant_ondisk::orphan;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::inode::Inode;

/// Deletes or truncates all orphans, and empties their lists.
pub fn finish(image: &mut Image) -> StepResult {
    let all: BTreeSet<InodeNr> = image.facts.orphans().into_iter().collect();
    for ino in all {
        let inode = image.inode(ino)?;
        if inode.links() == 0 { delete(image, &inode)? } else { truncate(image, &inode)? }
    }
    image.change_super(|raw| raw.s_last_orphan.set(0))?;
    if image.sb.orphan_file().is_some() { renew_file(image) } else { Ok(()) }
}

/// Frees the inode. Its blocks are free when the bitmaps are written.
fn delete(image: &mut Image, inode: &Inode) -> StepResult {
    image.touch(inode.ino);
    let now = image.now.clamp(1, u32::MAX.into()) as u32;
    image.change_inode(inode.ino, |raw| {
        raw.i_dtime.set(now);
        raw.i_size_lo.set(0);
        raw.i_size_high.set(0);
        raw.i_blocks_lo.set(0);
        raw.l_i_blocks_high.set(0);
        raw.i_file_acl_lo.set(0);
        raw.l_i_file_acl_high.set(0);
        raw.i_block = [0; 60];
        raw.i_flags.set(raw.i_flags.get() & !(InodeFlags::EXTENTS | InodeFlags::EA_INODE).bits());
    })
}

/// Drops the blocks after the end of the file, and zeroes the rest of the last one.
fn truncate(image: &mut Image, inode: &Inode) -> StepResult {
    image.change_inode(inode.ino, |raw| raw.i_dtime.set(0))?;
    if !inode.is_file() || !inode.has_map(image) {
        return Ok(());
    }
    let size = u64::from(image.geo.block_size);
    let end = inode.size().div_ceil(size);
    let mapped = image.map(inode);
    let mut runs: Vec<Run> = mapped.runs.clone();
    runs.retain_mut(|run| {
        let room = end.saturating_sub(run.lblk.0.into());
        run.len = run.len.min(room.min(u32::MAX.into()) as u32);
        run.len > 0
    });
    if runs != mapped.runs {
        image.set_map(inode.ino, &runs)?;
    }
    let (last, used) = (inode.size() / size, (inode.size() % size) as usize);
    if used > 0
        && let Some(run) = mapped.find(last).filter(|run| !run.unwritten)
    {
        let block = BlockNr(run.pblk.0 + last - u64::from(run.lblk.0));
        let mut bytes = image.block(block)?;
        bytes[used..].fill(0);
        image.put_block(block, &bytes)?;
    }
    Ok(())
}

/// Recreates the orphan file: empty, in its own blocks if it has any.
pub fn renew_file(image: &mut Image) -> StepResult {
    let ino = image.sb.orphan_file().ok_or(Refusal::Lost("there is no orphan file"))?;
    let inode = image.inode(ino)?;
    let mapped = image.map(&inode);
    let mut blocks: Vec<BlockNr> = mapped.blocks().map(|(_, block)| block).take(orphan::BLOCKS_MAX as usize).collect();
    if blocks.is_empty() {
        blocks.push(image.take_block(image.geo.first_block_of_group(extant_ondisk::GroupNr(0)))?);
    }
    let seed = image.seed(ino, inode.generation());
    for block in &blocks {
        let mut bytes = vec![0; image.geo.block_size as usize];
        orphan::init(&mut bytes, *block, seed);
        image.put_block(*block, &bytes)?;
    }
    let run = |(lblk, block): (usize, &BlockNr)| Run {
        lblk: LogicalBlock(lblk as u32),
        len: 1,
        pblk: *block,
        unwritten: false,
    };
    let runs: Vec<Run> = blocks.iter().enumerate().map(run).collect();
    image.set_map(ino, &runs)?;
    image.set_size(ino, blocks.len() as u64 * u64::from(image.geo.block_size))?;
    const PRESENT: u32 = 0x1_0000;
    image.change_super(|raw| raw.s_feature_ro_compat.set(raw.s_feature_ro_compat.get() & !PRESENT))
}
