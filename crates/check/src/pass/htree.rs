//! The rules of directory indexes: the root, the nodes, and whether the hashes in every leaf are in the range that the
//! index specifies.
//!
//! Main types: [`Root`] (the fields of the root), [`Link`] (an index entry), [`Leaf`] (the hashes of a block). Blocks
//! arrive in any order; [`check`] checks each directory when all of it is known.
//!
//! # Locking
//! None.

use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::htree::{DX_BLOCK_MASK, DxFormat, DxShape, HashVersion, Hasher, RawDxRootInfo};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{BlockNr, InodeNr};

use super::directories::DirOut;
use super::walk::Dir;
use crate::context::Check;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// More index levels than any file system has.
const LEVELS_MAX: u8 = 3;
const SIPHASH: u8 = 6;
const INCOMPAT_FLAG: u8 = 1;
/// Bytes of the root's own fields; more may follow.
const INFO_LEN: u8 = 8;
/// The largest key: no name hashes above it.
const HASH_END: u32 = 0xffff_fffe;

/// The fields of the root of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    pub ino: u32,
    pub version: u8,
    pub levels: u8,
    /// The root can be used.
    pub sound: bool,
}

impl Root {
    /// The hash function of the directory's names; `None` if it is unknown here.
    pub fn hasher(&self, check: &Check) -> Option<Hasher> {
        let version = HashVersion::from_disk(self.version, check.sb.hash_unsigned())?;
        Some(Hasher::new(version, check.sb.hash_seed()))
    }
}

/// An index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub ino: u32,
    pub parent: u32,
    pub at: u16,
    pub child: u32,
    pub low: u32,
    pub high: u32,
    /// The child before it.
    pub previous: u32,
    pub last: bool,
}

/// A block of an indexed directory and the hashes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaf {
    pub ino: u32,
    pub lblk: u32,
    pub low: u32,
    pub high: u32,
    /// The block is part of the index.
    pub node: bool,
}

fn place(dir: u32, lblk: u32) -> Place {
    Place::Mapped { ino: InodeNr(dir), lblk: lblk.into(), block: BlockNr(0) }
}

/// The maximum number of levels below the root of an index.
fn levels_max(check: &Check) -> u8 {
    if check.geo.large_dir { 3 } else { 2 }
}

/// Checks the root of an index.
pub fn root(check: &Check, dir: &Dir, bytes: &[u8], seed: ChecksumSeed, out: &mut DirOut) -> Root {
    let there = Place::Inode(InodeNr(dir.ino));
    let mut bad = |problem, found: u8, expected: u8| out.sink.push(Finding::new(problem, there, found, expected));
    let Some(info) = RawDxRootInfo::of(bytes) else {
        return Root { ino: dir.ino, version: 0, levels: 0, sound: false };
    };
    let (version, length, levels, flags) =
        (info.hash_version, info.info_length, info.indirect_levels, info.unused_flags);
    let mut sound = true;
    if info.reserved_zero.get() != 0 || length < INFO_LEN {
        bad(Problem::HtreeBadroot, length, INFO_LEN);
        sound = false;
    }
    if version > 2 && version != SIPHASH {
        bad(Problem::HtreeHashv, version, 2);
    }
    let hashed = InodeFlags::CASEFOLD | InodeFlags::ENCRYPT;
    let needs_siphash = InodeFlags::from_bits_retain(dir.flags).contains(hashed);
    if needs_siphash && version != SIPHASH {
        bad(Problem::HtreeNeedsSiphash, version, SIPHASH);
    }
    if !needs_siphash && version == SIPHASH {
        bad(Problem::HtreeCannotSiphash, version, 2);
    }
    if flags & INCOMPAT_FLAG != 0 {
        bad(Problem::HtreeIncompat, flags, 0);
    }
    if levels > LEVELS_MAX || (levels > levels_max(check) && !check.geo.large_dir) {
        bad(Problem::HtreeDepth, levels, levels_max(check));
    }
    if !sound || levels >= levels_max(check) {
        let place = Place::Mapped { ino: InodeNr(dir.ino), lblk: 0, block: BlockNr(0) };
        out.sink.push(Finding::new(Problem::HtreeBadRoot, place, levels, levels_max(check)));
        sound = false;
    }
    if sound {
        links(check, dir, 0, bytes, DxShape::Root.base() + usize::from(length - INFO_LEN), seed, out);
    }
    Root { ino: dir.ino, version, levels, sound }
}

/// Checks a node of an index.
pub fn node(check: &Check, dir: &Dir, lblk: u32, bytes: &[u8], seed: ChecksumSeed, out: &mut DirOut) {
    // With checksums, libext2fs finds no checksum in a block whose empty entry has a file type.
    if check.geo.metadata_csum && bytes[7] != 0 {
        let there = Place::Entry { dir: InodeNr(dir.ino), lblk, offset: 0, ino: InodeNr(0) };
        out.sink.push(Finding::new(Problem::BadFiletype, there, bytes[7], 0u64));
    }
    links(check, dir, lblk, bytes, DxShape::Node.base(), seed, out);
}

/// Checks the entries of an index block, which begin at `base`.
fn links(check: &Check, dir: &Dir, lblk: u32, bytes: &[u8], base: usize, seed: ChecksumSeed, out: &mut DirOut) {
    let there = place(dir.ino, lblk);
    let mut bad = |problem, found: u64, expected: u64| out.sink.push(Finding::new(problem, there, found, expected));
    let format = DxFormat { has_csum: check.geo.metadata_csum };
    let Some(table) = format.table(base, bytes) else { return bad(Problem::HtreeBadLimit, 0, 1) };
    let (limit, mut count) = (table.entries.len(), usize::from(table.count));
    let is_right = usize::from(table.limit) == limit;
    if !is_right {
        bad(Problem::HtreeBadLimit, table.limit.into(), limit as u64);
    }
    if count > limit {
        bad(Problem::HtreeBadCount, count as u64, limit as u64);
        count = limit;
    } else if format.has_csum
        && is_right
        && let Some((found, expected)) = table.checksum(count, seed).filter(|(found, expected)| found != expected)
    {
        let problem = if lblk == 0 { Problem::HtreeRootCsumInvalid } else { Problem::HtreeNodeCsumInvalid };
        bad(problem, found.into(), expected.into());
    }
    let key = |at: usize| if at == 0 { 0 } else { table.entries[at].hash.get() & !1 };
    let child = |at: usize| table.entries[at].block.get() & DX_BLOCK_MASK;
    let (mut low, mut high) = (u32::MAX, 0);
    let repeats = repeats(count, child);
    for at in 0..count {
        if child(at) >= dir.blocks {
            bad(Problem::HtreeBadblk, child(at).into(), dir.blocks.into());
            continue;
        }
        if at > 0 && key(at) < key(at - 1) {
            bad(Problem::HtreeHashOrder, key(at).into(), key(at - 1).into());
        }
        (low, high) = (low.min(key(at)), high.max(key(at)));
        if repeats.binary_search(&at).is_ok() {
            continue;
        }
        let last = at + 1 == count;
        out.links.push(Link {
            ino: dir.ino,
            parent: lblk,
            at: at as u16,
            child: child(at),
            low: key(at),
            high: if last { HASH_END } else { key(at + 1) },
            previous: if at == 0 { 0 } else { child(at - 1) },
            last,
        });
    }
    out.leaves.push(Leaf { ino: dir.ino, lblk, low, high, node: true });
}

/// The entries, in ascending order, to whose child both an earlier and a later entry refer. They add nothing to the
/// knowledge about that block, and in a hostile index each entry can be one.
fn repeats(count: usize, child: impl Fn(usize) -> u32) -> Vec<usize> {
    let mut entries: Vec<(u32, usize)> = (0..count).map(|at| (child(at), at)).collect();
    entries.sort_unstable();
    let between = |three: &[(u32, usize)]| (three[0].0 == three[2].0).then_some(three[1].1);
    let mut repeats: Vec<usize> = entries.windows(3).filter_map(between).collect();
    repeats.sort_unstable();
    repeats
}

/// The facts about a block while its directory is being checked.
#[derive(Clone, Copy, Default)]
struct BlockFacts {
    node: bool,
    low: u32,
    high: u32,
    /// The number of index entries that refer to it.
    referred: u32,
    parent: u32,
    first: bool,
    last: bool,
    previous: u32,
    node_low: u32,
    node_high: u32,
}

/// Checks all indexed directories. Returns how many need the feature large_dir.
pub fn check(
    check: &Check,
    dirs: &[Dir],
    roots: &[Root],
    leaves: &mut [Leaf],
    links: &mut [Link],
    sink: &mut Sink,
) -> u64 {
    leaves.sort_unstable();
    links.sort_unstable();
    let mut large = 0;
    let (mut leaf_at, mut link_at) = (0, 0);
    for dir in dirs.iter().filter(|dir| dir.flags & InodeFlags::INDEX.bits() != 0 && check.geo.dir_index) {
        while leaves.get(leaf_at).is_some_and(|leaf| leaf.ino < dir.ino) {
            leaf_at += 1;
        }
        while links.get(link_at).is_some_and(|link| link.ino < dir.ino) {
            link_at += 1;
        }
        let own_leaves = leaves[leaf_at..].iter().take_while(|leaf| leaf.ino == dir.ino).count();
        let own_links = links[link_at..].iter().take_while(|link| link.ino == dir.ino).count();
        let Ok(root) = roots.binary_search_by_key(&dir.ino, |root| root.ino) else {
            if !dir.partial {
                sink.push(Finding::at(Problem::HtreeBadroot, Place::Inode(InodeNr(dir.ino))));
            }
            continue;
        };
        let root = roots[root];
        large += u64::from(root.levels > 1 && !check.geo.large_dir && root.levels <= LEVELS_MAX);
        if root.sound && !dir.partial {
            let own = &leaves[leaf_at..leaf_at + own_leaves];
            judge(check, dir, root, own, &links[link_at..link_at + own_links], sink);
        }
    }
    large
}

/// Checks one directory.
fn judge(check: &Check, dir: &Dir, root: Root, leaves: &[Leaf], links: &[Link], sink: &mut Sink) {
    // Only blocks that were read are checked, so the memory depends on their number and not on a field.
    let find = |lblk: u32| leaves.binary_search_by_key(&lblk, |leaf| leaf.lblk).ok();
    let mut known: Vec<BlockFacts> = leaves
        .iter()
        .map(|leaf| BlockFacts { node: leaf.node, low: leaf.low, high: leaf.high, ..BlockFacts::default() })
        .collect();
    for link in links {
        let Some(at) = find(link.child) else { continue };
        let child = &mut known[at];
        child.referred += 1;
        if child.referred == 1 {
            child.parent = link.parent;
        }
        child.previous = link.previous;
        (child.node_low, child.node_high) = (link.low, link.high);
        child.first |= link.at == 0;
        child.last |= link.last;
    }
    if let Some(at) = find(0) {
        known[at].referred += 1;
        (known[at].first, known[at].last) = (true, true);
    }
    // The first child determines its parent's real lower limit, and the last child the upper one. Leaves are processed
    // first, then nodes.
    for nodes in [false, true] {
        for at in 0..known.len() {
            let one = known[at];
            let Some(parent) = find(one.parent).filter(|_| one.node == nodes && leaves[at].lblk != 0) else { continue };
            if one.first {
                known[parent].low = one.low;
                let previous = known[parent].previous;
                if previous != 0
                    && let Some(before) = find(previous)
                {
                    known[before].node_high = one.low;
                }
            }
            if one.last {
                known[parent].high = one.high;
            }
        }
    }
    let hashes = root.hasher(check).is_some();
    for (at, one) in known.iter().enumerate() {
        let lblk = leaves[at].lblk;
        let there = place(dir.ino, lblk);
        let mut bad = |problem, found: u32, expected: u32| sink.push(Finding::new(problem, there, found, expected));
        if hashes && !one.first && one.low < one.node_low {
            bad(Problem::HtreeMinHash, one.low, one.node_low);
        }
        if !one.node {
            let depth = depth(&known, leaves, at, &find);
            let expected = u32::from(root.levels) + 1;
            if depth != expected {
                bad(Problem::HtreeBadDepth, depth, expected);
            }
        }
        if hashes && lblk != 0 && one.high > one.node_high {
            bad(Problem::HtreeMaxHash, one.high, one.node_high);
        }
        if one.referred == 0 {
            bad(Problem::HtreeNotref, 0, 1);
        } else if one.referred > 1 {
            bad(Problem::HtreeDupref, one.referred, 1);
        }
    }
}

/// The number of steps up to the root. For a cycle, this is the largest possible depth.
fn depth(known: &[BlockFacts], leaves: &[Leaf], mut at: usize, find: &dyn Fn(u32) -> Option<usize>) -> u32 {
    let most = u32::from(LEVELS_MAX) + 2;
    let mut depth = 0;
    while leaves[at].lblk != 0 && depth < most {
        depth += 1;
        match find(known[at].parent) {
            Some(parent) => at = parent,
            None => break,
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_between_the_first_and_the_last_to_a_block_are_repeats() {
        let children = [7, 5, 7, 7, 5, 9, 7];
        assert_eq!(repeats(children.len(), |at| children[at]), [2, 3]);
        assert!(repeats(511, |at| at as u32).is_empty());
        assert_eq!(repeats(511, |_| 1).len(), 509);
    }
}
