//! Superblocks whose damage does not end a check, and the copy that is used where the primary's does.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Note, Options, Problem, Report, check};
use extant_ondisk::superblock::RawSuperBlock;
use extant_testkit::damage::{Edit, Image};
use extant_testkit::oracle::debugfs_write;

fn checked(device: MemDevice) -> Report {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    check(&device, &Options { now: 2_000_000_000, ..Options::default() }).expect("checked")
}

fn uses_backup(report: &Report) -> bool {
    report.notes.iter().any(|note| matches!(note, Note::BackupSuperblock { .. }))
}

#[test]
fn fields_that_only_e2fsprogs_refuse_are_damage_of_a_primary_that_is_used() {
    let changes: [fn(&mut RawSuperBlock); 3] = [
        |sb| sb.s_clusters_per_group.set(8000),
        |sb| sb.s_log_groups_per_flex = 32,
        |sb| sb.s_r_blocks_count_lo = sb.s_blocks_count_lo,
    ];
    for change in changes {
        let mut edit = Edit::new(Image::Ext4.made());
        edit.superblock(change);
        let report = checked(edit.finish());
        let counts: Vec<_> = report.counts.keys().copied().collect();
        assert_eq!(counts, [Problem::MiscCorruptSuper], "{:?}", report.findings);
        assert!(report.complete && !uses_backup(&report));
    }
}

#[test]
fn a_backup_replaces_a_primary_that_a_mount_refuses() {
    type Change = fn(&mut RawSuperBlock);
    let changes: [(Change, Problem); 3] = [
        (|sb| sb.s_first_ino.set(5), Problem::MiscCorruptSuper),
        (|sb| sb.s_rev_level.set(2), Problem::SbCorrupt),
        (|sb| sb.s_inodes_count.set(7), Problem::InodeCountWrong),
    ];
    for (change, expected) in changes {
        let mut edit = Edit::new(Image::Ext4.made());
        edit.superblock(change);
        let report = checked(edit.finish());
        assert!(report.complete && uses_backup(&report), "{:?}", report.notes);
        assert_eq!(report.count(expected), 1, "{:?}", report.findings);
    }
}

#[test]
fn a_superblock_in_the_log_that_cannot_be_used_is_damage() {
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let sound = Image::Ext4.made();
    let block = |device: &MemDevice| {
        let mut bytes = vec![0; 1024];
        device.read_at(1024, &mut bytes, BioFlags::META).expect("memory");
        bytes
    };
    let log = |name: &str, bytes: &[u8]| {
        sound.save(&dir.path().join("image")).expect("written");
        std::fs::write(path("block"), bytes).expect("written");
        debugfs_write(path("image"), &format!("jo -c -v 3\njw -b 1 {}\njc", path("block"))).expect("logged");
        let report = checked(MemDevice::load(&dir.path().join("image")).expect("loaded"));
        assert!(report.complete && report.notes.contains(&Note::Replayed { transactions: 1 }), "{:?}", report.notes);
        assert_eq!(report.count(Problem::SbCorrupt), u64::from(name != "right"), "{name}: {:?}", report.findings);
    };
    let mut bytes = block(sound);
    log("right", &bytes);
    bytes[0x3ff] ^= 1;
    log("wrong", &bytes);
    log("gone", &[0; 1024]);
}
