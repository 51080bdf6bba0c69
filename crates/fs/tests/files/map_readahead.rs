//! A read of a map block also reads its neighbours of the same file: counted in requests, by their META flag.

use std::sync::Arc;

use crate::common::*;
use extant_base::rng::Rng;
use extant_block::device::{Fault, FaultyDevice, MemDevice, TracedDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{Cred, DirItem, Error, Filesystem, MetaPolicy, MountOptions, Mounted, NewNode, WriteFlags};

const EXT3: &[&str] = &["-t", "ext3", "-b", "1024"];
const EXT4_SMALL: &[&str] = &["-t", "ext4", "-b", "1024"];
/// Logical blocks below one indirect block of 1 KiB, and extents in a leaf of 1 KiB.
const OF_AN_ARRAY: u64 = 256;
const OF_A_LEAF: u64 = 84;
const ARRAYS: u64 = 256;
const FILES: u64 = 128;

fn quiet() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// The image after `change`, written and unmounted.
fn with(dev: MemDevice, change: impl FnOnce(&Filesystem)) -> Arc<MemDevice> {
    let dev = Arc::new(dev);
    let fs = Filesystem::mount(dev.clone(), quiet()).expect("mounted");
    change(&fs);
    fs.unmount().expect("unmounted");
    dev
}

/// A file with a block of data below each of [`ARRAYS`] indirect blocks.
fn sparse() -> Arc<MemDevice> {
    with(image(64, EXT3, &[]), |fs| {
        let f = create(fs, "f");
        (0..ARRAYS).for_each(|n| put(fs, &f, n * OF_AN_ARRAY * 1024, &n.to_le_bytes()));
    })
}

/// Files with an indirect block each, and directories with a block each.
fn many(meta_policy: MetaPolicy) -> Arc<MemDevice> {
    let dev = Arc::new(image(64, &["-t", "ext2", "-b", "1024"], &[]));
    let fs = Filesystem::mount(dev.clone(), MountOptions { meta_policy, ..quiet() }).expect("mounted");
    let root = fs.root().expect("root");
    for n in 0..FILES {
        put(&fs, &create(&fs, &format!("f{n}")), 12 * 1024, &n.to_le_bytes());
        fs.create(&root, format!("d{n}").as_bytes(), NewNode::directory(0o755), Cred::default()).expect("made");
        fs.sync().expect("synced");
    }
    drop(root);
    fs.unmount().expect("unmounted");
    dev
}

struct Watched {
    fs: Mounted,
    dev: Arc<TracedDevice>,
}

impl Watched {
    fn mount(dev: &Arc<MemDevice>, cache_bytes: u64) -> Watched {
        Watched::mount_with(dev, MountOptions { cache_bytes, ..quiet() })
    }

    fn mount_with(dev: &Arc<MemDevice>, options: MountOptions) -> Watched {
        let dev = Arc::new(TracedDevice::new(dev.clone()));
        let options = MountOptions { read_only: true, keep_clean: false, ..options };
        Watched { fs: Filesystem::mount(dev.clone(), options).expect("mounted"), dev }
    }

    /// The requests for map blocks, and their bytes, while numbers are read at these places of `f`.
    fn map_reads(&self, places: &[(u64, u64)]) -> (usize, u64) {
        let f = self.fs.lookup(&self.fs.root().expect("root"), b"f").expect("there");
        self.metadata_reads(|| {
            for (at, n) in places {
                assert_eq!(get(&self.fs, &f, *at, 8), n.to_le_bytes(), "at {at}");
            }
        })
    }

    fn metadata_reads(&self, work: impl FnOnce()) -> (usize, u64) {
        self.dev.take();
        work();
        let trace = self.dev.take();
        let maps = trace.iter().filter(|r| r.op == BioOp::Read && r.flags.contains(BioFlags::META));
        maps.fold((0, 0), |(count, bytes), r| (count + 1, bytes + r.len))
    }
}

fn shuffled(mut places: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut rng = Rng::new(7);
    for i in (1..places.len()).rev() {
        places.swap(i, rng.below(i as u64 + 1) as usize);
    }
    places
}

const ROOMY: u64 = 64 << 20;

#[test]
fn cold_random_reads_prefetch_the_neighbours_of_an_indirect_block() {
    let dev = sparse();
    // The first array is in the inode.
    let places = shuffled((1..ARRAYS).map(|n| (n * OF_AN_ARRAY * 1024, n)).collect());
    let (requests, bytes) = Watched::mount(&dev, ROOMY).map_reads(&places);
    assert!(requests <= places.len() / 16, "{requests} requests for {} indirect blocks", places.len());
    assert!(bytes <= 2 * (ARRAYS + 2) * 1024, "{bytes} bytes");
}

#[test]
fn cold_random_reads_prefetch_the_neighbours_of_an_extent_node() {
    const EXTENTS: u64 = 100 * OF_A_LEAF;
    let dev = with(image(64, EXT4_SMALL, &[]), |fs| {
        let f = create(fs, "f");
        (0..EXTENTS).for_each(|n| put(fs, &f, n * 2048, &n.to_le_bytes()));
    });
    let places = shuffled((0..100).map(|n| (n * OF_A_LEAF * 2048, n * OF_A_LEAF)).collect());
    let (requests, _) = Watched::mount(&dev, ROOMY).map_reads(&places);
    assert!(requests <= 100 / 10, "{requests} requests for 100 leaves");
}

/// As mke2fs copies a file: each indirect block before its data.
fn copied(blocks: u64) -> (tempfile::TempDir, Arc<MemDevice>) {
    let dir = tempfile::tempdir().expect("tempdir");
    let data: Vec<u8> = (0..blocks).flat_map(|n| [&n.to_le_bytes()[..], &[0; 1016]].concat()).collect();
    std::fs::write(dir.path().join("f"), data).expect("written");
    let from = dir.path().to_str().expect("UTF-8").to_owned();
    (dir, Arc::new(image(64, &[EXT3, &["-d", &from]].concat(), &[])))
}

#[test]
fn indirect_blocks_separated_by_data_are_read_alone() {
    let (_dir, dev) = copied(40 * OF_AN_ARRAY);
    let places: Vec<_> = (1..40).map(|n| (n * OF_AN_ARRAY * 1024, n * OF_AN_ARRAY)).collect();
    for places in [shuffled(places.clone()), places.clone()] {
        let (requests, bytes) = Watched::mount(&dev, ROOMY).map_reads(&places);
        // The indirect block, the double indirect one, and 38 of the blocks that it names.
        assert_eq!((requests, bytes), (40, 40 * 1024));
    }
    // One block is read, and its own indirect block contains its place.
    let (requests, _) = Watched::mount(&dev, ROOMY).map_reads(&places[20..21]);
    assert_eq!(requests, 2, "the double indirect block and one below it");
}

#[test]
fn a_sequential_reader_gets_a_window_of_indirect_blocks_at_once() {
    let dev = sparse();
    let places: Vec<_> = (0..ARRAYS).map(|n| (n * OF_AN_ARRAY * 1024, n)).collect();
    let (requests, _) = Watched::mount(&dev, ROOMY).map_reads(&places);
    assert!(requests as u64 <= ARRAYS / 64 + 4, "{requests} requests");
}

#[test]
fn nothing_is_read_ahead_if_memory_is_short() {
    const CACHE: u64 = 8 << 20;
    let dev = sparse();
    let places = shuffled((1..ARRAYS).map(|n| (n * OF_AN_ARRAY * 1024, n)).collect());
    let watched = Watched::mount(&dev, CACHE);
    watched.fs.budget().charge(CACHE);
    let (requests, bytes) = watched.map_reads(&places);
    watched.fs.budget().uncharge(CACHE);
    assert!(requests >= places.len(), "{requests} requests");
    assert_eq!(bytes, requests as u64 * 1024, "a block each");
}

/// A block that was read as a neighbour is freed, becomes a file's data on a full disk, and then metadata again. Its
/// old content must never appear as the current one.
#[test]
fn a_prefetched_neighbour_is_not_used_after_it_was_freed() {
    for meta_policy in [MetaPolicy::Vanilla, MetaPolicy::ZonesAll] {
        let dev = sparse();
        let options = MountOptions { keep_clean: false, meta_policy, ..quiet() };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let root = fs.root().expect("root");
        for round in 0..4 {
            let f = fs.lookup(&root, b"f").expect("there");
            // Its neighbours are prefetched, and most of them are read only to be removed.
            assert_eq!(get(&fs, &f, 100 * OF_AN_ARRAY * 1024, 8), 100u64.to_le_bytes());
            drop(f);
            fs.unlink(&root, b"f").expect("unlinked");
            fs.sync().expect("synced");
            let filler = create(&fs, "filler");
            let mut at = 0;
            while let Ok(n) = fs.write(&filler, at, &[0xA5; 128 << 10], WriteFlags::default()) {
                at += n as u64;
            }
            fs.fsync(&filler, false).expect("synced");
            drop(filler);
            assert_eq!(fs.statfs().blocks_available, 0);
            // The directory is read again, with its neighbours in the same zone, which are data by now.
            fs.budget().shrink_all();
            assert!(fs.lookup(&root, b"nothing").is_err());
            fs.unlink(&root, b"filler").expect("unlinked");
            fs.sync().expect("synced");
            let f = create(&fs, "f");
            (0..ARRAYS).for_each(|n| put(&fs, &f, n * OF_AN_ARRAY * 1024, &n.to_le_bytes()));
            fs.sync().expect("synced");
            for n in (0..ARRAYS).rev() {
                let found = get(&fs, &f, n * OF_AN_ARRAY * 1024, 8);
                assert_eq!(found, n.to_le_bytes(), "{} round {round}", meta_policy.name());
            }
            drop(f);
            fs.budget().shrink_all();
        }
        drop(root);
        fs.unmount().expect("unmounted");
        tools::assert_clean(&dev);
    }
}

/// An unreadable neighbour affects only the reads of its own data.
#[test]
fn an_unreadable_neighbour_affects_only_its_own_data() {
    let dev = sparse();
    let said = tools::debugfs(&dev, "stat f");
    let bad: u64 = said.split("(IND):").nth(100).and_then(|s| s.split(',').next()?.parse().ok()).expect("a block");
    let faulty = Arc::new(FaultyDevice::new(dev));
    faulty.inject(Fault::eio().op(BioOp::Read).range(bad * 1024..(bad + 1) * 1024));
    let options = MountOptions { read_only: true, keep_clean: false, ..quiet() };
    let fs = Filesystem::mount(faulty.clone(), options).expect("mounted");
    let f = fs.lookup(&fs.root().expect("root"), b"f").expect("there");
    let mut lost = 0;
    for n in 0..ARRAYS {
        let mut buf = [0; 8];
        match fs.read(&f, n * OF_AN_ARRAY * 1024, &mut buf) {
            Ok(8) => assert_eq!(buf, n.to_le_bytes()),
            other => {
                assert!(matches!(other, Err(Error::Device(_))), "{other:?}");
                lost += 1;
            }
        }
    }
    assert_eq!(lost, 1);
    let tries = faulty.injected();
    assert!((2..=4).contains(&tries), "once as a neighbour, not with each of the others, and once for itself: {tries}");
}

/// A damaged prefetched neighbour does not affect lookups of blocks before it.
#[test]
fn a_lookup_ignores_damage_behind_the_requested_blocks() {
    let dev = sparse();
    let said = tools::debugfs(&dev, "stat f");
    let nth = |n| said.split("(IND):").nth(n).and_then(|s: &str| s.split(',').next()?.parse::<u64>().ok());
    let bad = nth(100).expect("a block");
    dev.write_at(bad * 1024, &[&[0xFE; 1024]], BioFlags::META).expect("written");
    let watched = Watched::mount(&dev, ROOMY);
    let f = watched.fs.lookup(&watched.fs.root().expect("root"), b"f").expect("there");
    // The first block of each array, then the hole behind it, to the end of the array.
    let mut lost = Vec::new();
    for n in 1..ARRAYS - 1 {
        for (at, expected) in [(0, n), (1024, 0)] {
            let mut buf = [0; 8];
            match watched.fs.read(&f, n * OF_AN_ARRAY * 1024 + at, &mut buf) {
                Ok(8) => assert_eq!(buf, expected.to_le_bytes()),
                other => {
                    assert!(other.as_ref().is_err_and(Error::is_corruption), "{n} {at}: {other:?}");
                    lost.push((n, at));
                }
            }
        }
    }
    assert_eq!(lost, [(100, 0), (100, 1024)], "those of the damaged array");
}

/// The map blocks of many small files and directories are read in one request if they are in one zone.
#[test]
fn neighbours_in_a_zone_are_prefetched() {
    for (policy, together) in [(MetaPolicy::Vanilla, false), (MetaPolicy::ZonesAll, true)] {
        let dev = many(policy);
        let watched = Watched::mount_with(&dev, MountOptions { meta_policy: policy, ..quiet() });
        let root = watched.fs.root().expect("root");
        let named = |kind: char| (0..FILES).map(move |n| format!("{kind}{n}"));
        let find = |name: String| watched.fs.lookup(&root, name.as_bytes()).expect("there");
        let (files, dirs): (Vec<_>, Vec<_>) = (named('f').map(find).collect(), named('d').map(find).collect());

        let (for_files, _) = watched.metadata_reads(|| {
            for (f, n) in files.iter().zip(0u64..) {
                assert_eq!(get(&watched.fs, f, 12 * 1024, 8), n.to_le_bytes());
            }
        });
        let (for_dirs, _) = watched.metadata_reads(|| {
            for dir in &dirs {
                let mut names = 0;
                let count = |_: DirItem<'_>| {
                    names += 1;
                    true
                };
                watched.fs.read_dir(dir, 0, count).expect("listed");
                assert_eq!(names, 2);
            }
        });
        let most = if together { FILES as usize / 8 } else { FILES as usize };
        let enough = |requests: usize| if together { requests <= most } else { requests == most };
        assert!(enough(for_files) && enough(for_dirs), "{}: {for_files}, {for_dirs}", policy.name());
    }
}
