//! The sides of a copy that lie in an image.
//!
//! # Locking
//! None held between calls.

use extant_fs::walk::{Name, Names};
use extant_fs::{Damage, Error, Filesystem, InodeRef, NewNode, SetAttr, SetMode, SetTime, WriteFlags};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;

use super::side::{Content, Id, Node, Sink, Source};
use crate::attributes::{self, Xattrs};
use crate::content::{self, TransferError, image_id};
use crate::error::{Cause, Place, Result, Step};
use crate::owners::Owners;
use crate::path;

/// Within an image the inode's number identifies a file.
fn id(inode: &InodeRef) -> Id {
    (0, inode.ino.0.into())
}

fn by_id(fs: &Filesystem, id: Id) -> Step<InodeRef> {
    Ok(fs.iget(InodeNr(id.1 as u32))?)
}

/// The files of an image, as the source of a copy.
pub struct ImageSource<'f> {
    fs: &'f Filesystem,
}

impl<'f> ImageSource<'f> {
    /// Copies out of a mounted image.
    pub fn new(fs: &'f Filesystem) -> ImageSource<'f> {
        ImageSource { fs }
    }

    /// The failure of a file of this image.
    fn here<T>(&self, r: std::result::Result<T, Error>) -> Step<T> {
        r.map_err(|e| if content::is_expected(self.fs, &e) { Cause::Hurt(e) } else { Cause::Image(e) })
    }
}

impl Source for ImageSource<'_> {
    type Entry = InodeRef;

    fn image(&self) -> Option<usize> {
        Some(image_id(self.fs))
    }

    fn top(&self, path: &[u8], follow: bool) -> Step<InodeRef> {
        self.here(path::walk(self.fs, path, follow || path.ends_with(b"/")))
    }

    fn node(&self, entry: &InodeRef) -> Step<Node> {
        let attr = self.fs.getattr(entry);
        let Some(kind) = entry.file_type() else {
            return self.here(Err(Error::corrupt(Damage::Inode, format!("mode {:#o}", attr.mode)).of(attr.ino)));
        };
        Ok(Node {
            kind,
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            links: attr.nlink.into(),
            size: attr.size,
            atime: attr.atime,
            mtime: attr.mtime,
            device: attr.rdev,
            id: id(entry),
        })
    }

    fn names(&self, dir: &InodeRef, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)> {
        // The place after every entry of this name.
        let after = after.map(|name| Name { name: name.to_vec(), ino: InodeNr(u32::MAX), kind: None });
        let Names { names, more } = self.here(self.fs.list_after(dir, after.as_ref()))?;
        Ok((names.into_iter().map(|entry| entry.name).collect(), more))
    }

    fn child(&self, dir: &InodeRef, name: &[u8]) -> Step<InodeRef> {
        self.here(self.fs.lookup(dir, name))
    }

    fn parent(&self, _below: &InodeRef, id: Id) -> Step<InodeRef> {
        self.here(self.fs.iget(InodeNr(id.1 as u32)))
    }

    fn target(&self, link: &InodeRef) -> Step<Vec<u8>> {
        self.here(self.fs.read_link(link))
    }

    fn xattrs(&self, entry: &InodeRef) -> (Xattrs, Step<()>) {
        let (xattrs, missed) = attributes::xattrs(self.fs, entry);
        // Some of them may be missing.
        let missed = missed.or_else(|| content::doubt(self.fs, entry).cloned());
        (xattrs, self.here(missed.map_or(Ok(()), Err)))
    }

    fn doubt(&self, entry: &InodeRef) -> Step<()> {
        self.here(content::doubt(self.fs, entry).cloned().map_or(Ok(()), Err))
    }

    fn read(&self, file: &InodeRef, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content> {
        if file.is_dir() {
            return self.here(Err(Error::IsDirectory));
        }
        match content::read(self.fs, file, write) {
            Ok(missing) => Ok(Content { size: self.fs.getattr(file).size, shrank: false, missing }),
            Err(TransferError::Write(e)) => Err(e.into()),
            Err(TransferError::Read(e)) => self.here(Err(e)),
        }
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::inside(self.fs.image(), path)
    }
}

/// An image that files are copied into. The caller makes it durable at the end.
pub struct ImageSink<'f> {
    /// The file system.
    pub fs: &'f Filesystem,
    /// The owners of new files.
    pub owners: Owners,
    /// Files keep the owners of the source, as far as [`ImageSink::owners`] gives none explicitly.
    pub keeps_owners: bool,
    /// Seconds since 1970: later times are stored as this one. Then times of access are stored as those of change:
    /// reading moves them, so each copy would be different.
    pub newest: Option<i64>,
    /// A name that exists already is an error.
    pub only_new: bool,
}

impl ImageSink<'_> {
    fn create(&self, parent: &InodeRef, name: &[u8], node: NewNode<'_>) -> Step<InodeRef> {
        Ok(self.owners.create(self.fs, parent, name, node)?)
    }

    /// As [`ImageSink::find`], for a name that is about to be replaced.
    fn replaced(&self, parent: &InodeRef, name: &[u8]) -> Step<Option<InodeRef>> {
        match self.find(parent, name)? {
            Some(_) if self.only_new => Err(Error::Exists.into()),
            found => Ok(found),
        }
    }

    fn clamped(&self, time: Timestamp) -> Timestamp {
        match self.newest {
            Some(seconds) if time.seconds >= seconds => Timestamp { seconds, nanos: 0 },
            _ => time,
        }
    }

    fn find(&self, parent: &InodeRef, name: &[u8]) -> Step<Option<InodeRef>> {
        match self.fs.lookup(parent, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn attributes(&self, inode: &InodeRef, node: &Node, size: Option<u64>, xattrs: &Xattrs) -> Step<Id> {
        for (name, value) in xattrs {
            match self.fs.set_xattr(inode, name, value, SetMode::Any) {
                // Ext does not support some names of attributes: copy the file without them.
                Ok(()) | Err(Error::NotSupported(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if size.is_some_and(|size| size != self.fs.getattr(inode).size) {
            // A call of its own: a change of size would overwrite the time.
            self.fs.setattr(inode, &SetAttr { size, ..SetAttr::default() })?;
        }
        let link = node.kind == FileType::Symlink;
        let mtime = self.clamped(node.mtime);
        let atime = if self.newest.is_some() { mtime } else { node.atime };
        let set = SetAttr {
            mode: (!link).then_some(node.mode),
            uid: self.owners.uid.or(self.keeps_owners.then_some(node.uid)),
            gid: self.owners.gid.or(self.keeps_owners.then_some(node.gid)),
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        self.fs.setattr(inode, &set)?;
        Ok(id(inode))
    }
}

impl Sink for ImageSink<'_> {
    type Dir = InodeRef;
    type File = InodeRef;

    fn image(&self) -> Option<usize> {
        Some(image_id(self.fs))
    }

    fn top(&self, path: &[u8]) -> Step<InodeRef> {
        let inode = self.fs.walk(path, true)?;
        if inode.is_dir() { Ok(inode) } else { Err(Error::NotDirectory.into()) }
    }

    fn existing(&self, path: &[u8]) -> Step<Option<FileType>> {
        match self.fs.walk(path, true) {
            Ok(inode) => Ok(inode.file_type()),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn id(&self, dir: &InodeRef) -> Step<Id> {
        Ok(id(dir))
    }

    fn is_within(&self, dir: &InodeRef, id: Id) -> Step<bool> {
        Ok(self.fs.is_within(dir, InodeNr(id.1 as u32))?)
    }

    fn look(&self, dir: &InodeRef, name: &[u8]) -> Step<Option<(FileType, Id)>> {
        let found = self.find(dir, name)?;
        Ok(found.map(|inode| (inode.file_type().unwrap_or(FileType::Regular), id(&inode))))
    }

    fn directory(&self, parent: &InodeRef, name: &[u8], follow: bool) -> Step<InodeRef> {
        let found = match self.replaced(parent, name)? {
            // The link cannot lead out of the image.
            Some(link) if follow && link.file_type() == Some(FileType::Symlink) => {
                self.fs.walk_at(parent, name, true).map(Some).or_else(|e| match e {
                    Error::NotFound => Ok(Some(link)),
                    e => Err(e),
                })?
            }
            found => found,
        };
        match found {
            Some(inode) if inode.is_dir() => Ok(inode),
            Some(_) => Err(Cause::refused("a file that is not a directory is in the way")),
            None => self.create(parent, name, NewNode::directory(0o700)),
        }
    }

    fn parent(&self, _below: &InodeRef, id: Id) -> Step<InodeRef> {
        by_id(self.fs, id)
    }

    fn file(&self, parent: &InodeRef, name: &[u8], _named: bool, source: Option<Id>) -> Step<InodeRef> {
        let mut found = self.replaced(parent, name)?;
        if found.as_ref().is_some_and(|inode| inode.file_type() == Some(FileType::Symlink)) {
            // As cp(1): the target of the link is written, and must exist. It cannot lie outside of the image.
            found = match self.fs.walk_at(parent, name, true) {
                Ok(inode) => Some(inode),
                Err(Error::NotFound) => return Err(Cause::refused("not written through a dangling symbolic link")),
                Err(e) => return Err(e.into()),
            };
        }
        match found {
            Some(inode) if inode.file_type() == Some(FileType::Regular) => {
                if source == Some(id(&inode)) {
                    return Err(Cause::refused("it is the same file"));
                }
                self.fs.setattr(&inode, &SetAttr { size: Some(0), ..SetAttr::default() })?;
                // As the kernel does at a write: the capability was given to the old content.
                if self.fs.get_xattr(&inode, b"security.capability").is_ok() {
                    self.fs.remove_xattr(&inode, b"security.capability")?;
                }
                Ok(inode)
            }
            Some(_) => Err(Cause::refused("a file that is not a regular file is in the way")),
            None => self.create(parent, name, NewNode::file(0o600)),
        }
    }

    fn write(&self, file: &InodeRef, offset: u64, data: &[u8]) -> Step<()> {
        let mut done = 0;
        while done < data.len() {
            match self.fs.write(file, offset + done as u64, &data[done..], WriteFlags::default())? {
                0 => return Err(Error::NoSpace.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn finish_file(&self, file: InodeRef, node: &Node, xattrs: &Xattrs) -> Step<Id> {
        self.attributes(&file, node, Some(node.size), xattrs)
    }

    fn finish_directory(&self, dir: InodeRef, node: &Node, xattrs: &Xattrs) -> Step<()> {
        self.attributes(&dir, node, None, xattrs).map(drop)
    }

    fn special(&self, parent: &InodeRef, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs) -> Step<Option<Id>> {
        if let Some(there) = self.replaced(parent, name)? {
            if there.is_dir() {
                return Err(Cause::refused("a directory is in the way"));
            }
            self.fs.unlink(parent, name)?;
        }
        let new = match node.kind {
            FileType::Symlink => NewNode::symlink(target),
            kind => NewNode { mode: kind.mode_bits() | node.mode, rdev: node.device, target: None },
        };
        let inode = self.create(parent, name, new)?;
        self.attributes(&inode, node, None, xattrs).map(Some)
    }

    fn link(&self, made: Id, _path: &[&[u8]], parent: &InodeRef, name: &[u8]) -> Step<bool> {
        let inode = by_id(self.fs, made)?;
        match self.replaced(parent, name)? {
            Some(there) if there.ino == inode.ino => return Ok(true),
            Some(there) if there.is_dir() => return Err(Cause::refused("a directory is in the way")),
            Some(_) => self.fs.unlink(parent, name)?,
            None => {}
        }
        match self.fs.link(&inode, parent, name) {
            Ok(()) => Ok(true),
            Err(Error::TooManyLinks) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::inside(self.fs.image(), path)
    }
}
