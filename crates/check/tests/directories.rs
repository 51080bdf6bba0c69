//! Directories whose maps say what cannot be.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_check::{Options, Problem, check};
use extant_testkit::damage::edit::{set_half, set_word};
use extant_testkit::damage::{Edit, Image};

#[test]
fn blocks_behind_the_last_logical_number_do_not_end_a_check() {
    let mut edit = Edit::new(Image::Ext4.made());
    edit.inode("/dir", |inode| {
        // The first extent: a hundred blocks, sixteen before the last number; only a size over 4 GiB lets it through.
        set_word(&mut inode.i_block, 12, u32::MAX - 15);
        set_half(&mut inode.i_block, 16, 100);
        inode.i_size_high.set(1);
    });
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    let report = check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked");
    assert!(report.complete && report.count(Problem::DirSizeHighZero) > 0, "{:?}", report.counts);
}
