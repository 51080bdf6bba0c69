//! Files with equal attributes share a block: the number of blocks, and e2fsck's check of every count.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Draft, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, SetMode};
use extant_ondisk::acl::{self, Acl, AclEntry, Tag};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Images whose attributes go to a block: small inodes have no room for them, large ones little.
const IMAGES: [&[&str]; 5] = [
    &["-t", "ext4", "-I", "128"],
    &["-t", "ext4", "-I", "128", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-I", "256"],
    &["-t", "ext3", "-I", "128", "-b", "1024"],
    &["-t", "ext2", "-I", "256", "-b", "2048"],
];

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    Filesystem::mount(dev.clone(), options()).expect("mounted")
}

/// An ACL, as a caller passes it, that does not fit an inode of 256 bytes.
fn naming(first: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let mut entries = vec![entry(Tag::UserObj, 6)];
    entries.extend((first..first + 16).map(|user| entry(Tag::User(user), 6)));
    entries.extend([entry(Tag::GroupObj, 4), entry(Tag::Mask, 6), entry(Tag::Other, 4)]);
    acl::to_xattr(&Acl { entries })
}

fn name(i: u32) -> Vec<u8> {
    format!("f{i}").into_bytes()
}

/// An image with this many files.
fn with_files(args: &[&str], count: u32) -> Arc<MemDevice> {
    let dev = Arc::new(tools::made(&[args, &["-N", "4096"]].concat(), "64M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    for i in 0..count {
        fs.create(&root, &name(i), NewNode::file(0o664), Cred::default()).expect("create");
    }
    drop(root);
    fs.unmount().expect("unmount");
    dev
}

/// Mounts, changes, unmounts and checks the counts with e2fsck. Returns the free blocks.
fn changed(dev: &Arc<MemDevice>, change: impl FnOnce(&Filesystem, &InodeRef)) -> u64 {
    let fs = mount(dev);
    let root = fs.root().expect("root");
    change(&fs, &root);
    drop(root);
    fs.unmount().expect("unmount");
    drop(fs);
    tools::assert_clean(dev);
    let fs = mount(dev);
    let free = fs.statfs().blocks_free;
    fs.unmount().expect("unmount");
    free
}

fn set(fs: &Filesystem, inode: &InodeRef, attribute: &[u8], value: &[u8]) {
    fs.set_xattr(inode, attribute, value, SetMode::Any).expect("set");
}

#[test]
fn files_with_one_acl_take_two_blocks() {
    for args in IMAGES {
        let dev = with_files(args, 2000);
        let of = |fs: &Filesystem, root: &InodeRef, i| fs.lookup(root, &name(i)).expect("there");
        let before = changed(&dev, |_, _| ());
        let mut units = 0;
        let with = changed(&dev, |fs, root| {
            (0..2000).for_each(|i| set(fs, &of(fs, root, i), ACCESS, &naming(1000)));
            units = fs.getattr(&of(fs, root, 1)).blocks * 512 / u64::from(fs.block_size());
        });
        assert_eq!(before - with, 2, "{args:?}: 1024 files share a block");
        assert_eq!(units, 1, "{args:?}: each file counts the block in full");
        let half = changed(&dev, |fs, root| (0..1000).for_each(|i| fs.unlink(root, &name(2 * i)).expect("unlink")));
        assert_eq!(half, with, "{args:?}: both blocks still have references");
        // A mode of their own, another attribute, none, and the same list by another way.
        let some = changed(&dev, |fs, root| {
            let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            for i in 0..50 {
                fs.setattr(&of(fs, root, 20 * i + 1), &chmod).expect("chmod");
                set(fs, &of(fs, root, 20 * i + 3), b"user.large", &[7; 300]);
                fs.remove_xattr(&of(fs, root, 20 * i + 5), ACCESS).expect("removed");
                set(fs, &of(fs, root, 20 * i + 7), ACCESS, &naming(2000));
                set(fs, &of(fs, root, 20 * i + 7), ACCESS, &naming(1000));
            }
            assert_eq!(fs.get_xattr(&of(fs, root, 9), ACCESS).expect("untouched"), naming(1000));
        });
        assert_eq!(with - some, 2, "{args:?}: two more lists");
        let none = changed(&dev, |fs, root| (0..1000).for_each(|i| fs.unlink(root, &name(2 * i + 1)).expect("unlink")));
        assert_eq!(none, before, "{args:?}");
    }
}

#[test]
fn new_files_share_the_acl_that_they_inherit() {
    let dev = with_files(&["-t", "ext4", "-I", "128", "-b", "4096"], 0);
    let empty = changed(&dev, |fs, root| {
        let dir = fs.create(root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
        set(fs, &dir, DEFAULT, &naming(1000));
    });
    let full = changed(&dev, |fs, root| {
        let dir = fs.lookup(root, b"d").expect("there");
        for i in 0..60 {
            fs.create(&dir, &name(i), NewNode::file(0o664), Cred::default()).expect("create");
            let sub = NewNode::directory(0o775);
            fs.create(&dir, format!("d{i}").as_bytes(), sub, Cred::default()).expect("mkdir");
        }
        let file = fs.lookup(&dir, &name(59)).expect("there");
        assert!(fs.get_xattr(&file, ACCESS).is_ok());
    });
    assert_eq!(empty - full, 60 + 2, "a block for each directory, one for all files, one for all directories");
}

#[test]
fn setting_one_acl_logs_the_inodes_and_two_blocks() {
    let dev = with_files(&["-t", "ext4", "-I", "128", "-b", "4096"], 2000);
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    fs.sync().expect("sync");
    let before = fs.statistics().journal().blocks.get();
    for i in 0..2000 {
        set(&fs, &fs.lookup(&root, &name(i)).expect("there"), ACCESS, &naming(1000));
    }
    fs.sync().expect("sync");
    let logged = fs.statistics().journal().blocks.get() - before;
    let tables = 2000 * 128 / 4096 + 2;
    assert!(logged <= tables + 2 + 4, "{logged} blocks in the log; the inodes take {tables}");
    drop(root);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

#[test]
fn counts_are_correct_when_threads_set_and_remove_at_once() {
    for (args, seed) in [(IMAGES[0], 1), (IMAGES[3], 2), (IMAGES[4], 3)] {
        let dev = with_files(args, 40);
        let before = changed(&dev, |_, _| ());
        let fs = Filesystem::mount(dev.clone(), MountOptions::default()).expect("mounted");
        let workers: Vec<_> = (0..4)
            .map(|n| (n, fs.clone()))
            .map(|(n, fs)| {
                task::spawn("worker", move || {
                    let root = fs.root().expect("root");
                    let mut rng = Rng::new(seed * 10 + n);
                    for _ in 0..1500 {
                        let of = name(rng.below(40) as u32);
                        let Ok(file) = fs.lookup(&root, &of) else {
                            // Another thread may be faster.
                            let _ = fs.create(&root, &of, NewNode::file(0o664), Cred::default());
                            continue;
                        };
                        let value = vec![rng.below(3) as u8; 500];
                        match rng.below(10) {
                            0..6 => set(&fs, &file, b"user.same", &value),
                            6 | 7 => _ = fs.remove_xattr(&file, b"user.same"),
                            8 => _ = fs.unlink(&root, &of),
                            _ => _ = fs.sync(),
                        }
                    }
                })
                .expect("thread")
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().expect("worker"));
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);
        let after = changed(&dev, |fs, root| {
            for i in 0..40 {
                let _ = fs.unlink(root, &name(i));
            }
        });
        assert_eq!(after, before, "{args:?}");
    }
}

#[test]
fn a_draft_shares_attribute_blocks_of_the_image() {
    let dev = with_files(&["-t", "ext4", "-I", "128"], 20);
    let before = changed(&dev, |fs, root| {
        (0..10).for_each(|i| set(fs, &fs.lookup(root, &name(i)).expect("there"), b"user.same", &[7; 500]));
    });
    let draft = Arc::new(Draft::new(dev.clone(), Arc::new(MemDevice::new(dev.size_bytes())), Clock::real()));
    let fs = Filesystem::mount(draft.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    let of = |i| fs.lookup(&root, &name(i)).expect("there");
    assert_eq!(fs.get_xattr(&of(0), b"user.same").expect("has it"), [7; 500]);
    (8..15).for_each(|i| set(&fs, &of(i), b"user.same", &[7; 500]));
    fs.remove_xattr(&of(9), b"user.same").expect("removed");
    fs.unlink(&root, &name(0)).expect("unlink");
    drop(root);
    fs.unmount().expect("unmounted");
    drop(fs);
    draft.commit().expect("committed");
    assert_eq!(changed(&dev, |_, _| ()), before, "no additional block");
    let last = changed(&dev, |fs, root| (1..20).for_each(|i| fs.unlink(root, &name(i)).expect("unlink")));
    assert_eq!(last, before + 1);
}
