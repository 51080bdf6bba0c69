//! Single fields of inodes that contradict others: operations on them end at once, and lose nothing.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Damage, Error, Filesystem, MountOptions, Mounted, NewNode, Seek, WriteFlags};

/// A file of two blocks, `f`, and a directory, `d`.
fn filled(args: &[&str]) -> MemDevice {
    let dev = Arc::new(tools::made(args, "24M"));
    let fs = mount(&dev, false);
    let root = fs.root().expect("root");
    let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.write(&f, 0, &[7; 8192], WriteFlags::default()).expect("write");
    fs.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
    drop((f, root));
    fs.unmount().expect("unmount");
    dev.snapshot()
}

fn mount(dev: &Arc<MemDevice>, read_only: bool) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), read_only, ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// Linux refuses it, too. It must not look like a file without blocks, since its blocks would then be lost.
#[test]
fn inline_content_where_there_is_none_is_damage() {
    let inline_only = "sif f flags 0x10000000";
    let both = "sif f flags 0x10080000";
    let with = |feature| ["-t", "ext4", "-b", "4096", "-O", feature];
    for (feature, request) in [("^inline_data", inline_only), ("^inline_data", both), ("inline_data", both)] {
        let dev = Arc::new(tools::edited(&filled(&with(feature)), &[request]));
        let fs = mount(&dev, false);
        let found = fs.lookup(&fs.root().expect("root"), b"f");
        assert!(matches!(found, Err(Error::Corrupt { what: Damage::Inode, .. })), "{feature}, {request}: {found:?}");
    }
}

/// The limits are the kernel's (6.18): one byte more is EUCLEAN there, too.
#[test]
fn a_file_larger_than_its_map_can_hold_is_damaged() {
    let limits = [
        ("ext4", "1024", 4_398_046_510_080),
        ("ext4", "4096", 17_592_186_040_320),
        ("ext3", "1024", 17_247_252_480_u64),
    ];
    for (kind, block, limit) in limits {
        let image = filled(&["-t", kind, "-b", block]);
        for (size, sound) in [(limit, true), (limit + 1, false), (8_796_093_022_208, limit > 1 << 43)] {
            let dev = Arc::new(tools::edited(&image, &[&format!("sif f size {size}")]));
            let found = mount(&dev, true).walk(b"/f", false);
            let is_damage = matches!(found, Err(Error::Corrupt { what: Damage::Inode, .. }));
            assert_eq!((found.is_ok(), is_damage), (sound, !sound), "{kind}, {block}, {size}: {found:?}");
        }
    }
}

#[test]
fn a_seek_in_the_largest_file_ends() {
    let dev = Arc::new(tools::edited(&filled(&["-t", "ext4", "-b", "4096"]), &["sif f size 17592186040320"]));
    let fs = mount(&dev, false);
    let f = fs.lookup(&fs.root().expect("root"), b"f").expect("there");
    let tail = 0xFFFF_FFFF_u64 << 12;
    assert_eq!(fs.getattr(&f).size, tail);
    assert_eq!(fs.seek(&f, 0, Seek::Data).expect("data"), 0);
    assert_eq!(fs.seek(&f, 0, Seek::Hole).expect("hole"), 8192);
    for pos in [8192, tail - 4096, tail - 1] {
        assert!(matches!(fs.seek(&f, pos, Seek::Data), Err(Error::NoSuchOffset)), "{pos}");
        assert_eq!(fs.seek(&f, pos, Seek::Hole).expect("hole"), pos);
    }
}

/// Images with blocks larger than a page are read-only, and no block is ever dirty.
#[test]
fn a_seek_skips_unwritten_large_blocks() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("f");
    std::fs::write(&path, [7; 65536]).expect("file");
    let made = tools::made(&["-t", "ext4", "-b", "65536", "-O", "^has_journal"], "64M");
    let write = format!("write {} f", path.display());
    let dev = Arc::new(tools::edited(&made, &[&write, "fallocate f 1 3", "sif f size 262144"]));
    let fs = mount(&dev, true);
    let f = fs.lookup(&fs.root().expect("root"), b"f").expect("there");
    let mut content = vec![1; 262_144];
    assert_eq!(fs.read(&f, 0, &mut content).expect("read"), 262_144);
    assert!(content[..65536].iter().all(|b| *b == 7) && content[65536..].iter().all(|b| *b == 0));
    assert_eq!(fs.seek(&f, 0, Seek::Hole).expect("hole"), 65536);
    assert!(matches!(fs.seek(&f, 65536, Seek::Data), Err(Error::NoSuchOffset)));
}

/// A directory with a size of 2^32 blocks, and one block.
#[test]
fn a_directory_larger_than_its_blocks_is_damaged() {
    let (clock, patience_ns) = (Clock::real(), 60_000_000_000);
    let args = ["-t", "ext4", "-b", "4096", "-O", "large_dir"];
    let dev = Arc::new(tools::edited(&filled(&args), &["sif d size 17592186044416"]));
    let fs = mount(&dev, false);
    let root = fs.root().expect("root");
    let looked = fs.lookup(&root, b"d").and_then(|d| fs.lookup(&d, b"x"));
    assert!(matches!(looked, Err(Error::Corrupt { what: Damage::Inode, .. })), "{looked:?}");
    assert!(clock.now_ns() < patience_ns, "the lookup tried every missing block");
}

/// The superblock says that the root holds the quotas of users. The kernel mounts the image and lists the root.
#[test]
fn a_quota_number_does_not_make_the_root_unreadable() {
    let made = filled(&["-t", "ext4", "-b", "4096"]);
    for field in ["usr_quota_inum", "grp_quota_inum", "prj_quota_inum"] {
        let dev = Arc::new(tools::edited(&made, &[&format!("ssv {field} 2")]));
        for rescue in [false, true] {
            let options = MountOptions { threads: false, read_only: true, rescue, ..MountOptions::default() };
            let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
            let names = fs.list(&fs.root().expect("root")).expect("listed");
            assert_eq!(names.len(), 3, "{field}: {names:?}");
            assert!(fs.walk(b"/f", false).is_ok());
        }
    }
}
