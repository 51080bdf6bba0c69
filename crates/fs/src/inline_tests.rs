//! Content in inodes: the move to blocks, attributes that compete for the room, no space, and damage.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::inode::InodeFlags;

use crate::ops::no_space::tests::take_all;
use crate::tools::{assert_clean, debugfs, edited, made};
use crate::{
    Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, Seek, SetAttr,
    SetMode, WriteFlags,
};

/// All relevant sizes of blocks and inodes, with and without checksums, extents, and directory indexes.
const KINDS: [&[&str]; 6] = [
    &["-t", "ext4", "-O", "inline_data", "-b", "1024", "-I", "256"],
    &["-t", "ext4", "-O", "inline_data", "-b", "4096", "-I", "256"],
    &["-t", "ext4", "-O", "inline_data", "-b", "1024", "-I", "1024"],
    &["-t", "ext4", "-O", "inline_data,^metadata_csum,^dir_index", "-b", "1024", "-I", "512"],
    &["-t", "ext4", "-O", "inline_data,^extents,^64bit", "-b", "1024", "-I", "256"],
    &["-t", "ext4", "-O", "inline_data,^has_journal", "-b", "1024", "-I", "256"],
];

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

fn image(kind: &[&str]) -> Arc<MemDevice> {
    Arc::new(made(kind, "16M"))
}

fn file(fs: &Filesystem, name: &str) -> InodeRef {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create")
}

fn dir(fs: &Filesystem, name: &str) -> InodeRef {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::directory(0o755), Cred::default()).expect("mkdir")
}

fn put(fs: &Filesystem, f: &InodeRef, pos: u64, data: &[u8]) {
    assert_eq!(fs.write(f, pos, data, WriteFlags::default()).expect("write"), data.len());
}

fn resize(fs: &Filesystem, f: &InodeRef, size: u64) {
    fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("resized");
}

fn content(fs: &Filesystem, f: &InodeRef) -> Vec<u8> {
    let mut all = vec![0xEE; fs.getattr(f).size as usize];
    assert_eq!(fs.read(f, 0, &mut all).expect("read"), all.len());
    all
}

fn names(fs: &Filesystem, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    let mut note = |name: &[u8]| names.push(String::from_utf8_lossy(name).into_owned());
    let listed = fs.read_dir(dir, 0, |item| {
        note(item.name);
        true
    });
    listed.expect("listed");
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

fn remounted(fs: Mounted, dev: &Arc<MemDevice>) -> Mounted {
    fs.unmount().expect("unmount");
    assert_clean(dev);
    mount(dev)
}

fn reopened(fs: &Filesystem, name: &str) -> InodeRef {
    fs.walk(name.as_bytes(), true).expect("there")
}

#[test]
fn a_growing_file_moves_out_of_its_inode_once() {
    for kind in KINDS {
        let dev = image(kind);
        let fs = mount(&dev);
        let f = file(&fs, "f");
        let all = pattern(1500);
        let mut longest = 0;
        for (i, part) in all.chunks(7).enumerate() {
            put(&fs, &f, i as u64 * 7, part);
            let (attr, inline) = (fs.getattr(&f), fs.is_inline(&f));
            assert_eq!(inline, attr.blocks == 0, "{kind:?}: {attr:?}");
            if inline {
                longest = attr.size;
            }
            let n = (7 * (i + 1)).min(all.len());
            assert_eq!(content(&fs, &f), all[..n], "{kind:?}");
        }
        let room = fs.geo.inode_size as u64 - 128 - 32;
        assert!(longest >= 60 + room - 40 && longest <= 60 + room, "{kind:?}: {longest}");
        // The content does not return to the inode.
        resize(&fs, &f, 10);
        assert!(!fs.is_inline(&f));
        put(&fs, &f, 3, b"after");
        drop(f);
        let fs = remounted(fs, &dev);
        let f = reopened(&fs, "f");
        assert_eq!(content(&fs, &f), [&all[..3], b"after", &all[8..10]].concat(), "{kind:?}");
        fs.unlink(&fs.root().expect("root"), b"f").expect("unlink");
        drop(f);
        drop(remounted(fs, &dev));
    }
}

/// Bytes past the end never reappear, however the end moves.
#[test]
fn a_file_in_its_inode_can_be_resized() {
    for kind in KINDS {
        let dev = image(kind);
        let fs = mount(&dev);
        let f = file(&fs, "f");
        let mut wanted = pattern(100);
        put(&fs, &f, 0, &wanted);
        for size in [90, 70, 95, 60, 61, 30, 59, 0, 5, 100] {
            resize(&fs, &f, size);
            wanted.resize(size as usize, 0);
            assert_eq!(content(&fs, &f), wanted, "{kind:?}, {size}");
        }
        let empty = file(&fs, "empty");
        assert!(!fs.is_inline(&empty), "{kind:?}");
        drop(empty);
        put(&fs, &f, 80, b"behind a hole");
        wanted[80..93].copy_from_slice(b"behind a hole");
        assert!(fs.is_inline(&f) && fs.getattr(&f).blocks == 0, "{kind:?}");
        assert_eq!(fs.seek(&f, 5, Seek::Data).expect("data"), 5);
        assert_eq!(fs.seek(&f, 5, Seek::Hole).expect("the end"), 100);
        drop(f);
        let fs = remounted(fs, &dev);
        let f = reopened(&fs, "f");
        assert_eq!(content(&fs, &f), wanted, "{kind:?}");
        // The new size exceeds the room; the rest is a hole.
        resize(&fs, &f, 1 << 20);
        wanted.resize(1 << 20, 0);
        assert!(!fs.is_inline(&f) && content(&fs, &f) == wanted, "{kind:?}");
        let g = file(&fs, "g");
        resize(&fs, &g, 1 << 20);
        assert_eq!(fs.getattr(&g).blocks, 0, "{kind:?}: an empty file needs no block");
        put(&fs, &g, 1 << 19, b"middle");
        // An empty file that is read from its table is not new, so its content goes to blocks.
        put(&fs, &reopened(&fs, "empty"), 0, b"first");
        assert!(!fs.is_inline(&reopened(&fs, "empty")), "{kind:?}");
        drop((f, g));
        let fs = remounted(fs, &dev);
        assert!(content(&fs, &reopened(&fs, "f")) == wanted, "{kind:?}");
        let g = content(&fs, &reopened(&fs, "g"));
        assert!(&g[1 << 19..][..6] == b"middle" && g.iter().filter(|b| **b != 0).count() == 6, "{kind:?}");
        drop(remounted(fs, &dev));
    }
}

#[test]
fn fallocate_moves_a_file_out_first() {
    let dev = image(KINDS[0]);
    let fs = mount(&dev);
    let all = pattern(100);
    for (i, (mode, pos, len)) in [
        (FallocateMode::Allocate { keep_size: false }, 0, 5000),
        (FallocateMode::Allocate { keep_size: true }, 50, 5000),
        (FallocateMode::PunchHole, 20, 30),
        (FallocateMode::ZeroRange { keep_size: false }, 20, 3000),
        (FallocateMode::ZeroRange { keep_size: true }, 20, 30),
    ]
    .into_iter()
    .enumerate()
    {
        let f = file(&fs, &format!("f{i}"));
        put(&fs, &f, 0, &all);
        fs.fallocate(&f, mode, pos, len).expect("fallocate");
        assert!(!fs.is_inline(&f), "{mode:?}");
        let mut wanted = all.clone();
        if matches!(mode, FallocateMode::Allocate { keep_size: false } | FallocateMode::ZeroRange { keep_size: false })
        {
            wanted.resize((pos + len) as usize, 0);
        }
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            let end = wanted.len().min((pos + len) as usize);
            wanted[pos as usize..end].fill(0);
        }
        assert_eq!(content(&fs, &f), wanted, "{mode:?}");
    }
    drop(remounted(fs, &dev));
}

/// The directory moves from the inode to a block, grows to two blocks or an index, and is emptied.
#[test]
fn a_growing_directory_moves_out_of_its_inode_once() {
    for kind in KINDS {
        let dev = image(kind);
        let fs = mount(&dev);
        let d = dir(&fs, "d");
        let f = file(&fs, "f");
        assert!(fs.is_inline(&d) && fs.getattr(&d).blocks == 0, "{kind:?}");
        assert_eq!(fs.getattr(&d).size, 60, "{kind:?}");
        let name = |i: usize| format!("{i:0>width$}", width = 4 + i % 30);
        let (mut wanted, mut inline) = (Vec::new(), 0);
        for i in 0..200 {
            fs.link(&f, &d, name(i).as_bytes()).expect("link");
            wanted.push(name(i));
            inline += usize::from(fs.is_inline(&d));
            if i < 60 {
                let mut sorted = wanted.clone();
                sorted.sort();
                assert_eq!(names(&fs, &d), sorted, "{kind:?}");
            }
            assert!(matches!(fs.link(&f, &d, name(i / 2).as_bytes()), Err(Error::Exists)), "{kind:?}");
        }
        assert!((3..60).contains(&inline) && !fs.is_inline(&d), "{kind:?}: {inline}");
        assert_eq!(d.links(), 2);
        drop((d, f));
        let fs = remounted(fs, &dev);
        let d = reopened(&fs, "d");
        wanted.sort();
        assert_eq!(names(&fs, &d), wanted, "{kind:?}");
        for name in &wanted {
            fs.unlink(&d, name.as_bytes()).expect("unlink");
        }
        assert!(!fs.is_inline(&d));
        fs.rmdir(&fs.root().expect("root"), b"d").expect("rmdir");
        drop(d);
        drop(remounted(fs, &dev));
    }
}

/// Names are added and removed in an inode. A directory with such names moves to another parent and is removed there.
#[test]
fn names_in_an_inode_change_in_place() {
    for kind in KINDS {
        let dev = image(kind);
        let fs = mount(&dev);
        let (a, b) = (dir(&fs, "a"), dir(&fs, "b"));
        let make =
            |parent: &InodeRef, name: &[u8], node| fs.create(parent, name, node, Cred::default()).expect("create");
        let sub = make(&a, b"sub", NewNode::directory(0o700));
        let f = make(&sub, b"f", NewNode::file(0o600));
        put(&fs, &f, 0, b"content");
        make(&sub, b"link", NewNode::symlink(b"target"));
        fs.rename(&a, b"sub", &b, b"moved", RenameFlags::default()).expect("rename");
        assert_eq!(fs.parent(&sub).expect("parent").ino, b.ino, "{kind:?}");
        assert_eq!((a.links(), b.links()), (2, 3), "{kind:?}");
        fs.rename(&sub, b"f", &sub, b"other", RenameFlags::default()).expect("rename");
        fs.rename(&sub, b"other", &sub, b"link", RenameFlags::default()).expect("replace");
        assert_eq!(names(&fs, &sub), ["link"], "{kind:?}");
        let g = make(&a, b"g", NewNode::directory(0o700));
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        fs.rename(&b, b"moved", &a, b"g", exchange).expect("exchange");
        assert_eq!(fs.parent(&sub).expect("parent").ino, a.ino, "{kind:?}");
        assert_eq!(fs.parent(&g).expect("parent").ino, b.ino, "{kind:?}");
        assert!(matches!(fs.rmdir(&a, b"g"), Err(Error::NotEmpty)), "{kind:?}");
        let nameless = fs.tmpfile(&a, 0o600, Cred::default()).expect("tmpfile");
        put(&fs, &nameless, 0, b"no name yet");
        fs.link(&nameless, &b, b"named").expect("link");
        assert!([&a, &b, &sub, &f, &g, &nameless].iter().all(|inode| fs.is_inline(inode)), "{kind:?}");
        drop((a, b, sub, f, g, nameless));
        let fs = remounted(fs, &dev);
        assert_eq!(content(&fs, &reopened(&fs, "a/g/link")), b"content", "{kind:?}");
        assert_eq!(content(&fs, &reopened(&fs, "b/named")), b"no name yet", "{kind:?}");
        fs.unlink(&reopened(&fs, "a/g"), b"link").expect("unlink");
        fs.rmdir(&reopened(&fs, "a"), b"g").expect("rmdir");
        drop(remounted(fs, &dev));
    }
}

/// Content that came first keeps its room, and another attribute goes to the block. An attribute that came first
/// reduces the room for content.
#[test]
fn attributes_and_content_share_the_room_of_an_inode() {
    for kind in KINDS {
        let dev = image(kind);
        let fs = mount(&dev);
        let (first, second, d) = (file(&fs, "first"), file(&fs, "second"), dir(&fs, "d"));
        put(&fs, &first, 0, b"begun");
        let room = fs.inline(&first).room().expect("room").expect("of an attribute");
        let all = pattern(room);
        put(&fs, &first, 0, &all);
        assert!(fs.is_inline(&first), "{kind:?}");
        fs.set_xattr(&first, b"user.large", &[b'x'; 40], SetMode::Any).expect("set");
        assert!(fs.is_inline(&first) && fs.getattr(&first).blocks > 0, "{kind:?}");
        assert_eq!(content(&fs, &first), all, "{kind:?}");
        // Its block is freed when the attribute fits in the inode again.
        resize(&fs, &first, 10);
        fs.set_xattr(&first, b"user.large", b"small", SetMode::Replace).expect("set");
        assert_eq!(fs.getattr(&first).blocks, 0, "{kind:?}");

        fs.set_xattr(&second, b"user.early", &[b'y'; 24], SetMode::Any).expect("set");
        assert_eq!(fs.getattr(&second).blocks, 0, "{kind:?}");
        let left = fs.inline(&second).room().expect("room").expect("of an attribute");
        assert!((60..room).contains(&left), "{kind:?}: {left} of {room}");
        put(&fs, &second, 0, &all[..left]);
        assert!(fs.is_inline(&second), "{kind:?}");
        put(&fs, &second, left as u64, &all[left..]);
        assert!(!fs.is_inline(&second), "{kind:?}");
        assert_eq!(content(&fs, &second), all, "{kind:?}");

        // A directory takes all of the room with the first name that needs any.
        for i in 0..5 {
            fs.link(&first, &d, format!("a name {i}").as_bytes()).expect("link");
        }
        fs.set_xattr(&d, b"user.late", &[b'z'; 40], SetMode::Any).expect("set");
        assert!(fs.is_inline(&d) && fs.getattr(&d).blocks > 0, "{kind:?}");
        fs.remove_xattr(&d, b"user.late").expect("removed");
        assert_eq!(fs.getattr(&d).blocks, 0, "{kind:?}");
        drop((first, second, d));
        let fs = remounted(fs, &dev);
        let attribute = |name: &str, attribute: &[u8]| fs.get_xattr(&reopened(&fs, name), attribute).expect("there");
        assert_eq!(attribute("first", b"user.large"), b"small", "{kind:?}");
        assert_eq!(attribute("second", b"user.early"), [b'y'; 24], "{kind:?}");
        assert_eq!(content(&fs, &reopened(&fs, "second")), all, "{kind:?}");
        assert_eq!(names(&fs, &reopened(&fs, "d")).len(), 5, "{kind:?}");
        drop(remounted(fs, &dev));
    }
}

/// Small inodes have no room for an attribute, so everything has blocks.
#[test]
fn inodes_without_room_for_attributes_hold_no_content() {
    let dev = image(&["-t", "ext4", "-O", "^inline_data,^extra_isize", "-b", "1024", "-I", "128"]);
    let dev = Arc::new(edited(&dev, &["feature inline_data"]));
    let fs = mount(&dev);
    let (f, d) = (file(&fs, "f"), dir(&fs, "d"));
    put(&fs, &f, 0, b"content");
    assert!(!fs.is_inline(&f) && !fs.is_inline(&d));
    drop((f, d));
    fs.unmount().expect("unmount");
    let fs = mount(&dev);
    assert_eq!(content(&fs, &reopened(&fs, "f")), b"content");
}

/// Without a free block, a file or directory stays in its inode and keeps its content.
#[test]
fn a_move_without_space_changes_nothing() {
    for kind in [KINDS[0], KINDS[2], KINDS[4]] {
        let dev = image(kind);
        let fs = mount(&dev);
        let (f, d) = (file(&fs, "f"), dir(&fs, "d"));
        put(&fs, &f, 0, b"content");
        let mut wanted = Vec::new();
        while fs.is_inline(&d) && wanted.len() < 4 {
            wanted.push(format!("name {}", wanted.len()));
            fs.link(&f, &d, wanted.last().expect("pushed").as_bytes()).expect("link");
        }
        fs.sync().expect("sync");
        take_all(&fs);
        fs.sync().expect("sync");
        let long = vec![b'l'; 255];
        let room = fs.inline(&d).room().expect("room").expect("of an attribute");
        for _ in 0..room / 264 {
            // Until another entry of 264 bytes no longer fits.
            let more = format!("{:0>255}", wanted.len());
            if fs.link(&f, &d, more.as_bytes()).is_err() {
                break;
            }
            wanted.push(more);
        }
        let linked = fs.link(&f, &d, &long);
        assert!(matches!(linked, Err(Error::NoSpace)), "{kind:?}: {linked:?}");
        let written = fs.write(&f, 5, &[1; 2000], WriteFlags::default());
        assert!(matches!(written, Err(Error::NoSpace)), "{kind:?}: {written:?}");
        let grown = fs.setattr(&f, &SetAttr { size: Some(5000), ..SetAttr::default() });
        assert!(matches!(grown, Err(Error::NoSpace)), "{kind:?}: {grown:?}");
        assert!(fs.is_inline(&f) && fs.is_inline(&d) && !fs.is_read_only(), "{kind:?}");
        assert_eq!(content(&fs, &f), b"content", "{kind:?}");
        wanted.sort();
        assert_eq!(names(&fs, &d), wanted, "{kind:?}");
        assert_eq!(usize::from(f.links()), 1 + wanted.len(), "{kind:?}");
        // New small files need no block.
        let g = file(&fs, "g");
        put(&fs, &g, 0, b"small");
        assert_eq!(content(&fs, &g), b"small", "{kind:?}");
    }
}

/// The first block is charged when the content moves to it.
#[test]
fn quotas_charge_no_block_for_content_in_an_inode() {
    let args = ["-t", "ext4", "-O", "inline_data,quota", "-b", "1024", "-E", "quotatype=usrquota"];
    let dev = image(&args);
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    let ann = Cred { uid: 1000, gid: 1000, umask: 0 };
    let d = fs.create(&root, b"d", NewNode::directory(0o755), ann).expect("mkdir");
    let f = fs.create(&d, b"f", NewNode::file(0o644), ann).expect("create");
    put(&fs, &f, 0, &[1; 100]);
    let used = || fs.quota_from(crate::QuotaKind::User, 1000).expect("usage").0;
    assert_eq!((used().bytes, used().inodes), (0, 2));
    put(&fs, &f, 100, &[2; 100]);
    assert_eq!(used().bytes, 1024);
    drop((root, d, f));
    drop(remounted(fs, &dev));
}

/// The kernel's truncation was interrupted: the orphan stores more bytes than its size.
#[test]
fn an_orphan_in_its_inode_is_cut_to_its_size() {
    let dev = image(KINDS[0]);
    let fs = mount(&dev);
    let f = file(&fs, "f");
    put(&fs, &f, 0, &pattern(120));
    let ino = f.ino.0;
    drop(f);
    fs.unmount().expect("unmount");
    let dev = Arc::new(edited(&dev, &["sif f size 70", &format!("ssv last_orphan {ino}"), "ssv state 1"]));
    let fs = mount(&dev);
    let f = reopened(&fs, "f");
    assert_eq!(content(&fs, &f), pattern(120)[..70]);
    let (_, rest) = fs.inline(&f).parts().expect("parts");
    assert_eq!(rest.map(|rest| rest.len()), Some(10));
    drop(f);
    drop(remounted(fs, &dev));
}

/// The only place on the device that contains these bytes.
fn find(dev: &MemDevice, bytes: &[u8]) -> u64 {
    let mut all = vec![0; dev.size_bytes() as usize];
    dev.read_at(0, &mut all, BioFlags::empty()).expect("read");
    let mut places = all.windows(bytes.len()).enumerate().filter(|(_, w)| *w == bytes).map(|(at, _)| at as u64);
    let place = places.next().expect("there");
    assert_eq!(places.next(), None, "one place");
    place
}

fn poke(dev: &MemDevice, at: u64, bytes: &[u8]) {
    let (start, mut sector) = (at / 512 * 512, [0; 512]);
    dev.read_at(start, &mut sector, BioFlags::empty()).expect("read");
    sector[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    dev.write_at(start, &[&sector], BioFlags::empty()).expect("written");
}

/// No read or change goes beyond the bytes that the inode stores.
#[test]
fn content_longer_than_its_room_is_an_error() {
    let args = ["-t", "ext4", "-O", "inline_data,^metadata_csum,^has_journal", "-b", "1024", "-I", "256"];
    let dev = image(&args);
    let options =
        MountOptions { threads: false, borrow_journal: crate::BorrowJournal::Never, ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options.clone()).expect("mounted");
    let (f, d) = (file(&fs, "f"), dir(&fs, "d"));
    put(&fs, &f, 0, &pattern(90));
    for i in 0..5 {
        fs.link(&f, &d, format!("name {i}").as_bytes()).expect("link");
    }
    drop((f, d));
    fs.unmount().expect("unmount");
    let value = find(&dev, &pattern(90)[60..]);
    // The attribute's entry: the first 128 bytes of the inode are followed by 32 more, the magic number, and the
    // entry's head.
    let inode = value / 256 * 256;
    let head = inode + 128 + 32 + 4;
    let mut entry = [0; 20];
    dev.read_at(head, &mut entry, BioFlags::empty()).expect("read");
    assert_eq!((&entry[16..], entry[8]), (&b"data"[..], 30));

    // The attribute's value would extend past the end of the inode.
    let long = Arc::new(dev.snapshot());
    poke(&long, head + 8, &200u32.to_le_bytes());
    let fs = Filesystem::mount(long, options.clone()).expect("mounted");
    let f = reopened(&fs, "f");
    let mut buf = [0; 90];
    for r in [
        fs.read(&f, 0, &mut buf).map(drop),
        fs.write(&f, 0, b"x", WriteFlags::default()).map(drop),
        fs.setattr(&f, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop),
        fs.fallocate(&f, FallocateMode::PunchHole, 0, 10),
    ] {
        assert!(r.as_ref().is_err_and(Error::is_corruption), "{r:?}");
    }
    drop(f);

    // The attribute is gone, but the size still includes it.
    let bare = Arc::new(dev.snapshot());
    poke(&bare, head - 4, &[0; 4]);
    let fs = Filesystem::mount(bare, options.clone()).expect("mounted");
    let f = reopened(&fs, "f");
    let (read, written) = (fs.read(&f, 0, &mut buf), fs.write(&f, 0, b"x", WriteFlags::default()));
    assert!(read.is_err_and(|e| e.is_corruption()) && written.is_err_and(|e| e.is_corruption()));
    drop(f);

    // The directory claims a larger size than it stores, or has names that cross its end.
    let sized = Arc::new(edited(&dev, &["sif d size 200"]));
    let fs = Filesystem::mount(sized, options.clone()).expect("mounted");
    let d = reopened(&fs, "d");
    let f = reopened(&fs, "f");
    let r = fs.link(&f, &d, b"new");
    assert!(r.as_ref().is_err_and(Error::is_corruption), "{r:?}");
    assert!(fs.unlink(&d, b"name 1").is_err_and(|e| e.is_corruption()) && f.links() == 6);
    drop((d, f));
    let crossing = Arc::new(dev.snapshot());
    let last = find(&crossing, b"name 4") - 4;
    poke(&crossing, last, &200u16.to_le_bytes());
    let fs = Filesystem::mount(crossing, options).expect("mounted");
    let (d, f) = (reopened(&fs, "d"), reopened(&fs, "f"));
    let r = fs.link(&f, &d, b"a name that is longer");
    assert!(r.as_ref().is_err_and(Error::is_corruption), "{r:?}");
    assert!(fs.read_dir(&d, 0, |_| true).is_err_and(|e| e.is_corruption()));
}

/// E2fsck and debugfs agree with the mount about where the content is.
#[test]
fn flags_say_where_the_content_is() {
    let dev = image(KINDS[0]);
    let fs = mount(&dev);
    let (f, g) = (file(&fs, "f"), file(&fs, "g"));
    put(&fs, &f, 0, &pattern(10));
    put(&fs, &f, 10, &pattern(1000));
    put(&fs, &g, 0, &pattern(10));
    let flags = |inode: &InodeRef| InodeFlags::from_bits_retain(fs.getattr(inode).flags);
    assert!(flags(&f).contains(InodeFlags::EXTENTS) && !flags(&f).contains(InodeFlags::INLINE_DATA));
    drop((f, g));
    fs.unmount().expect("unmount");
    assert!(debugfs(&dev, "stat f").contains("EXTENTS") && debugfs(&dev, "stat g").contains("0x10000000"));
    assert!(!debugfs(&dev, "stat f").contains("system.data"));
}
