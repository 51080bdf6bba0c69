//! A file system that grows while it is mounted: e2fsck and a fresh mount agree with what the mount says, on every
//! layout, and for every size of step.

use std::sync::Arc;

use crate::common::tools;
use extant_block::device::MemDevice;
use extant_fs::{BorrowJournal, CannotGrow, Cred, Error, Filesystem, GrowTo, MountOptions, NewNode, WriteFlags};
use extant_ondisk::growth::NoGrowth;

const KINDS: [&[&str]; 14] = [
    &["-t", "ext4", "-b", "1024", "-g", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext3", "-b", "1024", "-g", "2048"],
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2", "-b", "1024", "-g", "2048"],
    &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^metadata_csum,^uninit_bg"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "sparse_super2"],
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^sparse_super,^resize_inode,meta_bg"],
    &["-t", "ext4", "-b", "1024", "-g", "512", "-G", "4", "-O", "^resize_inode,meta_bg,metadata_csum_seed"],
];

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// An image of `kib` KiB on a device of `most` MiB. Where the image has no data, the device may have other bytes.
fn image(args: &[&str], kib: u64, most: u64) -> Arc<MemDevice> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    extant_oracle::mke2fs(&path, args, &format!("{kib}k"));
    std::fs::File::options().write(true).open(&path).expect("open").set_len(most << 20).expect("longer");
    Arc::new(MemDevice::load(&path).expect("loaded"))
}

fn write_file(fs: &Filesystem, name: &str, content: &[u8]) -> Result<(), Error> {
    let root = fs.root()?;
    let file = fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default())?;
    fs.write(&file, 0, content, WriteFlags::default())?;
    Ok(())
}

/// Writes files until the disk is full; returns the bytes that fitted.
fn fill(fs: &Filesystem, name: &str) -> u64 {
    let piece = vec![0xA5; 100_000];
    let mut bytes = 0;
    for nr in 0.. {
        match write_file(fs, &format!("{name}-{nr}"), &piece).and_then(|()| fs.sync()) {
            Ok(()) => bytes += piece.len() as u64,
            Err(e) => {
                assert!(e.is_no_space() || matches!(e, Error::NoInodes | Error::Lost { .. }), "{e}");
                break;
            }
        }
    }
    bytes
}

#[test]
fn every_layout_grows_by_a_block_a_group_and_many_groups() {
    for kind in KINDS {
        let dev = image(kind, 16 << 10, 700);
        let fs = Filesystem::mount(dev.clone(), options()).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        let geo = fs.geometry().clone();
        let block = u64::from(geo.block_size);
        let group = u64::from(geo.blocks_per_group) * block;
        write_file(&fs, "before", &[7; 50_000]).expect("written");
        let sizes = [GrowTo::More(block), GrowTo::More(group), GrowTo::Bytes(500 << 20), GrowTo::Device];
        for (nr, size) in sizes.into_iter().enumerate() {
            let before = fs.statfs();
            let grown = fs.grow(size).unwrap_or_else(|e| panic!("{kind:?} {size:?}: {e}"));
            assert_eq!(grown.after, fs.geometry().blocks_count, "{kind:?}");
            assert!(grown.after > grown.before, "{kind:?} {size:?}");
            let after = fs.statfs();
            assert!(after.blocks > before.blocks && after.blocks_free > before.blocks_free, "{kind:?} {size:?}");
            write_file(&fs, &format!("after-{nr}"), &[nr as u8; 300_000]).expect("written");
            fs.sync().expect("sync");
        }
        let inodes = u64::from(fs.geometry().inodes_count);
        let now = fs.statfs();
        assert_eq!(now.inodes, inodes, "{kind:?}");
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
        let again = fs.statfs();
        assert_eq!((again.blocks, again.inodes_free), (now.blocks, now.inodes_free), "{kind:?}");
        // A journal that is borrowed again is that of a larger file system.
        assert!(again == now || fs.has_borrowed_journal(), "{kind:?}: {again:?}, {now:?} before");
        assert_eq!(crate::common::content_of(&fs, "before"), Some(vec![7; 50_000]));
        for nr in 0..4 {
            assert_eq!(crate::common::content_of(&fs, &format!("after-{nr}")), Some(vec![nr as u8; 300_000]));
        }
        fs.unmount().expect("unmount");
    }
}

#[test]
fn a_full_file_system_takes_as_much_more_as_it_has_grown() {
    for kind in [KINDS[0], KINDS[4]] {
        let dev = image(kind, 16 << 10, 64);
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        fill(&fs, "first");
        fs.grow(GrowTo::Device).expect("grown");
        let bytes = fill(&fs, "second");
        assert!(bytes > 40 << 20, "{kind:?}: {bytes}");
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

#[test]
fn a_growth_is_refused_with_its_reason() {
    let refused = |kind: &[&str], options: MountOptions, size: GrowTo| {
        let dev = image(kind, 16 << 10, 300);
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let blocks = fs.geometry().blocks_count;
        let e = fs.grow(size).expect_err("refused");
        assert_eq!(fs.geometry().blocks_count, blocks);
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
        e
    };
    let small: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"];
    let e = refused(small, options(), GrowTo::Device);
    assert!(matches!(&e, Error::CannotGrow(CannotGrow::Layout(NoGrowth::DescriptorRoom { .. }))), "{e}");
    let e = refused(KINDS[1], options(), GrowTo::Bytes(8 << 20));
    assert!(matches!(&e, Error::CannotGrow(CannotGrow::Layout(NoGrowth::Smaller { .. }))), "{e}");
    let e = refused(KINDS[1], options(), GrowTo::Bytes(1 << 30));
    assert!(matches!(&e, Error::Device(extant_block::Error::FixedSize { .. })), "{e}");
    let e = refused(KINDS[1], MountOptions { read_only: true, ..options() }, GrowTo::Device);
    assert!(matches!(&e, Error::ReadOnly), "{e}");
    let wide: &[&str] = &["-t", "ext4", "-b", "4096", "-J", "size=4", "-E", "resize=1073741824"];
    let e = refused(wide, options(), GrowTo::Device);
    assert!(matches!(&e, Error::CannotGrow(CannotGrow::SmallLog { needed: 512.., most: 511 })), "{e}");
    let few = MountOptions { borrow_journal: BorrowJournal::Never, ..options() };
    let e = refused(KINDS[4], few, GrowTo::Device);
    assert!(matches!(&e, Error::CannotGrow(CannotGrow::NoLog)), "{e}");
}
