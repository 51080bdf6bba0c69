//! Repairs the checksums of the structures that a mutation changed.
//!
//! # Locking
//! None.

use extant_ondisk::csum::{ChecksumSeed, crc32c};
use extant_ondisk::superblock::{RawSuperBlock, SUPERBLOCK_SIZE};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, dirent, extent, group_desc, inode, orphan, xattr};
use zerocopy::FromBytes;

use super::edit::{Edit, TouchedStructure, set_word};

/// The bytes of the block of multi-mount protection before its checksum.
const MMP_CHECKED: usize = 1020;

/// Computes an index block's checksum from its own fields, even if they are wrong: the block need not decode.
fn seal_index(b: &mut [u8], seed: ChecksumSeed) {
    let first = usize::from(u16::from_le_bytes([b[4], b[5]]));
    let base = if first == 12 { 32 } else { 8 };
    let half = |at: usize| usize::from(u16::from_le_bytes([b[at], b[at + 1]]));
    let (covered, tail) = (base + half(base + 2) * 8, base + half(base) * 8);
    if covered <= tail && tail + 8 <= b.len() {
        let sum = crc32c(crc32c(seed.checksum(&b[..covered]), &b[tail..tail + 4]), &[0; 4]);
        set_word(b, tail + 4, sum);
    }
}

impl Edit {
    /// Repairs all checksums where possible. A block that has lost its structure keeps its old checksum.
    pub(super) fn mend_checksums(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        for what in touched {
            match what {
                TouchedStructure::DirBlock { ino, block } => self.mend_dir_block(ino, block),
                TouchedStructure::Node { ino, block } => self.mend_node(ino, block),
                TouchedStructure::Attributes { block } => self.mend_attributes(block),
                TouchedStructure::Orphans { ino, block } => self.mend_orphans(ino, block),
                TouchedStructure::Inode(ino) => self.mend_inode(ino),
                TouchedStructure::BlockBitmap(group) => self.mend_bitmap(group, true),
                TouchedStructure::InodeBitmap(group) => self.mend_bitmap(group, false),
                TouchedStructure::Group { group, at } => self.mend_group(group, at),
                TouchedStructure::Superblock { at } => self.mend_superblock(at),
                TouchedStructure::Mmp { block } => self.mend_mmp(block),
            }
        }
    }

    fn has_checksums(&self) -> bool {
        self.geometry().metadata_csum
    }

    fn inode_seed(&self, ino: u32) -> ChecksumSeed {
        self.geometry().seed.for_inode(InodeNr(ino), self.raw_inode(ino).i_generation.get())
    }

    fn mend_dir_block(&mut self, ino: u32, block: u64) {
        if !self.has_checksums() {
            return;
        }
        let seed = self.inode_seed(ino);
        let indexed = self.raw_inode(ino).i_flags.get() & inode::InodeFlags::INDEX.bits() != 0;
        self.block(block, |b| {
            let tail = b.len() - dirent::TAIL_LEN;
            let has_tail = b[tail..tail + 8] == [0, 0, 0, 0, 12, 0, 0, 0xDE];
            if has_tail {
                dirent::seal_leaf(b, seed);
            } else if indexed {
                seal_index(b, seed);
            }
        });
    }

    fn mend_node(&mut self, ino: u32, block: u64) {
        if !self.has_checksums() {
            return;
        }
        let seed = self.inode_seed(ino).raw();
        self.block(block, |b| {
            // The position of the tail follows from the block size, so a block that is no longer a valid node also gets
            // a checksum.
            let at = extent::HEADER_BYTES + extent::capacity(b.len()) * extent::ENTRY_BYTES;
            let sum = crc32c(seed, &b[..at]);
            set_word(b, at, sum);
        });
    }

    fn mend_attributes(&mut self, block: u64) {
        if self.has_checksums() {
            let seed = self.geometry().seed.raw();
            self.block(block, |b| {
                let sum = xattr::block_checksum(seed, BlockNr(block), b);
                set_word(b, 16, sum);
            });
        }
    }

    fn mend_orphans(&mut self, ino: u32, block: u64) {
        let seed = self.has_checksums().then(|| self.inode_seed(ino));
        self.block(block, |b| orphan::update_checksum(b, BlockNr(block), seed));
    }

    fn mend_inode(&mut self, ino: u32) {
        let (at, geometry) = (self.inode_at(ino), self.geometry().clone());
        let mut bytes = self.read(at, geometry.inode_size);
        inode::update_checksum(&mut bytes, InodeNr(ino), &geometry);
        self.write(at, &bytes);
    }

    fn mend_bitmap(&mut self, group: u32, blocks: bool) {
        if !self.has_checksums() {
            return;
        }
        let desc = self.group_desc(group);
        let (block, bits) = match blocks {
            true => (desc.bg_block_bitmap_lo.get(), self.geometry().clusters_per_group),
            false => (desc.bg_inode_bitmap_lo.get(), self.geometry().inodes_per_group),
        };
        let bytes = self.read(u64::from(block) * self.block_size() as u64, bits as usize / 8);
        let sum = self.geometry().seed.checksum(&bytes);
        self.group(group, |g| {
            let (low, high) = match blocks {
                true => (&mut g.bg_block_bitmap_csum_lo, &mut g.bg_block_bitmap_csum_hi),
                false => (&mut g.bg_inode_bitmap_csum_lo, &mut g.bg_inode_bitmap_csum_hi),
            };
            low.set(sum as u16);
            high.set((sum >> 16) as u16);
        });
    }

    fn mend_group(&mut self, group: u32, at: u64) {
        let geometry = self.geometry().clone();
        let mut bytes = self.read(at, geometry.desc_size);
        if let Ok(desc) = group_desc::GroupDesc::parse(&bytes, GroupNr(group), &geometry) {
            desc.encode_into(&mut bytes, GroupNr(group), &geometry);
        }
        self.write(at, &bytes);
    }

    fn mend_mmp(&mut self, block: u64) {
        if self.has_checksums() {
            let seed = self.geometry().seed;
            self.block(block, |b| {
                let sum = seed.checksum(&b[..MMP_CHECKED]);
                set_word(b, MMP_CHECKED, sum);
            });
        }
    }

    fn mend_superblock(&mut self, at: u64) {
        let mut bytes = self.read(at, SUPERBLOCK_SIZE);
        let raw = RawSuperBlock::mut_from_bytes(&mut bytes).expect("its size");
        if self.has_checksums() {
            let sum = raw.compute_checksum();
            raw.s_checksum.set(sum);
        }
        self.write(at, &bytes);
    }
}
