//! Damage costs the smallest thing: a directory with a wrong size its wrong size, a file with damaged attributes these,
//! a map with one bad pointer one block. Ordinary mounts say so at the end, and a rescue has the rest.

use extant_oracle::memory as tools;

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_fs::{
    Cred, Damage, Error, Filesystem, InodeRef, MountOptions, Mounted, NewNode, OnError, SetMode, WriteFlags,
};
use extant_testkit::damage::edit::set_word;
use extant_testkit::damage::{Edit, Image};

const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-b", "4096", "-O", "^dir_index"],
    &["-t", "ext2", "-b", "1024"],
];
const NAMES: usize = 260;

fn options(read_only: bool, rescue: bool) -> MountOptions {
    let errors = Some(OnError::Continue);
    MountOptions { threads: false, seed: Some(1), read_only, rescue, errors, ..MountOptions::default() }
}

fn mount(dev: &MemDevice, rescue: bool) -> Mounted {
    Filesystem::mount(Arc::new(dev.snapshot()), options(true, rescue)).unwrap_or_else(|e| panic!("{e}"))
}

/// A directory of [`NAMES`] names, `d`, and in it a directory without any, `none`.
fn filled(kind: &[&str]) -> MemDevice {
    let dev = Arc::new(tools::made(kind, "16M"));
    let fs = Filesystem::mount(dev.clone(), options(false, false)).expect("mounted");
    let d = fs.create(&fs.root().expect("root"), b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
    for i in 1..NAMES {
        fs.create(&d, name(i).as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
    }
    fs.create(&d, b"none", NewNode::directory(0o755), Cred::default()).expect("mkdir");
    drop(d);
    fs.unmount().expect("unmounted");
    dev.snapshot()
}

fn name(i: usize) -> String {
    format!("{i}-of-a-long-name-in-a-directory")
}

/// All names of a directory, in calls of a few, and the error at the end.
fn listed(fs: &Filesystem, dir: &InodeRef) -> (BTreeSet<Vec<u8>>, Option<Error>) {
    let (mut names, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let mut given = 0;
        let next = fs.read_dir(dir, cookie, |item| {
            names.insert(item.name.to_vec());
            given += 1;
            cookie = item.next_cookie;
            given < 50
        });
        match next {
            Err(e) => return (names, Some(e)),
            Ok(_) if given == 0 => return (names, None),
            Ok(next) => cookie = next.max(cookie),
        }
    }
}

fn is_damage<T>(r: &Result<T, Error>) -> bool {
    matches!(r, Err(Error::Corrupt { .. }))
}

#[test]
fn a_directory_with_a_wrong_size_is_listed_before_its_error() {
    for kind in KINDS {
        let image = filled(kind);
        let fs = mount(&image, false);
        let size = fs.getattr(&fs.walk(b"/d", false).expect("d")).size;
        let block = u64::from(fs.block_size());
        drop(fs);
        for wrong in [size - 1, size + 1, size - block + 1, block - 1, 1, 0, size - block, 3 * size] {
            let what = format!("{kind:?}, {wrong} of {size} bytes");
            let dev = tools::edited(&image, &[&format!("sif /d size {wrong}")]);
            // As many blocks as there are bytes of, as the kernel; all of them, where the index leads to them.
            let fs = mount(&dev, false);
            let d = fs.walk(b"/d", false).expect("d");
            let (names, error) = listed(&fs, &d);
            let whole = wrong % block == 0 && wrong > 0;
            assert!(error.is_some() || whole, "{what}: no error after {} names", names.len());
            if wrong > size - block {
                assert_eq!(names.len(), NAMES + 2, "{what}");
            }
            let known = name(1);
            if names.contains(known.as_bytes()) {
                assert!(fs.lookup(&d, known.as_bytes()).is_ok(), "{what}");
            }
            assert!(whole || is_damage(&fs.lookup(&d, b"missing")), "{what}: a missing name proves nothing");
            drop(d);
            let fs = mount(&dev, true);
            let d = fs.walk(b"/d", false).expect("d");
            let (names, error) = listed(&fs, &d);
            assert_eq!(names.len(), NAMES + 2, "{what}: under rescue");
            assert!(error.is_some(), "{what}: under rescue");
            (1..NAMES).for_each(|i| assert!(fs.lookup(&d, name(i).as_bytes()).is_ok(), "{what}: {}", name(i)));
        }
    }
}

/// Nothing may be added where names may be hidden, and a directory without whole blocks may not be empty.
#[test]
fn a_directory_with_a_wrong_size_is_not_changed() {
    for kind in KINDS {
        let image = filled(kind);
        for path in ["/d", "/d/none"] {
            for wrong in [0, 1000, 1025] {
                let dev = Arc::new(tools::edited(&image, &[&format!("sif {path} size {wrong}")]));
                let fs = Filesystem::mount(dev, options(false, false)).expect("mounted");
                let dir = fs.walk(path.as_bytes(), false).expect("there");
                let file = fs.create(&dir, b"new", NewNode::file(0o644), Cred::default()).map(drop);
                let gone = fs.rmdir(&fs.walk(b"/d", false).expect("d"), b"none");
                let what = format!("{kind:?}, {path} of {wrong} bytes");
                assert!(is_damage(&file), "{what}: {file:?}");
                assert_eq!(is_damage(&gone), path == "/d/none" || gone.is_err(), "{what}: {gone:?}");
                assert!(path == "/d" || gone.is_err(), "{what}: a directory that may have names was removed");
            }
        }
    }
}

/// The root of an image with quotas, whose size became 220 bytes.
#[test]
fn a_short_root_is_not_an_empty_file_system() {
    let image = Image::Quota.made();
    let all = mount(image, false);
    let names = listed(&all, &all.root().expect("root")).0;
    let dev = tools::edited(image, &["sif <2> size 220"]);
    for rescue in [false, true] {
        let fs = mount(&dev, rescue);
        let (found, error) = listed(&fs, &fs.root().expect("root"));
        assert!(matches!(error, Some(Error::Corrupt { what: Damage::Inode, .. })), "{error:?}");
        assert_eq!(found, names, "rescue: {rescue}");
        assert!(fs.stats.errors.get() > 0);
    }
}

/// The kernel looks only at pointers that it follows.
#[test]
fn a_bad_pointer_behind_the_end_of_the_root_hides_no_name() {
    let image = filled(&["-t", "ext2", "-b", "1024"]);
    let dev = tools::edited(&image, &["sif <2> block[IND] 1"]);
    for rescue in [false, true] {
        let fs = mount(&dev, rescue);
        let (names, error) = listed(&fs, &fs.root().expect("root"));
        assert_eq!((names.len(), error.is_some()), (4, rescue), "{error:?}");
        assert!(fs.walk(b"/d/none", false).is_ok());
    }
}

#[test]
fn one_bad_pointer_of_a_file_costs_one_block() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("f");
    let content: Vec<u8> = (0..100 * 1024u32).map(|i| (i / 1024 + 1) as u8).collect();
    std::fs::write(&path, &content).expect("file");
    let image =
        tools::edited(&tools::made(&["-t", "ext2", "-b", "1024"], "8M"), &[&format!("write {} f", path.display())]);
    // The pointer of block 50, in the first pointer block: beyond the device, and into the inode tables.
    for block in [9_999_999, 1] {
        let mut edit = Edit::new(&image);
        edit.node("/f", 0, |bytes| set_word(bytes, 4 * (50 - 12), block));
        let dev = edit.finish();
        for rescue in [false, true] {
            let fs = mount(&dev, rescue);
            let f = fs.walk(b"/f", false).expect("f");
            let mut buf = vec![0; 1024];
            for at in 0..100 {
                let read = fs.read(&f, at * 1024, &mut buf);
                assert_eq!(is_damage(&read), at == 50, "block {at}, rescue: {rescue}: {read:?}");
                assert!(at == 50 || buf == content[at as usize * 1024..][..1024], "block {at}");
            }
        }
        // A change of the array is refused, and leaves nothing half-done.
        let fs = Filesystem::mount(Arc::new(dev), options(false, false)).expect("mounted");
        let f = fs.walk(b"/f", false).expect("f");
        let written = fs.write(&f, 200 * 1024, &[1; 1024], WriteFlags::default()).map(drop);
        assert!(is_damage(&written.and_then(|()| fs.fsync(&f, false))), "a hole in a damaged array was filled");
    }
}

/// One wrong byte in the inode, in its attributes, in their block, and a wrong number of that block.
#[test]
fn damaged_attributes_cost_no_file() {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
    let fs = Filesystem::mount(dev.clone(), options(false, false)).expect("mounted");
    let f = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.write(&f, 0, &[7; 5000], WriteFlags::default()).expect("write");
    for (name, len) in [("user.a", 8), ("user.b", 12), ("user.block", 200), ("user.other", 300)] {
        fs.set_xattr(&f, name.as_bytes(), &vec![b'v'; len], SetMode::Any).expect("set");
    }
    drop(f);
    fs.unmount().expect("unmounted");
    let image = dev.snapshot();
    let change = |f: &dyn Fn(&mut Edit), leaves_checksums: bool| {
        let mut edit = Edit::new(&image);
        if leaves_checksums {
            edit.leave_checksums();
        }
        f(&mut edit);
        edit.finish()
    };
    let cases = [
        ("a byte of the inode", change(&|e| e.inode("/f", |i| i.i_uid.set(77)), true), 4),
        (
            "the size of a value in the inode",
            change(&|e| e.inode_attributes("/f", |b| set_word(b, 12, 60_000)), false),
            3,
        ),
        ("the checksum of the block", change(&|e| e.attributes("/f", |b| b[300] ^= 1), true), 4),
        ("the size of a value in the block", change(&|e| e.attributes("/f", |b| set_word(b, 40, 60_000)), false), 3),
        ("the number of the block", change(&|e| e.inode("/f", |i| i.i_file_acl_lo.set(9_999_999)), false), 2),
        ("a block of metadata as the block", change(&|e| e.inode("/f", |i| i.i_file_acl_lo.set(2)), false), 2),
    ];
    for (what, dev, left) in cases {
        let fs = mount(&dev, true);
        let f = fs.walk(b"/f", false).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut content = vec![0; 5000];
        assert_eq!(fs.read(&f, 0, &mut content).unwrap_or_else(|e| panic!("{what}: {e}")), 5000);
        assert_eq!(content, [7; 5000], "{what}");
        let names = fs.list_xattrs(&f).unwrap_or_else(|e| panic!("{what}: {e}"));
        let values =
            names.iter().filter(|name| fs.get_xattr(&f, name).is_ok_and(|value| value.contains(&b'v'))).count();
        assert_eq!((names.len(), values), (left, left), "{what}: {names:?}");
        assert!(f.known_damage().is_some() && fs.stats.errors.get() > 0, "{what}: no word of it");
        // Without rescue, it is an error.
        let fs = mount(&dev, false);
        let names = fs.walk(b"/f", false).and_then(|f| fs.list_xattrs(&f));
        assert!(is_damage(&names), "{what}: {names:?}");
    }
}

/// The checksum of a directory's block, or of a node of a map, is all that is wrong.
#[test]
fn a_wrong_checksum_hides_nothing_under_rescue() {
    let image = Image::Ext4.made();
    let sound = mount(image, false);
    let all = |fs: &Filesystem, path: &[u8]| listed(fs, &fs.walk(path, false).expect("there")).0;
    let names = all(&sound, b"/h2");
    let mut edit = Edit::new(image);
    edit.leave_checksums();
    // Not in a name: the end of the block is free.
    edit.dir_block("/h2", 100, |bytes| bytes[1000] ^= 0x20);
    edit.node("/depth2", 0, |bytes| bytes[1010] ^= 1);
    let dev = edit.finish();
    let fs = mount(&dev, false);
    let h2 = fs.walk(b"/h2", false).expect("h2");
    let (found, error) = listed(&fs, &h2);
    assert!(found.len() < names.len() && error.is_some(), "{} names", found.len());
    let fs = mount(&dev, true);
    let h2 = fs.walk(b"/h2", false).expect("h2");
    let (found, error) = listed(&fs, &h2);
    assert_eq!((found.len(), error.is_some()), (names.len(), true));
    assert!(h2.known_damage().is_some());
    let file = fs.walk(b"/depth2", false).expect("there");
    let (mut ours, mut theirs) = (vec![0; 3_600_000], vec![0; 3_600_000]);
    let same = sound.walk(b"/depth2", false).expect("there");
    let lens = [fs.read(&file, 0, &mut ours).expect("read"), sound.read(&same, 0, &mut theirs).expect("read")];
    assert!(lens[0] == lens[1] && ours == theirs);
    assert!(file.known_damage().is_some());
}

/// A directory of which one block cannot be read: the others are listed, and the error comes last.
#[test]
fn an_unreadable_block_hides_only_its_names_under_rescue() {
    for kind in KINDS {
        let image = filled(kind);
        let fs = mount(&image, false);
        let d = fs.walk(b"/d", false).expect("d");
        let mut blocks = Vec::new();
        fs.extents(&d, |e| blocks.extend(e.physical.0..e.physical.0 + e.len)).expect("a map");
        let size = u64::from(fs.block_size());
        drop(d);
        drop(fs);
        for block in &blocks {
            let faulty = Arc::new(FaultyDevice::new(Arc::new(image.snapshot())));
            faulty.inject(Fault::eio().range(block * size..(block + 1) * size));
            let below: Arc<dyn BlockDevice> = faulty;
            let fs = Filesystem::mount(below, options(true, true)).expect("mounted");
            let (names, error) = listed(&fs, &fs.walk(b"/d", false).expect("d"));
            assert!(names.len() + 60 * size as usize / 1024 > NAMES, "{kind:?}, {block}: {} names", names.len());
            assert!(matches!(error, Some(Error::Device(_))), "{kind:?}, {block}: {error:?}");
            assert!(fs.stats.errors.get() > 0, "{kind:?}, {block}: no word of it");
            // The names are back as numbers.
            let found = fs.list(&fs.walk(b"/lost+found", false).expect("there")).expect("listed").len();
            assert!(names.len() + found >= NAMES, "{kind:?}, {block}: {} and {found}", names.len());
        }
    }
}
