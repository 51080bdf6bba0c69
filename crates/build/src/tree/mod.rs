//! The content of a new file system: directories, files and their attributes.
//!
//! Main types: [`Tree`], [`Node`] (a future inode), [`Body`] (the part that depends on its type), [`Content`] (the
//! source of the files' bytes), [`Builder`] (builds a tree from entries in any order), [`Owners`] (the owners of its
//! entries).
//!
//! The order is fixed. The names of a directory ascend as bytes. Inodes are numbered in the order in which a walk first
//! finds them: all entries of a directory, then its first subdirectory with everything below it, then the second. So
//! two sources with the same content result in the same tree. These are not the numbers in the file system.
//!
//! # Locking
//! None. Threads that write an image share the tree and only read it.

mod builder;
mod owners;
#[cfg(test)]
mod tests;

use std::ops::Range;

use extant_ondisk::inode::{InodeFlags, MODE_TYPE_MASK};
use extant_ondisk::time::Timestamp;
use extant_ondisk::xattr::{Name, index};

use crate::Result;

pub use builder::{Attributes, Builder, Options};
pub use owners::{IdKind, Owners};

/// An inode of a tree; 0 is the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// An inode that will be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions (`st_mode`).
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The last change of the content. The image's other times are the same, so that they depend only on the source.
    pub mtime: Timestamp,
    /// The flags that chattr(1) sets and such an inode can have.
    pub flags: InodeFlags,
    /// The number of names; for a directory, 2 plus the number of its subdirectories, without a limit.
    pub links: u32,
    /// The index in [`Tree::xattrs`]; `None` if there are none.
    pub xattrs: Option<u32>,
    /// The part that depends on the type.
    pub body: Body,
}

/// The part of an inode that depends on its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Entries of the tree's list, without `.` and `..`.
    Directory {
        /// The range of [`Tree::entries`].
        entries: Range<u32>,
        /// The parent directory; for the root, its own number.
        parent: Id,
    },
    /// A regular file.
    File {
        /// The size in bytes.
        size: u64,
        /// The index in [`Tree::data`]; `None` if the file has no holes.
        sparse: Option<u32>,
        /// The source's own number, with which [`Content::open`] finds it.
        content: u64,
    },
    /// A symbolic link and its target; 1 to 4095 bytes, none of them 0.
    Symlink(Box<[u8]>),
    /// A character or block device.
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// A FIFO or a socket.
    Special,
}

/// An extended attribute: its full name (`user.x`, `system.posix_acl_access`) and its value as in getxattr(2).
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// The stored form of an attribute's name in an image; `None` if the image has no place for it. Linux shows no
/// attribute of the Hurd, but the Hurd finds its own in an image that was created elsewhere.
pub(crate) fn stored_name(full: &[u8]) -> Option<Name<'_>> {
    Name::parse(full).or_else(|| Name::parse_any(full).filter(|name| name.index == index::HURD))
}

/// The content of a new file system.
#[derive(Debug, Default)]
pub struct Tree {
    /// The inodes, by [`Id`].
    pub(crate) nodes: Vec<Node>,
    /// The entries of all directories: the end of the name in `names`, and the inode. The name begins at the end of the
    /// previous one.
    pub(crate) entries: Vec<(u64, Id)>,
    /// All names, one after the other.
    pub(crate) names: Vec<u8>,
    /// Sets of attributes, each once, sorted by name.
    pub(crate) xattrs: Vec<Box<[Xattr]>>,
    /// The ranges with data of each file with holes, in bytes, sorted, not adjacent.
    pub(crate) data: Vec<Box<[Range<u64>]>>,
}

impl Tree {
    /// An entry of some directory by its place in the list of all: the name and the inode.
    pub(crate) fn entry(&self, place: u32) -> (&[u8], Id) {
        let (end, id) = self.entries[place as usize];
        let start = place.checked_sub(1).map_or(0, |before| self.entries[before as usize].0);
        (&self.names[start as usize..end as usize], id)
    }

    /// Makes a directory and all directories below it ignore case, as chattr(1) and inheritance would. False: the tree
    /// has no directory of this path.
    pub fn ignore_case(&mut self, path: &[u8]) -> bool {
        let mut top = Id(0);
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            let Some(place) = self.places(top).find(|place| self.entry(*place).0 == part) else { return false };
            top = self.entry(place).1;
        }
        let mut pending = vec![top];
        while let Some(id) = pending.pop() {
            let node = &mut self.nodes[id.0 as usize];
            if !matches!(node.body, Body::Directory { .. }) {
                continue;
            }
            node.flags |= InodeFlags::CASEFOLD;
            pending.extend(self.places(id).map(|place| self.entry(place).1));
        }
        matches!(self.nodes[top.0 as usize].body, Body::Directory { .. })
    }

    /// The places of a directory's entries in the list of all.
    fn places(&self, id: Id) -> Range<u32> {
        match &self.nodes[id.0 as usize].body {
            Body::Directory { entries, .. } => entries.clone(),
            _ => 0..0,
        }
    }

    /// The number of inodes; at least 1.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is not even a root. No source creates such a tree.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The inode of a number below [`Tree::len`].
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Replaces the owner of the root directory.
    pub fn set_root_owner(&mut self, (uid, gid): (u32, u32)) {
        if let Some(root) = self.nodes.first_mut() {
            (root.uid, root.gid) = (uid, gid);
        }
    }

    /// Replaces the permissions of the root directory.
    pub fn set_root_permissions(&mut self, permissions: u16) {
        if let Some(root) = self.nodes.first_mut() {
            root.mode = root.mode & MODE_TYPE_MASK | permissions & !MODE_TYPE_MASK;
        }
    }

    /// Adds an attribute to the root directory.
    pub fn set_root_xattr(&mut self, name: &[u8], value: &[u8]) {
        let Some(root) = self.nodes.first_mut() else { return };
        let mut set = root.xattrs.map_or(Vec::new(), |set| self.xattrs[set as usize].to_vec());
        set.retain(|(other, _)| **other != *name);
        set.push((name.into(), value.into()));
        set.sort();
        let known = self.xattrs.iter().position(|other| **other == *set);
        root.xattrs = Some(known.unwrap_or(self.xattrs.len()) as u32);
        if known.is_none() {
            self.xattrs.push(set.into());
        }
    }

    /// The sum of the sizes of all files, including holes.
    pub fn file_bytes(&self) -> u64 {
        let size = |node: &Node| if let Body::File { size, .. } = node.body { size } else { 0 };
        self.nodes.iter().map(size).fold(0, u64::saturating_add)
    }

    /// The entries of a directory: names in ascending order, and their inodes. Nothing for other inodes.
    pub fn entries(&self, id: Id) -> impl ExactSizeIterator<Item = (&[u8], Id)> {
        let range = match &self.node(id).body {
            Body::Directory { entries, .. } => entries.clone(),
            _ => 0..0,
        };
        range.map(|i| {
            let (end, id) = self.entries[i as usize];
            let start = i.checked_sub(1).map_or(0, |before| self.entries[before as usize].0);
            (&self.names[start as usize..end as usize], id)
        })
    }

    /// The attributes of a set, whose number is in [`Node::xattrs`].
    pub fn xattrs(&self, set: u32) -> &[Xattr] {
        &self.xattrs[set as usize]
    }

    /// The ranges of a file with data, in bytes: sorted, not adjacent, within its size.
    pub fn data(&self, sparse: u32) -> &[Range<u64>] {
        &self.data[sparse as usize]
    }
}

/// The source of the files' bytes.
pub trait Content: Sync {
    /// Opens a file that one thread reads.
    ///
    /// # Errors
    /// It cannot be opened, or has changed since the tree was built. The error contains its name.
    fn open(&self, content: u64) -> Result<Box<dyn ReadAt + '_>>;
}

/// The bytes of one file.
pub trait ReadAt {
    /// Fills `buf` from `offset` on. Holes are zeros.
    ///
    /// # Errors
    /// It cannot be read, or has other bytes than when the tree was built. The error contains its name.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Called when the whole file has been read. Checks whether it has changed in the meantime.
    ///
    /// # Errors
    /// It has changed. The error contains its name.
    fn finish(&self) -> Result<()>;
}
