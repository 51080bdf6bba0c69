//! Tests of the codecs with a model, with damage, and with known values.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::damage::Damage;
use crate::{BlockNr, Error, InodeNr};

const NR: BlockNr = BlockNr(1234);
const SEED: Option<u32> = Some(0xDEAD_BEEF);

fn name(suffix: &[u8]) -> Name<'_> {
    Name { index: index::USER, suffix }
}

fn list(items: &[(&[u8], &[u8])]) -> EntryList {
    let mut l = EntryList::new();
    for (n, v) in items {
        assert!(l.set(name(n), v));
    }
    l
}

#[test]
fn names_split_and_join() {
    for (full, index, suffix) in [
        (&b"user.a.b"[..], index::USER, &b"a.b"[..]),
        (b"trusted.x", index::TRUSTED, b"x"),
        (b"security.capability", index::SECURITY, b"capability"),
        (b"system.posix_acl_access", index::POSIX_ACL_ACCESS, b""),
        (b"system.posix_acl_default", index::POSIX_ACL_DEFAULT, b""),
    ] {
        let n = Name::parse(full).unwrap();
        assert_eq!((n.index, n.suffix), (index, suffix));
        assert_eq!(n.full().unwrap(), full);
        assert!(n.is_visible());
    }
    for full in [&b"user."[..], b"user", b"system.data", b"system.posix_acl_accessx", b"foo.bar", b"user.a\0b", b""] {
        assert_eq!(Name::parse(full), None, "{full:?}");
    }
    assert_eq!(Name::parse_any(b"system.data"), Some(Name { index: index::SYSTEM, suffix: b"data" }));
    assert!(!Name { index: index::SYSTEM, suffix: b"data" }.is_visible());
    assert_eq!(Name { index: 99, suffix: b"x" }.full(), None);
}

#[test]
fn hashes_have_their_known_values() {
    // name "a", value "b": (0x61 rotated by 16) ^ 0x62.
    assert_eq!(entry_hash(b"a", b"b"), 0x0061_0062);
    assert_eq!(entry_hash(b"ab", b""), (0x61 << 5) ^ 0x62);
    assert_eq!(entry_hash_signed(b"a", b"b"), entry_hash(b"a", b"b"));
    assert_ne!(entry_hash_signed(&[0x80], b""), entry_hash(&[0x80], b""));
    assert_eq!(block_hash([1, 0, 7]), 0);
    assert_eq!(block_hash([1, 2]), (1 << 16) ^ 2);
}

#[test]
fn empty_and_full_inode_areas_round_trip() {
    assert!(inode_area::decode(&[], InodeNr(12)).unwrap().is_empty());
    assert!(inode_area::decode(&[0; 96], InodeNr(12)).unwrap().is_empty());
    let mut none: [u8; 0] = [];
    assert!(inode_area::encode(&list(&[(b"a", b"b")]), &mut none).is_err());
    assert!(inode_area::encode(&EntryList::new(), &mut none).is_ok());
    // First it is exactly full, then one byte (so four) too many: 96 - 4 - 4 (terminator) - 20 (entry) = 68.
    let mut area = [0xAA; 96];
    assert!(inode_area::encode(&list(&[(b"a", &[7; 69])]), &mut area).is_err());
    assert_eq!(area, [0xAA; 96], "nothing was written");
    let full = list(&[(b"a", &[7; 68])]);
    inode_area::encode(&full, &mut area).unwrap();
    assert_eq!(inode_area::decode(&area, InodeNr(12)).unwrap(), full);
    inode_area::encode(&EntryList::new(), &mut area).unwrap();
    assert_eq!(area, [0; 96]);
}

#[test]
fn values_outside_or_overlapping_are_corrupt() {
    let mut area = [0; 96];
    inode_area::encode(&list(&[(b"a", b"1234"), (b"b", b"5678")]), &mut area).unwrap();
    let broken = |at: usize, bytes: &[u8]| {
        let mut copy = area;
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        inode_area::decode(&copy, InodeNr(12))
    };
    assert!(matches!(broken(4 + 2, &[89, 0]), Err(Error::Corrupt { .. })), "value ends one byte late");
    assert!(matches!(broken(4 + 2, &[84, 0]), Err(Error::Corrupt { .. })), "on the other value");
    assert!(matches!(broken(4 + 2, &[4, 0]), Err(Error::Corrupt { .. })), "on the names");
    assert!(matches!(broken(4 + 8, &[255; 4]), Err(Error::Corrupt { .. })), "huge size");
    let outside = broken(4 + 4, &[9]).unwrap();
    assert_eq!(outside.outside().next(), Some(ExternalValue { inode: InodeNr(9), len: 4, hash: 0 }), "ea_inode");
    assert!(matches!(broken(4, &[255]), Err(Error::Corrupt { .. })), "long name");
    assert!(matches!(broken(4 + 16, &[0]), Err(Error::Corrupt { .. })), "NUL in name");
    let kept = broken(4 + 1, &[77]).unwrap();
    assert_eq!(kept.iter().next().unwrap().index, 77, "unknown indexes are preserved");
}

/// An entry whose value is outside can be read back from both places, and its hash covers the value's hash.
#[test]
fn entries_with_values_outside_keep_inode_length_and_hash() {
    let name = Name { index: index::USER, suffix: b"large" };
    let outside =
        ExternalValue { inode: InodeNr(77), len: 5000, hash: outside_hash(b"large", value_hash(9, &[7; 5000])) };
    let mut both = list(&[(b"a", b"1234")]);
    assert!(both.set_outside(name, outside));
    assert_eq!((both.get(name), both.find(name).unwrap().outside), (None, Some(outside)));
    let mut area = [0; 96];
    inode_area::encode(&both, &mut area).unwrap();
    assert_eq!(inode_area::decode(&area, InodeNr(12)).unwrap(), both);
    let mut block = vec![0; 1024];
    XattrBlock::encode(&both, 1, &mut block, NR, SEED).unwrap();
    let parsed = XattrBlock::parse(&block, NR, SEED).unwrap();
    assert!(parsed.holds(&both) && parsed.hash == XattrBlock::hash_of(&both));
    assert!(!parsed.holds(&list(&[(b"a", b"1234"), (b"large", b"")])));
    assert!(is_outside_hash(outside.hash, b"large", value_hash(9, &[7; 5000])));
    assert!(!is_outside_hash(outside.hash, b"large", value_hash(9, &[8; 5000])));
}

fn context() -> XattrContext {
    XattrContext { seed: SEED, ea_inode: false, inodes: (11, 1000) }
}

#[test]
fn each_damage_of_a_block_is_found_alone() {
    use XattrDamage as D;
    type Case<'a> = (usize, &'a [u8], XattrDamage);
    let scan = |block: &[u8], context: &XattrContext| {
        let mut names = 0;
        let found = crate::damage::all(|sink| {
            scan_block(block, NR, context, &mut |found| match found {
                Ok(_) => names += 1,
                Err(damage) => sink(damage),
            });
        });
        let fatal = found.iter().find(|damage| damage.is_fatal());
        let error = XattrBlock::parse(block, NR, context.seed).err().map(|error| error.to_string());
        assert_eq!(error, fatal.map(|damage| format!("xattr block {}: {damage}", NR.0)));
        (found, names)
    };
    let mut good = vec![0; 1024];
    XattrBlock::encode(&list(&[(b"aa", b"1234"), (b"bb", b"5678")]), 3, &mut good, NR, SEED).unwrap();
    assert_eq!(scan(&good, &context()), (vec![], 2));
    // The entries start at 32 and 52, the values at 1020 and 1016; the names end at 76.
    let cases: [Case<'_>; 9] = [
        (0, &[1], D::Magic { found: MAGIC | 1 }),
        (8, &[2], D::Blocks { found: 2 }),
        (4, &[0], D::NoReferences),
        (33, &[0], D::NoIndex { at: 32 }),
        (48, &[0], D::NameByte { at: 32 }),
        (34, &[0xFD, 3], D::ValuePastEnd { at: 32, start: 1021, size: 4 }),
        (34, &[0xFA, 3], D::Overlap { start: 1018, end: 1020 }),
        (44, &[1, 2, 3, 4], D::Hash { at: 32, found: 0x0403_0201, expected: entry_hash(b"aa", b"1234") }),
        (36, &[77], D::ValueInodeFeature { at: 32, inode: InodeNr(77) }),
    ];
    for (at, new, expected) in cases {
        let mut bad = good.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        let sum = block_checksum(SEED.unwrap(), NR, &bad);
        bad[16..20].copy_from_slice(&sum.to_le_bytes());
        let mut found = scan(&bad, &context()).0;
        // A changed name or place changes the expected hash.
        found.retain(|damage| *damage == expected || !matches!(damage, D::Hash { .. }));
        assert_eq!(found, [expected]);
    }
    let mut outside = good.clone();
    outside[36] = 5;
    let open = XattrContext { seed: None, ea_inode: true, ..context() };
    assert_eq!(scan(&outside, &open), (vec![D::ValueInode { at: 32, inode: InodeNr(5) }], 2));
    let mut flipped = good.clone();
    flipped[500] ^= 1;
    assert!(matches!(scan(&flipped, &context()).0[..], [D::Checksum { .. }]));
    assert_eq!(scan(&good[..20], &open).0, [D::Length { found: 20 }]);
    for (len, expected) in [(34, D::Unterminated), (40, D::EntryCut { at: 32 }), (49, D::NameCut { at: 32, len: 2 })] {
        assert_eq!(scan(&good[..len], &open).0.last(), Some(&expected));
    }
}

#[test]
fn damage_in_an_inode_leaves_the_other_attributes() {
    let mut area = [0; 96];
    inode_area::encode(&list(&[(b"aa", b"1234"), (b"bb", b"5678")]), &mut area).unwrap();
    let scan = |area: &[u8]| {
        let (mut names, mut wrong) = (Vec::new(), Vec::new());
        inode_area::scan_area(area, &context(), &mut |found| match found {
            Ok(entry) => names.push(entry.name.suffix.to_vec()),
            Err(damage) => wrong.push(damage),
        });
        (names, wrong)
    };
    assert_eq!(scan(&area), (vec![b"aa".to_vec(), b"bb".to_vec()], vec![]));
    assert_eq!(scan(&[0; 96]), (vec![], vec![]));
    area[5] = 0;
    area[4] = 0;
    area[8] = 1;
    let (names, wrong) = scan(&area);
    assert_eq!((names.len(), wrong.first()), (0, Some(&XattrDamage::NoName { at: 4 })));
    inode_area::encode(&list(&[(b"aa", b"1234"), (b"bb", b"5678")]), &mut area).unwrap();
    area[16] = 1;
    let expected = entry_hash(b"aa", b"1234");
    let (names, wrong) = scan(&area);
    assert_eq!((names.len(), wrong), (2, vec![XattrDamage::Hash { at: 4, found: 1, expected }]));
}

#[test]
fn block_headers_are_validated_and_count_references() {
    let mut block = vec![0; 1024];
    XattrBlock::encode(&list(&[(b"bb", b"2"), (b"c", b""), (b"a", b"1")]), 3, &mut block, NR, SEED).unwrap();
    let parsed = XattrBlock::parse(&block, NR, SEED).unwrap();
    let names: Vec<_> = parsed.entries.iter().map(|e| e.name.suffix.to_vec()).collect();
    assert_eq!(names, [&b"a"[..], b"c", b"bb"], "shorter names first");
    assert_eq!((parsed.refcount, parsed.hash != 0), (3, true));
    assert!(XattrBlock::parse(&block, BlockNr(1235), SEED).is_err(), "a moved block needs a new checksum");
    assert!(XattrBlock::parse(&block, BlockNr(1235), None).is_ok());
    assert_eq!(drop_reference(&mut block, NR, SEED).unwrap().count, 2);
    assert_eq!(drop_reference(&mut block, NR, SEED).unwrap().count, 1);
    assert_eq!(XattrBlock::parse(&block, NR, SEED).unwrap().refcount, 1);
    assert_eq!(drop_reference(&mut block, NR, SEED).unwrap().count, 0);
    for (at, value) in [(0, 1), (8, 2), (4, 0)] {
        let mut bad = block.clone();
        bad[at] = value;
        assert!(XattrBlock::parse(&bad, NR, None).is_err());
    }
    assert!(XattrBlock::parse(&block[..20], NR, None).is_err());
    assert!(XattrBlock::parse(&block[..32], NR, None).is_err(), "no terminator");
}

#[test]
fn references_stop_at_the_limit_of_a_block() {
    let mut block = vec![0; 1024];
    XattrBlock::encode(&list(&[(b"a", b"1")]), REFCOUNT_MAX - 1, &mut block, NR, SEED).unwrap();
    assert_eq!(add_reference(&mut block, NR, SEED).unwrap().map(|r| r.count), Some(REFCOUNT_MAX));
    let full = block.clone();
    assert_eq!(add_reference(&mut block, NR, SEED).unwrap(), None);
    assert_eq!(block, full, "nothing was written");
    XattrBlock::parse(&block, NR, SEED).unwrap();
    // A hash of 0 means that the block must not be shared.
    assert_eq!(entry_hash(b"", b""), 0);
    XattrBlock::encode(&list(&[(b"", b"")]), 1, &mut block, NR, SEED).unwrap();
    assert_eq!(add_reference(&mut block, NR, SEED).unwrap(), None);
}

#[test]
fn equal_lists_are_recognized_in_any_order() {
    let (one, other) = (list(&[(b"bb", b"2"), (b"a", b"1")]), list(&[(b"a", b"1"), (b"bb", b"2")]));
    let mut block = vec![0; 1024];
    XattrBlock::encode(&one, 1, &mut block, NR, SEED).unwrap();
    let parsed = XattrBlock::parse(&block, NR, SEED).unwrap();
    assert!(parsed.holds(&one) && parsed.holds(&other));
    assert_eq!((XattrBlock::hash_of(&one), XattrBlock::hash_of(&other)), (parsed.hash, parsed.hash));
    for differs in [&[(&b"a"[..], &b"1"[..])][..], &[(b"a", b"1"), (b"bb", b"3")], &[(b"a", b"1"), (b"bc", b"2")]] {
        assert!(!parsed.holds(&list(differs)), "{differs:?}");
    }
}

#[test]
fn a_list_keeps_one_entry_per_name() {
    let mut l = list(&[(b"a", b"1"), (b"b", b"2")]);
    assert!(l.set(name(b"a"), b"3"));
    assert_eq!((l.len(), l.get(name(b"a"))), (2, Some(&b"3"[..])));
    assert!(l.remove(name(b"a")) && !l.remove(name(b"a")));
    assert!(!l.set(name(&[b'x'; 256]), b""), "name too long");
    assert!(l.set(name(&[b'x'; 255]), b""));
    let mut area = vec![0; 512];
    inode_area::encode(&l, &mut area).unwrap();
    assert_eq!(inode_area::decode(&area, InodeNr(1)).unwrap(), l);
}

type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

fn model_of(l: &EntryList) -> Model {
    l.iter().map(|e| ((e.index, e.suffix.clone()), e.value.clone())).collect()
}

proptest! {
    #[test]
    fn edits_match_a_map(
        ops in prop::collection::vec(
            (1u8..8, prop::collection::vec(1u8..=255, 0..20), prop::option::of(prop::collection::vec(any::<u8>(), 0..90))),
            1..40,
        ),
        small in 8usize..300,
    ) {
        let (mut model, mut l) = (Model::new(), EntryList::new());
        let small = small & !3;
        for (index, suffix, value) in ops {
            let n = Name { index, suffix: &suffix };
            match value {
                Some(v) => {
                    prop_assert!(l.set(n, &v));
                    model.insert((index, suffix), v);
                }
                None => prop_assert_eq!(l.remove(n), model.remove(&(index, suffix.clone())).is_some()),
            }
            prop_assert_eq!(&model_of(&l), &model);
            for bytes in [small, 1024, 4096, 65536] {
                let mut block = vec![0x55; bytes];
                let fits = l.stored_len() + HEADER_LEN <= bytes;
                prop_assert_eq!(XattrBlock::encode(&l, 1, &mut block, NR, SEED).is_ok(), fits);
                if fits {
                    let back = XattrBlock::parse(&block, NR, SEED).unwrap();
                    prop_assert_eq!(model_of(&back.to_list()), model.clone());
                    prop_assert!(back.entries.is_sorted_by_key(|e| e.name.block_order()));
                }
            }
            let mut area = vec![0x55; small];
            let fits = l.is_empty() || l.stored_len() + 4 <= small;
            prop_assert_eq!(inode_area::encode(&l, &mut area).is_ok(), fits);
            if fits {
                prop_assert_eq!(model_of(&inode_area::decode(&area, InodeNr(2)).unwrap()), model.clone());
            }
        }
    }

    #[test]
    fn damage_never_panics_and_stays_bounded(
        hits in prop::collection::vec((0usize..512, any::<u8>()), 1..12),
        noise in any::<bool>(),
    ) {
        let l = list(&[(b"abc", &[1; 60]), (b"d", &[2; 33]), (b"efgh", b""), (b"i", &[3; 100])]);
        let mut block = vec![if noise { 0xA5 } else { 0 }; 512];
        XattrBlock::encode(&l, 1, &mut block, NR, None).unwrap();
        let mut area = vec![0; 512];
        inode_area::encode(&l, &mut area).unwrap();
        for (at, byte) in hits {
            block[at] = byte;
            area[at] = byte;
        }
        if let Ok(b) = XattrBlock::parse(&block, NR, None) {
            prop_assert!(b.to_list().stored_len() <= 2 * 512);
        }
        let _ = inode_area::decode(&area, InodeNr(2));
    }
}

#[test]
fn an_entry_without_a_name_is_damage() {
    // Its value offset distinguishes it from the end of the list. Written again, it would be the end of the list.
    let mut area = vec![0; 96];
    area[..4].copy_from_slice(&MAGIC.to_le_bytes());
    area[4 + 3] = 0x0A;
    assert!(matches!(inode_area::decode(&area, InodeNr(12)), Err(Error::Corrupt { .. })));
}
