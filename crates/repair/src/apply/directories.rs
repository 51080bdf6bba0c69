//! Directories: rewrites blocks and whole directories, and changes single entries.
//!
//! Main functions: [`block`] (one block, with the entries that can be read), [`rebuild`] (all names, with an index if
//! the directory needs one), [`insert`] (one more name).
//!
//! # Locking
//! None.

use std::collections::BTreeSet;

use extant_check::{InodeState, Kind};
use extant_ondisk::casefold::fold;
use extant_ondisk::dirent::{
    DirBlockFormat, Dirent, HEADER_LEN, InlineDir, Insert, NAME_MAX, REC_LEN_MIN, StoredEntry, Target, WholeFormat,
    name_is_legal, rec_len_to_disk, seal_leaf,
};
use extant_ondisk::htree::{DxFormat, HashVersion, Hasher};
use extant_ondisk::inode::{FileType, InodeFlags, inline};
use extant_ondisk::{BlockNr, InodeNr};

use super::{content, search};
use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::dir::{Entry, I_BLOCK_AT, is_index_root, scan};
use crate::view::inode::Inode;

/// A name to write.
type NamedTarget = (Vec<u8>, Target);

/// Rewrites one block of a directory.
pub fn block(image: &mut Image, ino: InodeNr, lblk: u32) -> StepResult {
    let inode = image.inode(ino)?;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline(image, &inode, &[]);
    }
    let lost = Refusal::Lost("the block has no place in the directory");
    let place = image.map(&inode).place(lblk.into()).ok_or(lost)?;
    image.touch(ino);
    let mut bytes = image.block(place)?;
    let indexed = inode.has(InodeFlags::INDEX) && image.geo.dir_index;
    if indexed && lblk == 0 && is_index_root(&bytes) {
        dots(image, &inode, &mut bytes);
        seal(image, &inode, &mut bytes)?;
        return image.put_block(place, &bytes);
    }
    if indexed && image.is_index_node(&bytes) {
        // An entry's file type would hide the checksum of a node.
        bytes[7] = 0;
        seal(image, &inode, &mut bytes)?;
        return image.put_block(place, &bytes);
    }
    let mut taken = others(image, &inode, lblk);
    let mut own = Vec::new();
    let end = image.entries_end(&inode, lblk.into(), &bytes);
    scan(&bytes, 0, end, lblk, image.geo.inodes_count, |entry| own.push(entry));
    let names = usable(image, &inode, own, &mut taken);
    let format = image.dir_format(&inode);
    let parent = parent_of(image, &inode);
    let head = [(b".".to_vec(), ino.0), (b"..".to_vec(), parent.0)]
        .map(|(name, ino)| (name, Target { ino, file_type: FileType::Directory }));
    let head = head.into_iter().filter(|_| lblk == 0);
    let all: Vec<NamedTarget> = head.chain(names).collect();
    let entries = all.iter().map(|(name, target)| Dirent {
        offset: 0,
        rec_len: 0,
        ino: target.ino,
        file_type: Some(target.file_type),
        name,
    });
    let mut fresh = vec![0; bytes.len()];
    if format.pack(&mut fresh, entries).is_err() {
        return rebuild(image, ino, &[]);
    }
    seal(image, &inode, &mut fresh)?;
    image.put_block(place, &fresh)
}

/// The names in the other blocks of a directory.
fn others(image: &Image, inode: &Inode, lblk: u32) -> TakenNames {
    let mut taken = TakenNames::of(inode);
    image.entries(inode).into_iter().filter(|entry| entry.lblk != lblk).for_each(|entry| taken.insert(&entry.name));
    taken
}

/// The names of a directory, in the form in which the directory compares them.
pub struct TakenNames {
    is_folded: bool,
    names: BTreeSet<Vec<u8>>,
}

impl TakenNames {
    /// An empty set for the names of this directory.
    pub fn of(inode: &Inode) -> TakenNames {
        let is_folded = inode.has(InodeFlags::CASEFOLD) && !inode.has(InodeFlags::ENCRYPT);
        TakenNames { is_folded, names: BTreeSet::new() }
    }

    fn form(&self, name: &[u8]) -> Vec<u8> {
        if self.is_folded { fold(name) } else { name.to_vec() }
    }

    /// Adds a name.
    pub fn insert(&mut self, name: &[u8]) {
        self.names.insert(self.form(name));
    }

    fn has(&self, name: &[u8]) -> bool {
        self.names.contains(&self.form(name))
    }
}

/// Writes `.` and `..` at the start of a block. Its other bytes do not change.
fn dots(image: &Image, inode: &Inode, bytes: &mut [u8]) {
    let parent = parent_of(image, inode);
    let kind = if image.geo.filetype { FileType::Directory.dirent_code() } else { 0 };
    let rest = rec_len_to_disk(bytes.len() - REC_LEN_MIN, bytes.len());
    for (at, ino, len, name) in
        [(0, inode.ino.0, REC_LEN_MIN as u16, &b".\0\0\0"[..]), (REC_LEN_MIN, parent.0, rest, &b"..\0\0"[..])]
    {
        bytes[at..at + 4].copy_from_slice(&ino.to_le_bytes());
        bytes[at + 4..at + 6].copy_from_slice(&len.to_le_bytes());
        bytes[at + 6] = if at == 0 { 1 } else { 2 };
        bytes[at + 7] = kind;
        bytes[at + 8..at + 12].copy_from_slice(name);
    }
}

/// The parent of a directory: the one that contains its name, otherwise the one of its `..`, otherwise the root.
pub fn parent_of(image: &Image, inode: &Inode) -> InodeNr {
    if inode.ino == InodeNr::ROOT {
        return InodeNr::ROOT;
    }
    let is_dir = |ino: &InodeNr| ino.0 != 0 && image.facts.inode(*ino).kind() == Kind::Directory;
    let known = image.facts.directory(inode.ino);
    let named = known.map(|place| place.parent).filter(is_dir);
    let said = || known.map(|place| place.dotdot).filter(is_dir);
    let stored = || {
        let entry = image.entries(inode).into_iter().find(|entry| entry.name == b"..");
        entry.map(|entry| InodeNr(entry.ino)).filter(is_dir)
    };
    named.or_else(said).or_else(stored).unwrap_or(InodeNr::ROOT)
}

/// The entries to rewrite: legal names, each once. A duplicate name gets a number. An entry that was found after damage
/// is used if its inode lacks a name.
fn usable(image: &Image, inode: &Inode, entries: Vec<Entry>, taken: &mut TakenNames) -> Vec<NamedTarget> {
    let encrypted = inode.has(InodeFlags::ENCRYPT);
    let strict = image.sb.strict_encoding() && taken.is_folded;
    let mut names = Vec::new();
    for entry in entries.into_iter().filter(|entry| !entry.is_dot() && entry.ino != inode.ino.0) {
        let target = InodeNr(entry.ino);
        let state = image.facts.inode(target);
        let lacks_name = state.has(InodeState::USED) && state.names() < u32::from(state.links());
        if entry.is_found && !lacks_name {
            continue;
        }
        let kind = image.inode(target).ok().filter(|one| one.links() > 0).and_then(|one| one.kind());
        let Some(file_type) = kind.or(FileType::from_dirent_code(entry.kind)).or(Some(FileType::Regular)) else {
            continue;
        };
        let legal = legal(entry.name, encrypted).map(|name| if strict { text(name) } else { name });
        let Some(name) = legal.map(|name| free_name(name, taken)) else { continue };
        taken.insert(&name);
        names.push((name, Target { ino: target.0, file_type }));
    }
    names
}

/// A name with dots in place of bytes that are not allowed in names; `None` if nothing else is left.
fn legal(mut name: Vec<u8>, encrypted: bool) -> Option<Vec<u8>> {
    if encrypted {
        return (!name.is_empty()).then_some(name);
    }
    name.iter_mut().filter(|byte| [b'/', 0].contains(*byte)).for_each(|byte| *byte = b'.');
    (name_is_legal(&name) && name.iter().any(|byte| *byte != b'.')).then_some(name)
}

/// A name with dots in place of the bytes that are not text.
fn text(name: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in name.utf8_chunks() {
        out.extend(chunk.valid().as_bytes());
        out.resize(out.len() + chunk.invalid().len(), b'.');
    }
    out
}

/// The name itself, or the name with the first number that makes it unique.
pub fn free_name(name: Vec<u8>, taken: &TakenNames) -> Vec<u8> {
    if !taken.has(&name) {
        return name;
    }
    let numbered = (1..).map(|number: u32| {
        let end = format!("~{number}");
        let stem = &name[..name.len().min(NAME_MAX - end.len())];
        [stem, end.as_bytes()].concat()
    });
    numbered.into_iter().find(|name| !taken.has(name)).unwrap_or(name)
}

/// Updates the checksum of a directory's block.
pub fn seal(image: &Image, inode: &Inode, bytes: &mut [u8]) -> StepResult {
    let Some(seed) = image.seed(inode.ino, inode.generation()) else { return Ok(()) };
    let indexed = inode.has(InodeFlags::INDEX) && image.geo.dir_index;
    if indexed && (is_index_root(bytes) || image.is_index_node(bytes)) {
        return DxFormat { has_csum: true }.seal(bytes, seed).map_err(|_| Refusal::Lost("its index cannot be used"));
    }
    seal_leaf(bytes, seed);
    Ok(())
}

/// Updates the checksums of a directory's blocks.
pub fn reseal(image: &Image, inode: &Inode) -> StepResult {
    for (_, block) in image.map(inode).blocks() {
        let mut bytes = image.block(block)?;
        seal(image, inode, &mut bytes)?;
        image.put_block(block, &bytes)?;
    }
    Ok(())
}

/// The hash function for names of a directory; `None` if it gets no index.
fn hasher(image: &Image, inode: &Inode) -> Option<Hasher> {
    let unknown = inode.has(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT);
    if !image.geo.dir_index || unknown {
        return None;
    }
    let version = HashVersion::from_disk(image.sb.default_hash_version(), image.sb.hash_unsigned())?;
    Some(Hasher::new(version, image.sb.hash_seed()))
}

/// Rewrites a directory with all names that can be read, and `more`.
pub fn rebuild(image: &mut Image, ino: InodeNr, more: &[(Vec<u8>, InodeNr)]) -> StepResult {
    let inode = image.inode(ino)?;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline(image, &inode, more);
    }
    image.touch(ino);
    let mapped = image.map(&inode);
    let mut blocks: Vec<BlockNr> = mapped.blocks().map(|(_, block)| block).collect();
    if blocks.is_empty() {
        blocks = search::directory_blocks(image, ino, inode.generation());
    }
    let mut entries = Vec::new();
    for (lblk, block) in blocks.iter().enumerate() {
        if let Ok(bytes) = image.block(*block) {
            let node = lblk > 0 && inode.has(InodeFlags::INDEX) && image.is_index_node(&bytes);
            let end = if node { 0 } else { image.entries_end(&inode, lblk as u64, &bytes) };
            scan(&bytes, 0, end, lblk as u32, image.geo.inodes_count, |entry| entries.push(entry));
        }
    }
    let parent = parent_of(image, &inode);
    let mut taken = TakenNames::of(&inode);
    let mut names = usable(image, &inode, entries, &mut taken);
    add(image, &mut names, &mut taken, more)?;
    let reserve = image.facts.lost_found() == Some(ino);
    let blocks_min = if reserve { blocks.len() as u32 } else { 0 };
    write(image, &inode, parent, &names, blocks, blocks_min)
}

/// Rewrites a directory of `old` in the form that `new` requires.
pub fn rewrite(old: &Image, new: &mut Image, ino: InodeNr) -> StepResult {
    let inode = old.inode(ino)?;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline(new, &inode, &[]);
    }
    let blocks: Vec<BlockNr> = old.map(&inode).blocks().map(|(_, block)| block).collect();
    let parent = parent_of(old, &inode);
    let names = usable(new, &inode, old.entries(&inode), &mut TakenNames::of(&inode));
    let blocks_min = if old.facts.lost_found() == Some(ino) { blocks.len() as u32 } else { 0 };
    write(new, &inode, parent, &names, blocks, blocks_min)
}

/// Rewrites a directory of `old` with other names, which must have the same lengths and be distinct.
pub fn rename_all(old: &Image, new: &mut Image, ino: InodeNr, mut name: impl FnMut(&[u8]) -> Vec<u8>) -> StepResult {
    let inode = old.inode(ino)?;
    let blocks: Vec<BlockNr> = old.map(&inode).blocks().map(|(_, block)| block).collect();
    let parent = parent_of(old, &inode);
    let mut names = usable(new, &inode, old.entries(&inode), &mut TakenNames::of(&inode));
    names.iter_mut().for_each(|(old, _)| *old = name(old));
    let blocks_min = blocks.len() as u32;
    write(new, &inode, parent, &names, blocks, blocks_min)
}

/// Adds names.
fn add(image: &Image, names: &mut Vec<NamedTarget>, taken: &mut TakenNames, more: &[(Vec<u8>, InodeNr)]) -> StepResult {
    for (name, target) in more {
        let file_type = image.inode(*target)?.kind().unwrap_or(FileType::Regular);
        let name = free_name(name.clone(), taken);
        taken.insert(&name);
        names.push((name, Target { ino: target.0, file_type }));
    }
    Ok(())
}

/// Writes a whole directory into its blocks, and into more if it needs them.
fn write(
    image: &mut Image,
    inode: &Inode,
    parent: InodeNr,
    names: &[NamedTarget],
    blocks: Vec<BlockNr>,
    blocks_min: u32,
) -> StepResult {
    let (ino, size) = (inode.ino, image.geo.block_size as usize);
    let format = WholeFormat {
        blocks: DirBlockFormat { encrypted: true, ..image.dir_format(inode) },
        block_size: size,
        hasher: hasher(image, inode),
        levels_most: if image.geo.large_dir { 2 } else { 1 },
    };
    let lost = |_| Refusal::Lost("its names do not fit into a directory");
    let whole = format.lay_out(names.len() as u32, |at| &names[at as usize].0, blocks_min).map_err(lost)?;
    let blocks = content::blocks(image, blocks, whole.blocks() as usize)?;
    let index = InodeFlags::INDEX.bits();
    image.change_inode(ino, |raw| {
        let flags = raw.i_flags.get() & !index;
        raw.i_flags.set(if whole.is_indexed() { flags | index } else { flags });
    })?;
    let seed = image.seed(ino, inode.generation());
    for (number, block) in blocks.iter().enumerate() {
        let mut bytes = vec![0; size];
        let entry = |at: u32| {
            let (name, target) = &names[at as usize];
            (&name[..], *target)
        };
        format.fill(&whole, number as u32, &mut bytes, [ino.0, parent.0], entry, seed).map_err(lost)?;
        image.put_block(*block, &bytes)?;
    }
    content::set_blocks(image, ino, &blocks, (blocks.len() * size) as u64)
}

/// Makes an inode a directory that contains only the entries that can be found.
pub fn make(image: &mut Image, ino: InodeNr, parent: InodeNr, names: &[(Vec<u8>, InodeNr)]) -> StepResult {
    let inode = image.inode(ino)?;
    let named: Vec<NamedTarget> = names
        .iter()
        .map(|(name, target)| {
            let file_type = image.inode(*target).ok().and_then(|one| one.kind()).unwrap_or(FileType::Regular);
            (name.clone(), Target { ino: target.0, file_type })
        })
        .collect();
    write(image, &inode, parent, &named, Vec::new(), 0)
}

/// Adds a name to a directory. `from` is the logical block to begin with. Returns the one that contains the name now.
pub fn insert(image: &mut Image, dir: InodeNr, name: &[u8], target: InodeNr, from: u32) -> StepResult<u32> {
    let inode = image.inode(dir)?;
    let kind = image.inode(target)?.kind();
    image.touch(dir);
    let indexed = inode.has(InodeFlags::INDEX) && image.geo.dir_index;
    if !indexed && !inode.has(InodeFlags::INLINE_DATA) {
        let format = image.dir_format(&inode);
        let mapped = image.map(&inode);
        for (lblk, block) in mapped.blocks().filter(|(lblk, _)| *lblk >= u64::from(from)) {
            let mut bytes = image.block(block)?;
            if let Ok(Insert::Done { .. }) = format.insert(&mut bytes, name, target.0, kind) {
                seal(image, &inode, &mut bytes)?;
                image.put_block(block, &bytes)?;
                return Ok(lblk as u32);
            }
        }
        return extend(image, &inode, name, target);
    }
    rebuild(image, dir, &[(name.to_vec(), target)])?;
    Ok(0)
}

/// Adds a block with one name to a linear directory.
fn extend(image: &mut Image, inode: &Inode, name: &[u8], target: InodeNr) -> StepResult<u32> {
    let (mapped, size) = (image.map(inode), image.geo.block_size as usize);
    let own: Vec<BlockNr> = mapped.blocks().map(|(_, block)| block).collect();
    if own.len() as u64 != mapped.end() {
        // A hole is filled by rewriting the directory.
        rebuild(image, inode.ino, &[(name.to_vec(), target)])?;
        return Ok(0);
    }
    let lblk = own.len();
    let blocks = content::blocks(image, own, lblk + 1)?;
    let mut bytes = vec![0; size];
    let format = image.dir_format(inode);
    format.init_leaf(&mut bytes);
    let kind = image.inode(target)?.kind();
    if !matches!(format.insert(&mut bytes, name, target.0, kind), Ok(Insert::Done { .. })) {
        return Err(Refusal::Lost("the name does not fit into a block"));
    }
    seal(image, inode, &mut bytes)?;
    image.put_block(blocks[lblk], &bytes)?;
    content::set_blocks(image, inode.ino, &blocks, blocks.len() as u64 * size as u64)?;
    Ok(lblk as u32)
}

/// The block with an entry, for a directory whose entries are not in its inode.
fn open(image: &Image, inode: &Inode, lblk: u32) -> StepResult<(BlockNr, Vec<u8>)> {
    let place = image.map(inode).place(lblk.into()).ok_or(Refusal::Lost("the entry has no place"))?;
    Ok((place, image.block(place)?))
}

/// The length of the entry at this offset, if it refers to this inode.
fn length_at(bytes: &[u8], at: usize, ino: Option<InodeNr>) -> StepResult<usize> {
    let entry = StoredEntry::at(bytes, at).ok_or(Refusal::Lost("the entry is cut off"))?;
    if ino.is_some_and(|ino| ino.0 != entry.ino) {
        return Err(Refusal::Lost("the entry has changed"));
    }
    Ok(entry.rec_len)
}

/// Removes an entry: the one before it takes its bytes, or it is marked as unused.
pub fn drop_entry(image: &mut Image, dir: InodeNr, lblk: u32, offset: u32, ino: InodeNr) -> StepResult {
    let inode = image.inode(dir)?;
    image.touch(dir);
    let at = offset as usize;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline_entry(image, &inode, lblk, at, |bytes| bytes[..4].fill(0));
    }
    let (place, mut bytes) = open(image, &inode, lblk)?;
    let length = length_at(&bytes, at, Some(ino))?;
    let (mut before, mut next) = (None, 0);
    while next < at {
        before = Some(next);
        let step = length_at(&bytes, next, None)?;
        if step < HEADER_LEN {
            break;
        }
        next += step;
    }
    bytes[at..at + 4].fill(0);
    if let Some(before) = before.filter(|_| next == at) {
        let whole = length_at(&bytes, before, None)? + length;
        let len = rec_len_to_disk(whole.min(bytes.len()), bytes.len());
        bytes[before + 4..before + 6].copy_from_slice(&len.to_le_bytes());
    }
    seal(image, &inode, &mut bytes)?;
    image.put_block(place, &bytes)
}

/// Sets the file type in an entry.
pub fn entry_kind(image: &mut Image, dir: InodeNr, lblk: u32, offset: u32, kind: u8) -> StepResult {
    let inode = image.inode(dir)?;
    image.touch(dir);
    let at = offset as usize;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline_entry(image, &inode, lblk, at, |bytes| bytes[7] = kind);
    }
    let (place, mut bytes) = open(image, &inode, lblk)?;
    length_at(&bytes, at, None)?;
    bytes[at + 7] = kind;
    seal(image, &inode, &mut bytes)?;
    image.put_block(place, &bytes)
}

/// Changes an entry of a directory whose entries are in its inode.
fn inline_entry(image: &Image, inode: &Inode, lblk: u32, at: usize, change: impl FnOnce(&mut [u8])) -> StepResult {
    let lost = Refusal::Lost("the entry is cut off");
    if lblk == 0 {
        let entry = I_BLOCK_AT + at;
        return image.change_inode_bytes(inode.ino, |bytes| change(&mut bytes[entry..]));
    }
    let rest = image.inline_rest(inode).ok_or(lost.clone())?;
    let start = inode.bytes.windows(rest.len()).rposition(|part| part == rest).ok_or(lost)?;
    image.change_inode_bytes(inode.ino, |bytes| change(&mut bytes[start + at..]))
}

/// Sets `..`.
pub fn set_parent(image: &mut Image, dir: InodeNr, parent: InodeNr) -> StepResult {
    let inode = image.inode(dir)?;
    image.touch(dir);
    if inode.has(InodeFlags::INLINE_DATA) {
        return image.change_inode(dir, |raw| raw.i_block[..4].copy_from_slice(&parent.0.to_le_bytes()));
    }
    let (place, mut bytes) = open(image, &inode, 0)?;
    let at = length_at(&bytes, 0, None)?;
    if bytes.get(at + 8..at + 10) != Some(b"..") {
        return Err(Refusal::Lost("the directory has no '..'"));
    }
    bytes[at..at + 4].copy_from_slice(&parent.0.to_le_bytes());
    seal(image, &inode, &mut bytes)?;
    image.put_block(place, &bytes)
}

/// Rewrites a directory in its inode with the entries that can be read. They are written to the inode, or to blocks if
/// they do not fit there, or if the directory's own blocks can be found.
pub fn inline(image: &mut Image, inode: &Inode, more: &[(Vec<u8>, InodeNr)]) -> StepResult {
    let ino = inode.ino;
    image.touch(ino);
    let parent = parent_of(image, inode);
    let mut taken = TakenNames::of(inode);
    let mut names = usable(image, inode, image.entries(inode), &mut taken);
    let found = match names.is_empty() {
        true => search::directory_blocks(image, ino, inode.generation()),
        false => Vec::new(),
    };
    add(image, &mut names, &mut taken, more)?;
    if found.is_empty() && pack_inline(image, ino, parent, &names)? {
        return Ok(());
    }
    super::inodes::without_content(image, ino)?;
    if !found.is_empty() {
        return rebuild(image, ino, more);
    }
    let inode = image.inode(ino)?;
    write(image, &inode, parent, &names, Vec::new(), 0)
}

/// Writes entries into an inode. Returns `false` if they do not fit.
fn pack_inline(image: &mut Image, ino: InodeNr, parent: InodeNr, names: &[NamedTarget]) -> StepResult<bool> {
    let format = DirBlockFormat { has_csum: false, encrypted: true, ..image.dir_format(&image.inode(ino)?) };
    let mut dir = InlineDir::new(parent.0, InlineDir::rest_for(names.iter().map(|(name, _)| name.len())));
    for (name, target) in names {
        if !matches!(dir.insert(format, name, target.ino, Some(target.file_type)), Ok(Insert::Done { .. })) {
            return Ok(false);
        }
    }
    let bytes = dir.to_bytes();
    let (i_block, behind) = bytes.split_at(inline::ROOM);
    match image.set_inline_rest(ino, behind) {
        Err(Refusal::Lost(_)) => return Ok(false),
        done => done?,
    }
    image.change_inode(ino, |raw| {
        raw.i_block.copy_from_slice(i_block);
        raw.i_flags.set(raw.i_flags.get() & !(InodeFlags::EXTENTS | InodeFlags::INDEX).bits());
    })?;
    image.set_size(ino, (inline::ROOM + behind.len()) as u64)?;
    Ok(true)
}
