//! Listing names, with cookies that survive changes (Linux: `ext4_readdir`, `ext4_dx_readdir`, fs/ext4/dir.c).
//!
//! On file systems with dir_index, indexed directories and those of one block are listed by hash. An entry's cookie
//! contains its name's hash, so it does not change when leaves split, when entries are packed, or when the directory
//! becomes a tree. `.` and `..` have cookies 0 and 1, and the names begin at 2. Names with equal hashes get consecutive
//! cookies, so that a listing can stop among them and always advances. Other directories are listed by place, with byte
//! cookies, so that a listing can stop among them and always advances. Other directories are listed by place, with byte
//! offsets as cookies; their entries never move. Under rescue all directories are listed by place, because an index may
//! be wrong.
//!
//! A listing by hash compares the hash of each name with the bounds that the index states for its block, and follows
//! the order of the index's entries. So it detects an index that skips names, and reports the damage.
//!
//! One call reads one leaf after another in hash order. It sorts the names of each leaf, together with the leaves that
//! continue its last hash. So neither the memory nor the cost of a call depends on the size of the directory.
//!
//! # Locking
//! None; see the parent module. The store's closures have returned before the callback runs.

use extant_ondisk::csum::crc32c;
use extant_ondisk::dirent::{DirDamage, Dirent, Entries};
use extant_ondisk::htree::{HashVersion, Hasher};
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;

use super::index::{Path, Target, advance, next_key, probe};
use super::{BlockKind, Detail, DirError, DirParams, DirStore, Passed, Scan, name_hash};

/// The cookie after the last name of a directory that is listed by hash (Linux: `EXT4_HTREE_EOF_64BIT`).
pub const COOKIE_END: u64 = 0x7FFF_FFFF_FFFF_FFFF;
const COOKIE_DOT: u64 = 0;
const COOKIE_DOTDOT: u64 = 1;
const COOKIE_FIRST: u64 = 2;
/// The largest batch to sort. A leaf of 64 KiB has 5,461 entries; a batch exceeds that only if very many names share
/// one hash.
const BATCH_MAX: usize = 16384;

/// One name, as passed to the callback of [`readdir`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode that the name refers to.
    pub ino: InodeNr,
    /// The type stored in the entry; `None` without the `filetype` feature.
    pub file_type: Option<FileType>,
    /// 1 to 255 bytes, without slash and NUL. `.` and `..` are included.
    pub name: &'a [u8],
    /// A listing from this cookie begins with this entry.
    pub cookie: u64,
    /// A listing from this cookie begins after this entry.
    pub next_cookie: u64,
    /// How many names with the same hash follow. Their cookies shift when one of them is removed, so a caller without
    /// room for all of them should stop before the first. With today's hashes the number is practically always 0.
    pub peers: u32,
}

/// The result of one call of [`readdir`].
#[derive(Debug)]
pub struct Listed<E> {
    /// The cookie to continue from.
    pub next: u64,
    /// The first damage that was found; it hides no other names.
    pub damage: Option<E>,
}

/// Calls `f` for each name from `cookie` on; 0 begins the listing. If `f` returns false, the listing stops, and the
/// next call begins with that entry. A name that exists throughout the listing appears exactly once, regardless of
/// other additions and removals. Invalid names, such as one with a slash, are omitted.
///
/// # Errors
/// The store's errors, and [`DirError::Corrupt`] if the listing cannot continue after the damage. `f` may have received
/// entries before the error.
pub fn readdir<S: DirStore>(
    store: &S,
    params: &DirParams,
    cookie: u64,
    mut f: impl FnMut(&DirEntry<'_>) -> bool,
) -> Result<Listed<S::Error>, S::Error> {
    if cookie >= COOKIE_END {
        return Ok(Listed { next: COOKIE_END, damage: None });
    }
    let mut passed = Passed::new(params);
    let next = if lists_by_hash(store, params, &mut passed)? {
        list_by_hash(store, params, cookie, &mut passed, &mut f)?
    } else {
        list_by_place(store, params, cookie, &mut passed, &mut f)?
    };
    Ok(Listed { next, damage: passed.first })
}

fn lists_by_hash<S: DirStore>(store: &S, params: &DirParams, passed: &mut Passed<S::Error>) -> Result<bool, S::Error> {
    if params.by_place {
        return Ok(false);
    }
    if !params.uses_index() {
        return Ok(params.has_dir_index && store.blocks() == 1);
    }
    // If the root is unusable, the directory is listed as one without an index.
    Ok(match passed.step(store, probe(store, params, Target::Hash(0)))? {
        Some(Ok(_)) => true,
        Some(Err(error)) => {
            passed.note(|| error.into());
            false
        }
        None => false,
    })
}

fn list_by_place<S: DirStore>(
    store: &S,
    params: &DirParams,
    cookie: u64,
    passed: &mut Passed<S::Error>,
    f: &mut impl FnMut(&DirEntry<'_>) -> bool,
) -> Result<u64, S::Error> {
    let block_size = u64::from(store.block_size());
    let format = params.leaf_format();
    let mut end = u64::from(store.blocks()) * block_size;
    if params.uses_index() && !params.by_place && cookie > end {
        let detail = "the index broke while the directory was listed";
        return Err(DirError::Corrupt { lblk: 0, offset: 0, detail: Detail::Whole(detail) }.into());
    }
    let mut next = u32::try_from(cookie / block_size).ok();
    let mut image = Vec::new();
    while let Some(from) = next {
        let Scan { block, damage } = store.next_block(from);
        damage.into_iter().for_each(|e| passed.note(|| e));
        let Some(lblk) = block else { break };
        next = lblk.checked_add(1);
        let start = u64::from(lblk) * block_size;
        end = end.max(start + block_size);
        let read = store.read(lblk, params.kind_in_scan(), |block| {
            image.clear();
            image.extend_from_slice(block);
        });
        if passed.step(store, read)?.is_none() {
            continue;
        }
        // The scan starts at the beginning of the block to find the boundaries of entries. The entry at `cookie` may
        // have been removed and merged into another.
        for entry in format.entries(&image) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(damage) => {
                    passed.note(|| DirError::corrupt(lblk, damage).into());
                    continue;
                }
            };
            let own = start + u64::from(entry.offset);
            if own < cookie || !entry.is_used() {
                continue;
            }
            let next_cookie = own + u64::from(entry.rec_len);
            let (ino, file_type) = (InodeNr(entry.ino), entry.file_type);
            if !f(&DirEntry { ino, file_type, name: entry.name, cookie: own, next_cookie, peers: 0 }) {
                return Ok(own);
            }
        }
    }
    Ok(end.max(cookie))
}

fn list_by_hash<S: DirStore>(
    store: &S,
    params: &DirParams,
    cookie: u64,
    passed: &mut Passed<S::Error>,
    f: &mut impl FnMut(&DirEntry<'_>) -> bool,
) -> Result<u64, S::Error> {
    if cookie <= COOKIE_DOTDOT
        && let Some(Some(stopped)) = passed.step(store, list_dots(store, params, cookie, f))?
    {
        return Ok(stopped);
    }
    let mut batch = Batch::default();
    let mut position = cookie.max(COOKIE_FIRST);
    let mut last = COOKIE_FIRST - 1;
    // Several leaves without names to list may follow each other, but never more than the directory has blocks.
    let mut idle = 0;
    let mut rest = false;
    loop {
        if params.uses_index() {
            batch.collect_indexed(store, params, position, passed)?;
        } else {
            batch.collect_block(store, params, passed)?;
        }
        if rest {
            batch.items.retain(|item| item.key >= position);
        }
        let mut given = false;
        let mut peers = (0, 0);
        for (index, item) in batch.items.iter().enumerate() {
            let own = item.key.max(last + 1);
            last = own;
            if own < position {
                continue;
            }
            if peers.0 != item.key || peers.1 == 0 {
                peers =
                    (item.key, batch.items[index..].iter().take_while(|other| other.key == item.key).count() as u32);
            }
            peers.1 -= 1;
            // After the last name of a hash, the next cookie is the next name's, not one more than this one's.
            // Otherwise a later name with the same hash would push this one into the rest of the listing.
            let next = match (batch.items.get(index + 1), batch.next) {
                (Some(other), _) if peers.1 == 0 => other.key,
                (None, Some(Next::Leaf(key))) => key,
                (None, None) => COOKIE_END,
                _ => own + 1,
            };
            let entry = DirEntry {
                ino: item.ino,
                file_type: item.file_type,
                name: batch.name(item),
                cookie: own,
                next_cookie: next.max(own + 1),
                peers: peers.1,
            };
            given = true;
            if !f(&entry) {
                return Ok(own);
            }
        }
        rest = matches!(batch.next, Some(Next::Rest));
        position = match batch.next {
            None => return Ok(COOKIE_END),
            Some(Next::Leaf(key)) => key,
            Some(Next::Rest) => last + 1,
        };
        idle = if given { 0 } else { idle + 1 };
        if idle > store.blocks() {
            let detail = "the index has more leaves than blocks";
            return Err(DirError::Corrupt { lblk: 0, offset: 0, detail: Detail::Whole(detail) }.into());
        }
    }
}

/// Passes `.` and `..` to `f`. Returns the cookie of the entry at which `f` stopped, if it did.
fn list_dots<S: DirStore>(
    store: &S,
    params: &DirParams,
    cookie: u64,
    f: &mut impl FnMut(&DirEntry<'_>) -> bool,
) -> Result<Option<u64>, S::Error> {
    let format = params.leaf_format();
    let kind = if params.is_indexed { BlockKind::Index } else { BlockKind::Leaf };
    let dots = store.read(0, kind, |block| format.dots(block))?;
    let (ino, parent, _) = dots.map_err(|damage| DirError::corrupt(0, damage))?;
    let file_type = params.has_filetype.then_some(FileType::Directory);
    for (own, name, ino) in [(COOKIE_DOT, &b"."[..], ino), (COOKIE_DOTDOT, b"..", parent)] {
        let entry = DirEntry { ino: InodeNr(ino), file_type, name, cookie: own, next_cookie: own + 1, peers: 0 };
        if own >= cookie && !f(&entry) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// The cookie of a name: 31 bits of hash and 32 of the minor hash, as in Linux. The legacy hash has no minor hash, so
/// a checksum of the name replaces it.
fn key_of(hasher: &Hasher, name: &[u8]) -> u64 {
    let hash = name_hash(hasher, name);
    let minor = match hasher.version() {
        HashVersion::Legacy | HashVersion::LegacyUnsigned => crc32c(!0, name),
        _ => hash.minor,
    };
    (u64::from(hash.hash >> 1) << 32) | u64::from(minor)
}

fn key_of_hash(hash: u32) -> u64 {
    u64::from(hash >> 1) << 32
}

/// Where a listing continues after a batch.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// At the next leaf, whose lowest key is this.
    Leaf(u64),
    /// In the same leaves, which have more entries than fit in a batch.
    Rest,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    key: u64,
    ino: InodeNr,
    file_type: Option<FileType>,
    name_start: u32,
    name_len: u8,
}

/// The names of one leaf, or of a series of leaves that share a hash, sorted by key.
#[derive(Debug, Default)]
struct Batch {
    /// The path to the last of these leaves, if the next batch begins after it.
    path: Option<Path>,
    items: Vec<Item>,
    names: Vec<u8>,
    next: Option<Next>,
    /// The batch was full and dropped the items with the highest keys.
    overflowed: bool,
}

impl Batch {
    fn name(&self, item: &Item) -> &[u8] {
        let start = item.name_start as usize;
        &self.names[start..start + usize::from(item.name_len)]
    }

    fn clear(&mut self) {
        self.items.clear();
        self.names.clear();
        self.next = None;
        self.overflowed = false;
    }

    fn push(&mut self, key: u64, entry: &Dirent<'_>) {
        self.items.push(Item {
            key: key.max(COOKIE_FIRST),
            ino: InodeNr(entry.ino),
            file_type: entry.file_type,
            name_start: self.names.len() as u32,
            name_len: entry.name.len() as u8,
        });
        self.names.extend_from_slice(entry.name);
    }

    /// Adds the entries with a key; returns the first damage among them.
    fn take(&mut self, entries: Entries<'_>, key: impl Fn(&Dirent<'_>) -> Option<u64>) -> Option<DirDamage> {
        let mut first = None;
        for entry in entries {
            match entry {
                Ok(entry) if entry.is_used() => {
                    if let Some(key) = key(&entry) {
                        self.push(key, &entry);
                    }
                }
                Ok(_) => {}
                Err(damage) => first = first.or(Some(damage)),
            }
        }
        first
    }

    fn sort(&mut self) {
        let (items, names) = (&mut self.items, &self.names);
        let name = |item: &Item| &names[item.name_start as usize..][..usize::from(item.name_len)];
        items.sort_unstable_by(|a, b| a.key.cmp(&b.key).then_with(|| name(a).cmp(name(b))));
    }

    /// Keeps the [`BATCH_MAX`] lowest keys from `position` on.
    fn shrink(&mut self, position: u64) {
        self.items.retain(|item| item.key >= position);
        self.sort();
        if self.items.len() > BATCH_MAX {
            self.items.truncate(BATCH_MAX);
            self.overflowed = true;
        }
        let mut names = Vec::new();
        for item in &mut self.items {
            let start = item.name_start as usize;
            item.name_start = names.len() as u32;
            names.extend_from_slice(&self.names[start..start + usize::from(item.name_len)]);
        }
        self.names = names;
    }

    /// Collects the names of a directory that has one block and no index.
    fn collect_block<S: DirStore>(
        &mut self,
        store: &S,
        params: &DirParams,
        passed: &mut Passed<S::Error>,
    ) -> Result<(), S::Error> {
        self.clear();
        let hasher = params.hasher(params.hash_version);
        let format = params.leaf_format();
        let collected = store.read(0, BlockKind::Leaf, |block| {
            self.take(format.entries(block), |entry| (!entry.is_dot()).then(|| key_of(&hasher, entry.name)))
        });
        if let Some(Some(damage)) = passed.step(store, collected)? {
            passed.note(|| DirError::corrupt(0, damage).into());
        }
        self.sort();
        Ok(())
    }

    /// Collects the leaf after the last batch, or the one for `position`, and the leaves that continue its last hash.
    /// Only the first batch searches the index; later ones follow its entries. A search in an index that is out of
    /// order would skip leaves.
    fn collect_indexed<S: DirStore>(
        &mut self,
        store: &S,
        params: &DirParams,
        position: u64,
        passed: &mut Passed<S::Error>,
    ) -> Result<(), S::Error> {
        self.clear();
        let format = params.leaf_format();
        let mut path = match self.path.take() {
            Some(mut path) => {
                advance(store, params, &mut path)??;
                path
            }
            None => probe(store, params, Target::Hash(((position >> 32) << 1) as u32))??,
        };
        let lowest = key_of_hash(path.lowest_hash());
        loop {
            let (lblk, hasher) = (path.leaf, path.hasher);
            let collected = store.read(lblk, BlockKind::Leaf, |block| {
                self.take(format.entries(block), |entry| Some(key_of(&hasher, entry.name)))
            });
            if let Some(Some(damage)) = passed.step(store, collected)? {
                passed.note(|| DirError::corrupt(lblk, damage).into());
            }
            if self.items.len() > 2 * BATCH_MAX {
                self.shrink(position);
            }
            let Some(key) = next_key(&path) else { break };
            if key & 1 == 0 {
                self.next = Some(Next::Leaf(key_of_hash(key)));
                break;
            }
            advance(store, params, &mut path)??;
        }
        let highest = match self.next {
            Some(Next::Leaf(key)) if key <= position => {
                let detail = "the index is out of order";
                return Err(DirError::Corrupt { lblk: 0, offset: 0, detail: Detail::Whole(detail) }.into());
            }
            Some(Next::Leaf(key)) => key - 1,
            _ => COOKIE_END - 1,
        };
        // Names whose hash belongs to another leaf are listed first among the names of their leaf. Sorted by their own
        // keys, they would make the listing skip or repeat other names. No lookup finds them, so the index is damaged.
        for item in &mut self.items {
            if item.key < lowest || item.key > highest {
                item.key = lowest.max(COOKIE_FIRST);
                let detail = Detail::Whole("it contains a name whose hash belongs to another block");
                passed.note(|| DirError::Corrupt { lblk: path.leaf, offset: 0, detail }.into());
            }
        }
        if self.overflowed || self.items.len() > BATCH_MAX {
            self.shrink(position);
        } else {
            self.sort();
        }
        if self.overflowed {
            self.next = Some(Next::Rest);
        }
        self.path = Some(path).filter(|_| matches!(self.next, Some(Next::Leaf(_))));
        Ok(())
    }
}
