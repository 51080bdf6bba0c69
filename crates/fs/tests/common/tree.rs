//! A comparable form of the tree in an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Filesystem, MountOptions};
use extant_ondisk::csum::crc32c;

/// By path, everything except the times of directories, which fast commits lack, and the files in lost+found.
pub type Tree = BTreeMap<String, String>;

/// Mounted read-only, with the log replayed in memory.
pub fn tree(dev: Arc<dyn BlockDevice>) -> Tree {
    let options = MountOptions { read_only: true, threads: false, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev, options).expect("mounted");
    let mut all = Tree::new();
    let mut walk = Walk::new(&fs, b"/", fs.root().expect("root"));
    while let Some(visit) = walk.next() {
        let Visit::Name(inode) = visit.expect("readable") else { continue };
        let attr = fs.getattr(&inode);
        let mut what = format!("{} {:o} nlink {} {}:{}", attr.ino, attr.mode, attr.nlink, attr.uid, attr.gid);
        match attr.mode & 0o170_000 {
            0o040_000 => {}
            0o120_000 => what += &format!(" -> {}", fs.read_link(&inode).expect("target").escape_ascii()),
            0o100_000 => {
                let mut content = vec![0; attr.size as usize];
                assert_eq!(fs.read(&inode, 0, &mut content).expect("read"), content.len());
                let crc = crc32c(0, &content);
                what += &format!(" {} bytes {crc:x} blocks {} {:?}", attr.size, attr.blocks, attr.mtime);
            }
            _ => what += &format!(" {:?}", attr.rdev),
        }
        for name in fs.list_xattrs(&inode).expect("attributes") {
            let value = fs.get_xattr(&inode, &name).expect("attribute");
            what += &format!(" {}={:x}", name.escape_ascii(), crc32c(0, &value));
        }
        let path = String::from_utf8_lossy(walk.path()).into_owned();
        // e2fsck puts unlinked files there, since it knows no name of them.
        if !path.starts_with("/lost+found") {
            all.insert(path, what);
        }
    }
    all
}

/// Fails with the paths that differ.
pub fn assert_same(found: &Tree, wanted: &Tree, who: &str) {
    let differ: Vec<String> = wanted
        .keys()
        .chain(found.keys())
        .filter(|path| wanted.get(*path) != found.get(*path))
        .map(|path| format!("{path}: {:?}\n   wanted {:?}", found.get(path), wanted.get(path)))
        .collect();
    assert!(differ.is_empty(), "{who}:\n{}", differ.join("\n"));
}
