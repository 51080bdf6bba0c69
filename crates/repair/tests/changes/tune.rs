//! Tuning: the changed file system is sound and has the same files, and a power cut while it is written leaves the old
//! state or the new one.
//!
//! Image and record lie on one device that a cut hits, as in `cuts.rs`.

use std::sync::Arc;

use crate::judge::{Cutting, RECORD_BYTES, options, part, recovered};
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CowDevice, CrashMode};
use extant_ondisk::superblock::SuperBlock;
use extant_recovery::locate::read_super;
use extant_repair::tune::{CannotTune, Change, Feature, Tuned, tune};
use extant_repair::{Unsound, WriteMethod, undo};
use extant_testkit::crash::state_files;
use extant_testkit::damage::Image;
use extant_testkit::damage::census;
use extant_testkit::damage::fsck::judged;

const UUID: [u8; 16] = [7; 16];

fn tuned(target: &Arc<dyn BlockDevice>, changes: &[Change]) -> Result<Tuned, CannotTune> {
    tune(Arc::new(CowDevice::new(target.clone())), &options().check, changes, None)
}

fn feature(word: &str) -> Change {
    let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
    Change::Feature { feature: Feature::by_name(name).expect("a feature"), on }
}

/// The fields of the superblock that the changes here set.
fn mark(sb: &SuperBlock) -> ([u8; 16], [u8; 16], [u32; 3], u64, u16) {
    let raw = sb.raw();
    let features = [sb.compat().bits(), sb.incompat().bits() & !4, sb.ro_compat().bits()];
    (raw.s_uuid, raw.s_volume_name, features, sb.reserved_blocks(), raw.s_errors.get())
}

#[derive(Default, Debug)]
struct Tally {
    by_journal: usize,
    by_record: usize,
    old: usize,
    new: usize,
    by_e2fsck: usize,
}

/// Tunes an image, cuts the writing after every `step`th event in three ways, and judges each state.
fn cut(kind: Image, changes: &[Change], step: usize, tally: &mut Tally) {
    let image = kind.made();
    let bytes = image.size_bytes();
    let name = format!("{kind:?}: {changes:?}");
    let cutting = Cutting::new(image, bytes);
    let Cutting { crash, target } = &cutting;
    let tuned = tuned(target, changes).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (before, after) = (mark(&tuned.before), mark(&tuned.after));
    assert!(before != after, "{name}");
    let how = cutting.write(&name, &tuned.outcome);
    let by_journal = matches!(how, WriteMethod::Journal { .. });
    tally.by_journal += usize::from(by_journal);
    tally.by_record += usize::from(!by_journal);
    let finished = part(&crash.live(), 0, bytes);
    let dir = state_files();
    let answer = judged(&finished, dir.path());
    assert_eq!(answer.code, Some(0), "{name}: {}", answer.output);
    assert!(mark(&read_super(&finished).expect("a superblock")) == after, "{name}");
    let files = census::take(image);
    assert!(census::take(&finished) == files, "{name}: other files");
    let mut rng = Rng::new(7);
    let mut states = 0;
    for event in (0..=crash.write_log()).step_by(step) {
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
                assert_eq!(undone.first_difference(image).expect("compared"), None, "{name}: event {event}, {mode:?}");
                undone
            };
            let sb = read_super(&now).unwrap_or_else(|e| panic!("{name}: {event}, {mode:?}: {e}"));
            let found = mark(&sb);
            assert!(found == before || found == after, "{name}: event {event}, {mode:?}: {found:?}");
            *if found == before { &mut tally.old } else { &mut tally.new } += 1;
            assert!(census::take(&now) == files, "{name}: event {event}, {mode:?}: other files");
            if states % 17 == 0 {
                let answer = judged(&now, dir.path());
                assert_eq!(answer.code, Some(0), "{name}: event {event}, {mode:?}: {}", answer.output);
                tally.by_e2fsck += 1;
            }
        }
    }
}

#[test]
fn a_cut_leaves_the_old_state_or_the_new_one() {
    let mut tally = Tally::default();
    cut(Image::Ext4, &[Change::Uuid(UUID)], 7, &mut tally);
    cut(Image::Ext4, &[Change::Label(b"label".to_vec()), Change::Errors(2)], 1, &mut tally);
    cut(Image::Ext3, &[feature("^has_journal")], 1, &mut tally);
    println!("{tally:?}");
    assert!(tally.by_journal > 0 && tally.by_record > 0 && tally.old > 0 && tally.new > 0, "{tally:?}");
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_a_cut_of_every_letter_leaves_the_old_state_or_the_new_one() {
    let mut tally = Tally::default();
    for kind in [Image::Ext2, Image::Ext3, Image::Ext4Gdt, Image::Ext4, Image::MetaBg, Image::Dirty] {
        let letters: [&[Change]; 5] = [
            &[Change::Label(b"label".to_vec())],
            &[Change::Uuid(UUID)],
            &[Change::ReservedPercent(1.0)],
            &[Change::Errors(3)],
            &[feature("^dir_index"), feature("^filetype")],
        ];
        letters.iter().for_each(|changes| cut(kind, changes, 3, &mut tally));
    }
    for kind in [Image::Ext3, Image::Ext4Gdt] {
        cut(kind, &[feature("metadata_csum")], 3, &mut tally);
        cut(kind, &[feature("^has_journal")], 3, &mut tally);
    }
    cut(Image::Ext4, &[feature("^metadata_csum")], 3, &mut tally);
    println!("{tally:?}");
    assert!(tally.by_journal > 0 && tally.by_record > 0 && tally.by_e2fsck > 0, "{tally:?}");
}

/// Every kind of image of the table.
const KINDS: [Image; 18] = [
    Image::Ext2,
    Image::Ext2Rev0,
    Image::Ext3,
    Image::Ext4Plain,
    Image::Ext4Gdt,
    Image::Ext4,
    Image::Ext4Large,
    Image::MetaBg,
    Image::OrphanFile,
    Image::InlineData,
    Image::Bigalloc,
    Image::Quota,
    Image::EaInode,
    Image::Casefold,
    Image::Encrypt,
    Image::Mmp,
    Image::Dirty,
    Image::LargeBlocks,
];

#[test]
fn every_kind_of_image_is_tuned_or_refused_and_keeps_its_files() {
    let words = ["metadata_csum", "^metadata_csum", "has_journal", "^has_journal", "^filetype", "^dir_index"];
    let words = words.into_iter().chain(["^resize_inode", "orphan_file", "^orphan_file", "mmp", "^mmp", "uninit_bg"]);
    let words = words.chain(["^uninit_bg", "metadata_csum_seed"]);
    let changes: Vec<Change> = words.map(feature).chain([Change::Uuid(UUID)]).collect();
    let dir = state_files();
    let (mut done, mut refused) = (0, Vec::new());
    for kind in KINDS {
        let image = kind.made();
        let files = census::take(image);
        for change in &changes {
            let name = format!("{kind:?}: {change:?}");
            let base: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
            match tuned(&base, std::slice::from_ref(change)) {
                Ok(tuned) => {
                    let after = crate::judge::result(image, &tuned.outcome);
                    let answer = judged(&after, dir.path());
                    assert_eq!(answer.code, Some(0), "{name}: {}", answer.output);
                    assert!(census::take(&after) == files, "{name}: other files");
                    done += 1;
                }
                Err(e) => refused.push(format!("{name}: {e}")),
            }
        }
    }
    println!("{done} done, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(done > 6 * refused.len(), "{done} done, {} refused:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn the_table_of_damaged_images_is_tuned_or_refused() {
    let (mut done, mut refused) = (0, 0);
    for mutation in extant_testkit::damage::table().step_by(3) {
        let image = mutation.on(mutation.images[0]);
        let device: Arc<dyn BlockDevice> = Arc::new(image.into_read_only());
        match tuned(&device, &[Change::Uuid(UUID)]) {
            Ok(_) => done += 1,
            Err(e @ CannotTune::Unproved { .. }) => panic!("{}: {e}", mutation.name),
            Err(CannotTune::Unsound(Unsound::Damaged { .. } | Unsound::Unchecked { .. } | Unsound::Failed(_))) => {
                refused += 1;
            }
            Err(_) => {}
        }
    }
    println!("{done} done, {refused} refused as damaged");
    assert!(refused > 10, "{refused}");
}
