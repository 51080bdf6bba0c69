//! Get, list, set, remove: the inode first, then the block.

use extant_ondisk::xattr::{
    EntryList, EntryRef, ExternalValue, HEADER_LEN, NAME_LEN_MAX, Name, NoSpace, References, VALUE_SIZE_MAX,
    XattrBlock, XattrContext, add_reference, drop_reference, inode_area, large_value, outside_hash, reserved_for_names,
    scan_block,
};
use extant_ondisk::{BlockNr, Error as OnDiskError, InodeNr, Structure};

use super::acl::{AclKind, acl_from_value, get_acl, set_acl, stored_acl};
use super::{Reference, SetMode, XattrError, XattrSource, XattrStore};

type Result<T, S> = std::result::Result<T, XattrError<<S as XattrSource>::Error>>;

/// The value of the attribute `full_name` (`user.x`), in the form that getxattr returns.
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

/// The full names of all attributes that system calls may see. The caller filters out `trusted.` ones.
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

/// Sets the attribute `full_name`. An access ACL also changes the mode, and is not stored if the mode alone expresses
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

/// Removes the attribute `full_name`. Removing a missing ACL succeeds, as in Linux.
pub fn remove<S: XattrStore>(store: &mut S, full_name: &[u8]) -> Result<(), S> {
    let name = parse_name(store, full_name)?;
    let found = remove_raw(store, name)?;
    if found || AclKind::of(name).is_some() { Ok(()) } else { Err(XattrError::NotFound { ino: store.ino() }) }
}

/// Checks that all attributes can be read. Returns the block that will be freed with the inode, if no other inode
/// shares it.
pub fn check<S: XattrSource>(store: &S) -> Result<Option<BlockNr>, S> {
    let old = load(store)?.old;
    Ok(old.and_then(|(nr, references)| (references.count <= 1).then_some(nr)))
}

/// The values in inodes of their own that the inode's attributes refer to, including those in its block.
pub fn outside<S: XattrSource>(store: &S) -> Result<Vec<ExternalValue>, S> {
    Ok(load(store)?.outside())
}

/// Whether setting this attribute stores its value in an inode of its own (Linux: `ext4_xattr_set_handle`). The caller
/// must then create one before it begins the change.
pub fn goes_outside<S: XattrSource>(store: &S, name: Name<'_>, value: &[u8]) -> Result<bool, S> {
    if !store.may_go_outside() || value.is_empty() {
        return Ok(false);
    }
    let l = load(store)?;
    if with_value(store, &l, name, value).is_some() {
        return Ok(false);
    }
    let there = ExternalValue { inode: InodeNr(0), len: value.len() as u32, hash: 0 };
    Ok(placed(store, &l, name, |list| list.set_outside(name, there), 0).is_some())
}

/// The name and the bytes that [`set`] stores; `None` if it stores nothing.
pub fn stored_value<'n, S: XattrSource>(
    store: &S,
    full_name: &'n [u8],
    value: &[u8],
) -> Result<Option<(Name<'n>, Vec<u8>)>, S> {
    let name = parse_name(store, full_name)?;
    let ino = store.ino();
    if value.len() > VALUE_SIZE_MAX {
        return Err(XattrError::ValueTooLong { ino, len: value.len() });
    }
    let bytes = match AclKind::of(name) {
        Some(kind) => acl_from_value(ino, value)?.and_then(|acl| stored_acl(kind, &acl, store.mode()).1),
        None => Some(value.to_vec()),
    };
    Ok(bytes.map(|bytes| (name, bytes)))
}

/// Drops the reference to the xattr block at the end of an inode's life. Attributes in the inode disappear with it.
pub fn release_all<S: XattrStore>(store: &mut S) -> Result<(), S> {
    let Some(nr) = store.block_nr() else { return Ok(()) };
    release_block(store, nr)?;
    store.set_block_nr(None).map_err(XattrError::Store)
}

/// At the end of an inode's life, drops the references to at most `max` values in inodes of their own. The attributes
/// remain, but empty. Returns whether there may be more. In a block that other inodes share, the references belong to
/// the block and remain.
pub fn release_values<S: XattrStore>(store: &mut S, max: usize) -> Result<bool, S> {
    let l = load(store)?;
    let emptied = |list: &EntryList, max: usize| {
        let mut emptied = list.clone();
        let names: Vec<_> = list.iter().filter(|e| e.outside.is_some()).take(max).collect();
        let all_set = names.iter().all(|e| emptied.set(e.name(), b""));
        (all_set && !names.is_empty()).then_some((emptied, names.len()))
    };
    if let Some((inode, n)) = emptied(&l.inode, max) {
        replace(store, &l, inode, l.block.clone())?;
        return Ok(n == max || l.block.outside().next().is_some());
    }
    let alone = l.old.is_some_and(|(_, references)| references.count == 1);
    let Some((block, n)) = emptied(&l.block, max).filter(|_| alone) else { return Ok(false) };
    let is_done = rewrite(store, &l.block, &block)?;
    if is_done {
        let (before, after) = (l.outside(), l.inode.outside().chain(block.outside()).collect::<Vec<_>>());
        store.charge(&before, &after).map_err(XattrError::Store)?;
    }
    Ok(is_done && n == max)
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

/// The maximum length of the value if this attribute is stored in the inode itself; `None` if it cannot be.
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
    write_own_list(store, &list, area)
}

/// The stored bytes of an attribute that no system call shows.
pub fn get_stored<S: XattrSource>(store: &S, name: Name<'_>) -> Result<Option<Vec<u8>>, S> {
    get_raw(store, name)
}

/// Sets the stored bytes of an attribute that no system call sets.
pub fn set_stored<S: XattrStore>(store: &mut S, name: Name<'_>, value: &[u8]) -> Result<(), S> {
    set_raw(store, name, value, SetMode::Any)
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

/// The inode's block, if there is one.
fn block_of<S: XattrSource>(store: &S) -> Result<Option<(BlockNr, Vec<u8>)>, S> {
    let Some(nr) = store.block_nr() else { return Ok(None) };
    match store.read_block(nr) {
        Ok(bytes) => Ok(Some((nr, bytes))),
        Err(e) => store.pass(XattrError::Store(e)).map(|()| None),
    }
}

/// The attributes in the inode's block. Also adds the block to the index, so that other inodes may share it. The inode
/// is locked, so the block is not freed meanwhile.
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

/// The rules for reading only the intact attributes.
fn rules<S: XattrSource>(store: &S) -> XattrContext {
    XattrContext { seed: store.checksum_seed(), ea_inode: true, inodes: (0, u32::MAX) }
}

fn value_of<S: XattrSource>(store: &S, entry: &EntryRef<'_>) -> Result<Vec<u8>, S> {
    let Some(there) = entry.outside() else { return Ok(entry.value.to_vec()) };
    if there.len as usize > VALUE_SIZE_MAX {
        return Err(XattrError::ValueTooLong { ino: store.ino(), len: there.len as usize });
    }
    store.value(entry.name, there).map_err(XattrError::Store)
}

/// Both lists of an inode, decoded, with the data for writing them back.
struct Loaded {
    area: Vec<u8>,
    inode: EntryList,
    block: EntryList,
    /// The number and header of the current block.
    old: Option<(BlockNr, References)>,
}

impl Loaded {
    fn outside(&self) -> Vec<ExternalValue> {
        self.inode.outside().chain(self.block.outside()).collect()
    }
}

fn load<S: XattrSource>(store: &S) -> Result<Loaded, S> {
    let area = store.inode_area().map_err(XattrError::Store)?;
    let inode = inode_area::decode(&area, store.ino())?;
    let mut loaded = Loaded { area, inode, block: EntryList::new(), old: None };
    if let Some(nr) = store.block_nr() {
        let bytes = store.read_block(nr).map_err(XattrError::Store)?;
        let block = XattrBlock::parse(&bytes, nr, store.checksum_seed())?;
        loaded.old = Some((nr, block.references()));
        loaded.block = block.to_list();
    }
    if let Some(there) = loaded.outside().first().filter(|_| !store.may_go_outside()) {
        let detail = format!("attributes with a value in {}, without the feature 'ea_inode'", there.inode);
        return Err(OnDiskError::corrupt(Structure::Inode, store.ino().0, detail).into());
    }
    Ok(loaded)
}

/// The number of bytes of a block that values leave for names, if values may have inodes of their own.
fn reserve<S: XattrSource>(store: &S) -> usize {
    if store.may_go_outside() { reserved_for_names(store.block_size()) } else { 0 }
}

/// The lists of inode and block after an attribute was added to the first of them that has room for it; `put` adds it
/// to a list. `reserve` is the number of bytes of the block that values leave for names.
fn placed<S: XattrSource>(
    store: &S,
    l: &Loaded,
    name: Name<'_>,
    put: impl Fn(&mut EntryList) -> bool,
    reserve: usize,
) -> Option<(EntryList, EntryList)> {
    let (mut inode, mut block) = (l.inode.clone(), l.block.clone());
    if put(&mut inode) && inode_area::encode(&inode, &mut l.area.clone()).is_ok() {
        block.remove(name);
        return Some((inode, block));
    }
    let room = store.block_size();
    let fits = put(&mut block) && block.stored_len() + HEADER_LEN <= room && block.values_len() + reserve <= room;
    inode = l.inode.clone();
    inode.remove(name);
    fits.then_some((inode, block))
}

/// As [`placed`], for a value that is stored beside its name.
fn with_value<S: XattrSource>(store: &S, l: &Loaded, name: Name<'_>, value: &[u8]) -> Option<(EntryList, EntryList)> {
    let too_large = value.len().next_multiple_of(4) > large_value(store.block_size());
    let refused = store.may_go_outside() && too_large;
    (!refused).then(|| placed(store, l, name, |list| list.set(name, value), reserve(store))).flatten()
}

/// The lists after an attribute was set. If necessary, its value is in the inode that the caller has prepared.
fn with_attribute<S: XattrStore>(
    store: &S,
    l: &Loaded,
    name: Name<'_>,
    value: &[u8],
) -> Result<(EntryList, EntryList), S> {
    let ino = store.ino();
    if name.suffix.len() > NAME_LEN_MAX {
        return Err(XattrError::NameTooLong { ino, len: name.suffix.len() });
    }
    if let Some(lists) = with_value(store, l, name, value) {
        return Ok(lists);
    }
    if let Some((inode, hash)) = store.prepared(value) {
        let there = ExternalValue { inode, len: value.len() as u32, hash: outside_hash(name.suffix, hash) };
        if let Some(lists) = placed(store, l, name, |list| list.set_outside(name, there), 0) {
            return Ok(lists);
        }
    }
    let mut block = l.block.clone();
    let _ = block.set(name, value);
    let available = store.block_size().saturating_sub(HEADER_LEN + reserve(store));
    Err(XattrError::NoSpace { ino, source: NoSpace { needed: block.stored_len(), available } })
}

/// Sets an attribute's stored bytes. The steps that may run out of space come first, so that a failure changes
/// nothing.
pub(super) fn set_raw<S: XattrStore>(store: &mut S, name: Name<'_>, value: &[u8], mode: SetMode) -> Result<(), S> {
    let ino = store.ino();
    let l = load(store)?;
    let in_inode = l.inode.find(name).is_some();
    let in_block = l.block.find(name).is_some();
    match mode {
        SetMode::Create if in_inode || in_block => return Err(XattrError::Exists { ino }),
        SetMode::Replace if !in_inode && !in_block => return Err(XattrError::NotFound { ino }),
        _ => {}
    }
    if in_inode != in_block && l.inode.get(name).or(l.block.get(name)) == Some(value) {
        return Ok(());
    }
    let (inode, block) = with_attribute(store, &l, name, value)?;
    replace(store, &l, inode, block)
}

/// Sets several attributes on an inode that has none of them: either all of them, or none if it fails.
pub(super) fn set_all_raw<S: XattrStore>(store: &mut S, attributes: &[(Name<'_>, Vec<u8>)]) -> Result<(), S> {
    let l = load(store)?;
    let mut grown = Loaded { area: l.area.clone(), inode: l.inode.clone(), block: l.block.clone(), old: l.old };
    for (name, value) in attributes {
        (grown.inode, grown.block) = with_attribute(store, &grown, *name, value)?;
    }
    replace(store, &l, grown.inode, grown.block)
}

/// Removes an attribute from wherever it is stored; returns whether it existed.
pub(super) fn remove_raw<S: XattrStore>(store: &mut S, name: Name<'_>) -> Result<bool, S> {
    let l = load(store)?;
    let (mut inode, mut block) = (l.inode.clone(), l.block.clone());
    let in_block = block.remove(name);
    let in_inode = inode.remove(name);
    replace(store, &l, inode, block)?;
    Ok(in_inode || in_block)
}

/// Replaces the inode's lists, which were `l`, by `inode` and `block`. The block comes first, because it may run out of
/// space.
fn replace<S: XattrStore>(store: &mut S, l: &Loaded, inode: EntryList, block: EntryList) -> Result<(), S> {
    let after: Vec<_> = inode.outside().chain(block.outside()).collect();
    if block != l.block {
        write_block_list(store, &l.block, &block)?;
    }
    if inode != l.inode {
        write_inode_list(store, &l.inode, &inode, l.area.clone())?;
    }
    let before = l.outside();
    if before == after { Ok(()) } else { store.charge(&before, &after).map_err(XattrError::Store) }
}

/// The values of `after` that `before` lacks, counted with multiplicity.
fn added(before: &EntryList, after: &EntryList) -> Vec<InodeNr> {
    let mut known: Vec<_> = before.outside().map(|there| there.inode).collect();
    let mut is_new = |ino: &InodeNr| match known.iter().position(|one| one == ino) {
        Some(at) => {
            known.swap_remove(at);
            false
        }
        None => true,
    };
    after.outside().map(|there| there.inode).filter(|ino| is_new(ino)).collect()
}

fn refer<S: XattrStore>(store: &mut S, values: &[InodeNr], how: Reference) -> Result<(), S> {
    values.iter().try_for_each(|ino| store.refer(*ino, how)).map_err(XattrError::Store)
}

/// Writes the list in the inode. New references are added before old ones are dropped, so that a value which remains is
/// never without one.
fn write_inode_list<S: XattrStore>(
    store: &mut S,
    before: &EntryList,
    list: &EntryList,
    mut area: Vec<u8>,
) -> Result<(), S> {
    let ino = store.ino();
    inode_area::encode(list, &mut area).map_err(|source| XattrError::NoSpace { ino, source })?;
    refer(store, &added(before, list), Reference::Add)?;
    store.write_inode_area(&area).map_err(XattrError::Store)?;
    refer(store, &added(list, before), Reference::Drop)
}

/// Writes the attributes in the inode, if none has its value elsewhere, or all keep theirs.
fn write_own_list<S: XattrStore>(store: &mut S, list: &EntryList, mut area: Vec<u8>) -> Result<(), S> {
    let ino = store.ino();
    inode_area::encode(list, &mut area).map_err(|source| XattrError::NoSpace { ino, source })?;
    store.write_inode_area(&area).map_err(XattrError::Store)
}

/// Makes `list` the content of the inode's block, which was `before`. The inode shares a block with that list, or
/// changes its block in place if no other inode shares it, or gets a new block. With an empty list, the inode has no
/// block. A block holds one reference to each value in it, regardless of the number of inodes that share the block.
fn write_block_list<S: XattrStore>(store: &mut S, before: &EntryList, list: &EntryList) -> Result<(), S> {
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
    if rewrite(store, before, list)? {
        return Ok(());
    }
    let nr = store.allocate_block().map_err(XattrError::Store)?;
    refer(store, &added(&EntryList::new(), list), Reference::Add)?;
    let mut bytes = vec![0; store.block_size()];
    let no_space = |source| XattrError::NoSpace { ino, source };
    XattrBlock::encode(list, 1, &mut bytes, nr, store.checksum_seed()).map_err(no_space)?;
    store.init_block(nr, &bytes).map_err(XattrError::Store)?;
    move_to(store, old, nr)?;
    // Other inodes may share the block only after an inode refers to it.
    store.shared().note(nr, References { count: 1, hash: XattrBlock::hash_of(list) });
    Ok(())
}

/// Replaces the inode's reference to `old` by one to `new`, which `new` already counts.
fn move_to<S: XattrStore>(store: &mut S, old: Option<BlockNr>, new: BlockNr) -> Result<(), S> {
    if let Some(old) = old {
        release_block(store, old)?;
    }
    store.set_block_nr(Some(new)).map_err(XattrError::Store)
}

/// Takes a reference to a block that contains `list`; the inode's own block needs none. Skips unreadable or damaged
/// blocks; operations on the inodes that use them report the damage.
fn join<S: XattrStore>(store: &mut S, list: &EntryList) -> Result<Option<BlockNr>, S> {
    let (seed, hash) = (store.checksum_seed(), XattrBlock::hash_of(list));
    let shared = store.shared().clone();
    let has_list = |bytes: &[u8], nr| {
        let block = XattrBlock::parse(bytes, nr, seed);
        block.is_ok_and(|block| block.hash == hash && block.holds(list))
    };
    for nr in shared.candidates(hash) {
        // Do this before holding the index, so that other threads can proceed during the read and the comparison.
        if !store.read_block(nr).is_ok_and(|bytes| has_list(&bytes, nr)) {
            continue;
        }
        if store.block_nr() == Some(nr) {
            return Ok(Some(nr));
        }
        let mut held = shared.hold();
        // The last reference may have been dropped meanwhile, and the block may belong to another owner.
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

/// If no other inode refers to the inode's block, whose list was `before`, makes `list` its content. Returns whether it
/// did.
fn rewrite<S: XattrStore>(store: &mut S, before: &EntryList, list: &EntryList) -> Result<bool, S> {
    let Some(nr) = store.block_nr() else { return Ok(false) };
    let (ino, seed, shared) = (store.ino(), store.checksum_seed(), store.shared().clone());
    let mut new = vec![0; store.block_size()];
    XattrBlock::encode(list, 1, &mut new, nr, seed).map_err(|source| XattrError::NoSpace { ino, source })?;
    let added_now = added(before, list);
    refer(store, &added_now, Reference::Add)?;
    let was_alone = {
        // Other inodes can begin to share the block until the index is held.
        let mut held = shared.hold();
        let mut was: std::result::Result<References, OnDiskError> = Ok(References { count: 0, hash: 0 });
        store
            .update_block(nr, &held, &mut |bytes| {
                was = References::read(bytes, nr, seed);
                // A different length would be a bug of the implementation, and the checksum would be wrong.
                let alone = was.as_ref().is_ok_and(|b| b.count == 1) && bytes.len() == new.len();
                if alone {
                    bytes.copy_from_slice(&new);
                }
                alone
            })
            .map_err(XattrError::Store)?;
        let was = was?;
        if was.count == 1 {
            held.forget(nr, was.hash);
            held.note(nr, References { count: 1, hash: XattrBlock::hash_of(list) });
        }
        was.count == 1
    };
    // A block that does not change keeps its references.
    let dropped = if was_alone { added(list, before) } else { added_now };
    refer(store, &dropped, Reference::Drop)?;
    Ok(was_alone)
}

/// Drops one reference. Dropping the last one frees the block, which no inode can share any more, and drops its
/// references to values.
fn release_block<S: XattrStore>(store: &mut S, nr: BlockNr) -> Result<(), S> {
    let (seed, shared) = (store.checksum_seed(), store.shared().clone());
    let mut left: std::result::Result<References, OnDiskError> = Ok(References { count: 0, hash: 0 });
    let mut values = Vec::new();
    {
        let mut held = shared.hold();
        store
            .update_block(nr, &held, &mut |bytes| {
                left = drop_reference(bytes, nr, seed);
                if matches!(left, Ok(left) if left.count == 0) {
                    // Attributes that cannot be read refer to no values.
                    let list = XattrBlock::parse(bytes, nr, seed).map(|block| block.to_list()).unwrap_or_default();
                    values = added(&EntryList::new(), &list);
                }
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
        refer(store, &values, Reference::Drop)?;
    }
    Ok(())
}
