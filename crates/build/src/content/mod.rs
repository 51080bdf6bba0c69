//! The plan of a tree on a skeleton.
//!
//! Main types: [`ContentPlan`], [`Key`] (the content of a piece). Main function: [`add_lost_found`] (must be called for
//! each tree first).
//!
//! Memory: 40 bytes per inode, and the layout of one directory. Pieces are created when they are needed.
//!
//! # Locking
//! `build directory` protects the layout of the directory whose blocks were created last. Nothing is called under it.

mod attributes;
mod digest;
mod fill;
mod inline;
mod inodes;
mod line;
mod map;
mod names;
mod numbers;
mod order;
mod place;
mod size;

pub use digest::digest;
pub use place::Object;
pub use size::{Spare, fit};

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_ondisk::dirent::{DirBlockFormat, DirRule, DirectoryLayout, WholeFormat};
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::htree::{HashVersion, Hasher};
use extant_ondisk::inode::{FAST_SYMLINK_LIMIT, InodeDesc, InodeFlags, LINK_MAX};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{casefold, indirect};

use crate::error::shown;
use crate::options::Options;
use crate::plan::{Piece, Plan};
use crate::skeleton::{self, Finished, OwnerUsage, Skeleton, Usage};
use crate::tree::{Body, Content, Id, Tree};
use crate::{Error, Result};
use line::Line;
use map::{FileMap, Ranges};
use numbers::Numbers;
use order::Order;
use place::{Places, Record};

static DIRECTORY: LockClass = LockClass::new("build directory", 772);

/// The maximum size of a file without `large_file`.
const SMALL_FILE_MAX: u64 = i32::MAX as u64;
/// The size of lost+found in bytes, in 2 to 12 blocks, for the inodes that e2fsck finds.
const LOST_FOUND_BYTES: u32 = 16 << 10;
/// The project of all inodes, because no source specifies another.
const PROJECT: u32 = 0;

/// Adds a lost+found to a tree, unless it has one.
///
/// # Errors
/// An entry with that name is not a directory.
pub fn add_lost_found(tree: &mut Tree) -> Result<()> {
    numbers::add_lost_found(tree)
}

/// The owners of a tree's inodes, if there are quota files.
fn owners(tree: &Tree, options: &Options) -> OwnerUsage {
    let mut owned = OwnerUsage::default();
    if options.quota.contains(&true) {
        tree.nodes.iter().for_each(|node| owned.add([node.uid, node.gid, PROJECT], 0));
    }
    owned
}

/// A tree on a skeleton: the place of each block, and its content.
pub struct ContentPlan<'a> {
    placement: Placement<'a>,
    content: &'a dyn Content,
    finished: Finished,
    last: Mutex<Option<(Id, Arc<DirectoryLayout>)>>,
}

/// The places of everything.
struct Placement<'a> {
    superblock: SuperBlock,
    tree: &'a Tree,
    numbers: Numbers,
    line: Line,
    directories: WholeFormat,
    placed: Places,
}

/// The results of another placement of the same tree.
#[derive(Default)]
struct PriorPlacement {
    /// The order of the inodes, reused if names are hashed the same way.
    order: Option<Order>,
    /// The records, reused without change; empty if nothing is known.
    records: Vec<Record>,
}

/// The contents of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A part of the skeleton.
    Skeleton(skeleton::Key),
    /// A part of the tree.
    Tree {
        /// The part.
        object: Object,
        /// The number of its blocks before the piece.
        from: u64,
    },
}

impl<'a> ContentPlan<'a> {
    /// Plans a tree that has a lost+found ([`add_lost_found`]).
    ///
    /// # Errors
    /// The options contradict each other or the size, an entry cannot be stored in such a file system, or there are too
    /// few blocks or inodes.
    pub fn new(options: &Options, tree: &'a Tree, content: &'a dyn Content) -> Result<ContentPlan<'a>> {
        let skeleton = Skeleton::plan(options, &owners(tree, options))?;
        let placement = Placement::new(&skeleton, tree, PriorPlacement::default())?;
        placement.check_room()?;
        let finished = skeleton.finish(placement.usage(options)?)?;
        Ok(ContentPlan { placement, content, finished, last: Mutex::new(&DIRECTORY, None) })
    }

    /// The superblock as it is written.
    pub fn superblock(&self) -> &SuperBlock {
        self.finished.superblock()
    }

    /// A warning for the user about times that the inodes cannot store, so that the image differs from the tree.
    pub fn warning(&self) -> Option<String> {
        self.placement.times_moved()
    }

    /// The layout of a directory whose blocks are being created.
    fn layout_for_blocks(&self, id: Id) -> Result<Arc<DirectoryLayout>> {
        if self.placement.placed.records[id.0 as usize].blocks > 1
            && let Some((_, whole)) = self.last.lock().as_ref().filter(|(last, _)| *last == id)
        {
            return Ok(whole.clone());
        }
        let whole = Arc::new(self.placement.lay_out(id)?);
        if whole.blocks() > 1 {
            *self.last.lock() = Some((id, whole.clone()));
        }
        Ok(whole)
    }
}

impl<'a> Placement<'a> {
    /// Places a tree, even if there is not enough room for it.
    fn new(skeleton: &Skeleton, tree: &'a Tree, known: PriorPlacement) -> Result<Placement<'a>> {
        let (geo, sb) = (skeleton.geometry(), skeleton.superblock());
        let hash = HashVersion::from_disk(sb.default_hash_version(), sb.hash_unsigned());
        let hasher = Hasher::new(hash.unwrap_or(HashVersion::HalfMd4), sb.hash_seed());
        let hasher = geo.dir_index.then_some(hasher);
        let numbers = Numbers::new(skeleton, tree, hasher, known.order)?;
        let blocks = DirBlockFormat {
            has_filetype: geo.filetype,
            has_csum: geo.metadata_csum,
            inodes_count: geo.inodes_count,
            encrypted: false,
        };
        let directories = WholeFormat {
            blocks,
            block_size: geo.block_size as usize,
            hasher,
            levels_most: if geo.large_dir { 2 } else { 1 },
        };
        // The last cluster stays free if it is cut off.
        let cluster = u64::from(geo.blocks_per_cluster());
        let free = skeleton.free_runs().map(|run| run.start..run.end / cluster * cluster).filter(|run| !run.is_empty());
        let mut placement = Placement {
            superblock: sb.clone(),
            tree,
            numbers,
            line: Line::new(free),
            directories,
            placed: Places { records: known.records, ..Places::default() },
        };
        placement.place()?;
        Ok(placement)
    }

    /// The number of blocks that are missing in a file system with this content; if negative, the number of free
    /// blocks.
    fn blocks_missing(&self) -> i64 {
        self.placed.end as i64 - self.line.len() as i64
    }

    /// Fails if there are too few blocks or inodes.
    fn check_room(&self) -> Result<()> {
        let geo = self.geometry();
        if self.numbers.last() > geo.inodes_count {
            return Err(Error::Options(format!(
                "the content needs {} inodes, and the file system has {}; ask for as many with -N",
                self.numbers.last(),
                geo.inodes_count
            )));
        }
        if self.blocks_missing() > 0 {
            return Err(Error::Options(format!(
                "the content needs {} blocks of {} bytes, {} more than are free; make the file system larger, or let --size auto choose",
                self.placed.end,
                geo.block_size,
                self.blocks_missing()
            )));
        }
        Ok(())
    }

    fn geometry(&self) -> &Geometry {
        self.superblock.geometry()
    }

    fn usage(&self, options: &Options) -> Result<Usage> {
        let mut blocks: Vec<Range<u64>> = Vec::new();
        for range in [0..self.placed.metadata_end, self.placed.data..self.placed.end] {
            for (start, len) in self.line.runs(range) {
                match blocks.last_mut() {
                    Some(last) if last.end == start.0 => last.end += len,
                    _ => blocks.push(start.0..start.0 + len),
                }
            }
        }
        let is_directory = |id: &Id| matches!(self.tree.node(*id).body, Body::Directory { .. });
        let mut directories: Vec<_> = self.ids().filter(is_directory).map(|id| self.numbers.ino(id)).collect();
        directories.sort_unstable();
        let mut owned = OwnerUsage::default();
        for id in self.ids().filter(|_| options.quota.contains(&true)) {
            let node = self.tree.node(id);
            owned.add([node.uid, node.gid, PROJECT], self.bytes(id)?);
        }
        Ok(Usage { blocks, last_ino: self.numbers.last(), directories, owned })
    }

    /// Rejects inodes that the file system cannot store.
    fn check(&self, id: Id) -> Result<()> {
        let (geo, node) = (self.geometry(), self.tree.node(id));
        let ro_compat = self.superblock.ro_compat();
        let refuse = |why: String| Err(self.entry(id, why));
        let is_directory = matches!(node.body, Body::Directory { .. });
        if node.links > LINK_MAX.into() && !(is_directory && ro_compat.contains(RoCompat::DIR_NLINK)) {
            let kind = if is_directory { "subdirectories, without dir_nlink" } else { "names" };
            return refuse(format!("has too many {kind}: at most {LINK_MAX} links can be counted"));
        }
        if node.xattrs.is_some() && !self.superblock.compat().contains(Compat::EXT_ATTR) {
            return refuse("has extended attributes, which need the feature ext_attr".into());
        }
        if is_directory && self.folds(id) {
            self.check_folded(id)?;
        }
        match &node.body {
            Body::Symlink(target) if target.len() >= geo.block_size as usize => {
                let (len, most) = (target.len(), geo.block_size - 1);
                return refuse(format!(
                    "a target of {len} bytes, but a block holds at most {most}; use larger blocks (-b)"
                ));
            }
            Body::File { size, .. } => {
                if *size > SMALL_FILE_MAX && !ro_compat.contains(RoCompat::LARGE_FILE) {
                    return refuse("is larger than 2 GiB, which needs the feature large_file".into());
                }
                let most = match self.pointers() {
                    Some(pointers) => u64::from(pointers.logical_end()) << geo.block_bits,
                    None => u64::from(extant_ondisk::extent::LOGICAL_END - 1) << geo.block_bits,
                };
                if *size > most {
                    return refuse(format!(
                        "has {size} bytes, but blocks of this size map at most {most}; use larger blocks (-b)"
                    ));
                }
                if self.map(id)?.blocks() << (geo.block_bits - 9) > InodeDesc::max_blocks(geo) {
                    return refuse("has more blocks than can be counted without the feature huge_file".into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The mapping of files without extents.
    fn pointers(&self) -> Option<indirect::Geometry> {
        let geo = self.geometry();
        (!geo.extents).then(|| indirect::Geometry::new(geo.block_size))
    }

    /// The blocks of an inode that has a map, or of a symbolic link.
    fn map(&self, id: Id) -> Result<FileMap> {
        let node = self.tree.node(id);
        let ranges = match &node.body {
            _ if self.placed.records[id.0 as usize].inline => Some(Ranges::all(0)),
            Body::Directory { .. } => Some(Ranges::all(self.placed.records[id.0 as usize].blocks)),
            Body::Symlink(target) => Some(Ranges::all(u32::from(target.len() as u64 >= FAST_SYMLINK_LIMIT))),
            _ => Ranges::of(self.tree, node, self.geometry().block_bits),
        };
        let map = ranges.and_then(|ranges| FileMap::new(ranges, self.pointers(), self.geometry().blocks_per_cluster()));
        map.ok_or_else(|| self.entry(id, "has more blocks than can be mapped; use larger blocks (-b) or extents"))
    }

    /// The range of a directory's entries in the tree's list.
    fn entries(&self, id: Id) -> Range<u32> {
        match &self.tree.node(id).body {
            Body::Directory { entries, .. } => entries.clone(),
            _ => 0..0,
        }
    }

    /// Whether a directory ignores case. Without the feature, none does.
    fn folds(&self, id: Id) -> bool {
        let has = self.superblock.incompat().contains(Incompat::CASEFOLD);
        has && self.tree.node(id).flags.contains(InodeFlags::CASEFOLD)
    }

    /// How a directory is written: the index of one that ignores case has hashes of folded names.
    fn format(&self, id: Id) -> WholeFormat {
        let hasher = self.directories.hasher.map(|hasher| hasher.folding(self.folds(id)));
        WholeFormat { hasher, ..self.directories }
    }

    /// Refuses names that a directory which ignores case cannot have.
    fn check_folded(&self, id: Id) -> Result<()> {
        let strict = self.superblock.raw().s_encoding_flags.get() & casefold::STRICT != 0;
        let mut names: HashMap<Vec<u8>, &[u8]> = HashMap::new();
        for place in self.entries(id) {
            let (name, _) = self.tree.entry(place);
            if !casefold::may_be_written(name, strict) {
                let why = format!("ignores case, and cannot have the name '{}'", shown(name));
                return Err(self.entry(id, why));
            }
            if let Some(other) = names.insert(casefold::fold(name), name) {
                let why = format!("ignores case, but '{}' and '{}' are then one name", shown(other), shown(name));
                return Err(self.entry(id, why));
            }
        }
        Ok(())
    }

    /// The layout of a directory.
    fn lay_out(&self, id: Id) -> Result<DirectoryLayout> {
        let block_size = self.geometry().block_size;
        let blocks_min = if self.numbers.is_lost_found(id) { (LOST_FOUND_BYTES / block_size).clamp(2, 12) } else { 0 };
        let entries = self.entries(id);
        let name = |number| self.tree.entry(entries.start + number).0;
        self.format(id).lay_out(entries.len() as u32, name, blocks_min).map_err(|damage| match damage.what {
            DirRule::IndexFull => self.entry(
                id,
                format!(
                    "{} names are more than an index has room for; use larger blocks (-b) or the feature large_dir",
                    entries.len()
                ),
            ),
            DirRule::Unwritable => self.entry(id, "has a name that cannot be stored"),
            _ => self.entry(id, damage),
        })
    }

    /// An error about an entry, with its path.
    fn entry(&self, id: Id, why: impl ToString) -> Error {
        Error::Entry { entry: self.tree.path(id), why: why.to_string() }
    }
}

impl Plan for ContentPlan<'_> {
    type Key = Key;

    fn block_size(&self) -> u32 {
        self.placement.geometry().block_size
    }

    fn blocks_count(&self) -> u64 {
        self.placement.geometry().blocks_count
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<Key>> + Send {
        let skeleton = self.finished.pieces().into_iter().map(|piece| piece.map(Key::Skeleton));
        let tree = self.placement.objects().flat_map(|(object, at, range)| {
            let (at, len, mut from) = (at + range.start, range.end - range.start, range.start);
            self.placement.line.runs(at..at + len).flat_map(move |(start, len)| {
                let first = from;
                from += len;
                pieces_of(start.0, len, object, first)
            })
        });
        let (mut skeleton, mut tree) = (skeleton.peekable(), tree.peekable());
        std::iter::from_fn(move || match (skeleton.peek(), tree.peek()) {
            (Some(one), Some(other)) if other.start < one.start => tree.next(),
            (Some(_), _) => skeleton.next(),
            (None, _) => tree.next(),
        })
    }

    fn superblocks(&self) -> impl Iterator<Item = Piece<Key>> {
        self.finished.superblocks().map(|piece| piece.map(Key::Skeleton))
    }

    fn fill(&self, key: Key, first: u32, buf: &mut [u8]) -> Result<()> {
        match key {
            Key::Skeleton(key) => self.finished.fill(key, first, buf, self),
            Key::Tree { object, from } => self.fill_object(object, from + u64::from(first), buf),
        }
    }
}

/// Splits a run into pieces, each of which counts its blocks with 32 bits.
fn pieces_of(start: u64, len: u64, object: Object, first: u64) -> impl Iterator<Item = Piece<Key>> {
    const MOST: u64 = 1 << 31;
    (0..len.div_ceil(MOST)).map(move |i| {
        let skip = i * MOST;
        let blocks = (len - skip).min(MOST) as u32;
        let start = extant_ondisk::BlockNr(start + skip);
        Piece { start, blocks, key: Key::Tree { object, from: first + skip } }
    })
}
