//! How fragmented the files of an image are: its inode tables, read without mounting it.
//!
//! # Locking
//! None.

use std::path::Path;

use extant_block::device::{Engine, FileDevice, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::extent::NodeContext;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::map::{self, Child, Form, Found};
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{Damage, GroupNr};

use super::Figures;
use super::transactions::Layout;
use crate::error::{Error, Result};

/// One reader, one request after the other: no rings.
fn open(image: &Path) -> Option<FileDevice> {
    FileDevice::open(image, OpenOptions { engine: Engine::Psync, ..OpenOptions::read_only() }).ok()
}

/// Geometry of an image.
pub fn geometry(image: &Path) -> Option<Geometry> {
    let device = open(image)?;
    Some(extant_fs::probe_superblock(&device).ok()?.0.geometry().clone())
}

/// Bytes that are free in an image, as its superblock says.
///
/// # Errors
/// What is wrong with the file, or with the superblock in it.
pub fn free_bytes(image: &Path) -> Result<u64> {
    let failed = |why: String| Error::Usage(format!("{}: {why}", image.display()));
    let options = OpenOptions { engine: Engine::Psync, ..OpenOptions::read_only() };
    let device = FileDevice::open(image, options).map_err(|e| failed(e.to_string()))?;
    let (superblock, _) = extant_fs::probe_superblock(&device).map_err(|e| failed(e.to_string()))?;
    Ok(superblock.free_blocks().saturating_mul(u64::from(superblock.geometry().block_size)))
}

/// Where an image's groups are.
pub fn layout(image: &Path) -> Option<Layout> {
    let g = geometry(image)?;
    Some(Layout { first_block: g.first_data_block, blocks_per_group: g.blocks_per_group })
}

/// Adds the figures of an unmounted image with extents. What cannot be read leaves them out: e2fsck will say why.
pub fn figures(image: &Path, figures: &mut Figures) {
    let Some(count) = count(image) else { return };
    figures.insert("files_left".into(), count.files as f64);
    if count.files > 0 {
        figures.insert("extents_per_file".into(), count.extents as f64 / count.files as f64);
        figures.insert("extents_per_file_max".into(), count.most as f64);
        figures.insert("groups_from_inode".into(), count.all.distance / count.all.blocks.max(1) as f64);
    }
}

#[derive(Default)]
struct Count {
    files: u64,
    extents: u64,
    most: u64,
    all: Leaves,
}

/// What lies below a node.
#[derive(Default)]
struct Leaves {
    extents: u64,
    blocks: u64,
    /// Of all blocks together, from the block group of the inode, in groups.
    distance: f64,
}

impl Leaves {
    fn add(&mut self, more: &Leaves) {
        self.extents += more.extents;
        self.blocks += more.blocks;
        self.distance += more.distance;
    }
}

fn count(image: &Path) -> Option<Count> {
    let device = open(image)?;
    let geo = extant_fs::probe_superblock(&device).ok()?.0.geometry().clone();
    let mut count = Count::default();
    let block_size = u64::from(geo.block_size);
    let mut block = vec![0; geo.block_size as usize];
    for group in (0..geo.group_count).map(GroupNr) {
        let (at, offset) = geo.group_desc_block(group)?;
        device.read_at(at.0.checked_mul(block_size)?, &mut block, BioFlags::META).ok()?;
        let desc = GroupDesc::decode(block.get(offset..)?, group, &geo).ok()?;
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let used = geo.inodes_per_group.saturating_sub(desc.itable_unused);
        let per_block = geo.inodes_per_block().max(1);
        for index in 0..used {
            let offset = (index % per_block) as usize * geo.inode_size;
            if offset == 0 {
                let table = desc.inode_table.0.checked_add(u64::from(index / per_block))?;
                device.read_at(table.checked_mul(block_size)?, &mut block, BioFlags::META).ok()?;
            }
            let ino = geo.inode_at(group, index)?;
            let inode = InodeDesc::decode(block.get(offset..)?, ino, &geo).ok()?;
            if inode.links == 0 || !inode.is_regular() || inode.blocks == 0 || ino.0 < 11 {
                continue;
            }
            if !inode.has_extents() {
                // Blocks mapped one by one: nothing to count.
                return None;
            }
            let of_file = leaves(&device, &geo, group, None, &inode.i_block)?;
            count.files += 1;
            count.extents += of_file.extents;
            count.most = count.most.max(of_file.extents);
            count.all.add(&of_file);
        }
    }
    Some(count)
}

/// The extents below a node of an inode of `group`: the root, or the block of `child`. `None` for a damaged map.
fn leaves(device: &FileDevice, geo: &Geometry, group: GroupNr, child: Option<&Child>, bytes: &[u8]) -> Option<Leaves> {
    let valid = |block, len| geo.contains_range(block, u64::from(len));
    let context = NodeContext { seed: None, is_dir: false, cluster_bits: geo.cluster_bits, valid };
    let mut steps = Vec::new();
    match child {
        Some(child) => map::node(child, bytes, &context, &mut |found| steps.push(found)),
        None => map::root(Form::Extents, bytes.try_into().ok()?, geo.block_size, &context, &mut |found| {
            steps.push(found);
        }),
    }
    let mut sum = Leaves::default();
    for step in steps {
        match step {
            Found::Damage(damage) if damage.is_fatal() => return None,
            Found::Damage(_) => {}
            Found::Run(run) => {
                let (there, _) = geo.group_of_block(run.pblk)?;
                let distance = f64::from(there.0.abs_diff(group.0)) * f64::from(run.len);
                sum.add(&Leaves { extents: 1, blocks: u64::from(run.len), distance });
            }
            Found::Child(child) => {
                let mut below = vec![0; geo.block_size as usize];
                let at = child.block.0.checked_mul(u64::from(geo.block_size))?;
                device.read_at(at, &mut below, BioFlags::META).ok()?;
                sum.add(&leaves(device, geo, group, Some(&child), &below)?);
            }
        }
    }
    Some(sum)
}
