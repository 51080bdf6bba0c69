//! A tree as a reader sees it: Extant in process, or the kernel through a mount.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use extant_fs::{Attr, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use crate::crash::history::NodeKind;
use crate::crash::image::ENCRYPTED_TOP;
use crate::tree;

#[derive(Clone, Debug)]
pub struct SeenNode {
    pub ino: u32,
    /// `None` if the kernel does not show it.
    pub generation: Option<u32>,
    pub kind: NodeKind,
    pub nlink: u64,
    pub content: Vec<u8>,
    pub target: Option<Vec<u8>>,
    /// `user.` attributes.
    pub attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Sizes, owners, modes and times, if Extant read the tree.
    pub stat: Option<Attr>,
}

/// Keyed by path; without the root and lost+found.
pub type SeenTree = BTreeMap<String, SeenNode>;

/// The largest file that is read. Files of a workload are far smaller; a larger size is damage, and reading its zeros
/// would take hours.
const SIZE_MAX: u64 = 64 << 20;

fn kind_of(t: Option<FileType>, path: &str) -> Result<NodeKind, String> {
    match t {
        Some(FileType::Regular) => Ok(NodeKind::File),
        Some(FileType::Directory) => Ok(NodeKind::Directory),
        Some(FileType::Symlink) => Ok(NodeKind::Symlink),
        Some(FileType::CharDevice) => Ok(NodeKind::Whiteout),
        other => Err(format!("{path}: of kind {other:?}")),
    }
}

/// Reads everything through Extant.
pub fn by_extant(fs: &Filesystem) -> Result<SeenTree, String> {
    by_extant_where(fs, &|_| true)
}

/// Reads the paths that `wanted` accepts. It does not descend into a directory that `wanted` rejects.
pub fn by_extant_where(fs: &Filesystem, wanted: &dyn Fn(&str) -> bool) -> Result<SeenTree, String> {
    let mut out = SeenTree::new();
    let root = fs.root().map_err(|e| format!("root: {e}"))?;
    // Other workloads have no such name.
    let top = fs.lookup(&root, ENCRYPTED_TOP.as_bytes()).unwrap_or(root);
    let mut pending: Vec<(String, InodeRef)> = vec![(String::new(), top)];
    while let Some((prefix, dir)) = pending.pop() {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut cookie = 0;
        loop {
            let before = names.len();
            cookie = fs
                .read_dir(&dir, cookie, |e| {
                    names.push(e.name.to_vec());
                    true
                })
                .map_err(|e| format!("readdir of '{prefix}': {e}"))?;
            if names.len() == before {
                break;
            }
        }
        for name in names.into_iter().filter(|n| n != b"." && n != b"..") {
            let path = format!("{prefix}{}", String::from_utf8_lossy(&name));
            if path == "lost+found" || !wanted(&path) {
                continue;
            }
            let inode = fs.lookup(&dir, &name).map_err(|e| format!("{path}: {e}"))?;
            let kind = kind_of(inode.file_type(), &path)?;
            let attr = fs.getattr(&inode);
            if let Some(nr) = attr.rdev.filter(|nr| (nr.major, nr.minor) != (0, 0)) {
                return Err(format!("{path}: device {}:{}", nr.major, nr.minor));
            }
            if attr.size > SIZE_MAX {
                return Err(format!("{path}: {} bytes", attr.size));
            }
            let mut content = vec![0; if kind == NodeKind::File { attr.size as usize } else { 0 }];
            let mut at = 0;
            while at < content.len() {
                match fs.read(&inode, at as u64, &mut content[at..]).map_err(|e| format!("read {path}: {e}"))? {
                    0 => return Err(format!("{path}: {at} bytes, its size is {}", attr.size)),
                    n => at += n,
                }
            }
            let target = match kind {
                NodeKind::Symlink => Some(fs.read_link(&inode).map_err(|e| format!("readlink {path}: {e}"))?),
                _ => None,
            };
            let mut attrs = BTreeMap::new();
            for name in fs.list_xattrs(&inode).map_err(|e| format!("listxattr {path}: {e}"))? {
                let value = fs.get_xattr(&inode, &name).map_err(|e| format!("getxattr {path}: {e}"))?;
                attrs.insert(name, value);
            }
            let seen = SeenNode {
                ino: attr.ino.0,
                generation: Some(attr.generation),
                kind,
                nlink: u64::from(attr.nlink),
                content,
                target,
                attrs,
                stat: Some(attr),
            };
            if kind == NodeKind::Directory {
                pending.push((format!("{path}/"), inode));
            }
            if out.insert(path.clone(), seen).is_some() {
                return Err(format!("{path} is listed twice"));
            }
        }
    }
    Ok(out)
}

/// Reads everything under a mount point.
pub fn by_kernel(top: &Path) -> Result<SeenTree, String> {
    let mut out = SeenTree::new();
    let mut failed = None;
    tree::walk(top, &mut |relative, path| {
        let name = relative.to_string_lossy().into_owned();
        if name.is_empty() || name == "lost+found" {
            return Ok(());
        }
        match node(path, &name) {
            Ok(seen) => _ = out.insert(name, seen),
            Err(e) => _ = failed.get_or_insert(e),
        }
        Ok(())
    })
    .map_err(|e| e.to_string())?;
    failed.map_or(Ok(out), Err)
}

fn node(path: &Path, name: &str) -> Result<SeenNode, String> {
    let io = |e: std::io::Error| format!("{name}: {e}");
    let m = path.symlink_metadata().map_err(io)?;
    let t = m.file_type();
    let kind = match (t.is_file(), t.is_dir(), t.is_symlink()) {
        (true, _, _) => NodeKind::File,
        (_, true, _) => NodeKind::Directory,
        (_, _, true) => NodeKind::Symlink,
        _ if t.is_char_device() && m.rdev() == 0 => NodeKind::Whiteout,
        _ => return Err(format!("{name}: of kind {t:?}")),
    };
    if kind == NodeKind::File && m.size() > SIZE_MAX {
        return Err(format!("{name}: {} bytes", m.size()));
    }
    let content = if kind == NodeKind::File { std::fs::read(path).map_err(io)? } else { Vec::new() };
    let target = match kind {
        NodeKind::Symlink => Some(std::fs::read_link(path).map_err(io)?.as_os_str().as_bytes().to_vec()),
        _ => None,
    };
    let attrs = if matches!(kind, NodeKind::Symlink | NodeKind::Whiteout) {
        BTreeMap::new()
    } else {
        tree::read_xattrs(path)
            .map_err(|e| e.to_string())?
            .into_iter()
            .filter(|(k, _)| k.starts_with(b"user."))
            .collect()
    };
    Ok(SeenNode { ino: m.ino() as u32, generation: None, kind, nlink: m.nlink(), content, target, attrs, stat: None })
}
