//! Encrypted trees: the kernel reads what Extant writes, and Extant what the kernel writes, under each kind of policy.

use std::collections::BTreeSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, CrashMode, FileDevice, MemDevice, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{
    Cred, EncryptionPolicy, Error, FallocateMode, Filesystem, InodeRef, KeyName, KeyRing, MountOptions, Mounted,
    NewNode, RenameFlags, Secret, SetAttr, WriteFlags,
};
use extant_oracle::encryption::{add_key, set_policy};
use extant_oracle::mount::{LoopMount, Mounted as _, loop_mounts_work};
use extant_oracle::{expect_clean, memory as tools, mke2fs};

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

/// Names, targets and files of lengths around all boundaries of ciphers, paddings and blocks; enough names for an
/// index.
fn tree() -> Tree {
    let mut tree = vec![(PathBuf::from("dir"), What::Dir), (PathBuf::from("dir/below"), What::Dir)];
    for len in
        [1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 143, 144, 189, 190, 223, 224, 239, 240, 253, 254, 255]
    {
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
    let mut bytes = extant_ondisk::encryption::Context { policy: *policy, nonce: [0; 16] }.encode();
    if v1 {
        // Linux: `FSCRYPT_POLICY_V1`, and contexts of it have the version 1.
        bytes[0] = 0;
    }
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
        let top =
            fs.create(&fs.root().expect("root"), b"ours", NewNode::directory(0o755), Cred::default()).expect("made");
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
        drop(fs);
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
        drop(fs);
        expect_clean(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    assert!(tried >= 4 || tried == 0, "only {tried} policies");
}

fn in_memory(dev: &Arc<MemDevice>, keys: KeyRing) -> Mounted {
    let options = MountOptions { threads: false, keys, ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

fn policy() -> EncryptionPolicy {
    EncryptionPolicy::new(ring().identifiers().next().expect("a key"))
}

fn file(fs: &Filesystem, dir: &InodeRef, name: &[u8], bytes: &[u8]) -> InodeRef {
    let made = fs.create(dir, name, NewNode::file(0o644), Cred::default()).expect("created");
    write_all(fs, &made, 0, bytes);
    made
}

fn directory(fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> InodeRef {
    fs.create(dir, name, NewNode::directory(0o755), Cred::default()).expect("made")
}

/// `/secret` with a file, a link and a directory, all of whose texts begin with `marker`, and `/plain` with a file.
fn marked(features: &str) -> Arc<MemDevice> {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "1024", "-O", features], "24M"));
    let fs = in_memory(&dev, ring());
    let root = fs.root().expect("root");
    let top = directory(&fs, &root, b"secret");
    fs.set_encryption_policy(&top, policy()).expect("encrypted");
    let text = b"marker of a content ".repeat(2000);
    let secret = file(&fs, &top, b"marker of a name", &text);
    fs.fallocate(&secret, FallocateMode::PunchHole, 5000, 9001).expect("punched");
    if !features.contains("^extent") {
        fs.fallocate(&secret, FallocateMode::ZeroRange { keep_size: true }, 20_000, 3333).expect("zeroed");
    }
    fs.setattr(&secret, &SetAttr { size: Some(30_001), ..SetAttr::default() }).expect("cut");
    write_all(&fs, &secret, 29_990, &text[..4000]);
    file(&fs, &top, b"marker of a short file", b"marker");
    let below = directory(&fs, &top, b"marker of a directory");
    for i in 0..100 {
        file(&fs, &below, format!("marker of file {i:0>60}").as_bytes(), b"marker");
    }
    for target in [&b"marker of a target"[..], &b"marker of a long target ".repeat(9)[..]] {
        let name = format!("marker of a link {}", target.len());
        fs.create(&top, name.as_bytes(), NewNode::symlink(target), Cred::default()).expect("linked");
    }
    fs.rename(&top, b"marker of a short file", &below, b"marker, moved", RenameFlags::default()).expect("moved");
    let plain = directory(&fs, &root, b"plain");
    file(&fs, &plain, b"file", b"plain");
    drop((root, top, secret, below, plain));
    fs.unmount().expect("unmounted");
    drop(fs);
    tools::assert_clean(&dev);
    dev
}

#[test]
fn no_plaintext_reaches_the_device_or_its_log() {
    for features in ["encrypt", "encrypt,inline_data", "encrypt,bigalloc", "encrypt,^extent,^64bit,^flex_bg"] {
        let dev = marked(features);
        let mut bytes = vec![0; dev.size_bytes() as usize];
        dev.read_at(0, &mut bytes, BioFlags::empty()).expect("read");
        assert!(bytes.windows(5).any(|window| window == b"plain"), "{features}: a plain name is there");
        let found = bytes.windows(6).position(|window| window == b"marker");
        assert_eq!(found, None, "{features}: plaintext on the device");
    }
}

fn names(fs: &Filesystem, dir: &InodeRef) -> Vec<Vec<u8>> {
    fs.list(dir).expect("listed").into_iter().map(|entry| entry.name).collect()
}

/// Everything that needs the key is ENOKEY; names and files remain removable.
#[test]
fn without_the_key_files_can_only_be_listed_and_removed() {
    let mut wrong = KeyRing::default();
    wrong.add(Secret::new(&[1; 64]).expect("short"), None).expect("a key");
    for keys in [KeyRing::default(), wrong] {
        let dev = marked("encrypt");
        let fs = in_memory(&dev, keys);
        let is_locked = |what: &str, result: extant_fs::Result<()>| match result {
            Err(e) => assert_eq!(e.errno(), extant_fs::errno::number::ENOKEY, "{what}: {e}"),
            Ok(()) => panic!("{what} works without the key"),
        };
        let top = fs.walk(b"/secret", true).expect("there");
        assert!(fs.lacks_key(&top));
        assert!(matches!(fs.lookup(&top, b"marker of a name"), Err(Error::NotFound)));
        let mut kinds = (0, 0, 0);
        for name in names(&fs, &top) {
            let inode = fs.lookup(&top, &name).expect("by its shown name");
            assert!(!name.starts_with(b"marker"), "{}", name.escape_ascii());
            is_locked("rename", fs.rename(&top, &name, &top, b"new", RenameFlags::default()));
            fs.setattr(&inode, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("chmod");
            if inode.is_dir() {
                kinds.0 += 1;
                assert_eq!(names(&fs, &inode).len(), 101);
                continue;
            }
            if let Ok(target) = fs.read_link(&inode) {
                kinds.1 += 1;
                assert!(!target.starts_with(b"marker"));
                assert_eq!(fs.getattr(&inode).size, target.len() as u64);
                continue;
            }
            kinds.2 += 1;
            is_locked("read", read(&fs, &inode).map(drop));
            is_locked("write", fs.write(&inode, 0, b"x", WriteFlags::default()).map(drop));
            is_locked("cut", fs.setattr(&inode, &SetAttr { size: Some(1), ..SetAttr::default() }).map(drop));
            is_locked("punch", fs.fallocate(&inode, FallocateMode::PunchHole, 0, 4096));
            is_locked("link", fs.link(&inode, &top, b"other"));
            is_locked("open", fs.may_open(&inode, extant_fs::OpenFor::default()));
        }
        assert_eq!(kinds, (1, 2, 1));
        let cred = Cred::default();
        is_locked("create", fs.create(&top, b"new", NewNode::file(0o644), cred).map(drop));
        is_locked("mkdir", fs.create(&top, b"new", NewNode::directory(0o755), cred).map(drop));
        is_locked("tmpfile", fs.tmpfile(&top, 0o600, cred).map(drop));
        let plain = fs.walk(b"/plain", true).expect("there");
        is_locked("rename into", fs.rename(&plain, b"file", &top, b"new", RenameFlags::default()));
        let unlink_all = |dir: &InodeRef| {
            for name in names(&fs, dir) {
                if !fs.lookup(dir, &name).expect("there").is_dir() {
                    fs.unlink(dir, &name).expect("unlinked");
                }
            }
        };
        unlink_all(&top);
        let [below] = &names(&fs, &top)[..] else { panic!("only the directory is left") };
        unlink_all(&fs.lookup(&top, below).expect("there"));
        fs.rmdir(&top, below).expect("removed");
        fs.rmdir(&fs.root().expect("root"), b"secret").expect("removed");
        drop((top, plain));
        fs.unmount().expect("unmounted");
        tools::assert_clean(&dev);
    }
}

#[test]
fn files_enter_an_encrypted_directory_only_with_its_policy() {
    let dev = marked("encrypt");
    let fs = in_memory(&dev, ring());
    let root = fs.root().expect("root");
    let (top, plain) = (fs.walk(b"/secret", true).expect("there"), fs.walk(b"/plain", true).expect("there"));
    let other = directory(&fs, &root, b"other");
    fs.set_encryption_policy(&other, EncryptionPolicy { flags: 0, ..policy() }).expect("encrypted");
    let moved = |from: &InodeRef, name: &[u8], to: &InodeRef, new: &[u8], exchange: bool| {
        fs.rename(from, name, to, new, RenameFlags { exchange, ..RenameFlags::default() })
    };
    let is_refused = |result: extant_fs::Result<()>| {
        let e = result.expect_err("refused");
        assert_eq!(e.errno(), extant_fs::errno::number::EXDEV, "{e}");
    };
    is_refused(moved(&plain, b"file", &top, b"file", false));
    is_refused(moved(&top, b"marker of a name", &other, b"name", false));
    is_refused(moved(&top, b"marker of a directory", &other, b"name", false));
    is_refused(moved(&top, b"marker of a name", &plain, b"file", true));
    is_refused(fs.link(&fs.walk(b"/plain/file", true).expect("there"), &top, b"file"));
    // An encrypted file may leave, and stays encrypted; special files are never encrypted.
    let text = read(&fs, &fs.walk(b"/secret/marker of a name", true).expect("there")).expect("read");
    moved(&top, b"marker of a name", &plain, b"left", false).expect("moved out");
    let left = fs.walk(b"/plain/left", true).expect("there");
    assert!(read(&fs, &left).expect("read") == text);
    moved(&plain, b"left", &top, b"marker, back", false).expect("moved back");
    fs.link(&left, &top, b"marker, twice").expect("linked");
    fs.create(&top, b"null", NewNode::whiteout(), Cred::default()).expect("made");
    moved(&top, b"null", &other, b"null", false).expect("moved");
    // Policies are for empty directories, and stay.
    let set = |dir: &InodeRef, policy| fs.set_encryption_policy(dir, policy);
    set(&top, policy()).expect("the same policy");
    assert!(matches!(set(&top, EncryptionPolicy { flags: 0, ..policy() }), Err(Error::Exists)));
    assert!(matches!(set(&plain, policy()), Err(Error::NotEmpty)));
    assert!(matches!(set(&root, policy()), Err(Error::NotPermitted)));
    let empty = directory(&fs, &root, b"empty");
    let unknown = EncryptionPolicy::new([9; 16]);
    assert_eq!(set(&empty, unknown).expect_err("no key").errno(), extant_fs::errno::number::ENOKEY);
    assert!(fs.encryption_policy(&empty).expect("read").is_none());
    drop((root, top, plain, other, left, empty));
    fs.unmount().expect("unmounted");
    tools::assert_clean(&dev);
}

/// Each power cut leaves names that decrypt, and files with a beginning of their content; what fsync confirmed is
/// whole.
#[test]
fn a_power_cut_leaves_beginnings_of_files_under_their_names() {
    let base = Arc::new(tools::made(&["-t", "ext4", "-b", "1024", "-O", "encrypt", "-J", "size=1"], "16M"));
    let fs = in_memory(&base, ring());
    let top = directory(&fs, &fs.root().expect("root"), b"secret");
    fs.set_encryption_policy(&top, policy()).expect("encrypted");
    drop(top);
    fs.unmount().expect("unmounted");
    drop(fs);
    let crash = Arc::new(CrashDevice::from_image(&base));
    crash.declare_atomic(1024, 1024);
    let options = MountOptions { threads: false, keys: ring(), ..MountOptions::default() };
    let fs = Filesystem::mount(crash.clone(), options).expect("mounted");
    let top = fs.walk(b"/secret", true).expect("there");
    // Number of events, and the name that is durable from then on.
    let mut confirmed: Vec<(usize, usize)> = Vec::new();
    let name = |i: usize| format!("file {i:0>40}").into_bytes();
    let text = |i: usize| content(i, i * 211 % 9000 + 1);
    for i in 0..60 {
        let made = file(&fs, &top, &name(i), &text(i)[..i % 7]);
        write_all(&fs, &made, (i % 7) as u64, &text(i)[i % 7..]);
        if i % 2 == 0 {
            fs.fsync(&made, false).expect("durable");
            confirmed.push((crash.write_log(), i));
        }
        if i % 5 == 4 {
            fs.unlink(&top, &name(i - 3)).expect("unlinked");
            confirmed.retain(|(_, at)| *at != i - 3);
        }
    }
    drop(top);
    fs.unmount().expect("unmounted");
    let (events, mut rng) = (crash.write_log(), Rng::new(5));
    assert!(events > 80 && confirmed.len() > 8, "{events} events, {} files", confirmed.len());
    for (round, n) in (0..=events).step_by(events / 40).enumerate() {
        let mode = [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn][round % 3];
        let state = Arc::new(crash.state_after(n, &mut rng, mode).expect("state"));
        let fs = in_memory(&state, ring());
        let top = fs.walk(b"/secret", true).expect("there");
        let listed = names(&fs, &top);
        for i in 0..60 {
            let found = listed.contains(&name(i)).then(|| fs.lookup(&top, &name(i)).expect("there"));
            let whole = confirmed.iter().any(|(since, at)| *at == i && *since <= n);
            let Some(found) = found else {
                assert!(!whole, "cut after {n}: file {i} is gone");
                continue;
            };
            let bytes = read(&fs, &found).expect("read");
            assert!(text(i).starts_with(&bytes), "cut after {n}: file {i} has {} bytes of another", bytes.len());
            assert!(!whole || bytes.len() == text(i).len(), "cut after {n}: file {i} has {} bytes", bytes.len());
        }
        let known = (0..60).filter(|i| listed.contains(&name(*i))).count();
        assert_eq!(known, listed.len(), "cut after {n}: other names");
        drop(top);
        fs.unmount().expect("unmounted");
        if round % 4 == 0 {
            tools::assert_clean(&state);
        }
    }
}

/// No kernel here has ESSIV: Extant reads what it wrote.
#[test]
fn trees_under_aes_128_survive_a_remount() {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "1024", "-O", "encrypt"], "24M"));
    let policy = EncryptionPolicy { contents: 5, names: 6, ..policy() };
    let fs = in_memory(&dev, ring());
    let top = directory(&fs, &fs.root().expect("root"), b"top");
    fs.set_encryption_policy(&top, policy).expect("encrypted");
    let tree = tree();
    make(&fs, "/top", &tree);
    drop(top);
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = in_memory(&dev, ring());
    expect(&fs, "/top", &tree);
    fs.unmount().expect("unmounted");
    tools::assert_clean(&dev);
}

/// Contexts and names of any bytes are errors or other names, and nothing else.
#[test]
fn hostile_contexts_and_names_end_with_errors() {
    let dev = marked("encrypt,^metadata_csum");
    let mut bytes = vec![0; dev.size_bytes() as usize];
    dev.read_at(0, &mut bytes, BioFlags::empty()).expect("read");
    let identifier = ring().identifiers().next().expect("a key");
    let contexts: Vec<usize> = (8..bytes.len() - 64).filter(|at| bytes[*at..].starts_with(&identifier)).collect();
    assert!(contexts.len() > 100, "{} contexts", contexts.len());
    let visit = || {
        let options = MountOptions { threads: false, read_only: true, keys: ring(), ..MountOptions::default() };
        let Ok(fs) = Filesystem::mount(dev.clone(), options) else { return (0, 0) };
        let (mut good, mut bad) = (0, 0);
        let mut pending = vec![fs.walk(b"/secret", true)];
        while let Some(Ok(dir)) = pending.pop() {
            for entry in fs.list(&dir).unwrap_or_default() {
                let Ok(inode) = fs.lookup(&dir, &entry.name) else {
                    bad += 1;
                    continue;
                };
                let is_good = match inode.is_dir() {
                    true => true,
                    false => fs.read_link(&inode).is_ok() || read(&fs, &inode).is_ok(),
                };
                if is_good {
                    good += 1
                } else {
                    bad += 1
                }
                if inode.is_dir() {
                    pending.push(Ok(inode));
                }
            }
        }
        (good, bad)
    };
    let sound = visit();
    assert_eq!(sound.1, 0);
    let mut rng = Rng::new(11);
    let mut spoiled = 0;
    for round in 0..60 {
        // Version, modes, flags, unit; the identifier; the nonce.
        let at = contexts[rng.below(contexts.len().min(6) as u64) as usize] - 8 + rng.below(40) as usize;
        let value = [0, 1, 2, 5, 9, 16, 255][round % 7];
        let sector = at / 512 * 512;
        let intact = &bytes[sector..sector + 512];
        let mut changed = intact.to_vec();
        changed[at - sector] = value;
        dev.write_at(sector as u64, &[&changed], BioFlags::empty()).expect("written");
        spoiled += usize::from(visit() != sound);
        dev.write_at(sector as u64, &[intact], BioFlags::empty()).expect("written");
    }
    assert!(spoiled > 20, "only {spoiled} changes had an effect");
    assert_eq!(visit(), sound);
}
