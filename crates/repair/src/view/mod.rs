//! A damaged file system, which is read without being trusted, and changed in an overlay.
//!
//! Main type: [`Image`]. [`inode`] reads and changes inodes, [`map`] their maps, [`dir`] directories; [`space`]
//! allocates free blocks and inodes.
//!
//! No field is trusted here: a read returns the usable part of a structure. Blocks that the device cannot read are
//! known, and are never written.
//!
//! # Locking
//! None of its own.

pub mod dir;
pub mod inode;
pub mod map;
pub mod space;

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Checked, Facts, Place, Problem, Report};
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{Geometry, RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use zerocopy::FromBytes;

use crate::error::{Refusal, StepResult};

/// A file system and its changes.
pub struct Image {
    /// The device, with the changes in an overlay.
    pub device: Arc<CowDevice>,
    /// The superblock that the check used.
    pub sb: SuperBlock,
    pub geo: Geometry,
    /// The known descriptors.
    pub descs: Vec<GroupDesc>,
    /// The facts of the check before the changes.
    pub facts: Arc<Facts>,
    /// Seconds since 1970.
    pub now: i64,
    unreadable: BTreeSet<u64>,
    space: space::Space,
    /// Inodes whose blocks or entries have changed, and the changed blocks that belonged to them.
    pub touched: BTreeSet<u32>,
}

impl Image {
    /// The file system that a check of `device` has examined; `None` if the check found none.
    pub fn new(device: Arc<CowDevice>, checked: Checked, now: i64) -> Option<(Image, Report)> {
        let Checked { report, facts } = checked;
        let facts = facts?;
        let unreadable = report.findings.iter().filter(|finding| finding.problem == Problem::Unreadable);
        let unreadable = unreadable.filter_map(|finding| match finding.place {
            Place::Blocks(block) => Some(block.0),
            _ => None,
        });
        let image = Image {
            device,
            sb: facts.super_block().clone(),
            geo: facts.geometry().clone(),
            descs: facts.descs().to_vec(),
            unreadable: unreadable.collect(),
            space: space::Space::default(),
            touched: BTreeSet::new(),
            facts: Arc::new(facts),
            now,
        };
        Some((image, report))
    }

    /// The same file system, with further changes on `device`.
    pub fn with(&self, device: Arc<CowDevice>) -> Image {
        Image {
            device,
            sb: self.sb.clone(),
            geo: self.geo.clone(),
            descs: self.descs.clone(),
            facts: self.facts.clone(),
            now: self.now,
            unreadable: self.unreadable.clone(),
            space: space::Space::default(),
            touched: BTreeSet::new(),
        }
    }

    /// Reads bytes.
    pub fn bytes(&self, at: u64, len: usize) -> StepResult<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.device.read_at(at, &mut bytes, BioFlags::META)?;
        Ok(bytes)
    }

    /// Writes bytes, which need not be whole sectors.
    pub fn write(&self, at: u64, bytes: &[u8]) -> StepResult {
        let bits = self.geo.block_bits;
        let blocks = at >> bits..(at + bytes.len() as u64).div_ceil(1 << bits);
        if let Some(block) = self.unreadable.range(blocks).next() {
            return Err(Refusal::Unreadable(BlockNr(*block)));
        }
        let unit = u64::from(self.device.limits().logical_block).max(512);
        let start = at - at % unit;
        let len = (at - start + bytes.len() as u64).next_multiple_of(unit) as usize;
        let mut sectors = vec![0; len];
        if len != bytes.len() {
            self.device.read_at(start, &mut sectors, BioFlags::META)?;
        }
        sectors[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(self.device.write_at(start, &[&sectors], BioFlags::META)?)
    }

    /// Reads a block of the file system.
    pub fn block(&self, block: BlockNr) -> StepResult<Vec<u8>> {
        self.bytes(block.0 << self.geo.block_bits, self.geo.block_size as usize)
    }

    /// Writes a block of the file system.
    pub fn put_block(&self, block: BlockNr, bytes: &[u8]) -> StepResult {
        self.write(block.0 << self.geo.block_bits, bytes)
    }

    /// Whether a file may have these blocks.
    pub fn can_have(&self, block: BlockNr, blocks: u64) -> bool {
        block.0 != 0 && self.geo.contains_range(block, blocks)
    }

    /// Whether the device cannot read one of these blocks.
    pub fn is_unreadable(&self, block: BlockNr, blocks: u64) -> bool {
        self.unreadable.range(block.0..block.0 + blocks).next().is_some()
    }

    /// Records that blocks or entries of an inode change.
    pub fn touch(&mut self, ino: InodeNr) {
        self.touched.insert(ino.0);
    }

    /// Changes the primary superblock.
    pub fn change_super(&mut self, change: impl FnOnce(&mut RawSuperBlock)) -> StepResult {
        let mut bytes = self.bytes(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
        if let Ok(raw) = RawSuperBlock::mut_from_bytes(&mut bytes) {
            change(raw);
            seal_super(raw);
        }
        self.write(SUPERBLOCK_OFFSET, &bytes)
    }

    /// Writes a group's descriptor.
    pub fn put_desc(&self, group: GroupNr) -> StepResult {
        let lost = Refusal::Lost("the group has no descriptor");
        let (block, at) = self.geo.group_desc_block(group).ok_or(lost.clone())?;
        let desc = self.descs.get(group.0 as usize).ok_or(lost)?;
        let at = (block.0 << self.geo.block_bits) + at as u64;
        let mut bytes = self.bytes(at, self.geo.desc_size)?;
        desc.encode_into(&mut bytes, group, &self.geo);
        self.write(at, &bytes)
    }

    /// The seed of an inode's checksums; `None` if they have none.
    pub fn seed(&self, ino: InodeNr, generation: u32) -> Option<ChecksumSeed> {
        self.geo.metadata_csum.then(|| self.geo.seed.for_inode(ino, generation))
    }
}

/// Updates the checksum of a superblock that has one.
pub fn seal_super(raw: &mut RawSuperBlock) {
    const METADATA_CSUM: u32 = 0x400;
    if raw.s_feature_ro_compat.get() & METADATA_CSUM != 0 {
        let checksum = raw.compute_checksum();
        raw.s_checksum.set(checksum);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use extant_block::device::MemDevice;
    use extant_testkit::damage;

    /// A small sound file system, and the report on it.
    pub fn small() -> (Image, Report) {
        let device: &MemDevice = damage::Image::Ext4.made();
        let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
        let options = extant_check::Options { threads: 1, now: 2_000_000_000, ..extant_check::Options::default() };
        let checked = extant_check::examine(&shared, &options).expect("checked");
        Image::new(Arc::new(CowDevice::new(shared)), checked, options.now).expect("a file system")
    }
}
