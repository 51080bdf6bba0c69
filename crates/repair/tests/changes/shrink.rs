//! Shrinking: the smaller file system is sound and has the same files, whatever moves, and a power cut while it is
//! written leaves the old size or the new one.
//!
//! Image and record lie on one device that a cut hits, as in `cuts.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::judge::{Cutting, RECORD_BYTES, options, part, recovered};
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CowDevice, CrashMode, MemDevice};
use extant_recovery::locate::read_super;
use extant_repair::resize::{CannotShrink, Growth, ShrinkTarget, shrink};
use extant_repair::{Unsound, WriteMethod, undo};
use extant_testkit::crash::state_files;
use extant_testkit::damage::Image;
use extant_testkit::damage::census::{self, Census};
use extant_testkit::damage::fsck::judged;
use extant_testkit::oracle::memory;

fn shrunk(target: &Arc<dyn BlockDevice>, size: ShrinkTarget) -> Result<Option<Growth>, CannotShrink> {
    shrink(Arc::new(CowDevice::new(target.clone())), &options().check, size)
}

/// Whether both have the same files under the same names, whatever their numbers are. `values`: attributes whose values
/// lie in inodes are compared, too, which shows the numbers of these.
fn same_files(one: &Census, other: &Census, values: bool) -> bool {
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    one.len() == other.len()
        && one.iter().zip(other).all(|((path, file), (other_path, other))| {
            let known = *numbers.entry(file.ino).or_insert(other.ino);
            path == other_path
                && known == other.ino
                && (file.kind, file.size, file.content) == (other.kind, other.size, other.content)
                && (file.attributes == other.attributes || !values)
        })
}

#[derive(Default, Debug)]
struct Tally {
    by_journal: usize,
    by_record: usize,
    renumbered: usize,
    old: usize,
    new: usize,
    by_e2fsck: usize,
}

/// Shrinks an image, cuts the writing after every `step`th event in three ways, and judges each state.
fn cut(name: &str, image: &MemDevice, size: ShrinkTarget, step: usize, tally: &mut Tally) {
    let bytes = image.size_bytes();
    let cutting = Cutting::new(image, bytes);
    let Cutting { crash, target } = &cutting;
    let smaller = shrunk(target, size).unwrap_or_else(|e| panic!("{name}: {e}")).expect("it shrinks");
    let (before, after) = (smaller.before.blocks_count, smaller.after.blocks_count);
    assert!(after < before, "{name}");
    tally.renumbered += smaller.renumbered;
    let how = cutting.write(name, &smaller.outcome);
    let by_journal = matches!(how, WriteMethod::Journal { .. });
    tally.by_journal += usize::from(by_journal);
    tally.by_record += usize::from(!by_journal);
    let finished = part(&crash.live(), 0, bytes);
    let dir = state_files();
    let answer = judged(&finished, dir.path());
    assert_eq!(answer.code, Some(0), "{name}: {}", answer.output);
    let files = [census::take(image), census::take(&finished)];
    assert!(same_files(&files[0], &files[1], true), "{name}: other files");
    let mut rng = Rng::new(7);
    let mut states = 0;
    // Without checksums, a superblock whose sectors are not of one age looks sound.
    for event in (0..=crash.write_log()).filter(|_| !by_journal) {
        for _ in 0..6 {
            let state = crash.state_during(event, &mut rng, CrashMode::Torn).expect("a state");
            let is_after = read_super(&state).is_ok_and(|sb| sb.blocks_count == after);
            if is_after && extant_repair::unfinished(&state).is_none() {
                assert!(census::take(&part(&state, 0, bytes)) == files[1], "{name}: event {event}: torn");
            }
        }
    }
    for event in (0..=crash.write_log()).step_by(step) {
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = crash.state_during(event, &mut rng, mode).expect("a state");
            let now = part(&state, 0, bytes);
            states += 1;
            let now = if by_journal || extant_repair::unfinished(&now).is_none() && read_super(&now).is_ok() {
                recovered(now)
            } else {
                undo(&part(&state, bytes, RECORD_BYTES), &now, false)
                    .unwrap_or_else(|e| panic!("{name}: {event}, {mode:?}: {e}"));
                now
            };
            let blocks = read_super(&now).unwrap_or_else(|e| panic!("{name}: {event}, {mode:?}: {e}")).blocks_count;
            assert!(blocks == before || blocks == after, "{name}: event {event}, {mode:?}: {blocks} blocks");
            let is_new = blocks == after;
            *if is_new { &mut tally.new } else { &mut tally.old } += 1;
            let found = census::take(&now);
            assert!(found == files[usize::from(is_new)], "{name}: event {event}, {mode:?}: other files");
            if states % 17 == 0 {
                let answer = judged(&now, dir.path());
                assert_eq!(answer.code, Some(0), "{name}: event {event}, {mode:?}: {}", answer.output);
                tally.by_e2fsck += 1;
            }
        }
    }
}

/// An image of four groups, whose last ones have inodes of every kind.
fn spread(args: &[&str], more: &str) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let source = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let plain = source("plain", &[b'p'; 9000]);
    let large = source("large", &[b'l'; 700]);
    let empty = source("empty", b"");
    let mut script = String::new();
    // Fillers take the inodes of the first groups.
    for at in 0..180 {
        let _ = writeln!(script, "write {empty} /filler{at}");
    }
    for path in ["dir", "dir/sub", "dir/sub/below", "names"] {
        let _ = writeln!(script, "mkdir /{path}");
    }
    let _ =
        writeln!(script, "write {plain} /file\nwrite {plain} /dir/one\nln /file /dir/sub/hard\nln /file /dir/again");
    let _ = writeln!(script, "symlink /fast target\nsymlink /slow {}", "x".repeat(200));
    let _ = writeln!(script, "mknod chr c 1 3\nmknod fifo p\nwrite {plain} /ea\nea_set -f {large} /ea user.large");
    script.push_str(&"expand_dir /names\n".repeat(14));
    for at in 0..45 {
        let _ = writeln!(script, "ln /file /names/{at:03}{}", "n".repeat(200));
    }
    script.push_str(&more.replace("{plain}", &plain).replace("{empty}", &empty));
    for at in 0..180 {
        let _ = writeln!(script, "rm /filler{at}");
    }
    let made = memory::made(&[&["-b", "1024", "-N", "256"], args].concat(), "32M");
    let edited = memory::edited(&made, &[&script]);
    // debugfs leaves counts of links to e2fsck, which makes the index, too.
    let path = dir.path().join("image");
    edited.save(&path).expect("saved");
    for flags in ["-fyD", "-fy"] {
        extant_testkit::oracle::e2fsck(&path, &[flags]).expect("e2fsck");
    }
    MemDevice::load(&path).expect("loaded")
}

#[test]
fn a_cut_leaves_the_old_size_or_the_new_one() {
    let mut tally = Tally::default();
    let image = spread(&["-t", "ext4", "-J", "size=1"], "");
    cut("spread", &image, ShrinkTarget::To(24 << 20), 5, &mut tally);
    cut("Ext2", Image::Ext2.made(), ShrinkTarget::Least, 9, &mut tally);
    println!("{tally:?}");
    assert!(tally.by_journal == 1 && tally.by_record == 1 && tally.old > 0 && tally.new > 0, "{tally:?}");
    assert!(tally.renumbered > 5 && tally.by_e2fsck > 0, "{tally:?}");
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_a_cut_of_every_kind_leaves_the_old_size_or_the_new_one() {
    let mut tally = Tally::default();
    let left_out = |kind: &Image| matches!(kind, Image::LargeBlocks | Image::ManyInodes) || !is_sound_alone(*kind);
    for kind in Image::ALL.into_iter().filter(|kind| !left_out(kind)) {
        cut(&format!("{kind:?}"), kind.made(), ShrinkTarget::Least, 1, &mut tally);
    }
    for args in [&["-t", "ext2"][..], &["-t", "ext3"], &["-t", "ext4"], &["-t", "ext4", "-O", "^flex_bg,inline_data"]] {
        cut(&format!("{args:?}"), &spread(args, ""), ShrinkTarget::To(12 << 20), 1, &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.by_journal > 0 && tally.by_record > 0 && tally.by_e2fsck > 0, "{tally:?}");
}

/// Shrinks an image beside it, and returns the result.
fn smaller(name: &str, image: &MemDevice, size: ShrinkTarget) -> (MemDevice, Growth) {
    let base: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
    let smaller = shrunk(&base, size).unwrap_or_else(|e| panic!("{name}: {e}"));
    let smaller = smaller.unwrap_or_else(|| panic!("{name}: nothing to do"));
    let after = crate::judge::result(image, &smaller.outcome);
    (after, smaller)
}

#[test]
fn inodes_of_groups_that_go_get_other_numbers_and_keep_their_names() {
    let dir = state_files();
    let inline = "mkdir /inlinedir\nwrite {empty} /inlinedir/a\nmkdir /inlinedir/below\nmkdir /inlinedir/below/it\n";
    let long = "n".repeat(90);
    let values = format!(
        "write {{empty}} /value\nea_set -f {{plain}} /value user.value\nwrite {{plain}} /valueblock\n\
         ea_set -f {{plain}} /valueblock user.{long}\n"
    );
    let kinds: [(&[&str], &str); 8] = [
        (&["-t", "ext2"], ""),
        (&["-t", "ext3"], ""),
        (&["-t", "ext4"], ""),
        (&["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^flex_bg"], ""),
        (&["-t", "ext4", "-O", "inline_data"], inline),
        (&["-t", "ext4", "-O", "ea_inode"], &values),
        (&["-t", "ext4", "-O", "^has_journal,meta_bg,^resize_inode"], ""),
        (&["-t", "ext4", "-O", "quota,project"], ""),
    ];
    for (args, more) in kinds {
        let name = format!("{args:?}");
        let image = spread(args, more);
        let (after, smaller) = smaller(&name, &image, ShrinkTarget::To(9 << 20));
        assert!(smaller.renumbered > 5, "{name}: {}", smaller.renumbered);
        let answer = judged(&after, dir.path());
        assert_eq!(answer.code, Some(0), "{name}: {}", answer.output);
        let (old, new) = (census::take(&image), census::take(&after));
        assert!(same_files(&old, &new, !name.contains("ea_inode")), "{name}: other files");
        let gone = smaller.after.inodes_count;
        for (path, file) in &old {
            let now = new[path].ino;
            assert!(now <= gone && (file.ino > gone || now == file.ino), "{name}: {} to {now}", file.ino);
        }
        if name.contains("ea_inode") {
            let size = |name: &str| memory::debugfs(&after, &format!("ea_get {name}")).len();
            assert!(size("/value user.value") > 1000 && size(&format!("/valueblock user.{long}")) > 1000);
        }
    }
}

/// Whether e2fsck finds nothing in the image, and needs no other disk for that.
fn is_sound_alone(kind: Image) -> bool {
    kind.faults().is_empty() && kind.journal_at().is_none()
}

#[test]
fn every_kind_of_image_shrinks_to_the_least_and_keeps_its_files() {
    let dir = state_files();
    let (mut done, mut refused) = (0, Vec::new());
    for kind in Image::ALL.into_iter().filter(|kind| is_sound_alone(*kind)) {
        let (image, name) = (kind.made(), format!("{kind:?}"));
        let base: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
        match shrunk(&base, ShrinkTarget::Least) {
            Ok(None) => refused.push(format!("{name}: nothing to do")),
            Ok(Some(smaller)) => {
                let after = crate::judge::result(image, &smaller.outcome);
                let answer = judged(&after, dir.path());
                assert_eq!(answer.code, Some(0), "{name}: {}", answer.output);
                assert!(same_files(&census::take(image), &census::take(&after), true), "{name}: other files");
                // No more blocks are left over than those that a last group must have, or that lie before a table.
                let sb = read_super(&after).expect("a superblock");
                println!("{name}: {} of {} blocks are free", sb.free_blocks(), sb.blocks_count);
                let most = (sb.blocks_count / 8).max(50);
                assert!(sb.free_blocks() <= most, "{name}: {} of {}", sb.free_blocks(), sb.blocks_count);
                done += 1;
            }
            Err(e) => refused.push(format!("{name}: {e}")),
        }
    }
    println!("{done} done, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(done >= 15, "{done} done, {} refused:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn too_few_inodes_or_blocks_refuse_a_size() {
    let image = memory::made(&["-t", "ext4", "-b", "1024", "-N", "128"], "32M");
    let mut script = String::new();
    for at in 0..60 {
        let _ = writeln!(script, "mknod fifo{at} p");
    }
    let image = memory::edited(&image, &[&script]);
    let device: Arc<dyn BlockDevice> = Arc::new(image.into_read_only());
    let refused = shrunk(&device, ShrinkTarget::To(9 << 20)).map(|_| ());
    assert!(matches!(refused, Err(CannotShrink::Inodes { moving, there }) if moving > there), "{refused:?}");
    let refused = shrunk(&device, ShrinkTarget::To(2 << 20)).map(|_| ());
    assert!(matches!(refused, Err(CannotShrink::Room | CannotShrink::Inodes { .. })), "{refused:?}");
    assert!(matches!(shrunk(&device, ShrinkTarget::To(32 << 20)), Ok(None)));
}

#[test]
fn the_table_of_damaged_images_shrinks_or_is_refused() {
    let (mut done, mut refused) = (0, 0);
    for mutation in extant_testkit::damage::table().step_by(5) {
        let device: Arc<dyn BlockDevice> = Arc::new(mutation.on(mutation.images[0]).into_read_only());
        match shrunk(&device, ShrinkTarget::Least) {
            Ok(_) => done += 1,
            Err(e @ CannotShrink::Unproved { .. }) => panic!("{}: {e}", mutation.name),
            Err(CannotShrink::Unsound(Unsound::Damaged { .. } | Unsound::Unchecked { .. } | Unsound::Failed(_))) => {
                refused += 1;
            }
            Err(_) => {}
        }
    }
    println!("{done} done, {refused} refused as damaged");
    assert!(refused > 10, "{refused}");
}
