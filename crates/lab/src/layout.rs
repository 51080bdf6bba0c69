//! The places of an image's map blocks: the figures by which layouts are compared.
//!
//! Main type: [`Layout`], made by [`Layout::of`] from an image that is not mounted for writing. It reads the inodes
//! that the bitmaps show as used, and their maps. It judges nothing, and an unreadable map is an error.
//!
//! A *map block* is an indirect block or an extent node. A *run* is a maximal set of physically adjacent blocks.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::bitmap;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::map::{Form, Run};
use extant_ondisk::superblock::{DescChecksum, Geometry};
use extant_ondisk::{BlockNr, Damage, GroupNr, InodeNr};
use extant_recovery::read::{Reader, Step, find_super};
use serde::Serialize;

use crate::error::{Error, Result};

/// The inodes of the bad blocks and of the blocks reserved for growth: their maps are unrelated to files.
const BAD_BLOCKS: u32 = 1;
const RESIZE: u32 = 7;
/// The first inode of user files.
const FIRST: u32 = 11;

/// Figures of one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layout {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Block groups.
    pub groups: u32,
    /// Single indirect blocks.
    pub single_indirect: u64,
    /// Double indirect blocks.
    pub double_indirect: u64,
    /// Triple indirect blocks.
    pub triple_indirect: u64,
    /// Nodes of extent trees outside inodes.
    pub extent_nodes: u64,
    /// The sum of the four kinds above.
    pub map_blocks: u64,
    /// Runs of map blocks, across files.
    pub map_runs: u64,
    /// Runs per map block.
    pub map_runs_per_block: f64,
    /// How often a checker that reads file by file finds that the next map block does not follow the last one.
    pub map_jumps: u64,
    /// The largest number of map blocks in one group.
    pub map_blocks_per_group_max: u64,
    /// Map blocks per group, averaged over all groups.
    pub map_blocks_per_group: f64,
    /// Blocks of directories.
    pub directory_blocks: u64,
    /// Runs of directory blocks.
    pub directory_runs: u64,
    /// Regular files that have blocks.
    pub files: u64,
    /// Regular files that have more than one block.
    pub files_of_several_blocks: u64,
    /// Runs of data per file with more than one block, on average.
    pub fragments_per_file: f64,
    /// The largest number of runs of one file.
    pub fragments_per_file_max: u64,
    /// Extents per file according to their maps; for a file without extents, its number of fragments.
    pub extents_per_file: f64,
    /// The largest number of extents of one file.
    pub extents_per_file_max: u64,
    /// The distance in groups between an inode and its data, averaged over all blocks.
    pub groups_from_inode: f64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Runs of free blocks inside a group, by length: entry n counts runs of 2^n to 2^(n+1)-1 blocks.
    pub free_runs: Vec<u64>,
}

impl Layout {
    /// Reads the layout of an image.
    ///
    /// # Errors
    /// The image has no file system, cannot be read, or is damaged.
    pub fn of(device: &dyn BlockDevice) -> Result<Layout> {
        let failed = |what: String| Error::Failed(format!("{}: {what}", device.name()));
        let superblock = find_super(device, None, false).map_err(|e| failed(e.to_string()))?.sb;
        let (geo, reader) = (superblock.geometry(), Reader::new(device, &superblock));
        let mut walk = Walk { device, geo, reader, order: Vec::new(), directories: Vec::new(), sums: Sums::default() };
        let descs: Vec<GroupDesc> =
            geo.groups().map(|group| reader.desc(group).map_err(|e| walk.failed(e))).collect::<Result<_>>()?;
        let mut layout = Layout { block_bytes: geo.block_size, groups: geo.group_count, ..Layout::default() };
        for (group, desc) in geo.groups().zip(&descs) {
            walk.inodes(group, desc)?;
            walk.free(group, desc, &descs, &mut layout)?;
        }
        layout.take(walk, geo);
        Ok(layout)
    }

    fn take(&mut self, walk: Walk<'_>, geo: &Geometry) {
        let Walk { mut order, mut directories, sums, .. } = walk;
        let each = |total: u64, of: u64| if of == 0 { 0.0 } else { total as f64 / of as f64 };
        [self.single_indirect, self.double_indirect, self.triple_indirect] = sums.indirect;
        self.extent_nodes = sums.nodes;
        self.map_blocks = order.len() as u64;
        self.map_jumps = order.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
        self.map_runs = runs(&mut order);
        self.map_runs_per_block = each(self.map_runs, self.map_blocks);
        let group_of = |block: &u64| geo.group_of_block(BlockNr(*block)).map(|(group, _)| group);
        self.map_blocks_per_group_max =
            order.chunk_by(|a, b| group_of(a) == group_of(b)).map(|group| group.len() as u64).max().unwrap_or(0);
        self.map_blocks_per_group = each(self.map_blocks, u64::from(geo.group_count));
        self.directory_blocks = directories.len() as u64;
        self.directory_runs = runs(&mut directories);
        self.files = sums.files;
        self.files_of_several_blocks = sums.several;
        self.fragments_per_file = each(sums.fragments, sums.several);
        self.fragments_per_file_max = sums.fragments_max;
        self.extents_per_file = each(sums.extents, sums.files);
        self.extents_per_file_max = sums.extents_max;
        self.groups_from_inode = sums.distance / sums.blocks.max(1) as f64;
    }

    /// Indirect blocks of all depths.
    pub fn indirect_blocks(&self) -> u64 {
        self.single_indirect + self.double_indirect + self.triple_indirect
    }
}

/// Sorts the blocks and counts their runs.
fn runs(blocks: &mut [u64]) -> u64 {
    blocks.sort_unstable();
    blocks.chunk_by(|a, b| *b <= a + 1).count() as u64
}

/// Sums over files.
#[derive(Default)]
struct Sums {
    /// Single, double and triple indirect blocks.
    indirect: [u64; 3],
    nodes: u64,
    files: u64,
    several: u64,
    fragments: u64,
    fragments_max: u64,
    extents: u64,
    extents_max: u64,
    blocks: u64,
    /// The sum over all blocks, in groups.
    distance: f64,
}

/// The sums over the map of one file.
#[derive(Default)]
struct OfFile {
    blocks: u64,
    fragments: u64,
    extents: u64,
    distance: f64,
    /// One past the last data block, in the file and on the device.
    end: Option<(u64, u64)>,
}

struct Walk<'a> {
    device: &'a dyn BlockDevice,
    geo: &'a Geometry,
    reader: Reader<'a>,
    /// Map blocks in the order in which a checker reads them.
    order: Vec<u64>,
    /// Blocks of directories.
    directories: Vec<u64>,
    sums: Sums,
}

impl Walk<'_> {
    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Failed(format!("{}: {what}; run `extant fsck -n` on it", self.device.name()))
    }

    fn read(&self, block: BlockNr, out: &mut [u8]) -> Result<()> {
        let at = block.0.checked_mul(u64::from(self.geo.block_size));
        let at = at.ok_or_else(|| self.failed(format_args!("block {} lies behind any device", block.0)))?;
        self.device.read_at(at, out, BioFlags::META).map_err(|e| self.failed(format_args!("block {}: {e}", block.0)))
    }

    /// Whether the descriptor has the flag. Without checksums, its flags have no meaning.
    fn is(&self, desc: &GroupDesc, flag: GroupFlags) -> bool {
        self.geo.desc_checksum != DescChecksum::None && desc.flags.contains(flag)
    }

    /// Reads the used inodes of a group.
    fn inodes(&mut self, group: GroupNr, desc: &GroupDesc) -> Result<()> {
        if self.is(desc, GroupFlags::INODE_UNINIT) {
            return Ok(());
        }
        let size = self.geo.block_size as usize;
        let (mut used, mut table) = (vec![0; size], vec![0; size]);
        self.read(desc.inode_bitmap, &mut used)?;
        let mut held = None;
        let mut next = 0;
        while let Some(index) = bitmap::find_next_one(&used, next..self.geo.inodes_per_group) {
            next = index + 1;
            let Some(ino) = self.geo.inode_at(group, index) else { continue };
            let block = desc.inode_table.0 + u64::from(index / self.geo.inodes_per_block().max(1));
            if held != Some(block) {
                self.read(BlockNr(block), &mut table)?;
                held = Some(block);
            }
            let offset = (index % self.geo.inodes_per_block().max(1)) as usize * self.geo.inode_size;
            let bytes = table.get(offset..).unwrap_or_default();
            // Reserved inode numbers are in use even if the inode is empty.
            if bytes.get(..self.geo.inode_size).is_some_and(|bytes| bytes.iter().all(|b| *b == 0)) {
                continue;
            }
            let inode = InodeDesc::decode(bytes, ino, self.geo).map_err(|e| self.failed(e))?;
            let mapped = inode.has_map(self.geo) && !inode.flags.contains(InodeFlags::INLINE_DATA);
            if mapped && !matches!(ino.0, BAD_BLOCKS | RESIZE) {
                self.file(group, ino, &inode)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, group: GroupNr, ino: InodeNr, inode: &InodeDesc) -> Result<()> {
        let (mut of_file, reader) = (OfFile::default(), self.reader);
        reader.walk(inode, None, &mut |step| {
            match step.map_err(|e| self.failed(format_args!("inode {}: {e}", ino.0)))? {
                Step::Damage(_, damage) if damage.is_fatal() => {
                    return Err(self.failed(format_args!("inode {}: {damage}", ino.0)));
                }
                Step::Damage(..) => {}
                Step::Run(run) => self.run(group, ino, inode.is_dir(), run, &mut of_file)?,
                Step::Node(child) => {
                    match child.form {
                        Form::Extents => self.sums.nodes += 1,
                        // A child of depth 0 maps data.
                        Form::Indirect => {
                            let depth = usize::from(child.depth).min(self.sums.indirect.len() - 1);
                            self.sums.indirect[depth] += 1;
                        }
                    }
                    self.order.push(child.block.0);
                }
            }
            Ok(true)
        })?;
        if !inode.is_regular() || ino.0 < FIRST || of_file.blocks == 0 {
            return Ok(());
        }
        if !inode.has_extents() {
            of_file.extents = of_file.fragments;
        }
        let sums = &mut self.sums;
        sums.files += 1;
        sums.extents += of_file.extents;
        sums.extents_max = sums.extents_max.max(of_file.extents);
        sums.blocks += of_file.blocks;
        sums.distance += of_file.distance;
        if of_file.blocks > 1 {
            sums.several += 1;
            sums.fragments += of_file.fragments;
            sums.fragments_max = sums.fragments_max.max(of_file.fragments);
        }
        Ok(())
    }

    fn run(&mut self, group: GroupNr, ino: InodeNr, is_dir: bool, run: Run, sum: &mut OfFile) -> Result<()> {
        let outside = || self.failed(format_args!("inode {}: block {} is in no group", ino.0, run.pblk.0));
        let (there, _) = self.geo.group_of_block(run.pblk).ok_or_else(outside)?;
        let len = u64::from(run.len);
        if is_dir {
            self.directories.extend(run.pblk.0..run.pblk.0 + len);
        }
        let begin = (u64::from(run.lblk.0), run.pblk.0);
        sum.extents += 1;
        sum.fragments += u64::from(sum.end != Some(begin));
        sum.blocks += len;
        sum.distance += f64::from(there.0.abs_diff(group.0)) * f64::from(run.len);
        sum.end = Some((begin.0 + len, begin.1 + len));
        Ok(())
    }

    /// Counts the runs of free blocks of a group.
    fn free(&self, group: GroupNr, desc: &GroupDesc, descs: &[GroupDesc], layout: &mut Layout) -> Result<()> {
        let geo = self.geo;
        let mut used = vec![0; geo.block_size as usize];
        match self.is(desc, GroupFlags::BLOCK_UNINIT) {
            true => bitmap::init_block_bitmap(&mut used, group, descs, geo),
            false => self.read(desc.block_bitmap, &mut used)?,
        }
        let end = geo.clusters_in_group(group);
        let mut at = 0;
        while let Some(from) = bitmap::find_next_zero(&used, at..end) {
            at = bitmap::find_next_one(&used, from..end).unwrap_or(end);
            let blocks = u64::from(at - from) << geo.cluster_bits;
            let order = blocks.ilog2() as usize;
            if layout.free_runs.len() <= order {
                layout.free_runs.resize(order + 1, 0);
            }
            layout.free_runs[order] += 1;
            layout.free_blocks += blocks;
        }
        Ok(())
    }
}
