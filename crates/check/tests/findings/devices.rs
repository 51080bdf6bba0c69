//! The requests of a check: holes are not read, and unreadable blocks are listed while the rest is checked.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{Fault, FaultyDevice, MemDevice, OffsetDevice};
use extant_check::{Options, Place, Problem, Report, check};
use extant_ondisk::{BlockNr, GroupNr};
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
    // This device cannot report its holes.
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

#[test]
fn descriptors_beside_a_block_that_cannot_be_read_are_used() {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext4", 256 << 20);
    // Sixteen descriptors a block, from block 2 on.
    options.extra_args = ["-b", "1024", "-O", "64bit"].map(str::to_owned).into();
    let device =
        FaultyDevice::new(Arc::new(MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded")));
    device.inject(Fault::eio().range(3 << 10..4 << 10));
    let report = checked(Arc::new(device));
    let of = |problem| report.findings.iter().filter(move |finding| finding.problem == problem);
    assert_eq!(of(Problem::Unreadable).map(|finding| finding.place).collect::<Vec<_>>(), [Place::Blocks(BlockNr(3))]);
    let groups: Vec<_> = of(Problem::BbNotGroup).map(|finding| finding.place).collect();
    assert_eq!(groups, (16..32).map(|group| Place::Group(GroupNr(group))).collect::<Vec<_>>());
}

/// The image's first bytes, with a wrong link count in them.
fn cut_to(image: Image, bytes: u64) -> Report {
    let mut edit = extant_testkit::damage::Edit::new(image.made());
    edit.inode("/empty", |inode| inode.i_links_count.set(9));
    checked(Arc::new(OffsetDevice::new(Arc::new(edit.finish()), 0, bytes).expect("a part")))
}

#[test]
fn an_image_that_ends_early_is_checked_to_its_end() {
    // 32 MiB in groups of 8 MiB: cut in the middle of the third group, and within the first.
    for (image, bytes) in [(Image::Ext2, 20 << 20), (Image::Ext2, 7 << 20), (Image::Ext4, 20 << 20)] {
        let report = cut_to(image, bytes);
        let end = bytes >> 10;
        assert!(report.complete && report.count(Problem::FsSizeWrong) == 1, "{image:?}: {:?}", report.counts);
        assert!(report.count(Problem::BadRefCount) > 0, "{image:?}: {:?}", report.counts);
        assert_eq!(
            report.count(Problem::IllegalBlockNum),
            0,
            "{image:?}: existing blocks are not outside the file system"
        );
        let lost = report.findings.iter().filter(|finding| finding.problem == Problem::Unreadable);
        let lost: Vec<_> = lost.map(|finding| finding.place).collect();
        // With flex_bg, all tables lie at the front.
        assert!(!lost.is_empty() || image == Image::Ext4, "{image:?}: {:?}", report.counts);
        assert!(lost.iter().all(|place| *place >= Place::Blocks(BlockNr(end))), "{image:?}: {lost:?}");
    }
}

#[test]
fn a_check_completes_if_only_the_superblock_is_readable() {
    let image = Image::Ext2.made().snapshot();
    let size = image.size_bytes();
    let device = FaultyDevice::new(Arc::new(image));
    device.inject(Fault::eio().range(4096..size));
    let report = checked(Arc::new(device));
    assert!(report.is_damaged() && report.count(Problem::Unreadable) > 0, "{:?}", report.counts);
}

#[test]
fn a_device_that_cannot_be_read_at_all_is_an_error() {
    let image = Image::Ext2.made().snapshot();
    let size = image.size_bytes();
    let device = FaultyDevice::new(Arc::new(image));
    device.inject(Fault::eio().range(0..size));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    assert!(check(&device, &Options::default()).is_err());
}
