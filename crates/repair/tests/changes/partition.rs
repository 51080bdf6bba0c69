//! A file system that changes its size with its partition: a power cut anywhere leaves a valid table whose partition
//! contains the file system, of the old size or of the new one.
//!
//! Disk and record lie on one device that a cut hits, as in `cuts.rs`.

use std::sync::Arc;

use crate::judge::{RECORD_BYTES, options, part, recovered};
use extant_base::rng::Rng;
use extant_block::device::{CowDevice, CrashDevice, CrashMode, MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::partition::{PartitionEnd, Stage, read_table};
use extant_recovery::locate::read_super;
use extant_repair::resize::{Growth, ShrinkTarget, grow, shrink};
use extant_repair::{Stamp, Undo, WriteMethod, commit, undo};
use extant_testkit::damage::Image;
use extant_testkit::damage::census;
use extant_testkit::oracle::{arg, run_command};

/// Where the partition begins.
const START: u64 = 1 << 20;
/// The size of every image of the table.
const OLD_BYTES: u64 = 32 << 20;

/// A disk with one partition that an image fills; `None`: sfdisk is not installed.
fn disk(label: &str, image: &MemDevice) -> Option<MemDevice> {
    let dir = tempfile::tempdir().expect("directory");
    let (path, script) = (dir.path().join("disk"), dir.path().join("script"));
    let tail = if label == "gpt" { 33 * 512 } else { 0 };
    std::fs::File::create(&path).expect("disk").set_len(START + OLD_BYTES + tail).expect("size");
    std::fs::write(&script, format!("label: {label}\nstart=2048, size={}, type=linux\n", OLD_BYTES / 512))
        .expect("file");
    let command = format!("exec sfdisk -q --wipe never '{}' < '{}'", arg(&path), arg(&script));
    let (code, _) = run_command("sh", &["-c", &command]).expect("sh runs");
    if code == Some(127) {
        return None;
    }
    assert_eq!(code, Some(0), "sfdisk");
    let disk = MemDevice::load(&path).expect("loaded");
    let mut bytes = vec![0; OLD_BYTES as usize];
    image.read_at(0, &mut bytes, BioFlags::META).expect("memory");
    disk.write_at(START, &[&bytes], BioFlags::META).expect("memory");
    Some(disk)
}

fn reading(disk: &MemDevice) -> impl FnMut(u64, &mut [u8]) -> bool {
    move |at, into| disk.read_at(at, into, BioFlags::META).is_ok()
}

fn write(disk: &dyn BlockDevice, stages: &[Stage]) {
    for stage in stages {
        for piece in stage {
            disk.write_at(piece.at, &[&piece.bytes], BioFlags::META).expect("written");
        }
        disk.flush().expect("flushed");
    }
}

#[derive(Default, Debug)]
struct Tally {
    old: usize,
    new: usize,
    /// The partition is longer than its file system.
    between: usize,
}

/// Changes the size, cuts the writing after every `step`th event in three ways, and judges each state.
fn cut(label: &str, kind: Image, bytes: u64, step: usize, tally: &mut Tally) {
    let (image, name) = (kind.made(), format!("{label}, {kind:?} to {bytes}"));
    let Some(old) = disk(label, image) else { return };
    let end = PartitionEnd::read(old.size_bytes(), 1, reading(&old)).expect("a partition");
    assert_eq!((end.start, end.len, end.ends_device), (START, OLD_BYTES, true), "{name}");
    let len = PartitionEnd::len_for(bytes);
    let device_len = end.device_len(len);
    let stages = end.moved(len, device_len).unwrap_or_else(|e| panic!("{name}: {e}"));
    let disk_bytes = device_len.max(old.size_bytes()).next_multiple_of(4096);
    let whole = MemDevice::new(disk_bytes + RECORD_BYTES);
    crate::judge::copy(&old, &whole);
    let crash = Arc::new(CrashDevice::from_image(&whole));
    let shared: Arc<dyn BlockDevice> = crash.clone();
    let room = OffsetDevice::new(shared.clone(), START, len.max(OLD_BYTES)).expect("a part");
    let target: Arc<dyn BlockDevice> = Arc::new(room);
    let overlay = Arc::new(CowDevice::new(target.clone()));
    let check = options().check;
    let changed: Option<Growth> = match bytes > OLD_BYTES {
        true => grow(overlay, &check, bytes).unwrap_or_else(|e| panic!("{name}: {e}")),
        false => shrink(overlay, &check, ShrinkTarget::To(bytes)).unwrap_or_else(|e| panic!("{name}: {e}")),
    };
    let changed = changed.expect("another size");
    let (before, after) = (changed.before.blocks_count, changed.after.blocks_count);
    let mut make = |needed: u64| {
        assert!(needed <= RECORD_BYTES, "{name}: {needed}");
        let record = OffsetDevice::new(shared.clone(), disk_bytes, RECORD_BYTES);
        Ok((Arc::new(record.expect("a part")) as Arc<dyn BlockDevice>, b"record".to_vec()))
    };
    if bytes > OLD_BYTES {
        write(&*crash, &stages);
    }
    let stamp = Stamp { sec: 2_000_000_000, nsec: 0 };
    let how = commit(&target, &changed.outcome, 0, stamp, Undo::IfNeeded(&mut make)).expect("written");
    let by_journal = matches!(how, WriteMethod::Journal { .. });
    if bytes < OLD_BYTES {
        write(&*crash, &stages);
    }
    let files = census::take(image);
    let mut rng = Rng::new(5);
    for event in (0..=crash.write_log()).step_by(step) {
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = crash.state_during(event, &mut rng, mode).expect("a state");
            // During a shrinking, the file is still long.
            let there = part(&state, 0, device_len.max(old.size_bytes()));
            let table = read_table(there.size_bytes(), reading(&there));
            let table = table.unwrap_or_else(|e| panic!("{name}: event {event}, {mode:?}: {e}"));
            let found = table.partitions[0].len;
            assert!(found == OLD_BYTES || found == len, "{name}: event {event}, {mode:?}: {found} bytes");
            let now = part(&state, START, found);
            let now = if by_journal || extant_repair::unfinished(&now).is_none() && read_super(&now).is_ok() {
                recovered(now)
            } else {
                let record = part(&state, disk_bytes, RECORD_BYTES);
                undo(&record, &now, false).unwrap_or_else(|e| panic!("{name}: {event}, {mode:?}: {e}"));
                now
            };
            let sb = read_super(&now).unwrap_or_else(|e| panic!("{name}: event {event}, {mode:?}: {e}"));
            let blocks = sb.blocks_count;
            assert!(blocks == before || blocks == after, "{name}: event {event}, {mode:?}: {blocks} blocks");
            assert!(blocks << sb.block_bits <= found, "{name}: event {event}, {mode:?}: {blocks} blocks in {found}");
            assert!(census::take(&now) == files, "{name}: event {event}, {mode:?}: other files");
            let is_new = (blocks == after, found == len);
            match is_new {
                (false, false) => tally.old += 1,
                (true, true) => tally.new += 1,
                _ => tally.between += 1,
            }
        }
    }
}

#[test]
fn a_cut_leaves_a_table_whose_partition_contains_the_file_system() {
    let mut tally = Tally::default();
    cut("gpt", Image::Ext4, OLD_BYTES + (1 << 20), 5, &mut tally);
    cut("gpt", Image::Ext4, OLD_BYTES / 2, 17, &mut tally);
    cut("dos", Image::Ext4, OLD_BYTES + (1 << 20), 11, &mut tally);
    println!("{tally:?}");
    assert!(tally.old + tally.new + tally.between == 0 || tally.old > 0 && tally.new > 0, "{tally:?}");
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_a_cut_leaves_a_table_whose_partition_contains_the_file_system() {
    let mut tally = Tally::default();
    for label in ["gpt", "dos"] {
        for kind in [Image::Ext3, Image::Ext4, Image::Ext4Gdt, Image::Ext4Large] {
            for bytes in [OLD_BYTES + (1 << 20), 2 * OLD_BYTES, OLD_BYTES / 2] {
                cut(label, kind, bytes, 7, &mut tally);
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.old > 0 && tally.new > 0 && tally.between > 0, "{tally:?}");
}
