//! Directories: names to inodes, linear and hash-indexed, over an abstract store of blocks.
//!
//! Main types: [`DirStore`] (reads, changes and appends a directory's blocks; the mount implements it on the journal),
//! [`DirParams`] (parameters from the superblock and the inode), [`Found`], [`readdir::DirEntry`], [`DirError`].
//! Functions: [`lookup`], [`add`], [`remove`], [`set_inode`], [`stored_name`], [`respell`], [`readdir`], [`dotdot`],
//! [`set_dotdot`], [`is_empty`], [`init`]; and for the store [`seal`] and [`verify`].
//!
//! [`extant_ondisk::dirent`] and [`extant_ondisk::htree`] know the bytes of the blocks. This module walks them: it
//! decides which block to read, when a directory becomes a tree, how leaves and index nodes split, and in which order
//! to list names (Linux: fs/ext4/namei.c and fs/ext4/dir.c).
//!
//! No operation trusts a damaged index: it finds the names by reading every leaf. Without checksums the next addition
//! drops the index. With checksums that addition fails, because index blocks are not valid leaves. A damaged block or
//! entry hides only itself from [`lookup`] and [`readdir`]. A name that is then not found counts as damaged, not as
//! missing. Under rescue ([`DirParams::by_place`]) both ignore the index and the directory's size.
//!
//! What it does not do: link counts, times, inode allocation, permissions, or inline directories. It does not encrypt:
//! the names of an encrypted directory are the stored ones.
//!
//! # Locking
//! None of its own. The caller holds the directory's inode lock: shared for [`lookup`], [`readdir`], [`is_empty`] and
//! [`dotdot`], exclusive for the rest. No closure of the store calls into the store again. The callback of
//! [`readdir`] runs outside of them, so it may load inodes.

mod add;
mod edit;
mod index;
mod lookup;
mod readdir;
#[cfg(test)]
mod tests;

use extant_ondisk::casefold::LookupName;
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::dirent::{self, DirBlockFormat, DirDamage, DirRule};
use extant_ondisk::htree::{self, DxFormat, DxShape, HashVersion, Hasher, NameHash};
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;

#[cfg(test)]
use add::{Added, IndexChange};
pub use add::{add, credits_for_add};
pub use edit::{dotdot, init, is_empty, remove, respell, set_dotdot, set_inode, stored_name};
pub use lookup::lookup;
pub use readdir::readdir;
#[cfg(test)]
use readdir::{COOKIE_END, Listed};

/// The kind of a directory block, which determines the place of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Entries, and a checksum tail. Block 0 of a directory without index is a leaf.
    Leaf,
    /// The root or a node of the index.
    Index,
    /// Either. Only for reading, when a scan visits every block of an indexed directory.
    Any,
}

/// Access to one directory's blocks. Block numbers are logical, from 0, without holes.
///
/// Closures are short, do no I/O and never call the store again.
pub trait DirStore {
    /// The transaction of the changes (Linux: `handle_t`).
    type Txn;
    /// A failure of the underlying storage, or an error of the directory itself.
    type Error: From<DirError>;

    /// Whether an error means that one block is damaged or missing. A search for names then continues with the other
    /// blocks.
    fn is_damage(&self, error: &Self::Error) -> bool;

    /// The block size in bytes.
    fn block_size(&self) -> u32;

    /// The directory's size in blocks.
    fn blocks(&self) -> u32;

    /// The next block that exists at or after `lblk`, for a scan of all blocks.
    fn next_block(&self, lblk: u32) -> Scan<Self::Error> {
        Scan { block: Some(lblk).filter(|lblk| *lblk < self.blocks()), damage: None }
    }

    /// Runs `f` on a block. A block that enters the cache passes [`verify`] first, once.
    ///
    /// # Errors
    /// I/O errors, and those of [`verify`].
    fn read<R>(&self, lblk: u32, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R, Self::Error>;

    /// Changes a block in the transaction; [`seal`] with this `kind` (never `Any`) must run after `f` and before the
    /// bytes reach the log or the disk.
    ///
    /// # Errors
    /// I/O errors, an aborted journal, or too few credits.
    fn modify<R>(
        &self,
        txn: &mut Self::Txn,
        lblk: u32,
        kind: BlockKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Self::Error>;

    /// Adds a zeroed block at the end, fills it with `f`, seals it as [`DirStore::modify`] does, adds it to the
    /// directory's size, and returns its number. On failure the directory must not have changed.
    ///
    /// # Errors
    /// No space, and those of [`DirStore::modify`].
    fn append(&self, txn: &mut Self::Txn, kind: BlockKind, f: impl FnOnce(&mut [u8])) -> Result<u32, Self::Error>;

    /// Sets or clears the inode's index flag in the transaction (Linux: `EXT4_INDEX_FL`). [`add`] calls it half-way
    /// and may fail afterwards. The flag must then remain as set, because the blocks have changed already.
    ///
    /// # Errors
    /// Those of [`DirStore::modify`].
    fn set_indexed(&self, txn: &mut Self::Txn, indexed: bool) -> Result<(), Self::Error>;
}

/// One step of a scan of all blocks of a directory.
#[derive(Debug)]
pub struct Scan<E> {
    /// The next block of the directory; `None` if there are no more.
    pub block: Option<u32>,
    /// Damage before that block, which may hide blocks.
    pub damage: Option<E>,
}

/// Parameters from the superblock and the directory's inode. They are a snapshot: take a new one for every operation.
#[derive(Clone, Copy, Debug)]
pub struct DirParams {
    /// METADATA_CSUM: blocks of directories have checksums.
    pub has_csum: bool,
    /// FILETYPE: entries contain the file type.
    pub has_filetype: bool,
    /// DIR_INDEX: indexes are used, and full one-block directories get one.
    pub has_dir_index: bool,
    /// LARGEDIR: a third index level, and directories above 4 GiB.
    pub has_large_dir: bool,
    /// The inode's index flag.
    pub is_indexed: bool,
    /// The default for new trees; its signedness also applies to the hashes of existing trees.
    pub hash_version: HashVersion,
    /// `s_hash_seed`, as little-endian words.
    pub hash_seed: [u32; 4],
    /// The seed of the inode's checksums, from [`ChecksumSeed::for_inode`].
    pub inode_seed: ChecksumSeed,
    /// Larger inode numbers in entries are damage.
    pub inodes_count: u32,
    /// Names are ciphertext and may contain any bytes.
    pub encrypted: bool,
    /// Names are compared and hashed in their folded form, but stored unchanged.
    pub folds: bool,
    /// For a rescue: search every block of the directory for names, regardless of the index and of the number of
    /// damaged blocks.
    pub by_place: bool,
}

impl DirParams {
    fn leaf_format(&self) -> DirBlockFormat {
        DirBlockFormat {
            has_filetype: self.has_filetype,
            has_csum: self.has_csum,
            inodes_count: self.inodes_count,
            encrypted: self.encrypted,
        }
    }

    /// A name to find in this directory.
    fn wanted<'a>(&self, name: &'a [u8]) -> LookupName<'a> {
        LookupName::new(name, self.folds)
    }

    /// The function that hashes names in this directory, for the hash version of an index.
    fn hasher(&self, version: HashVersion) -> Hasher {
        Hasher::new(version, self.hash_seed).folding(self.folds)
    }

    fn dx_format(&self) -> DxFormat {
        DxFormat { has_csum: self.has_csum }
    }

    /// Whether operations use the index. The flag has no effect without the feature. A rescue uses the index to find a
    /// name quickly, but does not rely on it to prove that a name is missing.
    fn uses_index(&self) -> bool {
        self.is_indexed && self.has_dir_index
    }

    /// The kind of a block during a scan of all blocks.
    fn kind_in_scan(&self) -> BlockKind {
        if self.is_indexed { BlockKind::Any } else { BlockKind::Leaf }
    }

    /// The maximum number of index levels, the root included (Linux: `ext4_dir_htree_level`).
    fn levels_max(&self) -> usize {
        if self.has_large_dir { 3 } else { 2 }
    }
}

/// The errors of a directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirError {
    /// A block breaks a rule of the format or does not match its checksum.
    #[error("directory block {lblk} is damaged at byte {offset}: {detail}")]
    Corrupt {
        /// The directory block.
        lblk: u32,
        /// The byte within the block.
        offset: u32,
        /// The broken rule, for messages.
        detail: Detail,
    },
    /// The directory cannot grow: its index has all its levels, or its size has reached the format's limit. Other
    /// names may still fit (Linux returns ENOSPC).
    #[error("the directory of {blocks} blocks cannot grow")]
    Full {
        /// The directory's size, in blocks.
        blocks: u32,
    },
    /// The name to add exists already.
    #[error("the name exists already, in directory block {lblk}")]
    Exists {
        /// The directory block that contains it.
        lblk: u32,
    },
    /// The name to change or remove is not there.
    #[error("the name is not in the directory")]
    NotFound,
    /// The name to add is empty, longer than 255 bytes, contains a slash or NUL, or is `.` or `..`.
    #[error("a name of {len} bytes that cannot be written")]
    InvalidName {
        /// The name's length, in bytes.
        len: usize,
    },
}

/// Damage of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Detail {
    /// One block breaks a rule.
    #[error(transparent)]
    Rule(DirRule),
    /// The blocks contradict each other.
    #[error("{0}")]
    Whole(&'static str),
}

impl DirError {
    fn corrupt(lblk: u32, damage: DirDamage) -> DirError {
        DirError::Corrupt { lblk, offset: damage.offset, detail: Detail::Rule(damage.what) }
    }
}

/// The maximum number of damaged blocks that one call skips. A damaged directory may claim to be as large as the format
/// allows.
const DAMAGED_MAX: u32 = 64;

/// Damage that a walk over a directory's blocks has skipped (Linux: `ext4_readdir`, which continues with the next
/// block).
struct Passed<E> {
    first: Option<E>,
    /// How many more blocks may be skipped.
    left: u32,
}

impl<E> Passed<E> {
    fn new(params: &DirParams) -> Passed<E> {
        // A rescue scans the blocks that the map contains, so the directory's size cannot inflate their number.
        Passed { first: None, left: if params.by_place { u32::MAX } else { DAMAGED_MAX } }
    }

    /// Records damage within a readable block.
    fn note(&mut self, e: impl FnOnce() -> E) {
        if self.first.is_none() {
            self.first = Some(e());
        }
    }

    /// The result of reading or searching a block; `None` if the block is damaged.
    fn step<S: DirStore<Error = E>, R>(&mut self, store: &S, r: Result<R, E>) -> Result<Option<R>, E> {
        match r {
            Ok(found) => Ok(Some(found)),
            Err(e) if store.is_damage(&e) && self.left > 0 => {
                self.left -= 1;
                self.first.get_or_insert(e);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

/// The place of a name, and the inode that it refers to. Valid while the caller holds the directory's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode that the name refers to.
    pub ino: InodeNr,
    /// The type stored in the entry; `None` without the `filetype` feature.
    pub file_type: Option<FileType>,
    /// The directory block that contains the entry.
    pub lblk: u32,
    /// The entry's offset in the block, in bytes.
    pub offset: u32,
}

/// Writes a block's checksum. For [`DirStore::modify`] and [`DirStore::append`].
pub fn seal(params: &DirParams, kind: BlockKind, block: &mut [u8]) {
    if !params.has_csum {
        return;
    }
    match kind {
        BlockKind::Leaf | BlockKind::Any => dirent::seal_leaf(block, params.inode_seed),
        // If the bytes are not an index block, they remain unchanged, and verification rightly fails.
        BlockKind::Index => drop(params.dx_format().seal(block, params.inode_seed)),
    }
}

/// Checks a block that enters the cache: its checksum, and the order and range of an index block's entries. `blocks`
/// is the directory's size. Without checksums it accepts everything, so that operations can work around a damaged
/// index.
///
/// # Errors
/// [`DirError::Corrupt`].
pub fn verify(params: &DirParams, kind: BlockKind, lblk: u32, blocks: u32, block: &[u8]) -> Result<(), DirError> {
    if !params.has_csum {
        return Ok(());
    }
    let is_index = match kind {
        BlockKind::Leaf => false,
        BlockKind::Index => true,
        BlockKind::Any => params.is_indexed && (lblk == 0 || htree::shape_of(block) == Some(DxShape::Node)),
    };
    let verdict =
        if is_index { verify_index(params, blocks, block) } else { dirent::verify_leaf(block, params.inode_seed) };
    verdict.map_err(|damage| DirError::corrupt(lblk, damage))
}

fn verify_index(params: &DirParams, blocks: u32, block: &[u8]) -> Result<(), DirDamage> {
    let format = params.dx_format();
    format.verify(block, params.inode_seed)?;
    let shape = htree::shape_of(block).ok_or(DirDamage { offset: 0, what: DirRule::NoIndex })?;
    format.node(shape, block)?.validate(shape, blocks)
}

/// The hash of a name. Tests replace it to make names collide.
fn name_hash(hasher: &Hasher, name: &[u8]) -> NameHash {
    let hash = hasher.hash(name);
    #[cfg(test)]
    let hash = tests::squash(hash);
    hash
}
