//! Crafted images with values of attributes in inodes of their own: each operation succeeds or fails with EUCLEAN, no
//! other value is lost, and no block is given to two inodes.

use extant_oracle::memory as tools;

use std::sync::Arc;

use crate::damaged::{block, edit_inode, made, mount, put, super_of};
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, InodeRef, NewNode, SetMode};
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::time::Timestamp;
use extant_ondisk::xattr::seal_block;
use extant_ondisk::{BlockNr, InodeNr};

const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-O", "ea_inode", "-b", "1024"],
    &["-t", "ext4", "-O", "ea_inode,^metadata_csum,inline_data", "-b", "4096"],
    &["-t", "ext3", "-O", "ea_inode", "-b", "2048", "-I", "128"],
];

fn value(fill: u8) -> Vec<u8> {
    (0..9000u32).map(|i| (i as u8).wrapping_mul(31) ^ fill).collect()
}

fn set(fs: &Filesystem, f: &InodeRef, name: &[u8], value: &[u8]) {
    fs.set_xattr(f, name, value, SetMode::Any).expect("set");
}

/// An image in which `a` and `b` share a value, and `other` has one of its own; and the inode of the shared one.
fn image(kind: &[&str]) -> (Arc<MemDevice>, InodeNr) {
    let mut shared = InodeNr(0);
    let dev = made(kind, |fs, root| {
        for name in [b"a", b"b"] {
            let f = fs.create(root, name, NewNode::file(0o644), Cred::default()).expect("create");
            set(fs, &f, b"user.large", &value(1));
            set(fs, &f, b"user.small", b"small");
        }
        let other = fs.create(root, b"other", NewNode::file(0o644), Cred::default()).expect("create");
        set(fs, &other, b"user.large", &value(2));
    });
    let (fs, root) = mount(&dev);
    for ino in (11..60).map(InodeNr) {
        let flags = fs.iget_by_number(ino).map_or(0, |inode| fs.getattr(&inode).flags);
        if shared.0 == 0 && flags & InodeFlags::EA_INODE.bits() != 0 {
            shared = ino;
        }
    }
    drop(root);
    fs.unmount().expect("unmount");
    assert_ne!(shared.0, 0, "no value has an inode");
    (dev, shared)
}

fn edit(dev: &MemDevice, ino: InodeNr, change: impl FnOnce(&mut InodeDesc)) {
    let sb = super_of(dev);
    edit_inode(dev, ino, |slot| {
        let mut desc = InodeDesc::parse(slot, ino, sb.geometry()).expect("inode");
        change(&mut desc);
        desc.encode_into(slot, ino, sb.geometry()).expect("encoded");
    });
}

/// Replaces the number of the value's inode in the attributes of `/a`, in its inode or block.
fn point(dev: &MemDevice, from: InodeNr, to: InodeNr, owner: InodeNr) {
    let sb = super_of(dev);
    let replace = |bytes: &mut [u8]| {
        let at = (0..bytes.len() - 4).step_by(4).find(|at| bytes[*at..at + 4] == from.0.to_le_bytes());
        at.map(|at| bytes[at..at + 4].copy_from_slice(&to.0.to_le_bytes())).is_some()
    };
    let (mut found, mut attributes) = (false, BlockNr(0));
    edit_inode(dev, owner, |slot| {
        attributes = InodeDesc::parse(slot, owner, sb.geometry()).expect("inode").file_acl;
        found = slot.len() > 160 && replace(&mut slot[156..]);
    });
    if !found {
        let mut bytes = block(dev, sb.geometry(), attributes);
        assert!(replace(&mut bytes[32..]), "no entry names {from}");
        seal_block(&mut bytes, attributes, sb.geometry().metadata_csum.then(|| sb.geometry().seed.raw()));
        put(dev, attributes, &bytes);
    }
}

/// A refusal is damage, never anything else.
fn refused<T>(what: &str, r: Result<T, Error>) -> Option<T> {
    match r {
        Ok(done) => Some(done),
        Err(e) => {
            assert!(matches!(e, Error::Corrupt { .. } | Error::NoAttribute | Error::Lost { .. }), "{what}: {e:?}");
            None
        }
    }
}

/// Uses the image in every way that meets its values. `readable`: whether the damage must show when one is read.
fn exercise(what: &str, dev: &Arc<MemDevice>, readable: bool) {
    let (fs, root) = mount(dev);
    let of = |name: &[u8]| fs.lookup(&root, name).expect("there");
    let got = refused(what, fs.get_xattr(&of(b"a"), b"user.large"));
    assert_eq!(got.is_some(), readable, "{what}: reading");
    assert!(got.is_none_or(|bytes| bytes == value(1)), "{what}: another value");
    refused(what, fs.list_xattrs(&of(b"a")));
    refused(what, fs.set_xattr(&of(b"a"), b"user.more", &value(3), SetMode::Any));
    refused(what, fs.set_xattr(&of(b"a"), b"user.large", &value(4), SetMode::Any));
    refused(what, fs.set_xattr(&of(b"a"), b"user.large", &value(1), SetMode::Any));
    refused(what, fs.remove_xattr(&of(b"b"), b"user.large"));
    refused(what, fs.remove_xattr(&of(b"b"), b"user.small"));
    let new = fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create");
    refused(what, fs.set_xattr(&new, b"user.large", &value(1), SetMode::Any));
    drop(new);
    for name in [&b"a"[..], b"b"] {
        fs.unlink(&root, name).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    fs.step();
    assert!(!fs.is_read_only(), "{what}: the mount goes on");
    assert!(fs.get_xattr(&of(b"other"), b"user.large").expect("sound") == value(2), "{what}");
    drop(root);
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    let (_, said) = tools::e2fsck(dev, &["-fn"]);
    assert!(!said.contains("Multiply-claimed"), "{what}: freed what is in use: {said}");
    let (fs, root) = mount(dev);
    let other = fs.lookup(&root, b"other").expect("there");
    assert!(fs.get_xattr(&other, b"user.large").expect("kept") == value(2), "{what}: {said}");
    drop((other, root));
    fs.unmount().expect("unmount");
}

type Damage = (&'static str, bool, fn(&mut InodeDesc));

const DAMAGE: [Damage; 15] = [
    ("without the flag", false, |d| d.flags.remove(InodeFlags::EA_INODE)),
    ("a directory", false, |d| d.mode = 0o040755),
    ("a device", false, |d| d.mode = 0o020600),
    ("no references", true, |d| d.set_value_references(0)),
    ("a reference too few", true, |d| d.set_value_references(1)),
    ("references too many", true, |d| d.set_value_references(7)),
    ("endless references", true, |d| d.set_value_references(u64::MAX)),
    ("another hash", false, |d| d.set_value_hash(!d.value_hash())),
    ("too short", false, |d| d.size -= 1),
    ("empty", false, |d| d.size = 0),
    ("endless", false, |d| d.size = 1 << 36),
    ("no link", false, |d| d.links = 0),
    ("attributes of its own", false, |d| d.file_acl = BlockNr(3000)),
    ("content in the inode", false, |d| {
        d.flags.insert(InodeFlags::INLINE_DATA);
        d.flags.remove(InodeFlags::EXTENTS);
    }),
    ("a map of zeros", false, |d| d.i_block = [0; 60]),
];

#[test]
fn damaged_inodes_of_values_cost_their_value_only() {
    for kind in KINDS {
        let (dev, ino) = image(kind);
        for (what, readable, damage) in DAMAGE {
            let dev = Arc::new(dev.snapshot());
            edit(&dev, ino, damage);
            exercise(&format!("{kind:?}: {what}"), &dev, readable);
        }
    }
}

#[test]
fn entries_that_name_wrong_inodes_cost_their_attribute_only() {
    for kind in KINDS {
        let (dev, ino) = image(kind);
        let (fs, root) = mount(&dev);
        let [a, b, other] = [&b"a"[..], b"b", b"other"].map(|name| fs.lookup(&root, name).expect("there").ino);
        drop(root);
        fs.unmount().expect("unmount");
        for to in [a, b, other, InodeNr(2), InodeNr(7), InodeNr(8), InodeNr(900), InodeNr(u32::MAX)] {
            let dev = Arc::new(dev.snapshot());
            point(&dev, ino, to, a);
            exercise(&format!("{kind:?}: a value in {to}, of {a}"), &dev, false);
        }
    }
}

/// A name that leads to a value's inode is refused, and does not free it.
#[test]
fn a_name_of_a_value_is_refused() {
    for kind in KINDS {
        let (dev, ino) = image(kind);
        let dev = Arc::new(tools::edited(&dev, &[&format!("ln <{}> /named", ino.0)]));
        let (fs, root) = mount(&dev);
        for _ in 0..2 {
            assert!(matches!(fs.lookup(&root, b"named"), Err(Error::Corrupt { .. })), "{kind:?}");
            assert!(fs.unlink(&root, b"named").is_err(), "{kind:?}");
            let a = fs.lookup(&root, b"a").expect("there");
            assert!(fs.get_xattr(&a, b"user.large").expect("read") == value(1), "{kind:?}");
        }
        drop(root);
        fs.unmount().expect("unmount");
    }
}

/// Lustre's values have neither count nor hash: they are read, and go with the attribute.
#[test]
fn a_value_of_lustre_is_read_and_freed() {
    for kind in KINDS {
        let (dev, ino) = image(kind);
        let (fs, root) = mount(&dev);
        let a = fs.lookup(&root, b"a").expect("there");
        let (owner, generation) = (a.ino, a.generation);
        fs.unlink(&root, b"b").expect("unlink");
        drop((a, root));
        fs.unmount().expect("unmount");
        edit(&dev, ino, |d| {
            (d.mtime, d.generation) = (Timestamp::from_seconds(i64::from(owner.0)), generation);
            (d.atime, d.ctime) = (Timestamp::from_seconds(1000), Timestamp::from_seconds(1000));
        });
        // Its map has checksums of the generation only where it has blocks of its own.
        let (fs, root) = mount(&dev);
        let a = fs.lookup(&root, b"a").expect("there");
        assert!(fs.get_xattr(&a, b"user.large").expect("read") == value(1), "{kind:?}");
        let free = fs.statfs().inodes_free;
        fs.remove_xattr(&a, b"user.large").expect("removed");
        fs.step();
        fs.sync().expect("sync");
        assert_eq!(fs.statfs().inodes_free, free + 1, "{kind:?}");
        drop((a, root));
        fs.unmount().expect("unmount");
    }
}
