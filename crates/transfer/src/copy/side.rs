//! The interface of the two sides of a copy.
//!
//! Main types: [`Source`] and [`Sink`], implemented over the host's files and over an image; [`Node`] (attributes).
//!
//! # Locking
//! None.

use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;

use crate::attributes::{Xattrs, without_acl};
use crate::content::Missing;
use crate::error::{Place, Result, Step};

/// Identifies a file on its side (device and inode number).
pub type Id = (u64, u64);

/// A file's attributes.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The number of its names.
    pub links: u64,
    /// The size in bytes.
    pub size: u64,
    /// The last access.
    pub atime: Timestamp,
    /// The last change of the content.
    pub mtime: Timestamp,
    /// The number of a device.
    pub device: Option<DeviceNr>,
    /// Its identity.
    pub id: Id,
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The attributes for a copy without the file's ACL, if it may have one.
    pub(crate) fn guarded(&self) -> Node {
        Node { mode: without_acl(self.mode), ..self.clone() }
    }
}

/// Rules for a copy to the host: the privileges that it takes along, and the files that it may replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Set-id bits, devices, and attributes of `security` and `trusted` are copied, too.
    pub privileges: bool,
    /// Files get the user's own owner, also if root copies.
    pub own: bool,
    /// A name that exists already is an error.
    pub only_new: bool,
}

/// The result of reading a file.
#[derive(Debug)]
pub struct Content {
    /// The size as it was read.
    pub size: u64,
    /// The file became shorter during the read.
    pub shrank: bool,
    /// The part that could not be read, if the caller still wants the rest.
    pub missing: Option<Missing>,
}

/// The side that a copy reads.
pub trait Source {
    /// A file in use.
    type Entry;

    /// For a file system in this process, its address; None for the host.
    fn image(&self) -> Option<usize>;
    /// The file at a path that the user named.
    fn top(&self, path: &[u8], follow: bool) -> Step<Self::Entry>;
    /// Its attributes.
    fn node(&self, entry: &Self::Entry) -> Step<Node>;
    /// Names in a directory after `after`, sorted, and whether more follow.
    fn names(&self, dir: &Self::Entry, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)>;
    /// The file `name` in a directory; a symbolic link is not followed.
    fn child(&self, dir: &Self::Entry, name: &[u8]) -> Step<Self::Entry>;
    /// The directory `id` again, which contains `below`.
    fn parent(&self, below: &Self::Entry, id: Id) -> Step<Self::Entry>;
    /// The target of a symbolic link.
    fn target(&self, link: &Self::Entry) -> Step<Vec<u8>>;
    /// The attributes that can be read, and the error for the others.
    fn xattrs(&self, entry: &Self::Entry) -> (Xattrs, Step<()>);
    /// Calls `write` with offset and bytes of all data; the gaps are holes.
    fn read(&self, file: &Self::Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content>;
    /// Damage in spite of which the file was read; of a directory also that of its list of names.
    fn doubt(&self, entry: &Self::Entry) -> Step<()>;
    /// A path of this side, for errors and events.
    fn place(&self, path: &[u8]) -> Place;
}

/// The side that a copy writes.
pub trait Sink {
    /// A directory in use.
    type Dir;
    /// A regular file that is being written.
    type File;

    /// As [`Source::image`].
    fn image(&self) -> Option<usize>;
    /// An existing directory.
    fn top(&self, path: &[u8]) -> Step<Self::Dir>;
    /// The type of the file at `path`, with links followed.
    fn existing(&self, path: &[u8]) -> Step<Option<FileType>>;
    /// The identity of a directory.
    fn id(&self, dir: &Self::Dir) -> Step<Id>;
    /// Whether `dir` is the directory `id` or lies below it.
    fn is_within(&self, dir: &Self::Dir, id: Id) -> Step<bool>;
    /// The file `name` there, without following a link.
    fn look(&self, dir: &Self::Dir, name: &[u8]) -> Step<Option<(FileType, Id)>>;
    /// A directory, new or existing. Its attributes are set last, so that no other user can look into it before.
    /// `follow`: the target of a symbolic link is used.
    fn directory(&self, parent: &Self::Dir, name: &[u8], follow: bool) -> Step<Self::Dir>;
    /// The directory `id` again, which contains `below`.
    fn parent(&self, below: &Self::Dir, id: Id) -> Step<Self::Dir>;
    /// A regular file, emptied if it exists. `named`: the user named it, not the source. `source`: the file that must
    /// not be emptied, if it lies in the same image.
    fn file(&self, parent: &Self::Dir, name: &[u8], named: bool, source: Option<Id>) -> Step<Self::File>;
    /// Writes data at `offset`, all of it.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Step<()>;
    /// Sets size and attributes.
    fn finish_file(&self, file: Self::File, node: &Node, xattrs: &Xattrs) -> Step<Id>;
    /// Sets the attributes.
    fn finish_directory(&self, dir: Self::Dir, node: &Node, xattrs: &Xattrs) -> Step<()>;
    /// A symbolic link, device, fifo or socket; None if it is left out.
    fn special(&self, parent: &Self::Dir, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs)
    -> Step<Option<Id>>;
    /// Adds another name to the file `made`. `path`: the destination, the names of directories below it, the file's
    /// name. False: the file cannot have one.
    fn link(&self, made: Id, path: &[&[u8]], parent: &Self::Dir, name: &[u8]) -> Step<bool>;
    /// A path of this side, for errors and events.
    fn place(&self, path: &[u8]) -> Place;
}
