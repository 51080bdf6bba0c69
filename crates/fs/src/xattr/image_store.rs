//! One inode of an image file, read and written byte by byte, for tests: no journal, no cache, group 0 only.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_ondisk::xattr::{ExternalValue, Name};
use extant_ondisk::{BlockNr, InodeNr};

use super::{Joinable, Reference, SharedBlocks, XattrSource, XattrStore};

/// The fields of the superblock that the tests need.
pub(super) struct Geometry {
    file: File,
    pub block_size: usize,
    inode_size: usize,
    inodes_per_group: u32,
    desc_size: u64,
    first_data_block: u64,
    pub seed: Option<u32>,
    shared: Arc<SharedBlocks>,
}

fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn le16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}

/// CRC32C, bit by bit, as in the format: with a start value, without final inversion.
fn crc(mut c: u32, bytes: &[u8]) -> u32 {
    for &b in bytes {
        c ^= u32::from(b);
        for _ in 0..8 {
            c = if c & 1 != 0 { c >> 1 ^ 0x82F6_3B78 } else { c >> 1 };
        }
    }
    c
}

impl Geometry {
    pub fn open(image: &Path) -> Geometry {
        let file = File::options().read(true).write(true).open(image).unwrap();
        let mut sb = [0; 1024];
        file.read_exact_at(&mut sb, 1024).unwrap();
        let block_size = 1024usize << le32(&sb, 0x18);
        let (incompat, ro_compat) = (le32(&sb, 0x60), le32(&sb, 0x64));
        let seed = if incompat & 0x2000 != 0 { le32(&sb, 0x270) } else { crc(!0, &sb[0x68..0x78]) };
        Geometry {
            file,
            block_size,
            inode_size: if le32(&sb, 0x4C) == 0 { 128 } else { usize::from(le16(&sb, 0x58)) },
            inodes_per_group: le32(&sb, 0x28),
            desc_size: if incompat & 0x80 != 0 { u64::from(le16(&sb, 0xFE)) } else { 32 },
            first_data_block: u64::from(le32(&sb, 0x14)),
            seed: (ro_compat & 0x400 != 0).then_some(seed),
            shared: Arc::default(),
        }
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut b = vec![0; len];
        self.file.read_exact_at(&mut b, at).unwrap();
        b
    }

    fn desc_at(&self, group: u64) -> u64 {
        (self.first_data_block + 1) * self.block_size as u64 + group * self.desc_size
    }

    fn inode_at(&self, ino: u32) -> u64 {
        let (group, slot) = ((ino - 1) / self.inodes_per_group, (ino - 1) % self.inodes_per_group);
        let table = le32(&self.read(self.desc_at(u64::from(group)), 32), 8);
        u64::from(table) * self.block_size as u64 + u64::from(slot) * self.inode_size as u64
    }

    /// Allocates or frees a block of group 0, and updates the counters. Only for images without checksums.
    fn claim(&self, nr: Option<u64>) -> u64 {
        assert_eq!(self.seed, None, "this test store does not update bitmap checksums");
        let desc_at = self.desc_at(0);
        let desc = self.read(desc_at, 32);
        let bitmap_at = u64::from(le32(&desc, 0)) * self.block_size as u64;
        let mut bitmap = self.read(bitmap_at, self.block_size);
        let bit = match nr {
            Some(nr) => (nr - self.first_data_block) as usize,
            None => (0..8192).find(|&b| bitmap[b / 8] >> (b % 8) & 1 == 0).unwrap(),
        };
        bitmap[bit / 8] ^= 1 << (bit % 8);
        self.file.write_all_at(&bitmap, bitmap_at).unwrap();
        let by = if nr.is_some() { 1 } else { u32::MAX };
        let free = le16(&desc, 12).wrapping_add(by as u16);
        self.file.write_all_at(&free.to_le_bytes(), desc_at + 12).unwrap();
        let total = le32(&self.read(1024 + 12, 4), 0).wrapping_add(by);
        self.file.write_all_at(&total.to_le_bytes(), 1024 + 12).unwrap();
        bit as u64 + self.first_data_block
    }
}

/// An inode of the image.
pub(super) struct ImageInode<'a> {
    g: &'a Geometry,
    ino: u32,
    pub allocated: Cell<u32>,
    pub freed: Cell<u32>,
}

impl<'a> ImageInode<'a> {
    pub fn new(g: &'a Geometry, ino: u32) -> ImageInode<'a> {
        ImageInode { g, ino, allocated: Cell::new(0), freed: Cell::new(0) }
    }

    fn raw(&self) -> Vec<u8> {
        self.g.read(self.g.inode_at(self.ino), self.g.inode_size)
    }

    /// Start of the attribute area.
    fn area_at(&self, raw: &[u8]) -> usize {
        let extra = if raw.len() > 128 { usize::from(le16(raw, 128)) } else { 0 };
        if extra == 0 { raw.len() } else { 128 + extra }
    }

    fn write_raw(&self, mut raw: Vec<u8>) {
        if let Some(seed) = self.g.seed {
            raw[0x7C..0x7E].fill(0);
            let high = raw.len() > 128 && le16(&raw, 128) >= 4;
            if high {
                raw[0x82..0x84].fill(0);
            }
            let c = crc(seed, &self.ino.to_le_bytes());
            let c = crc(crc(c, &raw[0x64..0x68]), &raw);
            raw[0x7C..0x7E].copy_from_slice(&(c as u16).to_le_bytes());
            if high {
                raw[0x82..0x84].copy_from_slice(&((c >> 16) as u16).to_le_bytes());
            }
        }
        self.g.file.write_all_at(&raw, self.g.inode_at(self.ino)).unwrap();
    }
}

impl XattrSource for ImageInode<'_> {
    type Error = String;
    fn ino(&self) -> InodeNr {
        InodeNr(self.ino)
    }
    fn mode(&self) -> u16 {
        le16(&self.raw(), 0)
    }
    fn inode_area(&self) -> Result<Vec<u8>, String> {
        let raw = self.raw();
        Ok(raw[self.area_at(&raw)..].to_vec())
    }
    fn block_nr(&self) -> Option<BlockNr> {
        let raw = self.raw();
        let nr = u64::from(le32(&raw, 0x68)) | u64::from(le16(&raw, 0x76)) << 32;
        (nr != 0).then_some(BlockNr(nr))
    }
    fn read_block(&self, nr: BlockNr) -> Result<Vec<u8>, String> {
        Ok(self.g.read(nr.0 * self.g.block_size as u64, self.g.block_size))
    }
    fn block_size(&self) -> usize {
        self.g.block_size
    }
    fn checksum_seed(&self) -> Option<u32> {
        self.g.seed
    }

    fn shared(&self) -> &Arc<SharedBlocks> {
        &self.g.shared
    }

    fn may_go_outside(&self) -> bool {
        false
    }

    fn value(&self, _name: Name<'_>, _there: ExternalValue) -> Result<Vec<u8>, Self::Error> {
        unreachable!("no image here has values in inodes")
    }
}

impl XattrStore for ImageInode<'_> {
    fn write_inode_area(&mut self, area: &[u8]) -> Result<(), String> {
        let mut raw = self.raw();
        let at = self.area_at(&raw);
        raw[at..].copy_from_slice(area);
        self.write_raw(raw);
        Ok(())
    }
    fn set_mode(&mut self, mode: u16) -> Result<(), String> {
        let mut raw = self.raw();
        raw[..2].copy_from_slice(&mode.to_le_bytes());
        self.write_raw(raw);
        Ok(())
    }
    fn set_block_nr(&mut self, nr: Option<BlockNr>) -> Result<(), String> {
        let mut raw = self.raw();
        let per_block = (self.g.block_size / 512) as u32;
        let change = match (self.block_nr(), nr) {
            (None, Some(_)) => per_block,
            (Some(_), None) => per_block.wrapping_neg(),
            _ => 0,
        };
        let blocks = le32(&raw, 0x1C).wrapping_add(change);
        raw[0x1C..0x20].copy_from_slice(&blocks.to_le_bytes());
        raw[0x68..0x6C].copy_from_slice(&(nr.map_or(0, |n| n.0) as u32).to_le_bytes());
        self.write_raw(raw);
        Ok(())
    }
    fn allocate_block(&mut self) -> Result<BlockNr, String> {
        self.allocated.set(self.allocated.get() + 1);
        Ok(BlockNr(self.g.claim(None)))
    }
    fn init_block(&mut self, nr: BlockNr, bytes: &[u8]) -> Result<(), String> {
        self.g.file.write_all_at(bytes, nr.0 * self.g.block_size as u64).unwrap();
        Ok(())
    }
    fn update_block(
        &mut self,
        nr: BlockNr,
        _held: &Joinable,
        change: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), String> {
        let mut bytes = self.read_block(nr)?;
        if change(&mut bytes) {
            self.init_block(nr, &bytes)?;
        }
        Ok(())
    }
    fn free_block(&mut self, nr: BlockNr) -> Result<(), String> {
        self.freed.set(self.freed.get() + 1);
        self.g.claim(Some(nr.0));
        Ok(())
    }
    fn prepared(&self, _value: &[u8]) -> Option<(InodeNr, u32)> {
        None
    }
    fn refer(&mut self, _value: InodeNr, _how: Reference) -> Result<(), String> {
        unreachable!("no image here has values in inodes")
    }
    fn charge(&mut self, _before: &[ExternalValue], _after: &[ExternalValue]) -> Result<(), String> {
        unreachable!("no image here has values in inodes")
    }
}
