//! renameat2(2) with its flags, checked by e2fsck and debugfs.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::{sim, task};
use extant_block::device::MemDevice;
use extant_fs::{
    Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, OnError, RenameFlags, WriteFlags,
};
use extant_ondisk::inode::{DeviceNr, FileType};

struct Bench {
    dev: Arc<MemDevice>,
    fs: Mounted,
}

fn mounted(args: &[&str]) -> Bench {
    mounted_on(tools::made(args, "16M"))
}

fn mounted_on(image: MemDevice) -> Bench {
    let dev = Arc::new(image);
    let errors = Some(OnError::RemountReadOnly);
    let options = MountOptions { threads: false, seed: Some(1), errors, ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    Bench { dev, fs }
}

fn mkdir(fs: &Filesystem, dir: &InodeRef, name: &str) -> InodeRef {
    fs.create(dir, name.as_bytes(), NewNode::directory(0o755), Cred::default()).expect("mkdir")
}

/// Runs `act` in the schedule of that seed.
fn in_schedule<T: Send + 'static>(seed: u64, act: impl FnOnce() -> T + Send + 'static) -> T {
    let outcome = sim::run(&sim::Options::new(seed), act);
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

impl Bench {
    /// Unmounts, checks with e2fsck, and returns the answer of debugfs.
    fn finish(self, request: &str) -> String {
        self.fs.unmount().expect("unmount");
        tools::assert_clean(&self.dev);
        tools::debugfs(&self.dev, request)
    }
}

fn whiteout(cred: Cred) -> RenameFlags {
    RenameFlags { whiteout: Some(cred), ..RenameFlags::default() }
}

fn assert_whiteout(fs: &Filesystem, dir: &InodeRef, name: &[u8]) {
    let left = fs.lookup(dir, name).expect("a whiteout");
    let attr = fs.getattr(&left);
    assert_eq!(left.file_type(), Some(FileType::CharDevice));
    assert_eq!((attr.rdev, attr.mode & 0o7777), (Some(DeviceNr { major: 0, minor: 0 }), 0));
    assert_eq!((attr.uid, attr.gid, attr.nlink, attr.size), (7, 8, 1, 0));
}

#[test]
fn a_rename_leaves_a_whiteout() {
    for args in [&["-t", "ext4"][..], &["-t", "ext4", "-b", "1024"], &["-t", "ext2", "-O", "^dir_index"]] {
        let b = mounted(args);
        let cred = Cred { uid: 7, gid: 8, umask: 0 };
        let root = b.fs.root().expect("root");
        let d = b.fs.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
        let f = b.fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        b.fs.write(&f, 0, b"content", WriteFlags::default()).expect("write");
        // Within a directory, into another, over an existing file, and of a directory.
        b.fs.rename(&root, b"f", &root, b"g", whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &root, b"f");
        b.fs.rename(&root, b"g", &d, b"h", whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &root, b"g");
        b.fs.create(&root, b"victim", NewNode::file(0o644), Cred::default()).expect("create");
        b.fs.rename(&d, b"h", &root, b"victim", whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &d, b"h");
        assert_eq!(b.fs.lookup(&root, b"victim").expect("there").ino, f.ino);
        b.fs.create(&root, b"moves", NewNode::directory(0o755), Cred::default()).expect("mkdir");
        let links = b.fs.getattr(&root).nlink;
        b.fs.rename(&root, b"moves", &d, b"moved", whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &root, b"moves");
        assert_eq!((b.fs.getattr(&root).nlink, b.fs.getattr(&d).nlink), (links - 1, 3));
        // A whiteout over a whiteout, as an overlay's second deletion does.
        b.fs.rename(&root, b"f", &root, b"g", whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &root, b"f");
        assert_whiteout(&b.fs, &root, b"g");
        // With NOREPLACE, and never with EXCHANGE.
        let careful = RenameFlags { no_replace: true, ..whiteout(cred) };
        assert!(matches!(b.fs.rename(&root, b"victim", &root, b"f", careful), Err(Error::Exists)));
        let both = RenameFlags { exchange: true, ..whiteout(cred) };
        assert!(matches!(b.fs.rename(&root, b"victim", &root, b"f", both), Err(Error::Invalid(_))));
        assert!(matches!(b.fs.rename(&root, b"nothing", &root, b"x", whiteout(cred)), Err(Error::NotFound)));
        // Two names of one file: nothing happens.
        b.fs.link(&f, &root, b"second").expect("link");
        b.fs.rename(&root, b"victim", &root, b"second", whiteout(cred)).expect("nothing to do");
        assert_eq!(b.fs.lookup(&root, b"victim").expect("there").ino, f.ino);
        drop((root, d, f));
        let said = b.finish("stat /f");
        assert!(said.contains("Type: character special"), "{said}");
        assert!(said.contains("Device major/minor number: 00:00"), "{said}");
    }
}

/// The old name may be in a directory that becomes a tree, or splits, while the new name is added.
#[test]
fn renames_leave_whiteouts_in_growing_directories() {
    let b = mounted(&["-t", "ext4", "-b", "1024", "-N", "3000"]);
    let root = b.fs.root().expect("root");
    let cred = Cred { uid: 7, gid: 8, umask: 0 };
    for i in 0..200 {
        b.fs.create(&root, format!("f{i}").as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
    }
    for i in 0..200 {
        let (old, new) = (format!("f{i}"), format!("a much longer name, so that the directory must grow {i:0100}"));
        b.fs.rename(&root, old.as_bytes(), &root, new.as_bytes(), whiteout(cred)).expect("rename");
        assert_whiteout(&b.fs, &root, old.as_bytes());
        assert!(b.fs.lookup(&root, new.as_bytes()).is_ok());
    }
    drop(root);
    b.finish("ls -l");
}

#[test]
fn a_whiteout_rename_without_a_free_inode_changes_nothing() {
    let b = mounted(&["-t", "ext4", "-N", "32"]);
    let root = b.fs.root().expect("root");
    let mut n = 0;
    while b.fs.create(&root, format!("f{n}").as_bytes(), NewNode::file(0o644), Cred::default()).is_ok() {
        n += 1;
    }
    let refused = b.fs.rename(&root, b"f0", &root, b"g", whiteout(Cred::default()));
    assert!(matches!(refused, Err(Error::NoInodes)), "{refused:?}");
    assert!(b.fs.lookup(&root, b"f0").is_ok() && b.fs.lookup(&root, b"g").is_err());
    drop(root);
    b.finish("ls -l");
}

/// The target contains the source. No order of locks suits that, and none is needed.
#[test]
fn a_rename_over_its_own_ancestor_races_with_a_removal_below_it() {
    let image = tools::made(&["-t", "ext4"], "16M");
    for seed in 0..40 {
        let image = image.snapshot();
        in_schedule(seed, move || {
            let b = mounted_on(image);
            let root = b.fs.root().expect("root");
            let t = mkdir(&b.fs, &root, "t");
            let a = mkdir(&b.fs, &t, "a");
            for file in [false, true] {
                if file {
                    b.fs.rmdir(&a, b"s").expect("rmdir");
                    b.fs.create(&a, b"s", NewNode::file(0o644), Cred::default()).expect("create");
                } else {
                    mkdir(&b.fs, &a, "s");
                }
                let removes = {
                    let (fs, t) = (Arc::clone(&b.fs), t.clone());
                    task::spawn("rmdir", move || fs.rmdir(&t, b"a")).expect("thread")
                };
                let renamed = b.fs.rename(&a, b"s", &root, b"t", RenameFlags::default());
                assert!(matches!(renamed, Err(Error::NotEmpty)), "{renamed:?}");
                assert!(matches!(removes.join().expect("joined"), Err(Error::NotEmpty)));
            }
            drop((root, t, a));
            b.fs.unmount().expect("unmount");
        });
    }
}

/// A removed directory that is still open: the inode in its `..` is gone, too, or belongs to another file by now.
#[test]
fn a_removed_directory_has_no_place_in_the_tree() {
    for reused in [false, true] {
        let b = mounted(&["-t", "ext4"]);
        let root = b.fs.root().expect("root");
        let p = mkdir(&b.fs, &root, "p");
        let d = mkdir(&b.fs, &p, "d");
        b.fs.rmdir(&p, b"d").expect("rmdir");
        let number = p.ino;
        drop(p);
        b.fs.rmdir(&root, b"p").expect("rmdir");
        b.fs.serving().reap();
        if reused {
            let other = b.fs.create(&root, b"other", NewNode::file(0o644), Cred::default()).expect("create");
            assert_eq!(other.ino, number);
        }
        let plain = RenameFlags::default();
        assert!(matches!(b.fs.rename(&d, b"x", &root, b"y", plain), Err(Error::NotFound)));
        assert!(matches!(b.fs.rename(&root, b"x", &d, b"y", plain), Err(Error::NotFound)));
        assert!(matches!(b.fs.parent(&d), Err(Error::NotFound)));
        assert_eq!(b.fs.stats.errors.get(), 0, "the image is not damaged");
        assert!(!b.fs.is_read_only());
        drop((root, d));
        b.finish("ls");
    }
}

/// A file without a name gets two names at once, and one of them finds no space.
#[test]
fn a_first_name_that_finds_no_space_does_not_remove_the_second() {
    let image = tools::made(&["-t", "ext4", "-b", "1024", "-m", "0"], "2M");
    for seed in 0..40 {
        let image = image.snapshot();
        in_schedule(seed, move || {
            let b = mounted_on(image);
            let root = b.fs.root().expect("root");
            let (full, roomy) = (mkdir(&b.fs, &root, "full"), mkdir(&b.fs, &root, "roomy"));
            let file = b.fs.create(&root, b"file", NewNode::file(0o644), Cred::default()).expect("create");
            let long = |i: usize| format!("{i:0>100}").into_bytes();
            for i in 0..9 {
                b.fs.link(&file, &full, &long(i)).expect("link");
            }
            let tmp = b.fs.tmpfile(&root, 0o644, Cred::default()).expect("tmpfile");
            for blocks in [64, 8, 1] {
                let more = || {
                    let at = b.fs.getattr(&file).size;
                    b.fs.fallocate(&file, FallocateMode::Allocate { keep_size: false }, at, blocks * 1024)
                };
                while more().is_ok() {}
            }
            let other = {
                let (fs, tmp, roomy) = (Arc::clone(&b.fs), tmp.clone(), roomy.clone());
                task::spawn("link", move || fs.link(&tmp, &roomy, b"x")).expect("thread")
            };
            let own = b.fs.link(&tmp, &full, &long(9));
            assert!(own.as_ref().is_err_and(Error::is_no_space), "{own:?}");
            other.join().expect("joined").expect("room for a short name");
            assert_eq!(b.fs.getattr(&tmp).nlink, 1);
            assert_eq!(b.fs.statistics().inodes().1, 0, "it has a name");
            drop((root, full, roomy, file, tmp));
            b.finish("ls");
        });
    }
}
