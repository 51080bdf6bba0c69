//! Builds a tree from the entries of a source, in any order.
//!
//! Main types: [`Builder`], [`Attributes`] (those that every entry has), [`Options`] (the caller's changes to all
//! entries).
//!
//! A name belongs to a directory's number, not to its path. So removing or replacing a name also removes everything
//! below it without a walk, and [`Builder::finish`] leaves out nodes to which no name refers any more.
//!
//! [`path`] resolves paths to names, [`settle`] finds the targets of hard links to later names, [`finish`] numbers the
//! nodes.
//!
//! # Locking
//! None.

mod finish;
mod path;
mod settle;

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use extant_ondisk::dirent::NAME_MAX;
use extant_ondisk::inode::{DeviceNr, FileType, InodeFlags, MODE_TYPE_MASK};
use extant_ondisk::time::Timestamp;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

use self::path::PathPlace;
use super::{Body, Id, IdKind, Node, Owners, Xattr};
use crate::error::shown;
use crate::{Error, Result};

/// The maximum length of the target of a symbolic link: a path with its final NUL fills a page.
const TARGET_MAX: usize = 4095;
/// The kernel's limit: a path that follows more links than this is considered circular.
const LINKS_FOLLOWED_MAX: u32 = 40;
/// The kernel's limit for the number of bytes of a path whose links are followed, including the NUL.
const PATH_MAX: usize = 4096;
/// The maximum number of steps through the targets of links, plus [`STEPS_PER_ENTRY`] for each name. One path may take
/// 80,000, and a small compressed archive may have a million paths.
const STEPS_MAX: usize = 1 << 23;
const STEPS_PER_ENTRY: usize = 64;
/// [`Link::node`] of a hard link whose target is not known yet; the other bits are an index of [`Builder::pending`].
const PENDING: u32 = 1 << 31;
/// [`Link::node`] of a name that was removed.
const NOWHERE: u32 = u32::MAX;
/// The message if there are too many entries for their numbers.
const TOO_MANY: &str = "more entries than a file system can hold";
/// The maximum number of directories that occur only in paths, plus [`IMPLIED_PER_ENTRY`] for each entry. Two bytes of
/// a path suffice for one, and a small compressed archive may have very long paths.
const IMPLIED_MAX: usize = 100_000;
const IMPLIED_PER_ENTRY: usize = 10;
/// The root's number.
const ROOT: u32 = 0;

/// The attributes that every entry has.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// The permissions, and the type if the name of a method does not determine it.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The last change of the content.
    pub mtime: Timestamp,
    /// Flags that chattr(1) sets.
    pub flags: InodeFlags,
    /// Extended attributes, in any order.
    pub xattrs: Vec<Xattr>,
}

/// The changes that the caller wants in all entries.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// No entry gets a later time than this.
    pub clamp: Option<Timestamp>,
    /// The time of directories that are not in the source.
    pub default_time: Timestamp,
    /// The owner and group of every entry.
    pub owner: Option<(u32, u32)>,
    /// The owners of some entries, and numbers to replace.
    pub owners: Owners,
    /// Whether to leave out extended attributes.
    pub no_xattrs: bool,
}

/// A name in a directory.
struct Link {
    /// The offset of its name in [`Builder::names`], times 256, plus its length.
    name: u64,
    /// The directory.
    parent: u32,
    /// An index of [`Builder::nodes`], or [`PENDING`].
    node: u32,
}

/// A hard link to a name that was not known yet.
struct Pending {
    /// An index of [`Builder::links`].
    link: u32,
    path: Box<[u8]>,
    target: Box<[u8]>,
    position: Option<u64>,
}

/// Builds a tree. Paths are bytes; `./` and `/` at their beginning are ignored.
pub struct Builder {
    options: Options,
    /// Whether parents may be symbolic links of the tree.
    follow: bool,
    /// The number of names in the targets of links that were followed.
    steps: usize,
    nodes: Vec<Node>,
    /// The number of directories that were created without an entry.
    implied: usize,
    links: Vec<Link>,
    names: Vec<u8>,
    /// Indexes of `links`, by parent and name.
    index: HashTable<u32>,
    hasher: RandomState,
    xattrs: Vec<Box<[Xattr]>>,
    xattr_index: HashTable<u32>,
    data: Vec<Box<[Range<u64>]>>,
    pending: Vec<Pending>,
    /// The position of the next entry in its source, for messages.
    position: Option<u64>,
    /// The directory of the previous entry, because adjacent entries often have the same one.
    last: Option<(Vec<u8>, u32)>,
}

impl Builder {
    /// Creates a tree with a root directory.
    pub fn new(options: Options) -> Builder {
        let mut builder = Builder {
            options,
            follow: false,
            steps: 0,
            nodes: Vec::new(),
            implied: 0,
            links: Vec::new(),
            names: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            xattrs: Vec::new(),
            xattr_index: HashTable::new(),
            data: Vec::new(),
            pending: Vec::new(),
            position: None,
            last: None,
        };
        let root = builder.implied_directory(ROOT);
        builder.nodes.push(root);
        builder
    }

    /// After this call, a parent that is a symbolic link stands for the directory of the tree to which it leads, as in
    /// layers of a container.
    pub fn follow_links(&mut self) {
        self.follow = true;
    }

    /// Sets the position of the next entries in their source, for error messages.
    pub fn set_position(&mut self, bytes: u64) {
        self.position = Some(bytes);
    }

    /// Adds a directory. An existing one keeps its entries.
    ///
    /// # Errors
    /// The path is invalid, or leads through something other than directories.
    pub fn directory(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let place = self.place(path)?;
        let directory = match place {
            None => Some(ROOT),
            Some((parent, name)) => self.find(parent, name).filter(|node| self.is_directory(*node)),
        };
        let parent = match (&directory, place) {
            (Some(node), _) => self.parent(*node),
            (None, Some((parent, _))) => parent,
            (None, None) => ROOT,
        };
        let body = Body::Directory { entries: 0..0, parent: Id(parent) };
        let node = self.node(FileType::Directory, attributes, body);
        match (directory, place) {
            (Some(there), _) => self.nodes[there as usize] = node,
            (None, Some((parent, name))) => self.put(path, parent, name, node)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Adds a regular file of `size` bytes. `data` are the ranges with data, in bytes, sorted; `None` if there are no
    /// holes. `content` is the source's number for its bytes.
    ///
    /// # Errors
    /// As [`Builder::directory`]; the ranges overlap or extend past the end.
    pub fn file(
        &mut self,
        path: &[u8],
        attributes: Attributes,
        size: u64,
        data: Option<Vec<Range<u64>>>,
        content: u64,
    ) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(self.error(path, format!("a file of {size} bytes is larger than any can be")));
        }
        let sparse = match data {
            None => None,
            Some(data) => self.sparse(path, size, data)?,
        };
        let node = self.node(FileType::Regular, attributes, Body::File { size, sparse, content });
        self.add(path, node)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// As [`Builder::directory`]; the target is empty, too long or contains a NUL.
    pub fn symlink(&mut self, path: &[u8], attributes: Attributes, target: &[u8]) -> Result<()> {
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            let why = match target.len() {
                0 => "a symbolic link that leads nowhere".into(),
                len if len > TARGET_MAX => {
                    format!("the target of the symbolic link has {len} bytes; at most {TARGET_MAX} can be stored")
                }
                _ => "the target of the symbolic link has a NUL byte".into(),
            };
            return Err(self.error(path, why));
        }
        // This is as in the kernel; some programs that write archives use other permissions.
        let attributes = Attributes { mode: 0o777, ..attributes };
        let node = self.node(FileType::Symlink, attributes, Body::Symlink(target.into()));
        self.add(path, node)
    }

    /// Adds a character or block device, according to the mode.
    ///
    /// # Errors
    /// As [`Builder::directory`]; the mode is not that of a device, or an inode has no room for the numbers.
    pub fn device(&mut self, path: &[u8], attributes: Attributes, major: u32, minor: u32) -> Result<()> {
        let number = DeviceNr { major, minor };
        if DeviceNr::decode(&number.encode()) != number {
            return Err(self.error(path, format!("device {major}:{minor} does not fit into 12 and 20 bits")));
        }
        match FileType::from_mode(attributes.mode).filter(|kind| kind.is_device()) {
            Some(kind) => {
                let node = self.node(kind, attributes, Body::Device { major, minor });
                self.add(path, node)
            }
            None => Err(self.error(path, format!("mode {:o} is no device's", attributes.mode))),
        }
    }

    /// Adds a FIFO or a socket, according to the mode.
    ///
    /// # Errors
    /// As [`Builder::directory`]; the mode is that of neither.
    pub fn special(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        match FileType::from_mode(attributes.mode) {
            Some(kind @ (FileType::Fifo | FileType::Socket)) => {
                let node = self.node(kind, attributes, Body::Special);
                self.add(path, node)
            }
            _ => Err(self.error(path, format!("mode {:o} is no FIFO's and no socket's", attributes.mode))),
        }
    }

    /// Adds a name for the target of another name, either now or in [`Builder::settle`].
    ///
    /// # Errors
    /// As [`Builder::directory`]; the target is a directory, or an invalid path.
    pub fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let node = self.lookup(target);
        let node = node.map_err(|why| self.error(path, format!("a hard link to {}: {why}", shown(target))))?;
        match node {
            Some(node) if node & PENDING == 0 => self.link_to(path, target, node),
            _ => {
                let (parent, name) = self.place_of_file(path)?;
                let number = PENDING | self.pending.len() as u32;
                let link = self.enter(parent, name, number).map_err(|why| self.error(path, why))?;
                let (path, target) = (path.into(), target.into());
                self.pending.push(Pending { link, path, target, position: self.position });
                Ok(())
            }
        }
    }

    /// The node of a path, for [`Builder::link_to`]; `None` if there is none yet.
    pub fn target(&mut self, path: &[u8]) -> Option<u32> {
        self.lookup(path).ok().flatten().filter(|node| node & PENDING == 0)
    }

    /// Adds a name for `node`, a result of [`Builder::target`], even if that name has changed since.
    ///
    /// # Errors
    /// As [`Builder::directory`]; the node is a directory.
    pub fn link_to(&mut self, path: &[u8], target: &[u8], node: u32) -> Result<()> {
        if self.is_directory(node) {
            return Err(self.error(path, format!("a hard link to {}, which is a directory", shown(target))));
        }
        let (parent, name) = self.place_of_file(path)?;
        self.enter(parent, name, node).map_err(|why| self.error(path, why))?;
        Ok(())
    }

    /// Removes a name and everything below it. Other names of a file are kept. If there is no such name, nothing
    /// happens.
    ///
    /// # Errors
    /// The path is invalid, or leads through something other than directories, or is the root.
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let Some((parent, name)) = self.existing_place(path)? else { return Ok(()) };
        let hash = hash(&self.hasher, parent, name);
        let (links, names) = (&self.links, &self.names);
        let found = self.index.find_entry(hash, |link| is(&links[*link as usize], names, parent, name));
        if let Ok(found) = found {
            let (link, _) = found.remove();
            self.links[link as usize].node = NOWHERE;
            self.last = None;
        }
        Ok(())
    }

    /// Empties a directory. If there is no such directory, nothing happens.
    ///
    /// # Errors
    /// As [`Builder::remove`].
    pub fn make_opaque(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name) = match self.place_parts(path, false)? {
            PathPlace::Root => {
                // Its number is fixed, so all names are removed instead, so that a repetition costs nothing.
                if !self.index.is_empty() {
                    for link in self.index.drain() {
                        self.links[link as usize].node = NOWHERE;
                    }
                }
                self.last = None;
                return Ok(());
            }
            PathPlace::Missing => return Ok(()),
            PathPlace::In(parent, name) => (parent, name),
        };
        if let Some(node) = self.find(parent, name).filter(|node| self.is_directory(*node)) {
            let copy = self.nodes[node as usize].clone();
            self.put(path, parent, name, copy)?;
        }
        Ok(())
    }

    fn name(&self, link: u32) -> &[u8] {
        name_of(&self.links[link as usize], &self.names)
    }

    fn is_directory(&self, node: u32) -> bool {
        node & PENDING == 0 && matches!(self.nodes[node as usize].body, Body::Directory { .. })
    }

    /// The parent of a directory.
    fn parent(&self, directory: u32) -> u32 {
        match self.nodes[directory as usize].body {
            Body::Directory { parent, .. } => parent.0,
            _ => ROOT,
        }
    }

    fn error(&self, path: &[u8], why: impl Into<String>) -> Error {
        error_at(self.position, path, why.into())
    }

    /// The node of a name in a directory.
    fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let hash = hash(&self.hasher, parent, name);
        let link = self.index.find(hash, |link| is(&self.links[*link as usize], &self.names, parent, name))?;
        Some(self.links[*link as usize].node)
    }

    /// The node of a path. If its last name is a link, it is not followed.
    fn lookup(&mut self, path: &[u8]) -> std::result::Result<Option<u32>, String> {
        match self.descend(path, false)? {
            PathPlace::Root => Ok(Some(ROOT)),
            PathPlace::In(parent, name) => Ok(self.find(parent, name)),
            PathPlace::Missing => Ok(None),
        }
    }

    fn node(&mut self, kind: FileType, attributes: Attributes, body: Body) -> Node {
        let Attributes { mode, uid, gid, mtime, flags, xattrs } = attributes;
        let flags = flags & InodeFlags::allowed_for(Some(kind));
        let options = &self.options;
        let (uid, gid) = options
            .owner
            .unwrap_or_else(|| (options.owners.mapped(IdKind::User, uid), options.owners.mapped(IdKind::Group, gid)));
        let mtime = options.clamp.map_or(mtime, |clamp| mtime.min(clamp));
        let mode = kind.mode_bits() | (mode & !MODE_TYPE_MASK);
        let xattrs = if self.options.no_xattrs { None } else { self.xattr_set(xattrs) };
        Node { mode, uid, gid, mtime, flags, links: 0, xattrs, body }
    }

    fn implied_directory(&mut self, parent: u32) -> Node {
        let attributes = Attributes { mode: 0o755, mtime: self.options.default_time, ..Attributes::default() };
        self.node(FileType::Directory, attributes, Body::Directory { entries: 0..0, parent: Id(parent) })
    }

    /// The number of a set of attributes; each set is stored once.
    fn xattr_set(&mut self, mut set: Vec<Xattr>) -> Option<u32> {
        if set.is_empty() {
            return None;
        }
        // Of two attributes with the same name, the last one is used.
        set.reverse();
        set.sort_by(|a, b| a.0.cmp(&b.0));
        set.dedup_by(|a, b| a.0 == b.0);
        let (hasher, sets) = (&self.hasher, &mut self.xattrs);
        let same = |number: &u32| *sets[*number as usize] == *set;
        match self.xattr_index.entry(hasher.hash_one(&*set), same, |n| hasher.hash_one(&*sets[*n as usize])) {
            Slot::Occupied(found) => Some(*found.get()),
            Slot::Vacant(free) => {
                let number = sets.len() as u32;
                free.insert(number);
                sets.push(set.into());
                Some(number)
            }
        }
    }

    fn sparse(&mut self, path: &[u8], size: u64, mut data: Vec<Range<u64>>) -> Result<Option<u32>> {
        data.retain(|range| range.start != range.end);
        if data.iter().any(|range| range.start > range.end || range.end > size) {
            return Err(self.error(path, format!("its map of data leads beyond its {size} bytes")));
        }
        if data.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(self.error(path, "its map of data is not in order"));
        }
        data.dedup_by(|next, kept| {
            let adjacent = kept.end == next.start;
            if adjacent {
                kept.end = next.end;
            }
            adjacent
        });
        if size == 0 || (data.len() == 1 && data[0] == (0..size)) {
            return Ok(None);
        }
        self.data.push(data.into());
        Ok(Some(self.data.len() as u32 - 1))
    }

    /// Adds anything except a directory.
    fn add(&mut self, path: &[u8], node: Node) -> Result<()> {
        let (parent, name) = self.place_of_file(path)?;
        self.put(path, parent, name, node)
    }

    fn put(&mut self, path: &[u8], parent: u32, name: &[u8], node: Node) -> Result<()> {
        let number = self.new_node(node).map_err(|why| self.error(path, why))?;
        self.enter(parent, name, number).map_err(|why| self.error(path, why))?;
        Ok(())
    }

    fn new_node(&mut self, node: Node) -> std::result::Result<u32, &'static str> {
        let number = self.nodes.len() as u32;
        if number == PENDING {
            return Err(TOO_MANY);
        }
        self.nodes.push(node);
        Ok(number)
    }

    /// Makes a name refer to a node. Returns the number of the link.
    fn enter(&mut self, parent: u32, name: &[u8], node: u32) -> std::result::Result<u32, &'static str> {
        let hash = hash(&self.hasher, parent, name);
        let (hasher, links, names) = (&self.hasher, &mut self.links, &mut self.names);
        let same = |link: &u32| is(&links[*link as usize], names, parent, name);
        let again = |link: &u32| {
            let link = &links[*link as usize];
            self::hash(hasher, link.parent, name_of(link, names))
        };
        match self.index.entry(hash, same, again) {
            Slot::Occupied(found) => {
                let link = *found.get();
                // A removed directory may be the parent of the previous entry.
                self.last = None;
                links[link as usize].node = node;
                Ok(link)
            }
            Slot::Vacant(free) => {
                let number = links.len() as u32;
                if number == PENDING {
                    return Err(TOO_MANY);
                }
                free.insert(number);
                links.push(Link { name: (names.len() as u64) << 8 | name.len() as u64, parent, node });
                names.extend_from_slice(name);
                Ok(number)
            }
        }
    }
}

fn error_at(position: Option<u64>, path: &[u8], why: String) -> Error {
    let why = match position {
        Some(at) => format!("{why} (at byte {at})"),
        None => why,
    };
    Error::Entry { entry: shown(path), why }
}

fn hash(hasher: &RandomState, parent: u32, name: &[u8]) -> u64 {
    hasher.hash_one((parent, name))
}

fn name_of<'n>(link: &Link, names: &'n [u8]) -> &'n [u8] {
    let start = (link.name >> 8) as usize;
    &names[start..start + (link.name & 0xff) as usize]
}

fn is(link: &Link, names: &[u8], parent: u32, name: &[u8]) -> bool {
    link.parent == parent && name_of(link, names) == name
}
