//! The state of attributes, and of the fields that change with them, if there is too little space.

use std::sync::Arc;

use extant_base::{sim, task};
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::acl::{self, Acl, AclEntry, Tag};
use extant_ondisk::xattr::XattrBlock;
use extant_ondisk::{BlockNr, InodeNr};

use crate::ops::no_space::tests::take_all;
use crate::tools::{assert_clean, debugfs, edited, made};
use crate::{BorrowJournal, Cred, Error, Filesystem, MountOptions, Mounted, NewNode, SetAttr, SetMode};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// An ACL with this many users, in the form in which a caller passes it.
fn naming(users: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let mut entries = vec![entry(Tag::UserObj, 7)];
    entries.extend((0..users).map(|user| entry(Tag::User(1000 + user), 6)));
    entries.extend([entry(Tag::GroupObj, 5), entry(Tag::Mask, 7), entry(Tag::Other, 5)]);
    acl::to_xattr(&Acl { entries })
}

type Blocks = Vec<(BlockNr, u32)>;

/// Takes all blocks except this number, which any caller can allocate.
fn leave(fs: &Filesystem, blocks: u64) -> Blocks {
    let mut taken = take_all(fs);
    fs.sync().expect("sync");
    let kept = if blocks == 0 { 0 } else { fs.placement.reserve.pool_blocks() };
    give_back(fs, &mut taken, kept + blocks);
    fs.sync().expect("sync");
    taken
}

fn give_back(fs: &Filesystem, taken: &mut Blocks, mut blocks: u64) {
    for (start, len) in taken {
        let now = blocks.min(u64::from(*len)) as u32;
        if now > 0 {
            let mut handle = fs.start(8).expect("handle");
            fs.placement.free_blocks(&mut handle, InodeNr::ROOT, *start, now).expect("freed");
            handle.finish();
        }
        (*start, *len, blocks) = (BlockNr(start.0 + u64::from(now)), *len - now, blocks - u64::from(now));
    }
}

fn mkdir(fs: &Filesystem, dir: &crate::InodeRef, name: &[u8]) -> crate::Result<crate::InodeRef> {
    fs.create(dir, name, NewNode::directory(0o755), Cred::default())
}

/// A directory inherits two ACLs that do not fit in one block. Setting only the first would be half a change.
#[test]
fn mkdir_fails_if_the_inherited_acls_do_not_fit() {
    let dev = Arc::new(made(&["-t", "ext4", "-b", "4096"], "16M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    let d = mkdir(&fs, &root, b"d").expect("mkdir");
    fs.set_xattr(&d, DEFAULT, &naming(300), SetMode::Any).expect("one list fits");
    let failed = mkdir(&fs, &d, b"sub").map(drop);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(!fs.is_read_only(), "no change was left half-done");
    fs.create(&d, b"f", NewNode::file(0o644), Cred::default()).map(drop).expect("a file inherits only one of them");
    drop((root, d));
    fs.unmount().expect("unmount");
    assert_clean(&dev);
}

/// The first ACL fits in the inode, but the second needs a block.
#[test]
fn mkdir_fails_if_the_second_inherited_acl_finds_no_block() {
    let dev = Arc::new(made(&["-t", "ext4", "-b", "1024", "-I", "256"], "16M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    let d = mkdir(&fs, &root, b"d").expect("mkdir");
    fs.set_xattr(&d, DEFAULT, &naming(3), SetMode::Any).expect("fits into the inode");
    let mut taken = leave(&fs, 1);
    let failed = mkdir(&fs, &d, b"sub").map(drop);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(!fs.is_read_only(), "no change was left half-done");
    assert!(matches!(fs.lookup(&d, b"sub").map(drop), Err(Error::NotFound)));
    // One more block becomes free with the next commit.
    give_back(&fs, &mut taken, 1);
    let sub = mkdir(&fs, &d, b"sub").expect("waits for the commit");
    assert_eq!(fs.get_xattr(&sub, DEFAULT).expect("inherited"), naming(3));
    assert!(fs.get_xattr(&sub, ACCESS).is_ok(), "the second list, too");
    give_back(&fs, &mut taken, u64::MAX);
    drop((root, d, sub));
    fs.unmount().expect("unmount");
    assert_clean(&dev);
}

/// Two inodes that share an attribute block, as the kernel creates them; it contains the access ACL of both.
fn sharing() -> Arc<MemDevice> {
    let dev = Arc::new(made(&["-t", "ext3", "-b", "1024", "-I", "128"], "16M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    for name in [b"f", b"g"] {
        let f = fs.create(&root, name, NewNode::file(0o775), Cred::default()).expect("create");
        if name == b"f" {
            fs.set_xattr(&f, ACCESS, &naming(1), SetMode::Any).expect("set");
        }
    }
    drop(root);
    fs.unmount().expect("unmount");
    let stat = debugfs(&dev, "stat f");
    let block = stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("block");
    let (acl, blocks) = (format!("sif g file_acl {block}"), "sif g blocks 2");
    let dev = edited(&dev, &[&acl, blocks]);
    let nr = BlockNr(block.parse().expect("a number"));
    let mut bytes = vec![0; 1024];
    let at = nr.0 * 1024;
    dev.read_at(at, &mut bytes, BioFlags::default()).expect("read");
    let list = XattrBlock::parse(&bytes, nr, None).map(|b| b.to_list()).expect("understood");
    XattrBlock::encode(&list, 2, &mut bytes, nr, None).expect("fits");
    dev.write_at(at, &[&bytes], BioFlags::default()).expect("written");
    assert_clean(&dev);
    Arc::new(dev)
}

/// The ACL changes with the mode, and so needs a block of its own.
#[test]
fn chmod_fails_if_the_changed_acl_finds_no_block() {
    let dev = sharing();
    let fs = mount(&dev);
    let [f, g] = [b"f", b"g"].map(|name| fs.walk(name, true).expect("there"));
    let before = fs.get_xattr(&g, ACCESS).expect("list");
    let mode = fs.getattr(&g).mode;
    let mut taken = leave(&fs, 0);
    let chmod = SetAttr { mode: Some(0o700), uid: Some(7), ..SetAttr::default() };
    let failed = fs.setattr(&g, &chmod).map(drop);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(!fs.is_read_only(), "no change was left half-done");
    assert_eq!((fs.getattr(&g).mode, fs.getattr(&g).uid), (mode, 0));
    assert_eq!(fs.get_xattr(&g, ACCESS).expect("list"), before);
    // Enough blocks become free with the next commit.
    let enough = fs.placement.reserve.pool_blocks() + 1;
    give_back(&fs, &mut taken, enough);
    let after = fs.setattr(&g, &chmod).expect("waits for the commit");
    assert_eq!((after.mode & 0o7777, after.uid), (0o700, 7));
    assert_ne!(fs.get_xattr(&g, ACCESS).expect("list"), before);
    assert_eq!(fs.get_xattr(&f, ACCESS).expect("list"), before, "the other inode's list is unchanged");
    give_back(&fs, &mut taken, u64::MAX);
    drop((f, g));
    fs.unmount().expect("unmount");
    assert_clean(&dev);
}

/// One thread repeatedly drops the last reference to a block, in every way, while another tries to share it.
#[test]
fn joining_a_block_excludes_freeing_it() {
    // Without a journal a commit writes blocks home: a freed block can be read again with its old content.
    let images = ["ext4", "ext2"].map(|kind| made(&["-t", kind, "-b", "1024", "-I", "128"], "16M"));
    let mut shared = 0;
    for seed in 0..100 {
        let dev = Arc::new(images[seed as usize % 2].snapshot());
        let strategy = sim::Strategy::Random { preempt_permille: 300 };
        let work = dev.clone();
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
            let options = MountOptions { borrow_journal: BorrowJournal::Never, ..options };
            let fs = Filesystem::mount(work, options).expect("mounted");
            let root = fs.root().expect("root");
            let make = |name: &[u8]| fs.create(&root, name, NewNode::file(0o664), Cred::default()).expect("create");
            let [f, g] = [b"f", b"g"].map(|name| make(name));
            let other = {
                let (fs, f, root) = (Arc::clone(&fs), f.clone(), root.clone());
                task::spawn("other", move || {
                    for users in [1, 2, 1, 1] {
                        fs.set_xattr(&f, ACCESS, &naming(users), SetMode::Any).expect("set");
                        fs.sync().expect("sync");
                        if users == 1 {
                            fs.remove_xattr(&f, ACCESS).expect("removed");
                        }
                    }
                    fs.set_xattr(&f, ACCESS, &naming(1), SetMode::Any).expect("set");
                    drop(f);
                    fs.unlink(&root, b"f").expect("unlink");
                    fs.evictor().reap();
                })
                .expect("thread")
            };
            drop(f);
            let mut together = 0;
            for users in [1, 2, 1, 1, 2, 1, 2] {
                fs.set_xattr(&g, ACCESS, &naming(users), SetMode::Any).expect("set");
                assert_eq!(fs.get_xattr(&g, ACCESS).expect("list"), naming(users));
                let block = g.meta.read().desc.file_acl;
                let found = fs.lookup(&root, b"f").ok();
                together += u32::from(found.is_some_and(|f| f.meta.read().desc.file_acl == block));
            }
            other.join().expect("joined");
            assert_eq!(fs.get_xattr(&g, ACCESS).expect("list"), naming(2));
            drop((root, g));
            fs.unmount().expect("unmount");
            together
        });
        shared += outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_clean(&dev);
    }
    assert!(shared > 10, "the block was shared only {shared} times");
}
