//! What goes when memory is full: what was asked for, and no more.

mod common;

use std::sync::Arc;

use common::*;
use extant_fs::{Filesystem, MountOptions};

const CACHE: u64 = 16 << 20;
const WRITTEN: u64 = 96 << 20;

/// A file goes with its data, and both count: an eighth of the cache is asked for, not an eighth in inodes alone, which
/// were all that there are.
#[test]
fn no_more_goes_than_was_asked_for() {
    for bytes in [4 << 10, 64 << 10, 3 << 20, 24 << 20] {
        let dev = Arc::new(image(160, &["-t", "ext4", "-N", "40000"], &[]));
        let options = MountOptions { cache_bytes: CACHE, seed: Some(1), ..MountOptions::default() };
        let fs = Filesystem::mount(dev, options).expect("mounted");
        let (mut least, mut since_sync) = (CACHE, 0);
        for n in 0..WRITTEN / bytes {
            let f = create(&fs, &n.to_string());
            for at in (0..bytes).step_by(1 << 20) {
                put(&fs, &f, at, &vec![n as u8; bytes.min(1 << 20) as usize]);
                since_sync += bytes.min(1 << 20);
                if since_sync >= CACHE / 16 {
                    syncfs(&fs).expect("synced");
                    since_sync = 0;
                }
                if fs.budget().reclaims.get() > 0 {
                    least = least.min(fs.budget().used());
                }
            }
        }
        let reclaims = fs.budget().reclaims.get();
        let kib = bytes >> 10;
        assert!(
            reclaims >= (WRITTEN - CACHE) / (CACHE / 8) / 2,
            "files of {kib} KiB: memory was full {reclaims} times"
        );
        assert!(least >= CACHE / 4 * 3, "files of {kib} KiB: {least} bytes of {CACHE} were left");
    }
}
