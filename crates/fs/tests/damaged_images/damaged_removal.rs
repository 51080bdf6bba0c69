//! Damaged files can be removed. Blocks that certainly belong to them are freed, doubtful ones are not, and nothing
//! remains but problems that e2fsck knew before.

use extant_oracle::memory as tools;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::damaged::*;
use extant_block::device::{CrashDevice, MemDevice};
use extant_fs::{Cred, Filesystem, InodeRef, NewNode, SetAttr, SetMode, WriteFlags};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::superblock::FsState;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

/// Blocks of the removed file, each followed by a hole.
const ISLANDS: u64 = 60;
/// mke2fs arguments without checksums, which the edits would invalidate.
const EXTENTS: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"];
const POINTERS: &[&str] = &["-t", "ext3", "-b", "1024"];

fn write(fs: &Filesystem, f: &InodeRef, blocks: impl Iterator<Item = u64>, fill: u8) {
    let bs = u64::from(fs.block_size());
    for i in blocks {
        fs.write(f, i * bs, &vec![fill; bs as usize], WriteFlags::default()).expect("write");
    }
}

/// A file of islands, and others whose content must not change.
fn fill(fs: &Filesystem, root: &InodeRef) {
    let create = |name: &[u8]| fs.create(root, name, NewNode::file(0o644), Cred::default()).expect("create");
    let f = create(b"f");
    write(fs, &f, (0..ISLANDS).map(|i| 2 * i), 1);
    fs.sync().expect("sync");
    write(fs, &create(b"other"), 0..50, 2);
}

fn ino_of(dev: &Arc<MemDevice>, name: &str) -> InodeNr {
    let (fs, root) = mount(&Arc::new(dev.snapshot()));
    fs.lookup(&root, name.as_bytes()).expect("there").ino
}

fn pointer(bytes: &[u8], at: usize) -> BlockNr {
    BlockNr(u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))))
}

/// The first node of the file's map.
fn node_of(dev: &MemDevice, ino: InodeNr) -> BlockNr {
    let mut node = BlockNr(0);
    edit_inode(dev, ino, |slot| {
        let extents = slot[40..42] == [0x0A, 0xF3];
        node = pointer(slot, if extents { 40 + 12 + 4 } else { 40 + 48 });
    });
    node
}

/// The problems that e2fsck finds.
#[derive(Debug, Default, PartialEq)]
struct Findings {
    /// Blocks marked in use without an owner: harmless, and e2fsck frees them.
    leaked: BTreeSet<u64>,
    /// Blocks with an owner, marked free.
    unmarked: BTreeSet<u64>,
    other: Vec<String>,
}

fn findings(dev: &MemDevice) -> Findings {
    const IDLE: [&str; 5] = ["Pass ", "Fix? no", "e2fsck ", "Free blocks count wrong", "Padding at end"];
    // The host's clock may have been set back since the mount.
    const CLOCK: [&str; 3] = ["Superblock last mount time", "Superblock last write time", "\t(by less than a day"];
    let (_, said) = tools::e2fsck(dev, &["-fn"]);
    let mut found = Findings::default();
    for line in said.lines() {
        if let Some(runs) = line.strip_prefix("Block bitmap differences: ") {
            for run in runs.split_whitespace() {
                let set = if run.starts_with('-') { &mut found.leaked } else { &mut found.unmarked };
                let number = |n: &str| n.trim_matches(['+', '-', '(', ')']).parse::<u64>().expect("number");
                match run.trim_start_matches('-').split_once("--") {
                    Some((from, to)) => set.extend(number(from)..=number(to)),
                    None => set.extend([number(run)]),
                }
            }
        } else if !line.is_empty()
            && !IDLE.iter().chain(&CLOCK).any(|start| line.starts_with(start))
            && !line.contains("WARNING: Filesystem still has errors")
            && !line.contains("% non-contiguous")
        {
            found.other.push(line.to_owned());
        }
    }
    found
}

/// Checks that only leaks are new.
fn assert_no_worse(before: &Findings, dev: &MemDevice, what: &str) -> Findings {
    let after = findings(dev);
    assert!(after.unmarked.is_subset(&before.unmarked), "{what}: freed what is in use: {after:?}");
    let new: Vec<&String> = after.other.iter().filter(|line| !before.other.contains(line)).collect();
    assert!(new.is_empty(), "{what}: {new:?}");
    after
}

/// Removes `f` and ends the mount. The inode's number must be free, and no orphan may remain.
fn remove(dev: &Arc<MemDevice>, what: &str) -> u64 {
    let (fs, root) = mount(dev);
    let free = fs.statfs().inodes_free;
    let other =
        || fs.lookup(&root, b"other").map(|other| content(&fs, &other)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let before = other();
    fs.unlink(&root, b"f").unwrap_or_else(|e| panic!("{what}: {e}"));
    fs.step();
    assert_eq!((fs.statistics().inodes().1, fs.statfs().inodes_free), (0, free + 1), "{what}");
    assert!(!fs.is_read_only(), "{what}");
    let noted = fs.stats.errors.get();
    // The mount can still be used.
    let new = fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create");
    write(&fs, &new, 0..100, 3);
    fs.fsync(&new, false).expect("fsync");
    assert!(other() == before, "{what}");
    fs.unlink(&root, b"new").expect("unlink");
    drop((new, root));
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(super_of(dev).state().contains(FsState::ERROR), "{what}: e2fsck has to look");
    assert!(noted > 0, "{what}");
    noted
}

fn content(fs: &Filesystem, f: &InodeRef) -> Vec<u8> {
    let mut all = vec![0; f.size() as usize];
    fs.read(f, 0, &mut all).expect("read");
    all
}

/// Pointers outside the file system, and to its own structures.
#[test]
fn a_file_with_wild_pointers_can_be_removed() {
    for kind in [EXTENTS, POINTERS] {
        let whole = made(kind, fill);
        let (ino, sb) = (ino_of(&whole, "f"), super_of(&whole));
        let geo = sb.geometry();
        let node = node_of(&whole, ino);
        let table = desc(&whole, geo, GroupNr(0)).inode_table;
        let journal = first_block(&whole, InodeNr(8));
        for wild in [BlockNr(0x7FFF_FFF0), BlockNr(geo.blocks_count), BlockNr(1), table, journal] {
            for places in [vec![5], vec![0], (0..40).collect()] {
                let what = format!("{kind:?}: {} pointers to {wild}", places.len());
                let dev = Arc::new(whole.snapshot());
                let mut bytes = block(&dev, geo, node);
                for place in &places {
                    // The low half of an extent's block, or every second pointer.
                    let at = if kind == EXTENTS { 12 + 12 * place + 8 } else { 8 * place };
                    assert_ne!(pointer(&bytes, at), BlockNr(0), "{what}");
                    bytes[at..at + 4].copy_from_slice(&(wild.0 as u32).to_le_bytes());
                }
                put(&dev, node, &bytes);
                remove(&dev, &what);
                let after = assert_no_worse(&Findings::default(), &dev, &what);
                // The blocks that the pointers named before.
                assert_eq!(after.leaked.len(), places.len(), "{what}: {after:?}");
            }
        }
    }
}

/// A node that is unreadable, that belongs to another file, or that is named twice.
#[test]
fn a_file_with_a_damaged_map_can_be_removed() {
    const CHECKED: &[&str] = &["-t", "ext4", "-b", "1024"];
    for kind in [EXTENTS, POINTERS, CHECKED] {
        let whole = made(kind, |fs, root| {
            let f = fs.create(root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            // Several nodes: of 84 extents, or of 256 pointers.
            for part in 0..if kind == POINTERS { 4 } else { 2 } {
                write(fs, &f, (0..100).map(|i| part * 256 + 2 * i), 1);
                fs.sync().expect("sync");
            }
            write(fs, &fs.create(root, b"other", NewNode::file(0o644), Cred::default()).expect("create"), 0..50, 2);
        });
        let (ino, sb) = (ino_of(&whole, "f"), super_of(&whole));
        let geo = sb.geometry();
        let mut root = Vec::new();
        edit_inode(&whole, ino, |slot| root = slot[40..100].to_vec());
        // The children of the root, and where they are named; for the double indirect block, the blocks below it.
        let (holder, places): (Option<BlockNr>, Vec<usize>) = if kind == POINTERS {
            (Some(pointer(&root, 52)), vec![0, 4, 8])
        } else {
            (None, (0..3).map(|i| 12 + 12 * i + 4).collect())
        };
        let names = holder.map_or(root.clone(), |nr| block(&whole, geo, nr));
        let nodes: Vec<BlockNr> = places.iter().map(|at| pointer(&names, *at)).collect();
        let edit_names = |dev: &MemDevice, f: &dyn Fn(&mut [u8])| match holder {
            Some(nr) => {
                let mut bytes = block(dev, geo, nr);
                f(&mut bytes);
                put(dev, nr, &bytes);
            }
            None => edit_inode(dev, ino, |slot| f(&mut slot[40..100])),
        };
        let other = first_block(&whole, ino_of(&whole, "other"));
        type Harm<'a> = (&'a str, Box<dyn Fn(&MemDevice) + 'a>);
        let node = nodes[1];
        let harms: [Harm<'_>; 3] = [
            ("a node of ones", Box::new(move |dev| put(dev, node, &[0xFF; 1024]))),
            (
                "a node that is data of another file",
                Box::new(|dev| {
                    edit_names(dev, &|b| b[places[1]..places[1] + 4].copy_from_slice(&(other.0 as u32).to_le_bytes()));
                }),
            ),
            (
                "a node that is named twice",
                Box::new(|dev| {
                    edit_names(dev, &|b| b.copy_within(places[0]..places[0] + 4, places[1]));
                }),
            ),
        ];
        for (harm, inflict) in harms {
            let what = format!("{kind:?}: {harm}");
            let dev = Arc::new(whole.snapshot());
            inflict(&dev);
            if kind == POINTERS {
                // A block in use that looks like pointers cannot be distinguished from a map.
                put(&dev, other, &[0xFE; 1024]);
            }
            remove(&dev, &what);
            let after = findings(&dev);
            let named = BTreeSet::from([other.0]);
            assert!(after.unmarked.is_subset(&named), "{what}: {after:?}");
            assert_eq!(after.other, Vec::<String>::new(), "{what}");
            // The hidden blocks are leaked, and no more.
            assert!((1..=257).contains(&after.leaked.len()), "{what}: {after:?}");
        }
    }
}

/// The descriptor declares that a group has no bitmap yet, but files have blocks in it.
#[test]
fn a_file_in_a_group_without_a_bitmap_can_be_removed_and_truncated() {
    for kind in [
        &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^resize_inode"][..],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^metadata_csum,uninit_bg,^flex_bg,^resize_inode"],
    ] {
        let whole = made(kind, |fs, root| {
            let f = fs.create(root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            write(fs, &f, 0..3000, 1);
            fs.set_xattr(&f, b"user.large", &[b'L'; 700], SetMode::Any).expect("xattr");
            write(fs, &fs.create(root, b"other", NewNode::file(0o644), Cred::default()).expect("create"), 0..50, 2);
        });
        let (ino, sb) = (ino_of(&whole, "f"), super_of(&whole));
        let geo = sb.geometry();
        let mut attributes = BlockNr(0);
        edit_inode(&whole, ino, |slot| attributes = InodeDesc::parse(slot, ino, geo).expect("inode").file_acl);
        let groups = [
            ("of data", geo.group_of_block(mapped(&whole, ino, 2900)).expect("inside").0),
            ("of attributes", geo.group_of_block(attributes).expect("inside").0),
        ];
        for (of, group) in groups {
            let what = format!("{kind:?}: {group} {of}");
            let dev = Arc::new(whole.snapshot());
            let (nr, offset) = geo.group_desc_block(group).expect("there");
            let mut descs = block(&dev, geo, nr);
            let mut d = desc(&dev, geo, group);
            d.flags |= GroupFlags::BLOCK_UNINIT;
            d.encode_into(&mut descs[offset..offset + geo.desc_size], group, geo);
            put(&dev, nr, &descs);
            let before = findings(&dev);
            // First truncated, then removed.
            let (fs, root) = mount(&dev);
            let f = fs.lookup(&root, b"f").expect("there");
            let cut = fs.setattr(&f, &SetAttr { size: Some(10), ..SetAttr::default() });
            assert!(cut.is_ok(), "{what}: {cut:?}");
            assert_eq!(fs.statistics().inodes().1, 0, "{what}");
            drop((f, root));
            fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
            let after_cut = Arc::new(dev.snapshot());
            assert!(super_of(&after_cut).state().contains(FsState::ERROR) || of == "of attributes", "{what}");
            if of == "of attributes" {
                remove(&dev, &what);
            } else {
                let (fs, root) = mount(&dev);
                fs.unlink(&root, b"f").unwrap_or_else(|e| panic!("{what}: {e}"));
                fs.step();
                assert_eq!(fs.statistics().inodes().1, 0, "{what}");
                drop(root);
                fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            assert_no_worse(&before, &dev, &what);
        }
    }
}

/// After a power cut at any moment the next mount completes the removal, and no other file has lost anything.
#[test]
fn removing_a_file_with_wild_pointers_survives_power_cuts() {
    for kind in [EXTENTS, POINTERS] {
        let whole = made(kind, fill);
        let (sb, node) = (super_of(&whole), node_of(&whole, ino_of(&whole, "f")));
        let mut bytes = block(&whole, sb.geometry(), node);
        for place in [3, 4, 20] {
            let at = if kind == EXTENTS { 12 + 12 * place + 8 } else { 8 * place };
            bytes[at..at + 4].copy_from_slice(&0x7FFF_FFF0u32.to_le_bytes());
        }
        put(&whole, node, &bytes);
        let crash = Arc::new(CrashDevice::from_image(&whole));
        let fs = Filesystem::mount(crash.clone(), options()).expect("mounted");
        let root = fs.root().expect("root");
        let other_content = content(&fs, &fs.lookup(&root, b"other").expect("there"));
        fs.unlink(&root, b"f").expect("unlink");
        fs.sync().expect("sync");
        // A new file that reuses the freed blocks.
        let new = fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create");
        write(&fs, &new, 0..200, 3);
        fs.fsync(&new, false).expect("fsync");
        let (synced, whole_new) = (crash.write_log(), content(&fs, &new).len());
        assert!(whole_new > 0);
        drop((new, root));
        fs.unmount().expect("unmount");
        let events = crash.write_log();
        assert!(events > 10, "{events} requests");
        for at in 0..=events {
            let what = format!("{kind:?}: cut at {at} of {events}");
            let dev = Arc::new(crash.state_keeping(at, |_| false).expect("state"));
            let (fs, root) = mount(&dev);
            fs.step();
            let other = fs.lookup(&root, b"other").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(!other_content.is_empty() && content(&fs, &other) == other_content, "{what}");
            if let Ok(new) = fs.lookup(&root, b"new") {
                let new = content(&fs, &new);
                assert!(
                    new.iter().all(|b| *b == 3) && (at < synced || new.len() == whole_new),
                    "{what}: {}",
                    new.len()
                );
            }
            drop((other, root));
            let _ = fs.unmount();
            assert_eq!(findings(&dev).unmarked, BTreeSet::new(), "{what}");
        }
    }
}

/// The value of an attribute is in an inode of its own, on an image without that feature.
#[test]
fn a_file_with_a_value_inode_without_the_feature_can_be_removed() {
    for in_block in [false, true] {
        let whole = made(EXTENTS, |fs, root| {
            fill(fs, root);
            let f = fs.lookup(root, b"f").expect("there");
            fs.set_xattr(&f, b"user.x", &vec![b'L'; if in_block { 700 } else { 5 }], SetMode::Any).expect("xattr");
        });
        let (ino, sb) = (ino_of(&whole, "f"), super_of(&whole));
        let geo = sb.geometry();
        let value = ino_of(&whole, "other");
        let number = value.0.to_le_bytes();
        let mut attributes = BlockNr(0);
        edit_inode(&whole, ino, |slot| {
            attributes = InodeDesc::parse(slot, ino, geo).expect("inode").file_acl;
            if !in_block {
                let at = 128 + usize::from(u16::from_le_bytes([slot[128], slot[129]])) + 4;
                slot[at + 4..at + 8].copy_from_slice(&number);
            }
        });
        if in_block {
            let mut bytes = block(&whole, geo, attributes);
            bytes[32 + 4..32 + 8].copy_from_slice(&number);
            put(&whole, attributes, &bytes);
        }
        let what = format!("in a block: {in_block}");
        remove(&whole, &what);
        assert_eq!(findings(&whole), Findings::default(), "{what}");
    }
}
