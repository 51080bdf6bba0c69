//! Inode flags that require durability: `S` and `D` of chattr(1). One test thread, the mount's own threads,
//! production's configuration, and a power cut right after each operation.

use crate::common::*;
use extant_block::device::Catch;
use extant_fs::{
    Cred, Error, Filesystem, InodeRef, NewNode, RenameFlags, Result, SetAttr, SetFlags, SetMode, SetTime, WriteFlags,
};
use extant_ondisk::inode::InodeFlags;

fn set(scene: &Scene, inode: &extant_fs::InodeRef, flags: InodeFlags) {
    let flags = scene.getattr(inode).flags & InodeFlags::USER_VISIBLE.bits() | flags.bits();
    scene.set_flags(inode, SetFlags { flags: Some(flags), ..SetFlags::default() }).expect("chattr");
}

#[test]
fn writes_to_a_synchronous_file_are_durable() {
    for options in [production(), production_through()] {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(options.clone());
            let f = create(&scene, "f");
            scene.sync().expect("sync");
            if synchronous {
                set(&scene, &f, InodeFlags::SYNC);
            }
            put(&scene, &f, 0, b"written");
            let cut = scene.disk.after_cut();
            let there = content_of(&cut, "f").expect("there") == b"written";
            assert_eq!(there, synchronous, "{:?}", options.write_through_bytes);
        }
    }
}

#[test]
fn attributes_of_a_synchronous_file_are_durable() {
    type Give = fn(&Scene, &InodeRef) -> Result<()>;
    let given: [(&str, Give); 3] = [
        ("set", |fs, f| fs.set_xattr(f, b"user.new", b"1", SetMode::Any)),
        ("removed", |fs, f| fs.remove_xattr(f, b"user.old")),
        ("privileges", |fs, f| fs.drop_privileges(f, true)),
    ];
    for (what, give) in given {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(production());
            let f = create(&scene, "f");
            scene.set_xattr(&f, b"user.old", b"1", SetMode::Any).expect("set");
            chmod(&scene, &f, 0o4755).expect("chmod");
            if synchronous {
                set(&scene, &f, InodeFlags::SYNC);
            }
            scene.sync().expect("sync");
            let state = |fs: &Filesystem| {
                let f = fs.walk(b"f", true).expect("there");
                (fs.list_xattrs(&f).expect("names"), fs.getattr(&f).mode)
            };
            let before = state(&scene);
            give(&scene, &f).expect("given");
            let after = state(&scene);
            assert_ne!(before, after, "{what}");
            assert_eq!(state(&scene.disk.after_cut()), if synchronous { after } else { before }, "{what}");
        }
    }
}

/// The write itself reports the loss of its data, since programs that rely on the flag never call fsync.
#[test]
fn writes_to_a_synchronous_file_report_lost_data() {
    bounded(|| {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(production());
            let f = create(&scene, "f");
            scene.sync().expect("sync");
            if synchronous {
                set(&scene, &f, InodeFlags::SYNC);
            }
            scene.disk.held.catch(Catch::fail(EIO).writes().data().once());
            let written = scene.write(&f, 0, b"lost", WriteFlags::default());
            assert_eq!(written.is_err(), synchronous, "{written:?}");
            // An fsync reports it, too. Later writes are independent.
            let _ = scene.fsync(&f, false);
            assert_eq!(scene.disk.held.caught(), 1);
            put(&scene, &f, 0, b"written");
            scene.fsync(&f, false).expect("fsync");
        }
    });
}

#[test]
fn changes_in_a_synchronous_directory_are_durable() {
    bounded(|| {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(production());
            let root = scene.root().expect("root");
            let d = scene.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
            scene.sync().expect("sync");
            if synchronous {
                set(&scene, &d, InodeFlags::DIRSYNC);
            }
            let names = || {
                let cut = scene.disk.after_cut();
                let d = cut.lookup(&cut.root().expect("root"), b"d").expect("directory");
                let mut all = Vec::new();
                cut.read_dir(&d, 0, |e| {
                    all.push(String::from_utf8_lossy(e.name).into_owned());
                    true
                })
                .expect("listed");
                all.retain(|name| !name.starts_with('.'));
                all.sort();
                all.join(" ")
            };
            let mut seen = Vec::new();
            let f = scene.create(&d, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            seen.push(names());
            scene.link(&f, &d, b"g").expect("link");
            seen.push(names());
            scene.rename(&d, b"g", &d, b"h", RenameFlags::default()).expect("rename");
            seen.push(names());
            scene.unlink(&d, b"f").expect("unlink");
            seen.push(names());
            scene.rename(&d, b"h", &root, b"h", RenameFlags::default()).expect("rename");
            seen.push(names());
            let durable = if synchronous { ["f", "f g", "f h", "h", ""] } else { [""; 5] };
            assert_eq!(seen, durable);
        }
    });
}

/// Linux: `ext4_ioctl_check_immutable`.
#[test]
fn flags_of_an_immutable_inode_change_only_when_it_becomes_mutable() {
    let scene = Disk::new(64, EXT4).mount(production());
    let f = create(&scene, "f");
    let change = |flags: InodeFlags| {
        let set = SetFlags { flags: Some(flags.bits()), project: None, privileged: true };
        scene.set_flags(&f, set).map(|()| scene.getattr(&f).flags & InodeFlags::USER_MODIFIABLE.bits())
    };
    let (fixed, plain) = (InodeFlags::IMMUTABLE, scene.getattr(&f).flags & InodeFlags::USER_MODIFIABLE.bits());
    let plain = InodeFlags::from_bits_retain(plain);
    change(plain | fixed).expect("chattr +i");
    assert!(matches!(change(plain | fixed | InodeFlags::NODUMP), Err(Error::NotPermitted)));
    assert_eq!(change(plain | fixed).expect("nothing changes"), (plain | fixed).bits());
    assert_eq!(change(plain | InodeFlags::NODUMP).expect("chattr -i +d"), (plain | InodeFlags::NODUMP).bits());
    // Other flags may change in the call that makes the inode immutable.
    assert_eq!(change(plain | fixed).expect("chattr +i -d"), (plain | fixed).bits());
}

/// With the writeback cache the kernel reports the time of a write when it writes the data back. If the file has
/// become immutable meanwhile, that must succeed, or fsync(2) would fail; the write came before.
#[test]
fn cached_times_are_accepted_after_a_file_became_immutable() {
    let scene = Disk::new(64, EXT4).mount(production());
    let f = create(&scene, "f");
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::from_bits_retain(scene.getattr(&f).flags);
    let flags = Some((fixed & InodeFlags::USER_VISIBLE).bits());
    scene.set_flags(&f, SetFlags { flags, project: None, privileged: true }).expect("chattr +i");
    let then = scene.getattr(&f).ctime;
    let kept = SetAttr { mtime: Some(SetTime::At(then)), ctime: Some(then), ..SetAttr::default() };
    assert_eq!(scene.setattr(&f, &kept).expect("times").mtime, then);
    for mtime in [SetTime::Now, SetTime::At(then)] {
        let asked = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
        assert!(matches!(scene.setattr(&f, &asked), Err(Error::NotPermitted)));
    }
}

/// A refused change removes nothing.
#[test]
fn an_immutable_file_keeps_its_set_id_bits() {
    let scene = Disk::new(64, EXT4).mount(production());
    let f = create(&scene, "f");
    chmod(&scene, &f, 0o6755).expect("chmod");
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::from_bits_retain(scene.getattr(&f).flags);
    let flags = Some((fixed & InodeFlags::USER_VISIBLE).bits());
    scene.set_flags(&f, SetFlags { flags, project: None, privileged: true }).expect("chattr +i");
    assert!(matches!(scene.drop_privileges(&f, false), Err(Error::NotPermitted)));
    assert_eq!(scene.getattr(&f).mode & 0o7777, 0o6755);
}
