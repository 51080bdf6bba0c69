//! Encrypted trees: the kernel reads what Extant writes, and Extant what the kernel writes, under each kind of policy.

use std::collections::BTreeSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{
    Cred, EncryptionPolicy, Error, FallocateMode, Filesystem, InodeRef, KeyName, KeyRing, MountOptions, Mounted,
    NewNode, RenameFlags, Secret, SetAttr, WriteFlags,
};
use extant_oracle::encryption::{add_key, set_policy};
use extant_oracle::mount::{LoopMount, Mounted as _, loop_mounts_work};
use extant_oracle::{expect_clean, mke2fs};

const KEY: [u8; 64] = {
    let mut key = [0; 64];
    let mut i = 0;
    while i < 64 {
        key[i] = i as u8 * 3 + 1;
        i += 1;
    }
    key
};
const DESCRIPTOR: [u8; 8] = *b"descript";

fn ring() -> KeyRing {
    let mut ring = KeyRing::default();
    ring.add(Secret::new(&KEY).expect("short"), Some(DESCRIPTOR)).expect("a key");
    ring
}

fn mount(image: &Path, keys: KeyRing) -> Mounted {
    let device = FileDevice::open(image, OpenOptions::default()).expect("opened");
    let options = MountOptions { threads: false, keys, ..MountOptions::default() };
    Filesystem::mount(Arc::new(device), options).expect("mounted")
}

enum What {
    Dir,
    File(Vec<u8>),
    Link(Vec<u8>),
}

/// A path below the encrypted directory, and what is there.
type Tree = Vec<(PathBuf, What)>;

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + i / 251 + seed * 7) % 255) as u8 + 1).collect()
}

/// Names, targets and files of lengths around all boundaries of ciphers, paddings and blocks; enough names for an index.
fn tree() -> Tree {
    let mut tree = vec![(PathBuf::from("dir"), What::Dir), (PathBuf::from("dir/below"), What::Dir)];
    for len in [1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 143, 144, 189, 190, 223, 224, 239, 240, 253, 254, 255] {
        tree.push((PathBuf::from("n".repeat(len)), What::File(content(len, len))));
    }
    for len in [1, 15, 16, 17, 31, 32, 33, 56, 57, 58, 59, 60, 61, 100, 500, 1000] {
        tree.push((PathBuf::from(format!("dir/link{len}")), What::Link(vec![b't'; len])));
    }
    for len in [0, 1, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 70_000, 300_001] {
        tree.push((PathBuf::from(format!("dir/below/file{len}")), What::File(content(len, len))));
    }
    for i in 0..150 {
        tree.push((PathBuf::from(format!("dir/{i:0>90}")), What::File(content(i, i))));
    }
    tree
}

fn make_by_kernel(top: &Path, tree: &Tree) {
    for (path, what) in tree {
        let path = top.join(path);
        match what {
            What::Dir => std::fs::create_dir(path).expect("made"),
            What::File(bytes) => std::fs::write(path, bytes).expect("written"),
            What::Link(target) => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, path).expect("linked");
            }
        }
    }
}

fn expect_by_kernel(top: &Path, tree: &Tree) {
    let mut listed = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(top.join(&dir)).expect("listed") {
            let entry = entry.expect("an entry");
            let path = dir.join(entry.file_name());
            if entry.file_type().expect("a type").is_dir() {
                pending.push(path.clone());
            }
            listed.insert(path);
        }
    }
    assert_eq!(listed, tree.iter().map(|(path, _)| path.clone()).collect::<BTreeSet<_>>());
    for (path, what) in tree {
        let at = top.join(path);
        match what {
            What::Dir => assert!(at.is_dir(), "{path:?}"),
            What::File(bytes) => assert!(std::fs::read(&at).expect("read") == *bytes, "{path:?}"),
            What::Link(target) => {
                let found = std::fs::read_link(&at).expect("a target").into_os_string().into_vec();
                assert!(found == *target, "{path:?}");
                let size = at.symlink_metadata().expect("a link").len();
                assert_eq!(size, target.len() as u64, "{path:?}");
            }
        }
    }
}

fn parent<'p>(fs: &Filesystem, top: &str, path: &'p Path) -> (InodeRef, &'p [u8]) {
    let dir = Path::new(top).join(path.parent().expect("below the top"));
    let dir = fs.walk(dir.as_os_str().as_bytes(), true).expect("a directory");
    (dir, path.file_name().expect("a name").as_bytes())
}

fn write_all(fs: &Filesystem, file: &InodeRef, mut pos: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = fs.write(file, pos, bytes, WriteFlags::default()).expect("written");
        (pos, bytes) = (pos + n as u64, &bytes[n..]);
    }
}

fn make(fs: &Filesystem, top: &str, tree: &Tree) {
    for (path, what) in tree {
        let (dir, name) = parent(fs, top, path);
        let node = match what {
            What::Dir => NewNode::directory(0o755),
            What::File(_) => NewNode::file(0o644),
            What::Link(target) => NewNode::symlink(target),
        };
        let made = fs.create(&dir, name, node, Cred::default()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        if let What::File(bytes) = what {
            write_all(fs, &made, 0, bytes);
        }
    }
}

fn read(fs: &Filesystem, file: &InodeRef) -> extant_fs::Result<Vec<u8>> {
    let mut bytes = vec![0; fs.getattr(file).size as usize];
    let n = fs.read(file, 0, &mut bytes)?;
    assert_eq!(n, bytes.len());
    Ok(bytes)
}

fn expect(fs: &Filesystem, top: &str, tree: &Tree) {
    let mut listed = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let inode = fs.walk(Path::new(top).join(&dir).as_os_str().as_bytes(), true).expect("a directory");
        for entry in fs.list(&inode).expect("listed") {
            let path = dir.join(std::ffi::OsStr::from_bytes(&entry.name));
            if fs.lookup(&inode, &entry.name).unwrap_or_else(|e| panic!("{path:?}: {e}")).is_dir() {
                pending.push(path.clone());
            }
            listed.insert(path);
        }
    }
    assert_eq!(listed, tree.iter().map(|(path, _)| path.clone()).collect::<BTreeSet<_>>());
    for (path, what) in tree {
        let (dir, name) = parent(fs, top, path);
        let inode = fs.lookup(&dir, name).expect("there");
        match what {
            What::Dir => assert!(inode.is_dir(), "{path:?}"),
            What::File(bytes) => assert!(read(fs, &inode).expect("read") == *bytes, "{path:?}"),
            What::Link(target) => {
                assert!(fs.read_link(&inode).expect("a target") == *target, "{path:?}");
                assert_eq!(fs.getattr(&inode).size, target.len() as u64, "{path:?}");
            }
        }
    }
}

/// Changes files in every way that touches a part of a block, by a function of each kind of mount.
fn change(tree: &mut Tree, mut write: impl FnMut(&Path, usize, &[u8]), mut cut: impl FnMut(&Path, usize)) {
    for (path, what) in tree {
        let What::File(bytes) = what else { continue };
        let len = bytes.len();
        if len < 1000 {
            continue;
        }
        for (at, n) in [(len / 2, 100), (len - 3, 10), (len + 5000, 7)] {
            let new = content(at, n);
            write(path, at, &new);
            bytes.resize(bytes.len().max(at + n), 0);
            bytes[at..at + n].copy_from_slice(&new);
        }
        for size in [len * 2 / 3 + 1, len] {
            cut(path, size);
            bytes.resize(size, 0);
        }
    }
}

/// Whether the kernel can do it; a policy that it lacks is skipped by name.
fn encrypted_by_kernel(top: &Path, policy: &EncryptionPolicy) -> bool {
    let v1 = matches!(policy.key, KeyName::Descriptor(_));
    let bytes = extant_ondisk::encryption::Context { policy: *policy, nonce: [0; 16] }.encode();
    let added = add_key(top, &KEY, v1.then_some(&DESCRIPTOR[..]));
    match added.and_then(|_| set_policy(&top.join("kernel"), &bytes[..bytes.len() - 16])) {
        Ok(()) => true,
        Err(e) => {
            eprintln!("skipped: this kernel has no policy {policy:?}: {e}");
            false
        }
    }
}

fn policies() -> Vec<(&'static str, u32, EncryptionPolicy)> {
    let identifier = ring().identifiers().next().expect("a key");
    let v2 = EncryptionPolicy::new(identifier);
    let v1 = EncryptionPolicy { key: KeyName::Descriptor(DESCRIPTOR), ..v2 };
    vec![
        ("v2", 4096, v2),
        ("v2, padded to 4", 1024, EncryptionPolicy { flags: 0, ..v2 }),
        ("v2, padded to 8", 4096, EncryptionPolicy { flags: 1, ..v2 }),
        ("v2, padded to 16", 4096, EncryptionPolicy { flags: 2, ..v2 }),
        ("v2, by inode, 64 bits", 4096, EncryptionPolicy { flags: 3 | 8, ..v2 }),
        ("v2, by inode, 32 bits", 4096, EncryptionPolicy { flags: 3 | 16, ..v2 }),
        ("v2, units of 512 bytes", 4096, EncryptionPolicy { unit_bits: 9, ..v2 }),
        ("v1", 4096, v1),
        ("v1, padded to 4", 2048, EncryptionPolicy { flags: 0, ..v1 }),
    ]
}

#[test]
fn kernel_and_extant_read_each_others_encrypted_trees() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let mut tried = 0;
    for (what, block_size, policy) in policies() {
        let dir = tempfile::tempdir().expect("directory");
        let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::create_dir(&at).expect("made");
        let block = block_size.to_string();
        mke2fs(&image, &["-t", "ext4", "-b", &block, "-O", "encrypt,stable_inodes,inline_data"], "40M");
        let mut kernels = tree();
        let mut ours = tree();
        {
            let mounted = Box::new(LoopMount::new(&image, &at, "").expect("mounted by the kernel"));
            std::fs::create_dir(at.join("kernel")).expect("made");
            if !encrypted_by_kernel(&at, &policy) {
                continue;
            }
            make_by_kernel(&at.join("kernel"), &kernels);
            mounted.unmount().expect("unmounted");
        }
        tried += 1;
        let fs = mount(&image, ring());
        expect(&fs, "/kernel", &kernels);
        let top = fs.create(&fs.root().expect("root"), b"ours", NewNode::directory(0o755), Cred::default()).expect("made");
        fs.set_encryption_policy(&top, policy).unwrap_or_else(|e| panic!("{what}: {e}"));
        make(&fs, "/ours", &ours);
        // Extant changes the kernel's files, and the kernel Extant's.
        let open = |path: &Path| fs.walk(Path::new("/kernel").join(path).as_os_str().as_bytes(), false).expect("there");
        let cut = |path: &Path, size: usize| {
            let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            fs.setattr(&open(path), &set).expect("cut");
        };
        change(&mut kernels, |path, pos, bytes| write_all(&fs, &open(path), pos as u64, bytes), cut);
        expect(&fs, "/kernel", &kernels);
        drop(top);
        fs.unmount().expect("unmounted");
        expect_clean(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
        {
            let mounted = Box::new(LoopMount::new(&image, &at, "").expect("mounted by the kernel"));
            let v1 = matches!(policy.key, KeyName::Descriptor(_));
            add_key(&at, &KEY, v1.then_some(&DESCRIPTOR[..])).expect("a key");
            expect_by_kernel(&at.join("ours"), &ours);
            expect_by_kernel(&at.join("kernel"), &kernels);
            let write = |path: &Path, pos: usize, bytes: &[u8]| {
                use std::os::unix::fs::FileExt;
                let file = std::fs::OpenOptions::new().write(true).open(at.join("ours").join(path)).expect("opened");
                file.write_all_at(bytes, pos as u64).expect("written");
            };
            let cut = |path: &Path, size: usize| {
                let file = std::fs::OpenOptions::new().write(true).open(at.join("ours").join(path)).expect("opened");
                file.set_len(size as u64).expect("cut");
            };
            change(&mut ours, write, cut);
            mounted.unmount().expect("unmounted");
        }
        let fs = mount(&image, ring());
        expect(&fs, "/ours", &ours);
        fs.unmount().expect("unmounted");
        expect_clean(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    assert!(tried >= 4 || tried == 0, "only {tried} policies");
}
