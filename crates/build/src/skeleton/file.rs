//! The file system's own files.
//!
//! Main type: [`SystemFile`].
//!
//! # Locking
//! None.

use extant_ondisk::growth::ReservedBlocks;
use extant_ondisk::indirect::{DIRECT, set_pointer};
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum};
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr, mmp, orphan};

use super::map::Mapped;
use super::quota::{self, OwnerUsage};
use super::space::{Space, no_space};
use crate::Result;

/// A regular file that only root may read.
const MODE: u16 = 0o100_600;

/// The purpose of a file.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// The inode of bad blocks, which has no blocks.
    BadBlocks,
    /// The double indirect block and, behind the descriptors, the reserved ones.
    Resize {
        block: u64,
    },
    Journal {
        blocks: u32,
        fast_commit: u32,
    },
    Orphans,
    Quota {
        kind: QuotaKind,
        bytes: Vec<u8>,
    },
    /// The block of multi-mount protection, which has no inode.
    Mmp {
        block: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct SystemFile {
    /// The number of its inode; 0 if it has none.
    pub ino: InodeNr,
    pub kind: Kind,
    pub mapped: Mapped,
    size: u64,
    /// The size in sectors of 512 bytes.
    sectors: u64,
    time: Timestamp,
}

impl SystemFile {
    pub fn new(ino: InodeNr, kind: Kind, mapped: Mapped, blocks: u64, time: Timestamp, geo: &Geometry) -> SystemFile {
        let sectors = sectors(&mapped, geo);
        SystemFile { ino, kind, mapped, size: blocks * u64::from(geo.block_size), sectors, time }
    }

    pub fn quota(ino: InodeNr, kind: Kind, mapped: Mapped, time: Timestamp, geo: &Geometry) -> SystemFile {
        let size = if let Kind::Quota { bytes, .. } = &kind { bytes.len() as u64 } else { 0 };
        SystemFile { size, ..SystemFile::new(ino, kind, mapped, 0, time, geo) }
    }

    /// Fills the quota file with the usage of each owner.
    pub fn set_usage(&mut self, owned: &OwnerUsage) {
        if let Kind::Quota { kind, bytes } = &mut self.kind {
            let now = quota::file(*kind, owned.of(*kind));
            debug_assert_eq!(now.len(), bytes.len(), "owners that the file was not planned for");
            *bytes = now;
        }
    }

    pub fn bad_blocks(ino: InodeNr, time: Timestamp) -> SystemFile {
        SystemFile { ino, kind: Kind::BadBlocks, mapped: Mapped::empty(InodeFlags::empty()), size: 0, sectors: 0, time }
    }

    pub fn mmp(block: u64) -> SystemFile {
        SystemFile {
            ino: InodeNr(0),
            kind: Kind::Mmp { block },
            mapped: Mapped::empty(InodeFlags::empty()),
            size: 0,
            sectors: 0,
            time: Timestamp::default(),
        }
    }

    pub fn resize(space: &mut Space, geo: &Geometry, time: Timestamp) -> Result<SystemFile> {
        let super_block = geo.super_location(extant_ondisk::GroupNr(0)).0.0;
        let reserved = geo.reserved_gdt_blocks;
        let goal =
            super_block + u64::from(geo.desc_blocks) + u64::from(reserved) + 2 + u64::from(geo.inode_table_blocks);
        let block = space.take_new_block(goal)?;
        let backups = geo.backup_groups().count() as u64;
        let clusters = 1 + u64::from(reserved) * (1 + backups);
        let pointers = u64::from(geo.block_size / 4);
        let mut mapped = Mapped { clusters, ..Mapped::empty(InodeFlags::empty()) };
        let number = u32::try_from(block).map_err(|_| no_space())?;
        if !set_pointer(&mut mapped.i_block, ReservedBlocks::DOUBLE, number) {
            return Err(no_space());
        }
        let blocks = pointers * pointers + pointers + u64::from(DIRECT);
        Ok(SystemFile::new(InodeNr::RESIZE, Kind::Resize { block }, mapped, blocks, time, geo))
    }

    pub fn inode(&self, geo: &Geometry) -> InodeDesc {
        let mut inode = InodeDesc::new(MODE, geo);
        inode.size = self.size;
        inode.blocks = self.sectors;
        inode.links = 1;
        inode.flags = self.mapped.flags;
        inode.i_block = self.mapped.i_block;
        (inode.atime, inode.ctime, inode.mtime) = (self.time, self.time, self.time);
        inode.crtime = inode.crtime.map(|_| self.time);
        if matches!(self.kind, Kind::BadBlocks) {
            // The inode of bad blocks stays zeroed.
            inode = InodeDesc { mode: 0, links: 0, flags: InodeFlags::empty(), extra_isize: 0, crtime: None, ..inode };
        }
        inode
    }

    /// The parts that are written: first block, number of blocks, and the kind of part.
    pub fn parts(&self, geo: &Geometry) -> Vec<(u64, u32, Part)> {
        let mut parts = Vec::new();
        match &self.kind {
            Kind::BadBlocks => {}
            Kind::Mmp { block } => parts.push((*block, 1, Part::Whole)),
            Kind::Resize { block } => {
                parts.push((*block, 1, Part::Whole));
                let first = ReservedBlocks::new(geo).blocks().next();
                parts.extend(first.map(|first| (first.0, geo.reserved_gdt_blocks, Part::Run(0))));
            }
            Kind::Journal { .. } => {
                // The rest is zeros.
                parts.extend(self.mapped.runs.first().map(|(start, _)| (*start, 1, Part::Run(0))));
            }
            Kind::Orphans | Kind::Quota { .. } => {
                let runs = self.mapped.runs.iter().enumerate();
                parts.extend(runs.map(|(i, (start, len))| (*start, *len as u32, Part::Run(i as u32))));
            }
        }
        let nodes = self.mapped.nodes.iter().enumerate();
        parts.extend(nodes.map(|(i, (block, _))| (block.0, 1, Part::Node(i as u32))));
        parts
    }

    /// The bytes of some blocks of a part, from its block `first` on.
    pub fn fill(&self, part: Part, first: u32, sb: &SuperBlock, out: &mut [u8]) {
        let geo = sb.geometry();
        let block_size = geo.block_size as usize;
        if let Part::Node(i) = part {
            if let Some((_, bytes)) = self.mapped.nodes.get(i as usize) {
                out[..bytes.len()].copy_from_slice(bytes);
            }
            return;
        }
        match &self.kind {
            Kind::BadBlocks => {}
            Kind::Mmp { .. } => mmp::fill_clean(sb, out),
            Kind::Quota { bytes, .. } => {
                let Part::Run(run) = part else { return };
                let before: u64 = self.mapped.runs.iter().take(run as usize).map(|(_, len)| len).sum();
                let from = ((before + u64::from(first)) as usize * block_size).min(bytes.len());
                let n = out.len().min(bytes.len() - from);
                out[..n].copy_from_slice(&bytes[from..from + n]);
            }
            Kind::Journal { blocks, fast_commit } => {
                let (blocks, fast_commit) = (*blocks, *fast_commit);
                let mut journal = JournalSuperBlock::create(geo.block_size, blocks, geo.uuid, LogCsum::None, false);
                journal.num_fc_blocks = fast_commit;
                let bytes = journal.encode();
                out[..bytes.len()].copy_from_slice(&bytes);
            }
            Kind::Orphans => {
                let Part::Run(run) = part else { return };
                let Some((start, _)) = self.mapped.runs.get(run as usize) else { return };
                let seed = geo.metadata_csum.then(|| geo.seed.for_inode(self.ino, 0));
                for (i, block) in out.chunks_exact_mut(block_size).enumerate() {
                    orphan::init(block, BlockNr(start + u64::from(first) + i as u64), seed);
                }
            }
            // Such a file system has no block whose number does not fit a pointer.
            Kind::Resize { .. } => {
                let reserved = ReservedBlocks::new(geo);
                if part == Part::Whole {
                    reserved.double().into_iter().for_each(|bytes| out.copy_from_slice(&bytes));
                    return;
                }
                for (block, out) in reserved.blocks().skip(first as usize).zip(out.chunks_exact_mut(block_size)) {
                    reserved.copies(block).into_iter().for_each(|bytes| out.copy_from_slice(&bytes));
                }
            }
        }
    }
}

/// The value of `i_blocks` for a file's clusters.
pub(super) fn sectors(mapped: &Mapped, geo: &Geometry) -> u64 {
    (mapped.clusters << geo.cluster_bits) * u64::from(geo.block_size / 512)
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Run(u32),
    Node(u32),
}
