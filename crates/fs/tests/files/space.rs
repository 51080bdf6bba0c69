//! A nearly full disk: who may use the last blocks, and the result of operations that do not fit.

use extant_oracle::memory as tools;

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;
use extant_block::device::MemDevice;
use extant_fs::{
    Caller, Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, SetAttr,
    SetMode, WriteFlags,
};

const USER: Caller = Caller { uid: 1000, gid: 100 };

struct Bench {
    dev: Arc<MemDevice>,
    fs: Mounted,
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mounted(args: &[&str], size: &str, options: MountOptions) -> Bench {
    let dev = Arc::new(tools::made(args, size));
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    Bench { dev, fs }
}

impl Bench {
    fn file(&self, name: &[u8]) -> InodeRef {
        let root = self.fs.root().expect("root");
        self.fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("create")
    }

    /// Unmounts, checks with e2fsck, and mounts again.
    fn remount(&mut self, options: MountOptions) {
        self.fs.unmount().expect("unmount");
        self.check();
        self.fs = Filesystem::mount(self.dev.clone(), options).expect("mounted again");
    }

    fn check(&self) {
        tools::assert_clean(&self.dev);
    }

    fn finish(self) {
        self.fs.unmount().expect("unmount");
        self.check();
    }
}

/// Appends to `f` until there is no space; returns how many bytes fit.
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
fn ordinary_users_cannot_use_the_reserve() {
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
        assert_eq!(full.blocks_available, 0);
        // Directories, symbolic links and attributes must not use it either.
        let root = b.fs.root().expect("root");
        let cred = Cred::default();
        USER.run(|| {
            let dir = b.fs.create(&root, b"d", NewNode::directory(0o755), cred);
            assert!(matches!(dir, Err(Error::NoSpace)), "{dir:?}");
            let link = b.fs.create(&root, b"l", NewNode::symlink(&[b'x'; 200]), cred);
            assert!(matches!(link, Err(Error::NoSpace)), "{link:?}");
            let attr = b.fs.set_xattr(&g, b"user.large", &[7; 3000], SetMode::Any);
            assert!(matches!(attr, Err(Error::NoSpace)), "{attr:?}");
            let space = b.fs.fallocate(&g, FallocateMode::Allocate { keep_size: false }, 0, 1 << 20);
            assert!(matches!(space, Err(Error::NoSpace)), "{space:?}");
            // Operations without need of a block succeed, and reserved space is available.
            b.fs.create(&root, b"empty", NewNode::file(0o644), cred).expect("an inode is no block");
            b.fs.write(&f, 0, &[1; 4096], WriteFlags::default()).expect("an overwrite");
            b.fs.fsync(&f, false).expect("accepted writes reach the disk");
        });
        b.fs.sync().expect("accepted writes reach the disk");
        // Root may use it.
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
fn the_reserve_is_open_to_the_owner_named_by_the_image_or_the_mount() {
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
    assert!(!may(options(), group(0)), "the reserve's group is 0 by default, which means none");
    let by = |resuid, resgid| MountOptions { resuid, resgid, ..options() };
    assert!(may(by(Some(1000), None), USER));
    assert!(may(by(None, Some(100)), USER));
    assert!(!may(by(Some(999), Some(99)), USER));
}

#[test]
fn the_reserves_owner_is_read_from_the_image() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    extant_oracle::mke2fs(&path, &["-t", "ext4", "-m", "10"], "32M");
    extant_oracle::tool("tune2fs", &["-u", "1000", "-g", "77", extant_oracle::arg(&path)]);
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

#[test]
fn a_write_that_fits_in_part_returns_the_part() {
    const PIECE: usize = 300_000;
    for (args, through) in [
        (&["-t", "ext4", "-b", "4096"][..], None),
        (&["-t", "ext4", "-b", "4096"], Some(4096)),
        (&["-t", "ext4", "-b", "1024"], None),
        (&["-t", "ext3", "-b", "1024"], Some(4096)),
        (&["-t", "ext2", "-b", "4096"], None),
    ] {
        // From the middle of a block, and from its start.
        for start in [0u64, 100] {
            let mut b = mounted(args, "16M", MountOptions { write_through_bytes: through, ..options() });
            let f = b.file(b"f");
            let bs = u64::from(b.fs.block_size());
            let (mut at, mut pieces) = (start, Vec::new());
            let short = loop {
                let data = vec![pieces.len() as u8 + 1; PIECE];
                let n = b.fs.write(&f, at, &data, WriteFlags::default()).expect("at least a part");
                pieces.push((at, n));
                at += n as u64;
                assert_eq!(b.fs.getattr(&f).size, at, "{args:?}: the size is where the data ends");
                if n < PIECE {
                    break n;
                }
            };
            assert!(short > 0 && at.is_multiple_of(bs), "{args:?}: {short} bytes, up to {at}");
            let more = b.fs.write(&f, at, &[9; PIECE], WriteFlags::default());
            assert!(matches!(more, Err(Error::NoSpace)), "{args:?}: {more:?}");
            assert_eq!(b.fs.getattr(&f).size, at, "a refused write changes nothing");
            // Accepted data can be changed.
            b.fs.write(&f, at - 10, &[7; 10], WriteFlags::default()).expect("an overwrite");
            drop(f);
            b.remount(options());
            let f = b.fs.walk(b"f", true).expect("there");
            assert_eq!(b.fs.getattr(&f).size, at, "{args:?}");
            for (i, (from, n)) in pieces.iter().enumerate() {
                let mut back = vec![0; *n];
                assert_eq!(b.fs.read(&f, *from, &mut back).expect("read"), *n);
                let last = if i + 1 == pieces.len() { 10 } else { 0 };
                let (body, tail) = back.split_at(n - last);
                assert!(body.iter().all(|b| *b == i as u8 + 1), "{args:?}, {through:?}: piece {i}");
                assert!(tail.iter().all(|b| *b == 7));
            }
            drop(f);
            b.finish();
        }
    }
}

/// While one thread frees an unlinked file, another finds the disk full: it waits for the blocks being freed.
#[test]
fn blocks_being_freed_count_as_space() {
    for through in [None, Some(4096)] {
        let b =
            mounted(&["-t", "ext4", "-b", "1024"], "8M", MountOptions { write_through_bytes: through, ..options() });
        let keep = b.file(b"keep");
        for round in 0..30 {
            let f = b.file(b"f");
            fill(&b.fs, &f);
            b.fs.sync().expect("sync");
            let root = b.fs.root().expect("root");
            b.fs.unlink(&root, b"f").expect("unlink");
            let gone = Arc::new(AtomicBool::new(false));
            let thread = {
                let (fs, gone) = (b.fs.clone(), gone.clone());
                task::spawn("evicts", move || {
                    drop(f);
                    gone.store(true, Ordering::Release);
                    fs.serving().reap();
                })
            };
            while !gone.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let wrote = b.fs.write(&keep, 0, &[round; 50_000], WriteFlags::default());
            assert!(matches!(wrote, Ok(50_000)), "{through:?}, round {round}: {wrote:?}");
            b.fs.setattr(&keep, &SetAttr { size: Some(0), ..Default::default() }).expect("truncate");
            thread.expect("thread").join().expect("joined");
        }
        drop(keep);
        b.finish();
    }
}

/// A file has been unlinked, and its last user is about to release it. A FUSE server learns of that from the kernel a
/// moment after its reply to the unlink. An operation that finds the disk full waits that moment, and no longer. In
/// virtual time.
#[test]
fn a_file_about_to_be_released_counts_as_space() {
    let dev = tools::made(&["-t", "ext4", "-b", "1024"], "8M");
    for (late_ms, room) in [(0, true), (10, true), (90, true), (500, false)] {
        let dev = Arc::new(dev.snapshot());
        let outcome = sim::run(&sim::Options::new(late_ms), move || {
            let b = Bench { dev: dev.clone(), fs: Filesystem::mount(dev.clone(), options()).expect("mounted") };
            let root = b.fs.root().expect("root");
            let (keep, f) = (b.file(b"keep"), b.file(b"f"));
            fill(&b.fs, &f);
            b.fs.sync().expect("sync");
            b.fs.unlink(&root, b"f").expect("unlink");
            let writer = {
                let (fs, keep) = (b.fs.clone(), keep.clone());
                task::spawn("writes", move || fs.write(&keep, 0, &[1; 50_000], WriteFlags::default())).expect("thread")
            };
            Clock::real().sleep(Duration::from_millis(late_ms));
            drop(f);
            let wrote = writer.join().expect("joined");
            drop((keep, root));
            b.fs.unmount().expect("unmount");
            wrote
        });
        match outcome.result {
            Ok(Ok(50_000)) if room => {}
            Ok(Err(Error::NoSpace)) if !room => {
                assert!(outcome.virtual_ns < 1_000_000_000, "{} ns", outcome.virtual_ns)
            }
            other => panic!("{late_ms} ms late: {other:?}"),
        }
    }
}

/// As above, some time after the unlink: the release itself ends the wait. In virtual time.
#[test]
fn an_operation_without_space_goes_on_as_soon_as_the_file_is_released() {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
    let outcome = sim::run(&sim::Options::new(1), move || {
        let b = Bench { dev: dev.clone(), fs: Filesystem::mount(dev.clone(), options()).expect("mounted") };
        let clock = Clock::real();
        let root = b.fs.root().expect("root");
        let (keep, f) = (b.file(b"keep"), b.file(b"f"));
        fill(&b.fs, &f);
        b.fs.sync().expect("sync");
        b.fs.unlink(&root, b"f").expect("unlink");
        clock.sleep(Duration::from_millis(200));
        let writer = {
            let (fs, keep, clock) = (b.fs.clone(), keep.clone(), clock.clone());
            let writes = move || {
                fs.write(&keep, 0, &[1; 50_000], WriteFlags::default()).expect("room");
                clock.now_ns()
            };
            task::spawn("writes", writes).expect("thread")
        };
        clock.sleep(Duration::from_micros(30_500));
        let released = clock.now_ns();
        drop(f);
        let late = writer.join().expect("joined") - released;
        drop((keep, root));
        b.fs.unmount().expect("unmount");
        late
    });
    let late = outcome.result.expect("ran");
    assert!(late < 1_000_000, "{late} ns after the release");
}

#[test]
fn an_inode_being_freed_can_be_allocated() {
    let b = mounted(&["-t", "ext4", "-N", "32"], "8M", options());
    let root = b.fs.root().expect("root");
    let mut n = 0;
    loop {
        match b.fs.create(&root, format!("f{n}").as_bytes(), NewNode::file(0o644), Cred::default()) {
            Ok(_) => n += 1,
            Err(Error::NoInodes) => break,
            Err(e) => panic!("{e}"),
        }
    }
    for _ in 0..20 {
        let f = b.fs.lookup(&root, b"f0").expect("there");
        b.fs.unlink(&root, b"f0").expect("unlink");
        // The last user is gone, and nothing has freed it yet.
        drop(f);
        b.fs.create(&root, b"f0", NewNode::file(0o644), Cred::default()).expect("its number is there again");
    }
    drop(root);
    b.finish();
}

/// Blocks freed in the running transaction may not be used before its commit: every operation forces the commit
/// instead of failing for lack of space.
#[test]
fn every_operation_waits_for_the_commit_that_frees_space() {
    type Op = fn(&Filesystem, &InodeRef, &InodeRef) -> Result<(), Error>;
    let ops: [(&str, Op); 8] = [
        ("write", |fs, _, f| fs.write(f, 0, &[1; 20_000], WriteFlags::default()).map(drop)),
        ("write through", |fs, _, f| fs.write(f, 0, &[1; 65_536], WriteFlags::default()).map(drop)),
        ("mkdir", |fs, root, _| fs.create(root, b"d", NewNode::directory(0o755), Cred::default()).map(drop)),
        ("symlink", |fs, root, _| fs.create(root, b"l", NewNode::symlink(&[b'x'; 200]), Cred::default()).map(drop)),
        ("fallocate", |fs, _, f| fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, 0, 1 << 20)),
        ("setxattr", |fs, _, f| fs.set_xattr(f, b"user.large", &[7; 900], SetMode::Any)),
        ("create", |fs, root, _| {
            (0..60).try_for_each(|i| {
                let name = format!("a name that is long enough to fill blocks of a directory quickly {i:0120}");
                fs.create(root, name.as_bytes(), NewNode::file(0o644), Cred::default()).map(drop)
            })
        }),
        ("rename", |fs, root, _| {
            (0..60).try_for_each(|i| {
                let (from, to) = (format!("s{i}"), format!("a name that is long enough to fill blocks {i:0180}"));
                fs.rename(root, from.as_bytes(), root, to.as_bytes(), RenameFlags::default())
            })
        }),
    ];
    for (what, op) in ops {
        let b = mounted(
            &["-t", "ext4", "-b", "1024", "-I", "128"],
            "8M",
            MountOptions { write_through_bytes: Some(65_536), ..options() },
        );
        let root = b.fs.root().expect("root");
        let f = b.file(b"f");
        for i in 0..60 {
            b.file(format!("s{i}").as_bytes());
        }
        let big = b.file(b"big");
        fill(&b.fs, &big);
        // The space that whole pieces left over.
        let mut at = b.fs.getattr(&big).size;
        while let Ok(n) = b.fs.write(&big, at, &[1; 1024], WriteFlags::default()) {
            at += n as u64;
        }
        b.fs.sync().expect("sync");
        b.fs.unlink(&root, b"big").expect("unlink");
        drop(big);
        op(&b.fs, &root, &f).unwrap_or_else(|e| panic!("{what}: {e}"));
        drop((f, root));
        b.finish();
    }
}

#[test]
fn the_preallocation_of_a_file_is_released_with_its_last_user() {
    let b = mounted(&["-t", "ext4"], "64M", MountOptions { write_through_bytes: Some(4096), ..options() });
    let grow = |name: &[u8]| {
        let f = b.file(name);
        for i in 0..20 {
            b.fs.write(&f, i * 65_536, &[1; 65_536], WriteFlags::default()).expect("write");
        }
        f
    };
    let f = grow(b"f");
    let second = b.fs.walk(b"f", true).expect("there");
    let open = b.fs.statistics().allocator();
    assert!(open.inode_pa_new > 0, "a growing file has a preallocation");
    drop(f);
    assert_eq!(b.fs.statistics().allocator().pa_discarded_blocks, open.pa_discarded_blocks, "it still has a user");
    drop(second);
    let closed = b.fs.statistics().allocator();
    assert!(closed.pa_discarded_blocks > open.pa_discarded_blocks);
    // A user that keeps a reference although no process has the file open can release it explicitly.
    let g = grow(b"g");
    let before = b.fs.statistics().allocator().pa_discarded_blocks;
    b.fs.release(&g);
    assert!(b.fs.statistics().allocator().pa_discarded_blocks > before);
    drop(g);
    b.finish();
}

/// Blocks preallocated for files that are open, but not being written, are available to all others: no request fails
/// while such blocks exist, and statvfs counts them.
#[test]
fn preallocated_blocks_count_as_free() {
    for through in [None, Some(4096)] {
        let options = MountOptions { write_through_bytes: through, ..options() };
        let b = mounted(&["-t", "ext4", "-b", "1024", "-m", "0"], "32M", options);
        let root = b.fs.root().expect("root");
        // Growing files, all of which stay in use, as under FUSE without OPEN and RELEASE.
        let open: Vec<InodeRef> = (0..60)
            .map(|i| {
                let f = b.file(format!("f{i}").as_bytes());
                for k in 0..5 {
                    b.fs.write(&f, k * 20_000, &[1; 20_000], WriteFlags::default()).expect("write");
                    b.fs.fsync(&f, false).expect("fsync");
                }
                f
            })
            .collect();
        let used: u64 = open.iter().map(|f| b.fs.getattr(f).blocks / 2).sum();
        let stats = b.fs.statistics().allocator();
        assert!(stats.inode_pa_new > 0, "{through:?}: there is a preallocation");
        let before = b.fs.statfs();
        // All but the pool, for data and then for metadata.
        let big = b.file(b"big");
        let took = fill(&b.fs, &big) / 1024;
        b.fs.sync().expect("all accepted data fits");
        assert!(b.fs.statistics().allocator().pa_discarded_blocks > stats.pa_discarded_blocks, "{through:?}");
        let pool = before.blocks_free - before.blocks_available;
        let nodes = 80;
        assert!(took + nodes >= before.blocks_available, "{through:?}: {took} of {before:?}, {used} in files");
        assert!(b.fs.statfs().blocks_free <= pool + nodes, "{through:?}: {:?}", b.fs.statfs());
        b.fs.unlink(&root, b"big").expect("unlink");
        drop((open, big, root));
        b.finish();
    }
}

/// An operation that fails for lack of space undoes its first steps. The space that this frees is no reason to try
/// again.
#[test]
fn space_that_an_operation_itself_frees_causes_no_retry() {
    let b = mounted(&["-t", "ext4", "-b", "1024", "-I", "128", "-m", "0"], "8M", options());
    let root = b.fs.root().expect("root");
    let dirs: Vec<InodeRef> = (0..2)
        .map(|d| {
            let dir = b.fs.create(&root, &[b'd', b'0' + d], NewNode::directory(0o755), Cred::default()).expect("mkdir");
            // The next name needs another block.
            for i in 0.. {
                let name = format!("{i:0200}");
                if b.fs.getattr(&dir).size > 1024 {
                    break;
                }
                b.fs.create(&dir, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
            }
            dir
        })
        .collect();
    let big = b.file(b"big");
    fill(&b.fs, &big);
    let mut at = b.fs.getattr(&big).size;
    while let Ok(n) = b.fs.write(&big, at, &[1; 1024], WriteFlags::default()) {
        at += n as u64;
    }
    b.fs.sync().expect("sync");
    // Fills the rest of the directories' blocks, then fails.
    for (dir, node) in dirs.iter().zip([NewNode::file(0o644), NewNode::symlink(b"short")]) {
        let evictions = || {
            b.fs.serving().reap();
            b.fs.stats.evictions.get()
        };
        let mut failed = 0;
        for i in 0..10 {
            let before = evictions();
            match b.fs.create(dir, format!("x{i:0199}").as_bytes(), node, Cred::default()) {
                Ok(_) => continue,
                Err(Error::NoSpace) => {}
                Err(e) => panic!("{e}"),
            }
            assert_eq!(evictions() - before, 1, "begun once, and undone once");
            failed += 1;
        }
        assert!(failed > 0);
    }
    // A directory takes the last block, and its name would need another.
    b.fs.setattr(&big, &SetAttr { size: Some(at - 1024), ..Default::default() }).expect("truncate");
    b.fs.sync().expect("sync");
    // The second time it waits for the commit after the first.
    for _ in 0..2 {
        let before = (b.fs.stats.evictions.get(), b.fs.statistics().journal().commits.get());
        let made = b.fs.create(&dirs[0], &[b's'; 200], NewNode::directory(0o755), Cred::default());
        assert!(matches!(made, Err(Error::NoSpace)), "{made:?}");
        b.fs.serving().reap();
        assert_eq!(b.fs.stats.evictions.get() - before.0, 1);
        assert_eq!(b.fs.statistics().journal().commits.get() - before.1, 0);
    }
    drop((big, dirs, root));
    b.finish();
}

/// As in the kernel's driver (xfstests generic/260, 288).
#[test]
fn a_range_to_trim_lies_in_the_file_system() {
    let b = mounted(&["-t", "ext4", "-b", "4096"], "64M", options());
    let (size, group) = (64 << 20, 32768 * 4096);
    for (start, len, min_len) in [(size, size, 0), (u64::MAX, 4096, 0), (0, 4095, 0), (0, size, group + 1)] {
        let refused = b.fs.trim(start, len, min_len);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{start} {len} {min_len}: {refused:?}");
    }
    assert!(b.fs.trim(0, u64::MAX, 0).expect("all of it") > 32 << 20);
    assert_eq!(b.fs.trim(0, u64::MAX, group).expect("no run is so long"), 0);
    b.finish();
}
