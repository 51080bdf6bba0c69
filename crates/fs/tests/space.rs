//! A disk that is nearly full: who may have the last blocks, and what comes of what does not fit.

use std::process::Command;
use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_fs::{Caller, Cred, Error, Filesystem, InodeRef, MountOptions, NewNode, WriteFlags};

const USER: Caller = Caller { uid: 1000, gid: 100 };

struct Bench {
    dir: tempfile::TempDir,
    dev: Arc<MemDevice>,
    fs: Arc<Filesystem>,
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mounted(args: &[&str], size: &str, options: MountOptions) -> Bench {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    let out = Command::new("mke2fs").args(["-q", "-F"]).args(args).arg(&path).arg(size).output().expect("mke2fs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    Bench { dir, dev, fs }
}

impl Bench {
    fn file(&self, name: &[u8]) -> InodeRef {
        let root = self.fs.root().expect("root");
        self.fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("create")
    }

    /// Unmounts, has e2fsck look, and mounts again.
    fn remount(&mut self, options: MountOptions) {
        self.fs.unmount().expect("unmount");
        self.check();
        self.fs = Filesystem::mount(self.dev.clone(), options).expect("mounted again");
    }

    fn check(&self) {
        let path = self.dir.path().join("after.img");
        self.dev.save(&path).expect("saved");
        let out = Command::new("e2fsck").args(["-fn"]).arg(&path).output().expect("e2fsck");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }

    fn finish(self) {
        self.fs.unmount().expect("unmount");
        self.check();
    }
}

/// Appends to `f` until there is no space; returns how much it took.
fn fill(fs: &Filesystem, f: &InodeRef) -> u64 {
    let start = fs.getattr(f).size;
    let mut at = start;
    loop {
        match fs.write(f, at, &[0x5A; 64 << 10], WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(Error::NoSpace) => return at - start,
            Err(e) => panic!("at {at}: {e}"),
        }
    }
}

#[test]
fn ordinary_users_leave_the_reserve_alone() {
    for through in [None, Some(4096)] {
        let mut b = mounted(
            &["-t", "ext4", "-b", "4096", "-m", "10"],
            "64M",
            MountOptions { write_through_bytes: through, ..options() },
        );
        let reserve = b.fs.superblock().reserved_blocks();
        assert!(reserve > 1000);
        let (f, g) = (b.file(b"f"), b.file(b"g"));
        let before = b.fs.statfs();
        assert!(before.blocks_free - before.blocks_available >= reserve);
        USER.run(|| fill(&b.fs, &f));
        let full = b.fs.statfs();
        assert!(full.blocks_free >= reserve, "{through:?}: {} are left of {reserve}", full.blocks_free);
        assert!(full.blocks_available < 16, "one write of 64 KiB may not fit");
        // Nor may directories, symbolic links or attributes eat it.
        let root = b.fs.root().expect("root");
        let cred = Cred::default();
        USER.run(|| {
            let dir = b.fs.create(&root, b"d", NewNode::directory(0o755), cred);
            assert!(matches!(dir, Err(Error::NoSpace)), "{dir:?}");
            let link = b.fs.create(&root, b"l", NewNode::symlink(&[b'x'; 200]), cred);
            assert!(matches!(link, Err(Error::NoSpace)), "{link:?}");
            let attr = b.fs.set_xattr(&g, b"user.large", &[7; 3000], extant_fs::SetMode::Any);
            assert!(matches!(attr, Err(Error::NoSpace)), "{attr:?}");
            let space = b.fs.fallocate(&g, extant_fs::FallocateMode::Allocate { keep_size: false }, 0, 1 << 20);
            assert!(matches!(space, Err(Error::NoSpace)), "{space:?}");
            // What needs no block goes on, and what was promised is kept.
            b.fs.create(&root, b"empty", NewNode::file(0o644), cred).expect("an inode is no block");
            b.fs.write(&f, 0, &[1; 4096], WriteFlags::default()).expect("an overwrite");
            b.fs.fsync(&f, false).expect("accepted writes reach the disk");
        });
        b.fs.sync().expect("accepted writes reach the disk");
        // Root may have it.
        let more = fill(&b.fs, &g);
        assert!(more >= (reserve - 64) * 4096, "{through:?}: {more} bytes of {reserve} blocks");
        let sizes = [&f, &g].map(|f| b.fs.getattr(f).size);
        drop((f, g, root));
        b.remount(options());
        for (name, size) in [("f", sizes[0]), ("g", sizes[1])] {
            let f = b.fs.walk(name.as_bytes(), true).expect("there");
            assert_eq!(b.fs.getattr(&f).size, size);
            let mut tail = vec![0; 4096];
            b.fs.read(&f, size - 4096, &mut tail).expect("read");
            assert!(tail.iter().all(|b| *b == 0x5A), "{through:?}: {name}");
        }
        b.finish();
    }
}

#[test]
fn the_reserve_is_open_to_whom_the_image_or_the_mount_names() {
    let may = |options: MountOptions, who: Caller| {
        let b = mounted(&["-t", "ext4", "-m", "10"], "32M", options);
        let reserve = b.fs.superblock().reserved_blocks();
        let f = b.file(b"f");
        who.run(|| fill(&b.fs, &f));
        let may = b.fs.statfs().blocks_free < reserve;
        drop(f);
        b.finish();
        may
    };
    let group = |gid| Caller { gid, ..USER };
    assert!(may(options(), Caller::ROOT));
    assert!(!may(options(), USER));
    assert!(!may(options(), group(0)), "the reserve's group is 0 by default, and means nobody");
    let by = |resuid, resgid| MountOptions { resuid, resgid, ..options() };
    assert!(may(by(Some(1000), None), USER));
    assert!(may(by(None, Some(100)), USER));
    assert!(!may(by(Some(999), Some(99)), USER));
}

#[test]
fn the_reserves_owner_is_read_from_the_image() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    let run = |tool: &str, args: &[&str]| {
        let out = Command::new(tool).args(args).output().expect(tool);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    let image = path.to_str().expect("utf-8");
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-m", "10", image, "32M"]);
    run("tune2fs", &["-u", "1000", "-g", "77", image]);
    for (who, options, may) in [
        (USER, options(), true),
        (Caller { uid: 5, gid: 77 }, options(), true),
        (Caller { uid: 5, gid: 78 }, options(), false),
        (USER, MountOptions { resuid: Some(5), ..options() }, false),
    ] {
        let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
        let fs = Filesystem::mount(dev, options).expect("mounted");
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        who.run(|| fill(&fs, &f));
        assert_eq!(fs.statfs().blocks_free < fs.superblock().reserved_blocks(), may, "{who:?}");
        drop((f, root));
        fs.unmount().expect("unmount");
    }
}
