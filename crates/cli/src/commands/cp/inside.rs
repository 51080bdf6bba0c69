//! The sides of a copy that lie in an image.
//!
//! # Locking
//! None held between calls.

use std::sync::Arc;

use extant_fs::{Cred, Damage, Error, Filesystem, InodeRef, NewNode, Seek, SetAttr, SetMode, SetTime, WriteFlags};
use extant_ondisk::inode::FileType;
use rustix::process::{getegid, geteuid};

use super::{CHUNK_BYTES, Node, Sink, Source, Xattrs};
use crate::failure::{Failure, Result};
use crate::image;
use crate::text::{join, shown};
use crate::walk::list_dir;

/// An inode, and the path that led to it.
pub struct Entry {
    inode: InodeRef,
    path: Vec<u8>,
}

pub struct ImageSource {
    fs: Arc<Filesystem>,
}

impl ImageSource {
    pub fn new(fs: Arc<Filesystem>) -> ImageSource {
        ImageSource { fs }
    }

    fn failed(&self, entry: &Entry, e: Error) -> Failure {
        image::at(&self.fs, &entry.path, e)
    }
}

impl Source for ImageSource {
    type Entry = Entry;

    fn top(&self, path: &[u8], follow: bool) -> Result<Entry> {
        let inode = self.fs.walk(path, follow || path.ends_with(b"/")).map_err(|e| image::at(&self.fs, path, e))?;
        Ok(Entry { inode, path: path.to_vec() })
    }

    fn node(&self, entry: &Entry) -> Result<Node> {
        let attr = self.fs.getattr(&entry.inode);
        let Some(kind) = entry.inode.file_type() else {
            return Err(
                self.failed(entry, Error::corrupt(Damage::Inode, format!("mode {:#o}", attr.mode)).of(attr.ino))
            );
        };
        Ok(Node {
            kind,
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            atime: attr.atime,
            mtime: attr.mtime,
            device: attr.rdev,
            id: (0, attr.ino.0.into()),
        })
    }

    fn names(&self, dir: &Entry) -> Result<Vec<Vec<u8>>> {
        let entries = list_dir(&self.fs, &dir.inode).map_err(|e| self.failed(dir, e))?;
        Ok(entries.into_iter().map(|e| e.name).collect())
    }

    fn child(&self, dir: &Entry, name: &[u8]) -> Result<Entry> {
        let path = join(&dir.path, name);
        let inode = self.fs.lookup(&dir.inode, name).map_err(|e| image::at(&self.fs, &path, e))?;
        Ok(Entry { inode, path })
    }

    fn target(&self, link: &Entry) -> Result<Vec<u8>> {
        self.fs.read_link(&link.inode).map_err(|e| self.failed(link, e))
    }

    fn xattrs(&self, entry: &Entry) -> Result<Xattrs> {
        let failed = |e| self.failed(entry, e);
        let names = self.fs.list_xattrs(&entry.inode).map_err(failed)?;
        let with_value = |name: Vec<u8>| {
            let value = self.fs.get_xattr(&entry.inode, &name).map_err(failed)?;
            Ok((name, value))
        };
        names.into_iter().map(with_value).collect()
    }

    fn read(&self, file: &Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let size = self.fs.getattr(&file.inode).size;
        let mut buf = vec![0; CHUNK_BYTES];
        let mut pos = 0;
        while pos < size {
            pos = match self.fs.seek(&file.inode, pos, Seek::Data) {
                Ok(data) => data,
                Err(Error::NoSuchOffset) => break,
                Err(e) => return Err(self.failed(file, e)),
            };
            let end = self.fs.seek(&file.inode, pos, Seek::Hole).map_err(|e| self.failed(file, e))?.min(size);
            while pos < end {
                let want = (end - pos).min(buf.len() as u64) as usize;
                let n = self.fs.read(&file.inode, pos, &mut buf[..want]).map_err(|e| self.failed(file, e))?;
                if n == 0 {
                    let what = format!("nothing to read at byte {pos} of {size}");
                    return Err(self.failed(file, Error::corrupt(Damage::Map, what).of(file.inode.ino)));
                }
                write(pos, &buf[..n])?;
                pos += n as u64;
            }
        }
        Ok(())
    }

    fn show(&self, entry: &Entry) -> String {
        format!("{}: {}", self.fs.image(), shown(&entry.path))
    }
}

pub struct ImageSink {
    fs: Arc<Filesystem>,
    cred: Cred,
    root: bool,
}

impl ImageSink {
    pub fn new(fs: Arc<Filesystem>) -> ImageSink {
        let cred = Cred { uid: geteuid().as_raw(), gid: getegid().as_raw(), umask: 0 };
        ImageSink { fs, cred, root: geteuid().is_root() }
    }

    fn failed(&self, path: &[u8], e: Error) -> Failure {
        image::at(&self.fs, path, e)
    }

    /// What is called `name` in there.
    fn look(&self, parent: &Entry, name: &[u8], path: &[u8]) -> Result<Option<InodeRef>> {
        match self.fs.lookup(&parent.inode, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(self.failed(path, e)),
        }
    }

    fn in_the_way(&self, path: &[u8], kind: &str) -> Failure {
        Failure::op(format!("{}: {}: {kind} is in the way", self.fs.image(), shown(path)))
    }

    /// Everything is made durable, and the image is marked clean.
    pub fn end(&self) -> Result<()> {
        let image = self.fs.image();
        self.fs.unmount().map_err(|e| Failure::op(format!("{image}: {e}")))
    }

    fn attributes(&self, entry: &Entry, node: &Node, size: Option<u64>, xattrs: &Xattrs) -> Result<()> {
        let failed = |e| self.failed(&entry.path, e);
        for (name, value) in xattrs {
            match self.fs.set_xattr(&entry.inode, name, value, SetMode::Any) {
                // A name that ext does not have is no reason to lose the file.
                Ok(()) | Err(Error::NotSupported(_)) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        if size.is_some_and(|size| size != self.fs.getattr(&entry.inode).size) {
            // By itself: a change of size would stamp the time over ours.
            self.fs.setattr(&entry.inode, &SetAttr { size, ..SetAttr::default() }).map_err(failed)?;
        }
        let link = node.kind == FileType::Symlink;
        let set = SetAttr {
            mode: (!link).then_some(node.mode),
            uid: self.root.then_some(node.uid),
            gid: self.root.then_some(node.gid),
            atime: Some(SetTime::At(node.atime)),
            mtime: Some(SetTime::At(node.mtime)),
            ..SetAttr::default()
        };
        self.fs.setattr(&entry.inode, &set).map_err(failed)?;
        Ok(())
    }
}

impl Sink for ImageSink {
    type Dir = Entry;
    type File = Entry;

    fn top(&self, path: &[u8]) -> Result<Entry> {
        let inode = self.fs.walk(path, true).map_err(|e| self.failed(path, e))?;
        if !inode.is_dir() {
            return Err(self.failed(path, Error::NotDirectory));
        }
        Ok(Entry { inode, path: path.to_vec() })
    }

    fn existing(&self, path: &[u8]) -> Result<Option<FileType>> {
        match self.fs.walk(path, true) {
            Ok(inode) => Ok(inode.file_type()),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(self.failed(path, e)),
        }
    }

    fn directory(&self, parent: &Entry, name: &[u8]) -> Result<Entry> {
        let path = join(&parent.path, name);
        let inode = match self.look(parent, name, &path)? {
            Some(inode) if inode.is_dir() => inode,
            Some(_) => return Err(self.in_the_way(&path, "something that is no directory")),
            None => {
                let node = NewNode::directory(0o700);
                self.fs.create(&parent.inode, name, node, self.cred).map_err(|e| self.failed(&path, e))?
            }
        };
        Ok(Entry { inode, path })
    }

    fn file(&self, parent: &Entry, name: &[u8]) -> Result<Entry> {
        let path = join(&parent.path, name);
        let inode = match self.look(parent, name, &path)? {
            Some(inode) if inode.file_type() == Some(FileType::Regular) => {
                let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                self.fs.setattr(&inode, &empty).map_err(|e| self.failed(&path, e))?;
                inode
            }
            Some(_) => return Err(self.in_the_way(&path, "something that is no regular file")),
            None => {
                let node = NewNode::file(0o600);
                self.fs.create(&parent.inode, name, node, self.cred).map_err(|e| self.failed(&path, e))?
            }
        };
        Ok(Entry { inode, path })
    }

    fn write(&self, file: &Entry, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let n = self.fs.write(&file.inode, at, &data[done..], WriteFlags::default());
            match n.map_err(|e| self.failed(&file.path, e))? {
                0 => return Err(self.failed(&file.path, Error::NoSpace)),
                n => done += n,
            }
        }
        Ok(())
    }

    fn finish_file(&self, file: Entry, node: &Node, xattrs: &Xattrs) -> Result<()> {
        self.attributes(&file, node, Some(node.size), xattrs)
    }

    fn finish_directory(&self, dir: &Entry, node: &Node, xattrs: &Xattrs) -> Result<()> {
        self.attributes(dir, node, None, xattrs)
    }

    fn special(&self, parent: &Entry, name: &[u8], node: &Node, target: &[u8], xattrs: &Xattrs) -> Result<()> {
        let path = join(&parent.path, name);
        if let Some(there) = self.look(parent, name, &path)? {
            if there.is_dir() {
                return Err(self.in_the_way(&path, "a directory"));
            }
            self.fs.unlink(&parent.inode, name).map_err(|e| self.failed(&path, e))?;
        }
        let new = match node.kind {
            FileType::Symlink => NewNode::symlink(target),
            kind => NewNode { mode: kind.mode_bits() | node.mode, rdev: node.device, target: None },
        };
        let inode = self.fs.create(&parent.inode, name, new, self.cred).map_err(|e| self.failed(&path, e))?;
        self.attributes(&Entry { inode, path }, node, None, xattrs)
    }
}
