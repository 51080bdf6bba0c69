//! Earlier versions of inodes.
//!
//! Main type: [`Version`]. Main function: [`newest`].
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_check::InodeState;
use extant_ondisk::inode::{InodeDesc, RawInode, is_zeros, verify_checksum};
use extant_ondisk::jbd2::{FastCommitRecord, Tid};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use extant_recovery::{History, JournalFile};
use zerocopy::FromBytes;

use crate::error::Result;
use crate::view::Image;
use crate::view::inode::Inode;

/// A version of an inode that no longer exists.
pub struct Version {
    pub inode: Inode,
    pub desc: InodeDesc,
    pub tid: Tid,
    /// The position of the transaction in the order of all transactions.
    pub order: i32,
}

/// The newest version with a link of each inode that has been deleted since, by number and generation.
pub fn newest(image: &Image, journal: &JournalFile, past: &History) -> Result<Vec<Version>> {
    let mut found: BTreeMap<(u32, u32), Version> = BTreeMap::new();
    let mut take = |ino: InodeNr, bytes: &[u8], tid: Tid| {
        if let Some(version) = version(image, ino, bytes, tid, past.order(tid)) {
            let key = (ino.0, version.inode.generation());
            if found.get(&key).is_none_or(|known| known.order <= version.order) {
                found.insert(key, version);
            }
        }
    };
    let tables = Tables::of(image);
    let size = image.geo.inode_size;
    for (block, copies) in &past.copies {
        let Some(first) = tables.first_inode(image, *block) else { continue };
        for copy in copies {
            let bytes = past.bytes(journal, copy)?;
            for (index, bytes) in bytes.chunks_exact(size).enumerate() {
                let ino = InodeNr(first + index as u32);
                if !is_zeros(bytes) && verify_checksum(bytes, ino, &image.geo).is_ok() {
                    take(ino, bytes, copy.tid);
                }
            }
        }
    }
    let records = past.fast_commits.iter().flat_map(|commit| &commit.records);
    for (_, record) in records {
        if let (FastCommitRecord::Inode { ino, raw }, Some(tid)) = (record, past.fast_commit_tid) {
            let mut bytes = raw.clone();
            bytes.resize(size, 0);
            take(*ino, &bytes, tid);
        }
    }
    Ok(found.into_values().collect())
}

/// The version in these bytes, if it has a link and its inode no longer exists.
fn version(image: &Image, ino: InodeNr, bytes: &[u8], tid: Tid, order: i32) -> Option<Version> {
    if ino.0 < image.geo.first_ino || !image.geo.contains_inode(ino) {
        return None;
    }
    let (raw, _) = RawInode::read_from_prefix(bytes).ok()?;
    let inode = Inode { ino, raw, bytes: bytes.to_vec() };
    if inode.links() == 0 || inode.kind().is_none() {
        return None;
    }
    let now = image.inode(ino).ok()?;
    let is_used = image.facts.inode(ino).has(InodeState::USED) && now.links() > 0 || image.facts.is_orphan(ino);
    if is_used && now.generation() == inode.generation() {
        return None;
    }
    let desc = image.desc(&inode).ok()?;
    Some(Version { inode, desc, tid, order })
}

/// The places of inode tables.
struct Tables {
    /// The first block, and the group.
    starts: Vec<(u64, u32)>,
}

impl Tables {
    fn of(image: &Image) -> Tables {
        let places = image.descs.iter().zip(0..).filter(|(desc, _)| desc.inode_table.0 != 0);
        let mut starts: Vec<(u64, u32)> = places.map(|(desc, group)| (desc.inode_table.0, group)).collect();
        starts.sort_unstable();
        Tables { starts }
    }

    /// The number of the first inode in a block of a table.
    fn first_inode(&self, image: &Image, block: BlockNr) -> Option<u32> {
        let at = self.starts.partition_point(|(start, _)| *start <= block.0).checked_sub(1)?;
        let (start, group) = self.starts[at];
        let index = block.0 - start;
        let inside = index < u64::from(image.geo.inode_table_blocks);
        let place = index as u32 * image.geo.inodes_per_block();
        inside.then(|| image.geo.inode_at(GroupNr(group), place)).flatten().map(|ino| ino.0)
    }
}
