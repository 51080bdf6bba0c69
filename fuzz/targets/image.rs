//! Whole images with changed bytes: mounted, walked, written, unmounted.
#![no_main]

#[path = "../../crates/fs/tests/hostile/exercise.rs"]
mod exercise;

use std::sync::Arc;

use extant_fs::{Filesystem, MountOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let device = Arc::new(extant_fuzz::damaged(flags >> 1, &mut data));
    let options = MountOptions {
        threads: false,
        seed: Some(1),
        read_only: flags & 1 != 0,
        cache_bytes: 16 << 20,
        ..MountOptions::default()
    };
    let Ok(fs) = Filesystem::mount(device, options) else { return };
    let found = exercise::look_around(&fs);
    if flags & 1 == 0 {
        exercise::change(&fs, &found);
    }
    drop(found);
    fs.step();
    let _ = fs.unmount();
});
