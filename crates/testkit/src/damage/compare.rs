//! Compares the objects that e2fsck's problem log names with those that another checker names.
//!
//! Main types: [`Object`] (an inode, a block, ...), [`Named`] (an object and its problem), [`Tally`] (for each problem:
//! how many objects e2fsck named, and the result of the other checker for them).
//!
//! The log has no text and no names: the entry of a directory is identified by its directory and the logical block.
//! Some lines name no object: those that only frame others, ask about a repair, or count earlier findings.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::problem::PROBLEMS;

/// An object that can be damaged. A range contains neighbours with the same problem: first, last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Group(u32),
    Inodes(u32, u32),
    Blocks(u64, u64),
    /// Logical blocks of the directory with this inode.
    DirBlocks(u32, u64, u64),
}

impl Object {
    /// One inode.
    pub fn inode(ino: u32) -> Object {
        Object::Inodes(ino, ino)
    }

    /// One block.
    pub fn block(block: u64) -> Object {
        Object::Blocks(block, block)
    }

    /// One block of a directory.
    pub fn dir_block(dir: u32, lblk: u64) -> Object {
        Object::DirBlocks(dir, lblk, lblk)
    }
}

/// An object and the number of its problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    pub code: u32,
    pub object: Object,
}

/// A line of the log: a problem's number, and the fields that e2fsck reported with it.
struct Line<'a> {
    code: u32,
    rest: &'a str,
}

impl Line<'_> {
    fn number(&self, key: &str) -> Option<u64> {
        let (_, after) = self.rest.split_once(&format!(" {key}=\""))?;
        let text = after.split_once('"')?.0;
        // A count may be negative.
        text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(|number| number as u64))
    }

    fn ino(&self, key: &str) -> Option<u32> {
        self.number(key).and_then(|number| u32::try_from(number).ok())
    }
}

const DUP_BLOCK_HEADER: u32 = 0x01_1001;
const DUP_BLOCK: u32 = 0x01_1002;
const DUP_RANGE: u32 = 0x01_1008;
const DUP_FILE: u32 = 0x01_3001;
const DUP_FILE_LIST: u32 = 0x01_3002;
const BLOCK_UNUSED: u32 = 0x05_0004;
const BLOCK_USED: u32 = 0x05_0005;
const INODE_UNUSED: u32 = 0x05_0008;
const INODE_USED: u32 = 0x05_0009;

/// A range of blocks or inodes has a problem number different from that of a single one.
fn single(code: u32) -> u32 {
    match code {
        DUP_BLOCK_HEADER | DUP_RANGE | DUP_FILE | DUP_FILE_LIST => DUP_BLOCK,
        0x05_0014 => BLOCK_UNUSED,
        0x05_0015 => BLOCK_USED,
        0x05_0016 => INODE_UNUSED,
        0x05_0017 => INODE_USED,
        _ => code,
    }
}

/// Problems of descriptors and bitmaps, which belong to a group.
const OF_GROUPS: &[&str] = &[
    "BB_NOT_GROUP",
    "IB_NOT_GROUP",
    "ITABLE_NOT_GROUP",
    "GDT_CSUM",
    "GDT_UNINIT",
    "GDT_ITABLE_UNUSED",
    "BB_UNINIT_LAST",
    "BB_CONFLICT",
    "IB_CONFLICT",
    "ITABLE_CONFLICT",
    "INOREF_BG_INO_UNINIT",
    "INOREF_IN_UNUSED",
    "FREE_INODE_COUNT_GROUP",
    "FREE_DIR_COUNT_GROUP",
    "FREE_BLOCK_COUNT_GROUP",
    "BLOCK_UNINIT",
    "INODE_UNINIT",
    "INODE_BITMAP_CSUM_INVALID",
    "BLOCK_BITMAP_CSUM_INVALID",
];
/// Problems of a block, whose number is in `blk`. For other problems of pass 1, that field is left over from the
/// previous block, or it is the block of an extent in the node with the problem.
const OF_BLOCKS: &[&str] = &[
    "BB_CONFLICT",
    "IB_CONFLICT",
    "ITABLE_CONFLICT",
    "ILLEGAL_BLOCK_NUM",
    "BAD_EA_BLOCK",
    "EXTATTR_REFCOUNT",
    "EA_MULTI_BLOCK",
    "EA_ALLOC_COLLISION",
    "EA_BAD_NAME",
    "EA_BAD_VALUE",
    "EA_BLOCK_ONLY_CSUM_INVALID",
    "TOOBIG_DIR",
    "TOOBIG_REG",
    "TOOBIG_SYMLINK",
    "EXTENT_BAD_START_BLK",
    "EXTENT_ENDS_BEYOND",
    "OUT_OF_ORDER_EXTENTS",
    "EXTENT_LENGTH_ZERO",
    "EXTENT_END_OUT_OF_BOUNDS",
    "EXTENT_COLLISION",
    "UNINIT_DBLOCK",
];
/// Problems of a block, whose number is in `blk2`.
const OF_SECOND_BLOCKS: &[&str] = &["MISALIGNED_CLUSTER"];
/// Problems of the superblock and of the journal that concern an inode.
const OF_SPECIAL_INODES: &[&str] = &["JOURNAL_BAD_INODE", "ORPHAN_ILLEGAL_INODE"];
/// Problems of whole file systems, which e2fsck reports with the last object that it examined.
const OF_NOTHING: &[&str] = &["FEATURE_LARGE_FILES", "FEATURE_LARGE_DIRS", "FREE_INODE_COUNT", "FREE_BLOCK_COUNT"];

/// The objects that a problem log names, each with its problem.
pub fn named(log: &str) -> BTreeSet<Named> {
    let mut all = BTreeSet::new();
    for text in log.split("<problem code=\"0x").skip(1) {
        let Some(code) = text.get(..6).and_then(|digits| u32::from_str_radix(digits, 16).ok()) else { continue };
        let rest = text[6..].split_once("/>").map_or(text, |(line, _)| line);
        let code = single(code);
        if let Some(problem) = PROBLEMS.iter().find(|problem| problem.code == code) {
            objects(problem.name, &Line { code, rest }, &mut |object| {
                all.insert(Named { code, object });
            });
        }
    }
    let runs = all.iter().copied().collect::<Vec<_>>();
    let merged = runs.chunk_by(|one, next| one.code == next.code && follows(one.object, next.object));
    merged.map(|run| Named { code: run[0].code, object: joined(run[0].object, run[run.len() - 1].object) }).collect()
}

/// Whether `next` directly follows `one`.
fn follows(one: Object, next: Object) -> bool {
    match (one, next) {
        (Object::DirBlocks(a, _, last), Object::DirBlocks(b, first, _)) => a == b && last + 1 == first,
        (Object::Blocks(_, last), Object::Blocks(first, _)) => last.checked_add(1) == Some(first),
        _ => false,
    }
}

/// The range from the first to the last object, which have the same kind.
fn joined(first: Object, last: Object) -> Object {
    match (first, last) {
        (Object::DirBlocks(dir, first, _), Object::DirBlocks(_, _, last)) => Object::DirBlocks(dir, first, last),
        (Object::Blocks(first, _), Object::Blocks(_, last)) => Object::Blocks(first, last),
        _ => first,
    }
}

fn objects(name: &str, line: &Line<'_>, put: &mut impl FnMut(Object)) {
    if OF_NOTHING.contains(&name) {
        return;
    }
    let (ino, dir, block) = (line.ino("ino"), line.ino("dir"), line.number("blk"));
    let last = |key| line.number(key).filter(|last| *last != 0);
    if OF_GROUPS.contains(&name)
        && let Some(group) = line.ino("group")
    {
        put(Object::Group(group));
    }
    match line.code >> 16 {
        0 => ino.filter(|_| OF_SPECIAL_INODES.contains(&name)).map(Object::inode).into_iter().for_each(put),
        1 if line.code == DUP_BLOCK => {
            if let Some(block) = block {
                put(Object::Blocks(block, last("blk2").unwrap_or(block)));
            }
            ino.map(Object::inode).into_iter().for_each(put);
        }
        1 => {
            if OF_BLOCKS.contains(&name) {
                block.map(Object::block).into_iter().for_each(&mut *put);
            }
            if OF_SECOND_BLOCKS.contains(&name) {
                line.number("blk2").map(Object::block).into_iter().for_each(&mut *put);
            }
            ino.map(Object::inode).into_iter().for_each(put);
        }
        2 => match (ino, dir) {
            (Some(dir), None) => {
                put(Object::inode(dir));
                // A hole has no block.
                let there = block.is_some() || name == "DIRECTORY_HOLE";
                if let Some(lblk) = line.number("blkcount").filter(|_| there) {
                    put(Object::dir_block(dir, lblk));
                }
            }
            // The problem belongs to the inode; the directory with its name is not damaged.
            (Some(ino), Some(_)) => put(Object::inode(ino)),
            (None, Some(dir)) => {
                put(Object::inode(dir));
                if let Some(lblk) = line.number("blkcount") {
                    put(Object::dir_block(dir, lblk));
                }
            }
            (None, None) => {}
        },
        5 => match line.code {
            BLOCK_UNUSED | BLOCK_USED => {
                if let Some(block) = block {
                    put(Object::Blocks(block, last("blk2").unwrap_or(block)));
                }
            }
            INODE_UNUSED | INODE_USED => {
                if let Some(ino) = ino {
                    put(Object::Inodes(ino, line.ino("ino2").filter(|last| *last != 0).unwrap_or(ino)));
                }
            }
            _ => {}
        },
        _ => ino.map(Object::inode).into_iter().for_each(put),
    }
}

/// Problems that make an index unusable, so that e2fsck cannot check the contents of its blocks.
const UNUSABLE_INDEX: &[&str] = &[
    "HTREE_SET",
    "HTREE_NODIR",
    "HTREE_BADROOT",
    "HTREE_HASHV",
    "HTREE_INCOMPAT",
    "HTREE_DEPTH",
    "HTREE_NEEDS_SIPHASH",
    "HTREE_CANNOT_SIPHASH",
    "HTREE_BAD_ROOT",
    "HTREE_BAD_LIMIT",
];
/// Problems that e2fsck reports for the blocks of an index.
const OF_INDEX_BLOCKS: &[&str] =
    &["HTREE_NOTREF", "HTREE_DUPREF", "HTREE_MIN_HASH", "HTREE_MAX_HASH", "HTREE_BAD_DEPTH"];
/// Checksums for which e2fsck reads the inode again. It mistakes a wrong checksum of the inode for a wrong one of the
/// block.
const BY_INODE: &[&str] = &["LEAF_NODE_ONLY_CSUM_INVALID", "EXTENT_ONLY_CSUM_INVALID"];

/// Why an object is named only because of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Echo {
    /// A block of an unusable index, or a hole in one.
    Index,
    /// A block of an inode whose own checksum is wrong.
    InodeChecksum,
    /// A count or a bitmap in the outdated descriptors of a backup.
    Backup,
    /// Everything, because the superblock says that the descriptors are where there are none.
    Descriptors,
    /// The directory with the name of an encrypted file whose context is missing: e2fsck takes the file for a plain one
    /// from then on.
    Context,
}

/// Leaves out objects that are named only because of others. `backup`: e2fsck uses a backup of the superblock, and so
/// the backup's descriptors. Returns the objects that are no longer named.
pub fn leave_out_echoes(named: &mut BTreeSet<Named>, backup: bool) -> BTreeMap<Object, Echo> {
    let code = |name: &&str| PROBLEMS.iter().find(|problem| problem.name == *name).map_or(0, |problem| problem.code);
    let codes = |names: &[&str]| names.iter().map(code).collect::<Vec<_>>();
    let with = |names: &[&str]| {
        let codes = codes(names);
        let those = named.iter().filter(|one| codes.contains(&one.code));
        those.map(|one| one.object).collect::<BTreeSet<Object>>()
    };
    let holes = Index::new(with(&["DIRECTORY_HOLE"]).into_iter());
    let (unusable, wrong) = (with(UNUSABLE_INDEX), with(&["INODE_ONLY_CSUM_INVALID"]));
    let (index_blocks, by_inode) = (codes(OF_INDEX_BLOCKS), codes(BY_INODE));
    let plain = codes(&["UNENCRYPTED_FILE"]);
    let without_context = !with(&["MISSING_ENCRYPTION_XATTR"]).is_empty();
    let mut left_out = BTreeMap::new();
    named.retain(|one| {
        let inode = match one.object {
            Object::DirBlocks(dir, ..) => Object::inode(dir),
            other => other,
        };
        let hole = holes.has(one.object);
        let echo = match () {
            () if backup && one.code >> 16 == 5 => Echo::Backup,
            () if index_blocks.contains(&one.code) && (hole || unusable.contains(&inode)) => Echo::Index,
            () if by_inode.contains(&one.code) && wrong.contains(&inode) => Echo::InodeChecksum,
            () if without_context && plain.contains(&one.code) => Echo::Context,
            () => return true,
        };
        left_out.insert(one.object, echo);
        false
    });
    for one in named.iter() {
        left_out.remove(&one.object);
    }
    left_out
}

/// How many objects e2fsck named, and the other checker's answers for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub named: u64,
    /// Those for which the other checker reports the same problem.
    pub same: u64,
    /// Those for which the other checker reports another problem.
    pub other: u64,
    /// Those for which the other checker reports no problem, each with its image.
    pub missing: Vec<String>,
}

/// The counts of each problem.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub counts: BTreeMap<u32, Count>,
    /// For all images, whatever the problems are: the number of objects that e2fsck named, and how many of them the
    /// other checker named.
    pub objects: (u64, u64),
}

/// The ranges of one kind of object, merged.
#[derive(Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn new(mut ranges: Vec<(u64, u64)>) -> Ranges {
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Ranges(merged)
    }

    fn contain(&self, first: u64, last: u64) -> bool {
        let at = self.0.partition_point(|range| range.0 <= first);
        at > 0 && last <= self.0[at - 1].1
    }
}

/// The objects that one checker named, by kind.
struct Index {
    inodes: Ranges,
    blocks: Ranges,
    dir_blocks: BTreeMap<u32, Ranges>,
    groups: BTreeSet<u32>,
}

impl Index {
    fn new(objects: impl Iterator<Item = Object>) -> Index {
        let (mut inodes, mut blocks, mut groups) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut dir_blocks: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for object in objects {
            match object {
                Object::Inodes(first, last) => inodes.push((first.into(), last.into())),
                Object::Blocks(first, last) => blocks.push((first, last)),
                Object::DirBlocks(dir, first, last) => dir_blocks.entry(dir).or_default().push((first, last)),
                Object::Group(group) => {
                    groups.insert(group);
                }
            }
        }
        let dir_blocks = dir_blocks.into_iter().map(|(dir, ranges)| (dir, Ranges::new(ranges))).collect();
        Index { inodes: Ranges::new(inodes), blocks: Ranges::new(blocks), dir_blocks, groups }
    }

    fn has(&self, object: Object) -> bool {
        match object {
            Object::Inodes(first, last) => self.inodes.contain(first.into(), last.into()),
            Object::Blocks(first, last) => self.blocks.contain(first, last),
            Object::DirBlocks(dir, first, last) => {
                self.dir_blocks.get(&dir).is_some_and(|ranges| ranges.contain(first, last))
            }
            Object::Group(group) => self.groups.contains(&group),
        }
    }
}

impl Tally {
    /// Counts an image: e2fsck's objects (`theirs`) and the other checker's (`ours`). `what` names the image.
    pub fn add(&mut self, what: &str, theirs: &BTreeSet<Named>, ours: &[Named]) {
        let all = Index::new(ours.iter().map(|named| named.object));
        let mut same: BTreeMap<u32, Index> = BTreeMap::new();
        for one in theirs {
            let of_code = same.entry(one.code).or_insert_with(|| {
                Index::new(ours.iter().filter(|named| named.code == one.code).map(|named| named.object))
            });
            let count = self.counts.entry(one.code).or_default();
            count.named += 1;
            if of_code.has(one.object) {
                count.same += 1;
            } else if all.has(one.object) {
                count.other += 1;
            } else {
                count.missing.push(format!("{what}: {:?}", one.object));
            }
        }
        let objects: BTreeSet<Object> = theirs.iter().map(|named| named.object).collect();
        self.objects.0 += objects.len() as u64;
        self.objects.1 += objects.iter().filter(|object| all.has(**object)).count() as u64;
    }

    /// Adds the counts of another tally.
    pub fn merge(&mut self, other: Tally) {
        for (code, theirs) in other.counts {
            let count = self.counts.entry(code).or_default();
            count.named += theirs.named;
            count.same += theirs.same;
            count.other += theirs.other;
            count.missing.extend(theirs.missing);
        }
        self.objects.0 += other.objects.0;
        self.objects.1 += other.objects.1;
    }

    /// The table as Markdown, one row per problem.
    pub fn table(&self) -> String {
        let mut text = String::from("| problem | named by e2fsck | same problem | another problem | missing |\n");
        text.push_str("|---|---:|---:|---:|---:|\n");
        for (code, count) in &self.counts {
            let name = PROBLEMS.iter().find(|problem| problem.code == *code).map_or("", |problem| problem.name);
            let missing = count.missing.len();
            let _ = writeln!(text, "| {name} | {} | {} | {} | {missing} |", count.named, count.same, count.other);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<problem_log time="1795782742">
<header code="0x010000"/>
<problem code="0x01000e" answer="0" ino="12" blk="99999" blkcount="3"/>
<problem code="0x020003" answer="0" ino="2" blk="210" blkcount="1"/>
<problem code="0x020012" answer="0" ino="15" dir="2"/>
<problem code="0x020034" answer="0" dir="17" blk="771" blkcount="4"/>
<problem code="0x050014" answer="0" blk="300" blk2="310"/>
<problem code="0x050009" answer="0" ino="20"/>
<problem code="0x050003" answer="0" blk="1"/>
<problem code="0x05000e" answer="0" blk="5" group="1"/>
<problem code="0x01000d" answer="0" ino="12" blk="1277" group="3" num="2"/>
</problem_log>"#;

    #[test]
    fn a_line_of_the_log_names_its_objects() {
        let expected = [
            (0x01_000e, Object::inode(12)),
            (0x01_000e, Object::block(99_999)),
            (0x02_0003, Object::inode(2)),
            (0x02_0003, Object::dir_block(2, 1)),
            (0x02_0012, Object::inode(15)),
            (0x02_0034, Object::inode(17)),
            (0x02_0034, Object::dir_block(17, 4)),
            (0x05_0004, Object::Blocks(300, 310)),
            (0x05_0009, Object::inode(20)),
            (0x05_000e, Object::Group(1)),
            // The rest of the line is left over.
            (0x01_000d, Object::inode(12)),
        ];
        let found: Vec<_> = named(LOG).into_iter().map(|named| (named.code, named.object)).collect();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn consequences_of_an_unusable_index_are_left_out() {
        let name = |code, object| Named { code, object };
        let (of_index, of_block) = (name(0x01_004c, Object::inode(17)), name(0x02_0034, Object::inode(18)));
        let echo = name(0x02_0034, Object::dir_block(17, 3));
        let mut all: BTreeSet<Named> = [of_index, of_block, echo].into();
        assert_eq!(leave_out_echoes(&mut all, false), [(echo.object, Echo::Index)].into());
        assert_eq!(all, [of_index, of_block].into());
        let group = name(0x05_000e, Object::Group(0));
        let mut all: BTreeSet<Named> = [of_block, group].into();
        assert_eq!(leave_out_echoes(&mut all, true), [(group.object, Echo::Backup)].into());
        assert_eq!(all, [of_block].into());
    }

    #[test]
    fn an_object_counts_once_and_a_range_only_as_a_whole() {
        let theirs = named(LOG);
        let name = |code, object| Named { code, object };
        let ours = [
            name(0x01_000e, Object::inode(12)),
            name(0x01_0058, Object::block(99_999)),
            name(0x05_0004, Object::Blocks(300, 305)),
            name(0x05_0004, Object::Blocks(306, 309)),
        ];
        let mut tally = Tally::default();
        tally.add("here", &theirs, &ours);
        let count = &tally.counts[&0x01_000e];
        assert_eq!((count.named, count.same, count.other), (2, 1, 1));
        assert_eq!(tally.counts[&0x05_0004].missing, ["here: Blocks(300, 310)"]);
        assert_eq!(tally.objects, (10, 2));
    }
}
