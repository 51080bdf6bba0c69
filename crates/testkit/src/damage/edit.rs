//! Finds structures of an image, and changes them in place.
//!
//! Main types: [`Edit`] (an image that is being changed), [`Of`] (an inode, by path or number). Every accessor records
//! the structure that it returns; [`Edit::finish`] then repairs the checksums of all these, so that a mutation breaks
//! the intended rule and not just a checksum. [`Edit::leave_checksums`] turns that off. Paths, maps and directories are
//! those of a sound image: look up a structure before damaging the path to it.
//!
//! What it does not do: it does not keep an image consistent. Counts and bitmaps change only if a mutation changes
//! them.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::dirent::{HEADER_LEN, RawDirent, StoredEntry};
use extant_ondisk::group_desc::RawGroupDesc;
use extant_ondisk::inode::{InodeDesc, RawInode, RawInodeExtra};
use extant_ondisk::superblock::{Geometry, RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};
use extant_recovery::read::{self, Error as ReadError, Reader, Step};
use zerocopy::FromBytes;

/// `i_flags`: the inode's map is an extent tree.
pub const EXTENTS_FL: u32 = 0x8_0000;

/// The device's logical block.
const SECTOR: u64 = 512;

/// Identifies an inode.
#[derive(Clone, Copy, Debug)]
pub enum Of<'a> {
    Path(&'a str),
    Number(u32),
}

impl<'a> From<&'a str> for Of<'a> {
    fn from(path: &'a str) -> Of<'a> {
        Of::Path(path)
    }
}

impl From<u32> for Of<'_> {
    fn from(number: u32) -> Self {
        Of::Number(number)
    }
}

/// A structure that was returned to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TouchedStructure {
    DirBlock { ino: u32, block: u64 },
    Node { ino: u32, block: u64 },
    Attributes { block: u64 },
    Orphans { ino: u32, block: u64 },
    Inode(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Group { group: u32, at: u64 },
    Superblock { at: u64 },
    Mmp { block: u64 },
}

/// An image that is being changed.
pub struct Edit {
    pub(super) dev: MemDevice,
    pub(super) superblock: SuperBlock,
    pub(super) touched: BTreeSet<TouchedStructure>,
    mend: bool,
}

impl Edit {
    /// Starts changing a copy of `image`, which must be sound.
    pub fn new(image: &MemDevice) -> Edit {
        let dev = image.snapshot();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        dev.read_at(SUPERBLOCK_OFFSET, &mut bytes, BioFlags::empty()).expect("memory");
        // An image with features that Extant does not support can still be decoded.
        let (superblock, _) = SuperBlock::decode_damaged(&bytes, SUPERBLOCK_OFFSET).expect("a sound superblock");
        Edit { dev, superblock, touched: BTreeSet::new(), mend: true }
    }

    /// Ends the change: the image with checksums repaired, unless [`Edit::leave_checksums`] was called.
    pub fn finish(mut self) -> MemDevice {
        if self.mend {
            self.mend_checksums();
        }
        self.dev
    }

    /// Turns off the repair of checksums.
    pub fn leave_checksums(&mut self) {
        self.mend = false;
    }

    /// The layout before any change.
    pub fn geometry(&self) -> &Geometry {
        self.superblock.geometry()
    }

    /// Bytes per block.
    pub fn block_size(&self) -> usize {
        self.geometry().block_size as usize
    }

    /// Reads `len` bytes at byte `at`.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        read::bytes(&self.dev, at, len).expect("memory")
    }

    /// Writes `bytes` at byte `at`. The device takes whole sectors.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let skipped = (at % SECTOR) as usize;
        let mut sectors = self.read(at - at % SECTOR, (skipped + bytes.len()).next_multiple_of(SECTOR as usize));
        sectors[skipped..][..bytes.len()].copy_from_slice(bytes);
        self.dev.write_at(at - at % SECTOR, &[&sectors], BioFlags::empty()).expect("memory");
    }

    fn change<R>(&mut self, at: u64, len: usize, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = self.read(at, len);
        let result = change(&mut bytes);
        self.write(at, &bytes);
        result
    }

    /// A block's bytes, whatever its content is; no checksum in it is repaired.
    pub fn block<R>(&mut self, block: u64, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let size = self.block_size();
        self.change(block * size as u64, size, change)
    }

    /// The primary superblock.
    pub fn superblock<R>(&mut self, change: impl FnOnce(&mut RawSuperBlock) -> R) -> R {
        self.superblock_at(SUPERBLOCK_OFFSET, change)
    }

    fn superblock_at<R>(&mut self, at: u64, change: impl FnOnce(&mut RawSuperBlock) -> R) -> R {
        self.touched.insert(TouchedStructure::Superblock { at });
        self.change(at, SUPERBLOCK_SIZE, |b| change(RawSuperBlock::mut_from_bytes(b).expect("its size")))
    }

    /// The superblock and all of its backups, because e2fsck uses a backup that is better.
    pub fn superblocks(&mut self, change: impl Fn(&mut RawSuperBlock)) {
        let groups = std::iter::once(GroupNr(0)).chain(self.geometry().backup_groups().filter(|g| g.0 != 0));
        for group in groups.collect::<Vec<_>>() {
            let (block, offset) = self.geometry().super_location(group);
            self.superblock_at(block.0 * self.block_size() as u64 + offset as u64, &change);
        }
    }

    /// The byte offset of a group's descriptor.
    pub(super) fn group_at(&self, group: u32) -> u64 {
        let (block, offset) = self.geometry().group_desc_block(GroupNr(group)).expect("a group of the image");
        block.0 * self.block_size() as u64 + offset as u64
    }

    /// A group's descriptor in the primary table.
    pub fn group<R>(&mut self, group: u32, change: impl FnOnce(&mut RawGroupDesc) -> R) -> R {
        self.group_copy(group, self.group_at(group), change)
    }

    /// A group's descriptor in the table and in all of its backups.
    pub fn group_copies(&mut self, group: u32, change: impl Fn(&mut RawGroupDesc)) {
        let g = self.geometry();
        let backups: Vec<_> = g.backup_groups().collect();
        let offset = u64::from(group % g.descs_per_block()) * g.desc_size as u64;
        let copies: Vec<_> = g.desc_block_copies(group / g.descs_per_block(), &backups).collect();
        for block in copies {
            self.group_copy(group, block.0 * self.block_size() as u64 + offset, &change);
        }
    }

    fn group_copy<R>(&mut self, group: u32, at: u64, change: impl FnOnce(&mut RawGroupDesc) -> R) -> R {
        self.touched.insert(TouchedStructure::Group { group, at });
        let size = self.geometry().desc_size;
        self.change(at, size, |b| {
            // Short descriptors end before the high halves.
            let mut whole = [0; size_of::<RawGroupDesc>()];
            let len = size.min(whole.len());
            whole[..len].copy_from_slice(&b[..len]);
            let result = change(RawGroupDesc::mut_from_bytes(&mut whole).expect("its size"));
            b[..len].copy_from_slice(&whole[..len]);
            result
        })
    }

    /// Reads a group's descriptor.
    pub fn group_desc(&self, group: u32) -> RawGroupDesc {
        let bytes = self.read(self.group_at(group), self.geometry().desc_size);
        let mut whole = [0; size_of::<RawGroupDesc>()];
        let len = bytes.len().min(whole.len());
        whole[..len].copy_from_slice(&bytes[..len]);
        RawGroupDesc::read_from_bytes(&whole).expect("its size")
    }

    /// The number of groups.
    pub fn groups(&self) -> u32 {
        self.geometry().group_count
    }

    /// A group's block bitmap.
    pub fn block_bitmap<R>(&mut self, group: u32, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.touched.insert(TouchedStructure::BlockBitmap(group));
        self.touched.insert(TouchedStructure::Group { group, at: self.group_at(group) });
        let block = self.group_desc(group).bg_block_bitmap_lo.get();
        self.block(block.into(), change)
    }

    /// A group's inode bitmap.
    pub fn inode_bitmap<R>(&mut self, group: u32, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.touched.insert(TouchedStructure::InodeBitmap(group));
        self.touched.insert(TouchedStructure::Group { group, at: self.group_at(group) });
        let block = self.group_desc(group).bg_inode_bitmap_lo.get();
        self.block(block.into(), change)
    }

    /// Marks a block as used or free in its bitmap, and nowhere else.
    pub fn set_block_bit(&mut self, block: u64, used: bool) {
        let (group, bit) = self.geometry().group_of_block(BlockNr(block)).expect("a block of the image");
        let bit = bit >> self.geometry().cluster_bits;
        self.block_bitmap(group.0, |b| if used { bitmap::set(b, bit) } else { bitmap::clear(b, bit) });
    }

    /// Marks an inode as used or free in its bitmap, and nowhere else.
    pub fn set_inode_bit(&mut self, ino: u32, used: bool) {
        let place = self.geometry().inode_location(InodeNr(ino)).expect("an inode of the image");
        self.inode_bitmap(place.group.0, |b| {
            if used { bitmap::set(b, place.index) } else { bitmap::clear(b, place.index) }
        });
    }

    /// The group that contains a block.
    pub fn group_of(&self, block: u64) -> u32 {
        self.geometry().group_of_block(BlockNr(block)).expect("a block of the image").0.0
    }

    /// A free block, searched from the end of the image; it remains free.
    pub fn free_block(&self) -> u64 {
        self.free_blocks(1)[0]
    }

    /// `count` consecutive free blocks, each the first of a cluster; they remain free.
    pub fn free_blocks(&self, count: usize) -> Vec<u64> {
        let g = self.geometry();
        let mut run = Vec::new();
        for group in (0..g.group_count).rev() {
            let desc = self.group_desc(group);
            if desc.bg_flags.get() & 2 != 0 {
                continue;
            }
            let map = self.read(u64::from(desc.bg_block_bitmap_lo.get()) * u64::from(g.block_size), self.block_size());
            for bit in (0..g.clusters_in_group(GroupNr(group))).rev() {
                if bitmap::test(&map, bit) {
                    run.clear();
                    continue;
                }
                run.push(g.first_block_of_group(GroupNr(group)).0 + (u64::from(bit) << g.cluster_bits));
                if run.len() == count {
                    run.reverse();
                    return run;
                }
            }
            run.clear();
        }
        panic!("no {count} free blocks");
    }

    /// The number of an inode.
    pub fn ino<'a>(&self, of: impl Into<Of<'a>>) -> u32 {
        match of.into() {
            Of::Number(ino) => ino,
            Of::Path(path) => path.split('/').filter(|s| !s.is_empty()).fold(2, |dir, name| {
                let (block, at) = self.find(dir, name.as_bytes());
                word(&self.read(block * self.block_size() as u64 + at as u64, 4), 0)
            }),
        }
    }

    /// A free inode, which was never used or has been deleted.
    pub fn free_ino(&self) -> u32 {
        let desc = self.group_desc(0);
        let at = u64::from(desc.bg_inode_bitmap_lo.get()) * self.block_size() as u64;
        let map = self.read(at, self.block_size());
        (self.geometry().first_ino..).find(|ino| !bitmap::test(&map, ino - 1)).expect("a free inode")
    }

    /// The byte offset of an inode.
    pub(super) fn inode_at(&self, ino: u32) -> u64 {
        let place = self.geometry().inode_location(InodeNr(ino)).expect("an inode of the image");
        let table = u64::from(self.group_desc(place.group.0).bg_inode_table_lo.get());
        (table + u64::from(place.table_block)) * self.block_size() as u64 + place.offset as u64
    }

    /// All of an inode's bytes.
    pub fn inode_bytes<'a, R>(&mut self, of: impl Into<Of<'a>>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let ino = self.ino(of);
        self.touched.insert(TouchedStructure::Inode(ino));
        let (at, size) = (self.inode_at(ino), self.geometry().inode_size);
        self.change(at, size, change)
    }

    /// The fields that every inode has.
    pub fn inode<'a, R>(&mut self, of: impl Into<Of<'a>>, change: impl FnOnce(&mut RawInode) -> R) -> R {
        self.inode_bytes(of, |b| change(RawInode::mut_from_prefix(b).expect("its size").0))
    }

    /// The fields that only inodes of more than 128 bytes have.
    pub fn extra<'a, R>(&mut self, of: impl Into<Of<'a>>, change: impl FnOnce(&mut RawInodeExtra) -> R) -> R {
        self.inode_bytes(of, |b| change(RawInodeExtra::mut_from_prefix(&mut b[128..]).expect("a large inode").0))
    }

    /// Reads the fields that every inode has.
    pub fn raw_inode<'a>(&self, of: impl Into<Of<'a>>) -> RawInode {
        let ino = self.ino(of);
        RawInode::read_from_bytes(&self.read(self.inode_at(ino), size_of::<RawInode>())).expect("its size")
    }

    /// The attributes in an inode: the bytes behind its fields, beginning with the magic number.
    pub fn inode_attributes<'a, R>(&mut self, of: impl Into<Of<'a>>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.inode_bytes(of, |b| {
            let extra = usize::from(u16::from_le_bytes([b[128], b[129]]));
            change(&mut b[128 + extra..])
        })
    }

    /// The block with an inode's attributes.
    pub fn attributes<'a, R>(&mut self, of: impl Into<Of<'a>>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let block = u64::from(self.raw_inode(of).i_file_acl_lo.get());
        assert_ne!(block, 0, "the inode has no block of attributes");
        self.touched.insert(TouchedStructure::Attributes { block });
        self.block(block, change)
    }

    /// The blocks with an inode's map, below the inode: extent nodes or pointer blocks, parents first.
    pub fn nodes<'a>(&self, of: impl Into<Of<'a>>) -> Vec<u64> {
        self.walk(self.ino(of)).0
    }

    /// The blocks with an inode's data: logical and physical number.
    pub fn data<'a>(&self, of: impl Into<Of<'a>>) -> Vec<(u64, u64)> {
        self.walk(self.ino(of)).1
    }

    fn walk(&self, ino: u32) -> (Vec<u64>, Vec<(u64, u64)>) {
        let bytes = self.read(self.inode_at(ino), self.geometry().inode_size);
        let inode = InodeDesc::parse(&bytes, InodeNr(ino), self.geometry()).expect("a whole inode");
        let (mut nodes, mut data) = (Vec::new(), Vec::new());
        let walked = Reader::new(&self.dev, self.geometry()).walk(&inode, None, &mut |step| {
            match step? {
                Step::Node(child) => nodes.push(child.block.0),
                Step::Run(run) => {
                    data.extend((0..u64::from(run.len)).map(|k| (u64::from(run.lblk.0) + k, run.pblk.0 + k)));
                }
                Step::Damage(..) => {}
            }
            Ok::<_, ReadError>(true)
        });
        walked.expect("a map that can be read");
        (nodes, data)
    }

    /// The `index`th block of an inode's map below the inode, in the order of [`Edit::nodes`].
    pub fn node<'a, R>(&mut self, of: impl Into<Of<'a>>, index: usize, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let ino = self.ino(of);
        let block = self.nodes(ino)[index];
        if self.raw_inode(ino).i_flags.get() & EXTENTS_FL != 0 {
            self.touched.insert(TouchedStructure::Node { ino, block });
        }
        self.block(block, change)
    }

    /// A directory's block, by its logical number.
    pub fn dir_block<'a, R>(&mut self, of: impl Into<Of<'a>>, lblk: u64, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let ino = self.ino(of);
        let block = self.data(ino).into_iter().find(|d| d.0 == lblk).expect("a block of the directory").1;
        self.touched.insert(TouchedStructure::DirBlock { ino, block });
        self.block(block, change)
    }

    /// The block and the offset of the entry `name` in a directory with blocks.
    fn find(&self, dir: u32, name: &[u8]) -> (u64, usize) {
        for (_, block) in self.data(dir) {
            let bytes = self.read(block * self.block_size() as u64, self.block_size());
            let mut at = 0;
            while let Some(entry) = StoredEntry::at(&bytes, at) {
                if entry.ino != 0 && entry.name == name {
                    return (block, at);
                }
                at += entry.rec_len.max(HEADER_LEN);
            }
        }
        panic!("directory {dir} has no {}", String::from_utf8_lossy(name));
    }

    /// The entry at the end of a path (including `/dir/..`), and the bytes behind its fixed part, to the end of the
    /// entry.
    pub fn entry<R>(&mut self, path: &str, change: impl FnOnce(&mut RawDirent, &mut [u8]) -> R) -> R {
        let (dir, name) = path.rsplit_once('/').expect("an absolute path");
        let ino = self.ino(dir);
        let (block, at) = self.find(ino, name.as_bytes());
        self.touched.insert(TouchedStructure::DirBlock { ino, block });
        self.block(block, |b| {
            let (raw, rest) = RawDirent::mut_from_prefix(&mut b[at..]).expect("in the block");
            let len = usize::from(raw.rec_len.get()) - 8;
            change(raw, &mut rest[..len])
        })
    }

    /// The orphan file's inode.
    pub fn ino_of_orphans(&self) -> u32 {
        self.superblock.orphan_file().expect("an image with an orphan file").0
    }

    /// A block of the orphan file.
    pub fn orphans<R>(&mut self, lblk: u64, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let ino = self.ino_of_orphans();
        let block = self.data(ino).into_iter().find(|d| d.0 == lblk).expect("a block of the orphan file").1;
        self.touched.insert(TouchedStructure::Orphans { ino, block });
        self.block(block, change)
    }

    /// The block of multi-mount protection.
    pub fn mmp<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let block = self.superblock.raw().s_mmp_block.get();
        self.touched.insert(TouchedStructure::Mmp { block });
        self.block(block, change)
    }

    /// The journal's block with this number; its superblock's checksum is not repaired.
    pub fn journal<R>(&mut self, lblk: u64, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let block = self.data(8).into_iter().find(|d| d.0 == lblk).expect("a block of the journal").1;
        self.block(block, change)
    }
}

/// The little-endian word at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sets the little-endian word at byte `at`.
pub fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Sets the little-endian half word at byte `at`.
pub fn set_half(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
