//! Zones for metadata (`meta_policy=`): they cost no block, and are not recorded on disk.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, InodeRef, MetaPolicy, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};

fn options(meta_policy: MetaPolicy) -> MountOptions {
    MountOptions { threads: false, seed: Some(1), meta_policy, ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>, meta_policy: MetaPolicy) -> Mounted {
    Filesystem::mount(dev.clone(), options(meta_policy)).expect("mounted")
}

/// Several kinds of images. A group of the last but one has an area of 16 blocks with `zones`, of 2 with
/// `metacluster`, and none with `metacluster-4`.
const KINDS: [(&[&str], &str); 5] = [
    (&["-t", "ext3", "-b", "1024", "-J", "size=1"], "24M"),
    (&["-t", "ext2", "-b", "1024", "-m", "0"], "8M"),
    (&["-t", "ext4", "-b", "1024", "-m", "0", "-J", "size=1"], "8M"),
    (&["-t", "ext2", "-b", "1024", "-g", "256", "-N", "64"], "4M"),
    (&["-t", "ext3", "-b", "4096", "-J", "size=4"], "64M"),
];

fn create(fs: &Filesystem, name: &str) -> InodeRef {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create")
}

fn append(fs: &Filesystem, f: &InodeRef, len: usize) -> bool {
    let at = fs.getattr(f).size;
    match fs.write(f, at, &vec![7; len], WriteFlags::default()) {
        Ok(n) => n == len,
        Err(Error::NoSpace) => false,
        Err(e) => panic!("{e}"),
    }
}

fn cut(fs: &Filesystem, f: &InodeRef, size: u64) {
    fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncate");
}

/// Appends to files in turn until nothing fits; returns the sizes.
fn fill(fs: &Filesystem, files: &[InodeRef], block: usize) -> Vec<u64> {
    let mut rng = Rng::new(3);
    let mut full = 0;
    while full < 40 {
        let f = &files[rng.below(files.len() as u64) as usize];
        let blocks = if full > 0 { 1 } else { 1 + rng.below(30) as usize };
        full = if append(fs, f, blocks * block) { 0 } else { full + 1 };
        if rng.one_in(10) {
            fs.fsync(f, false).expect("fsync");
        }
    }
    fs.sync().expect("sync");
    files.iter().map(|f| fs.getattr(f).size).collect()
}

/// The values of statfs after each step, and the sizes of files that fill the disk.
fn fills(kind: usize, policy: MetaPolicy) -> (Vec<(u64, u64)>, u64) {
    let (args, size) = KINDS[kind];
    let dev = Arc::new(tools::made(args, size));
    let fs = mount(&dev, policy);
    let block = fs.statfs().block_size as usize;
    let mut free = Vec::new();
    let mut note = |fs: &Filesystem| {
        fs.sync().expect("sync");
        let s = fs.statfs();
        free.push((s.blocks_free, s.blocks_available));
    };
    note(&fs);
    let files: Vec<InodeRef> = (0..6).map(|i| create(&fs, &format!("f{i}"))).collect();
    for (i, f) in files.iter().enumerate() {
        assert!(append(&fs, f, (i + 1) * 20 * block));
        note(&fs);
    }
    let sizes = fill(&fs, &files, block);
    note(&fs);
    // Half of it is freed, and it fills up again.
    for f in &files[..3] {
        cut(&fs, f, 0);
    }
    note(&fs);
    let again = fill(&fs, &files, block);
    drop(files);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
    (free, sizes.iter().chain(&again).sum())
}

#[test]
fn free_space_and_capacity_are_those_of_vanilla() {
    for kind in [0, 1, 3, 4] {
        let vanilla = fills(kind, MetaPolicy::Vanilla);
        for policy in MetaPolicy::ALL {
            assert_eq!(fills(kind, policy), vanilla, "{:?} {}", KINDS[kind], policy.name());
        }
    }
}

#[test]
fn map_blocks_are_in_zones() {
    for (kind, policy, served) in [
        (0, MetaPolicy::Metacluster, true),
        (4, MetaPolicy::Zones, true),
        (2, MetaPolicy::Metacluster, false),
        (2, MetaPolicy::Zones, true),
    ] {
        let dev = Arc::new(tools::made(KINDS[kind].0, KINDS[kind].1));
        let fs = mount(&dev, policy);
        let block = fs.statfs().block_size as usize;
        let f = create(&fs, "f");
        // Holes, so that an extent tree has nodes.
        for i in 0..40 {
            fs.write(&f, i * 20 * block as u64, &vec![1; block], WriteFlags::default()).expect("write");
        }
        fs.sync().expect("sync");
        let s = fs.statistics().allocator();
        assert_eq!((s.zone_hits > 0, s.zone_overflows), (served, 0), "{kind} {}", policy.name());
        drop(f);
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

/// Files come and go on a disk that is full most of the time. After each step the power fails, and the disk is
/// mounted with another policy.
#[test]
fn a_power_cut_while_data_borrows_zones_leaves_no_trace() {
    let mut lent = 0;
    // On a small disk a zone has more blocks than the pool that data may not use.
    for (kind, seed) in [(1, 2), (2, 3), (3, 4)] {
        for (nr, policy) in MetaPolicy::ALL.into_iter().enumerate() {
            let dev = Arc::new(tools::made(KINDS[kind].0, KINDS[kind].1));
            let fs = mount(&dev, policy);
            let block = fs.statfs().block_size as usize;
            let files: Vec<InodeRef> = (0..5).map(|i| create(&fs, &format!("f{i}"))).collect();
            fill(&fs, &files, block);
            let mut rng = Rng::new(seed);
            for step in 0..6 {
                let f = &files[rng.below(5) as usize];
                match step % 3 {
                    0 => cut(&fs, f, rng.below(fs.getattr(f).size + 1)),
                    1 => while append(&fs, f, 9 * block) {},
                    _ => fs.sync().expect("sync"),
                }
                fs.fsync(f, false).expect("fsync");
                let after = Arc::new(dev.snapshot());
                let other = MetaPolicy::ALL[(nr + step) % MetaPolicy::ALL.len()];
                let again = mount(&after, other);
                let g = create(&again, "new");
                append(&again, &g, 50 * block);
                drop(g);
                again.unmount().expect("unmount");
                tools::assert_clean(&after);
            }
            lent += fs.statistics().allocator().zone_areas_lent;
            drop(files);
            fs.unmount().expect("unmount");
            tools::assert_clean(&dev);
        }
    }
    assert!(lent >= 4, "only {lent} areas held data");
}
