//! Impossible lists of orphans.

use std::sync::Arc;

use extant_block::device::{MemDevice, TracedDevice};
use extant_block::{BioOp, BlockDevice};
use extant_check::{Options, Problem, check, is_described};
use extant_testkit::damage::{Edit, Image};
use extant_testkit::oracle::{MkfsOptions, make_image};

#[test]
fn a_circular_list_of_orphans_is_damage() {
    let mut edit = Edit::new(Image::Ext4.made());
    let [a, b] = [edit.ino("/file"), edit.ino("/dir")];
    edit.superblock(|sb| sb.s_last_orphan.set(a));
    edit.inode(a, |inode| inode.i_dtime.set(b));
    edit.inode(b, |inode| inode.i_dtime.set(a));
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    let options = Options { now: 2_000_000_000, ..Options::default() };
    let report = check(&device, &options).expect("checked");
    assert_eq!(report.count(Problem::OrphanIllegalInode), 1, "{:?}", report.counts);
}

#[test]
fn descriptors_without_a_place_are_damage_whatever_the_mark_says() {
    let options = Options { now: 2_000_000_000, ..Options::default() };
    let sound: Arc<dyn BlockDevice> = Arc::new(Image::Ext4.made().snapshot());
    assert!(is_described(&sound, &options).expect("looked at"));
    let mut edit = Edit::new(Image::Ext4.made());
    edit.group_copies(1, |group| group.bg_block_bitmap_lo.set(0));
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    assert!(!is_described(&device, &options).expect("looked at"));
    let report = check(&device, &options).expect("checked");
    assert_eq!(report.count(Problem::BbNotGroup), 1, "{:?}", report.counts);
}

#[test]
fn orphans_of_one_table_are_read_together() {
    let reads = |device: MemDevice| {
        let traced = Arc::new(TracedDevice::new(Arc::new(device)));
        let device: Arc<dyn BlockDevice> = traced.clone();
        let options = Options { now: 2_000_000_000, ..Options::default() };
        let report = check(&device, &options).expect("checked");
        assert_eq!(report.count(Problem::OrphanIllegalInode), 0, "{:?}", report.findings);
        traced.count(BioOp::Read)
    };
    let mut edit = Edit::new(Image::Ext4.made());
    let (first, last) = (12, edit.ino("/empty").max(30));
    for ino in first..last {
        edit.inode(ino, |inode| inode.i_dtime.set(ino + 1));
    }
    edit.inode(last, |inode| inode.i_dtime.set(0));
    edit.superblock(|sb| sb.s_last_orphan.set(first));
    let (without, with) = (reads(Image::Ext4.made().snapshot()), reads(edit.finish()));
    assert!(with <= without + 1, "{with} requests with {} orphans, {without} without", last - first + 1);
}

/// Two groups have tables that overlap, so that an orphan's piece of one begins in the same place as the last piece of
/// the other, which is shorter.
#[test]
fn orphans_in_tables_that_overlap_are_damage() {
    const PIECE: u32 = 64;
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext4", 32 << 20);
    options.extra_args = ["-b", "1024", "-I", "256", "-N", "2592"].map(str::to_owned).into();
    let mut edit = Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"));
    let geometry = edit.geometry().clone();
    let (per_block, table) = (geometry.inodes_per_block(), edit.group_desc(0).bg_inode_table_lo.get());
    let last = geometry.inode_table_blocks / PIECE * PIECE;
    assert!(last > 0 && geometry.inode_table_blocks - last < PIECE - 1);
    edit.group_copies(1, |group| group.bg_inode_table_lo.set(table + last));
    let first = last * per_block + 1;
    let second = geometry.inodes_per_group + (PIECE - 1) * per_block + 1;
    edit.superblock(|sb| sb.s_last_orphan.set(first));
    edit.inode(first, |inode| inode.i_dtime.set(second));
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    let options = Options { now: 2_000_000_000, ..Options::default() };
    let report = check(&device, &options).expect("checked");
    assert!(report.count(Problem::ItableConflict) > 0, "{:?}", report.counts);
}
