//! Get, list, set, remove: the inode first, then the block.

use extant_ondisk::xattr::{
    EntryList, EntryRef, HEADER_LEN, NAME_LEN_MAX, Name, NoSpace, References, VALUE_SIZE_MAX, XattrBlock, XattrContext,
    add_reference, drop_reference, inode_area, scan_block,
};
use extant_ondisk::{BlockNr, Error as OnDiskError};

use super::acl::{AclKind, acl_from_value, get_acl, set_acl};
use super::{SetMode, XattrError, XattrSource, XattrStore};

type Result<T, S> = std::result::Result<T, XattrError<<S as XattrSource>::Error>>;

/// The value of attribute `full_name` (`user.x`), as getxattr returns it.
pub fn get<S: XattrSource>(store: &S, full_name: &[u8]) -> Result<Vec<u8>, S> {
    let name = parse_name(store, full_name)?;
    match AclKind::of(name) {
        Some(kind) => {
            let acl = get_acl(store, kind)?.ok_or(XattrError::NotFound { ino: store.ino() })?;
            Ok(extant_ondisk::acl::to_xattr(&acl))
        }
        None => get_raw(store, name)?.ok_or(XattrError::NotFound { ino: store.ino() }),
    }
}

/// The full names of all attributes that system calls may see. The caller filters `trusted.` ones.
pub fn list<S: XattrSource>(store: &S) -> Result<Vec<Vec<u8>>, S> {
    let area = store.inode_area().map_err(XattrError::Store)?;
    let mut names = Vec::new();
    let mut add = |name: Name<'_>| names.extend(name.is_visible().then(|| name.full()).flatten());
    for e in entries_of_area(store, &area)? {
        add(e.name);
    }
    if let Some((nr, bytes)) = block_of(store)? {
        for e in noted(store, nr, &bytes)? {
            add(e.name);
        }
    }
    Ok(names)
}

/// Sets attribute `full_name`. An access ACL also changes the mode, and is not stored if the mode expresses all of
/// it.
pub fn set<S: XattrStore>(store: &mut S, full_name: &[u8], value: &[u8], mode: SetMode) -> Result<(), S> {
    let name = parse_name(store, full_name)?;
    let ino = store.ino();
    if value.len() > VALUE_SIZE_MAX {
        return Err(XattrError::ValueTooLong { ino, len: value.len() });
    }
    match AclKind::of(name) {
        Some(kind) => set_acl(store, kind, acl_from_value(ino, value)?.as_ref()),
        None => set_raw(store, name, value, mode),
    }
}

/// Removes attribute `full_name`. Removing a missing ACL succeeds, as in Linux.
pub fn remove<S: XattrStore>(store: &mut S, full_name: &[u8]) -> Result<(), S> {
    let name = parse_name(store, full_name)?;
    let found = remove_raw(store, name)?;
    if found || AclKind::of(name).is_some() { Ok(()) } else { Err(XattrError::NotFound { ino: store.ino() }) }
}

/// Checks that all attributes can be removed. This fails if a value is in an inode of its own, which an unsupported
/// feature would have to free. Returns the block that is freed with the inode, because no other inode shares it.
pub fn check<S: XattrSource>(store: &S) -> Result<Option<BlockNr>, S> {
    let old = load(store)?.old;
    Ok(old.and_then(|(nr, references)| (references.count <= 1).then_some(nr)))
}

/// Drops the reference to the xattr block, at the end of an inode's life. Attributes in the inode vanish with it.
pub fn release_all<S: XattrStore>(store: &mut S) -> Result<(), S> {
    let Some(nr) = store.block_nr() else { return Ok(()) };
    release_block(store, nr)?;
    store.set_block_nr(None).map_err(XattrError::Store)
}

fn parse_name<'a, S: XattrSource>(store: &S, full: &'a [u8]) -> Result<Name<'a>, S> {
    let name = Name::parse(full).ok_or(XattrError::NameNotSupported { ino: store.ino() })?;
    if name.suffix.len() > NAME_LEN_MAX {
        return Err(XattrError::NameTooLong { ino: store.ino(), len: full.len() });
    }
    Ok(name)
}

/// The stored bytes of an attribute in the inode itself. Needs no lock.
pub fn get_in_inode<S: XattrSource>(store: &S, name: Name<'_>) -> Result<Option<Vec<u8>>, S> {
    let area = store.inode_area().map_err(XattrError::Store)?;
    let entries = entries_of_area(store, &area)?;
    entries.iter().find(|e| e.name == name).map(|e| value_of(store, e)).transpose()
}

/// The longest value that an attribute may have in the inode itself; `None`: it cannot be there.
pub fn room_in_inode<S: XattrSource>(store: &S, name: Name<'_>) -> Result<Option<usize>, S> {
    let area = store.inode_area().map_err(XattrError::Store)?;
    let list = inode_area::decode(&area, store.ino())?;
    Ok(inode_area::value_room(&list, name, area.len()))
}

/// Sets the stored bytes of an attribute that is never in a block, or removes it.
pub fn set_in_inode<S: XattrStore>(store: &mut S, name: Name<'_>, value: Option<&[u8]>) -> Result<(), S> {
    let ino = store.ino();
    let area = store.inode_area().map_err(XattrError::Store)?;
    let mut list = inode_area::decode(&area, ino)?;
    if list.get(name) == value {
        return Ok(());
    }
    match value {
        Some(value) if !list.set(name, value) => {
            return Err(XattrError::NameTooLong { ino, len: name.suffix.len() });
        }
        Some(_) => {}
        None => drop(list.remove(name)),
    }
    write_inode_list(store, &list, area)
}

/// The stored bytes of an attribute.
pub(super) fn get_raw<S: XattrSource>(store: &S, name: Name<'_>) -> Result<Option<Vec<u8>>, S> {
    let in_inode = get_in_inode(store, name)?;
    if in_inode.is_some() {
        return Ok(in_inode);
    }
    let Some((nr, bytes)) = block_of(store)? else { return Ok(None) };
    let entries = noted(store, nr, &bytes)?;
    entries.iter().find(|e| e.name == name).map(|e| value_of(store, e)).transpose()
}

/// The attributes in the inode.
fn entries_of_area<'a, S: XattrSource>(store: &S, area: &'a [u8]) -> Result<Vec<EntryRef<'a>>, S> {
    match inode_area::parse_area(area, store.ino()) {
        Ok(entries) => Ok(entries),
        Err(e) => {
            store.pass(e.into())?;
            let mut sound = Vec::new();
            inode_area::scan_area(area, &rules(store), &mut |step| sound.extend(step));
            Ok(sound)
        }
    }
}

/// The inode's block, if it has one.
fn block_of<S: XattrSource>(store: &S) -> Result<Option<(BlockNr, Vec<u8>)>, S> {
    let Some(nr) = store.block_nr() else { return Ok(None) };
    match store.read_block(nr) {
        Ok(bytes) => Ok(Some((nr, bytes))),
        Err(e) => store.pass(XattrError::Store(e)).map(|()| None),
    }
}

/// The attributes in the inode's block. Enters it into the index, so that other inodes may join it. The inode is
/// locked, so the block is not freed meanwhile.
fn noted<'a, S: XattrSource>(store: &S, nr: BlockNr, bytes: &'a [u8]) -> Result<Vec<EntryRef<'a>>, S> {
    match XattrBlock::parse(bytes, nr, store.checksum_seed()) {
        Ok(block) => {
            store.shared().note(nr, block.references());
            Ok(block.entries)
        }
        Err(e) => {
            store.pass(e.into())?;
            let mut sound = Vec::new();
            scan_block(bytes, nr, &rules(store), &mut |step| sound.extend(step));
            Ok(sound)
        }
    }
}

/// The rules for attributes of which only the sound ones are wanted.
fn rules<S: XattrSource>(store: &S) -> XattrContext {
    XattrContext { seed: store.checksum_seed(), ea_inode: true, inodes: (0, u32::MAX) }
}

fn value_of<S: XattrSource>(store: &S, entry: &EntryRef<'_>) -> Result<Vec<u8>, S> {
    let Some((ino, len)) = entry.outside else { return Ok(entry.value.to_vec()) };
    if len as usize > VALUE_SIZE_MAX {
        return Err(XattrError::ValueTooLong { ino: store.ino(), len: len as usize });
    }
    store.value_inode(ino, len as usize).map_err(XattrError::Store)
}

/// Both lists of an inode, decoded, and the data for writing them back.
struct Loaded {
    area: Vec<u8>,
    inode: EntryList,
    block: EntryList,
    /// Number and header of the current block.
    old: Option<(BlockNr, References)>,
}

fn load<S: XattrSource>(store: &S) -> Result<Loaded, S> {
    let area = store.inode_area().map_err(XattrError::Store)?;
    let inode = inode_area::decode(&area, store.ino())?;
    let mut loaded = Loaded { area, inode, block: EntryList::new(), old: None };
    if let Some(nr) = store.block_nr() {
        let bytes = store.read_block(nr).map_err(XattrError::Store)?;
        let block = XattrBlock::parse(&bytes, nr, store.checksum_seed())?;
        loaded.old = Some((nr, block.references()));
        loaded.block = block.to_list()?;
    }
    Ok(loaded)
}

/// Sets an attribute's stored bytes. The steps that may run out of space come first, so that a failure changes
/// nothing.
pub(super) fn set_raw<S: XattrStore>(store: &mut S, name: Name<'_>, value: &[u8], mode: SetMode) -> Result<(), S> {
    let ino = store.ino();
    let mut l = load(store)?;
    let in_inode = l.inode.get(name).is_some();
    let in_block = l.block.get(name).is_some();
    match mode {
        SetMode::Create if in_inode || in_block => return Err(XattrError::Exists { ino }),
        SetMode::Replace if !in_inode && !in_block => return Err(XattrError::NotFound { ino }),
        _ => {}
    }
    if in_inode != in_block && l.inode.get(name).or(l.block.get(name)) == Some(value) {
        return Ok(());
    }
    let too_long = || XattrError::NameTooLong { ino, len: name.suffix.len() };
    let mut grown = l.inode.clone();
    if !grown.set(name, value) {
        return Err(too_long());
    }
    if inode_area::encode(&grown, &mut l.area).is_ok() {
        if in_block {
            l.block.remove(name);
            write_block_list(store, &l.block)?;
        }
        return store.write_inode_area(&l.area).map_err(XattrError::Store);
    }
    if !l.block.set(name, value) {
        return Err(too_long());
    }
    write_block_list(store, &l.block)?;
    if in_inode {
        l.inode.remove(name);
        write_inode_list(store, &l.inode, l.area)?;
    }
    Ok(())
}

/// Sets several attributes on an inode that has none of them: all, or none if it fails.
pub(super) fn set_all_raw<S: XattrStore>(store: &mut S, attributes: &[(Name<'_>, Vec<u8>)]) -> Result<(), S> {
    let ino = store.ino();
    let mut l = load(store)?;
    let (mut in_inode, mut in_block) = (false, false);
    for (name, value) in attributes {
        let too_long = || XattrError::NameTooLong { ino, len: name.suffix.len() };
        let mut grown = l.inode.clone();
        if !grown.set(*name, value) {
            return Err(too_long());
        }
        if inode_area::encode(&grown, &mut l.area).is_ok() {
            l.inode = grown;
            in_inode = true;
        } else if l.block.set(*name, value) {
            in_block = true;
        } else {
            return Err(too_long());
        }
    }
    // First the step that may run out of space.
    if in_block {
        write_block_list(store, &l.block)?;
    }
    if in_inode {
        write_inode_list(store, &l.inode, l.area)?;
    }
    Ok(())
}

/// Removes an attribute from wherever it is stored; returns whether it existed.
pub(super) fn remove_raw<S: XattrStore>(store: &mut S, name: Name<'_>) -> Result<bool, S> {
    let mut l = load(store)?;
    let in_block = l.block.remove(name);
    if in_block {
        write_block_list(store, &l.block)?;
    }
    let in_inode = l.inode.remove(name);
    if in_inode {
        write_inode_list(store, &l.inode, l.area)?;
    }
    Ok(in_inode || in_block)
}

fn write_inode_list<S: XattrStore>(store: &mut S, list: &EntryList, mut area: Vec<u8>) -> Result<(), S> {
    let ino = store.ino();
    inode_area::encode(list, &mut area).map_err(|source| XattrError::NoSpace { ino, source })?;
    store.write_inode_area(&area).map_err(XattrError::Store)
}

/// Makes `list` the content of the inode's block: by joining a block with that list, in place if no other inode
/// shares the block, or in a new block. For an empty list the inode has no block.
fn write_block_list<S: XattrStore>(store: &mut S, list: &EntryList) -> Result<(), S> {
    let ino = store.ino();
    if list.is_empty() {
        return release_all(store);
    }
    let (needed, available) = (list.stored_len(), store.block_size().saturating_sub(HEADER_LEN));
    if needed > available {
        return Err(XattrError::NoSpace { ino, source: NoSpace { needed, available } });
    }
    let old = store.block_nr();
    if let Some(nr) = join(store, list)? {
        return if old == Some(nr) { Ok(()) } else { move_to(store, old, nr) };
    }
    if rewrite(store, list)? {
        return Ok(());
    }
    let nr = store.allocate_block().map_err(XattrError::Store)?;
    let mut bytes = vec![0; store.block_size()];
    let no_space = |source| XattrError::NoSpace { ino, source };
    XattrBlock::encode(list, 1, &mut bytes, nr, store.checksum_seed()).map_err(no_space)?;
    store.init_block(nr, &bytes).map_err(XattrError::Store)?;
    move_to(store, old, nr)?;
    // Not before an inode refers to it.
    store.shared().note(nr, References { count: 1, hash: XattrBlock::hash_of(list) });
    Ok(())
}

/// Replaces the inode's reference to `old` by one to `new`, whose count includes it already.
fn move_to<S: XattrStore>(store: &mut S, old: Option<BlockNr>, new: BlockNr) -> Result<(), S> {
    if let Some(old) = old {
        release_block(store, old)?;
    }
    store.set_block_nr(Some(new)).map_err(XattrError::Store)
}

/// Takes a reference to a block that contains `list`; the inode's own block needs none. It does not join unreadable
/// or damaged blocks: operations on their own inodes report those.
fn join<S: XattrStore>(store: &mut S, list: &EntryList) -> Result<Option<BlockNr>, S> {
    let (seed, hash) = (store.checksum_seed(), XattrBlock::hash_of(list));
    let shared = store.shared().clone();
    let has_list = |bytes: &[u8], nr| {
        let block = XattrBlock::parse(bytes, nr, seed);
        block.is_ok_and(|block| block.hash == hash && block.holds(list))
    };
    for nr in shared.candidates(hash) {
        // Before the index is held, so that other threads can proceed during the read and the comparison.
        if !store.read_block(nr).is_ok_and(|bytes| has_list(&bytes, nr)) {
            continue;
        }
        if store.block_nr() == Some(nr) {
            return Ok(Some(nr));
        }
        let mut held = shared.hold();
        // The last reference may have been dropped meanwhile, and the block may have another owner.
        if !held.contains(nr, hash) {
            continue;
        }
        let mut joined = None;
        let change = &mut |bytes: &mut [u8]| {
            joined = has_list(bytes, nr).then(|| add_reference(bytes, nr, seed).ok().flatten()).flatten();
            joined.is_some()
        };
        let updated = store.update_block(nr, &held, change);
        match joined.filter(|_| updated.is_ok()) {
            Some(references) => {
                held.note(nr, references);
                shared.joined.inc();
                return Ok(Some(nr));
            }
            None => held.forget(nr, hash),
        }
    }
    Ok(None)
}

/// Makes `list` the content of the inode's block if no other inode refers to it; returns whether it did.
fn rewrite<S: XattrStore>(store: &mut S, list: &EntryList) -> Result<bool, S> {
    let Some(nr) = store.block_nr() else { return Ok(false) };
    let (ino, seed, shared) = (store.ino(), store.checksum_seed(), store.shared().clone());
    let mut new = vec![0; store.block_size()];
    XattrBlock::encode(list, 1, &mut new, nr, seed).map_err(|source| XattrError::NoSpace { ino, source })?;
    // Other inodes can join until the index is held.
    let mut held = shared.hold();
    let mut before: std::result::Result<References, OnDiskError> = Ok(References { count: 0, hash: 0 });
    store
        .update_block(nr, &held, &mut |bytes| {
            before = References::read(bytes, nr, seed);
            // A different length would be the implementer's bug, and the checksum would be wrong.
            let alone = before.as_ref().is_ok_and(|b| b.count == 1) && bytes.len() == new.len();
            if alone {
                bytes.copy_from_slice(&new);
            }
            alone
        })
        .map_err(XattrError::Store)?;
    let before = before?;
    if before.count == 1 {
        held.forget(nr, before.hash);
        held.note(nr, References { count: 1, hash: XattrBlock::hash_of(list) });
    }
    Ok(before.count == 1)
}

/// Drops one reference. Dropping the last one frees the block, which no inode can join any more.
fn release_block<S: XattrStore>(store: &mut S, nr: BlockNr) -> Result<(), S> {
    let (seed, shared) = (store.checksum_seed(), store.shared().clone());
    let mut left: std::result::Result<References, OnDiskError> = Ok(References { count: 0, hash: 0 });
    {
        let mut held = shared.hold();
        store
            .update_block(nr, &held, &mut |bytes| {
                left = drop_reference(bytes, nr, seed);
                matches!(left, Ok(left) if left.count > 0)
            })
            .map_err(XattrError::Store)?;
        match left {
            Ok(left) if left.count > 0 => held.note(nr, left),
            Ok(left) => held.forget(nr, left.hash),
            Err(_) => {}
        }
    }
    if left?.count == 0 {
        store.free_block(nr).map_err(XattrError::Store)?;
    }
    Ok(())
}
