//! What a check asks of its device: holes are not read, and what cannot be read is listed while the rest is checked.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_check::{Options, Place, Problem, Report, check};
use extant_ondisk::BlockNr;
use extant_testkit::damage::Image;
use extant_testkit::oracle::{MkfsOptions, make_image};

fn checked(device: Arc<dyn BlockDevice>) -> Report {
    check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked")
}

#[test]
fn holes_of_a_device_are_not_read() {
    let dir = tempfile::tempdir().expect("directory");
    // Inode tables without a checksum are zeroes until they are used.
    let image = make_image(dir.path(), &MkfsOptions::new("ext3", 4 << 30)).expect("made");
    let device = MemDevice::load(&image).expect("loaded");
    // This one cannot say where its holes are.
    let unaware = checked(Arc::new(FaultyDevice::new(Arc::new(device.snapshot()))));
    let aware = checked(Arc::new(device));
    assert_eq!((&aware.findings, &aware.counts), (&unaware.findings, &unaware.counts));
    let (few, all) = (aware.totals.read_bytes, unaware.totals.read_bytes);
    assert!(all > 32 << 20, "{all} bytes are worth sparing");
    assert!(few * 10 < all, "{few} bytes read, {all} without holes");
}

#[test]
fn a_block_that_cannot_be_read_is_listed_and_the_rest_is_checked() {
    let mut edit = extant_testkit::damage::Edit::new(Image::Ext2.made());
    edit.inode("/empty", |inode| inode.i_links_count.set(9));
    let lost = edit.nodes("/far")[0];
    let size = edit.block_size() as u64;
    let device = FaultyDevice::new(Arc::new(edit.finish()));
    device.inject(Fault::eio().range(lost * size..(lost + 1) * size));
    let report = checked(Arc::new(device));
    let unreadable: Vec<_> = report.findings.iter().filter(|finding| finding.problem == Problem::Unreadable).collect();
    assert_eq!(unreadable.iter().map(|finding| finding.place).collect::<Vec<_>>(), [Place::Blocks(BlockNr(lost))]);
    assert!(report.complete && report.count(Problem::BadRefCount) > 0, "{:?}", report.counts);
}
