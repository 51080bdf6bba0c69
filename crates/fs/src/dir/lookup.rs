//! Finding a name (Linux: `ext4_find_entry`, `ext4_dx_find_entry`, fs/ext4/namei.c).
//!
//! # Locking
//! None; see the parent module.

use extant_ondisk::dirent::{self, Dirent};
use extant_ondisk::units::InodeNr;

use super::index::{Probed, Target, advance, next_key, probe};
use super::{BlockKind, DirError, DirParams, DirStore, Found};

fn found(lblk: u32, entry: &Dirent<'_>) -> Found {
    Found { ino: InodeNr(entry.ino), file_type: entry.file_type, lblk, offset: entry.offset }
}

/// Finds a name. It does not allocate: the tree's leaf, or each block in turn, is scanned in place.
///
/// # Errors
/// The store's, and [`DirError::Corrupt`] when a block on the way is damaged. A damaged index is only an error on file
/// systems with checksums; without, the leaves are searched one after the other.
pub fn lookup<S: DirStore>(store: &S, params: &DirParams, name: &[u8]) -> Result<Option<Found>, S::Error> {
    if !dirent::name_is_legal(name) {
        return Ok(None);
    }
    if !params.uses_index() {
        return lookup_linear(store, params, name);
    }
    if name == b"." || name == b".." {
        return find_in(store, params, 0, BlockKind::Index, name);
    }
    match lookup_indexed(store, params, name)? {
        Ok(found) => Ok(found),
        Err(error) if params.has_csum => Err(error.into()),
        Err(_) => lookup_linear(store, params, name),
    }
}

fn find_in<S: DirStore>(
    store: &S,
    params: &DirParams,
    lblk: u32,
    kind: BlockKind,
    name: &[u8],
) -> Result<Option<Found>, S::Error> {
    let format = params.leaf_format();
    let entry = store.read(lblk, kind, |block| format.find(block, name).map(|e| e.map(|e| found(lblk, &e))))?;
    Ok(entry.map_err(|damage| DirError::corrupt(lblk, damage))?)
}

fn lookup_linear<S: DirStore>(store: &S, params: &DirParams, name: &[u8]) -> Result<Option<Found>, S::Error> {
    for lblk in 0..store.blocks() {
        if let Some(found) = find_in(store, params, lblk, params.kind_in_scan(), name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn lookup_indexed<S: DirStore>(store: &S, params: &DirParams, name: &[u8]) -> Probed<Option<Found>, S::Error> {
    let mut path = match probe(store, params, Target::Name(name))? {
        Ok(path) => path,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if let Some(found) = find_in(store, params, path.leaf, BlockKind::Leaf, name)? {
            return Ok(Ok(Some(found)));
        }
        // Names with this hash go on in the next leaf if its key says so.
        if next_key(&path).is_none_or(|key| key & !1 != path.hash.hash) {
            return Ok(Ok(None));
        }
        if let Err(error) = advance(store, params, &mut path)? {
            return Ok(Err(error));
        }
    }
}
