//! The bytes of a tree's inodes.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::extent::pack_tree;
use extant_ondisk::inode::{DeviceNr, FAST_SYMLINK_LIMIT, FileType, InodeDesc, InodeFlags, LINK_MAX, update_checksum};
use extant_ondisk::xattr::inode_area;

use super::Placement;
use super::attributes::split;
use crate::Result;
use crate::skeleton::Inodes;
use crate::tree::{Body, Id};

/// `i_blocks` counts sectors of 512 bytes.
const SECTOR_BITS: u32 = 9;

impl Placement<'_> {
    /// An inode without its attributes.
    fn inode(&self, id: Id) -> Result<InodeDesc> {
        let (geo, node, record) = (self.geometry(), self.tree.node(id), &self.placed.records[id.0 as usize]);
        let mut desc = InodeDesc::new(node.mode, geo);
        (desc.uid, desc.gid) = (node.uid, node.gid);
        (desc.atime, desc.ctime, desc.mtime) = (node.mtime, node.mtime, node.mtime);
        desc.crtime = desc.crtime.map(|_| node.mtime);
        desc.links = match &node.body {
            // A directory with more links than can be counted says 1.
            Body::Directory { .. } if node.links > LINK_MAX.into() => 1,
            _ => node.links as u16,
        };
        if let Some(block) = self.placed.attribute_block(id) {
            desc.file_acl = self.line.block(block.at);
        }
        match &node.body {
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
                    let mut nodes = record.nodes..;
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

    /// The bytes of all blocks of an inode.
    pub(super) fn bytes(&self, id: Id) -> Result<u64> {
        let (geo, map) = (self.geometry(), self.map(id)?);
        let nodes = map.nodes(&self.line, self.placed.records[id.0 as usize].at, geo.block_size);
        let attributes = u64::from(self.placed.attribute_block(id).is_some());
        Ok((map.blocks() + nodes + attributes) << geo.block_bits)
    }

    /// The seed of the checksums of an inode's blocks, under metadata_csum.
    pub(super) fn inode_seed(&self, id: Id) -> Option<ChecksumSeed> {
        let geo = self.geometry();
        geo.metadata_csum.then(|| geo.seed.for_inode(self.numbers.ino(id), 0))
    }

    /// The type that directory entries give an inode.
    pub(super) fn file_type(&self, id: Id) -> FileType {
        FileType::from_mode(self.tree.node(id).mode).unwrap_or(FileType::Regular)
    }
}

impl Inodes for Placement<'_> {
    fn fill(&self, ino: InodeNr, out: &mut [u8]) -> Result<()> {
        let Some(id) = self.numbers.id(ino) else { return Ok(()) };
        let geo = self.geometry();
        let desc = self.inode(id)?;
        desc.encode_into(out, ino, geo).map_err(|e| self.entry(id, e))?;
        if let Some(set) = self.tree.node(id).xattrs {
            let split = split(geo, self.tree.xattrs(set)).map_err(|e| self.entry(id, e))?;
            if let Some(area) = desc.xattr_area(geo).filter(|_| !split.body.is_empty()) {
                inode_area::encode(&split.body, &mut out[area]).map_err(|e| self.entry(id, e))?;
                update_checksum(out, ino, geo);
            }
        }
        Ok(())
    }
}
