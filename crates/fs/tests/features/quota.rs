//! Quotas: the usage on disk is that of the inodes, whatever is done and wherever it is cut off; limits hold.

use extant_oracle::memory as tools;

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, CrashMode, MemDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{
    Caller, Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, QuotaKind, QuotaLimits,
    RenameFlags, SetAttr, SetFlags, SetMode, WriteFlags,
};

const ALL: &[&str] =
    &["-t", "ext4", "-O", "quota,project", "-I", "256", "-E", "quotatype=usrquota:grpquota:prjquota", "-N", "2048"];
const ANN: Cred = Cred { uid: 1000, gid: 100, umask: 0 };
const BEA: Cred = Cred { uid: 70_000, gid: 100, umask: 0 };

fn caller(cred: Cred) -> Caller {
    Caller { uid: cred.uid, gid: cred.gid }
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn limited() -> MountOptions {
    MountOptions { quota_limits: [true; 3], ..options() }
}

fn made(block_size: &str) -> Arc<MemDevice> {
    Arc::new(tools::made(&[ALL, &["-b", block_size]].concat(), "24M"))
}

fn file(fs: &Mounted, name: &str, cred: Cred) -> extant_fs::Result<InodeRef> {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::file(0o644), cred)
}

/// Bytes and inodes of an owner.
fn used(fs: &Mounted, kind: QuotaKind, id: u32) -> (u64, u64) {
    match fs.quota_from(kind, id) {
        Ok((usage, _)) if usage.id == id => (usage.bytes, usage.inodes),
        Ok(_) | Err(Error::NotFound) => (0, 0),
        Err(e) => panic!("{kind:?} {id}: {e}"),
    }
}

fn unmounted(fs: Mounted, dev: &MemDevice) {
    fs.unmount().expect("unmounted");
    tools::assert_clean(dev);
}

/// A change of each kind that moves usage, by several owners.
fn work(fs: &Mounted, round: u32) -> extant_fs::Result<()> {
    let root = fs.root()?;
    let name = |what: &str| format!("{what}{round}").into_bytes();
    let owner = Cred { uid: 1000 + round * 300, gid: 100 + round % 2, umask: 0 };
    let dir = fs.create(&root, &name("dir"), NewNode::directory(0o755), owner)?;
    for i in 0..20 {
        let f = fs.create(&dir, format!("a name that is rather long {i}").as_bytes(), NewNode::file(0o644), owner)?;
        fs.write(&f, 0, &vec![b'x'; 500 * i], WriteFlags::default())?;
    }
    let f = fs.create(&root, &name("big"), NewNode::file(0o644), owner)?;
    fs.write(&f, 0, &vec![b'y'; 300_000], WriteFlags::default())?;
    fs.fsync(&f, false)?;
    fs.fallocate(&f, FallocateMode::Allocate { keep_size: true }, 400_000, 200_000)?;
    fs.fallocate(&f, FallocateMode::PunchHole, 8192, 100_000)?;
    fs.set_xattr(&f, b"user.large", &vec![7; 600], SetMode::Any)?;
    fs.setattr(&f, &SetAttr { uid: Some(BEA.uid), gid: Some(7), ..SetAttr::default() })?;
    fs.set_flags(&f, SetFlags { project: Some(40 + round), privileged: true, ..SetFlags::default() })?;
    fs.write(&f, 1_000_000, &vec![b'z'; 50_000], WriteFlags::default())?;
    fs.create(&root, &name("link"), NewNode::symlink(&[b'l'; 200]), owner)?;
    fs.rename(&root, &name("link"), &dir, b"moved", RenameFlags { whiteout: Some(owner), ..RenameFlags::default() })?;
    let nameless = fs.tmpfile(&dir, 0o600, ANN)?;
    fs.write(&nameless, 0, &vec![b't'; 70_000], WriteFlags::default())?;
    fs.setattr(&f, &SetAttr { size: Some(200_000), ..SetAttr::default() })?;
    if let Some(before) = round.checked_sub(1) {
        let name = format!("big{before}");
        fs.unlink(&root, name.as_bytes())?;
    }
    fs.sync()
}

#[test]
fn usage_is_that_of_the_inodes_after_every_kind_of_change() {
    for block_size in ["1024", "4096"] {
        let dev = made(block_size);
        for mount in 0..2 {
            let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
            assert_eq!(fs.quota_kinds().expect("sound"), QuotaKind::ALL);
            for round in 0..3 {
                work(&fs, 3 * mount + round).unwrap_or_else(|e| panic!("round {round}: {e}"));
            }
            assert!(used(&fs, QuotaKind::User, BEA.uid).0 >= 90_000, "{block_size}");
            assert_eq!(used(&fs, QuotaKind::Project, 42 + 3 * mount).1, 1);
            unmounted(fs, &dev);
        }
    }
}

#[test]
fn a_cut_anywhere_leaves_usage_and_inodes_of_one_moment() {
    for (block_size, seed) in [("1024", 3), ("4096", 4)] {
        let crash = Arc::new(CrashDevice::from_image(&made(block_size)));
        crash.declare_atomic(1024, 1024);
        let fs = Filesystem::mount(crash.clone(), options()).expect("mounted");
        for round in 0..4 {
            work(&fs, round).expect("worked");
        }
        fs.unmount().expect("unmounted");
        let (mut rng, events) = (Rng::new(seed), crash.write_log());
        assert!(events > 50, "{events}");
        for at in (0..events).step_by(4) {
            for mode in [CrashMode::InOrder, CrashMode::RandomSubset] {
                let state = Arc::new(crash.state_after(at, &mut rng, mode).expect("state"));
                let fs = Filesystem::mount(state.clone(), options()).expect("mounted after a cut");
                unmounted(fs, &state);
            }
        }
    }
}

fn limits(blocks_soft: u64, blocks_hard: u64, inodes_soft: u64, inodes_hard: u64) -> QuotaLimits {
    QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard }
}

/// Writes 64 KiB at a time until nothing fits; returns how much did, and why no more.
fn fill(fs: &Mounted, f: &InodeRef) -> (u64, Error) {
    let mut at = 0;
    loop {
        match fs.write(f, at, &[1; 64 << 10], WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(e) => return (at, e),
        }
    }
}

#[test]
fn hard_limits_hold_and_not_for_root() {
    for through in [None, Some(4096)] {
        let dev = made("4096");
        let fs = Filesystem::mount(dev.clone(), MountOptions { write_through_bytes: through, ..limited() })
            .expect("mounted");
        fs.set_quota(QuotaKind::User, ANN.uid, limits(0, 1000, 0, 3)).expect("set");
        fs.set_quota(QuotaKind::Group, 100, limits(0, 1600, 0, 0)).expect("set");
        let (mine, hers) = (file(&fs, "ann", ANN).expect("file"), file(&fs, "bea", BEA).expect("file"));
        let (got, e) = caller(ANN).run(|| fill(&fs, &mine));
        assert!(matches!(e, Error::QuotaExceeded) && e.errno() == 122, "{e}");
        assert_eq!(got, 1000 << 10, "{through:?}");
        // The group's limit leaves the rest.
        let (got, e) = caller(BEA).run(|| fill(&fs, &hers));
        assert!(matches!(e, Error::QuotaExceeded), "{e}");
        assert_eq!(got, 600 << 10, "{through:?}");
        assert_eq!(used(&fs, QuotaKind::Group, 100), (1600 << 10, 2));
        // Old blocks may be written again, and deleted ones are free.
        caller(ANN).run(|| fs.write(&mine, 4096, &[2; 8192], WriteFlags::default())).expect("overwritten");
        caller(ANN).run(|| {
            fs.setattr(&mine, &SetAttr { size: Some(100 << 10), ..SetAttr::default() }).expect("cut");
            assert_eq!(fs.write(&mine, 1 << 20, &[3; 4096], WriteFlags::default()).expect("written"), 4096);
            let e = fs.fallocate(&mine, FallocateMode::Allocate { keep_size: false }, 2 << 20, 2 << 20);
            assert!(matches!(e, Err(Error::QuotaExceeded)), "{e:?}");
        });
        // Inodes.
        let more: Vec<_> = (0..4).map(|i| caller(ANN).run(|| file(&fs, &format!("more{i}"), ANN))).collect();
        assert_eq!(more.iter().filter(|made| made.is_ok()).count(), 2);
        assert!(more.iter().flat_map(|made| made.as_ref().err()).all(|e| matches!(e, Error::QuotaExceeded)));
        caller(ANN).run(|| {
            let root = fs.root().expect("root");
            fs.unlink(&root, b"more0").expect("unlinked");
            drop(more);
            file(&fs, "again", ANN).expect("there is room again");
        });
        // Root may exceed them, and give files to the owner.
        fs.write(&mine, 3 << 20, &[4; 2 << 20], WriteFlags::default()).expect("as root");
        file(&fs, "root's", Cred::default())
            .and_then(|f| fs.setattr(&f, &SetAttr { uid: Some(ANN.uid), ..SetAttr::default() }))
            .expect("given");
        let refused = caller(BEA).run(|| fs.setattr(&hers, &SetAttr { uid: Some(ANN.uid), ..SetAttr::default() }));
        assert!(matches!(refused, Err(Error::QuotaExceeded)), "{refused:?}");
        unmounted(fs, &dev);
    }
}

#[test]
fn without_the_option_usage_is_counted_and_nothing_is_refused() {
    let dev = made("4096");
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    fs.set_quota(QuotaKind::User, ANN.uid, limits(0, 100, 0, 1)).expect("set");
    let f = caller(ANN).run(|| file(&fs, "f", ANN)).expect("file");
    caller(ANN).run(|| fs.write(&f, 0, &[1; 400 << 10], WriteFlags::default())).expect("written");
    caller(ANN).run(|| file(&fs, "g", ANN)).expect("a second file");
    assert_eq!(used(&fs, QuotaKind::User, ANN.uid), (400 << 10, 2), "delayed data is counted");
    unmounted(fs, &dev);
}

#[test]
fn soft_limits_hold_after_their_time_of_grace() {
    let dev = made("4096");
    let clock = Clock::virtual_at(1_800_000_000);
    let fs = Filesystem::mount(dev.clone(), MountOptions { clock: clock.clone(), ..limited() }).expect("mounted");
    fs.set_quota_grace(QuotaKind::User, [100, 200]).expect("set");
    fs.set_quota(QuotaKind::User, ANN.uid, limits(100, 0, 1, 0)).expect("set");
    let write = |f: &InodeRef, block: u64| {
        let written = caller(ANN).run(|| fs.write(f, block << 12, &[1; 4096], WriteFlags::default()));
        fs.sync().expect("synced");
        written
    };
    let f = file(&fs, "f", ANN).expect("file");
    for block in 0..30 {
        write(&f, block).expect("within the time of grace");
    }
    let (_, found) = fs.quota_from(QuotaKind::User, ANN.uid).expect("an entry");
    assert_eq!((found.blocks_until, found.inodes_until), (1_800_000_100, 0));
    caller(ANN).run(|| file(&fs, "g", ANN)).expect("a file too many");
    clock.advance(Duration::from_secs(150));
    assert!(matches!(write(&f, 30), Err(Error::QuotaExceeded)));
    caller(ANN).run(|| file(&fs, "h", ANN)).expect("the time for inodes has not ended");
    clock.advance(Duration::from_secs(100));
    let late = caller(ANN).run(|| file(&fs, "i", ANN));
    assert!(matches!(late, Err(Error::QuotaExceeded)), "{late:?}");
    // Below the limit, the time begins anew.
    caller(ANN).run(|| fs.setattr(&f, &SetAttr { size: Some(50 << 10), ..SetAttr::default() })).expect("cut");
    for block in 20..40 {
        write(&f, block).expect("a new time of grace");
    }
    assert_eq!(fs.quota_grace(QuotaKind::User).expect("set before"), [100, 200]);
    unmounted(fs, &dev);
    // Limits and times survive.
    let fs = Filesystem::mount(dev.clone(), MountOptions { clock, ..limited() }).expect("mounted again");
    let (_, found) = fs.quota_from(QuotaKind::User, ANN.uid).expect("an entry");
    assert_eq!((found.blocks_soft, found.inodes_soft, found.blocks_until), (100, 1, 1_800_000_350));
    assert_eq!(fs.quota_grace(QuotaKind::User).expect("set before"), [100, 200]);
    unmounted(fs, &dev);
}

#[test]
fn limits_that_the_superblock_names_do_not_hold_with_noquota() {
    let dev = Arc::new(tools::edited(&made("4096"), &["set_super_value mount_opts usrquota"]));
    for (word, holds) in [(None, true), (Some("noquota"), false), (Some("prjquota"), true)] {
        let mut options = options();
        if let Some(word) = word {
            assert_eq!(options.set_word(word, None), Some(Ok(())));
        }
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        fs.set_quota(QuotaKind::User, ANN.uid, limits(0, 100, 0, 0)).expect("set");
        let f = file(&fs, &format!("f-{word:?}"), ANN).expect("file");
        let written = caller(ANN).run(|| fs.write(&f, 0, &[1; 200 << 10], WriteFlags::default()));
        let is_whole = written.as_ref().is_ok_and(|n| *n == 200 << 10);
        assert_eq!(is_whole, !holds, "{word:?}: {written:?}");
        fs.setattr(&f, &SetAttr { size: Some(0), ..SetAttr::default() }).expect("cut");
        drop(f);
        unmounted(fs, &dev);
    }
}

#[test]
fn the_time_of_grace_begins_with_the_write_that_exceeds_a_soft_limit() {
    const START: u64 = 1_800_000_000;
    let dev = made("4096");
    let clock = Clock::virtual_at(START as i64);
    let fs = Filesystem::mount(dev.clone(), MountOptions { clock: clock.clone(), ..limited() }).expect("mounted");
    fs.set_quota_grace(QuotaKind::User, [100, 200]).expect("set");
    fs.set_quota(QuotaKind::User, ANN.uid, limits(100, 0, 0, 0)).expect("set");
    let f = file(&fs, "f", ANN).expect("file");
    let write = |at: u64, kib: usize| {
        let written = caller(ANN).run(|| fs.write(&f, at << 10, &vec![1; kib << 10], WriteFlags::default()));
        assert_eq!(written.expect("within the time of grace"), kib << 10);
    };
    let cut = || caller(ANN).run(|| fs.setattr(&f, &SetAttr { size: Some(0), ..SetAttr::default() })).expect("cut");
    let until = || fs.quota_from(QuotaKind::User, ANN.uid).expect("an entry").1.blocks_until;
    write(0, 60);
    assert_eq!(until(), 0);
    clock.advance(Duration::from_secs(5));
    write(60, 60);
    assert_eq!(until(), START + 105, "it is not allocated yet");
    clock.advance(Duration::from_secs(20));
    fs.sync().expect("synced");
    assert_eq!(until(), START + 105, "allocated later");
    // Data that is deleted before it is allocated leaves no time behind.
    cut();
    fs.sync().expect("synced");
    assert_eq!(until(), 0);
    write(0, 120);
    assert_eq!(until(), START + 125);
    cut();
    assert_eq!(until(), 0);
    clock.advance(Duration::from_secs(7));
    write(0, 120);
    assert_eq!(until(), START + 132);
    clock.advance(Duration::from_secs(100));
    let late = caller(ANN).run(|| fs.write(&f, 120 << 10, &[1; 4096], WriteFlags::default()));
    assert!(matches!(late, Err(Error::QuotaExceeded)), "{late:?}");
    fs.sync().expect("synced");
    assert_eq!(until(), START + 132);
    drop(f);
    unmounted(fs, &dev);
}

#[test]
fn owners_come_and_go_by_the_thousand() {
    let dev = Arc::new(tools::made(
        &["-t", "ext4", "-b", "1024", "-O", "quota", "-E", "quotatype=usrquota", "-N", "4096"],
        "24M",
    ));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    for i in 0..1500u32 {
        let owner = Cred { uid: i.wrapping_mul(0x0135_7911), gid: 0, umask: 0 };
        file(&fs, &format!("f{i}"), owner).expect("file");
        if i % 3 != 0 {
            fs.unlink(&root, format!("f{i}").as_bytes()).expect("unlinked");
        }
    }
    unmounted(fs, &dev);
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
    let mut owners = 0;
    let mut from = Some(0);
    while let Some(id) = from {
        match fs.quota_from(QuotaKind::User, id) {
            Ok((usage, _)) => {
                owners += 1;
                from = usage.id.checked_add(1);
            }
            Err(Error::NotFound) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(owners, 500);
    assert!(matches!(fs.quota_from(QuotaKind::Group, 0), Err(Error::NotSupported(_))));
    unmounted(fs, &dev);
    // The entries' blocks are used again, until no owner is left.
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
    for i in (0..1500u32).step_by(3) {
        fs.unlink(&fs.root().expect("root"), format!("f{i}").as_bytes()).expect("unlinked");
    }
    unmounted(fs, &dev);
}

#[test]
fn a_damaged_quota_file_is_not_written_and_can_be_read() {
    let dev = made("4096");
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    work(&fs, 0).expect("worked");
    unmounted(fs, &dev);
    let blocks = tools::debugfs(&dev, "blocks <3>");
    let first: u64 = blocks.split_whitespace().filter_map(|word| word.parse().ok()).next().expect("a block");
    // The tree's root leads to itself.
    let mut block = vec![0; 4096];
    dev.read_at(first << 12, &mut block, BioFlags::empty()).expect("read");
    block[1024 + 40] = 1;
    dev.write_at(first << 12, &[&block], BioFlags::empty()).expect("written");
    let before = dev.snapshot();
    let refused = Filesystem::mount(dev.clone(), options()).err().expect("refused").to_string();
    assert!(refused.contains("quota file of inode 3") && refused.contains("extant fsck"), "{refused}");
    let (mut old, mut new) = (vec![0; dev.size_bytes() as usize], vec![0; dev.size_bytes() as usize]);
    before.read_at(0, &mut old, BioFlags::empty()).expect("read");
    dev.read_at(0, &mut new, BioFlags::empty()).expect("read");
    assert!(old == new, "the refused image has changed");
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("for reading");
    assert!(fs.quota_kinds().is_err_and(|e| e.is_corruption()));
    fs.unmount().expect("unmounted");
}

#[test]
fn limits_without_the_feature_are_refused() {
    let dev = Arc::new(tools::made(&["-t", "ext4"], "16M"));
    let refused = Filesystem::mount(dev, limited()).err().expect("refused").to_string();
    assert!(refused.contains("feature 'quota'"), "{refused}");
}
