//! What becomes of attributes, and of what changes with them, when space is missing.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_ondisk::BlockNr;
use extant_ondisk::acl::{self, Acl, AclEntry, Tag};

use crate::ops::no_space::tests::take_all;
use crate::tools::{assert_clean, made};
use crate::{Cred, Error, Filesystem, MountOptions, Mounted, NewNode, SetMode};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// An ACL, as a caller passes it, with so many users.
fn naming(users: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let mut entries = vec![entry(Tag::UserObj, 7)];
    entries.extend((0..users).map(|user| entry(Tag::User(1000 + user), 6)));
    entries.extend([entry(Tag::GroupObj, 5), entry(Tag::Mask, 7), entry(Tag::Other, 5)]);
    acl::to_xattr(&Acl { entries })
}

type Blocks = Vec<(BlockNr, u32)>;

/// Takes every block but so many that anybody can have.
fn leave(fs: &Filesystem, blocks: u64) -> Blocks {
    let mut taken = take_all(fs);
    fs.sync().expect("sync");
    let kept = if blocks == 0 { 0 } else { fs.reserve.pool_blocks };
    give_back(fs, &mut taken, kept + blocks);
    fs.sync().expect("sync");
    taken
}

fn give_back(fs: &Filesystem, taken: &mut Blocks, mut blocks: u64) {
    for (start, len) in taken {
        let now = blocks.min(u64::from(*len)) as u32;
        if now > 0 {
            let mut handle = fs.start(8).expect("handle");
            fs.free_blocks(&mut handle, *start, now).expect("freed");
            handle.finish();
        }
        (*start, *len, blocks) = (BlockNr(start.0 + u64::from(now)), *len - now, blocks - u64::from(now));
    }
}

fn mkdir(fs: &Filesystem, dir: &crate::InodeRef, name: &[u8]) -> crate::Result<crate::InodeRef> {
    fs.create(dir, name, NewNode::directory(0o755), Cred::default())
}

/// A directory gets two lists, which one block cannot hold: the first of them is not half of a change.
#[test]
fn a_directory_whose_lists_do_not_fit_is_refused() {
    let dev = Arc::new(made(&["-t", "ext4", "-b", "4096"], "16M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    let d = mkdir(&fs, &root, b"d").expect("mkdir");
    fs.set_xattr(&d, DEFAULT, &naming(300), SetMode::Any).expect("one list fits");
    let failed = mkdir(&fs, &d, b"sub").map(drop);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(!fs.is_read_only(), "nothing was half done");
    fs.create(&d, b"f", NewNode::file(0o644), Cred::default()).map(drop).expect("a file has one of them");
    drop((root, d));
    fs.unmount().expect("unmount");
    assert_clean(&dev);
}

/// The first list fits into the inode, the second needs a block.
#[test]
fn a_directory_whose_second_list_finds_no_block_is_refused() {
    let dev = Arc::new(made(&["-t", "ext4", "-b", "1024", "-I", "256"], "16M"));
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    let d = mkdir(&fs, &root, b"d").expect("mkdir");
    fs.set_xattr(&d, DEFAULT, &naming(3), SetMode::Any).expect("fits into the inode");
    let mut taken = leave(&fs, 1);
    let failed = mkdir(&fs, &d, b"sub").map(drop);
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(!fs.is_read_only(), "nothing was half done");
    assert!(matches!(fs.lookup(&d, b"sub").map(drop), Err(Error::NotFound)));
    // A block more is there with the next commit.
    give_back(&fs, &mut taken, 1);
    let sub = mkdir(&fs, &d, b"sub").expect("waits for the commit");
    assert_eq!(fs.get_xattr(&sub, DEFAULT).expect("handed down"), naming(3));
    assert!(fs.get_xattr(&sub, ACCESS).is_ok(), "and this one");
    give_back(&fs, &mut taken, u64::MAX);
    drop((root, d, sub));
    fs.unmount().expect("unmount");
    assert_clean(&dev);
}
