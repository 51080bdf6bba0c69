//! Rules that a comparison with e2fsck has brought: the problem, its place, and its severity.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_check::{Finding, Options, Place, Report, check, examine};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::xattr::entry_hash;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use extant_testkit::damage::edit::{set_half, set_word};
use extant_testkit::damage::{Edit, Image};

fn damaged(image: Image, change: impl FnOnce(&mut Edit)) -> Report {
    let mut edit = Edit::new(image.made());
    change(&mut edit);
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked")
}

/// The findings of a problem, by e2fsck's name.
fn of<'a>(report: &'a Report, name: &str) -> Vec<&'a Finding> {
    report.findings.iter().filter(|finding| finding.problem.name() == name).collect()
}

#[test]
fn an_extent_in_a_leaf_ends_with_its_file() {
    let report = damaged(Image::Ext4, |edit| {
        // The first extent of the leaf: `ee_len`.
        edit.node("/depth1", 0, |node| set_half(node, 16, 5000));
    });
    assert_eq!(of(&report, "EXTENT_END_OUT_OF_BOUNDS").len(), 1, "{:?}", report.counts);
    assert_eq!(of(&report, "DUP_BLOCK").len(), 0, "its length counts as wrong: {:?}", report.counts);
}

#[test]
fn the_resize_inode_is_an_owner_of_blocks_that_a_file_claims() {
    let report = damaged(Image::Ext3, |edit| {
        let reserved = edit.data(InodeNr::RESIZE.0)[0].1 as u32;
        edit.inode("/file", |inode| set_word(&mut inode.i_block, 0, reserved));
    });
    let owners: Vec<_> = of(&report, "DUP_BLOCK").iter().filter_map(|finding| finding.place.ino()).collect();
    assert!(owners.contains(&InodeNr::RESIZE), "{owners:?}");
}

#[test]
fn a_block_twice_in_the_resize_inode_is_damage() {
    let report = damaged(Image::Bigalloc, |edit| {
        let double = edit.nodes(InodeNr::RESIZE.0)[0];
        edit.block(double, |pointers| {
            let free = pointers.chunks(4).position(|pointer| pointer == [0; 4]).expect("a free slot");
            let used = pointers.chunks(4).position(|pointer| pointer != [0; 4]).expect("a used slot");
            pointers.copy_within(used * 4..used * 4 + 4, free * 4);
        });
    });
    assert_eq!(of(&report, "RESIZE_INODE_INVALID").len(), 1, "{:?}", report.counts);
}

#[test]
fn an_inode_of_bad_blocks_that_is_a_file_is_damage() {
    let report = damaged(Image::Ext2, |edit| edit.inode(1, |inode| inode.i_uid.set(1000)));
    assert_eq!(of(&report, "INVALID_BAD_INODE").len(), 1, "{:?}", report.counts);
    assert!(report.is_damaged());
}

#[test]
fn the_blocks_of_the_list_of_bad_blocks_are_not_counted() {
    let report = damaged(Image::Ext2, |edit| edit.inode(1, |inode| inode.i_blocks_lo.set(77)));
    assert!(report.counts.is_empty(), "{:?}", report.counts);
}

#[test]
fn an_attribute_without_a_value_may_lie_anywhere() {
    let report = damaged(Image::Ext4, |edit| {
        // Behind the first entry, whose name has five bytes: one without a name, its value at 256.
        edit.inode_attributes("/ea", |area| set_half(area, 4 + 16 + 8 + 2, 256));
    });
    assert!(!report.is_damaged(), "{:?}", report.counts);
}

#[test]
fn an_unknown_encoding_of_names_is_damage() {
    let report = damaged(Image::Casefold, |edit| edit.superblock(|sb| sb.s_encoding.set(2)));
    assert_eq!(of(&report, "MISC_CORRUPT_SUPER").len(), 1, "{:?}", report.counts);
}

#[test]
fn the_hash_of_a_value_covers_the_padding_of_its_last_word() {
    let report = damaged(Image::Ext4, |edit| {
        edit.attributes("/eablock", |block| {
            // The first entry: its value's size, and its hash.
            let value = usize::from(u16::from_le_bytes([block[34], block[35]]));
            let word = [block[value], block[value + 1], block[value + 2], block[value + 3]];
            assert_ne!(word[2..], [0, 0]);
            set_word(block, 40, 2);
            set_word(block, 44, entry_hash(b"large", &word));
        });
    });
    assert!(!report.is_damaged(), "{:?}", report.counts);
}

#[test]
fn an_entry_without_a_file_type_is_no_damage() {
    let report = damaged(Image::Ext4, |edit| edit.entry("/file", |raw, _| raw.file_type = 0));
    assert_eq!(of(&report, "SET_FILETYPE").len(), 1, "{:?}", report.counts);
    assert!(!report.is_damaged(), "{:?}", report.counts);
}

#[test]
fn no_entry_has_the_kind_of_an_inode_with_impossible_fields() {
    let report = damaged(Image::Ext2, |edit| edit.inode("/dir/one", |inode| inode.i_obso_faddr.set(1)));
    let dir = Edit::new(Image::Ext2.made()).ino("/dir");
    let found: Vec<_> = of(&report, "BAD_FILETYPE").iter().filter_map(|finding| finding.place.ino()).collect();
    assert_eq!(found, [InodeNr(dir)], "{:?}", report.counts);
}

#[test]
fn tables_that_overlap_are_reported_as_a_run_of_blocks() {
    let report = damaged(Image::Ext4, |edit| {
        let first = edit.group_desc(0).bg_inode_table_lo.get();
        edit.group_copies(1, |group| group.bg_inode_table_lo.set(first + 1));
    });
    let runs = of(&report, "ITABLE_CONFLICT");
    let blocks = u64::from(Edit::new(Image::Ext4.made()).geometry().inode_table_blocks);
    assert!(runs.iter().any(|run| run.place == Place::Group(GroupNr(1)) && run.expected >= blocks - 1), "{runs:?}");
}

#[test]
fn an_unwritten_bitmap_is_read_where_its_group_has_a_wrong_checksum() {
    let report = damaged(Image::Ext4Gdt, |edit| {
        let unwritten = |group: &u32| edit.group_desc(*group).bg_flags.get() & 2 != 0;
        let group = (0..edit.groups()).find(unwritten).expect("a group whose bitmap is unwritten");
        edit.block_bitmap(group, |bits| bits[500] |= 1);
        edit.leave_checksums();
        edit.group(group, |desc| desc.bg_checksum.set(desc.bg_checksum.get() ^ 1));
    });
    assert_eq!(of(&report, "GDT_CSUM").len(), 1, "{:?}", report.counts);
    assert!(!of(&report, "BLOCK_UNUSED").is_empty(), "{:?}", report.counts);
}

#[test]
fn an_index_node_whose_empty_entry_has_a_file_type_is_damage() {
    let report = damaged(Image::Ext4, |edit| {
        let data = edit.data("/h2");
        let node = |(_, block): &&(u64, u64)| {
            let bytes = edit.read(block * edit.block_size() as u64, 12);
            bytes[..8] == [0, 0, 0, 0, 0, 4, 0, 0]
        };
        let lblk = data.iter().find(node).expect("a node of the index").0;
        edit.dir_block("/h2", lblk, |bytes| bytes[7] = 7);
    });
    assert_eq!(of(&report, "BAD_FILETYPE").len(), 1, "{:?}", report.counts);
}

#[test]
fn a_run_across_clusters_is_reported_with_its_length() {
    let report = damaged(Image::Bigalloc, |edit| {
        edit.inode("/file", |inode| {
            let block =
                u32::from_le_bytes([inode.i_block[20], inode.i_block[21], inode.i_block[22], inode.i_block[23]]);
            set_word(&mut inode.i_block, 20, block + 1);
        });
    });
    let found: Vec<_> = of(&report, "MISALIGNED_CLUSTER").iter().map(|finding| finding.found).collect();
    assert_eq!(found, [20]);
}

#[test]
fn an_inline_symlink_with_an_attribute_block_has_no_map() {
    let report = damaged(Image::InlineData, |edit| {
        let block = u64::from(edit.raw_inode("/eablock").i_file_acl_lo.get());
        let shared = edit.raw_inode("/eashared").i_file_acl_lo;
        assert_eq!(u64::from(shared.get()), block, "both have one attribute block");
        edit.inode("/fast", |inode| {
            inode.i_flags.set(inode.i_flags.get() | InodeFlags::INLINE_DATA.bits());
            inode.i_file_acl_lo = shared;
        });
    });
    assert_eq!(of(&report, "ILLEGAL_BLOCK_NUM").len(), 0, "{:?}", report.findings);
}

#[test]
fn a_bad_block_in_a_table_is_no_second_claim() {
    let mut table = 0;
    let report = damaged(Image::Ext2, |edit| {
        table = edit.group_desc(0).bg_inode_table_lo.get() + 20;
        edit.inode(1, |inode| set_word(&mut inode.i_block, 0, table));
    });
    assert_eq!(of(&report, "DUP_BLOCK").len(), 0, "{:?}", report.findings);
    // A block that is a file's, too, remains claimed twice.
    let report = damaged(Image::Ext2, |edit| {
        let data = edit.data("/file")[0].1 as u32;
        edit.inode(1, |inode| set_word(&mut inode.i_block, 0, data));
    });
    assert_eq!(of(&report, "DUP_BLOCK").len(), 2, "{:?}", report.findings);
}

#[test]
fn the_primary_superblock_and_descriptors_are_no_bad_blocks() {
    for image in [Image::Ext2, Image::Ext4Large] {
        let report = damaged(image, |edit| {
            let bad = edit.free_blocks(1)[0] as u32;
            let first = u32::from(edit.block_size() == 1024);
            edit.inode(1, |inode| {
                inode.i_flags.set(0);
                [bad, first, first + 1].iter().enumerate().for_each(|(at, block)| {
                    set_word(&mut inode.i_block, at * 4, *block);
                });
            });
        });
        // Block 0, which has the superblock where blocks are large, is no pointer.
        let expected = if image == Image::Ext2 { 2 } else { 1 };
        assert_eq!(of(&report, "CRITICAL_METADATA_COLLISION").len(), expected, "{:?}", report.findings);
    }
}

#[test]
fn a_project_quota_without_the_feature_is_a_field_of_the_superblock() {
    let report = damaged(Image::Ext4, |edit| {
        let file = edit.ino("/file");
        edit.superblock(|sb| sb.s_prj_quota_inum.set(file));
    });
    let places: Vec<_> = of(&report, "INVALID_QUOTA_INO").iter().map(|finding| finding.place).collect();
    assert_eq!(places, [Place::Field("s_prj_quota_inum")]);
    assert_eq!(report.findings.len(), 1, "the inode is a file like others: {:?}", report.findings);
}

#[test]
fn an_extent_tree_that_is_too_deep_is_named_so() {
    let report = damaged(Image::Ext4, |edit| edit.inode("/file", |inode| set_half(&mut inode.i_block, 6, 7)));
    let found: Vec<_> = of(&report, "EXTENT_TOO_DEEP").iter().map(|f| (f.found, f.expected)).collect();
    assert_eq!(found, [(7, 5)], "{:?}", report.findings);
}

#[test]
fn flags_of_reserved_inodes_mean_nothing() {
    let flags = (InodeFlags::INLINE_DATA | InodeFlags::EA_INODE).bits();
    let report = damaged(Image::Ext4, |edit| edit.inode(9, |inode| inode.i_flags.set(flags)));
    assert_eq!(report.findings, [], "{:?}", report.counts);
}

#[test]
fn a_finding_in_a_map_names_the_node() {
    let mut node = 0;
    let report = damaged(Image::Ext4, |edit| {
        node = edit.nodes("/depth1")[0];
        // The first extent's block, `ee_start_lo`.
        edit.node("/depth1", 0, |bytes| set_word(bytes, 20, 900_000));
    });
    let places: Vec<_> = of(&report, "EXTENT_BAD_START_BLK").iter().map(|finding| finding.place).collect();
    assert!(matches!(places[..], [Place::Node { node: at, .. }] if at.0 == node), "{places:?}");
    assert!(report.findings.iter().any(|finding| finding.to_string().contains(&format!("map in block {node}"))));
}

#[test]
fn facts_say_what_bitmaps_and_links_must_be() {
    let mut edit = Edit::new(Image::Ext4.made());
    let (file, dir) = (edit.ino("/other"), edit.ino("/deep/a"));
    edit.inode("/other", |inode| inode.i_links_count.set(9));
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    let checked = examine(&device, &Options::default()).expect("checked");
    let facts = checked.facts.expect("facts");
    assert_eq!(facts.links(InodeNr(file)), Some(2));
    let parent = facts.directory(InodeNr(dir)).expect("a directory").parent;
    assert_eq!(Some(parent), facts.directory(InodeNr(dir)).map(|place| place.dotdot));
    let geo = facts.geometry().clone();
    for group in geo.groups() {
        let desc = &facts.descs()[group.0 as usize];
        let read = |block: BlockNr| {
            let mut bytes = vec![0; geo.block_size as usize];
            device.read_at(block.0 << geo.block_bits, &mut bytes, BioFlags::META).expect("read");
            bytes
        };
        if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            assert!(facts.block_bitmap(group) == read(desc.block_bitmap), "{group}");
        }
        if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
            let (bitmap, directories) = facts.inode_bitmap(group);
            assert!(bitmap == read(desc.inode_bitmap) && directories == desc.used_dirs, "{group}");
        }
    }
}
