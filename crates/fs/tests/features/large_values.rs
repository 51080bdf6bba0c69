//! Values of attributes in inodes of their own (`ea_inode`): they are shared, and freed with the last reference, and a
//! crafted image may claim anything. e2fsck counts every reference again, and debugfs reads the values.

use extant_oracle::memory as tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::task;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, SetMode};
use extant_ondisk::acl::{self, Acl, AclEntry, Tag};

const IMAGES: [&[&str]; 6] = [
    &["-t", "ext4", "-O", "ea_inode"],
    &["-t", "ext4", "-O", "ea_inode,^metadata_csum", "-b", "1024", "-I", "128"],
    &["-t", "ext4", "-O", "ea_inode,quota,project,orphan_file", "-b", "2048", "-I", "256"],
    &["-t", "ext4", "-O", "ea_inode,inline_data,metadata_csum_seed", "-b", "1024", "-I", "512"],
    &["-t", "ext3", "-O", "ea_inode", "-b", "1024", "-I", "256"],
    &["-t", "ext2", "-O", "ea_inode", "-b", "4096", "-I", "128"],
];

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn made(args: &[&str]) -> Arc<MemDevice> {
    Arc::new(tools::made(&[args, &["-N", "2048"]].concat(), "64M"))
}

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    Filesystem::mount(dev.clone(), options()).expect("mounted")
}

/// Free blocks and inodes, when nothing waits for a commit.
fn free(fs: &Filesystem) -> (u64, u64) {
    fs.sync().expect("sync");
    let s = fs.statfs();
    (s.blocks_free, s.inodes_free)
}

/// Mounts, changes, unmounts, and checks with e2fsck. Returns what is free then.
fn changed(dev: &Arc<MemDevice>, change: impl FnOnce(&Filesystem, &InodeRef)) -> (u64, u64) {
    let fs = mount(dev);
    let root = fs.root().expect("root");
    change(&fs, &root);
    drop(root);
    fs.unmount().expect("unmount");
    drop(fs);
    tools::assert_clean(dev);
    let fs = mount(dev);
    let free = free(&fs);
    fs.unmount().expect("unmount");
    free
}

fn file(fs: &Filesystem, root: &InodeRef, name: &[u8]) -> InodeRef {
    fs.lookup(root, name)
        .or_else(|_| fs.create(root, name, NewNode::file(0o644), Cred::default()))
        .expect("there or made")
}

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

fn set(fs: &Filesystem, inode: &InodeRef, attribute: &[u8], value: &[u8]) {
    fs.set_xattr(inode, attribute, value, SetMode::Any).expect("set");
}

/// The bytes that `ea_get -x` prints.
fn bytes_of(said: &str) -> Vec<u8> {
    let hex = said.split_once(" = ").map_or("", |(_, hex)| hex);
    hex.split_whitespace().map_while(|two| u8::from_str_radix(two, 16).ok()).collect()
}

#[test]
fn large_values_are_stored_read_and_freed() {
    for args in IMAGES {
        let dev = made(args);
        let before = changed(&dev, |fs, root| drop(file(fs, root, b"f")));
        let lens = [1, 900, 5000, 4097, 12_000, 65_535, 65_536];
        changed(&dev, |fs, root| {
            let f = file(fs, root, b"f");
            for (i, len) in lens.into_iter().enumerate() {
                let name = format!("user.v{i}");
                set(fs, &f, name.as_bytes(), &value(i as u64, len));
                assert!(fs.get_xattr(&f, name.as_bytes()).expect("read") == value(i as u64, len), "{args:?} {len}");
            }
        });
        for (i, len) in lens.into_iter().enumerate() {
            let said = tools::debugfs(&dev, &format!("ea_get -x /f user.v{i}"));
            assert!(bytes_of(&said) == value(i as u64, len), "{args:?}: debugfs has another value of {len} bytes");
        }
        let after = changed(&dev, |fs, root| {
            let f = file(fs, root, b"f");
            for (i, len) in lens.into_iter().enumerate() {
                let name = format!("user.v{i}");
                assert!(fs.get_xattr(&f, name.as_bytes()).expect("read") == value(i as u64, len), "{args:?} {len}");
            }
            // Half of them one by one, the others with the file.
            for i in 0..4 {
                fs.remove_xattr(&f, format!("user.v{i}").as_bytes()).expect("removed");
            }
            drop(f);
            fs.unlink(root, b"f").expect("unlink");
        });
        assert_eq!(after, (before.0, before.1 + 1), "{args:?}: all is free again");
    }
}

#[test]
fn equal_values_share_an_inode_and_the_last_frees_it() {
    for args in IMAGES {
        let dev = made(args);
        let name = |i: u32| format!("f{i}").into_bytes();
        let chown = |id| SetAttr { uid: Some(id), gid: Some(id), mode: Some(0o600), ..SetAttr::default() };
        let before = changed(&dev, |fs, root| {
            (0..40).for_each(|i| drop(file(fs, root, &name(i))));
            fs.setattr(&file(fs, root, b"f5"), &chown(77)).expect("chown");
        });
        let with = changed(&dev, |fs, root| {
            (0..40).for_each(|i| set(fs, &file(fs, root, &name(i)), b"user.same", &value(7, 20_000)));
            // The same value under other names, and beside small attributes.
            set(fs, &file(fs, root, b"f0"), b"trusted.other", &value(7, 20_000));
            set(fs, &file(fs, root, b"f1"), b"user.small", b"small");
        });
        assert_eq!(before.1 - with.1, 1, "{args:?}: one inode has the value");
        let attr = |fs: &Filesystem, f: &InodeRef| fs.getattr(f).blocks;
        changed(&dev, |fs, root| {
            // Reading a value lets later ones find it.
            let f = file(fs, root, b"f3");
            assert!(fs.get_xattr(&f, b"user.same").expect("read") == value(7, 20_000));
            let units = attr(fs, &f);
            assert!(units >= 20_000 / 512, "{args:?}: {units}: each file counts the value");
            set(fs, &file(fs, root, b"g"), b"user.same", &value(7, 20_000));
            fs.unlink(root, b"g").expect("unlink");
            fs.setattr(&file(fs, root, b"f5"), &chown(0)).expect("chown");
            fs.setattr(&file(fs, root, b"f6"), &chown(77)).expect("chown");
        });
        let after = changed(&dev, |fs, root| {
            (0..20).for_each(|i| fs.remove_xattr(&file(fs, root, &name(i)), b"user.same").expect("removed"));
            fs.remove_xattr(&file(fs, root, b"f0"), b"trusted.other").expect("removed");
            fs.remove_xattr(&file(fs, root, b"f1"), b"user.small").expect("removed");
            for i in 20..40 {
                set(fs, &file(fs, root, &name(i)), b"user.same", b"");
                fs.remove_xattr(&file(fs, root, &name(i)), b"user.same").expect("removed");
            }
        });
        assert_eq!(after, before, "{args:?}");
    }
}

/// An ACL that names many users.
fn naming(users: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let mut entries = vec![entry(Tag::UserObj, 6)];
    entries.extend((0..users).map(|user| entry(Tag::User(1000 + user), 6)));
    entries.extend([entry(Tag::GroupObj, 4), entry(Tag::Mask, 6), entry(Tag::Other, 4)]);
    acl::to_xattr(&Acl { entries })
}

/// A list that is larger than a block is handed down, and follows a chmod.
#[test]
fn large_default_acls_are_inherited() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    for args in IMAGES {
        let dev = made(args);
        let before = changed(&dev, |_, _| ());
        changed(&dev, |fs, root| {
            let dir = fs.create(root, b"d", NewNode::directory(0o775), Cred::default()).expect("mkdir");
            set(fs, &dir, DEFAULT, &naming(3000));
            for i in 0..5 {
                let name = format!("f{i}").into_bytes();
                let f = fs.create(&dir, &name, NewNode::file(0o666), Cred::default()).expect("create");
                assert!(fs.get_xattr(&f, ACCESS).expect("has it").len() == naming(3000).len(), "{args:?}");
                let sub = NewNode::directory(0o777);
                let sub = fs.create(&dir, format!("d{i}").as_bytes(), sub, Cred::default()).expect("mkdir");
                assert!(fs.get_xattr(&sub, DEFAULT).expect("has it") == naming(3000), "{args:?}");
            }
            let f = fs.lookup(&dir, b"f2").expect("there");
            fs.setattr(&f, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("chmod");
        });
        let after = changed(&dev, |fs, root| {
            let dir = fs.lookup(root, b"d").expect("there");
            for i in 0..5 {
                fs.unlink(&dir, format!("f{i}").as_bytes()).expect("unlink");
                fs.rmdir(&dir, format!("d{i}").as_bytes()).expect("rmdir");
            }
            drop(dir);
            fs.rmdir(root, b"d").expect("rmdir");
        });
        assert_eq!(after, before, "{args:?}");
    }
}

type Model = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Values of many sizes on a few files come, change and go; the image is checked now and then.
#[test]
fn random_changes_match_a_model() {
    for (seed, args) in IMAGES.into_iter().enumerate() {
        let dev = made(args);
        let empty = changed(&dev, |_, _| ());
        let mut rng = Rng::new(seed as u64 + 1);
        let mut model = Model::new();
        for _ in 0..4 {
            changed(&dev, |fs, root| {
                for _ in 0..120 {
                    step(fs, root, &mut rng, &mut model);
                }
            });
            changed(&dev, |fs, root| {
                for (name, attributes) in &model {
                    let f = fs.lookup(root, name).expect("there");
                    let mut names = fs.list_xattrs(&f).expect("listed");
                    names.sort();
                    assert_eq!(names, attributes.keys().cloned().collect::<Vec<_>>(), "{args:?}");
                    for (attribute, value) in attributes {
                        assert!(fs.get_xattr(&f, attribute).expect("read") == *value, "{args:?}");
                    }
                }
            });
        }
        let after = changed(&dev, |fs, root| {
            model.keys().for_each(|name| fs.unlink(root, name).expect("unlink"));
        });
        assert_eq!(after, empty, "{args:?}");
    }
}

fn step(fs: &Filesystem, root: &InodeRef, rng: &mut Rng, model: &mut Model) {
    let name = format!("f{}", rng.below(6)).into_bytes();
    let attribute = format!("user.{}", "a".repeat(1 + 5 * rng.below(8) as usize)).into_bytes();
    match rng.below(20) {
        0 if model.remove(&name).is_some() => fs.unlink(root, &name).expect("unlink"),
        1..=4 => {
            let Some(attributes) = model.get_mut(&name) else { return };
            let removed = fs.remove_xattr(&file(fs, root, &name), &attribute);
            assert_eq!(removed.is_ok(), attributes.remove(&attribute).is_some(), "{removed:?}");
        }
        _ => {
            let len = [10, 60, 300, 2000, 4000, 9000, 40_000][rng.below(7) as usize];
            let value = value(rng.below(3), len);
            let f = file(fs, root, &name);
            let attributes = model.entry(name).or_default();
            match fs.set_xattr(&f, &attribute, &value, SetMode::Any) {
                Ok(()) => _ = attributes.insert(attribute, value),
                Err(Error::NoSpace) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}

#[test]
fn counts_are_correct_when_threads_set_and_remove_at_once() {
    for (args, seed) in [(IMAGES[0], 1), (IMAGES[1], 2), (IMAGES[2], 3)] {
        let dev = made(args);
        let before = changed(&dev, |_, _| ());
        let fs = Filesystem::mount(dev.clone(), MountOptions::default()).expect("mounted");
        let worker = move |n: u64, fs: Arc<Filesystem>| {
            let root = fs.root().expect("root");
            let mut rng = Rng::new(seed * 10 + n);
            for _ in 0..400 {
                let name = format!("f{}", rng.below(8)).into_bytes();
                let Ok(f) = fs.lookup(&root, &name) else {
                    // Another thread may be faster.
                    let _ = fs.create(&root, &name, NewNode::file(0o664), Cred::default());
                    continue;
                };
                let attribute = [&b"user.a"[..], b"user.b"][rng.below(2) as usize];
                match rng.below(10) {
                    0..6 => set(&fs, &f, attribute, &value(rng.below(2), 7000)),
                    6 | 7 => _ = fs.remove_xattr(&f, attribute),
                    8 => _ = fs.unlink(&root, &name),
                    _ => _ = fs.get_xattr(&f, attribute),
                }
            }
        };
        let workers: Vec<_> = (0..4)
            .map(|n| (n, fs.clone()))
            .map(|(n, fs)| task::spawn("worker", move || worker(n, fs)).expect("thread"))
            .collect();
        workers.into_iter().for_each(|w| w.join().expect("worker"));
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);
        let after = changed(&dev, |fs, root| {
            for i in 0..8 {
                let _ = fs.unlink(root, format!("f{i}").as_bytes());
            }
        });
        assert_eq!(after, before, "{args:?}");
    }
}
