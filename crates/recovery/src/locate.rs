//! Finding the journal inside an image, with nothing but the superblock, one descriptor and one inode.
//!
//! It runs before replay, so it reads what may be half written: only the fields that never change while a file system
//! is mounted are trusted (the inode table's place, the journal inode's mapping), and checksums where there are any.
//! Every block is checked to lie inside the file system; holes, unwritten extents and repeated blocks are refused.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::extent::{Extent, NodeRef};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::indirect;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Error, Result};
use crate::file::JournalFile;
use crate::map::JournalMap;

/// A journal of more blocks is refused; the largest that mke2fs makes has 10 240 000.
const MAX_JOURNAL_BLOCKS: u64 = 1 << 24;
/// The most pieces that a journal may lie in, and the most blocks that map it. A journal of 1 GiB, the largest that
/// mke2fs makes unasked, has so many blocks of 4 KiB.
const PIECES_MAX: usize = 1 << 18;
/// The deepest extent tree (Linux: `EXT4_MAX_EXTENT_DEPTH`).
const MAX_EXTENT_DEPTH: u16 = 5;

/// Reads the primary superblock of the file system on `device`.
pub fn read_super(device: &dyn BlockDevice) -> Result<SuperBlock> {
    let mut bytes = vec![0; 4096];
    // From the start of the device, in a piece that any sector size divides.
    device.read_at(0, &mut bytes, BioFlags::META)?;
    let at = SUPERBLOCK_OFFSET as usize;
    Ok(SuperBlock::decode(&bytes[at..at + SUPERBLOCK_SIZE], SUPERBLOCK_OFFSET)?)
}

/// Opens the journal of the file system on `device`; `None` when it has none.
///
/// Errors: `NoJournal` when the journal is on another device: open that with [`JournalFile::open_external`].
pub fn open_journal(device: Arc<dyn BlockDevice>, sb: &SuperBlock) -> Result<Option<JournalFile>> {
    if sb.external_journal().is_some() {
        return Err(Error::NoJournal { detail: format!("that of {} is on another device", device.name()) });
    }
    let Some(ino) = sb.journal_inode() else { return Ok(None) };
    let map = journal_map(device.as_ref(), sb, ino)?;
    JournalFile::open(device, sb.block_size, map).map(Some)
}

/// The blocks of the journal in inode `ino`.
///
/// Errors: `Map` for a mapping that no journal can have; `Format` for a broken inode or node.
pub fn journal_map(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<JournalMap> {
    let inode = journal_inode(device, sb, ino)?;
    Ok(journal_blocks(device, sb, ino, &inode)?.0)
}

/// The block that holds the inode, and where in it.
pub fn inode_place(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<(BlockNr, usize)> {
    let (block, offset) = Walk::new(device, sb, ino).inode_place()?;
    if !sb.contains(block) {
        return Err(Error::map(block.0, "outside the file system"));
    }
    Ok((block, offset))
}

/// The inode of the journal as it is on the device.
pub fn journal_inode(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<InodeDesc> {
    Walk::new(device, sb, ino).read_inode()
}

/// The blocks of the journal that `inode` maps, and the blocks that hold the mapping.
///
/// Errors: as for [`journal_map`].
pub fn journal_blocks(
    device: &dyn BlockDevice,
    sb: &SuperBlock,
    ino: InodeNr,
    inode: &InodeDesc,
) -> Result<(JournalMap, Vec<BlockNr>)> {
    let mut walk = Walk::new(device, sb, ino);
    let refuse = |detail: String| Err(Error::map(0u64, format!("journal {ino}: {detail}")));
    if !inode.is_regular() || inode.links == 0 {
        return refuse(format!("mode {:#o}, {} links", inode.mode, inode.links));
    }
    walk.wanted = inode.size / u64::from(sb.block_size);
    if walk.wanted == 0 || walk.wanted > MAX_JOURNAL_BLOCKS.min(sb.blocks_count) {
        return refuse(format!("{} blocks long", walk.wanted));
    }
    if inode.has_extents() {
        if sb.metadata_csum {
            walk.node_seed = Some(sb.checksum_seed().for_inode(ino, inode.generation).raw());
        }
        let root = NodeRef::parse(&inode.i_block, 0)?;
        if root.depth() > MAX_EXTENT_DEPTH {
            return refuse(format!("extent tree of depth {}", root.depth()));
        }
        walk.extents(&root, root.depth(), 0)?;
    } else {
        walk.indirect(&inode.i_block)?;
    }
    if walk.found < walk.wanted {
        return Err(Error::map(walk.found, "a hole in the journal"));
    }
    Ok((JournalMap::from_runs(walk.runs)?, walk.nodes))
}

struct Walk<'a> {
    device: &'a dyn BlockDevice,
    sb: &'a SuperBlock,
    ino: InodeNr,
    /// Where the checksums of extent nodes start, if they have any.
    node_seed: Option<u32>,
    /// Blocks of the journal, and how many have been placed. What lies beyond the size is not looked at.
    wanted: u64,
    found: u64,
    runs: Vec<(BlockNr, u32)>,
    /// Extent nodes below the root, blocks of pointers.
    nodes: Vec<BlockNr>,
}

impl<'a> Walk<'a> {
    fn new(device: &'a dyn BlockDevice, sb: &'a SuperBlock, ino: InodeNr) -> Walk<'a> {
        Walk { device, sb, ino, node_seed: None, wanted: 0, found: 0, runs: Vec::new(), nodes: Vec::new() }
    }

    fn read_block(&self, block: BlockNr) -> Result<Vec<u8>> {
        if !self.sb.contains(block) {
            return Err(Error::map(block.0, "outside the file system"));
        }
        let size = u64::from(self.sb.block_size);
        let mut bytes = vec![0; size as usize];
        self.device.read_at(block.0 * size, &mut bytes, BioFlags::META)?;
        Ok(bytes)
    }

    /// The block of the inode's slot, and the offset in it.
    fn inode_place(&self) -> Result<(BlockNr, usize)> {
        let geometry = self.sb.geometry();
        let place = geometry.inode_location(self.ino)?;
        let Some((block, offset)) = geometry.group_desc_block(place.group) else {
            return Err(Error::map(0u64, format!("no descriptor of {}", place.group)));
        };
        let bytes = self.read_block(block)?;
        // Its counts and checksum change with every allocation and may wait in the log; the table's place never does.
        let desc = GroupDesc::parse(bytes.get(offset..).unwrap_or(&[]), place.group, geometry)?;
        Ok((BlockNr(desc.inode_table.0.saturating_add(u64::from(place.table_block))), place.offset))
    }

    fn read_inode(&self) -> Result<InodeDesc> {
        let (block, offset) = self.inode_place()?;
        let bytes = self.read_block(block)?;
        Ok(InodeDesc::decode(bytes.get(offset..).unwrap_or(&[]), self.ino, self.sb.geometry())?)
    }

    /// Notes a block that maps the journal.
    fn node(&mut self, block: BlockNr) -> Result<()> {
        if self.nodes.len() >= PIECES_MAX {
            return Err(Error::TooMuch { most: PIECES_MAX, what: "blocks that map the journal" });
        }
        self.nodes.push(block);
        Ok(())
    }

    fn place(&mut self, block: BlockNr, len: u64) -> Result<()> {
        let len = len.min(self.wanted - self.found);
        if len == 0 {
            return Ok(());
        }
        if !self.sb.contains_range(block, len) {
            return Err(Error::map(self.found, format!("{len} blocks from {block} are outside the file system")));
        }
        let pieces = self.runs.len();
        match self.runs.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == block.0 => *n += len as u32,
            _ if pieces >= PIECES_MAX => {
                return Err(Error::TooMuch { most: PIECES_MAX, what: "pieces of the journal" });
            }
            _ => self.runs.push((block, len as u32)),
        }
        self.found += len;
        Ok(())
    }

    fn extents(&mut self, node: &NodeRef<'_>, depth: u16, number: u64) -> Result<()> {
        let sb = self.sb;
        // Also: keys ascend and an index node is not empty.
        node.validate(depth, number, |block, len| sb.contains_range(block, u64::from(len)))?;
        if depth == 0 {
            // A leaf without entries would let a small tree take long.
            if node.is_empty() {
                return Err(Error::map(self.found, "a hole in the journal"));
            }
            for i in 0..node.len() {
                let Some(extent) = node.extent(i) else { break };
                self.extent(&extent)?;
            }
            return Ok(());
        }
        for i in 0..node.len() {
            if self.found >= self.wanted {
                break;
            }
            let Some(index) = node.index(i) else { break };
            let bytes = self.read_block(index.child)?;
            self.node(index.child)?;
            let child = NodeRef::parse(&bytes, index.child.0)?;
            if let Some(seed) = self.node_seed
                && child.checksum(seed) != child.stored_checksum()
            {
                return Err(Error::map(index.child.0, "bad checksum of an extent node of the journal"));
            }
            self.extents(&child, depth - 1, index.child.0)?;
        }
        Ok(())
    }

    fn extent(&mut self, extent: &Extent) -> Result<()> {
        if self.found >= self.wanted {
            return Ok(());
        }
        if u64::from(extent.lblk.0) != self.found {
            return Err(Error::map(self.found, format!("the journal's next extent is at {}", extent.lblk.0)));
        }
        if extent.unwritten {
            return Err(Error::map(self.found, "an unwritten extent in the journal"));
        }
        self.place(extent.pblk, u64::from(extent.len))
    }

    fn indirect(&mut self, i_block: &[u8; 60]) -> Result<()> {
        for i in 0..indirect::SLOTS {
            if self.found >= self.wanted {
                break;
            }
            let level = (i + 1).saturating_sub(indirect::DIRECT as usize);
            self.pointer(indirect::pointer(i_block, i).unwrap_or(0), level)?;
        }
        Ok(())
    }

    /// Follows one pointer; `level` is how many blocks of pointers lie before the journal's own. Ends, because each
    /// block of pointers that is read places at least one block.
    fn pointer(&mut self, block: u32, level: usize) -> Result<()> {
        if block == 0 {
            return Err(Error::map(self.found, "a hole in the journal"));
        }
        let block = BlockNr(block.into());
        if level == 0 {
            return self.place(block, 1);
        }
        let bytes = self.read_block(block)?;
        self.node(block)?;
        for i in 0..bytes.len() / 4 {
            if self.found >= self.wanted {
                break;
            }
            self.pointer(indirect::pointer(&bytes, i).unwrap_or(0), level - 1)?;
        }
        Ok(())
    }
}
