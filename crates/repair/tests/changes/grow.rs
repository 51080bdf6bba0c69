//! Growth: the grown file system is sound and has the same files, and a power cut while it is written leaves the old
//! size or the new one.
//!
//! Image and record lie on one device that a cut hits, as in `cuts.rs`.

use std::sync::Arc;

use crate::judge::{Cutting, RECORD_BYTES, options, part, recovered};
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CowDevice, CrashMode, MemDevice};
use extant_recovery::locate::read_super;
use extant_repair::resize::{CannotGrow, Growth, NoGrowth, grow};
use extant_repair::{WriteMethod, undo};
use extant_testkit::crash::state_files;
use extant_testkit::damage::Image;
use extant_testkit::damage::census;
use extant_testkit::damage::fsck::judged;

/// The size of every image of the table.
const OLD_BYTES: u64 = 32 << 20;

fn grown(target: &Arc<dyn BlockDevice>, bytes: u64) -> Result<Option<Growth>, CannotGrow> {
    grow(Arc::new(CowDevice::new(target.clone())), &options().check, bytes)
}

#[derive(Default, Debug)]
struct Tally {
    by_journal: usize,
    by_record: usize,
    old: usize,
    new: usize,
    by_e2fsck: usize,
}

/// Grows an image, cuts the writing after every event in three ways, and judges each state.
fn cut(kind: Image, bytes: u64, tally: &mut Tally) {
    let image = kind.made();
    assert_eq!(image.size_bytes(), OLD_BYTES, "{kind:?}");
    let name = format!("{kind:?} to {bytes}");
    let cutting = Cutting::new(image, bytes);
    let Cutting { crash, target } = &cutting;
    let growth = grown(target, bytes).unwrap_or_else(|e| panic!("{name}: {e}")).expect("it grows");
    let (before, after) = (growth.before.blocks_count, growth.after.blocks_count);
    assert!(before < after, "{name}");
    let how = cutting.write(&name, &growth.outcome);
    let by_journal = matches!(how, WriteMethod::Journal { .. });
    tally.by_journal += usize::from(by_journal);
    tally.by_record += usize::from(!by_journal);
    let finished = part(&crash.live(), 0, bytes);
    let dir = state_files();
    assert_eq!(judged(&finished, dir.path()).code, Some(0), "{name}");
    let files = census::take(image);
    assert!(census::take(&finished) == files, "{name}: other files");
    let mut rng = Rng::new(7);
    let mut states = 0;
    for event in 0..=crash.write_log() {
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = crash.state_during(event, &mut rng, mode).expect("a state");
            let now = part(&state, 0, bytes);
            states += 1;
            let now = if by_journal || extant_repair::unfinished(&now).is_none() && read_super(&now).is_ok() {
                recovered(now)
            } else {
                let undone = now.snapshot();
                undo(&part(&state, bytes, RECORD_BYTES), &undone, false)
                    .unwrap_or_else(|e| panic!("{name}: {event}: {e}"));
                let same = part(&undone, 0, OLD_BYTES).first_difference(image).expect("compared");
                assert_eq!(same, None, "{name}: event {event}, {mode:?}");
                undone
            };
            let blocks = read_super(&now).unwrap_or_else(|e| panic!("{name}: {event}, {mode:?}: {e}")).blocks_count;
            assert!(blocks == before || blocks == after, "{name}: event {event}, {mode:?}: {blocks} blocks");
            *if blocks == before { &mut tally.old } else { &mut tally.new } += 1;
            assert!(census::take(&now) == files, "{name}: event {event}, {mode:?}: other files");
            if states % 17 == 0 {
                let answer = judged(&now, dir.path());
                assert_eq!(answer.code, Some(0), "{name}: event {event}, {mode:?}: {}", answer.output);
                tally.by_e2fsck += 1;
            }
        }
    }
}

fn cut_all(growths: &[(Image, u64)]) {
    let mut tally = Tally::default();
    growths.iter().for_each(|(kind, bytes)| cut(*kind, *bytes, &mut tally));
    println!("{tally:?}");
    assert!(tally.by_journal > 0 && tally.by_record > 0 && tally.old > 0 && tally.new > 0, "{tally:?}");
}

#[test]
fn a_cut_leaves_the_old_size_or_the_new_one() {
    cut_all(&[(Image::Ext4, OLD_BYTES + (1 << 20)), (Image::MetaBg, OLD_BYTES + (9 << 20))]);
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_a_cut_of_a_large_growth_leaves_the_old_size_or_the_new_one() {
    let kinds = [Image::Ext2, Image::Ext3, Image::Ext4Gdt, Image::Ext4, Image::MetaBg, Image::Bigalloc, Image::Quota];
    cut_all(&kinds.map(|kind| (kind, 3 * OLD_BYTES)));
}

#[test]
fn an_image_that_cannot_grow_is_left_as_it_is() {
    let image = Image::Ext4.made();
    let device: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
    assert!(matches!(grown(&device, OLD_BYTES), Ok(None)));
    assert!(matches!(grown(&device, OLD_BYTES - 1), Err(CannotGrow::Layout(NoGrowth::Smaller { .. }))));
    assert!(matches!(grown(&device, 2 * OLD_BYTES), Err(CannotGrow::DeviceSize { there: OLD_BYTES, .. })));
    assert!(grown(&device, u64::MAX).is_err());
    let damaged = image.snapshot();
    let sb = read_super(&damaged).expect("a superblock");
    let (table, _) = sb.group_desc_block(extant_ondisk::GroupNr(0)).expect("a place");
    let zeros = vec![0; sb.block_size as usize];
    damaged.write_at(table.0 << sb.block_bits, &[&zeros], extant_block::BioFlags::META).expect("memory");
    let device: Arc<dyn BlockDevice> = Arc::new(damaged);
    assert!(matches!(grown(&device, 2 * OLD_BYTES), Err(CannotGrow::Damaged { .. })));
}

#[test]
fn the_table_of_damaged_images_grows_or_is_refused() {
    for mutation in extant_testkit::damage::table().step_by(3) {
        let image = mutation.on(mutation.images[0]);
        let larger = MemDevice::new(2 * OLD_BYTES);
        crate::judge::copy(&image, &larger);
        let device: Arc<dyn BlockDevice> = Arc::new(larger);
        if let Err(e @ CannotGrow::Unproved { .. }) = grown(&device, 2 * OLD_BYTES) {
            panic!("{}: {e}", mutation.name);
        }
    }
}
