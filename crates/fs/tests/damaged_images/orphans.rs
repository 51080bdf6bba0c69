//! Half-deleted or half-truncated files after a crash, on a device that cannot read all of them, or in an image where
//! some are damaged.

use extant_oracle::memory as tools;

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::task;
use extant_block::device::{Catch, Fault, FaultyDevice, HeldDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{Cred, Error, Filesystem, MountOptions, NewNode, OnError, SetAttr, WriteFlags};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{FsState, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{GroupNr, InodeNr};

/// Orphans in the orphan file, and on the list.
const KINDS: [&[&str]; 2] =
    [&["-t", "ext4", "-b", "4096", "-O", "orphan_file"], &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"]];
const BLOCK: u64 = 4096;

fn options(threads: bool) -> MountOptions {
    MountOptions { threads, seed: Some(1), errors: Some(OnError::Continue), ..MountOptions::default() }
}

/// The state after a power cut with two unlinked open files, in two blocks of the inode table: in the log, or at
/// home.
fn with_orphans(kind: &[&str], in_log: bool) -> (MemDevice, [InodeNr; 2]) {
    let dev = Arc::new(tools::made(kind, "16M"));
    let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
    let root = fs.root().expect("root");
    let name = |i: usize| format!("f{i}");
    let files: Vec<_> = (0..40)
        .map(|i| fs.create(&root, name(i).as_bytes(), NewNode::file(0o644), Cred::default()).expect("create"))
        .collect();
    files.iter().for_each(|f| assert_eq!(fs.write(f, 0, &[1; 5000], WriteFlags::default()).expect("written"), 5000));
    let orphans = [10, 39].map(|i| {
        fs.unlink(&root, name(i).as_bytes()).expect("unlink");
        files[i].ino
    });
    fs.sync().expect("sync");
    assert!(in_log || fs.freeze().expect("frozen"));
    let crashed = dev.snapshot();
    fs.abandon();
    (crashed, orphans)
}

fn super_of(dev: &dyn BlockDevice) -> SuperBlock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    dev.read_at(1024, &mut bytes, BioFlags::empty()).expect("memory");
    SuperBlock::decode(&bytes, 1024).expect("superblock")
}

fn desc_of(dev: &dyn BlockDevice, group: GroupNr) -> GroupDesc {
    let sb = super_of(dev);
    let geo = sb.geometry();
    let (nr, offset) = geo.group_desc_block(group).expect("there");
    let mut block = vec![0; BLOCK as usize];
    dev.read_at(nr.0 * BLOCK, &mut block, BioFlags::empty()).expect("memory");
    GroupDesc::decode(&block[offset..], group, geo).expect("descriptor")
}

/// The byte offset of the inode on the device.
fn place_of(dev: &dyn BlockDevice, ino: InodeNr) -> u64 {
    let place = super_of(dev).geometry().inode_location(ino).expect("place");
    (desc_of(dev, place.group).inode_table.0 + u64::from(place.table_block)) * BLOCK + place.offset as u64
}

/// Changes the first 128 bytes of an inode.
fn edit(dev: &MemDevice, ino: InodeNr, f: impl FnOnce(&mut [u8])) {
    let at = place_of(dev, ino);
    let mut block = vec![0; BLOCK as usize];
    dev.read_at(at / BLOCK * BLOCK, &mut block, BioFlags::empty()).expect("memory");
    f(&mut block[(at % BLOCK) as usize..][..128]);
    dev.write_at(at / BLOCK * BLOCK, &[&block], BioFlags::empty()).expect("memory");
}

/// If a mount skipped an orphan, only e2fsck could free it.
#[test]
fn an_unreadable_orphan_fails_the_mount() {
    let modes =
        [OnError::Continue, OnError::RemountReadOnly].map(|errors| [false, true].map(|threads| (errors, threads)));
    for (kind, (errors, threads)) in KINDS.iter().flat_map(|kind| modes.as_flattened().iter().map(move |m| (kind, *m)))
    {
        // The orphans, and the bitmaps of their blocks and numbers.
        for victim in 0..4 {
            let who = format!("{kind:?}, {errors:?}, {threads}, {victim}");
            let options = MountOptions { errors: Some(errors), ..options(threads) };
            let (dev, orphans) = with_orphans(kind, true);
            let at = match victim {
                2 => desc_of(&dev, GroupNr(0)).block_bitmap.0 * BLOCK,
                3 => desc_of(&dev, GroupNr(0)).inode_bitmap.0 * BLOCK,
                _ => place_of(&dev, orphans[victim]) / BLOCK * BLOCK,
            };
            let dev = Arc::new(dev);
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + BLOCK));
            let failed = Filesystem::mount(faulty.clone(), options.clone()).err();
            assert!(matches!(failed, Some(Error::Mount { .. })), "{who}: {failed:?}");
            // The next mount finds all of it; e2fsck -p may come first, as before the kernel's mount.
            let (code, said) = tools::e2fsck(&dev, &["-p"]);
            assert!(code <= 1, "{who}: {said}");
            faulty.clear();
            let fs = Filesystem::mount(faulty, options).expect("mounted");
            assert_eq!(fs.statistics().inodes().1, 0, "{who}");
            fs.unmount().expect("unmount");
            tools::assert_clean(&dev);
        }
    }
}

/// A file of ten blocks with a pending truncation to one, and the place of its block bitmap.
fn with_truncation() -> (MemDevice, u64) {
    let kind = ["-t", "ext4", "-b", "4096", "-O", "^orphan_file,^metadata_csum,^64bit"];
    let made = Arc::new(tools::made(&kind, "16M"));
    let fs = Filesystem::mount(made.clone(), options(false)).expect("mounted");
    let f = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.write(&f, 0, &[1; 40_000], WriteFlags::default()).expect("written");
    let ino = f.ino;
    drop(f);
    fs.unmount().expect("unmount");
    let dev = tools::edited(&made, &["sif f size 4096", &format!("ssv last_orphan {}", ino.0)]);
    let bitmap = desc_of(&dev, GroupNr(0)).block_bitmap.0 * BLOCK;
    (dev, bitmap)
}

/// A mount must not skip an unfinished truncation either: the truncated bytes would reappear when the file grows.
#[test]
fn an_unreadable_bitmap_of_a_pending_truncation_fails_the_mount() {
    for errors in [OnError::Continue, OnError::RemountReadOnly] {
        let (dev, at) = with_truncation();
        let dev = Arc::new(dev);
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + BLOCK));
        let options = MountOptions { errors: Some(errors), ..options(false) };
        let failed = Filesystem::mount(faulty.clone(), options.clone()).err();
        assert!(matches!(failed, Some(Error::Mount { .. })), "{errors:?}: {failed:?}");
        faulty.clear();
        let fs = Filesystem::mount(faulty, options).expect("mounted");
        let f = fs.walk(b"f", true).expect("there");
        fs.setattr(&f, &SetAttr { size: Some(40_000), ..SetAttr::default() }).expect("grown");
        let mut content = vec![9; 40_000];
        assert_eq!(fs.read(&f, 0, &mut content).expect("read"), 40_000);
        assert!(content[..4096].iter().all(|b| *b == 1) && content[4096..].iter().all(|b| *b == 0), "{errors:?}");
        drop(f);
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

/// A commit that already waits must not make the half-done truncation durable. Like a disk, the device retries for a
/// while before it fails.
#[test]
fn a_truncation_that_fails_late_leaves_no_change_behind() {
    let (dev, at) = with_truncation();
    let dev = Arc::new(dev);
    let held = Arc::new(HeldDevice::new(dev.clone()).expect("thread"));
    held.catch(Catch::hold().reads().range(at..at + BLOCK));
    let options = MountOptions { commit_interval_s: Some(1), ..options(true) };
    let mount = {
        let (held, options) = (held.clone(), options.clone());
        task::spawn("mount", move || Filesystem::mount(held, options).err()).expect("thread")
    };
    assert!(held.wait_held(1, Duration::from_secs(60)), "the bitmap is not read");
    // The commit is due.
    Clock::real().sleep(Duration::from_millis(1500));
    held.fail(held.held()[0].id, 5);
    let failed = mount.join();
    assert!(matches!(failed, Ok(Some(Error::Mount { .. }))), "{failed:?}");
    held.let_go();
    let fs = Filesystem::mount(held, options).expect("mounted");
    assert_eq!(fs.walk(b"f", true).map(|f| fs.getattr(&f).blocks).expect("there"), BLOCK / 512);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

/// The root is checked last. After that error nothing may still work: neither a part of the clean-up nor a thread
/// with the device.
#[test]
fn a_mount_that_fails_after_the_clean_up_leaves_nothing_running() {
    let (dev, _) = with_orphans(KINDS[1], false);
    let dev = Arc::new(dev);
    let turn = || edit(&dev, InodeNr::ROOT, |slot| slot[1] ^= 0xC0); // a directory, a file
    turn();
    let shared = Arc::new(FaultyDevice::new(dev.clone()));
    let failed = Filesystem::mount(shared.clone(), options(true)).err();
    assert!(matches!(failed, Some(Error::Mount { .. })), "{failed:?}");
    assert_eq!(Arc::strong_count(&shared), 1, "it still has another owner");
    turn();
    let fs = Filesystem::mount(shared, options(true)).expect("mounted");
    assert_eq!(fs.statistics().inodes().1, 0);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

/// `errors=continue`: one orphan is damaged. The other is freed, and the damaged one retains its slot of the orphan
/// file.
#[test]
fn a_damaged_orphan_does_not_prevent_freeing_the_others() {
    for (kind, in_file) in KINDS.into_iter().zip([true, false]) {
        let (dev, [damaged, whole]) = with_orphans(kind, false);
        let dev = Arc::new(dev);
        edit(&dev, damaged, |slot| slot[4] ^= 0xEE);
        let free = u64::from(super_of(&*dev).raw().s_free_inodes_count.get());
        let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
        assert_eq!(fs.statfs().inodes_free, free + 1, "{kind:?}: {whole} is freed");
        assert_eq!(fs.statistics().inodes().1, usize::from(in_file), "{kind:?}");
        fs.unmount().expect("unmount");
        let sb = super_of(&*dev);
        assert_eq!(sb.raw().s_first_error_ino.get(), damaged.0, "{kind:?}");
        assert_eq!(sb.last_orphan(), None, "{kind:?}: a freed inode is on the list");
    }
}

/// The orphans of a crash are read in portions: their number needs no memory.
#[test]
fn more_orphans_than_the_cache_holds_are_freed() {
    const FILES: u64 = 9000;
    for kind in KINDS {
        let dev = Arc::new(tools::made(&[kind, &["-N", "16384"]].concat(), "64M"));
        let free = u64::from(super_of(&*dev).raw().s_free_inodes_count.get());
        let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
        let root = fs.root().expect("root");
        let mut open = Vec::new();
        for _ in 0..FILES {
            open.push(fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create"));
            fs.unlink(&root, b"f").expect("unlink");
        }
        fs.sync().expect("sync");
        assert!(fs.freeze().expect("frozen"));
        let crashed = Arc::new(dev.snapshot());
        let hidden = place_of(&*dev, open[500].ino) / BLOCK * BLOCK;
        fs.abandon();
        drop((open, root));
        for threads in [false, true] {
            let crashed = Arc::new(crashed.snapshot());
            let options = MountOptions { cache_bytes: 8 << 20, ..options(threads) };
            // A portion that cannot be read stays for the next mount, which finds all that is left.
            let faulty = Arc::new(FaultyDevice::new(crashed.clone()));
            faulty.inject(Fault::eio().op(BioOp::Read).range(hidden..hidden + BLOCK));
            assert!(Filesystem::mount(faulty, options.clone()).is_err(), "{kind:?}, {threads}: unreadable");
            let fs = Filesystem::mount(crashed.clone(), options).expect("mounted");
            assert_eq!(fs.statfs().inodes_free, free, "{kind:?}, {threads}");
            assert_eq!(fs.statistics().inodes().1, 0, "{kind:?}, {threads}");
            fs.unmount().expect("unmount");
            tools::assert_clean(&crashed);
        }
    }
}

/// A block of the orphan file whose checksum is wrong, as tune2fs 1.47.0 -U leaves all of them: the kernel mounts no
/// such image.
#[test]
fn an_image_with_a_damaged_orphan_file_is_read_and_not_written() {
    let (dev, _) = with_orphans(KINDS[0], false);
    let said = tools::debugfs(&dev, "stat <12>\nblocks <12>");
    let block = said.lines().last().and_then(|line| line.split_whitespace().next()).expect("a block");
    let at = block.parse::<u64>().expect("a number") * BLOCK;
    let mut bytes = vec![0; BLOCK as usize];
    dev.read_at(at, &mut bytes, BioFlags::META).expect("memory");
    bytes[BLOCK as usize - 1] ^= 1;
    dev.write_at(at, &[&bytes], BioFlags::META).expect("memory");
    let dev = Arc::new(dev);
    let before = dev.snapshot();
    let refused = Filesystem::mount(dev.clone(), options(false)).map(drop).expect_err("damaged").to_string();
    assert!(refused.contains("orphan") && refused.contains("-o ro"), "{refused}");
    let same = |at: u64| {
        let read = |dev: &MemDevice| {
            let mut bytes = vec![0; 1 << 16];
            dev.read_at(at, &mut bytes, BioFlags::META).expect("memory");
            bytes
        };
        read(&before) == read(&dev)
    };
    assert!((0..dev.size_bytes()).step_by(1 << 16).all(same), "written to");
    let fs = Filesystem::mount(dev, MountOptions { read_only: true, ..options(false) }).expect("read");
    assert!(fs.walk(b"f1", true).is_ok());
}

/// Taken for pointers, a device's number and a short symlink's text would name blocks of other files.
#[test]
fn an_orphan_without_a_map_is_not_truncated() {
    let kind = &["-t", "ext4", "-b", "4096", "-O", "^orphan_file,^extent,^64bit,^metadata_csum"][..];
    let dev = tools::made(kind, "16M");
    // The root's only block.
    let victim: u32 = tools::debugfs(&dev, "bmap / 0").trim().parse().expect("a block");
    for links in [1, 0] {
        let dev = Arc::new(tools::edited(&dev, &["mknod dev b 1 1", "symlink link target", "ssv state 1"]));
        let inode_of = |name: &str| {
            let said = tools::debugfs(&dev, &format!("stat {name}"));
            let number = said.split_whitespace().nth(1).expect("Inode: N");
            InodeNr(number.parse().unwrap_or_else(|_| panic!("{said}")))
        };
        for name in ["dev", "link"] {
            let dev = Arc::new(dev.snapshot());
            let ino = inode_of(name);
            edit(&dev, ino, |slot| {
                slot[40..44].copy_from_slice(&victim.to_le_bytes());
                slot[26] = links;
            });
            let dev = Arc::new(tools::edited(&dev, &[&format!("ssv last_orphan {}", ino.0)]));
            let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
            fs.unmount().expect("unmount");
            let used = tools::debugfs(&dev, &format!("testb {victim}"));
            assert!(used.contains("marked in use"), "{name}, {links} links: {used}");
            let (_, said) = tools::e2fsck(&dev, &["-fn"]);
            assert!(!said.contains("bitmap differences"), "{name}, {links} links: {said}");
            assert_eq!(super_of(&*dev).state().contains(FsState::ERROR), links > 0, "{name}");
        }
    }
}

/// A truncation also has a record, and its end removes only that one.
#[test]
fn a_truncated_file_without_a_name_remains_recorded() {
    for kind in KINDS {
        for named in [true, false] {
            let dev = Arc::new(tools::made(kind, "16M"));
            let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
            let root = fs.root().expect("root");
            let f = match named {
                true => fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create"),
                false => fs.tmpfile(&root, 0o600, Cred::default()).expect("tmpfile"),
            };
            fs.write(&f, 0, &[1; 40_000], WriteFlags::default()).expect("write");
            fs.sync().expect("sync");
            if named {
                fs.unlink(&root, b"f").expect("unlink");
            }
            for size in [10_000, 0, 5000] {
                fs.setattr(&f, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncate");
                assert_eq!(fs.statistics().inodes().1, 1, "{kind:?}, named: {named}");
            }
            fs.sync().expect("sync");
            let crashed = Arc::new(dev.snapshot());
            fs.abandon();
            Filesystem::mount(crashed.clone(), options(false)).expect("mounted").unmount().expect("unmount");
            tools::assert_clean(&crashed);
        }
    }
}
