//! Damaged nodes: a lookup succeeds if the intact parts suffice to answer it, and a rescue finds all intact parts.

use extant_ondisk::extent::{Extent, NodeMut};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::fake::{Fake, Txn};
use crate::map::{MapRoot, MapState};

const SEED: u32 = 7;

/// A map of `count` single blocks at every second logical block, and their physical blocks.
fn filled(extents: bool, count: u32) -> (Fake, MapRoot, Vec<BlockNr>) {
    let fake = Fake::new(1024, 1);
    let mut root = MapRoot::empty(InodeNr(12), extents, extents.then_some(SEED));
    let mut blocks = Vec::new();
    for i in 0..count {
        let pblk = fake.allocate_data(1, true);
        root.insert(&fake, &mut Txn::new(1000), LogicalBlock(2 * i), pblk, 1, false).expect("mapped");
        blocks.push(pblk);
    }
    (fake, root, blocks)
}

/// Changes a node, and marks it as not verified.
fn change(fake: &Fake, block: u64, f: impl FnOnce(&mut [u8])) {
    f(fake.blocks.borrow_mut().meta.get_mut(&block).expect("a node"));
    fake.drop_cache();
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Whether a lookup finds each of the blocks.
fn found(fake: &Fake, root: &MapRoot, blocks: &[BlockNr]) -> Vec<bool> {
    let state = |lblk| root.lookup(fake, LogicalBlock(lblk), 1).map(|m| m.state);
    (0..).zip(blocks).map(|(i, block)| state(2 * i).is_ok_and(|state| state == MapState::Written(*block))).collect()
}

#[test]
fn a_bad_pointer_hides_only_its_own_block() {
    let (mut fake, mut root, blocks) = filled(false, 100);
    // The pointers of logical blocks 12 to 267. The one of block 40 points outside of the file system.
    let array = u64::from(word(&root.i_block, 48));
    change(&fake, array, |bytes| bytes[4 * 28..4 * 29].copy_from_slice(&u32::MAX.to_le_bytes()));
    fake.blocks_count = u64::from(u32::MAX);
    for salvages in [false, true] {
        fake.salvages = salvages;
        let found = found(&fake, &root, &blocks);
        assert_eq!(found.iter().filter(|found| !**found).count(), 1);
        assert!(!found[20] && root.lookup(&fake, LogicalBlock(40), 1).is_err());
        // An empty pointer next to a bad one may have lost a block, but a rescue has to treat it as a hole.
        let hole = root.lookup(&fake, LogicalBlock(41), 1);
        assert_eq!(hole.is_ok_and(|m| m.state == MapState::Hole), salvages);
        let lost = root.salvage(&fake, LogicalBlock(40), 10).expect_err("damaged");
        assert_eq!(lost.end, 41);
    }
    fake.salvages = false;
    // Nothing is added to a damaged array, and the failed attempt leaks no block.
    let before = fake.blocks.borrow().meta.clone();
    let pblk = fake.allocate_data(1, true);
    let added = root.insert(&fake, &mut Txn::new(1000), LogicalBlock(41), pblk, 1, false);
    assert!(added.is_err() && fake.blocks.borrow().meta == before);
}

#[test]
fn an_unreadable_array_hides_the_blocks_below_it() {
    let (mut fake, root, blocks) = filled(false, 400);
    fake.salvages = true;
    // The pointer to the array of logical blocks 12 to 267.
    let array = u64::from(word(&root.i_block, 48));
    fake.blocks.borrow_mut().meta.remove(&array);
    let found = found(&fake, &root, &blocks);
    assert!((0..).zip(&found).all(|(i, found)| *found != (12..268).contains(&(2 * i))), "{found:?}");
    for lblk in [12, 13, 100, 267] {
        assert_eq!(root.salvage(&fake, LogicalBlock(lblk), 1).expect_err("lost").end, 268, "{lblk}");
    }
    // A pointer in the root that points outside of the file system.
    let mut root = root;
    root.i_block[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
    fake.blocks_count = u64::from(u32::MAX);
    assert!(root.check_root(&fake).is_ok(), "the blocks before it can be read");
    assert_eq!(root.salvage(&fake, LogicalBlock(300), 1).expect_err("lost").end, 268 + 65_536);
}

/// The leaves, with the first logical block of each.
fn leaves(root: &MapRoot) -> Vec<(u32, u64)> {
    let count = usize::from(root.i_block[2]);
    (0..count).map(|i| (word(&root.i_block, 12 + 12 * i), u64::from(word(&root.i_block, 16 + 12 * i)))).collect()
}

#[test]
fn a_rescue_finds_the_other_extents_of_a_damaged_node() {
    let (mut fake, root, blocks) = filled(true, 200);
    let leaves = leaves(&root);
    assert!(leaves.len() >= 2, "{leaves:?}");
    let (first, leaf) = leaves[1];
    let bad = first + 10;
    // The checksum is wrong as well.
    change(&fake, leaf, |bytes| {
        let at = 12 + 12 * 5;
        assert_eq!(word(bytes, at), bad);
        bytes[at + 4..at + 6].fill(0);
    });
    let last = leaves.get(2).map_or(400, |next| next.0);
    let (plain, in_leaf) = (found(&fake, &root, &blocks), |i: u32| (first..last).contains(&(2 * i)));
    assert!((0..).zip(&plain).all(|(i, found)| *found != in_leaf(i)), "an ordinary mount refuses the node");
    fake.salvages = true;
    let rescued = found(&fake, &root, &blocks);
    assert!((0..).zip(&rescued).all(|(i, found)| *found == (2 * i != bad)), "{rescued:?}");
    let lost = root.salvage(&fake, LogicalBlock(bad), 10).expect_err("damaged");
    assert_eq!(lost.end, u64::from(bad) + 2, "up to the next extent");
}

/// A wrong key in the root would turn the first extents of a leaf into a hole.
#[test]
fn a_rescue_finds_extents_in_front_of_their_index_entry() {
    for which in [0, 1] {
        let (mut fake, mut root, blocks) = filled(true, 200);
        let (first, _) = leaves(&root)[which];
        let key = first + 31;
        root.i_block[12 + 12 * which..][..4].copy_from_slice(&key.to_le_bytes());
        fake.drop_cache();
        fake.salvages = true;
        let rescued = found(&fake, &root, &blocks);
        assert!(rescued.iter().all(|found| *found), "entry {which}: {rescued:?}");
    }
}

#[test]
fn an_unreadable_node_hides_its_range_and_no_more() {
    let (mut fake, root, blocks) = filled(true, 200);
    fake.salvages = true;
    let leaves = leaves(&root);
    let (first, leaf) = leaves[0];
    fake.blocks.borrow_mut().meta.remove(&leaf);
    let end = leaves[1].0;
    let rescued = found(&fake, &root, &blocks);
    assert!((0..).zip(&rescued).all(|(i, found)| *found != (first..end).contains(&(2 * i))), "{rescued:?}");
    assert_eq!(root.salvage(&fake, LogicalBlock(first + 1), 1).expect_err("lost").end, u64::from(end));
}

/// In a sound map, both lookups agree.
#[test]
fn a_rescue_of_a_sound_tree_finds_what_a_lookup_finds() {
    let mut fake = Fake::new(1024, 3);
    let mut root = MapRoot::empty(InodeNr(12), true, Some(SEED));
    for i in 0..500u32 {
        let (lblk, len) = (i * 7 % 501 * 20, 1 + i % 9);
        let pblk = fake.allocate_data(len, true);
        root.insert(&fake, &mut Txn::new(1000), LogicalBlock(lblk), pblk, len, i % 3 == 0).expect("mapped");
    }
    for lblk in 0..10_100 {
        fake.salvages = false;
        let plain = root.lookup(&fake, LogicalBlock(lblk), 30).expect("sound");
        fake.salvages = true;
        let rescued = root.lookup(&fake, LogicalBlock(lblk), 30).expect("sound");
        // A leaf may end within a hole.
        let same_hole = plain.state == MapState::Hole && rescued.state == MapState::Hole;
        assert!(plain == rescued || same_hole, "block {lblk}: {plain:?}, {rescued:?}");
    }
    // A single extent in the root.
    let one = Extent { lblk: LogicalBlock(5), len: 3, pblk: BlockNr(9), unwritten: false };
    let mut root = MapRoot::empty(InodeNr(13), true, Some(SEED));
    assert!(NodeMut::init(&mut root.i_block, 0).set_all(&[one.encode()]));
    let m = root.salvage(&fake, LogicalBlock(6), 10).expect("mapped");
    assert_eq!((m.len, m.state), (2, MapState::Written(BlockNr(10))));
    assert_eq!(root.salvage(&fake, LogicalBlock(0), 10).expect("a hole").len, 5);
    assert_eq!(root.salvage(&fake, LogicalBlock(8), 10).expect("a hole").len, 10);
}
