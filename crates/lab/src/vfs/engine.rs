//! Extant's file system, called in this process.
//!
//! Main type: [`EngineVfs`]. It walks paths as a kernel would, and caches the directories in them as a dentry cache
//! does.
//!
//! # Locking
//! `lab paths` (4) protects the known directories; the file system is called without it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{LockClass, RwLock, Waiter};
use extant_fs::{Cred, Error, Filesystem, InodeRef, LossCursor, NewNode, RenameFlags, SetAttr, WriteFlags};

use super::{Node, Stat, Vfs, VfsError, VfsResult};

static PATHS_CLASS: LockClass = LockClass::new("lab paths", 4);

/// S_IFMT and S_IFDIR of `st_mode`.
const TYPE_MASK: u16 = 0o170_000;
const TYPE_DIRECTORY: u16 = 0o040_000;

/// A mounted file system, and the directories that workloads have walked through.
pub struct EngineVfs {
    fs: Arc<Filesystem>,
    root: InodeRef,
    directories: RwLock<HashMap<String, InodeRef>>,
    slow: f64,
}

impl EngineVfs {
    /// Wraps `fs`, which the caller unmounts after this is dropped. `slow`: see [`Vfs::slow`].
    pub fn new(fs: Arc<Filesystem>, slow: f64) -> VfsResult<EngineVfs> {
        let root = fs.root()?;
        Ok(EngineVfs { fs, root, directories: RwLock::new(&PATHS_CLASS, HashMap::new()), slow })
    }

    /// The inode of the directory `path`; the empty path is the root.
    fn directory(&self, path: &str) -> VfsResult<InodeRef> {
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        if let Some(known) = self.directories.read().get(path) {
            return Ok(known.clone());
        }
        let (parent, name) = split(path);
        let found = self.fs.lookup(&self.directory(parent)?, name.as_bytes())?;
        self.directories.write().insert(path.to_owned(), found.clone());
        Ok(found)
    }

    fn parent<'p>(&self, path: &'p str) -> VfsResult<(InodeRef, &'p [u8])> {
        let (parent, name) = split(path);
        Ok((self.directory(parent)?, name.as_bytes()))
    }

    fn find(&self, path: &str) -> VfsResult<InodeRef> {
        let (dir, name) = self.parent(path)?;
        Ok(self.fs.lookup(&dir, name)?)
    }

    fn forget(&self, path: &str) {
        let mut known = self.directories.write();
        if known.is_empty() {
            return;
        }
        let below = |p: &str| p == path || p.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        let gone: Vec<InodeRef> = known.extract_if(|p, _| below(p)).map(|(_, inode)| inode).collect();
        drop(known);
        drop(gone);
    }
}

/// Splits a path into the directory and the last name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn inode(node: &Node) -> VfsResult<&InodeRef> {
    if let Node::Inode(inode) = node { Ok(inode) } else { Err(VfsError::Foreign) }
}

impl Vfs for EngineVfs {
    fn slow(&self) -> f64 {
        self.slow
    }

    fn mkdir(&self, path: &str) -> VfsResult<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.create(&dir, name, NewNode::directory(0o755), Cred::default())?;
        Ok(())
    }

    fn create(&self, path: &str) -> VfsResult<Node> {
        let (dir, name) = self.parent(path)?;
        match self.fs.create(&dir, name, NewNode::file(0o644), Cred::default()) {
            Ok(inode) => Ok(Node::Inode(inode)),
            Err(Error::Exists) => {
                let inode = self.fs.lookup(&dir, name)?;
                self.fs.setattr(&inode, &SetAttr { size: Some(0), ..SetAttr::default() })?;
                Ok(Node::Inode(inode))
            }
            Err(e) => Err(e.into()),
        }
    }

    fn open(&self, path: &str) -> VfsResult<Node> {
        Ok(Node::Inode(self.find(path)?))
    }

    fn write_at(&self, node: &Node, offset: u64, data: &[u8]) -> VfsResult<()> {
        let done = self.fs.write(inode(node)?, offset, data, WriteFlags::default())?;
        if done == data.len() { Ok(()) } else { Err(VfsError::Short { done, wanted: data.len() }) }
    }

    fn read_at(&self, node: &Node, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let inode = inode(node)?;
        let mut done = 0;
        while done < buf.len() {
            match self.fs.read(inode, offset + done as u64, &mut buf[done..])? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn fsync(&self, node: &Node) -> VfsResult<()> {
        Ok(self.fs.fsync(inode(node)?, false)?)
    }

    fn fdatasync(&self, node: &Node) -> VfsResult<()> {
        Ok(self.fs.fsync(inode(node)?, true)?)
    }

    fn fsync_many(&self, nodes: &[Node], _: usize) -> VfsResult<()> {
        let inodes: Vec<InodeRef> = nodes.iter().map(|node| inode(node).cloned()).collect::<VfsResult<_>>()?;
        if inodes.is_empty() {
            return Ok(());
        }
        let (left, failed) = (AtomicUsize::new(inodes.len()), OnceLock::new());
        let all = Waiter::new();
        let tell = all.clone();
        let done = move |_: usize, answer: extant_fs::Result<()>| {
            if let Err(e) = answer {
                let _ = failed.set(e);
            }
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                tell.set(failed.get().map_or(Ok(()), |e: &Error| Err(e.clone())));
            }
        };
        self.fs.serving().fsync_many(&inodes, LossCursor::thread(), false, Arc::new(done));
        Ok(all.wait()?)
    }

    fn close(&self, node: Node) -> VfsResult<()> {
        drop(node);
        Ok(())
    }

    fn unlink(&self, path: &str) -> VfsResult<()> {
        let (dir, name) = self.parent(path)?;
        Ok(self.fs.unlink(&dir, name)?)
    }

    fn rmdir(&self, path: &str) -> VfsResult<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.rmdir(&dir, name)?;
        self.forget(path);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> VfsResult<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        self.fs.rename(&from_dir, from_name, &to_dir, to_name, RenameFlags::default())?;
        self.forget(from);
        self.forget(to);
        Ok(())
    }

    fn stat(&self, path: &str) -> VfsResult<Stat> {
        let attr = self.fs.getattr(&self.find(path)?);
        Ok(Stat { size: attr.size, directory: attr.mode & TYPE_MASK == TYPE_DIRECTORY })
    }

    fn readdir(&self, path: &str) -> VfsResult<u64> {
        let dir = self.directory(path)?;
        let mut entries = 0;
        self.fs.read_dir(&dir, 0, |item| {
            entries += u64::from(item.name != b"." && item.name != b"..");
            true
        })?;
        Ok(entries)
    }

    fn symlink(&self, target: &str, path: &str) -> VfsResult<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.create(&dir, name, NewNode::symlink(target.as_bytes()), Cred::default())?;
        Ok(())
    }

    fn truncate(&self, node: &Node, size: u64) -> VfsResult<()> {
        self.fs.setattr(inode(node)?, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    fn sync_all(&self) -> VfsResult<()> {
        Ok(self.fs.sync()?)
    }
}
