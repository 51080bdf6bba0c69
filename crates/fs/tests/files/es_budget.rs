//! Reading the map of a fragmented file through a small cache: memory stays within its bounds, although nothing is
//! written.

use std::sync::Arc;

use crate::common::*;
use extant_block::device::MemDevice;
use extant_fs::{EsPolicyKind, Filesystem, MountOptions, Mounted};

const CACHE: u64 = 8 << 20;
/// This many entries, holes included, exceed the cache in the form of a `BTreeMap`.
const EXTENTS: u64 = 80_000;
const STEP: u64 = 2048;

/// A file of that many extents of a block of 1 KiB each, with holes of a block between them.
fn fragmented() -> Arc<MemDevice> {
    let dev = Arc::new(image(160, &["-t", "ext4", "-b", "1024"], &[]));
    let fs = Filesystem::mount(dev.clone(), MountOptions { threads: false, seed: Some(1), ..MountOptions::default() });
    let fs = fs.expect("mounted");
    let f = create(&fs, "f");
    for n in 0..EXTENTS {
        put(&fs, &f, n * STEP, &n.to_le_bytes());
    }
    drop(f);
    fs.unmount().expect("unmounted");
    dev
}

fn mount(dev: &Arc<MemDevice>, es_policy: EsPolicyKind) -> Mounted {
    let options = MountOptions {
        read_only: true,
        keep_clean: false,
        cache_bytes: CACHE,
        es_policy,
        seed: Some(1),
        ..MountOptions::default()
    };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// If there is room, one lookup that misses the cache loads the map's whole leaf. Without room, and under the other
/// policies, each lookup loads only its own entry.
#[test]
fn a_leaf_of_the_map_is_read_once() {
    const OF_A_LEAF: u64 = 84;
    const READS: u64 = 20 * OF_A_LEAF;
    let dev = fragmented();
    let misses = |policy: EsPolicyKind, in_use: u64| {
        let fs = mount(&dev, policy);
        let f = fs.lookup(&fs.root().expect("root"), b"f").expect("there");
        let before = fs.statistics().extent_status();
        fs.budget().charge(in_use);
        for n in 0..READS {
            assert_eq!(get(&fs, &f, n * STEP, 8), n.to_le_bytes(), "{policy:?}");
        }
        fs.budget().uncharge(in_use);
        fs.statistics().extent_status().misses - before.misses
    };
    for policy in EsPolicyKind::ALL {
        let (roomy, short) = (misses(policy, 0), misses(policy, CACHE / 4 * 3));
        let leaves = if policy == EsPolicyKind::LeafRing { 20..=22 } else { READS..=READS };
        assert!(leaves.contains(&roomy), "{policy:?}: {roomy} misses");
        assert_eq!(short, READS, "{policy:?}");
    }
}

#[test]
fn reading_a_fragmented_file_stays_within_the_budget() {
    let dev = fragmented();
    for policy in EsPolicyKind::ALL {
        let fs = mount(&dev, policy);
        let root = fs.root().expect("root");
        let f = fs.lookup(&root, b"f").expect("there");
        for n in 0..EXTENTS {
            assert_eq!(get(&fs, &f, n * STEP, 8), n.to_le_bytes(), "{policy:?}");
            if n > 0 {
                assert_eq!(get(&fs, &f, n * STEP - STEP / 2, 8), [0; 8], "{policy:?}: the hole before");
            }
            let peak = fs.budget().peak();
            assert!(peak <= CACHE + CACHE / 32, "{policy:?}: {peak} bytes within {n} reads");
        }
        if policy == EsPolicyKind::Vanilla {
            assert!(fs.budget().reclaims.get() > 0, "the cache is too large for this test");
        }
    }
}
