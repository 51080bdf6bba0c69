//! Finding a name (Linux: `ext4_find_entry`, `ext4_dx_find_entry`, fs/ext4/namei.c).
//!
//! # Locking
//! None; see the parent module.

use extant_ondisk::casefold::LookupName;
use extant_ondisk::dirent::Dirent;
use extant_ondisk::units::InodeNr;

use super::index::{BEHIND_END, Probed, Target, advance, next_key, probe};
use super::{BlockKind, Detail, DirError, DirParams, DirStore, Found, Passed, Scan};

fn found(lblk: u32, entry: &Dirent<'_>) -> Found {
    Found { ino: InodeNr(entry.ino), file_type: entry.file_type, lblk, offset: entry.offset }
}

/// Finds a name. This scans the leaf that the index gives, or else every block. It allocates memory only for the folded
/// form of a name. In a case-insensitive directory the result is the first entry that folds to the same text, as in
/// Linux; a sound directory has only one.
///
/// # Errors
/// The store's errors. [`DirError::Corrupt`] if the name was not found and a damaged block may contain it. If the index
/// is damaged, this searches all leaves in turn.
pub fn lookup<S: DirStore>(store: &S, params: &DirParams, name: &[u8]) -> Result<Option<Found>, S::Error> {
    if !params.leaf_format().may_store(name) {
        return Ok(None);
    }
    let wanted = &params.wanted(name);
    if !params.uses_index() {
        return lookup_linear(store, params, wanted);
    }
    if name == b"." || name == b".." {
        return find_in(store, params, 0, BlockKind::Index, wanted);
    }
    let indexed = match lookup_indexed(store, params, name, wanted) {
        Err(e) if params.by_place && store.is_damage(&e) => Ok(None),
        indexed => indexed?,
    };
    match indexed {
        Ok(Some(found)) => Ok(Some(found)),
        // The index says that there is no such name, but a rescue does not trust the index.
        _ if params.by_place => lookup_linear(store, params, wanted),
        Ok(None) => Ok(None),
        // Without checksums an index block looks like a leaf without names, so the linear search covers every name.
        Err(error) if !params.has_csum => match lookup_linear(store, params, wanted)? {
            None if leads_behind_end(store, params, name)? => Err(error),
            found => Ok(found),
        },
        Err(error) => lookup_linear(store, params, wanted)?.map_or(Err(error), |found| Ok(Some(found))),
    }
}

/// Whether the index refers to a block past the directory's end for this name.
fn leads_behind_end<S: DirStore>(store: &S, params: &DirParams, name: &[u8]) -> Result<bool, S::Error> {
    let probed = probe(store, params, Target::Name(name))?;
    Ok(matches!(probed, Err(DirError::Corrupt { detail, .. }) if detail == Detail::Whole(BEHIND_END)))
}

fn find_in<S: DirStore>(
    store: &S,
    params: &DirParams,
    lblk: u32,
    kind: BlockKind,
    wanted: &LookupName<'_>,
) -> Result<Option<Found>, S::Error> {
    let format = params.leaf_format();
    let entry = store.read(lblk, kind, |block| {
        format.find_by(block, |stored| wanted.is(stored)).map(|e| e.map(|e| found(lblk, &e)))
    })?;
    Ok(entry.map_err(|damage| DirError::corrupt(lblk, damage))?)
}

fn lookup_linear<S: DirStore>(
    store: &S,
    params: &DirParams,
    wanted: &LookupName<'_>,
) -> Result<Option<Found>, S::Error> {
    let mut passed = Passed::new(params);
    let mut next = Some(0);
    while let Some(from) = next {
        let Scan { block, damage } = store.next_block(from);
        passed.first = passed.first.or(damage);
        let Some(lblk) = block else { break };
        next = lblk.checked_add(1);
        let found = find_in(store, params, lblk, params.kind_in_scan(), wanted);
        if let Some(Some(found)) = passed.step(store, found)? {
            return Ok(Some(found));
        }
    }
    passed.first.map_or(Ok(None), Err)
}

/// The inner error is damage of the index. Damage of the leaf for the name's hash is final.
fn lookup_indexed<S: DirStore>(
    store: &S,
    params: &DirParams,
    name: &[u8],
    wanted: &LookupName<'_>,
) -> Indexed<Option<Found>, S::Error> {
    let mut path = match of_index(store, probe(store, params, Target::Name(name)))? {
        Ok(path) => path,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if let Some(found) = find_in(store, params, path.leaf, BlockKind::Leaf, wanted)? {
            return Ok(Ok(Some(found)));
        }
        // Names with this hash continue in the next leaf if the key of that leaf says so.
        if next_key(&path).is_none_or(|key| key & !1 != path.hash.hash) {
            return Ok(Ok(None));
        }
        if let Err(error) = of_index(store, advance(store, params, &mut path))? {
            return Ok(Err(error));
        }
    }
}

type Indexed<T, E> = Result<Result<T, E>, E>;

/// Treats a broken rule in an index block and a failed checksum alike.
fn of_index<S: DirStore, T>(store: &S, r: Probed<T, S::Error>) -> Indexed<T, S::Error> {
    match r {
        Ok(Err(error)) => Ok(Err(error.into())),
        Err(error) if store.is_damage(&error) => Ok(Err(error)),
        Ok(Ok(t)) => Ok(Ok(t)),
        Err(error) => Err(error),
    }
}
