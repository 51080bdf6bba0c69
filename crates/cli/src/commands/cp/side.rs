//! What the two sides of a copy offer.
//!
//! Main types: [`Source`] and [`Sink`], implemented over the host's files and over an image; [`Node`] (attributes),
//! [`Trouble`] (what went wrong: the copy itself knows where, so that no side has to carry paths, which in a deep tree
//! are longer than everything else).
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

/// Which file it is, on its side (device and inode number).
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

    /// The same without its ACL, which there may be: its mask, which looks like the group's permissions then, must not
    /// become those. The group gets what everybody gets.
    pub fn guarded(&self) -> Node {
        Node { mode: self.mode & !(0o70 & !((self.mode & 0o7) << 3)), ..self.clone() }
    }
}

pub use crate::image::Xattrs;

/// What was read of a file.
#[derive(Debug)]
pub struct Content {
    pub size: u64,
    /// Meanwhile it has become shorter than it was.
    pub shrank: bool,
    /// The part that cannot be read, if the rest is wanted all the same.
    pub missing: Option<Missing>,
}

/// Why something cannot be copied.
#[derive(Debug)]
pub enum Trouble {
    /// The cause; the place is put in front of it.
    Here(String),
    /// The same, in an image that is rescued.
    Hurt(String),
    /// Complete.
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

/// Where a copy comes from.
pub trait Source {
    /// A file in use.
    type Entry;

    /// The file system in this process that it lies in, by its address; none for the host.
    fn image(&self) -> Option<usize>;
    /// What was named on the command line.
    fn top(&self, path: &[u8], follow: bool) -> Step<Self::Entry>;
    fn node(&self, entry: &Self::Entry) -> Step<Node>;
    /// Names in a directory behind `after`, sorted, and whether others follow these.
    fn names(&self, dir: &Self::Entry, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)>;
    fn child(&self, dir: &Self::Entry, name: &[u8]) -> Step<Self::Entry>;
    /// The directory `id` again, in which `below` is.
    fn parent(&self, below: &Self::Entry, id: Id) -> Step<Self::Entry>;
    fn target(&self, link: &Self::Entry) -> Step<Vec<u8>>;
    fn xattrs(&self, entry: &Self::Entry) -> Step<Xattrs>;
    /// Calls `write` with offset and bytes of all data; what is left out is a hole.
    fn read(&self, file: &Self::Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content>;
    /// For messages.
    fn show(&self, path: &[u8]) -> String;
}

/// Where a copy goes.
pub trait Sink {
    type Dir;
    type File;

    /// As [`Source::image`].
    fn image(&self) -> Option<usize>;
    /// A directory that is there.
    fn top(&self, path: &[u8]) -> Step<Self::Dir>;
    /// What is at `path`, links followed.
    fn existing(&self, path: &[u8]) -> Step<Option<FileType>>;
    fn id(&self, dir: &Self::Dir) -> Step<Id>;
    /// Whether `dir` is the directory `id` or lies below it.
    fn is_within(&self, dir: &Self::Dir, id: Id) -> Step<bool>;
    /// What is called `name` there, not followed.
    fn look(&self, dir: &Self::Dir, name: &[u8]) -> Step<Option<(FileType, Id)>>;
    /// A directory, which may be there; its attributes come last, so nobody else can look in. `follow`: what a symbolic
    /// link leads to counts as it.
    fn directory(&self, parent: &Self::Dir, name: &[u8], follow: bool) -> Step<Self::Dir>;
    /// The directory `id` again, in which `below` is.
    fn parent(&self, below: &Self::Dir, id: Id) -> Step<Self::Dir>;
    /// A regular file, emptied if it is there. `named`: by the user, not by the source. `source`: what must not be
    /// emptied, if it lies in the same image.
    fn file(&self, parent: &Self::Dir, name: &[u8], named: bool, source: Option<Id>) -> Step<Self::File>;
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Step<()>;
    /// Gives it its size and attributes.
    fn finish_file(&self, file: Self::File, node: &Node, xattrs: &Xattrs) -> Step<Id>;
    fn finish_directory(&self, dir: Self::Dir, node: &Node, xattrs: &Xattrs) -> Step<()>;
    /// A symbolic link, device, fifo or socket; none if it is left out.
    fn special(&self, parent: &Self::Dir, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs)
    -> Step<Option<Id>>;
    /// Another name for the file `made`. `path`: the destination, the names of directories below it, the file's name.
    /// False: it cannot have one.
    fn link(&self, made: Id, path: &[&[u8]], parent: &Self::Dir, name: &[u8]) -> Step<bool>;
    /// For messages.
    fn show(&self, path: &[u8]) -> String;
    /// Everything is copied.
    fn end(&self) -> Result<()>;
}
