//! Removing names, pointing them at other inodes, changing their spelling, and creating a directory's first block.
//!
//! # Locking
//! None; see the parent module.

use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;

use super::{BlockKind, Detail, DirError, DirParams, DirStore, Found, lookup};

/// Removes a name and returns its former target. `hint` is the result of a lookup under the same lock. Without it, or
/// if it does not match, this looks the name up (Linux: `ext4_delete_entry`).
///
/// # Errors
/// [`DirError::NotFound`], [`DirError::Corrupt`], and the store's. The directory is then unchanged.
pub fn remove<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    name: &[u8],
    hint: Option<&Found>,
) -> Result<Found, S::Error> {
    if name == b"." || name == b".." {
        return Err(DirError::InvalidName { len: name.len() }.into());
    }
    if let Some(hint) = hint
        && remove_at(store, txn, params, name, hint)?
    {
        return Ok(*hint);
    }
    let found = lookup(store, params, name)?.ok_or(DirError::NotFound)?;
    if remove_at(store, txn, params, name, &found)? { Ok(found) } else { Err(DirError::NotFound.into()) }
}

/// Returns false if the name is not at the place of `hint`.
fn remove_at<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    name: &[u8],
    place: &Found,
) -> Result<bool, S::Error> {
    let (format, wanted) = (params.leaf_format(), params.wanted(name));
    let removed =
        store.modify(txn, place.lblk, BlockKind::Leaf, |block| match format.entry_at(block, place.offset) {
            Ok(entry) if wanted.is(entry.name) && entry.ino == place.ino.0 => {
                format.remove(block, place.offset).map(|()| true)
            }
            _ => Ok(false),
        })?;
    Ok(removed.map_err(|damage| DirError::corrupt(place.lblk, damage))?)
}

/// Points a found name at another inode, for a rename over an existing name (Linux: `ext4_setent`).
///
/// # Errors
/// [`DirError::NotFound`] if the entry at the place has changed, and the store's.
pub fn set_inode<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    place: &Found,
    ino: InodeNr,
    file_type: Option<FileType>,
) -> Result<(), S::Error> {
    let format = params.leaf_format();
    let set = store.modify(txn, place.lblk, BlockKind::Leaf, |block| match format.entry_at(block, place.offset) {
        Ok(entry) if entry.ino == place.ino.0 => format.set_inode(block, place.offset, ino.0, file_type).map(|()| true),
        _ => Ok(false),
    })?;
    match set.map_err(|damage| DirError::corrupt(place.lblk, damage))? {
        true => Ok(()),
        false => Err(DirError::NotFound.into()),
    }
}

/// The stored name of an entry. In a case-insensitive directory it may differ from the name that was looked up.
///
/// # Errors
/// [`DirError::NotFound`] if the entry at the place has changed, and the store's.
pub fn stored_name<S: DirStore>(store: &S, params: &DirParams, place: &Found) -> Result<Vec<u8>, S::Error> {
    let format = params.leaf_format();
    let name = store.read(place.lblk, BlockKind::Leaf, |block| match format.entry_at(block, place.offset) {
        Ok(entry) if entry.ino == place.ino.0 => Ok(entry.name.to_vec()),
        _ => Err(DirError::NotFound),
    })?;
    Ok(name?)
}

/// Stores another spelling of an entry's name, which folds to the same text. Returns false if the spelling is too long
/// for the entry; nothing has changed then.
///
/// # Errors
/// [`DirError::NotFound`] if the entry at the place has changed, and the store's.
pub fn respell<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    place: &Found,
    name: &[u8],
) -> Result<bool, S::Error> {
    let (format, wanted) = (params.leaf_format(), params.wanted(name));
    let set = store.modify(txn, place.lblk, BlockKind::Leaf, |block| match format.entry_at(block, place.offset) {
        Ok(entry) if entry.ino == place.ino.0 && wanted.is(entry.name) => {
            format.set_name(block, place.offset, name).map(Some)
        }
        _ => Ok(None),
    })?;
    Ok(set.map_err(|damage| DirError::corrupt(place.lblk, damage))?.ok_or(DirError::NotFound)?)
}

/// The parent, according to `..`.
///
/// # Errors
/// [`DirError::Corrupt`] if the first block does not start with `.` and `..`, and the store's.
pub fn dotdot<S: DirStore>(store: &S, params: &DirParams) -> Result<InodeNr, S::Error> {
    let format = params.leaf_format();
    let dots = store.read(0, kind_of_first(params), |block| format.dots(block))?;
    let (_, parent, _) = dots.map_err(|damage| DirError::corrupt(0, damage))?;
    Ok(InodeNr(parent))
}

/// Points `..` at another parent, in place: in a linear directory's first block, or in an index root.
///
/// # Errors
/// Those of [`dotdot`].
pub fn set_dotdot<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    parent: InodeNr,
) -> Result<(), S::Error> {
    let format = params.leaf_format();
    let set = store.modify(txn, 0, kind_of_first(params), |block| {
        let (_, _, offset) = format.dots(block)?;
        format.set_inode(block, offset, parent.0, Some(FileType::Directory))
    })?;
    Ok(set.map_err(|damage| DirError::corrupt(0, damage))?)
}

fn kind_of_first(params: &DirParams) -> BlockKind {
    if params.is_indexed { BlockKind::Index } else { BlockKind::Leaf }
}

/// Appends the first block, with `.` and `..`, to a new directory without blocks.
///
/// # Errors
/// The store's.
pub fn init<S: DirStore>(
    store: &S,
    txn: &mut S::Txn,
    params: &DirParams,
    ino: InodeNr,
    parent: InodeNr,
) -> Result<(), S::Error> {
    let format = params.leaf_format();
    let lblk = store.append(txn, BlockKind::Leaf, |block| format.init_dots(block, ino.0, parent.0))?;
    if lblk == 0 {
        return Ok(());
    }
    Err(DirError::Corrupt { lblk, offset: 0, detail: Detail::Whole("a new directory has blocks already") }.into())
}

/// Whether the directory contains only `.` and `..`. Reads every block (Linux: `ext4_empty_dir`).
///
/// # Errors
/// [`DirError::Corrupt`] (a damaged directory must not pass for an empty one), and the store's.
pub fn is_empty<S: DirStore>(store: &S, params: &DirParams) -> Result<bool, S::Error> {
    let format = params.leaf_format();
    dotdot(store, params)?;
    for lblk in 0..store.blocks() {
        let empty = store.read(lblk, params.kind_in_scan(), |block| {
            for entry in format.entries(block) {
                let entry = entry?;
                if entry.is_used() && !(lblk == 0 && entry.is_dot()) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if !empty.map_err(|damage| DirError::corrupt(lblk, damage))? {
            return Ok(false);
        }
    }
    Ok(true)
}
