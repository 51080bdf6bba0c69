//! Whole images with changed bytes: mounted, walked, written, unmounted.
#![no_main]

#[path = "../../crates/fs/tests/hostile/exercise.rs"]
mod exercise;

use std::sync::{Arc, LazyLock};

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Filesystem, MountOptions};
use libfuzzer_sys::fuzz_target;

/// The images in memory, and where they hold something.
static BASES: LazyLock<Vec<(MemDevice, Vec<u64>)>> = LazyLock::new(|| {
    let base = |bytes: &Vec<u8>| {
        let places = bytes.chunks(512).enumerate().filter(|(_, c)| c.iter().any(|b| *b != c[0]));
        (MemDevice::from_bytes(bytes), places.map(|(i, _)| i as u64 * 512).collect())
    };
    extant_fuzz::IMAGES.iter().map(base).collect()
});

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let (base, places) = &BASES[usize::from(flags >> 1) % BASES.len()];
    let device = Arc::new(base.snapshot());
    for _ in 0..64 {
        if data.len() < 4 {
            break;
        }
        let change = extant_fuzz::take(&mut data, 8);
        let place = places[usize::from(u16::from_le_bytes([change[0], change[1]])) % places.len()];
        let mut sector = [0; 512];
        device.read_at(place, &mut sector, BioFlags::empty()).expect("memory");
        let at = usize::from(change[2]) * 2;
        let len = usize::from(change[3] % 4) + 1;
        let end = (at + len).min(512);
        sector[at..end].copy_from_slice(&change[4..][..end - at]);
        device.write_at(place, &[&sector], BioFlags::empty()).expect("memory");
    }
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
