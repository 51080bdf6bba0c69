//! Creates the bytes of a tree's blocks.
//!
//! # Locking
//! None.

use extant_ondisk::dirent::Target;
use extant_ondisk::extent::pack_tree;
use extant_ondisk::indirect::Part;
use extant_ondisk::xattr::XattrBlock;

use super::ContentPlan;
use super::attributes::block_of;
use super::place::Object;
use crate::Result;
use crate::tree::{Body, Id};

impl ContentPlan<'_> {
    /// Creates blocks of an object from its block `from` on.
    pub(super) fn fill_object(&self, object: Object, from: u64, buf: &mut [u8]) -> Result<()> {
        match object {
            Object::Directory(id) => self.fill_directory(id, from, buf),
            Object::Nodes(id) => self.fill_nodes(id, from, buf),
            Object::Attributes(number) => self.fill_attributes(number, buf),
            Object::Symlink(id) => {
                if let Body::Symlink(target) = &self.placement.tree.node(id).body {
                    buf[..target.len()].copy_from_slice(target);
                }
                Ok(())
            }
            Object::File(id) => self.fill_file(id, from, buf),
        }
    }

    /// Visits the blocks of a file from `from` on: creates the blocks of pointers, and calls `data` to create the
    /// others.
    fn walk(
        &self,
        id: Id,
        mut from: u64,
        buf: &mut [u8],
        mut data: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let map = self.placement.map(id)?;
        let at = self.placement.placed.records[id.0 as usize].at;
        let bits = self.placement.geometry().block_bits;
        let stream = map.stream();
        let mut rest = buf;
        for part in map.parts(from) {
            if rest.is_empty() {
                break;
            }
            let blocks = match part {
                Part::Data { blocks, .. } => blocks.min((rest.len() >> bits) as u32),
                Part::Pointers(_) => 1,
            };
            let (now, behind) = std::mem::take(&mut rest).split_at_mut((blocks as usize) << bits);
            match (part, &stream) {
                (Part::Data { lblk, .. }, _) => data(lblk.0, now)?,
                (Part::Pointers(block), Some(stream)) => {
                    stream.fill(block, from, |position| self.placement.line.block(at + position).0 as u32, now);
                }
                (Part::Pointers(_), None) => {}
            }
            rest = behind;
            from += u64::from(blocks);
        }
        Ok(())
    }

    fn fill_directory(&self, id: Id, from: u64, buf: &mut [u8]) -> Result<()> {
        let whole = self.layout_for_blocks(id)?;
        let Body::Directory { entries, parent } = &self.placement.tree.node(id).body else { return Ok(()) };
        let entry = |number| {
            let (name, id) = self.placement.tree.entry(entries.start + number);
            (name, Target { ino: self.placement.numbers.ino(id).0, file_type: self.placement.file_type(id) })
        };
        let dot = [self.placement.numbers.ino(id).0, self.placement.numbers.ino(*parent).0];
        let seed = self.placement.inode_seed(id);
        let block_size = self.placement.geometry().block_size as usize;
        let format = self.placement.format(id);
        self.walk(id, from, buf, |first, blocks| {
            for (number, block) in (first..).zip(blocks.chunks_exact_mut(block_size)) {
                format.fill(&whole, number, block, dot, entry, seed).map_err(|e| self.placement.entry(id, e))?;
            }
            Ok(())
        })
    }

    fn fill_nodes(&self, id: Id, from: u64, buf: &mut [u8]) -> Result<()> {
        let record = self.placement.placed.records[id.0 as usize];
        let map = self.placement.map(id)?;
        let extents: Vec<_> = map.extents(&self.placement.line, record.at).collect();
        let cluster = self.placement.geometry().blocks_per_cluster() as usize;
        let mut nodes = (record.nodes..).step_by(cluster);
        let seed = self.placement.inode_seed(id).map(|seed| seed.raw());
        let block_size = self.placement.geometry().block_size;
        let tree =
            pack_tree(&extents, block_size, seed, || nodes.next().map(|number| self.placement.line.block(number)));
        let tree = tree.map_err(|e| self.placement.entry(id, e))?;
        for ((_, bytes), out) in tree.blocks[from as usize..].iter().zip(buf.chunks_exact_mut(block_size as usize)) {
            out.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn fill_attributes(&self, number: u32, buf: &mut [u8]) -> Result<()> {
        let geo = self.placement.geometry();
        let block = &self.placement.placed.attributes[number as usize];
        let as_error = |why: String| crate::Error::Options(format!("extended attributes: {why}"));
        let list = block_of(geo, self.placement.tree.xattrs(block.set)).map_err(as_error)?;
        let seed = geo.metadata_csum.then(|| geo.seed.raw());
        XattrBlock::encode(&list, block.references, buf, self.placement.line.block(block.at), seed)
            .map_err(|e| as_error(e.to_string()))
    }

    fn fill_file(&self, id: Id, from: u64, buf: &mut [u8]) -> Result<()> {
        let Body::File { size, content, .. } = self.placement.tree.node(id).body else { return Ok(()) };
        let file = self.content.open(content)?;
        self.walk(id, from, buf, |lblk, blocks| {
            let offset = u64::from(lblk) << self.placement.geometry().block_bits;
            let len = size.saturating_sub(offset).min(blocks.len() as u64);
            file.read_at(offset, &mut blocks[..len as usize])
        })?;
        file.finish()
    }
}
