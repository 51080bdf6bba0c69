//! Cleaning up after a crash, on a device with an increasing number of unreadable blocks.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_ondisk::superblock::FsState;

use super::{clean_orphans, read_super_at};
use crate::error::Error;
use crate::forgetful::Forgetful;
use crate::ops::credits;
use crate::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};

/// Half of the inode's blocks are freed, and then it cannot be written. The next mount finds it unchanged. No damage is
/// recorded, which would make the next mount ignore the orphans.
#[test]
fn the_next_mount_cleans_up_an_orphan_that_cannot_be_written() {
    let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-O", "^orphan_file"], "8M"));
    let (forgetful, fs) = Forgetful::mount(dev.clone());
    let f = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.write(&f, 0, &[1; 20 << 10], WriteFlags::default()).expect("written");
    fs.fsync(&f, false).expect("fsync");
    let cut = fs.transact(credits::SUPER + credits::INODE, |handle| {
        f.set_size(1 << 10);
        f.meta.write().desc.size = 1 << 10;
        fs.write_inode_data(handle, &f)?;
        fs.modify_superblock(handle, |sb| sb.set_last_orphan(Some(f.ino)))
    });
    cut.expect("recorded");
    let (cleaned, met) = forgetful.run(&fs, || clean_orphans(&fs.arc(), None));
    assert!(met, "a block was freed");
    assert!(matches!(cleaned, Err(Error::Device(_))), "{cleaned:?}");
    let left: MemDevice = dev.snapshot();
    assert!(!read_super_at(&left, 1024).expect("superblock").state().contains(FsState::ERROR));
    let left = Arc::new(left);
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    let again = Filesystem::mount(left.clone(), options).expect("mounted");
    assert_eq!(again.getattr(&again.walk(b"f", true).expect("there")).blocks, 2);
    again.unmount().expect("unmount");
    crate::tools::assert_clean(&left);
}
