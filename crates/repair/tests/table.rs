//! The whole table of damaged images, repaired: what is proved is clean for e2fsck, and no loss comes unannounced.
//!
//! `EXTANT_ONLY=TEXT` takes only the mutations whose names contain the text, and prints their plans.

mod judge;

use std::collections::BTreeMap;

use extant_repair::End;
use extant_testkit::damage::{self, Image, Mutation, census};
use extant_testkit::tests_of_cases;
use judge::{Verdict, all, judge, summary};

/// Neither sound nor repaired: nothing of them can be found, or no size is possible.
const NOT_REPAIRED: [&str; 6] = [
    "Ext4: no superblock and no backup",
    "Ext2: no superblock and no backup",
    "Ext4: first data block",
    "Ext2: inode tables larger than a group",
    "Ext2: more inodes than have numbers",
    "LargeBlocks: file as large as no file",
];

/// A file gets a name in lost+found, because its directory may not contain it.
const NAMES_LOST: [&str; 5] = [
    "Encrypt: encryption context in a block, of another policy",
    "Encrypt: encryption context in a block, too short",
    "Encrypt: attribute block of an encrypted file without a context",
    "Encrypt: plain file in an encrypted directory",
    "Encrypt: file with another policy than its directory",
];

/// `-p` repairs where e2fsck's `-p` stops, or the reverse.
const OTHER_THAN_PREEN: [&str; 13] = [
    "Ext2: file types on the Hurd",
    "Mmp: multi-mount protection without a block",
    "Ext4: directory without blocks",
    "Quota: quota file without its feature",
    "EaInode: value's inode is a pipe",
    "EaInode: name of a value's inode",
    "Ext4: dot is long",
    "Ext2: dot is long",
    "Ext3: hashes in the wrong order",
    "InlineData: lost+found with inline data",
    "Encrypt: encrypted lost+found",
    "Ext4: directories in a ring",
    "Ext2: directories in a ring",
];

/// The number of tests that share the states.
const PARTS: usize = 8;

/// Every eighth state, from the one at `part` on. EXTANT_ONLY chooses mutations by a part of their names.
fn repaired_or_left_alone(part: usize) {
    let only = std::env::var("EXTANT_ONLY").ok();
    let wanted = |mutation: &&Mutation| only.as_ref().is_none_or(|only| mutation.name.contains(only.as_str()));
    let states = damage::table()
        .filter(wanted)
        .flat_map(|one| one.images.iter().map(move |image| (one, *image)))
        .skip(part)
        .step_by(PARTS);
    let states: Vec<(&Mutation, Image)> = states.collect();
    let sound: BTreeMap<String, _> =
        states.iter().map(|(_, image)| (format!("{image:?}"), census::take(image.made()))).collect();
    let verdicts = all(&states, |(mutation, image), dir| {
        let name = format!("{image:?}: {}", mutation.name);
        judge(name, &sound[&format!("{image:?}")], &mutation.on(*image), dir)
    });
    let shown = |one: &&Verdict| {
        only.is_some()
            || one.end == Some(End::Refused)
            || one.end.is_none()
            || !one.unnamed.is_empty()
            || !one.is_clean()
            || !one.losses.is_empty()
    };
    verdicts.iter().filter(shown).for_each(|one| println!("{}", one.text()));
    println!("{}", summary(&verdicts));
    let found = |of: &dyn Fn(&Verdict) -> bool| -> Vec<&str> {
        verdicts.iter().filter(|one| of(one)).map(|one| one.name.as_str()).collect()
    };
    // A list names all its states of this part, so one that is repaired by now is found, too.
    let listed = |list: &[&str]| found(&|one| list.contains(&one.name.as_str()));
    // Of what is written, e2fsck finds nothing more, and no loss comes unannounced.
    let doubted = found(&|one| one.end == Some(End::Proved) && !one.is_clean());
    assert!(doubted.is_empty(), "{doubted:?}");
    assert_eq!(found(&|one| !one.unnamed.is_empty()), [""; 0], "losses that the plan does not name");
    assert_eq!(found(&|one| !one.difference.gone.is_empty()), [""; 0], "files that were readable before");
    // Where -p stops, it has planned beside the device, and nothing else.
    println!("preen: stops in {} states", found(&|one| one.stops.is_some()).len());
    assert_eq!(found(&|one| one.stops.is_some() && one.preen_changed), [""; 0], "-p has changed images where it stops");
    for one in verdicts.iter().filter(|one| !one.agrees_with_preen()) {
        println!("preen: {}: {:?}, e2fsck -fp {:?}", one.name, one.stops, one.e2fsck_preen);
    }
    assert_eq!(found(&|one| !one.agrees_with_preen()), listed(&OTHER_THAN_PREEN), "another decision than e2fsck -fp");
    let bad = found(&|one| !matches!(one.end, Some(End::Proved | End::Sound)));
    assert_eq!(bad, listed(&NOT_REPAIRED), "neither sound nor repaired");
    assert_eq!(found(&|one| !one.difference.moved.is_empty()), listed(&NAMES_LOST), "names lost");
}

tests_of_cases!(
    damage_of_the_table_is_repaired_or_left_alone,
    repaired_or_left_alone,
    part_1: 0,
    part_2: 1,
    part_3: 2,
    part_4: 3,
    part_5: 4,
    part_6: 5,
    part_7: 6,
    part_8: super::PARTS - 1,
);

/// The lists above name states that exist.
#[test]
fn the_table_has_these_states() {
    let names: Vec<String> = damage::table()
        .flat_map(|one| one.images.iter().map(move |image| format!("{image:?}: {}", one.name)))
        .collect();
    assert_eq!(names.len(), 402);
    let listed = NOT_REPAIRED.iter().chain(&NAMES_LOST).chain(&OTHER_THAN_PREEN);
    assert_eq!(listed.filter(|name| !names.iter().any(|known| known == *name)).count(), 0);
}
