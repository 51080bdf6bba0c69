//! Finds blocks that identify their owner, although no map refers to them any more.
//!
//! Main functions: [`directory_blocks`] (the blocks of a directory whose map is lost), [`begins`].
//!
//! The first block of a directory begins with `.` and its inode. With metadata checksums, that of every leaf covers the
//! inode and its generation, so a leaf belongs only to that directory.
//!
//! # Locking
//! None.

use extant_ondisk::dirent::{REC_LEN_MIN, StoredEntry, verify_leaf};
use extant_ondisk::{BlockNr, InodeNr};

use crate::view::Image;
use crate::view::dir::has_tail;

/// Whether a block begins like the first block of this directory.
pub fn begins(bytes: &[u8], ino: InodeNr) -> bool {
    let entry = |at, name: &[u8]| StoredEntry::at(bytes, at).filter(|entry| entry.name == name);
    let is_first = |dot: &StoredEntry<'_>| dot.ino == ino.0 && dot.rec_len == REC_LEN_MIN && dot.after == 0;
    entry(0, b".").is_some_and(|dot| is_first(&dot)) && entry(REC_LEN_MIN, b"..").is_some()
}

/// The blocks of a directory that are in use in the bitmaps and that no file claims: the first one and, with checksums,
/// its leaves.
pub fn directory_blocks(image: &mut Image, ino: InodeNr, generation: u32) -> Vec<BlockNr> {
    let seed = image.seed(ino, generation);
    let (mut first, mut leaves) = (None, Vec::new());
    for group in image.geo.groups() {
        let start = image.geo.first_block_of_group(group).0;
        for block in (start..start + u64::from(image.geo.blocks_in_group(group))).map(BlockNr) {
            let lost = !image.facts.is_claimed(image.facts.clusters(block, 1)) && image.is_marked(block);
            if !lost || image.is_unreadable(block, 1) {
                continue;
            }
            let Ok(bytes) = image.block(block) else { continue };
            if first.is_none() && begins(&bytes, ino) {
                first = Some(block);
            } else if seed.is_some_and(|seed| has_tail(&bytes) && verify_leaf(&bytes, seed).is_ok()) {
                leaves.push(block);
            }
        }
    }
    first.into_iter().chain(leaves).collect()
}
