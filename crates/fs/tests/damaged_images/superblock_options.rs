//! The superblock's options for every mount: `tune2fs -o` and `tune2fs -E mount_opts=`. A caller's options override
//! them.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::sync::LockClass;
use extant_base::sync::Mutex;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, Messages, MountOptions, Mounted, NewNode, SetMode};

const ACL: &[u8] = b"system.posix_acl_access";
/// Version 2, and the three entries that every file has.
const SMALL_ACL: &[u8] =
    b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x08\0\x04\0\x64\0\0\0\x10\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";

static CLASS: LockClass = LockClass::new("test messages", 999);

/// An image with this text in its superblock, which tune2fs(8) can only set to one word.
fn tuned_to(args: &[&str], text: &str) -> Arc<MemDevice> {
    Arc::new(tools::edited(&tuned(args), &[&format!("ssv mount_opts {text}")]))
}

/// An image after `tune2fs` with these arguments.
fn tuned(args: &[&str]) -> Arc<MemDevice> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    extant_oracle::mke2fs(&path, &["-t", "ext4"], "16M");
    extant_oracle::tool("tune2fs", &[args, &[extant_oracle::arg(&path)]].concat());
    Arc::new(MemDevice::load(&path).expect("loaded"))
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>, options: MountOptions) -> Mounted {
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// The groups of a new file and a new directory, made by a member of group 5 in a directory of group 100.
fn groups(fs: &Filesystem) -> [u32; 2] {
    let root = fs.root().expect("root");
    let cred = |gid| Cred { uid: 1000, gid, umask: 0o022 };
    let dir = match fs.lookup(&root, b"d") {
        Ok(dir) => dir,
        Err(_) => {
            // Sets its group, whatever the mount gave it.
            let dir = fs.create(&root, b"d", NewNode::directory(0o755), cred(100)).expect("made");
            let set = extant_fs::SetAttr { gid: Some(100), ..Default::default() };
            fs.setattr(&dir, &set).expect("changed");
            dir
        }
    };
    [NewNode::file(0o644), NewNode::directory(0o755)].map(|node| {
        let made = fs.create(&dir, b"new", node, cred(5)).expect("made");
        let gid = fs.getattr(&made).gid;
        drop(made);
        match node.mode & 0o170000 {
            0o040000 => fs.rmdir(&dir, b"new").expect("removed"),
            _ => fs.unlink(&dir, b"new").expect("removed"),
        }
        gid
    })
}

#[test]
fn a_new_file_gets_the_group_of_its_directory() {
    let bit = tuned(&["-o", "bsdgroups"]);
    let word = tuned(&["-E", "mount_opts=bsdgroups"]);
    let words = tuned_to(&["-L", "plain"], "stripe=16,acl,grpid");
    for (dev, args) in [(bit, "bit"), (word, "word"), (words, "words")] {
        let fs = mount(&dev, options());
        assert_eq!(groups(&fs), [100, 100], "{args}");
        fs.unmount().expect("unmounted");
        let fs = mount(&dev, MountOptions { group_of_directory: Some(false), ..options() });
        assert_eq!(groups(&fs), [5, 5], "{args}: the caller's options win");
        fs.unmount().expect("unmounted");
        tools::assert_clean(&dev);
    }
    let dev = tuned(&["-o", "bsdgroups", "-E", "mount_opts=nogrpid"]);
    assert_eq!(groups(&mount(&dev, options())), [5, 5], "the text wins over the bits");
    let dev = tuned(&["-L", "plain"]);
    assert_eq!(groups(&mount(&dev, options())), [5, 5]);
    assert_eq!(groups(&mount(&dev, MountOptions { group_of_directory: Some(true), ..options() })), [100, 100]);
}

#[test]
fn minixdf_counts_the_file_systems_own_blocks() {
    let dev = tuned(&["-E", "mount_opts=minixdf"]);
    let all = mount(&dev, options()).statfs();
    let less = mount(&dev, MountOptions { count_overhead: Some(false), ..options() }).statfs();
    assert_eq!(all.blocks, (16 << 20) / u64::from(all.block_size));
    assert!(less.blocks < all.blocks && less.blocks_free == all.blocks_free, "{less:?} {all:?}");
}

#[test]
fn hidden_attributes_are_retained_and_cannot_be_read_or_set() {
    let dev = tuned(&["-L", "plain"]);
    let fs = mount(&dev, options());
    let root = fs.root().expect("root");
    for (name, value) in [(ACL, SMALL_ACL), (b"user.x", b"y"), (b"trusted.x", b"y")] {
        fs.set_xattr(&root, name, value, SetMode::Any).expect("set");
    }
    drop(root);
    fs.unmount().expect("unmounted");
    drop(fs);
    let names = |fs: &Filesystem| {
        let mut names = fs.list_xattrs(&fs.root().expect("root")).expect("listed");
        names.sort();
        names
    };
    for (hidden, options) in [
        (ACL, MountOptions { acls: Some(false), ..options() }),
        (b"user.x", MountOptions { user_xattrs: Some(false), ..options() }),
    ] {
        let fs = mount(&dev, options);
        let root = fs.root().expect("root");
        assert!(!names(&fs).contains(&hidden.to_vec()) && names(&fs).len() == 2, "{:?}", names(&fs));
        for answer in [
            fs.get_xattr(&root, hidden).map(drop),
            fs.set_xattr(&root, hidden, SMALL_ACL, SetMode::Any),
            fs.remove_xattr(&root, hidden),
        ] {
            assert!(matches!(answer, Err(Error::NotSupported(_))), "{answer:?}");
        }
    }
    assert_eq!(names(&mount(&dev, options())).len(), 3);
    tools::assert_clean(&dev);
}

/// As in the kernel: an invalid text is ignored as a whole, with a message.
#[test]
fn a_bad_value_in_the_superblock_is_reported_and_its_text_ignored() {
    let dev = tuned_to(&["-o", "bsdgroups"], "nogrpid,errors=perhaps,stripe=16");
    let said = Arc::new(Mutex::new(&CLASS, Vec::new()));
    let heard = said.clone();
    let messages = Messages::new(move |line| heard.lock().push(line.to_owned()));
    let fs = mount(&dev, MountOptions { messages, ..options() });
    assert_eq!(groups(&fs), [100, 100], "the bits count");
    let said = said.lock().clone();
    assert!(said.len() == 1 && said[0].contains("'errors=perhaps'"), "{said:?}");
}
