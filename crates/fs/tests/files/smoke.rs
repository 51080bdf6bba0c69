//! The engine on images that mke2fs made, in memory, checked by e2fsck.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_fs::{Cred, Filesystem, MountOptions, NewNode, RenameFlags, SetAttr, WriteFlags};

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

const KINDS: [&[&str]; 7] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext3"],
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2"],
    &["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"],
    &["-t", "ext4", "-I", "128", "-O", "^has_journal"],
];

/// Makes files, links and directories, and removes some of them. Returns the content of the last file of `dir`.
fn make_content(fs: &Filesystem, kind: &[&str]) -> Vec<u8> {
    let cred = Cred::default();
    let root = fs.root().expect("root");
    let d = fs.create(&root, b"dir", NewNode::directory(0o755), cred).expect("mkdir");
    let mut content = Vec::new();
    for i in 0..300u32 {
        let name = format!("file-{i}");
        let f = fs.create(&d, name.as_bytes(), NewNode::file(0o644), cred).expect("create");
        content = vec![i as u8; (i as usize * 97) % 30_000 + 1];
        assert_eq!(fs.write(&f, 0, &content, WriteFlags::default()).expect("write"), content.len());
        if i % 7 == 0 {
            fs.fsync(&f, false).expect("fsync");
        }
        if i % 3 == 0 {
            fs.unlink(&d, name.as_bytes()).expect("unlink");
        }
    }
    let big = fs.create(&root, b"big", NewNode::file(0o600), cred).expect("create");
    let block = vec![0x5A; 100_000];
    for i in 0..60u64 {
        fs.write(&big, i * 100_000, &block, WriteFlags::default()).expect("write");
    }
    fs.setattr(&big, &SetAttr { size: Some(3_333_333), ..Default::default() }).expect("truncate");
    fs.create(&root, b"short", NewNode::symlink(b"target"), cred).expect("symlink");
    fs.create(&root, b"long", NewNode::symlink(&[b'x'; 200]), cred).expect("symlink");
    fs.link(&big, &d, b"hard").expect("link");
    fs.rename(&d, b"file-1", &root, b"moved", RenameFlags::default()).expect("rename");
    fs.rename(&root, b"dir", &root, b"dir2", RenameFlags::default()).expect("rename dir");
    let many = fs.create(&root, b"many", NewNode::directory(0o755), cred).expect("mkdir");
    for i in 0..1500 {
        fs.create(&many, format!("a-rather-long-name-to-fill-blocks-{i:06}").as_bytes(), NewNode::file(0), cred)
            .unwrap_or_else(|e| panic!("{kind:?} {i}: {e}"));
    }
    let e = fs.create(&root, b"empty", NewNode::directory(0o755), cred).expect("mkdir");
    drop(e);
    fs.rmdir(&root, b"empty").expect("rmdir");
    assert!(fs.rmdir(&root, b"many").is_err());
    drop((d, big, many, root));
    content
}

/// Compares the files and directories of [`make_content`], and empties the large directory.
fn assert_content(fs: &Filesystem, content: &[u8], kind: &[&str]) {
    let f = fs.walk(b"/dir2/file-299", true).expect("found");
    let mut buf = vec![0; 40_000];
    let n = fs.read(&f, 0, &mut buf).expect("read");
    assert_eq!(&buf[..n], content, "{kind:?}");
    let big = fs.walk(b"big", true).expect("found");
    assert_eq!(fs.getattr(&big).size, 3_333_333);
    assert_eq!(fs.getattr(&big).nlink, 2);
    assert_eq!(fs.read_link(&fs.walk(b"long", false).expect("found")).expect("target"), [b'x'; 200]);
    let many = fs.walk(b"many", true).expect("found");
    let mut names = std::collections::BTreeSet::new();
    let mut cookie = 0;
    loop {
        let mut batch = 0;
        let next = fs
            .read_dir(&many, cookie, |e| {
                batch += 1;
                assert!(names.insert(e.name.to_vec()), "twice");
                batch < 100
            })
            .expect("listed");
        if batch == 0 {
            break;
        }
        cookie = next;
        if batch >= 100 {
            // The entry that stopped the batch comes again.
            let again: Vec<u8> = {
                let mut first = Vec::new();
                fs.read_dir(&many, cookie, |e| {
                    first = e.name.to_vec();
                    false
                })
                .expect("listed");
                first
            };
            names.remove(&again);
        }
    }
    assert_eq!(names.len(), 1502);
    for i in 0..1500 {
        fs.unlink(&many, format!("a-rather-long-name-to-fill-blocks-{i:06}").as_bytes()).expect("unlink");
    }
    drop((f, big, many));
}

#[test]
fn common_operations_leave_a_clean_image() {
    for kind in KINDS {
        let dev = Arc::new(tools::made(kind, "48M"));
        let fs = Filesystem::mount(dev.clone(), options()).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        let content = make_content(&fs, kind);
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);

        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
        assert_content(&fs, &content, kind);
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);
    }
}
