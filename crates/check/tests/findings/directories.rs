//! Directories: names that one has twice, and blocks with the highest logical numbers.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_check::{Options, Place, Problem, Report, check};
use extant_testkit::damage::edit::{set_half, set_word};
use extant_testkit::damage::{Edit, Image};

fn checked(device: MemDevice) -> Report {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked")
}

/// The name number `n` of the 45 in `/h1`.
fn name(n: u32) -> String {
    format!("{n:03}{}", "n".repeat(200))
}

#[test]
fn a_name_in_two_blocks_of_a_directory_without_an_index_is_found() {
    let mut edit = Edit::new(Image::Ext2Rev0.made());
    let directory = edit.ino("/h1");
    // All of these names lead to one file, so its link count stays right.
    edit.entry(&format!("/h1/{}", name(44)), |_, bytes| bytes[..3].copy_from_slice(b"000"));
    let report = checked(edit.finish());
    assert_eq!(report.counts, [(Problem::DuplicateDirent, 1)].into(), "{:?}", report.findings);
    let place = report.findings[0].place;
    assert!(matches!(place, Place::Entry { dir, lblk, .. } if dir.0 == directory && lblk > 0), "{place:?}");
}

#[test]
fn blocks_behind_the_last_logical_number_do_not_end_a_check() {
    let mut edit = Edit::new(Image::Ext4.made());
    edit.inode("/dir", |inode| {
        // The first extent: a hundred blocks, sixteen before the last number; only a size over 4 GiB lets it through.
        set_word(&mut inode.i_block, 12, u32::MAX - 15);
        set_half(&mut inode.i_block, 16, 100);
        inode.i_size_high.set(1);
    });
    let report = checked(edit.finish());
    assert!(report.complete && report.count(Problem::DirSizeHighZero) > 0, "{:?}", report.counts);
}
