//! The interface of the two sides of a copy.
//!
//! Main types: [`Source`] and [`Sink`], implemented over the host's files and over an image; [`Node`] (attributes),
//! [`Trouble`] (an error without its place). The copy itself knows the place, so no side has to store paths, which in
//! a deep tree are longer than everything else.
//!
//! # Locking
//! None.

use std::io;

use extant_fs::Error;
use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;
use rustix::io::Errno;

use crate::content::Missing;
use crate::failure::{Failure, HURT, Result, plain};
use crate::mode::without_acl;

/// Identifies a file on its side (device and inode number).
pub type Id = (u64, u64);

/// A file's attributes.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub device: Option<DeviceNr>,
    pub id: Id,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The same for a copy without the file's ACL, if it may have one.
    pub fn guarded(&self) -> Node {
        Node { mode: without_acl(self.mode), ..self.clone() }
    }
}

pub use crate::image::Xattrs;

/// The result of reading a file.
#[derive(Debug)]
pub struct Content {
    pub size: u64,
    /// The file became shorter during the read.
    pub shrank: bool,
    /// The part that could not be read, if the caller still wants the rest.
    pub missing: Option<Missing>,
}

/// Why a file cannot be copied.
#[derive(Debug)]
pub enum Trouble {
    /// The cause; the caller puts the place in front of it.
    Here(String),
    /// The same, in an image that is rescued.
    Hurt(String),
    /// A complete message.
    Said(Failure),
}

pub type Step<T> = std::result::Result<T, Trouble>;

impl Trouble {
    pub fn here(cause: impl Into<String>) -> Trouble {
        Trouble::Here(cause.into())
    }

    pub fn at(self, place: impl FnOnce() -> String) -> Failure {
        match self {
            Trouble::Here(cause) => Failure::op(format!("{}: {cause}", place())),
            Trouble::Hurt(cause) => Failure::new(HURT, format!("{}: {cause}", place())),
            Trouble::Said(failure) => failure,
        }
    }
}

impl From<Errno> for Trouble {
    fn from(e: Errno) -> Trouble {
        io::Error::from(e).into()
    }
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Trouble {
        Trouble::Here(plain(&e))
    }
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Trouble {
        Trouble::Here(e.to_string())
    }
}

/// The side that a copy reads.
pub trait Source {
    /// A file in use.
    type Entry;

    /// For a file system in this process, its address; None for the host.
    fn image(&self) -> Option<usize>;
    /// The file at a path of the command line.
    fn top(&self, path: &[u8], follow: bool) -> Step<Self::Entry>;
    fn node(&self, entry: &Self::Entry) -> Step<Node>;
    /// Names in a directory after `after`, sorted, and whether more follow.
    fn names(&self, dir: &Self::Entry, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)>;
    fn child(&self, dir: &Self::Entry, name: &[u8]) -> Step<Self::Entry>;
    /// The directory `id` again, which contains `below`.
    fn parent(&self, below: &Self::Entry, id: Id) -> Step<Self::Entry>;
    fn target(&self, link: &Self::Entry) -> Step<Vec<u8>>;
    /// The attributes that can be read, and the error for the others.
    fn xattrs(&self, entry: &Self::Entry) -> (Xattrs, Step<()>);
    /// Calls `write` with offset and bytes of all data; the gaps are holes.
    fn read(&self, file: &Self::Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content>;
    /// Damage in spite of which the file was read; of a directory also that of its list of names.
    fn doubt(&self, entry: &Self::Entry) -> Step<()>;
    /// For messages.
    fn show(&self, path: &[u8]) -> String;
}

/// The side that a copy writes.
pub trait Sink {
    type Dir;
    type File;

    /// As [`Source::image`].
    fn image(&self) -> Option<usize>;
    /// An existing directory.
    fn top(&self, path: &[u8]) -> Step<Self::Dir>;
    /// The type of the file at `path`, with links followed.
    fn existing(&self, path: &[u8]) -> Step<Option<FileType>>;
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
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Step<()>;
    /// Sets size and attributes.
    fn finish_file(&self, file: Self::File, node: &Node, xattrs: &Xattrs) -> Step<Id>;
    fn finish_directory(&self, dir: Self::Dir, node: &Node, xattrs: &Xattrs) -> Step<()>;
    /// A symbolic link, device, fifo or socket; None if it is left out.
    fn special(&self, parent: &Self::Dir, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs)
    -> Step<Option<Id>>;
    /// Adds another name to the file `made`. `path`: the destination, the names of directories below it, the file's
    /// name. False: the file cannot have one.
    fn link(&self, made: Id, path: &[&[u8]], parent: &Self::Dir, name: &[u8]) -> Step<bool>;
    /// For messages.
    fn show(&self, path: &[u8]) -> String;
    /// Ends a complete copy.
    fn end(&self) -> Result<()>;
}
