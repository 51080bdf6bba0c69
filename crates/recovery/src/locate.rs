//! Finds the journal inside an image from the superblock, one descriptor and one inode alone.
//!
//! It runs before replay, so it may read half-written structures. Only the fields that never change while a file
//! system is mounted are trusted (the inode table's place, the journal inode's mapping), and checksums if there are
//! any. If the descriptor has impossible places, a backup of it is used. Every block is checked to lie inside the file
//! system; holes, unwritten extents and repeated blocks are refused.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::Damage;
use extant_ondisk::extent::NodeContext;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::map::{self, Form, Found, Run};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use crate::error::{Error, Result};
use crate::file::JournalFile;
use crate::map::JournalMap;

/// A journal of more blocks is refused; the largest of mke2fs has 10 240 000.
const MAX_JOURNAL_BLOCKS: u64 = 1 << 24;
/// The most pieces of a journal, and the most blocks that map it. The default journals of mke2fs have at most 1 GiB,
/// which is this many blocks of 4 KiB.
const PIECES_MAX: usize = 1 << 18;
/// Backups of a descriptor that are tried.
const BACKUPS_MAX: usize = 4;

/// Reads the primary superblock of the file system on `device`.
pub fn read_super(device: &dyn BlockDevice) -> Result<SuperBlock> {
    // Whole sectors, and nothing else: a neighbour that cannot be read does not matter.
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % unit;
    let mut bytes = vec![0; unit as usize];
    device.read_at(start, &mut bytes, BioFlags::META)?;
    let at = (SUPERBLOCK_OFFSET - start) as usize;
    Ok(SuperBlock::decode(&bytes[at..at + SUPERBLOCK_SIZE], SUPERBLOCK_OFFSET)?)
}

/// Writes the primary superblock, durably, with everything that was written to `device` before.
pub fn write_super(device: &dyn BlockDevice, sb: &SuperBlock) -> Result<()> {
    let (block, at) = sb.primary_location();
    let byte = block.0 * u64::from(sb.block_size) + at as u64;
    // A sector may be larger than the superblock.
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = byte - byte % unit;
    let mut sectors = vec![0; unit as usize];
    device.read_at(start, &mut sectors, BioFlags::META)?;
    sb.encode_into(&mut sectors[(byte - start) as usize..][..SUPERBLOCK_SIZE]);
    let flags = BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA;
    Ok(device.write_at(start, &[&sectors], flags)?)
}

/// Opens the journal of the file system on `device`; `None` if it has none.
///
/// Errors: `NoJournal` if the journal is on another device: open that with [`JournalFile::open_external`].
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
/// Errors: `Map` for a mapping that is impossible for a journal; `Format` for a broken inode or node.
pub fn journal_map(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<JournalMap> {
    let inode = journal_inode(device, sb, ino)?;
    Ok(journal_blocks(device, sb, ino, &inode)?.0)
}

/// The block that contains the inode, and the inode's offset in it.
pub fn inode_place(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<(BlockNr, usize)> {
    let (block, offset) = Walk::new(device, sb, ino).inode_place()?;
    if !sb.contains(block) {
        return Err(Error::map(block.0, "outside the file system"));
    }
    Ok((block, offset))
}

/// The journal's inode, as it is on the device.
pub fn journal_inode(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<InodeDesc> {
    Walk::new(device, sb, ino).read_inode()
}

/// The blocks of the journal that `inode` maps, and the blocks of the mapping itself.
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
    if sb.metadata_csum {
        walk.node_seed = Some(sb.checksum_seed().for_inode(ino, inode.generation).raw());
    }
    let form = if inode.has_extents() { Form::Extents } else { Form::Indirect };
    walk.root(form, &inode.i_block)?;
    if walk.found < walk.wanted {
        return Err(Error::map(walk.found, "a hole in the journal"));
    }
    Ok((JournalMap::from_runs(walk.runs)?, walk.nodes))
}

struct Walk<'a> {
    device: &'a dyn BlockDevice,
    sb: &'a SuperBlock,
    ino: InodeNr,
    /// The seed of the checksums of extent nodes, if they have any.
    node_seed: Option<u32>,
    /// Blocks of the journal, and how many have been placed. Blocks beyond the size are ignored.
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
        let Some((_, offset)) = geometry.group_desc_block(place.group) else {
            return Err(Error::map(0u64, format!("no descriptor of {}", place.group)));
        };
        // Its counts and checksum change with every allocation and may only be in the log; the table's place never
        // changes. So a backup has it, too.
        let backups: Vec<GroupNr> = geometry.backup_groups().take(BACKUPS_MAX).collect();
        let index = place.group.0 / geometry.descs_per_block();
        let mut parsed = geometry.desc_block_copies(index, &backups).map(|block| {
            let bytes = self.read_block(block)?;
            Ok(GroupDesc::parse(bytes.get(offset..).unwrap_or(&[]), place.group, geometry)?)
        });
        let primary: Result<GroupDesc> = parsed.next().unwrap_or_else(|| Err(Error::map(0u64, "no descriptor")));
        let fits = |desc: &GroupDesc| desc.check_locations(place.group, geometry).is_ok();
        let desc = match primary {
            Ok(desc) if fits(&desc) => desc,
            primary => parsed.flatten().find(fits).map_or(primary, Ok)?,
        };
        Ok((BlockNr(desc.inode_table.0.saturating_add(u64::from(place.table_block))), place.offset))
    }

    fn read_inode(&self) -> Result<InodeDesc> {
        let (block, offset) = self.inode_place()?;
        let bytes = self.read_block(block)?;
        Ok(InodeDesc::decode(bytes.get(offset..).unwrap_or(&[]), self.ino, self.sb.geometry())?)
    }

    /// Records a block that maps the journal.
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

    fn root(&mut self, form: Form, i_block: &[u8; 60]) -> Result<()> {
        let mut steps = Vec::new();
        map::root(form, i_block, self.sb.block_size, &self.context(), &mut |found| steps.push(found));
        self.follow(0, steps)
    }

    /// The facts that a node does not contain.
    fn context(&self) -> NodeContext<impl Fn(BlockNr, u32) -> bool + 'a> {
        let sb = self.sb;
        let valid = move |block, len| sb.contains_range(block, u64::from(len));
        NodeContext { seed: self.node_seed, is_dir: false, cluster_bits: sb.cluster_bits, valid }
    }

    /// Follows the entries of the node in block `number` up to the end of the journal. Terminates, because a node
    /// without entries is a hole, and every other one places at least one block.
    fn follow(&mut self, number: u64, steps: Vec<Found>) -> Result<()> {
        if steps.is_empty() {
            return Err(Error::map(self.found, "a hole in the journal"));
        }
        for step in steps {
            if self.found >= self.wanted {
                break;
            }
            match step {
                Found::Damage(damage) if damage.is_fatal() => return Err(Error::map(number, damage.to_string())),
                Found::Damage(_) => {}
                Found::Run(run) => self.run(&run)?,
                Found::Child(child) => {
                    let bytes = self.read_block(child.block)?;
                    self.node(child.block)?;
                    let mut steps = Vec::new();
                    map::node(&child, &bytes, &self.context(), &mut |found| steps.push(found));
                    self.follow(child.block.0, steps)?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<()> {
        if u64::from(run.lblk.0) != self.found {
            return Err(Error::map(self.found, "a hole in the journal"));
        }
        if run.unwritten {
            return Err(Error::map(self.found, "an unwritten extent in the journal"));
        }
        self.place(run.pblk, u64::from(run.len))
    }
}
