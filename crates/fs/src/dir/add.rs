//! Adding a name: into a block with room, into a new block, or into a tree whose leaf and index nodes split (Linux:
//! `ext4_add_entry`, `ext4_dx_add_entry`, `do_split`, `make_indexed_dir`, fs/ext4/namei.c).
//!
//! A split leaves a readable directory after each step, because the next step may fail. It first writes the new block,
//! which nothing references yet, then the parent. Only then does it remove the moved entries from the old block.
//!
//! # Locking
//! None; see the parent module.

use extant_ondisk::dirent::{self, Dirent, Insert, rec_len_needed};
use extant_ondisk::htree::{DX_BLOCK_MASK, DxShape};
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;

use super::index::{Path, Probed, Target, probe};
use super::{BlockKind, Detail, DirError, DirParams, DirStore, name_hash};

/// A new name needs at most one round for each level and one for the leaf.
const ROUNDS_MAX: usize = 8;

/// The effect of an operation on the directory's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// The directory has the same index as before, or still none.
    Unchanged,
    /// The directory has become a tree.
    Built,
    /// A damaged index was dropped.
    Dropped,
}

/// Where a name was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// The directory block that contains it.
    pub lblk: u32,
    /// The entry's offset in the block, in bytes.
    pub offset: u32,
    /// [`DirStore::set_indexed`] has already reported this to the store.
    pub index: IndexChange,
}

/// The largest change of one [`add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddCredits {
    /// Directory blocks written, new ones included.
    pub blocks: u32,
    /// The new blocks among them; each costs an allocation too.
    pub appended: u32,
}

/// The largest number of journal credits for directory blocks that an [`add`] to this directory needs.
pub fn credits_for_add(params: &DirParams, blocks: u32) -> AddCredits {
    if params.uses_index() || (params.has_dir_index && blocks <= 1) {
        // Each level and the leaf may change and split. A directory of one block may become a root and two leaves.
        let levels = params.levels_max() as u32;
        AddCredits { blocks: 2 * levels + 1, appended: levels }
    } else {
        AddCredits { blocks: 1, appended: 1 }
    }
}

/// The entry to add.
#[derive(Clone, Copy)]
struct NewEntry<'a> {
    name: &'a [u8],
    ino: InodeNr,
    file_type: Option<FileType>,
}

/// Adds a name. The caller has looked it up under the same lock and not found it. If this comes across the name
/// nevertheless, it returns an error.
///
/// # Errors
/// [`DirError::Full`], [`DirError::Exists`], [`DirError::InvalidName`], [`DirError::Corrupt`], and the store's errors,
/// including no space. The name is then not added, but blocks may have been split. The directory is intact, and the
/// transaction may be committed.
pub fn add<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    name: &[u8],
    ino: InodeNr,
    file_type: Option<FileType>,
) -> Result<Added, S::Error> {
    if !params.leaf_format().may_store(name)
        || name == b"."
        || name == b".."
        || ino.0 == 0
        || ino.0 > params.inodes_count
    {
        return Err(DirError::InvalidName { len: name.len() }.into());
    }
    let new = NewEntry { name, ino, file_type };
    let mut index = IndexChange::Unchanged;
    if params.uses_index() {
        match add_indexed(store, txn, params, new)? {
            Ok((lblk, offset)) => return Ok(Added { lblk, offset, index }),
            Err(error) if params.has_csum => return Err(error.into()),
            Err(_) => {}
        }
    }
    let mut params = *params;
    if params.is_indexed {
        // The index is damaged or its feature is off. Plain entries will now overwrite it. A directory with checksums
        // does not allow that, since its index blocks have no tail.
        if params.has_csum {
            let detail = "an indexed directory on a file system without dir_index";
            return Err(DirError::Corrupt { lblk: 0, offset: 0, detail: Detail::Whole(detail) }.into());
        }
        store.set_indexed(txn, false)?;
        params.is_indexed = false;
        index = IndexChange::Dropped;
    }
    if let Some((lblk, offset)) = add_linear(store, txn, &params, new)? {
        return Ok(Added { lblk, offset, index });
    }
    if params.has_dir_index && store.blocks() == 1 && index == IndexChange::Unchanged {
        build_index(store, txn, &params)?;
        params.is_indexed = true;
        let (lblk, offset) = add_indexed(store, txn, &params, new)??;
        return Ok(Added { lblk, offset, index: IndexChange::Built });
    }
    check_growth(store, &params)?;
    let format = params.leaf_format();
    let mut image = vec![0; store.block_size() as usize];
    format.init_leaf(&mut image);
    let offset = insert_into(&params, &mut image, new, store.blocks())?;
    let lblk = store.append(txn, BlockKind::Leaf, |block| block.copy_from_slice(&image))?;
    Ok(Added { lblk, offset, index })
}

/// Inserts into a block image that must have room.
fn insert_into(params: &DirParams, image: &mut [u8], new: NewEntry<'_>, lblk: u32) -> Result<u32, DirError> {
    match params.leaf_format().insert(image, new.name, new.ino.0, new.file_type) {
        Ok(Insert::Done { offset }) => Ok(offset),
        Ok(Insert::Exists { .. }) => Err(DirError::Exists { lblk }),
        Ok(Insert::Full) => {
            Err(DirError::Corrupt { lblk, offset: 0, detail: Detail::Whole("a split leaf has no room") })
        }
        Err(damage) => Err(DirError::corrupt(lblk, damage)),
    }
}

/// Whether one more block is allowed (Linux: the limits of `i_size` and of `dx_set_block`).
fn check_growth<S: DirStore>(store: &S, params: &DirParams) -> Result<(), DirError> {
    let blocks = store.blocks();
    let bytes = (u64::from(blocks) + 1) * u64::from(store.block_size());
    if blocks >= DX_BLOCK_MASK || (!params.has_large_dir && bytes > u64::from(u32::MAX)) {
        return Err(DirError::Full { blocks });
    }
    Ok(())
}

/// Inserts the entry into the first block with room.
fn add_linear<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    new: NewEntry<'_>,
) -> Result<Option<(u32, u32)>, S::Error> {
    let format = params.leaf_format();
    for lblk in 0..store.blocks() {
        let room = store.read(lblk, BlockKind::Leaf, |block| format.find_room(block, new.name))?;
        match room.map_err(|damage| DirError::corrupt(lblk, damage))? {
            dirent::Room::Full => {}
            dirent::Room::Exists { .. } => return Err(DirError::Exists { lblk }.into()),
            dirent::Room::At { .. } => {
                let offset =
                    store.modify(txn, lblk, BlockKind::Leaf, |block| insert_into(params, block, new, lblk))??;
                return Ok(Some((lblk, offset)));
            }
        }
    }
    Ok(None)
}

/// Turns a directory of one block into a tree of one leaf: the names move to block 1, and block 0 becomes the root.
fn build_index<S: DirStore>(store: &S, txn: &mut S::Txn, params: &DirParams) -> Result<(), S::Error> {
    check_growth(store, params)?;
    let (leaf_format, dx_format) = (params.leaf_format(), params.dx_format());
    let leaf = store.read(0, BlockKind::Leaf, |block| {
        let (ino, parent, _) = leaf_format.dots(block)?;
        let mut names = Vec::new();
        for entry in leaf_format.entries(block) {
            let entry = entry?;
            if entry.is_used() && !entry.is_dot() {
                names.push(entry);
            }
        }
        let mut image = vec![0; block.len()];
        leaf_format.pack(&mut image, names.into_iter())?;
        Ok((image, [ino, parent]))
    })?;
    let (image, dots) = leaf.map_err(|damage| DirError::corrupt(0, damage))?;
    let child = store.append(txn, BlockKind::Leaf, |block| block.copy_from_slice(&image))?;
    store.modify(txn, 0, BlockKind::Index, |block| {
        dx_format.init_root(block, leaf_format, dots, params.hash_version.to_disk(), child);
    })?;
    store.set_indexed(txn, true)
}

/// Inserts the entry into the leaf for the name's hash. If blocks on the way are full, it splits them.
fn add_indexed<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    new: NewEntry<'_>,
) -> Probed<(u32, u32), S::Error> {
    let format = params.leaf_format();
    for _ in 0..ROUNDS_MAX {
        let path = match probe(store, params, Target::Name(new.name))? {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        };
        let lblk = path.leaf;
        let inserted = store
            .modify(txn, lblk, BlockKind::Leaf, |block| format.insert(block, new.name, new.ino.0, new.file_type))?;
        match inserted.map_err(|damage| DirError::corrupt(lblk, damage))? {
            Insert::Done { offset } => return Ok(Ok((lblk, offset))),
            Insert::Exists { .. } => return Err(DirError::Exists { lblk }.into()),
            Insert::Full => {}
        }
        // The parent needs room for one more key before its leaf may split. Every split changes the path.
        if path.frames().last().is_some_and(|frame| frame.is_full()) {
            split_index(store, txn, params, &path)?;
        } else {
            return split_leaf(store, txn, params, &path, new).map(Ok);
        }
    }
    let detail = "index nodes stay full after splitting";
    Err(DirError::Corrupt { lblk: 0, offset: 0, detail: Detail::Whole(detail) }.into())
}

/// Makes room in the lowest index node. If a node above it is full, this splits that one instead, or adds a level.
fn split_index<S: DirStore>(store: &S, txn: &mut S::Txn, params: &DirParams, path: &Path) -> Result<(), S::Error> {
    let format = params.dx_format();
    let frames = path.frames();
    // The deepest index block whose parent has room; the root if none has.
    let level = (1..frames.len()).rev().find(|&level| !frames[level - 1].is_full()).unwrap_or(0);
    if level == 0 && frames.len() >= params.levels_max() {
        return Err(DirError::Full { blocks: store.blocks() }.into());
    }
    check_growth(store, params)?;
    let lblk = frames[level].lblk;
    let (upper, key) = {
        let split = store.read(lblk, BlockKind::Index, |block| {
            let mut upper = vec![0; block.len()];
            let key = if level == 0 {
                format.root_to_node(block, &mut upper).map(|()| 0)
            } else {
                format.upper_half(block, &mut upper)
            };
            key.map(|key| (upper, key))
        })?;
        split.map_err(|damage| DirError::corrupt(lblk, damage))?
    };
    let child = store.append(txn, BlockKind::Index, |block| block.copy_from_slice(&upper))?;
    if level == 0 {
        let raised = store.modify(txn, 0, BlockKind::Index, |block| format.raise_root(block, child))?;
        return Ok(raised.map_err(|damage| DirError::corrupt(0, damage))?);
    }
    // The parent comes first: until the old node drops its upper half, the names in that half are reachable twice.
    insert_key(store, txn, params, path, level - 1, key, child)?;
    let kept = store.modify(txn, lblk, BlockKind::Index, |block| format.keep_lower_half(block))?;
    Ok(kept.map_err(|damage| DirError::corrupt(lblk, damage))?)
}

/// Adds an entry for a new block to index block `level` of the path, after the child that the path takes.
fn insert_key<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    path: &Path,
    level: usize,
    key: u32,
    child: u32,
) -> Result<(), S::Error> {
    let frame = path.frames()[level];
    let shape = if level == 0 { DxShape::Root } else { DxShape::Node };
    let format = params.dx_format();
    let inserted =
        store.modify(txn, frame.lblk, BlockKind::Index, |block| format.insert(block, shape, frame.at, key, child))?;
    Ok(inserted.map_err(|damage| DirError::corrupt(frame.lblk, damage))?)
}

/// Splits a full leaf at the median of its hashes, weighted by size, and inserts the name into the half for its hash.
/// The parent has room.
fn split_leaf<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    path: &Path,
    new: NewEntry<'_>,
) -> Result<(u32, u32), S::Error> {
    let format = params.leaf_format();
    let lblk = path.leaf;
    let corrupt = |damage| DirError::corrupt(lblk, damage);
    let image = store.read(lblk, BlockKind::Leaf, <[u8]>::to_vec)?;
    let mut entries: Vec<(u32, Dirent<'_>)> = Vec::new();
    for entry in format.entries(&image) {
        let entry = entry.map_err(corrupt)?;
        if entry.is_used() {
            entries.push((name_hash(&path.hasher, entry.name).hash, entry));
        }
    }
    let mut left = vec![0; image.len()];
    let live: usize = entries.iter().map(|(_, entry)| entry.needed()).sum();
    if entries.len() < 2 && live + rec_len_needed(new.name.len()) <= format.limit(image.len()) {
        // Only a crafted block is full with a single name: its free bytes are fragmented.
        format.pack(&mut left, entries.iter().map(|(_, entry)| *entry)).map_err(corrupt)?;
        let offset = insert_into(params, &mut left, new, lblk)?;
        store.modify(txn, lblk, BlockKind::Leaf, |block| block.copy_from_slice(&left))?;
        return Ok((lblk, offset));
    }
    check_growth(store, params)?;
    entries.sort_by_key(|&(hash, _)| hash);
    let split = split_point(&entries, image.len());
    let hash_of = |index: usize| entries.get(index).map_or(0, |&(hash, _)| hash);
    let boundary = hash_of(split);
    let continued = split > 0 && hash_of(split - 1) == boundary;

    let mut right = vec![0; image.len()];
    let (low, high) = entries.split_at(split.min(entries.len()));
    format.pack(&mut left, low.iter().map(|(_, entry)| *entry)).map_err(corrupt)?;
    format.pack(&mut right, high.iter().map(|(_, entry)| *entry)).map_err(corrupt)?;
    let goes_right = path.hash.hash >= boundary;
    let offset = insert_into(params, if goes_right { &mut right } else { &mut left }, new, lblk)?;

    let sibling = store.append(txn, BlockKind::Leaf, |block| block.copy_from_slice(&right))?;
    insert_key(store, txn, params, path, path.frames().len() - 1, boundary | u32::from(continued), sibling)?;
    store.modify(txn, lblk, BlockKind::Leaf, |block| block.copy_from_slice(&left))?;
    Ok((if goes_right { sibling } else { lblk }, offset))
}

/// The index of the first entry that moves. The moved entries fill half of a block. If the old block would become empty
/// then, half of all entries move instead.
fn split_point(entries: &[(u32, Dirent<'_>)], block_size: usize) -> usize {
    let mut size = 0;
    let mut split = entries.len();
    for (index, (_, entry)) in entries.iter().enumerate().rev() {
        if size + entry.needed() / 2 > block_size / 2 {
            break;
        }
        size += entry.needed();
        split = index;
    }
    if split == 0 || split == entries.len() { entries.len() / 2 } else { split }
}
