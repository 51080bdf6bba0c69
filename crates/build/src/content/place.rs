//! The places of all parts of a tree on the line of free blocks.
//!
//! Main types: [`Places`], [`Object`] (a part that is contiguous on the line).
//!
//! Everything that a walk needs comes first: directories, each followed by its extent nodes, then attribute blocks,
//! long symbolic links and the extent nodes of files. Data comes last. All of them are in the order of the inodes'
//! numbers, which is that of a listing. So a cold `find` and a cold `tar` read forwards. The pointer blocks of ext2 and
//! ext3 are among the data ([`extant_ondisk::indirect::Stream`]), because only reading the file needs them.
//!
//! # Locking
//! None.

use std::ops::Range;

use extant_ondisk::xattr::{REFCOUNT_MAX, XattrBlock};

use super::Placement;
use crate::Result;
use crate::tree::{Body, Id};

/// The places of the parts of one inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    /// The number of its first block on the line.
    pub at: u64,
    /// The number of its first extent node.
    pub nodes: u64,
    /// The number of blocks of a directory.
    pub blocks: u32,
    /// One more than the number of its attribute block; 0 if it has none.
    attributes: u32,
    /// Whether a directory has an index.
    pub indexed: bool,
    /// Whether the content is in the inode.
    pub inline: bool,
}

/// A block of attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeBlock {
    /// The set's number in the tree.
    pub set: u32,
    /// The number of inodes that share it.
    pub references: u32,
    /// Its number on the line.
    pub at: u64,
}

/// A part of a tree that is contiguous on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The blocks of a directory, with the pointers between them.
    Directory(Id),
    /// The extent nodes of an inode.
    Nodes(Id),
    /// A block of attributes.
    Attributes(u32),
    /// A symbolic link that is too long for its inode.
    Symlink(Id),
    /// The data of a file, with the pointers in between.
    File(Id),
}

/// The places of everything.
#[derive(Default)]
pub(super) struct Places {
    /// The records, by the inode's number in the tree.
    pub records: Vec<Record>,
    pub attributes: Vec<AttributeBlock>,
    /// The number on the line at which metadata ends.
    pub metadata_end: u64,
    /// The number at which data begins.
    pub data: u64,
    /// The number at which data ends.
    pub end: u64,
}

impl Places {
    /// The attribute block of an inode.
    pub fn attribute_block(&self, id: Id) -> Option<&AttributeBlock> {
        let number = self.records[id.0 as usize].attributes.checked_sub(1)?;
        self.attributes.get(number as usize)
    }
}

impl Placement<'_> {
    /// The inodes in the order of their numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.numbers.ids().iter().copied()
    }

    /// Places everything.
    ///
    /// # Errors
    /// An entry cannot be stored, or there is too little room.
    pub(super) fn place(&mut self) -> Result<()> {
        let known = self.placed.records.len() == self.tree.len();
        if !known {
            self.placed.records = vec![Record::default(); self.tree.len()];
        }
        for place in 0..self.tree.len() {
            let id = self.numbers.ids()[place];
            self.placed.records[id.0 as usize].attributes = 0;
            if !known {
                self.placed.records[id.0 as usize].inline = self.fits_inode(id)?;
            }
            self.check(id)?;
            if !known
                && !self.placed.records[id.0 as usize].inline
                && let Body::Directory { .. } = self.tree.node(id).body
            {
                let whole = self.lay_out(id)?;
                let record = &mut self.placed.records[id.0 as usize];
                (record.blocks, record.indexed) = (whole.blocks(), whole.is_indexed());
            }
        }
        self.share_attributes()?;
        // The length of the metadata depends on how the data is fragmented, which depends on where the data begins, and
        // more metadata moves that point. So the loop moves it back until the metadata fits before the data.
        let mut end = self.place_metadata(0)?;
        loop {
            self.placed.data = end;
            let now = self.place_metadata(end)?;
            if now <= end {
                self.placed.metadata_end = now;
                break;
            }
            end = now;
        }
        Ok(())
    }

    /// For each set that does not fit into the inodes, assigns blocks that they share.
    fn share_attributes(&mut self) -> Result<()> {
        // For each set: the number of the block that the next inode shares, and how many more inodes it can have.
        let mut open: Vec<Option<(u32, u32)>> = vec![None; self.tree.xattr_sets()];
        let mut sharers: Vec<Option<u32>> = vec![None; self.tree.xattr_sets()];
        for place in 0..self.tree.len() {
            let id = self.numbers.ids()[place];
            let Some(set) = self.tree.node(id).xattrs else { continue };
            let inline = self.placed.records[id.0 as usize].inline;
            let most = match sharers[set as usize].filter(|_| !inline) {
                Some(most) => most,
                None => {
                    let content = self.inline_len(id).filter(|_| inline).map(|len| vec![0; len]);
                    let split = self.split(id, content.as_deref())?;
                    // The kernel never shares a block whose hash is 0.
                    let most = match (split.block.is_empty(), XattrBlock::hash_of(&split.block)) {
                        (true, _) => 0,
                        (false, 0) => 1,
                        (false, _) => REFCOUNT_MAX,
                    };
                    if !inline {
                        sharers[set as usize] = Some(most);
                    }
                    most
                }
            };
            if most == 0 {
                continue;
            }
            let (number, left) = match open[set as usize] {
                Some((number, left)) if left > 0 => (number, left),
                _ => {
                    self.placed.attributes.push(AttributeBlock { set, references: 0, at: 0 });
                    (self.placed.attributes.len() as u32 - 1, most)
                }
            };
            open[set as usize] = Some((number, left - 1));
            self.placed.attributes[number as usize].references += 1;
            self.placed.records[id.0 as usize].attributes = number + 1;
        }
        Ok(())
    }

    /// Places metadata from 0 on and data from `data` on. Returns the end of the metadata.
    fn place_metadata(&mut self, data: u64) -> Result<u64> {
        let geo = self.superblock.geometry().clone();
        let cluster = u64::from(geo.blocks_per_cluster());
        let (mut at, mut data) = (0, data);
        for place in 0..self.tree.len() {
            let id = self.numbers.ids()[place];
            if let Body::Directory { .. } = self.tree.node(id).body {
                let map = self.map(id)?;
                let nodes = map.nodes(&self.line, at, geo.block_size);
                let blocks = map.blocks();
                let record = &mut self.placed.records[id.0 as usize];
                (record.at, record.nodes) = (at, at + blocks);
                at += blocks + nodes * cluster;
            }
        }
        let mut shared = 0;
        for place in 0..self.tree.len() {
            let id = self.numbers.ids()[place];
            if self.placed.records[id.0 as usize].attributes as usize == shared + 1 {
                self.placed.attributes[shared].at = at;
                shared += 1;
                at += cluster;
            }
            match self.tree.node(id).body {
                Body::Symlink(_) => {
                    self.placed.records[id.0 as usize].at = at;
                    at += self.map(id)?.blocks();
                }
                Body::File { .. } => {
                    let map = self.map(id)?;
                    let nodes = map.nodes(&self.line, data, geo.block_size);
                    let record = &mut self.placed.records[id.0 as usize];
                    (record.at, record.nodes) = (data, at);
                    at += nodes * cluster;
                    data += map.blocks();
                }
                _ => {}
            }
        }
        self.placed.end = data.max(at);
        Ok(at)
    }

    /// The written blocks of the tree in the order of the line: each part of the tree with the number of its first
    /// block and the range of its blocks. After an extent node or attributes, the rest of a cluster is not written.
    pub(super) fn objects(&self) -> impl Iterator<Item = (Object, u64, Range<u64>)> + Send + '_ {
        let record = |id: Id| self.placed.records[id.0 as usize];
        let block_size = self.geometry().block_size;
        let cluster = u64::from(self.geometry().blocks_per_cluster());
        // `check` has rejected each inode that cannot be mapped.
        let map = move |id: Id| self.map(id).ok();
        let nodes = move |id: Id| {
            let count = map(id).map_or(0, |map| map.nodes(&self.line, record(id).at, block_size));
            // Each of them has its own cluster.
            let (each, runs) = if cluster > 1 { (1, count) } else { (count, u64::from(count > 0)) };
            (0..runs).map(move |run| (Object::Nodes(id), record(id).nodes + run * (cluster - 1), run..run + each))
        };
        let blocks = move |id: Id, object: Object| {
            let map = map(id);
            let whole = map.as_ref().filter(|_| cluster == 1).map(|map| 0..map.blocks());
            let parts = map.filter(|_| cluster > 1).map(|map| map.written().collect::<Vec<_>>());
            let ranges = whole.into_iter().chain(parts.into_iter().flatten());
            ranges.map(move |range| (object, record(id).at, range))
        };
        let is_directory = |id: &Id| matches!(self.tree.node(*id).body, Body::Directory { .. });
        let directories =
            self.ids().filter(is_directory).flat_map(move |id| blocks(id, Object::Directory(id)).chain(nodes(id)));
        let mut shared = 0;
        let others = self.ids().flat_map(move |id| {
            let first = record(id).attributes == shared + 1;
            let attributes = first.then(|| {
                shared += 1;
                (Object::Attributes(shared - 1), self.placed.attributes[shared as usize - 1].at, 0..1)
            });
            let (link, file) = match self.tree.node(id).body {
                Body::Symlink(_) => (Some(blocks(id, Object::Symlink(id))), None),
                Body::File { .. } => (None, Some(nodes(id))),
                _ => (None, None),
            };
            attributes.into_iter().chain(link.into_iter().flatten()).chain(file.into_iter().flatten())
        });
        let files = self.ids().filter(|id| matches!(self.tree.node(*id).body, Body::File { .. }));
        let data = files.flat_map(move |id| blocks(id, Object::File(id)));
        directories.chain(others).chain(data).filter(|(_, _, range)| !range.is_empty())
    }
}
