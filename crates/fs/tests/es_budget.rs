//! The map of a fragmented file, read through a small cache: memory stays in its bounds although nothing is written.

mod common;

use std::sync::Arc;

use common::*;
use extant_block::device::MemDevice;
use extant_fs::{EsPolicyKind, Filesystem, MountOptions};

const CACHE: u64 = 8 << 20;
/// So many entries, holes included, are more than the cache in the form of a `BTreeMap`.
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

#[test]
fn a_fragmented_file_is_read_within_the_budget() {
    let dev = fragmented();
    for policy in EsPolicyKind::ALL {
        let options = MountOptions {
            read_only: true,
            keep_clean: false,
            cache_bytes: CACHE,
            es_policy: policy,
            seed: Some(1),
            ..MountOptions::default()
        };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
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
            assert!(fs.budget().reclaims.get() > 0, "or the cache is too large for this test");
        }
    }
}
