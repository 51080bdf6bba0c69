//! Evidence instead of deletion: one damaged field that makes e2fsck delete files costs none.

use crate::judge::judge;
use extant_repair::End;
use extant_testkit::crash::state_files;
use extant_testkit::damage::{Edit, Image, census};

/// A change of the sound image.
type Change = fn(&mut Edit);

/// Damage in one field, on the image whose e2fsck -fy leaves 1, 1, 1, 25 and 590 of its 591 paths.
const CASES: [(&str, Change); 5] = [
    ("a byte of the UUID", |e| e.superblock(|s| s.s_uuid[3] ^= 0x40)),
    ("the root's mode", |e| e.inode(2, |i| i.i_mode.set(0))),
    ("the root's inode", |e| e.inode_bytes(2, |bytes| bytes.fill(0))),
    ("an extent header", |e| e.inode("/h1", |i| i.i_block[..12].fill(0))),
    ("a mode without a type", |e| e.inode("/file", |i| i.i_mode.set(0o644))),
];

#[test]
fn one_damaged_field_costs_no_file() {
    let sound = census::take(Image::Ext4.made());
    let dir = state_files();
    for (name, change) in CASES {
        let mut edit = Edit::new(Image::Ext4.made());
        change(&mut edit);
        let verdict = judge(name.to_owned(), &sound, &edit.finish(), dir.path());
        println!("{}", verdict.text());
        assert!(verdict.end == Some(End::Proved) && verdict.is_clean(), "{}", verdict.text());
        assert!(verdict.unnamed.is_empty(), "{}", verdict.text());
        assert!(verdict.difference.after >= 590, "{}", verdict.text());
    }
}
