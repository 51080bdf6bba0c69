//! The rules of one directory block: its entries, its checksum, and its leaf in an index.
//!
//! # Locking
//! None.

use std::borrow::Cow;

use extant_ondisk::csum::{ChecksumSeed, crc32c};
use extant_ondisk::dirent::{DirRule, HEADER_LEN, InlineDir, REC_LEN_MIN, StoredEntry, TAIL_LEN, tail_damage};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::htree::{DxFormat, Hasher};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::inode::inline::ROOM;
use extant_ondisk::{InodeNr, casefold};

use super::directories::{DirOut, Name, Subdirectory};
use super::htree::{self, Leaf, Root};
use super::names;
use super::walk::Dir;
use crate::context::{Check, InodeState, Kind, inodes_read};
use crate::finding::{Finding, Place};
use crate::problem::Problem;

/// Encrypted names fill at least one block of the cipher.
const ENCRYPTED_NAME_MIN: usize = 16;

/// The hash by which equal names are found.
fn name_hash(name: &[u8]) -> u32 {
    crc32c(name.len() as u32, name)
}

/// Whether a directory with these flags looks up names case-insensitively, and so compares names folded by
/// `casefold::fold`. The case of encrypted names is unknown.
pub fn is_folded(check: &Check, flags: u32) -> bool {
    let flags = InodeFlags::from_bits_retain(flags);
    check.geo.casefold && flags.contains(InodeFlags::CASEFOLD) && !flags.contains(InodeFlags::ENCRYPT)
}

/// The form of a name that its directory compares.
fn compared(name: &[u8], folded: bool) -> Cow<'_, [u8]> {
    if folded { Cow::Owned(casefold::fold(name)) } else { Cow::Borrowed(name) }
}

/// Calls `tell` for each entry in use, with its offset, its inode, the hash of its name, and the name in the compared
/// form.
pub fn names(bytes: &[u8], folded: bool, mut tell: impl FnMut(u32, u32, u32, &[u8])) {
    let mut offset = 0;
    while let Ok(entry) = StoredEntry::checked(bytes, offset, bytes.len()) {
        if entry.ino != 0 {
            let name = compared(entry.name, folded);
            tell(offset as u32, entry.ino, name_hash(&name), &name);
        }
        offset += entry.rec_len;
    }
}

/// Checks a block of a directory. `root` is the root of its index, if that is known.
pub fn block(check: &Check, dir: &Dir, lblk: u32, block: u64, bytes: &[u8], root: Option<Root>, out: &mut DirOut) {
    let seed = check.geo.seed.for_inode(InodeNr(dir.ino), dir.generation);
    let indexed = dir.flags & InodeFlags::INDEX.bits() != 0 && check.geo.dir_index;
    let mut root = root;
    let mut index = false;
    if indexed && lblk == 0 {
        let found = htree::root(check, dir, bytes, seed, out);
        out.roots.push(found);
        root = Some(found);
        index = true;
    } else if indexed && (DxFormat { has_csum: check.geo.metadata_csum }).is_node(bytes) {
        htree::node(check, dir, lblk, bytes, seed, out);
        index = true;
    }
    let mut limit = bytes.len();
    if check.geo.metadata_csum && !index {
        limit = leaf_checksum(dir, lblk, block, bytes, seed, out);
    }
    let hasher = root.filter(|_| indexed).and_then(|root| root.hasher(check));
    let part = Part { lblk, block, bytes, first: 0, limit, number: if lblk == 0 { 0 } else { 2 } };
    let (low, high) = entries(check, dir, &part, hasher, out);
    if !indexed && dir.blocks > 1 {
        out.names.iter().for_each(|(hash, _)| out.keys.push(names::key(dir.ino, *hash)));
    }
    if indexed && !index {
        out.leaves.push(Leaf { ino: dir.ino, lblk, low, high, node: false });
    }
}

/// Checks the checksum at the end of a leaf. Returns the end of the entries.
fn leaf_checksum(dir: &Dir, lblk: u32, block: u64, bytes: &[u8], seed: ChecksumSeed, out: &mut DirOut) -> usize {
    let place = Place::Mapped { ino: InodeNr(dir.ino), lblk: lblk.into(), block: extant_ondisk::BlockNr(block) };
    let mut limit = bytes.len() - TAIL_LEN;
    tail_damage(bytes, seed, &mut |damage| {
        out.sink.push(match damage.what {
            DirRule::Checksum { found, expected } => {
                Finding::new(Problem::LeafNodeOnlyCsumInvalid, place, found, expected)
            }
            // Without a tail, the entries take the whole block.
            _ => {
                limit = bytes.len();
                Finding::at(Problem::LeafNodeMissingCsum, place)
            }
        });
    });
    limit
}

/// Checks a directory whose entries are in its inode: the parent, entries up to the end of `i_block`, then the others.
pub fn inline(check: &Check, dir: &Dir, bytes: &[u8], out: &mut DirOut) {
    let Some((head, rest)) = bytes.split_first_chunk::<ROOM>() else { return };
    let parent = InlineDir::from_parts(head, Vec::new()).parent();
    let directory = if check.geo.filetype { Kind::Directory as u8 } else { 0 };
    for (number, ino, name) in [(0, dir.ino, &b"."[..]), (1, parent, &b".."[..])] {
        let (rec_len, name_len) = (REC_LEN_MIN, name.len());
        let entry = StoredEntry { ino, rec_len, name_len, file_type: directory, name, after: 0 };
        let there = Place::Entry { dir: InodeNr(dir.ino), lblk: 0, offset: 0, ino: InodeNr(ino) };
        if number == 1 {
            dotdot(dir, &entry, there, out);
        }
        if ino != 0 && target(check, dir, &entry, number, there, out) {
            check.inodes.count_name(InodeNr(ino));
        }
    }
    let (block, limit) = (0, head.len());
    entries(
        check,
        dir,
        &Part { lblk: 0, block, bytes: head, first: InlineDir::PARENT_LEN, limit, number: 2 },
        None,
        out,
    );
    if !rest.is_empty() {
        let limit = rest.len();
        entries(check, dir, &Part { lblk: 1, block, bytes: rest, first: 0, limit, number: 2 }, None, out);
    }
}

/// Bytes with entries.
struct Part<'a> {
    lblk: u32,
    block: u64,
    bytes: &'a [u8],
    /// The offsets at which the entries begin and end.
    first: usize,
    limit: usize,
    /// The number of the first entry in its directory; 0 and 1 are `.` and `..`, and all from 2 on are treated the
    /// same.
    number: usize,
}

/// Checks all entries. Returns the smallest and the largest hash of the names; the largest is 0 if there are none.
fn entries(check: &Check, dir: &Dir, part: &Part<'_>, hasher: Option<Hasher>, out: &mut DirOut) -> (u32, u32) {
    let &Part { lblk, block, bytes, first: mut offset, limit, mut number } = part;
    let (mut low, mut high) = (u32::MAX, 0);
    let folded = is_folded(check, dir.flags);
    let mut names = std::mem::take(&mut out.names);
    names.clear();
    while offset < limit {
        let place = |ino: u32, offset: usize| Place::Entry {
            dir: InodeNr(dir.ino),
            lblk,
            offset: offset as u32,
            ino: InodeNr(ino),
        };
        let at = offset;
        let Ok(entry) = StoredEntry::checked(bytes, at, limit) else {
            let stored = StoredEntry::at(bytes, at).filter(|_| limit - at >= HEADER_LEN);
            let found = stored.map_or(limit - at, |entry| entry.rec_len);
            out.sink.push(Finding::new(Problem::DirCorrupted, place(0, at), found as u64, 0u64));
            break;
        };
        offset += entry.rec_len;
        let there = place(entry.ino, at);
        match number {
            0 => dot(dir, &entry, there, out),
            1 => dotdot(dir, &entry, there, out),
            _ if entry.ino == dir.ino => {
                out.sink.push(Finding::new(Problem::LinkDot, there, entry.ino, 0u64));
            }
            _ => {}
        }
        number += 1;
        if entry.ino == 0 || !target(check, dir, &entry, number - 1, there, out) {
            continue;
        }
        let name = compared(entry.name, folded);
        // The kernel and e2fsck compute different hashes for a folded name that is not UTF-8.
        if let Some(hasher) = hasher.as_ref().filter(|_| !folded || std::str::from_utf8(entry.name).is_ok()) {
            let hash = hasher.hash(&name).hash;
            (low, high) = (low.min(hash), high.max(hash));
        }
        names.push((name_hash(&name), at as u32));
        let state = check.inodes.get(InodeNr(entry.ino));
        if number > 2 && state.kind() == Kind::Directory {
            let name = Name::new(dir.ino, lblk, block, at as u32);
            out.subs.push(Subdirectory { child: entry.ino, name });
        }
        if dir.ino == InodeNr::ROOT.0 && entry.name == b"lost+found" {
            out.lost_found = Some(out.lost_found.map_or(entry.ino, |other| other.min(entry.ino)));
        }
        check.inodes.count_name(InodeNr(entry.ino));
    }
    duplicates(dir, folded, lblk, bytes, &mut names, out);
    out.names = names;
    (low, high)
}

fn dot(dir: &Dir, entry: &StoredEntry<'_>, there: Place, out: &mut DirOut) {
    let problem = match () {
        () if entry.ino == 0 => Some(Problem::MissingDot),
        () if entry.name != b"." => Some(Problem::FirstNotDot),
        () if entry.after != 0 => Some(Problem::DotNullTerm),
        () => None,
    };
    if let Some(problem) = problem {
        out.sink.push(Finding::at(problem, there));
    }
    if entry.ino != dir.ino {
        out.sink.push(Finding::new(Problem::BadInodeDot, there, entry.ino, dir.ino));
    }
    if entry.rec_len > 2 * REC_LEN_MIN {
        out.sink.push(Finding::new(Problem::SplitDot, there, entry.rec_len as u64, REC_LEN_MIN as u64));
    }
}

fn dotdot(dir: &Dir, entry: &StoredEntry<'_>, there: Place, out: &mut DirOut) {
    let problem = match () {
        () if entry.ino == 0 => Some(Problem::MissingDotDot),
        () if entry.name != b".." => Some(Problem::SecondNotDotDot),
        () if entry.after != 0 => Some(Problem::DotDotNullTerm),
        () => None,
    };
    match problem {
        Some(problem) => out.sink.push(Finding::at(problem, there)),
        None => out.dotdots.push((dir.ino, entry.ino)),
    }
}

/// Checks the inode of an entry. `number`: the entry's in the directory, 0 and 1 being `.` and `..`. Returns false if
/// the name cannot be counted for an inode.
fn target(check: &Check, dir: &Dir, entry: &StoredEntry<'_>, number: usize, there: Place, out: &mut DirOut) -> bool {
    let mut bad = |problem, found: u64, expected: u64| out.sink.push(Finding::new(problem, there, found, expected));
    let (geo, raw) = (&check.geo, check.sb.raw());
    let special =
        [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), check.project_quota(), raw.s_orphan_file_inum.get()];
    let ino = entry.ino;
    if (ino != InodeNr::ROOT.0 && ino < geo.first_ino) || ino > geo.inodes_count || special.contains(&ino) {
        bad(Problem::BadIno, ino.into(), 0);
        return false;
    }
    if number > 1 {
        match entry.name {
            b"." => bad(Problem::DupDot, ino.into(), 0),
            b".." => bad(Problem::DupDotDot, ino.into(), 0),
            _ if ino == InodeNr::ROOT.0 => bad(Problem::LinkRoot, ino.into(), 0),
            [] => bad(Problem::NullName, ino.into(), 0),
            _ => {}
        }
    }
    let group = (ino - 1) / geo.inodes_per_group;
    if let Some(desc) = check.descs.get(group as usize) {
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            bad(Problem::InorefBgInoUninit, ino.into(), 0);
        } else if (ino - 1) % geo.inodes_per_group >= inodes_read(geo, desc) && desc.inode_table.0 != 0 {
            bad(Problem::InorefInUnused, ino.into(), 0);
        }
    }
    let state = check.inodes.get(InodeNr(ino));
    if !state.has(InodeState::USED) || (state.has(InodeState::ORPHAN) && state.links() == 0) {
        bad(Problem::UnusedInode, ino.into(), 0);
    } else if !geo.filetype {
        if entry.file_type != 0 {
            bad(Problem::ClearFiletype, entry.file_type.into(), 0);
        }
    } else {
        // The type of an inode whose fields contradict each other is not known.
        let known = !state.has(InodeState::BAD) && state.kind() != Kind::Unknown;
        let kind = if known { state.kind() as u8 } else { 0 };
        if entry.file_type != kind {
            let problem = if entry.file_type == 0 { Problem::SetFiletype } else { Problem::BadFiletype };
            bad(problem, entry.file_type.into(), kind.into());
        }
    }
    let flags = InodeFlags::from_bits_retain(dir.flags);
    let encrypted = flags.contains(InodeFlags::ENCRYPT);
    if encrypted && number > 1 {
        if entry.name.len() < ENCRYPTED_NAME_MIN {
            bad(Problem::BadEncryptedName, entry.name.len() as u64, ENCRYPTED_NAME_MIN as u64);
        }
        if matches!(state.kind(), Kind::Regular | Kind::Directory | Kind::Symlink) {
            if !state.has(InodeState::ENCRYPTED) {
                bad(Problem::UnencryptedFile, ino.into(), 0);
            } else if let (Some(one), Some(other)) = (check.policy(dir.ino), check.policy(ino))
                && one != other
            {
                bad(Problem::InconsistentEncryptionPolicy, ino.into(), 0);
            }
        }
    }
    if state.has(InodeState::VALUE) {
        bad(Problem::EaInodeDirLink, ino.into(), 0);
    }
    if check.sb.strict_encoding() && is_folded(check, dir.flags) && std::str::from_utf8(entry.name).is_err() {
        bad(Problem::BadEncodedName, ino.into(), 0);
    }
    if !encrypted && entry.name.iter().any(|byte| [b'/', 0].contains(byte)) {
        bad(Problem::BadName, ino.into(), 0);
    }
    true
}

/// Reports names that are in the block twice. `names` contains the hash and place of each.
fn duplicates(dir: &Dir, folded: bool, lblk: u32, bytes: &[u8], names: &mut [(u32, u32)], out: &mut DirOut) {
    let entry = |offset: u32| StoredEntry::at(bytes, offset as usize);
    let name = |offset: u32| compared(entry(offset).map_or(&[][..], |entry| entry.name), folded);
    // By name, too: other names may have the same hash.
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| (name(a.1), a.1).cmp(&(name(b.1), b.1))));
    for pair in names.windows(2) {
        if pair[0].0 == pair[1].0 && name(pair[0].1) == name(pair[1].1) {
            let ino = InodeNr(entry(pair[1].1).map_or(0, |entry| entry.ino));
            let place = Place::Entry { dir: InodeNr(dir.ino), lblk, offset: pair[1].1, ino };
            out.sink.push(Finding::at(Problem::DuplicateDirent, place));
        }
    }
}
