//! The search for deleted files, the copy of metadata and the shrinking of damaged images end with an answer: they read
//! every image of the table, and write to none.

mod judge;

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_repair::metadata::Metadata;
use extant_repair::resize::{CannotShrink, ShrinkTarget, shrink};
use extant_repair::undelete::{Chance, search};
use judge::options;

/// The size of every image of the table.
const OLD_BYTES: u64 = 32 << 20;

#[test]
fn damaged_images_are_searched_and_copied_within_bounds() {
    let (mut searched, mut copied, mut shrunk, mut refused) = (0, 0, 0, 0);
    for mutation in extant_testkit::damage::table().step_by(2) {
        let image = mutation.on(mutation.images[0]);
        let base: Arc<dyn BlockDevice> = Arc::new(image.into_read_only());
        let overlay = || Arc::new(CowDevice::new(base.clone()));
        if let Ok(Some(found)) = search(overlay(), &options().check) {
            searched += 1;
            for file in found.files.iter().filter(|file| file.chance == Chance::Whole) {
                let mut bytes = 0;
                let read = found.read::<extant_repair::Error>(file, |_, part| {
                    bytes += part.len() as u64;
                    Ok(())
                });
                assert!(read.is_err() || bytes <= file.inode.size, "{}: {bytes} bytes", mutation.name);
            }
        }
        for scramble in [false, true] {
            let Ok(metadata) = Metadata::of(overlay(), &options().check, scramble) else { continue };
            copied += 1;
            let mut end = 0;
            let unread = metadata.read::<()>(|at, bytes| {
                assert!(at >= end, "{}: not ascending", mutation.name);
                end = at + bytes.len() as u64;
                Ok(())
            });
            assert!(unread.is_ok() && end <= metadata.bytes().max(end), "{}", mutation.name);
        }
        match shrink(overlay(), &options().check, ShrinkTarget::To(OLD_BYTES / 2)) {
            Ok(_) => shrunk += 1,
            Err(e @ CannotShrink::Unproved { .. }) => panic!("{}: {e}", mutation.name),
            Err(_) => refused += 1,
        }
    }
    println!("{searched} searched, {copied} copied, {shrunk} shrunk, {refused} not shrunk");
    assert!(searched > 50 && copied > 50 && refused > 50, "{searched} {copied} {refused}");
}
