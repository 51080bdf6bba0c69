//! A whole directory of any content, by place, by hash and in its inode: listed with cookies, to its end.
#![no_main]

use std::sync::{Arc, LazyLock};

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Filesystem, MountOptions};
use libfuzzer_sys::fuzz_target;

/// An image, and the directory in it that the target changes and lists.
struct Base {
    device: MemDevice,
    /// The places of the directory's content, piece by piece.
    pieces: Vec<(u64, usize)>,
    path: &'static [u8],
}

/// The directories to list: of several blocks, with and without an index, with and without checksums.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let mut bases = Vec::new();
    for image in extant_fuzz::directories() {
        let device = Arc::new(MemDevice::from_bytes(&image));
        let options = MountOptions { threads: false, seed: Some(1), read_only: true, ..MountOptions::default() };
        let fs = Filesystem::mount(device.clone(), options).expect("mounted");
        for path in [&b"/large"[..], b"/small"] {
            let dir = fs.walk(path, true).expect("a directory");
            let mut pieces = Vec::new();
            fs.extents(&dir, |extent| {
                let block_size = u64::from(fs.getattr(&dir).block_size);
                let block = |i| ((extent.physical.0 + i) * block_size, block_size as usize);
                pieces.extend((0..extent.len).map(block));
            })
            .expect("a map");
            if pieces.is_empty() {
                // In its inode, which lies in the sector that has the name.
                let at = image.windows(6).position(|bytes| bytes == b"inline").expect("the name");
                pieces.push((at as u64 & !511, 512));
            }
            bases.push(Base { device: MemDevice::from_bytes(&image), pieces, path });
        }
        fs.unmount().expect("unmounted");
    }
    bases
});

/// The entries that so many bytes have room for, with the two dots of a directory that has no entries for them.
fn most_names(pieces: &[(u64, usize)]) -> usize {
    pieces.iter().map(|(_, len)| len / 12).sum::<usize>() + 2
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let base = &BASES[usize::from(flags >> 2) % BASES.len()];
    let device = Arc::new(base.device.snapshot());
    while data.len() >= 4 {
        let place = extant_fuzz::take(&mut data, 4);
        let (at, len) = base.pieces[usize::from(place[0]) % base.pieces.len()];
        // Mostly at a word, where a field begins.
        let offset = usize::from(u16::from_le_bytes([place[1], place[2]])) * 4 % len;
        let change = extant_fuzz::take(&mut data, usize::from(place[3] % 16) + 1);
        let end = (offset + change.len()).min(len);
        let mut bytes = vec![0; len];
        device.read_at(at, &mut bytes, BioFlags::empty()).expect("memory");
        bytes[offset..end].copy_from_slice(&change[..end - offset]);
        device.write_at(at, &[&bytes], BioFlags::empty()).expect("memory");
    }
    let rescue = flags & 1 != 0;
    let options =
        MountOptions { threads: false, seed: Some(1), read_only: true, rescue, cache_bytes: 8 << 20, ..MountOptions::default() };
    let Ok(fs) = Filesystem::mount(device, options) else { return };
    let Ok(dir) = fs.walk(base.path, true) else { return };
    let errors_before = fs.stats.errors.get();
    // So many names a call: it stops within blocks, leaves and equal hashes.
    let batch = if flags & 2 == 0 { 3 } else { 1000 };
    let most = most_names(&base.pieces) * base.pieces.len();
    let (mut cookie, mut names) = (0, 0);
    let ended = loop {
        let mut left = batch;
        let listed = fs.read_dir(&dir, cookie, |item| {
            assert!(!item.name.is_empty() && item.name.len() <= 255 && !item.name.contains(&b'/'));
            assert!(item.next_cookie > cookie, "a cookie leads on");
            left -= 1;
            left >= 0
        });
        match listed {
            Ok(_) if left >= 0 => {
                // Behind the end there is nothing, or the error that hid names.
                break Ok(());
            }
            Ok(next) => {
                names += batch as usize;
                assert!(next > cookie, "a listing moves on");
                cookie = next;
            }
            Err(e) => break Err(e),
        }
        assert!(names <= most, "{names} names in {} blocks", base.pieces.len());
    };
    // Damage that the listing met was counted, and hid names: its end must be an error, with any cookie.
    if ended.is_ok() && fs.stats.errors.get() > errors_before {
        let end = fs.read_dir(&dir, 0x7FFF_FFFF_FFFF_FFFF, |_| true);
        assert!(end.is_err(), "damage was counted, and the listing ends well");
    }
    drop(dir);
    let _ = fs.unmount();
});
