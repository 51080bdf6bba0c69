//! A directory that is accessed through system calls.
//!
//! # Locking
//! None.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use extant_base::sync::atomic::{AtomicUsize, Ordering};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::{Node, Stat, Vfs, VfsError, VfsResult};

/// A directory; paths are resolved from it by the kernel.
#[derive(Debug)]
pub struct PosixVfs {
    root: OwnedFd,
    path: PathBuf,
}

impl PosixVfs {
    /// Opens `root`.
    pub fn open(root: &Path) -> VfsResult<PosixVfs> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        Ok(PosixVfs { root: rustix::fs::open(root, flags, Mode::empty())?, path: root.to_owned() })
    }

    fn at(&self, path: &str, flags: OFlags) -> VfsResult<OwnedFd> {
        Ok(rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?)
    }
}

fn fd(node: &Node) -> VfsResult<&OwnedFd> {
    if let Node::Fd(fd) = node { Ok(fd) } else { Err(VfsError::Foreign) }
}

impl Vfs for PosixVfs {
    fn directory(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn mkdir(&self, path: &str) -> VfsResult<()> {
        Ok(rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o755))?)
    }

    fn create(&self, path: &str) -> VfsResult<Node> {
        Ok(Node::Fd(self.at(path, OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR)?))
    }

    fn open(&self, path: &str) -> VfsResult<Node> {
        Ok(Node::Fd(self.at(path, OFlags::RDWR)?))
    }

    fn write_at(&self, node: &Node, offset: u64, data: &[u8]) -> VfsResult<()> {
        let fd = fd(node)?;
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
                Ok(0) => return Err(VfsError::Short { done, wanted: data.len() }),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, node: &Node, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let fd = fd(node)?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    fn fsync(&self, node: &Node) -> VfsResult<()> {
        Ok(rustix::fs::fsync(fd(node)?)?)
    }

    fn fdatasync(&self, node: &Node) -> VfsResult<()> {
        Ok(rustix::fs::fdatasync(fd(node)?)?)
    }

    /// fsync(2) blocks, and io_uring would run each call in a blocked worker, so this uses threads.
    fn fsync_many(&self, nodes: &[Node], waiters: usize) -> VfsResult<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.fsync(node)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..waiters.min(nodes.len())).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let join = |t: std::thread::ScopedJoinHandle<'_, VfsResult<()>>| t.join().unwrap_or(Err(VfsError::Foreign));
            threads.into_iter().map(join).fold(mine, |all, one| all.and(one))
        })
    }

    fn close(&self, node: Node) -> VfsResult<()> {
        drop(node);
        Ok(())
    }

    fn unlink(&self, path: &str) -> VfsResult<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn rmdir(&self, path: &str) -> VfsResult<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: &str, to: &str) -> VfsResult<()> {
        Ok(rustix::fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn stat(&self, path: &str) -> VfsResult<Stat> {
        let stat = rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)?;
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Ok(Stat { size: stat.st_size as u64, directory })
    }

    fn readdir(&self, path: &str) -> VfsResult<u64> {
        let dir = self.at(path, OFlags::DIRECTORY | OFlags::RDONLY)?;
        let mut entries = 0;
        for entry in Dir::read_from(dir.as_fd())? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            entries += u64::from(name != b"." && name != b"..");
        }
        Ok(entries)
    }

    fn symlink(&self, target: &str, path: &str) -> VfsResult<()> {
        Ok(rustix::fs::symlinkat(target, &self.root, path)?)
    }

    fn truncate(&self, node: &Node, size: u64) -> VfsResult<()> {
        Ok(rustix::fs::ftruncate(fd(node)?, size)?)
    }

    fn sync_all(&self) -> VfsResult<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}
