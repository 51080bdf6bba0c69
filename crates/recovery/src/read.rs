//! One reader of a file system on a device, for everything below and beside the engine: the superblock or a backup of
//! it, descriptors, inodes, and the maps of files.
//!
//! Main types: [`FoundSuper`] (made by [`find_super`]), [`Reader`] (the rest, by the layout that a superblock states),
//! [`Step`] (of a walk over a map). Replay finds its journal with it, and so do the tools that open, measure
//! and damage images.
//!
//! Nothing is believed. A read takes whole sectors inside the file system, and nothing else: a neighbour that cannot be
//! read does not matter. A walk over a map reads no more nodes than the file system has blocks.
//!
//! What it does not do: judge (the checker reads in waves, and reports every fault), cache, write. The engine reads
//! through its buffers.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::extent::NodeContext;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::map::{self, Child, Form, MapDamage, Run, StepItem};
use extant_ondisk::superblock::{self, Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, backup_at};
use extant_ondisk::{BlockNr, Error as Damaged, GroupNr, InodeNr, Structure};

/// Backups of a descriptor that are tried.
const BACKUPS_MAX: usize = 4;
/// Backups of the superblock that an error names.
const NAMED_MAX: usize = 8;

/// Why something cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// A structure is damaged, or uses an unsupported feature.
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

/// The superblock of a file system, and its origin.
pub struct FoundSuper {
    pub sb: SuperBlock,
    /// If a backup is used instead of the primary: its block, and the fault of the primary. The fault is `None` if the
    /// caller named the backup.
    pub backup: Option<(BlockNr, Option<Error>)>,
    /// Damage of the copy that was passed over.
    pub doubts: Vec<extant_ondisk::Error>,
}

/// Reads bytes, which need not be whole sectors.
///
/// # Errors
/// The device's.
pub fn bytes(device: &dyn BlockDevice, at: u64, len: usize) -> Result<Vec<u8>> {
    let unit = u64::from(device.limits().logical_block).max(1);
    let start = at - at % unit;
    let skipped = (at - start) as usize;
    // The device may end in the middle of a sector.
    let most = usize::try_from(device.size_bytes().saturating_sub(start)).unwrap_or(usize::MAX);
    let whole = (skipped + len).next_multiple_of(unit as usize).min(most).max(skipped + len);
    let mut sectors = vec![0; whole];
    device.read_at(start, &mut sectors, BioFlags::META)?;
    sectors.drain(..skipped);
    sectors.truncate(len);
    Ok(sectors)
}

fn super_bytes(device: &dyn BlockDevice, byte: u64) -> Result<Vec<u8>> {
    if byte.checked_add(SUPERBLOCK_SIZE as u64).is_none_or(|end| end > device.size_bytes()) {
        return Err(Damaged::corrupt(Structure::SuperBlock, byte, "the image is too small").into());
    }
    bytes(device, byte, SUPERBLOCK_SIZE)
}

/// The copy of the superblock at this byte.
///
/// # Errors
/// The device's, and every damage of it.
pub fn super_at(device: &dyn BlockDevice, byte: u64) -> Result<SuperBlock> {
    Ok(SuperBlock::decode(&super_bytes(device, byte)?, byte)?)
}

/// The superblock of the file system on `device`: the primary, or the first backup that belongs to it. `named`: the
/// copy at this byte instead. With `rescue`, damage is passed over if there is no better copy.
///
/// # Errors
/// The damage of the primary, if there is no good backup either, or if the primary may be good: it cannot be read, or
/// has features that this version does not know. Of the named copy: its damage; or it belongs to another file system.
pub fn find_super(device: &dyn BlockDevice, named: Option<u64>, rescue: bool) -> Result<FoundSuper> {
    if let Some(at) = named.filter(|at| *at != SUPERBLOCK_OFFSET) {
        return named_super(device, at, rescue);
    }
    let fits = |sb: &SuperBlock| rescue || sb.check_device_size(device.size_bytes()).is_ok();
    let is_lost = |e: &Error| rescue || matches!(e, Error::Format(Damaged::Corrupt { .. }));
    let mut read = |at: u64, into: &mut [u8]| device.read_at(at, into, BioFlags::META).is_ok();
    match superblock::find(device.size_bytes(), |at| super_at(device, at), &mut read, fits, is_lost) {
        Ok((sb, backup)) => {
            Ok(FoundSuper { sb, backup: backup.map(|(block, e)| (block, Some(e))), doubts: Vec::new() })
        }
        Err(e) if !rescue => Err(e),
        Err(e) => {
            let (sb, doubts) = damaged_super(device, SUPERBLOCK_OFFSET).map_err(|_| e)?;
            Ok(FoundSuper { sb, backup: None, doubts })
        }
    }
}

fn named_super(device: &dyn BlockDevice, at: u64, rescue: bool) -> Result<FoundSuper> {
    let (sb, doubts) = match super_at(device, at) {
        Err(e) if rescue => damaged_super(device, at).map_err(|_| e)?,
        found => (found?, Vec::new()),
    };
    let Some(block) = backup_at(&sb, at) else {
        let blocks: Vec<u64> = sb.backup_groups().take(NAMED_MAX).map(|g| sb.super_location(g).0.0).collect();
        let detail = format!("no copy of this file system's superblock belongs there; there are some at {blocks:?}");
        return Err(Damaged::corrupt(Structure::SuperBlock, at, detail).into());
    };
    Ok(FoundSuper { sb, backup: Some((block, None)), doubts })
}

fn damaged_super(device: &dyn BlockDevice, byte: u64) -> Result<(SuperBlock, Vec<extant_ondisk::Error>)> {
    Ok(SuperBlock::decode_damaged(&super_bytes(device, byte)?, byte)?)
}

/// A step of a walk over the map of a file, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Blocks of the file.
    Run(Run),
    /// A block of the map, about to be read.
    Node(Child),
    /// Something wrong with the node in this block; 0: with the root, in the inode.
    Damage(BlockNr, MapDamage),
}

/// Reads a file system by its layout.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    device: &'a dyn BlockDevice,
    geo: &'a Geometry,
}

impl<'a> Reader<'a> {
    pub fn new(device: &'a dyn BlockDevice, geo: &'a Geometry) -> Reader<'a> {
        Reader { device, geo }
    }

    /// A block, which is or contains structure `number`.
    ///
    /// # Errors
    /// It lies outside the file system; the device's.
    pub fn block(&self, block: BlockNr, structure: Structure, number: u64) -> Result<Vec<u8>> {
        if !self.geo.contains(block) {
            let detail = format!("block {block} is outside the file system");
            return Err(Damaged::corrupt(structure, number, detail).into());
        }
        bytes(self.device, block.0 << self.geo.block_bits, self.geo.block_size as usize)
    }

    /// The copies of a group's descriptor, the primary first.
    fn descs(self, group: GroupNr) -> impl Iterator<Item = Result<Vec<u8>>> + use<'a> {
        let geo = self.geo;
        let backups: Vec<GroupNr> = geo.backup_groups().take(BACKUPS_MAX).collect();
        let offset = geo.group_desc_block(group).map_or(0, |(_, offset)| offset);
        let copies: Vec<_> = geo.desc_block_copies(group.0 / geo.descs_per_block(), &backups).collect();
        copies.into_iter().map(move |at| {
            let mut block = self.block(at, Structure::GroupDescriptor, group.0.into())?;
            block.drain(..offset.min(block.len()));
            Ok(block)
        })
    }

    /// The descriptor of a group, with possible places of its tables: the primary, or a backup. Its counts and its
    /// checksum may be out of date, because the log may have newer ones; the places never change.
    ///
    /// # Errors
    /// The fault of the primary, if no backup has possible places.
    pub fn desc(&self, group: GroupNr) -> Result<GroupDesc> {
        let mut copies = self.descs(group).map(|bytes| Ok(GroupDesc::parse(&bytes?, group, self.geo)?));
        let none = || Damaged::corrupt(Structure::GroupDescriptor, group.0, "there is none").into();
        let primary: Result<GroupDesc> = copies.next().unwrap_or_else(|| Err(none()));
        let fits = |desc: &GroupDesc| desc.check_locations(group, self.geo).is_ok();
        match primary {
            Ok(desc) if fits(&desc) => Ok(desc),
            primary => copies.flatten().find(fits).map_or(primary, Ok),
        }
    }

    /// An intact backup of a group's descriptor.
    pub fn backup_of(&self, group: GroupNr) -> Option<GroupDesc> {
        self.descs(group).skip(1).flatten().find_map(|bytes| GroupDesc::decode(&bytes, group, self.geo).ok())
    }

    /// The block that contains an inode, and the inode's offset in it.
    ///
    /// # Errors
    /// There is no such inode, or its table's place is unknown.
    pub fn inode_place(&self, ino: InodeNr) -> Result<(BlockNr, usize)> {
        let place = self.geo.inode_location(ino)?;
        let table = self.desc(place.group)?.inode_table;
        let block = BlockNr(table.0.saturating_add(u64::from(place.table_block)));
        if !self.geo.contains(block) {
            let detail = format!("block {block} is outside the file system");
            return Err(Damaged::corrupt(Structure::Inode, ino.0, detail).into());
        }
        Ok((block, place.offset))
    }

    /// An inode.
    ///
    /// # Errors
    /// Its place is unknown; its damage; the device's.
    pub fn inode(&self, ino: InodeNr) -> Result<InodeDesc> {
        let (block, offset) = self.inode_place(ino)?;
        let bytes = self.block(block, Structure::Inode, ino.0.into())?;
        Ok(InodeDesc::decode(bytes.get(offset..).unwrap_or(&[]), ino, self.geo)?)
    }

    /// Walks the map of an inode that has one. `seed`: of the checksums of its nodes, to check them. `each` gets every
    /// step, or the error of a node that is left out, and ends the walk with `false`.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn walk<E>(
        &self,
        inode: &InodeDesc,
        seed: Option<u32>,
        each: &mut StepVisitor<'_, E>,
    ) -> std::result::Result<(), E> {
        let geo = self.geo;
        let valid = move |block, len| geo.contains_range(block, u64::from(len));
        let context = NodeContext { seed, is_dir: inode.is_dir(), cluster_bits: geo.cluster_bits, valid };
        let form = if inode.has_extents() { Form::Extents } else { Form::Indirect };
        let mut steps = Vec::new();
        map::root(form, &inode.i_block, geo.block_size, &context, &mut |found| steps.push(found));
        Walk { reader: *self, context, nodes: geo.blocks_count, each }.follow(BlockNr(0), steps).map(drop)
    }
}

/// Gets the steps of a walk.
type StepVisitor<'a, E> = dyn FnMut(Result<Step>) -> std::result::Result<bool, E> + 'a;

/// A walk over a map.
struct Walk<'a, 'e, 'f, F, E> {
    reader: Reader<'a>,
    context: NodeContext<F>,
    /// The nodes that may still be read.
    nodes: u64,
    each: &'e mut StepVisitor<'f, E>,
}

impl<F: Fn(BlockNr, u32) -> bool, E> Walk<'_, '_, '_, F, E> {
    /// Follows the entries of a node. False: the walk has ended.
    fn follow(&mut self, node: BlockNr, steps: Vec<StepItem>) -> std::result::Result<bool, E> {
        for step in steps {
            let goes_on = match step {
                StepItem::Damage(damage) => (self.each)(Ok(Step::Damage(node, damage)))?,
                StepItem::Run(run) => (self.each)(Ok(Step::Run(run)))?,
                StepItem::Child(child) => (self.each)(Ok(Step::Node(child)))? && self.descend(&child)?,
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn descend(&mut self, child: &Child) -> std::result::Result<bool, E> {
        let structure = if child.form == Form::Extents { Structure::ExtentNode } else { Structure::IndirectBlock };
        let Some(left) = self.nodes.checked_sub(1) else {
            let detail = "the map has more nodes than there are blocks";
            (self.each)(Err(Damaged::corrupt(structure, child.block.0, detail).into()))?;
            return Ok(false);
        };
        self.nodes = left;
        let bytes = match self.reader.block(child.block, structure, child.block.0) {
            Ok(bytes) => bytes,
            Err(e) => return (self.each)(Err(e)),
        };
        let mut steps = Vec::new();
        map::node(child, &bytes, &self.context, &mut |found| steps.push(found));
        self.follow(child.block, steps)
    }
}
