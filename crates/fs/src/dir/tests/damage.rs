//! Damaged and hostile directories: every operation fails or works around the damage. None panics, loops forever, or
//! silently loses a name.

use extant_base::rng::Rng;
use extant_ondisk::htree::HashVersion;
use proptest::prelude::*;

use super::super::*;
use super::store::{MemDir, StoreError, params};

fn filled(block_size: usize, base: DirParams, count: u32) -> MemDir {
    let dir = MemDir::new(block_size, base);
    for n in 0..count {
        dir.add(format!("name{n}").as_bytes(), n + 11).unwrap();
    }
    dir
}

fn name(n: u32) -> String {
    format!("name{n}")
}

fn is_corrupt<T: std::fmt::Debug>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Dir(DirError::Corrupt { .. })))
}

#[test]
fn without_checksums_lookups_bypass_a_damaged_index_and_an_addition_drops_it() {
    for broken in 0..4 {
        let dir = filled(1024, params(false, true, HashVersion::HalfMd4), 3000);
        let deepest = dir.blocks() - 1;
        {
            let mut blocks = dir.blocks.borrow_mut();
            match broken {
                0 => blocks[0][28] = 9,                                         // hash version
                1 => blocks[0][32] ^= 1,                                        // limit
                2 => blocks[0][36..40].copy_from_slice(&9999u32.to_le_bytes()), // first child far away
                _ => blocks[0][36..40].fill(0),                                 // first child is the root
            }
        }
        for n in 0..3000 {
            assert_eq!(dir.find(format!("name{n}").as_bytes()), Some(n + 11));
        }
        assert_eq!(dir.find(b"nobody"), None);
        if broken < 2 {
            assert_eq!(dir.list(11).len(), 3000);
        }
        assert!(dir.params().is_indexed);
        let mut n = 3000;
        let added = loop {
            let added = dir.add(format!("name{n}").as_bytes(), n + 11).unwrap();
            n += 1;
            if added.index == IndexChange::Dropped || n > 4000 {
                break added;
            }
        };
        assert_eq!(added.index, IndexChange::Dropped);
        assert!(!dir.params().is_indexed);
        for n in 0..n {
            assert_eq!(dir.find(format!("name{n}").as_bytes()), Some(n + 11));
        }
        assert_eq!(dir.list(100).len(), n as usize);
        assert!(dir.blocks() >= deepest);
    }
}

#[test]
fn with_checksums_a_damaged_index_is_an_error() {
    let dir = filled(1024, params(true, true, HashVersion::HalfMd4), 500);
    dir.blocks.borrow_mut()[0][40] ^= 1;
    // The names are in the leaves, which are intact. A lookup of a missing name reports the damage, since the index may
    // hide the name.
    for n in 0..500 {
        assert_eq!(dir.find(format!("name{n}").as_bytes()), Some(n + 11));
    }
    assert!(is_corrupt(&lookup(&dir, &dir.params(), b"nobody")));
    assert!(is_corrupt(&dir.add(b"another", 5)));
    let mut names = 0;
    let listed = readdir(&dir, &dir.params(), 0, |_| {
        names += 1;
        true
    });
    assert!(matches!(listed, Ok(Listed { damage: Some(StoreError::Dir(DirError::Corrupt { .. })), .. })), "{listed:?}");
    assert_eq!(names, 500, "all but '.' and '..', which are in the index");
    assert!(is_corrupt(&is_empty(&dir, &dir.params())));
    assert!(dir.params().is_indexed);
}

/// The checksum matches but the content is invalid, as in a crafted image or after a memory error.
#[test]
fn invalid_index_content_with_a_valid_checksum_is_an_error() {
    let dir = filled(1024, params(true, true, HashVersion::HalfMd4), 500);
    for (at, value) in [(28usize, 7u8), (30, 2), (36, 0), (36, 200), (44, 255)] {
        let mut block = dir.blocks.borrow()[0].clone();
        block[at] = value;
        seal(&dir.params(), BlockKind::Index, &mut block);
        let kept = std::mem::replace(&mut dir.blocks.borrow_mut()[0], block);
        let results: Vec<_> = (0..500).map(|n| lookup(&dir, &dir.params(), format!("name{n}").as_bytes())).collect();
        assert!(results.iter().all(|result| is_corrupt(result) || matches!(result, Ok(Some(_)))), "byte {at}");
        dir.blocks.borrow_mut()[0] = kept;
    }
}

#[test]
fn an_index_flag_without_the_feature_is_not_followed() {
    for has_csum in [false, true] {
        let mut dir = filled(1024, params(has_csum, true, HashVersion::HalfMd4), 500);
        dir.base.has_dir_index = false;
        assert_eq!(dir.find(b"name77"), Some(88));
        assert_eq!(dir.list(3).len(), 500);
        let added = dir.add(b"another", 5);
        if has_csum {
            assert!(is_corrupt(&added), "{added:?}");
        } else {
            assert_eq!(added.map(|added| added.index), Ok(IndexChange::Dropped));
            assert_eq!((dir.find(b"another"), dir.list(1000).len()), (Some(5), 501));
        }
    }
}

#[test]
fn a_name_in_the_wrong_leaf_hides_no_other() {
    let dir = filled(1024, params(false, true, HashVersion::HalfMd4), 500);
    let format = dir.params().leaf_format();
    let mut moved = 0;
    // Every leaf gets a stray name, whose hash is outside of the leaf's range.
    for lblk in 1..dir.blocks() as usize {
        for n in 0..40 {
            let name = format!("stray{lblk}-{n}");
            let mut blocks = dir.blocks.borrow_mut();
            if matches!(
                format.insert(&mut blocks[lblk], name.as_bytes(), 9, Some(extant_ondisk::inode::FileType::Regular)),
                Ok(extant_ondisk::dirent::Insert::Done { .. })
            ) {
                moved += 1;
            }
        }
    }
    assert!(moved > 10);
    for batch in [1, 50] {
        let listed = dir.list(batch);
        assert_eq!(listed.len(), 500 + moved);
        assert_eq!(listed.iter().filter(|(name, _)| name.starts_with(b"name")).count(), 500);
    }
}

/// Index nodes with the same children make a small directory look endless.
#[test]
fn shared_index_nodes_do_not_make_listings_endless() {
    let base = DirParams { has_large_dir: true, ..params(false, true, HashVersion::HalfMd4) };
    let dir = filled(1024, base, 10);
    let format = base.dx_format();
    {
        let mut blocks = dir.blocks.borrow_mut();
        blocks.truncate(1);
        let (mut middle, mut bottom, mut leaf) = (vec![0; 1024], vec![0; 1024], vec![0; 1024]);
        base.leaf_format().init_leaf(&mut leaf);
        let mut root = blocks[0].clone();
        format.init_root(&mut root, base.leaf_format(), [12, 2], 1, 1);
        format.raise_root(&mut root, 1).unwrap();
        format.raise_root(&mut root, 1).unwrap();
        format.init_node(&mut middle, 2);
        format.init_node(&mut bottom, 3);
        for (block, shape, child) in [
            (&mut root, extant_ondisk::htree::DxShape::Root, 1),
            (&mut middle, extant_ondisk::htree::DxShape::Node, 2),
            (&mut bottom, extant_ondisk::htree::DxShape::Node, 3),
        ] {
            let limit = format.limit(shape, 1024);
            for at in 0..limit - 1 {
                format.insert(block, shape, at, 1, child).unwrap();
            }
        }
        *blocks = vec![root, middle, bottom, leaf];
    }
    dir.indexed.set(true);
    let before = dir.reads.get();
    assert_eq!(dir.find(b"name1"), None);
    let _ = readdir(&dir, &dir.params(), 0, |_| true);
    let _ = dir.add(b"new", 5);
    assert!(dir.reads.get() - before < 100, "{}", dir.reads.get() - before);
}

/// A damaged entry or block hides only itself.
#[test]
fn damage_hides_nothing_else() {
    for has_csum in [false, true] {
        for dir_index in [false, true] {
            for count in [20, 150] {
                let whole = filled(1024, params(has_csum, dir_index, HashVersion::HalfMd4), count);
                let victim = lookup(&whole, &whole.params(), b"name7").unwrap().unwrap();
                let (lblk, at) = (victim.lblk as usize, victim.offset as usize);
                let in_block = (0..count).filter(|n| {
                    lookup(&whole, &whole.params(), name(*n).as_bytes()).unwrap().unwrap().lblk == victim.lblk
                });
                let in_block: Vec<u32> = in_block.collect();
                // A slash in the name, an inode number out of range, a broken chain, and a block with other content.
                for how in 0..4 {
                    let dir = filled(1024, whole.base, count);
                    {
                        let mut blocks = dir.blocks.borrow_mut();
                        let block = &mut blocks[lblk];
                        match how {
                            0 => block[at + 9] = b'/',
                            1 => block[at..at + 4].copy_from_slice(&(super::store::INODES + 1).to_le_bytes()),
                            2 => block[at + 4..at + 6].copy_from_slice(&7u16.to_le_bytes()),
                            _ => block[at..].fill(0xEE),
                        }
                        if how < 3 {
                            seal(&dir.params(), BlockKind::Leaf, block);
                        }
                    }
                    let hidden = |n: u32| n == 7 || (how >= 2 && in_block.contains(&n));
                    let mut seen = std::collections::BTreeSet::new();
                    let listed = readdir(&dir, &dir.params(), 0, |entry| seen.insert(entry.name.to_vec())).unwrap();
                    assert!(listed.damage.is_some(), "{has_csum} {dir_index} {count} {how}");
                    for n in 0..count {
                        let found = lookup(&dir, &dir.params(), name(n).as_bytes());
                        let case = format!("{n}: {has_csum} {dir_index} {count} {how}: {found:?}");
                        if !hidden(n) {
                            assert!(matches!(found, Ok(Some(_))), "{case}");
                            assert!(seen.contains(name(n).as_bytes()), "{case}");
                        } else if n == 7 {
                            assert!(!matches!(found, Ok(Some(_))) && !seen.contains(&b"name7"[..]), "{case}");
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_damage_ends_in_errors_not_in_panics(
        seed: u64,
        count in prop_oneof![Just(5u32), Just(300), Just(3000)],
        dir_index: bool,
        large_dir: bool,
        flips in 1u64..40,
        heads_only: bool,
        reseal: bool,
    ) {
        let base = DirParams { has_large_dir: large_dir, ..params(reseal, dir_index, HashVersion::HalfMd4) };
        let dir = filled(1024, base, count);
        let mut rng = Rng::new(seed);
        {
            let mut blocks = dir.blocks.borrow_mut();
            for _ in 0..flips {
                // Half of the flips hit index blocks, where they do the most harm.
                let lblk = if rng.one_in(2) { 0 } else { rng.below(blocks.len() as u64) as usize };
                let at = rng.below(if heads_only { 64 } else { 1024 }) as usize;
                blocks[lblk][at] = if rng.one_in(2) { rng.next_u32() as u8 } else { rng.below(8) as u8 };
            }
            for lblk in 0..blocks.len() {
                let index = dir.indexed.get() && (lblk == 0 || htree::shape_of(&blocks[lblk]) == Some(DxShape::Node));
                let kind = if index { BlockKind::Index } else { BlockKind::Leaf };
                seal(&dir.params(), kind, &mut blocks[lblk]);
            }
        }
        for n in 0..50 {
            let name = format!("name{}", n * 61 % count);
            let _ = lookup(&dir, &dir.params(), name.as_bytes());
        }
        for batch in [3usize, usize::MAX] {
            let (mut cookie, mut calls) = (0, 0);
            loop {
                let mut taken = 0;
                let result = readdir(&dir, &dir.params(), cookie, |_| { taken += 1; taken <= batch });
                let Ok(Listed { next, .. }) = result else { break };
                if taken == 0 || next == COOKIE_END {
                    break;
                }
                prop_assert!(next > cookie || taken <= 1);
                cookie = next;
                calls += 1;
                prop_assert!(calls < 20_000, "endless");
                if taken <= batch {
                    break;
                }
            }
        }
        let _ = (is_empty(&dir, &dir.params()), dotdot(&dir, &dir.params()));
        for n in 0..30 {
            let _ = dir.remove(format!("name{n}").as_bytes());
            let _ = dir.add(format!("another{n}").as_bytes(), 5);
        }
        let _ = set_dotdot(&dir, &mut (), &dir.params(), extant_ondisk::InodeNr(5));
    }
}

/// All names of a listing in calls of at most `most` names, and whether the listing reported damage or failed.
fn listed(dir: &MemDir, params: &DirParams, most: usize) -> (std::collections::BTreeSet<Vec<u8>>, bool) {
    let (mut names, mut damaged, mut cookie) = (std::collections::BTreeSet::new(), false, 0);
    loop {
        let mut left = most;
        let call = readdir(dir, params, cookie, |entry| {
            let goes_on = left > 0;
            if goes_on {
                left -= 1;
                names.insert(entry.name.to_vec());
            }
            goes_on
        });
        match call {
            Ok(call) => {
                damaged |= call.damage.is_some();
                if left > 0 {
                    return (names, damaged);
                }
                cookie = call.next;
            }
            Err(_) => return (names, true),
        }
    }
}

/// One key of an index is wrong: a listing either returns all names or reports damage. A rescue returns all names.
#[test]
fn no_listing_lacks_names_without_an_error_after_one_wrong_key() {
    let mut rng = Rng::new(9);
    // One level of index, and two.
    for (count, has_csum) in [(300, false), (300, true), (20_000, false)] {
        let base = params(has_csum, true, HashVersion::HalfMd4);
        let dir = filled(1024, base, count);
        let all = listed(&dir, &dir.params(), usize::MAX);
        assert!(all.0.len() == count as usize + 2 && !all.1);
        let sound = dir.blocks.borrow().clone();
        let is_node = |block: &[u8]| extant_ondisk::htree::shape_of(block).is_some();
        let nodes: Vec<usize> = (0..sound.len()).filter(|lblk| *lblk == 0 || is_node(&sound[*lblk])).collect();
        for round in 0..if has_csum { 60 } else { 120 } {
            let lblk = nodes[round % nodes.len()];
            let base_at = if lblk == 0 { 32 } else { 8 };
            let word = |at: usize| u32::from_le_bytes(sound[lblk][at..at + 4].try_into().unwrap());
            let entries = (word(base_at) >> 16) as usize;
            let at = |entry: usize| base_at + 8 * entry;
            let entry = 1 + rng.below(entries as u64 - 1) as usize;
            let other = 1 + rng.below(entries as u64 - 1) as usize;
            let mut block = sound[lblk].clone();
            let value = match round % 4 {
                0 => 0xFFFF_FFFE,
                1 => 0,
                2 => {
                    block[at(other)..at(other) + 4].copy_from_slice(&word(at(entry)).to_le_bytes());
                    word(at(other))
                }
                _ => word(at(entry)).wrapping_add(rng.next_u32() >> 3) & !1,
            };
            block[at(entry)..at(entry) + 4].copy_from_slice(&value.to_le_bytes());
            if block == sound[lblk] {
                continue;
            }
            if has_csum {
                seal(&dir.params(), BlockKind::Index, &mut block);
            }
            dir.blocks.borrow_mut()[lblk] = block;
            let what = format!("{count} names, block {lblk}, entry {entry} is {value:#x}");
            for most in [usize::MAX, 37] {
                let (names, damaged) = listed(&dir, &dir.params(), most);
                assert!(damaged || names == all.0, "{what}: {} names in calls of {most}", names.len());
                let rescue = DirParams { by_place: true, ..dir.params() };
                let (names, _) = listed(&dir, &rescue, most);
                // The entries `.` and `..` are in the index root, and may be unreadable with it.
                let missing = all.0.difference(&names).filter(|name| name.len() > 2).count();
                assert_eq!(missing, 0, "{what}: a rescue in calls of {most}");
            }
            dir.blocks.borrow_mut()[lblk] = sound[lblk].clone();
        }
    }
}
