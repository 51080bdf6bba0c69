//! All operations of a user on a mounted image of unknown origin: reads everything, then changes it.
//!
//! The results do not matter here, only that the calls return. All loops are bounded by the possible content of an
//! intact image of this size, so a loop among directories is a bug only if one *call* does not return.

use std::collections::HashSet;

use extant_fs::{Cred, FallocateMode, Filesystem, InodeRef, NewNode, RenameFlags, Seek, SetAttr, SetMode, WriteFlags};
use extant_ondisk::inode::FileType;

/// Names listed at most, over all directories.
const NAMES_MAX: usize = 5_000;
/// Files to read.
const FILES_MAX: usize = 400;

/// Reads everything readable of one inode.
fn look(fs: &Filesystem, inode: &InodeRef) {
    let attr = fs.getattr(inode);
    for name in fs.list_xattrs(inode).unwrap_or_default().into_iter().take(50) {
        let _ = fs.get_xattr(inode, &name);
    }
    match inode.file_type() {
        Some(FileType::Symlink) => {
            let _ = fs.read_link(inode);
        }
        Some(FileType::Regular) => {
            let mut buf = vec![0; 70_000];
            for at in [0, attr.size / 2, attr.size.saturating_sub(5_000)] {
                let _ = fs.read(inode, at, &mut buf);
            }
            let mut at = 0;
            for _ in 0..20 {
                let Ok(data) = fs.seek(inode, at, Seek::Data) else { break };
                let Ok(hole) = fs.seek(inode, data, Seek::Hole) else { break };
                at = hole;
            }
        }
        _ => {}
    }
}

/// Lists the whole tree and reads files. Returns what it found: parent, name, inode.
pub fn look_around(fs: &Filesystem) -> Vec<(InodeRef, Vec<u8>, InodeRef)> {
    let mut found = Vec::new();
    let Ok(root) = fs.root() else { return found };
    let _ = fs.statfs();
    let _ = fs.walk(b"/dir/../dir/./file-1", true);
    let (mut seen, mut dirs, mut names) = (HashSet::from([root.ino]), vec![root], 0);
    while let Some(dir) = dirs.pop() {
        let mut entries = Vec::new();
        let mut cookie = 0;
        while names < NAMES_MAX {
            let before = entries.len();
            let next = fs.read_dir(&dir, cookie, |e| {
                entries.push(e.name.to_vec());
                entries.len() - before < 100
            });
            names += entries.len() - before;
            match next {
                Ok(next) if entries.len() > before && next != cookie => cookie = next,
                _ => break,
            }
        }
        let _ = fs.parent(&dir);
        for name in entries {
            if name == b"." || name == b".." {
                continue;
            }
            let Ok(inode) = fs.lookup(&dir, &name) else { continue };
            if found.len() < FILES_MAX {
                look(fs, &inode);
            }
            if inode.is_dir() && seen.insert(inode.ino) {
                dirs.push(inode.clone());
            }
            found.push((dir.clone(), name, inode));
        }
    }
    found
}

/// Changes of every kind, spread over the tree.
pub fn change(fs: &Filesystem, found: &[(InodeRef, Vec<u8>, InodeRef)]) {
    let Ok(root) = fs.root() else { return };
    let cred = Cred::default();
    let new = fs.create(&root, b"new-file", NewNode::file(0o644), cred);
    if let Ok(file) = &new {
        let _ = fs.write(file, 0, &[7; 100_000], WriteFlags::default());
        let _ = fs.write(file, 10 << 20, &[8; 5_000], WriteFlags::default());
        let _ = fs.set_xattr(file, b"user.note", &[b'x'; 600], SetMode::Any);
        let _ = fs.fsync(file, false);
    }
    let below = fs.create(&root, b"new-dir", NewNode::directory(0o755), cred);
    let _ = fs.create(&root, b"new-link", NewNode::symlink(&[b'l'; 300]), cred);
    let dirs: Vec<&InodeRef> = found.iter().map(|(_, _, i)| i).filter(|i| i.is_dir()).take(12).collect();
    for (n, dir) in dirs.iter().enumerate() {
        for i in 0..6 {
            let _ = fs.create(dir, format!("added-{n}-{i}").as_bytes(), NewNode::file(0o600), cred);
        }
        if let Ok(file) = &new {
            let _ = fs.link(file, dir, b"hard");
        }
    }
    for (i, (dir, name, inode)) in found.iter().enumerate().take(FILES_MAX) {
        let regular = inode.file_type() == Some(FileType::Regular);
        let _ = match i % 9 {
            0 if regular => fs.write(inode, inode.size() / 2, &[9; 9_000], WriteFlags::default()).map(drop),
            1 => fs.setattr(inode, &SetAttr { size: Some(inode.size() / 3), ..SetAttr::default() }).map(drop),
            2 => fs.unlink(dir, name),
            3 => fs.rename(dir, name, &root, format!("moved-{i}").as_bytes(), RenameFlags::default()),
            4 => fs.rmdir(dir, name),
            5 if regular => fs.fallocate(inode, FallocateMode::PunchHole, 4096, 300_000),
            6 => fs.set_xattr(inode, b"user.big", &[b'v'; 900], SetMode::Any),
            7 => fs.setattr(inode, &SetAttr { mode: Some(0o600), uid: Some(1), ..SetAttr::default() }).map(drop),
            _ => fs.remove_xattr(inode, b"user.small"),
        };
        if i % 64 == 63 {
            let _ = fs.sync();
        }
    }
    if let (Ok(file), Ok(dir)) = (&new, &below) {
        let _ = fs.rename(&root, b"new-file", dir, b"inner", RenameFlags::default());
        let _ = fs.fallocate(file, FallocateMode::Allocate { keep_size: true }, 0, 1 << 20);
        let _ = fs.unlink(dir, b"inner");
    }
    let _ = fs.rmdir(&root, b"new-dir");
    let _ = fs.sync();
}
