//! A file system without files: the skeleton, its root and lost+found; identical to that of mke2fs, byte for byte.
//!
//! Main type: [`Empty`].
//!
//! # Locking
//! None.

use extant_ondisk::dirent::{DirBlockFormat, rec_len_to_disk, seal_leaf};
use extant_ondisk::features::Incompat;
use extant_ondisk::inode::{FileType, GOOD_OLD_INODE_SIZE, InodeDesc};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr};

use super::finish::{Finished, Inodes, Key, Usage};
use super::map::Mapped;
use super::quota::OwnerUsage;
use super::{Skeleton, file};
use crate::options::Options;
use crate::plan::{Piece, Plan};
use crate::{Error, Result};

const LOST_FOUND: &[u8] = b"lost+found";
/// The size of lost+found in bytes, so that e2fsck need not allocate blocks for it...
const LOST_FOUND_BYTES: u64 = 16 << 10;
/// ...but at most as many blocks as there are direct pointers.
const LOST_FOUND_BLOCKS_MAX: u64 = 12;
/// The number of bytes of the entries `.` and `..`.
const DOT_BYTES: usize = 12;
const ROOT_MODE: u16 = 0o040_755;
const LOST_FOUND_MODE: u16 = 0o040_700;

/// The first bytes of extended attributes within an inode (Linux: `EXT4_XATTR_MAGIC`).
const XATTR_MAGIC: [u8; 4] = 0xea02_0000u32.to_le_bytes();

/// The plan of an empty file system.
pub struct Empty {
    finished: Finished,
    pieces: Vec<Piece<EmptyKey>>,
}

/// The contents of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyKey {
    /// A piece of the skeleton.
    Skeleton(Key),
    /// A run of the root directory or of lost+found.
    Directory(Run),
}

/// A run of one of the two directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    directory: u8,
    first_lblk: u32,
}

/// The number of blocks of lost+found.
fn lost_found_blocks(block_size: u64) -> u64 {
    (LOST_FOUND_BYTES.div_ceil(block_size)).clamp(2, LOST_FOUND_BLOCKS_MAX)
}

impl Empty {
    /// Plans an empty file system.
    ///
    /// # Errors
    /// The options contradict each other or the size.
    pub fn plan(options: &Options) -> Result<Empty> {
        let mut lost_found = lost_found_blocks(options.block_size().into());
        if options.wanted.incompat.contains(Incompat::INLINE_DATA) {
            // lost+found begins without a block, and its first block takes the place of another.
            lost_found -= 1;
        }
        let ino = InodeNr(FIRST_INO);
        let owners = [[options.root_owner.0, options.root_owner.1, 0], [0; 3]];
        let mut owned = OwnerUsage::default();
        owners.iter().for_each(|owners| owned.add(*owners, 0));
        let skeleton = Skeleton::plan_with_directories(options, &[(InodeNr::ROOT, 1), (ino, lost_found)], &owned)?;
        let directories = vec![InodeNr::ROOT, skeleton.lost_found_ino()];
        let mut owned = OwnerUsage::default();
        for (owners, mapped) in owners.into_iter().zip(&skeleton.directories) {
            owned.add(owners, file::sectors(mapped, skeleton.geometry()) * 512);
        }
        let finished = skeleton.finish(Usage { blocks: Vec::new(), last_ino: 0, directories, owned })?;
        let mut pieces: Vec<_> = finished.pieces().into_iter().map(|piece| piece.map(EmptyKey::Skeleton)).collect();
        for (directory, mapped) in finished.skeleton().directories.iter().enumerate() {
            let mut first_lblk = 0;
            for (start, len) in &mapped.runs {
                let key = EmptyKey::Directory(Run { directory: directory as u8, first_lblk });
                pieces.push(Piece { start: BlockNr(*start), blocks: *len as u32, key });
                first_lblk += *len as u32;
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.start.0);
        Ok(Empty { finished, pieces })
    }

    /// The skeleton below it.
    pub fn skeleton(&self) -> &Skeleton {
        self.finished.skeleton()
    }

    /// The superblock as it is written.
    pub fn superblock(&self) -> &SuperBlock {
        self.finished.superblock()
    }

    fn fill_directory(&self, run: Run, first: u32, out: &mut [u8]) -> Result<()> {
        let geo = self.skeleton().geometry();
        let ino = if run.directory == 0 { InodeNr::ROOT } else { self.skeleton().lost_found_ino() };
        let format = DirBlockFormat {
            has_filetype: geo.filetype,
            has_csum: geo.metadata_csum,
            inodes_count: geo.inodes_count,
            encrypted: false,
        };
        for (i, block) in out.chunks_exact_mut(geo.block_size as usize).enumerate() {
            format.init_leaf(block);
            if run.first_lblk + first + i as u32 == 0 {
                format.init_dots(block, ino.0, InodeNr::ROOT.0);
                if geo.inline_data && run.directory != 0 {
                    // After the two names, mke2fs leaves a free entry from the time when the data was in the inode.
                    let rest = rec_len_to_disk(format.limit(block.len()) - 2 * DOT_BYTES, block.len());
                    block[DOT_BYTES + 4..DOT_BYTES + 6].copy_from_slice(&(DOT_BYTES as u16).to_le_bytes());
                    block[2 * DOT_BYTES + 4..2 * DOT_BYTES + 6].copy_from_slice(&rest.to_le_bytes());
                }
            }
            if run.directory == 0 {
                let kind = Some(FileType::Directory);
                format
                    .insert(block, LOST_FOUND, self.skeleton().lost_found_ino().0, kind)
                    .map_err(|e| Error::Options(e.to_string()))?;
            }
            if geo.metadata_csum {
                seal_leaf(block, geo.seed.for_inode(ino, 0));
            }
        }
        Ok(())
    }
}

/// The inode of lost+found.
const FIRST_INO: u32 = 11;

impl Plan for Empty {
    type Key = EmptyKey;

    fn block_size(&self) -> u32 {
        self.skeleton().geometry().block_size
    }

    fn blocks_count(&self) -> u64 {
        self.skeleton().geometry().blocks_count
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<EmptyKey>> + Send {
        self.pieces.iter().copied()
    }

    fn superblocks(&self) -> impl Iterator<Item = Piece<EmptyKey>> {
        self.finished.superblocks().map(|piece| piece.map(EmptyKey::Skeleton))
    }

    fn fill(&self, key: EmptyKey, first: u32, buf: &mut [u8]) -> Result<()> {
        match key {
            EmptyKey::Skeleton(key) => self.finished.fill(key, first, buf, &Directories(self.skeleton())),
            EmptyKey::Directory(run) => self.fill_directory(run, first, buf),
        }
    }
}

/// The inodes of the two directories.
struct Directories<'a>(&'a Skeleton);

impl Inodes for Directories<'_> {
    fn fill(&self, ino: InodeNr, out: &mut [u8]) -> Result<()> {
        let geo = self.0.geometry();
        let root = ino == InodeNr::ROOT;
        let Some(mapped) = self.0.directories.get(usize::from(!root)) else { return Ok(()) };
        let desc = inode(self.0.options(), geo, mapped, root);
        if geo.inline_data && !root {
            // The data was in the inode before the directory got blocks, and this is the rest of it.
            let at = GOOD_OLD_INODE_SIZE + usize::from(desc.extra_isize);
            out[at..at + XATTR_MAGIC.len()].copy_from_slice(&XATTR_MAGIC);
        }
        desc.encode_into(out, ino, geo).map_err(|e| Error::Options(e.to_string()))
    }
}

fn inode(options: &Options, geo: &Geometry, mapped: &Mapped, root: bool) -> InodeDesc {
    let mut inode = InodeDesc::new(if root { ROOT_MODE } else { LOST_FOUND_MODE }, geo);
    let now = Timestamp::from_seconds(options.wanted.time);
    if root {
        (inode.uid, inode.gid) = options.root_owner;
    }
    let blocks: u64 = mapped.runs.iter().map(|(_, len)| len).sum();
    inode.size = blocks * u64::from(geo.block_size);
    inode.blocks = file::sectors(mapped, geo);
    inode.links = if root { 3 } else { 2 };
    inode.flags = mapped.flags;
    inode.i_block = mapped.i_block;
    (inode.atime, inode.ctime, inode.mtime) = (now, now, now);
    inode.crtime = inode.crtime.map(|_| now);
    inode
}
