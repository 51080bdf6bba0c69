//! Lists of orphans that cannot be.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_check::{Options, Problem, check, is_described};
use extant_testkit::damage::{Edit, Image};

#[test]
fn a_list_of_orphans_that_comes_round_is_damage() {
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
