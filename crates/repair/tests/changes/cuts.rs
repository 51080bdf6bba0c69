//! Power cuts while a repair is written: after recovery there is the old state or the new one.
//!
//! Image and record lie on one device that a cut hits, so their writes are ordered by their flushes alone, and any
//! sector may be torn.

use std::process::Command;
use std::sync::Arc;

use crate::judge::{RECORD_BYTES, options, part, recovered};
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CowDevice, CrashDevice, CrashMode, MemDevice, OffsetDevice};
use extant_repair::{Decision, End, Stamp, Undo, WriteMethod, commit, prove, undo};
use extant_testkit::damage::census::{self, Census};
use extant_testkit::damage::{self, Image, Mutation};

/// Paths with what they lead to, without inode numbers.
fn tree(image: &MemDevice) -> Census {
    census::take(image)
}

#[derive(Default, Debug)]
struct Tally {
    images: usize,
    by_journal: usize,
    states: usize,
    old: usize,
    new: usize,
    undone_by_e2undo: usize,
    /// Undone only by force, because the cut left another superblock than the one that the record counts for.
    with_force: usize,
}

/// Repairs an image, cuts the writing after every event in three ways, and judges each state.
fn cut(name: &str, image: &MemDevice, tally: &mut Tally, e2undo_every: usize) {
    let size = image.size_bytes();
    let whole = MemDevice::new(size + RECORD_BYTES);
    crate::judge::copy(image, &whole);
    let crash = Arc::new(CrashDevice::from_image(&whole));
    let shared: Arc<dyn BlockDevice> = crash.clone();
    let target: Arc<dyn BlockDevice> = Arc::new(OffsetDevice::new(shared.clone(), 0, size).expect("a part"));
    let outcome = prove(Arc::new(CowDevice::new(target.clone())), &options(), &mut |_, _| Decision::Yes);
    let Ok(outcome) = outcome else { return };
    if outcome.end != End::Proved {
        return;
    }
    let mut make = |bytes: u64| {
        assert!(bytes <= RECORD_BYTES, "{bytes}");
        let record = OffsetDevice::new(shared.clone(), size, RECORD_BYTES).expect("a part");
        Ok((Arc::new(record) as Arc<dyn BlockDevice>, b"record".to_vec()))
    };
    let how = commit(&target, &outcome, 0, Stamp { sec: 2_000_000_000, nsec: 0 }, Undo::IfNeeded(&mut make));
    let how = how.expect("written");
    tally.images += 1;
    let by_journal = matches!(how, WriteMethod::Journal { .. });
    tally.by_journal += usize::from(by_journal);
    let finished = part(&crash.live(), 0, size);
    let (old_tree, new_tree) = (tree(image), tree(&finished));
    let mut rng = Rng::new(7);
    let dir = tempfile::tempdir().expect("directory");
    for event in 0..=crash.write_log() {
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = crash.state_during(event, &mut rng, mode).expect("a state");
            let now = part(&state, 0, size);
            tally.states += 1;
            if by_journal {
                let now = recovered(now);
                let found = tree(&now);
                assert!(
                    found == old_tree || found == new_tree,
                    "{name}: {how:?}: neither after event {event}, {mode:?}"
                );
                if found == new_tree {
                    tally.new += 1
                } else {
                    tally.old += 1
                }
                continue;
            }
            if now.first_difference(&finished).expect("compared").is_none() {
                tally.new += 1;
            }
            if now.first_difference(image).expect("compared").is_none() {
                tally.old += 1;
                continue;
            }
            let record = part(&state, size, RECORD_BYTES);
            let undone = now.snapshot();
            undo(&record, &undone, false).unwrap_or_else(|e| panic!("{name}: event {event}, {mode:?}: {e}"));
            assert_eq!(undone.first_difference(image).expect("compared"), None, "{name}: event {event}, {mode:?}");
            tally.old += 1;
            if tally.states.is_multiple_of(e2undo_every) {
                e2undo(&dir, &record, &now, image, tally);
            }
        }
    }
}

/// e2undo undoes it, too: byte for byte where the superblock is the one that the record counts for. With -f, which a
/// torn superblock needs, it marks the file system as damaged and writes the copies of superblock and descriptors anew.
fn e2undo(dir: &tempfile::TempDir, record: &MemDevice, now: &MemDevice, old: &MemDevice, tally: &mut Tally) {
    let (file, image) = (dir.path().join("record"), dir.path().join("image"));
    record.save(&file).expect("saved");
    now.save(&image).expect("saved");
    let run = |args: &[&str]| {
        Command::new("e2undo").args(args).arg(&file).arg(&image).output().expect("e2undo runs").status.success()
    };
    let plain = run(&[]);
    assert!(plain || run(&["-f"]), "e2undo -f");
    if plain {
        let undone = MemDevice::load(&image).expect("loaded");
        assert_eq!(undone.first_difference(old).expect("compared"), None, "e2undo");
    }
    tally.with_force += usize::from(!plain);
    tally.undone_by_e2undo += 1;
}

/// Every `step`th state of the table on images of these kinds.
fn states(kinds: &[Image], step: usize, most: usize) -> Vec<(&'static Mutation, Image)> {
    let all = damage::table().flat_map(|one| one.images.iter().map(move |image| (one, *image)));
    // The first ones damage superblock and journal, so that no repair of them goes through the journal.
    all.filter(|(_, image)| kinds.contains(image)).skip(3 * (step - 1)).step_by(step).take(most).collect()
}

const WITH_JOURNAL: [Image; 6] =
    [Image::Ext4, Image::Ext3, Image::Ext4Gdt, Image::Ext4Plain, Image::Casefold, Image::Dirty];
const WITHOUT: [Image; 4] = [Image::Ext2, Image::Ext2Rev0, Image::MetaBg, Image::ManyInodes];

fn explore(with: usize, without: usize, step: usize, e2undo_every: usize) -> Tally {
    let mut tally = Tally::default();
    for (kinds, most) in [(&WITH_JOURNAL[..], with), (&WITHOUT, without)] {
        let before = tally.images;
        for (mutation, image) in states(kinds, step, usize::MAX) {
            if tally.images - before == most {
                break;
            }
            cut(&format!("{image:?}: {}", mutation.name), &mutation.on(image), &mut tally, e2undo_every);
        }
    }
    println!("{tally:?}");
    tally
}

#[test]
fn a_cut_leaves_the_old_state_or_the_new_one() {
    let tally = explore(4, 4, 23, 5);
    assert!(tally.by_journal >= 2 && tally.images > tally.by_journal && tally.old > 0 && tally.new > 0, "{tally:?}");
    assert!(tally.undone_by_e2undo > 0, "{tally:?}");
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_a_cut_of_a_hundred_repairs_leaves_the_old_state_or_the_new_one() {
    let tally = explore(50, 50, 2, 1);
    assert_eq!(tally.images, 100, "{tally:?}");
}
