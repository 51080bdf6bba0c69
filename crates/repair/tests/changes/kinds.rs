//! Single kinds of damage with a repair of their own: each keeps every path, and a second run writes nothing.

use crate::judge::{Verdict, judge, proved, result};
use extant_block::device::MemDevice;
use extant_repair::{End, Loss, LossKind};
use extant_testkit::crash::state_files;
use extant_testkit::damage::edit::{set_half, set_word, word};
use extant_testkit::damage::{self, Edit, Image, census};

/// Repairs an image: it is proved, clean for e2fsck, and sound when it is looked at again.
fn repaired(name: &str, kind: Image, image: &MemDevice) -> (Verdict, MemDevice) {
    let verdict = judge(name.to_owned(), &census::take(kind.made()), image, state_files().path());
    assert!(verdict.end == Some(End::Proved) && verdict.is_clean(), "{}", verdict.text());
    assert!(verdict.unnamed.is_empty(), "{}", verdict.text());
    let after = result(image, &proved(image).expect("proved before"));
    let again = proved(&after).expect("planned");
    assert_eq!(again.end, End::Sound, "{name}: a second run would write");
    (verdict, after)
}

fn assert_all_paths(verdict: &Verdict) {
    let d = &verdict.difference;
    assert_eq!(d.after, d.paths, "{}", verdict.text());
    assert!(verdict.losses.is_empty(), "{}", verdict.text());
}

/// The content of a file with one pointer too many has not grown: its inode counts one block less.
#[test]
fn a_pointer_that_leads_astray_does_not_lengthen_a_file() {
    for kind in [Image::Ext2, Image::Ext3] {
        let mut edit = Edit::new(kind.made());
        let (ino, free) = (edit.ino("/file"), edit.free_blocks(1)[0] as u32);
        edit.node(ino, 0, |bytes| set_word(bytes, 4 * 200, free));
        let (verdict, _) = repaired("a pointer too many", kind, &edit.finish());
        assert_all_paths(&verdict);
    }
}

#[test]
fn a_size_that_is_too_small_is_restored_and_named() {
    for kind in [Image::Ext2, Image::Ext4] {
        let mut edit = Edit::new(kind.made());
        edit.inode("/file", |inode| inode.i_size_lo.set(1));
        let (verdict, _) = repaired("a size", kind, &edit.finish());
        assert_eq!(verdict.difference.after, verdict.difference.paths, "{}", verdict.text());
        let is_size = |loss: &Loss| loss.path == b"/file" && loss.lost == LossKind::Size { was: 1, now: 20_480 };
        assert!(verdict.losses.iter().any(is_size), "{}", verdict.text());
        assert!(verdict.stops.is_none(), "a size that grows loses nothing: {:?}", verdict.stops);
    }
}

#[test]
fn an_entry_with_a_damaged_name_length_hides_no_name() {
    for kind in [Image::Ext2, Image::Ext4] {
        for (name, at) in [("the first name", 24), ("dot dot", 12)] {
            let mut edit = Edit::new(kind.made());
            edit.dir_block(2, 0, |bytes| bytes[at + 6] = 200);
            let (verdict, _) = repaired(name, kind, &edit.finish());
            assert_all_paths(&verdict);
        }
    }
}

#[test]
fn an_entry_that_is_too_long_hides_no_name() {
    for kind in [Image::Ext2, Image::Ext4] {
        let mut edit = Edit::new(kind.made());
        let dir = edit.ino("/dir");
        // `..` leads into the middle of nothing.
        edit.dir_block(dir, 0, |bytes| set_half(bytes, 12 + 4, 800));
        let (verdict, _) = repaired("dot dot is too long", kind, &edit.finish());
        assert_all_paths(&verdict);
    }
}

#[test]
fn extents_with_the_flag_of_inline_data_keep_their_content() {
    let mutation = damage::table().find(|one| one.name == "extents that claim to be inline data").expect("a mutation");
    let (verdict, _) = repaired(mutation.name, Image::InlineData, &mutation.on(Image::InlineData));
    assert_all_paths(&verdict);
}

/// The superblock and the descriptors have been read, so they are not bad; the rest of the list stays.
#[test]
fn descriptors_leave_the_list_of_bad_blocks() {
    let mut edit = Edit::new(Image::Ext2.made());
    let bad = edit.free_blocks(1)[0] as u32;
    edit.inode(1, |inode| {
        set_word(&mut inode.i_block, 0, bad);
        set_word(&mut inode.i_block, 4, 2);
    });
    let (verdict, after) = repaired("bad blocks", Image::Ext2, &edit.finish());
    assert_all_paths(&verdict);
    let list = Edit::new(&after).raw_inode(1).i_block;
    assert_eq!((word(&list, 0), word(&list, 4)), (bad, 0));
}

/// Orphans in a file that could not be read are finished when it can be.
#[test]
fn orphans_in_an_orphan_file_of_the_wrong_kind_are_finished() {
    let orphan = damage::table().find(|one| one.name == "orphan in a clean file system").expect("a mutation");
    let mut edit = Edit::new(&orphan.on(Image::OrphanFile));
    let file = edit.ino_of_orphans();
    edit.inode(file, |inode| inode.i_mode.set(0o40600));
    let (verdict, _) = repaired("an orphan file of the wrong kind", Image::OrphanFile, &edit.finish());
    assert_all_paths(&verdict);
}

/// No descriptor names the place of the table, nor does a backup.
#[test]
fn a_table_that_a_descriptor_has_lost_is_found_where_mke2fs_puts_it() {
    for kind in [Image::Bigalloc, Image::Ext4Plain] {
        let mut edit = Edit::new(kind.made());
        edit.group_copies(0, |desc| desc.bg_inode_table_lo.set(desc.bg_inode_table_lo.get() + 64));
        let (verdict, _) = repaired("a lost table", kind, &edit.finish());
        assert_all_paths(&verdict);
    }
}
