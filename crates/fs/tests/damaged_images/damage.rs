//! Operations that meet damage: nothing has changed then, or none of the change becomes durable; and the superblock
//! records the damaged structure and its place.

use extant_oracle::memory as tools;

use std::sync::Arc;
use std::time::Duration;

use crate::damaged::*;
use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_block::BioOp;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_fs::{
    Cred, Damage, Error, Filesystem, InodeRef, MountOptions, NewNode, OnError, RenameFlags, SetMode, WriteFlags,
};
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::superblock::{FsState, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

/// Removes the first block from an inode without changing the bitmaps.
fn unmap_first(dev: &MemDevice, ino: InodeNr) {
    edit_inode(dev, ino, |slot| match slot[40..42] == [0x0A, 0xF3] {
        // eh_entries.
        true => slot[42..44].fill(0),
        false => slot[40..44].fill(0),
    });
}

fn names(fs: &Filesystem, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    let _ = fs.read_dir(dir, 0, |e| {
        names.push(String::from_utf8_lossy(e.name).into_owned());
        true
    });
    names.retain(|n| n != "." && n != ".." && n != "lost+found");
    names.sort();
    names
}

/// One pass over `dir` from `cookie` on, with `at_once` names a call, as a reader with a small buffer does: the
/// names, and the error at the end.
fn listed(fs: &Filesystem, dir: &InodeRef, mut cookie: u64, at_once: usize) -> (Vec<(String, u64)>, Option<Error>) {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        let step = fs.read_dir(dir, cookie, |e| {
            let room = all.len() < before + at_once;
            if room {
                all.push((String::from_utf8_lossy(e.name).into_owned(), e.next_cookie));
            }
            room
        });
        match (step, all.len() == before) {
            (Err(e), _) => return (all, Some(e)),
            (Ok(_), true) => return (all, None),
            (Ok(next), false) => cookie = next,
        }
    }
}

/// A backup that deletes missing files must not mistake a damaged directory for a smaller one.
#[test]
fn listing_of_a_damaged_directory_ends_with_the_error() {
    let cred = Cred::default();
    // One block, several with an index, several without.
    let linear: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^dir_index"];
    let kinds = [(KINDS[0], 5), (KINDS[1], 5), (KINDS[2], 5), (KINDS[1], 600), (KINDS[2], 150), (linear, 150)];
    for (kind, names) in kinds {
        let dev = made(kind, |fs, root| {
            let dir = fs.create(root, b"dir", NewNode::directory(0o755), cred).expect("mkdir");
            for i in 0..names {
                fs.create(&dir, format!("{i:0>40}").as_bytes(), NewNode::file(0o644), cred).expect("create");
            }
        });
        let (fs, root) = mount(&dev);
        let dir = fs.lookup(&root, b"dir").expect("there");
        let (whole, end) = listed(&fs, &dir, 0, 7);
        assert_eq!((whole.len(), end.is_none()), (names + 2, true), "{kind:?}");
        let (ino, last) = (dir.ino, whole.last().expect("names").1);
        // A leaf, or the only block.
        let leaf = dir.size() / u64::from(fs.block_size()) - 1;
        drop((dir, root));
        fs.unmount().expect("unmount");
        let nr = mapped(&dev, ino, leaf as u32);
        let mut bytes = block(&dev, super_of(&dev).geometry(), nr);
        // The length of the first entry.
        bytes[4..6].copy_from_slice(&[3, 0]);
        put(&dev, nr, &bytes);
        for at_once in [1, 7, 100_000] {
            let (fs, root) = mount(&dev);
            let dir = fs.iget(ino).expect("there");
            let (seen, end) = listed(&fs, &dir, 0, at_once);
            assert!(seen.len() < whole.len(), "{kind:?}");
            assert!(matches!(end, Some(Error::Corrupt { ino: Some(of), .. }) if of == ino), "{kind:?}: {end:?}");
            for cookie in [whole[0].1, whole[whole.len() / 2].1, last] {
                assert!(listed(&fs, &dir, cookie, at_once).1.is_some(), "{kind:?}: from {cookie}");
            }
            assert_eq!(fs.stats.errors.get(), 1, "{kind:?}: counted once");
            drop((dir, root));
            let _ = fs.unmount();
            // A reader on a new mount, with a cookie behind the damage.
            let (fs, root) = mount(&dev);
            let dir = fs.iget(ino).expect("there");
            assert!(listed(&fs, &dir, last, at_once).1.is_some(), "{kind:?}");
            drop((dir, root));
            let _ = fs.unmount();
        }
    }
}

#[test]
fn a_directory_is_not_moved_if_its_parent_entry_cannot_be_changed() {
    let cred = Cred::default();
    for kind in KINDS {
        let dev = made(kind, |fs, root| {
            for name in ["from", "to"] {
                fs.create(root, name.as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
            }
            let from = fs.lookup(root, b"from").expect("there");
            let to = fs.lookup(root, b"to").expect("there");
            fs.create(&from, b"moving", NewNode::directory(0o755), cred).expect("mkdir");
            fs.create(&to, b"file", NewNode::file(0o644), cred).expect("create");
        });
        let ino = {
            let (fs, root) = mount(&dev);
            let ino = fs.lookup(&fs.lookup(&root, b"from").expect("there"), b"moving").expect("there").ino;
            drop(root);
            fs.unmount().expect("unmount");
            ino
        };
        unmap_first(&dev, ino);
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let whiteout = RenameFlags { whiteout: Some(cred), ..RenameFlags::default() };
        for (flags, target) in [(RenameFlags::default(), "new"), (whiteout, "new"), (exchange, "file")] {
            let dev = Arc::new(dev.snapshot());
            let (fs, root) = mount(&dev);
            let (from, to) = (fs.lookup(&root, b"from").expect("there"), fs.lookup(&root, b"to").expect("there"));
            let moved = fs.rename(&from, b"moving", &to, target.as_bytes(), flags);
            assert!(matches!(moved, Err(Error::Corrupt { ino: Some(of), .. }) if of == ino), "{kind:?}: {moved:?}");
            assert!(!fs.is_read_only(), "{kind:?}: nothing had changed");
            assert_eq!((names(&fs, &from), names(&fs, &to)), (vec!["moving".into()], vec!["file".into()]), "{kind:?}");
            drop((root, from, to));
            fs.unmount().expect("unmount");
            let (fs, root) = mount(&dev);
            let (from, to) = (fs.lookup(&root, b"from").expect("there"), fs.lookup(&root, b"to").expect("there"));
            assert_eq!((names(&fs, &from), names(&fs, &to)), (vec!["moving".into()], vec!["file".into()]), "{kind:?}");
            assert!(super_of(&dev).state().contains(FsState::ERROR), "{kind:?}");
            drop((root, from, to));
            let _ = fs.unmount();
        }
    }
}

/// Bitmaps that declare everything free do not lead to overwriting blocks in use.
#[test]
fn a_failed_mkdir_leaves_nothing_behind() {
    let cred = Cred::default();
    // One group, so that there is no other place.
    let kinds: [&[&str]; 2] = [&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"], &["-t", "ext3", "-b", "4096"]];
    for kind in kinds {
        let dev = made(kind, |fs, root| {
            for i in 0..5 {
                fs.create(root, format!("d{i}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
            }
        });
        let sb = super_of(&dev);
        let geo = sb.geometry();
        let (fs, root) = mount(&dev);
        let before: Vec<InodeNr> =
            names(&fs, &root).iter().map(|n| fs.lookup(&root, n.as_bytes()).expect("there").ino).collect();
        let (root_ino, lost) = (root.ino, InodeNr(11));
        drop(root);
        fs.unmount().expect("unmount");
        // The root's block, the directories' blocks and all inodes from lost+found on.
        let mut group = desc(&dev, geo, GroupNr(0));
        let mut blocks = block(&dev, geo, group.block_bitmap);
        for ino in before.iter().chain([&root_ino, &lost]) {
            let (of, at) = geo.group_of_block(first_block(&dev, *ino)).expect("inside");
            assert_eq!(of, GroupNr(0));
            bitmap::clear(&mut blocks, at);
            group.free_clusters += 1;
        }
        put(&dev, group.block_bitmap, &blocks);
        let mut inodes = block(&dev, geo, group.inode_bitmap);
        let range = 10..40.min(geo.inodes_per_group);
        group.free_inodes += range.len() as u32 - bitmap::count_zeros(&inodes, range.clone());
        bitmap::clear_range(&mut inodes, range);
        put(&dev, group.inode_bitmap, &inodes);
        // The descriptor agrees; otherwise the group would be skipped.
        let (nr, offset) = geo.group_desc_block(GroupNr(0)).expect("there");
        let mut descs = block(&dev, geo, nr);
        group.encode_into(&mut descs[offset..offset + geo.desc_size], GroupNr(0), geo);
        put(&dev, nr, &descs);

        let (fs, root) = mount(&dev);
        let mut made = Vec::new();
        for i in 0..40 {
            let name = format!("new{i}");
            match fs.create(&root, name.as_bytes(), NewNode::directory(0o755), cred) {
                Ok(inode) => {
                    assert!(!before.contains(&inode.ino) && inode.ino != lost, "{kind:?}: {name} is {}", inode.ino);
                    made.push((name, inode.ino));
                }
                Err(e) => assert!(
                    matches!(e, Error::Corrupt { what: Damage::InodeBitmap | Damage::BlockBitmap, .. }),
                    "{kind:?}: {name}: {e}"
                ),
            }
        }
        let mut expected: Vec<String> = made.iter().map(|m| m.0.clone()).collect();
        expected.extend((0..5).map(|i| format!("d{i}")));
        expected.sort();
        for again in 0..2 {
            assert_eq!(names(&fs, &root), expected, "{kind:?}: {again}");
            for name in names(&fs, &root) {
                let d = fs.lookup(&root, name.as_bytes()).unwrap_or_else(|e| panic!("{kind:?}: {again}: {name}: {e}"));
                assert_eq!(fs.parent(&d).expect("parent").ino, root_ino, "{kind:?}: {again}: {name}");
            }
            for (i, ino) in before.iter().enumerate() {
                assert_eq!(fs.lookup(&root, format!("d{i}").as_bytes()).expect("there").ino, *ino);
            }
            fs.lookup(&root, b"lost+found").expect("as it was");
            let _ = fs.sync();
        }
        drop(root);
        let _ = fs.unmount();
        assert!(super_of(&dev).state().contains(FsState::ERROR), "{kind:?}");
    }
}

/// A group with an unreadable or damaged inode bitmap is recorded once; inodes come from the other groups.
#[test]
fn a_bad_inode_bitmap_costs_its_group_only() {
    let cred = Cred::default();
    let kinds: [(&[&str], bool); 4] = [
        (&["-t", "ext4", "-b", "1024"], true),
        (&["-t", "ext4", "-b", "1024"], false),
        (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg"], false),
        (&["-t", "ext3", "-b", "1024"], false),
    ];
    for (kind, readable) in kinds {
        let dev = made(kind, |fs, root| {
            fs.create(root, b"d", NewNode::directory(0o755), cred).expect("mkdir");
        });
        let (fs, root) = mount(&dev);
        let ino = fs.lookup(&root, b"d").expect("there").ino;
        drop(root);
        fs.unmount().expect("unmount");
        let sb = super_of(&dev);
        let geo = sb.geometry();
        let group = geo.inode_location(ino).expect("place").group;
        let bitmap = desc(&dev, geo, group).inode_bitmap;
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        if readable {
            let mut bytes = block(&dev, geo, bitmap);
            bytes[3] ^= 1;
            put(&dev, bitmap, &bytes);
        } else {
            let at = bitmap.0 * u64::from(geo.block_size);
            faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + u64::from(geo.block_size)));
        }
        let fs = Filesystem::mount(faulty.clone(), options()).expect("mounted");
        let root = fs.root().expect("root");
        let d = fs.lookup(&root, b"d").expect("there");
        for i in 0..10 {
            for node in [NewNode::file(0o644), NewNode::directory(0o755)] {
                let name = format!("{i}{:o}", node.mode);
                let made = fs.create(&d, name.as_bytes(), node, cred);
                let made = made.unwrap_or_else(|e| panic!("{kind:?}, {readable}: {name}: {e}"));
                assert_ne!(geo.inode_location(made.ino).expect("place").group, group, "{kind:?}, {readable}: {name}");
            }
        }
        assert!(!fs.is_read_only());
        drop((root, d));
        fs.unmount().expect("unmount");
        let sb = super_of(&dev);
        let raw = sb.raw();
        assert!(sb.state().contains(FsState::ERROR), "{kind:?}, {readable}");
        assert_eq!((raw.s_error_count.get(), raw.s_last_error_block.get()), (1, bitmap.0), "{kind:?}, {readable}");
    }
}

/// Trimming skips a group with an unreadable or damaged bitmap; the image records that once.
#[test]
fn trimming_reports_a_bad_block_bitmap() {
    let kind = ["-t", "ext4", "-b", "1024"];
    for readable in [true, false] {
        let dev = made(&kind, |_, _| {});
        let sb = super_of(&dev);
        let geo = sb.geometry();
        let whole = {
            let (fs, root) = mount(&dev);
            let whole = fs.trim(0, u64::MAX, 0).expect("trimmed");
            drop(root);
            fs.unmount().expect("unmount");
            whole
        };
        // A group that has its bitmap on disk.
        let group = GroupNr(0);
        let (bitmap, size) = (desc(&dev, geo, group).block_bitmap, u64::from(geo.block_size));
        let free = u64::from(desc(&dev, geo, group).free_clusters) * size;
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        if readable {
            let mut bytes = block(&dev, geo, bitmap);
            bytes[500] ^= 1;
            put(&dev, bitmap, &bytes);
        } else {
            let at = bitmap.0 * size;
            faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + size));
        }
        let fs = Filesystem::mount(faulty.clone(), options()).expect("mounted");
        for _ in 0..2 {
            assert_eq!(fs.trim(0, u64::MAX, 0).expect("trimmed"), whole - free, "{readable}");
            let sb = super_of(&dev);
            let raw = sb.raw();
            assert!(sb.state().contains(FsState::ERROR), "{readable}");
            assert_eq!((raw.s_error_count.get(), raw.s_last_error_block.get()), (1, bitmap.0), "{readable}");
        }
        assert!(!fs.is_read_only());
        fs.unmount().expect("unmount");
        assert_eq!(super_of(&dev).raw().s_error_count.get(), 1, "{readable}");
    }
}

/// Attributes in a form that the features exclude: they are lost with the inode, and the image records that.
#[test]
fn attributes_that_the_features_exclude_leave_errors_in_the_state() {
    let kind = KINDS[0];
    let dev = made(kind, |fs, root| {
        let f = fs.create(root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        fs.set_xattr(&f, b"user.large", &[b'L'; 600], SetMode::Any).expect("xattr");
    });
    let (fs, root) = mount(&dev);
    let ino = fs.lookup(&root, b"f").expect("there").ino;
    drop(root);
    fs.unmount().expect("unmount");
    let mut attributes = 0;
    edit_inode(&dev, ino, |slot| attributes = u32::from_le_bytes(slot[104..108].try_into().expect("4 bytes")));
    let sb = super_of(&dev);
    let mut bytes = block(&dev, sb.geometry(), BlockNr(u64::from(attributes)));
    // e_value_inum of the first entry.
    bytes[36..40].copy_from_slice(&12u32.to_le_bytes());
    put(&dev, BlockNr(u64::from(attributes)), &bytes);
    let (fs, root) = mount(&dev);
    fs.unlink(&root, b"f").expect("the name goes");
    drop(root);
    let _ = fs.unmount();
    let sb = super_of(&dev);
    assert!(sb.state().contains(FsState::ERROR));
    assert_eq!((sb.raw().s_error_count.get(), sb.raw().s_last_error_ino.get()), (1, ino.0));
    edit_inode(&dev, ino, |slot| {
        let inode = InodeDesc::parse(slot, ino, sb.geometry()).expect("inode");
        assert_eq!((inode.links, inode.file_acl), (0, BlockNr(0)));
        assert_ne!(inode.dtime, 0);
    });
}

/// The damage of a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Unreadable,
    WrongChecksum,
    ClearBit,
}

/// An unlinked inode with a bad bitmap is lost space, and so is its attribute block with a bad bitmap. The mount
/// continues, and the image records it.
#[test]
fn a_bad_bitmap_costs_only_the_inode_that_it_prevents_from_being_freed() {
    let cred = Cred::default();
    for of_inodes in [true, false] {
        for harm in [Harm::Unreadable, Harm::WrongChecksum, Harm::ClearBit] {
            let what = format!("{of_inodes}, {harm:?}");
            // Without checksums a clear bit is the only damage.
            let kind = if harm == Harm::ClearBit { KINDS[0] } else { &["-t", "ext4", "-b", "1024"] };
            let dev = made(kind, |fs, root| {
                fs.create(root, b"d", NewNode::directory(0o755), cred).expect("mkdir");
                let f = fs.create(root, b"f", NewNode::file(0o644), cred).expect("create");
                fs.set_xattr(&f, b"user.large", &[b'L'; 600], SetMode::Any).expect("xattr");
            });
            let (fs, root) = mount(&dev);
            let ino = fs.lookup(&root, b"f").expect("there").ino;
            drop(root);
            fs.unmount().expect("unmount");
            let sb = super_of(&dev);
            let geo = sb.geometry();
            let place = geo.inode_location(ino).expect("place");
            let mut attributes = BlockNr(0);
            edit_inode(&dev, ino, |slot| {
                attributes = InodeDesc::parse(slot, ino, geo).expect("inode").file_acl;
            });
            let (nr, index) = if of_inodes {
                (desc(&dev, geo, place.group).inode_bitmap, place.index)
            } else {
                let (group, index) = geo.group_of_block(attributes).expect("place");
                (desc(&dev, geo, group).block_bitmap, index)
            };
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            let mut bytes = block(&dev, geo, nr);
            match harm {
                Harm::Unreadable => {
                    let at = nr.0 * u64::from(geo.block_size);
                    faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + u64::from(geo.block_size)));
                }
                Harm::WrongChecksum => bytes[100] ^= 1,
                Harm::ClearBit => {
                    bitmap::clear(&mut bytes, index);
                }
            }
            put(&dev, nr, &bytes);
            let fs = Filesystem::mount(faulty.clone(), options()).expect("mounted");
            let root = fs.root().expect("root");
            let f = fs.lookup(&root, b"f").expect("there");
            fs.unlink(&root, b"f").expect("the name goes");
            drop(f);
            fs.serving().reap();
            assert!(!fs.is_read_only(), "{what}");
            let d = fs.lookup(&root, b"d").expect("there");
            let mut g = fs.create(&d, b"g", NewNode::file(0o644), cred);
            if of_inodes && harm == Harm::ClearBit && g.is_err() {
                // The number still belongs to an inode, and one operation finds that out.
                g = fs.create(&d, b"g", NewNode::file(0o644), cred);
            }
            let g = g.unwrap_or_else(|e| panic!("{what}: {e}"));
            // A lost block does not prevent freeing its inode, unless the device may return the bitmap later.
            let is_freed = !of_inodes && harm != Harm::Unreadable;
            assert_eq!(g.ino == ino, is_freed, "{what}");
            fs.fsync(&g, false).unwrap_or_else(|e| panic!("{what}: {e}"));
            drop((root, d, g));
            let _ = fs.unmount();
            let sb = super_of(&dev);
            assert!(sb.state().contains(FsState::ERROR), "{what}");
            if is_freed || of_inodes && harm == Harm::ClearBit {
                // The operation that found the number taken has left its bit set, so the inode could be freed.
                continue;
            }
            // Still there, and an orphan.
            edit_inode(&dev, ino, |slot| {
                let inode = InodeDesc::parse(slot, ino, geo).expect("inode");
                assert_eq!((inode.links, inode.file_acl), (0, attributes), "{what}");
            });
        }
    }
}

/// Freeing an inode does not free an attribute block that another inode shares, and does not consult its bitmap,
/// which declares it free. Freeing the other inode finds the damage, and leaves the block.
#[test]
fn attributes_that_are_shared_need_no_bitmap_at_an_eviction() {
    let cred = Cred::default();
    let dev = made(KINDS[0], |fs, root| {
        let f = fs.create(root, b"f", NewNode::file(0o644), cred).expect("create");
        fs.set_xattr(&f, b"user.large", &[b'L'; 600], SetMode::Any).expect("xattr");
        fs.create(root, b"g", NewNode::file(0o644), cred).expect("create");
    });
    let (fs, root) = mount(&dev);
    let inos = [b"f", b"g"].map(|name| fs.lookup(&root, name).expect("there").ino);
    drop(root);
    fs.unmount().expect("unmount");
    let sb = super_of(&dev);
    let geo = sb.geometry();
    let mut of_f = Vec::new();
    edit_inode(&dev, inos[0], |slot| of_f.extend_from_slice(slot));
    edit_inode(&dev, inos[1], |slot| {
        // i_blocks and i_file_acl_lo.
        for field in [28..32, 104..108] {
            slot[field.clone()].copy_from_slice(&of_f[field]);
        }
    });
    let attributes = InodeDesc::parse(&of_f, inos[0], geo).expect("inode").file_acl;
    let mut bytes = block(&dev, geo, attributes);
    bytes[4] = 2; // h_refcount
    put(&dev, attributes, &bytes);
    let (group, index) = geo.group_of_block(attributes).expect("place");
    let nr = desc(&dev, geo, group).block_bitmap;
    let mut bytes = block(&dev, geo, nr);
    bitmap::clear(&mut bytes, index);
    put(&dev, nr, &bytes);
    for (name, in_order) in [("f", true), ("g", false)] {
        let (fs, root) = mount(&dev);
        fs.unlink(&root, name.as_bytes()).expect("unlinked");
        fs.serving().reap();
        drop(root);
        let _ = fs.unmount();
        assert_eq!(super_of(&dev).state().contains(FsState::ERROR), !in_order, "{name}");
        let ino = inos[usize::from(!in_order)];
        edit_inode(&dev, ino, |slot| {
            let inode = InodeDesc::parse(slot, ino, geo).expect("inode");
            assert_eq!((inode.links, inode.file_acl, inode.dtime != 0), (0, BlockNr(0), true), "{name}");
        });
    }
}

#[test]
fn the_superblock_says_what_is_damaged_and_where() {
    for kind in KINDS {
        let dev = made(kind, |fs, root| {
            let f = fs.create(root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            let bs = fs.block_size() as usize;
            for i in 0..40 {
                fs.write(&f, (i * 2 * bs) as u64, &vec![1; bs], WriteFlags::default()).expect("write");
            }
        });
        let (fs, root) = mount(&dev);
        let ino = fs.lookup(&root, b"f").expect("there").ino;
        drop(root);
        fs.unmount().expect("unmount");
        let mut node = 0;
        edit_inode(&dev, ino, |slot| {
            // ei_leaf_lo of the first index, or the first pointer block.
            let at = if slot[40..42] == [0x0A, 0xF3] { 40 + 12 + 4 } else { 40 + 48 };
            node = u32::from_le_bytes(slot[at..at + 4].try_into().expect("4 bytes"));
        });
        let sb = super_of(&dev);
        put(&dev, BlockNr(u64::from(node)), &vec![0xEE; sb.geometry().block_size as usize]);
        let (fs, root) = mount(&dev);
        let f = fs.lookup(&root, b"f").expect("its own inode is whole");
        let read = fs.read(&f, 0, &mut vec![0; f.size() as usize]);
        let place = (Some(ino), Some(BlockNr(u64::from(node))));
        assert_eq!(read.as_ref().expect_err("damaged").place(), place, "{kind:?}: {read:?}");
        drop((root, f));
        fs.unmount().expect("unmount");
        let sb = super_of(&dev);
        let raw = sb.raw();
        assert_eq!(raw.s_first_error_ino.get(), ino.0, "{kind:?}");
        assert_eq!(raw.s_first_error_block.get(), u64::from(node), "{kind:?}");
        assert_eq!(raw.s_first_error_errcode, 5, "{kind:?}");
        assert!(raw.s_first_error_func.starts_with(b"check_map\0"), "{kind:?}");
        assert_eq!(raw.s_last_error_ino.get(), ino.0, "{kind:?}");
    }
}

/// An inode number from earlier (NFS, a file handle) finds nothing, and does not affect the deleted inode.
#[test]
fn a_handle_of_a_deleted_inode_is_stale() {
    for kind in KINDS {
        let dev = made(kind, |fs, root| {
            fs.create(root, b"stays", NewNode::file(0o644), Cred::default()).expect("create");
        });
        let options = MountOptions { errors: Some(OnError::RemountReadOnly), ..options() };
        let fs = Filesystem::mount(dev.clone(), options.clone()).expect("mounted");
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"goes", NewNode::file(0o644), Cred::default()).expect("create");
        fs.write(&f, 0, &[1; 5000], WriteFlags::default()).expect("write");
        let (ino, free) = (f.ino, fs.statfs().inodes_free);
        fs.unlink(&root, b"goes").expect("unlink");
        // Still open: a lookup by number finds it.
        assert_eq!(fs.iget(ino).expect("in use").ino, ino);
        drop(f);
        fs.step();
        for _ in 0..3 {
            assert!(matches!(fs.iget(ino), Err(Error::Stale(of)) if of == ino), "{kind:?}");
            fs.step();
            fs.sync().expect("sync");
        }
        assert!(!fs.is_read_only(), "{kind:?}");
        assert_eq!(fs.statfs().inodes_free, free + 1, "{kind:?}");
        fs.create(&root, b"next", NewNode::file(0o644), Cred::default()).expect("writable");
        drop(root);
        // As after a power cut with an orphan: the next mount frees it.
        let root = fs.root().expect("root");
        let open = fs.create(&root, b"orphan", NewNode::file(0o644), Cred::default()).expect("create");
        fs.unlink(&root, b"orphan").expect("unlink");
        fs.sync().expect("sync");
        let crashed = Arc::new(dev.snapshot());
        let orphan = open.ino;
        drop((root, open));
        fs.unmount().expect("unmount");
        let fs = Filesystem::mount(crashed.clone(), options).expect("mounted");
        fs.step();
        assert!(matches!(fs.iget(orphan), Err(Error::Stale(_))), "{kind:?}");
        assert!(!fs.is_read_only() && fs.statistics().inodes().1 == 0, "{kind:?}");
        fs.unmount().expect("unmount");
        for dev in [&dev, &crashed] {
            tools::assert_clean(dev);
        }
    }
}

/// The last name of a file is removed while adding a new one is about to fail for lack of space.
#[test]
fn a_link_that_finds_no_space_leaves_a_recorded_orphan() {
    const ROUNDS: usize = 200;
    let kind = &["-t", "ext4", "-b", "1024", "-O", "^dir_index", "-N", "2000"][..];
    let dev = made(kind, |_, _| {});
    let clock = Clock::virtual_at(1_700_000_000);
    let fs = Filesystem::mount(dev.clone(), MountOptions { clock: clock.clone(), ..options() }).expect("mounted");
    // An operation without space waits for the last user of a file that was just unlinked: here it would be in vain.
    fs.serving().when_nameless(move |_| clock.advance(Duration::from_secs(1)));
    let (root, cred) = (fs.root().expect("root"), Cred::default());
    let full = fs.create(&root, b"full", NewNode::directory(0o755), cred).expect("mkdir");
    let many: Vec<InodeRef> = (0..ROUNDS)
        .map(|i| fs.create(&root, format!("f{i}").as_bytes(), NewNode::file(0o644), cred).expect("create"))
        .collect();
    // No block is left, and no room in the directory's only one.
    let hog = fs.create(&root, b"hog", NewNode::file(0o600), cred).expect("create");
    let mut at = 0;
    for step in [1 << 20, 1 << 14, 1024] {
        while fs.write(&hog, at, &vec![1; step], WriteFlags::default()).is_ok() {
            fs.sync().expect("sync");
            at += step as u64;
        }
    }
    let mut i = 0;
    while fs.link(&hog, &full, format!("{i:0200}").as_bytes()).is_ok() {
        i += 1;
    }
    let turn = Arc::new(AtomicUsize::new(0));
    let unlinker = {
        let (fs, root, turn) = (fs.clone(), root.clone(), turn.clone());
        extant_base::task::spawn("unlinker", move || {
            for i in 0..ROUNDS {
                while turn.load(Ordering::Acquire) <= i {
                    std::hint::spin_loop();
                }
                // At another moment of the link each time.
                (0..i * 37 % 2000).for_each(|_| std::hint::spin_loop());
                fs.unlink(&root, format!("f{i}").as_bytes()).expect("unlink");
            }
        })
        .expect("thread")
    };
    let long = [b'x'; 220];
    for (i, inode) in many.iter().enumerate() {
        turn.store(i + 1, Ordering::Release);
        // Until there is no file left to link to.
        loop {
            match fs.link(inode, &full, &long) {
                Err(Error::NoSpace) => {}
                Err(Error::NotFound) => break,
                other => panic!("{other:?}"),
            }
        }
    }
    unlinker.join().expect("ended");
    // All are unlinked and open: each must be recorded, or a crash would leak it.
    let recorded = fs.statistics().inodes().1;
    assert!(many.iter().all(|inode| fs.getattr(inode).nlink == 0));
    assert_eq!(recorded, ROUNDS);
    drop((many, hog, full, root));
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

/// The log contains the superblock of a file system that grew, as the kernel grows it online; the device has the old
/// size.
#[test]
fn a_file_system_that_outgrows_its_device_in_the_log_is_refused() {
    // One group, so there are no backups: every apparent superblock is the primary or its copy in the log, and has no
    // checksum.
    let dev = made(&["-t", "ext4", "-b", "4096", "-O", "^orphan_file,^metadata_csum"], |_, _| {});
    let (fs, root) = mount(&dev);
    let _open = fs.create(&root, b"open", NewNode::file(0o644), Cred::default()).expect("create");
    // The head of the list of orphans is in the superblock.
    fs.unlink(&root, b"open").expect("unlink");
    fs.sync_names().expect("logged");
    let crashed = Arc::new(dev.snapshot());
    let geo = fs.geometry().clone();
    let mut copies = 0;
    for nr in (1..geo.blocks_count).map(BlockNr) {
        let mut bytes = block(&crashed, &geo, nr);
        let copy = &mut bytes[1024..][..SUPERBLOCK_SIZE];
        if SuperBlock::decode(copy, 1024).is_ok() {
            copy[4..8].copy_from_slice(&(2 * geo.blocks_count as u32).to_le_bytes());
            put(&crashed, nr, &bytes);
            copies += 1;
        }
    }
    assert!(copies > 0);
    for read_only in [true, false] {
        let options = MountOptions { read_only, ..options() };
        let refused = Filesystem::mount(crashed.clone(), options).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("on a device of"), "{read_only}: {refused:?}");
    }
}
