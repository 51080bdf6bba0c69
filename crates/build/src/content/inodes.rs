//! Creates the bytes of a tree's inodes.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::extent::pack_tree;
use extant_ondisk::inode::{
    DeviceNr, FAST_SYMLINK_LIMIT, FileType, InodeDesc, InodeFlags, LINK_MAX, inline, update_checksum,
};
use extant_ondisk::xattr::inode_area;

use super::attributes::{Split, split, split_around};
use super::{ContentPlan, Placement};
use crate::Result;
use crate::skeleton::Inodes;
use crate::tree::{Body, Id};

/// log2 of the unit of `i_blocks`, a sector of 512 bytes.
const SECTOR_BITS: u32 = 9;

impl Placement<'_> {
    /// An inode without its attributes. `inline` is the content, if it is stored in the inode.
    fn inode(&self, id: Id, inline: Option<&[u8]>) -> Result<InodeDesc> {
        let (geo, node, record) = (self.geometry(), self.tree.node(id), &self.placed.records[id.0 as usize]);
        let mut desc = InodeDesc::new(node.mode, geo);
        (desc.uid, desc.gid) = (node.uid, node.gid);
        desc.flags |= node.flags;
        desc.flags.set(InodeFlags::CASEFOLD, self.folds(id));
        (desc.atime, desc.ctime, desc.mtime) = (node.mtime, node.mtime, node.mtime);
        desc.crtime = desc.crtime.map(|_| node.mtime);
        desc.links = match &node.body {
            // If a directory has more links than the field can count, it contains 1.
            Body::Directory { .. } if node.links > LINK_MAX.into() => 1,
            _ => node.links as u16,
        };
        if let Some(block) = self.placed.attribute_block(id) {
            desc.file_acl = self.line.block(block.at);
        }
        match &node.body {
            _ if let Some(content) = inline => {
                let first = content.len().min(inline::ROOM);
                desc.i_block[..first].copy_from_slice(&content[..first]);
                desc.size = content.len() as u64;
                desc.flags |= InodeFlags::INLINE_DATA;
            }
            Body::Device { major, minor } => {
                desc.i_block = DeviceNr { major: *major, minor: *minor }.encode();
            }
            Body::Special => {}
            Body::Symlink(target) if (target.len() as u64) < FAST_SYMLINK_LIMIT => {
                desc.i_block[..target.len()].copy_from_slice(target);
                desc.size = target.len() as u64;
            }
            Body::Symlink(_) | Body::File { .. } | Body::Directory { .. } => {
                let map = self.map(id)?;
                desc.size = match &node.body {
                    Body::File { size, .. } => *size,
                    Body::Symlink(target) => target.len() as u64,
                    _ => u64::from(record.blocks) << geo.block_bits,
                };
                desc.flags.set(InodeFlags::INDEX, record.indexed);
                if let Some(stream) = map.stream() {
                    desc.i_block = stream.root(|position| self.line.block(record.at + position).0 as u32);
                } else {
                    desc.flags |= InodeFlags::EXTENTS;
                    let extents: Vec<_> = map.extents(&self.line, record.at).collect();
                    let mut nodes = (record.nodes..).step_by(geo.blocks_per_cluster() as usize);
                    let tree = pack_tree(&extents, geo.block_size, None, || {
                        nodes.next().map(|number| self.line.block(number))
                    });
                    desc.i_block = tree.map_err(|e| self.entry(id, e))?.root;
                }
            }
        }
        desc.blocks = self.bytes(id)? >> SECTOR_BITS;
        Ok(desc)
    }

    /// The number of bytes in all blocks or clusters of an inode.
    pub(super) fn bytes(&self, id: Id) -> Result<u64> {
        let (geo, map) = (self.geometry(), self.map(id)?);
        let nodes = map.nodes(&self.line, self.placed.records[id.0 as usize].at, geo.block_size);
        let attributes = u64::from(self.placed.attribute_block(id).is_some());
        let cluster = u64::from(geo.blocks_per_cluster());
        Ok((map.blocks() + (nodes + attributes) * cluster) << geo.block_bits)
    }

    /// The places of an inode's attributes, and the part of its content that is stored with them. `inline` is the
    /// content, if it is stored in the inode.
    pub(super) fn split(&self, id: Id, inline: Option<&[u8]>) -> Result<Split> {
        let set = self.tree.node(id).xattrs.map_or(&[][..], |set| self.tree.xattrs(set));
        let split = match inline {
            None => split(self.geometry(), set).map(Some),
            Some(content) => split_around(self.geometry(), set, content.get(inline::ROOM..).unwrap_or(&[])),
        };
        // `fits_inode` has rejected sets without room.
        Ok(split.map_err(|e| self.entry(id, e))?.unwrap_or_default())
    }

    /// A sentence about times that are outside the range of the inodes, and so are stored as the nearest possible ones.
    pub(super) fn times_moved(&self) -> Option<String> {
        let geo = self.geometry();
        let has_extra = InodeDesc::new(0, geo).has_extra_times();
        let is_moved = |id: &Id| {
            let time = self.tree.node(*id).mtime;
            time.as_stored(has_extra).seconds != time.seconds
        };
        let mut moved = (0..self.tree.len() as u32).map(Id).filter(is_moved);
        let first = self.tree.path(moved.next()?);
        let (count, size) = (1 + moved.count(), geo.inode_size);
        let entries = if count == 1 { first } else { format!("{first} and {} other entries", count - 1) };
        let (years, next) =
            if has_extra { ("1901 to 2446", "") } else { ("1901 to 2038", "; use larger ones (-I 256)") };
        Some(format!("the time of {entries} is moved to the nearest that inodes of {size} bytes hold, {years}{next}"))
    }

    /// The seed of the checksums of an inode's blocks, with metadata_csum.
    pub(super) fn inode_seed(&self, id: Id) -> Option<ChecksumSeed> {
        let geo = self.geometry();
        geo.metadata_csum.then(|| geo.seed.for_inode(self.numbers.ino(id), 0))
    }

    /// The type of an inode in directory entries.
    pub(super) fn file_type(&self, id: Id) -> FileType {
        FileType::from_mode(self.tree.node(id).mode).unwrap_or(FileType::Regular)
    }
}

impl Inodes for ContentPlan<'_> {
    fn fill(&self, ino: InodeNr, out: &mut [u8]) -> Result<()> {
        let placement = &self.placement;
        let Some(id) = placement.numbers.id(ino) else { return Ok(()) };
        let geo = placement.geometry();
        let inline = self.inline_bytes(id)?;
        let desc = placement.inode(id, inline.as_deref())?;
        desc.encode_into(out, ino, geo).map_err(|e| placement.entry(id, e))?;
        if placement.tree.node(id).xattrs.is_some() || inline.is_some() {
            let split = placement.split(id, inline.as_deref())?;
            if let Some(area) = desc.xattr_area(geo).filter(|_| !split.body.is_empty()) {
                inode_area::encode(&split.body, &mut out[area]).map_err(|e| placement.entry(id, e))?;
                update_checksum(out, ino, geo);
            }
        }
        Ok(())
    }
}
