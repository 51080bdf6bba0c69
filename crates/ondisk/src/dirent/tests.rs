//! Directory blocks against a model, under random damage, and at the sizes at which the encoding of lengths changes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn seed(generation: u32) -> ChecksumSeed {
    ChecksumSeed::from_raw(0x1234_5678).for_inode(crate::InodeNr(12), generation)
}

fn format(has_filetype: bool, has_csum: bool) -> DirBlockFormat {
    DirBlockFormat { has_filetype, has_csum, inodes_count: 1_000_000, encrypted: false }
}

/// The used entries of a block, from name to inode; panics if the chain is broken.
fn contents(format: DirBlockFormat, block: &[u8]) -> BTreeMap<Vec<u8>, u32> {
    let mut names = BTreeMap::new();
    let mut end = 0;
    for entry in format.entries(block) {
        let entry = entry.expect("a block we wrote");
        assert_eq!(entry.offset, end);
        end += entry.rec_len;
        if entry.is_used() {
            assert!(names.insert(entry.name.to_vec(), entry.ino).is_none(), "name twice");
        }
    }
    assert_eq!(end as usize, format.limit(block.len()));
    names
}

#[test]
fn lengths_survive_the_codec() {
    for size in [1024usize, 4096, 32768, 65536] {
        for len in (12..=size).step_by(4) {
            assert_eq!(rec_len_from_disk(rec_len_to_disk(len, size), size), len);
        }
    }
    assert_eq!(rec_len_to_disk(65536, 65536), 0xFFFF);
    assert_eq!(rec_len_from_disk(0, 65536), 65536);
    assert_eq!(rec_len_from_disk(0, 4096), 0, "zero stays zero, and is damage, below 64 KiB");
    assert_eq!((rec_len_needed(1), rec_len_needed(4), rec_len_needed(5), rec_len_needed(255)), (12, 12, 16, 264));
}

#[test]
fn a_first_block_has_the_bytes_of_the_format() {
    let mut block = vec![0xAA; 1024];
    format(true, true).init_dots(&mut block, 12, 2);
    assert_eq!(&block[..12], &[12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0]);
    assert_eq!(&block[12..24], &[2, 0, 0, 0, 0xE8, 3, 2, 2, b'.', b'.', 0, 0]);
    assert_eq!(&block[1012..1020], &[0, 0, 0, 0, 12, 0, 0, 0xDE]);
    assert_eq!(format(true, true).dots(&block), Ok((12, 2, 12)));
    format(false, false).init_dots(&mut block, 12, 2);
    assert_eq!(&block[12..20], &[2, 0, 0, 0, 0xF4, 3, 2, 0]);
    assert!(block[24..].iter().all(|&b| b == 0));
}

#[test]
fn removing_adds_the_bytes_to_the_entry_before() {
    let f = format(true, false);
    let mut block = vec![0; 1024];
    f.init_leaf(&mut block);
    let mut offsets = Vec::new();
    for name in [&b"aa"[..], b"bb", b"cc"] {
        let Ok(Insert::Done { offset }) = f.insert(&mut block, name, 20, Some(FileType::Regular)) else {
            panic!("no room")
        };
        offsets.push(offset);
    }
    assert_eq!(offsets, [0, 12, 24]);
    assert_eq!(f.insert(&mut block, b"bb", 21, Some(FileType::Regular)), Ok(Insert::Exists { offset: 12 }));
    f.remove(&mut block, 12).unwrap();
    assert_eq!(f.entry_at(&block, 0).unwrap().rec_len, 24);
    assert_eq!(&block[12..24], &[0; 12], "the name is wiped");
    f.remove(&mut block, 0).unwrap();
    assert_eq!(f.remove(&mut block, 0), Err(DirDamage { offset: 0, what: DirRule::NotThere }));
    f.set_inode(&mut block, 24, 99, Some(FileType::Symlink)).unwrap();
    let found = f.find(&block, b"cc").unwrap().unwrap();
    assert_eq!((found.offset, found.ino, found.file_type), (24, 99, Some(FileType::Symlink)));
    assert_eq!(
        f.insert(&mut block, b"dd", 22, Some(FileType::Regular)),
        Ok(Insert::Done { offset: 0 }),
        "first is reused"
    );
}

#[test]
fn illegal_names_are_refused_and_reported() {
    let f = format(true, false);
    let mut block = vec![0; 1024];
    f.init_leaf(&mut block);
    for name in [&b""[..], b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(f.insert(&mut block, name, 5, Some(FileType::Regular)).is_err());
    }
    f.insert(&mut block, b"abc", 5, Some(FileType::Regular)).unwrap();
    block[9] = b'/';
    assert!(f.entries(&block).any(|entry| entry.is_err()));
    block[9] = b'b';
    block[..4].copy_from_slice(&1_000_001u32.to_le_bytes());
    assert!(f.find(&block, b"abc").is_err(), "inode number out of range");
}

#[test]
fn any_flipped_bit_makes_the_checksum_wrong() {
    let f = format(true, true);
    let good = seed(77);
    let mut block = vec![0; 1024];
    f.init_dots(&mut block, 12, 2);
    f.insert(&mut block, b"name", 13, Some(FileType::Regular)).unwrap();
    seal_leaf(&mut block, good);
    assert_eq!(verify_leaf(&block, good), Ok(()));
    assert!(verify_leaf(&block, seed(78)).is_err(), "another generation");
    for at in 0..block.len() {
        block[at] ^= 4;
        assert!(verify_leaf(&block, good).is_err(), "flip at {at}");
        block[at] ^= 4;
    }
    assert!(verify_leaf(&[], good).is_err());
}

/// The damages of a block, its first two entries among them if it begins with `.` and `..`.
fn damages(f: DirBlockFormat, block: &[u8], first: bool) -> Vec<DirDamage> {
    let mut found: Vec<_> = f.entries(block).filter_map(Result::err).collect();
    found.extend(f.dots(block).err().filter(|one| first && !found.contains(one)));
    found.extend(f.has_csum.then(|| verify_leaf(block, seed(1)).err()).flatten());
    found
}

#[test]
fn each_damage_of_an_entry_is_found_alone() {
    use DirRule as R;
    type Case<'a> = (usize, &'a [u8], u32, DirRule);
    let f = format(true, false);
    let mut good = vec![0; 1024];
    f.init_dots(&mut good, 12, 2);
    f.insert(&mut good, b"abcd", 20, Some(FileType::Regular)).unwrap();
    f.insert(&mut good, b"zz", 21, Some(FileType::Regular)).unwrap();
    assert_eq!(damages(f, &good, true), []);
    // The entries start at 0, 12, 24 ("abcd", 12 bytes) and 36 ("zz", the rest).
    let cases: [Case<'_>; 15] = [
        (28, &[8, 0], 24, R::RecLen { found: 8 }),
        (28, &[14, 0], 24, R::RecLenUnaligned { found: 14 }),
        (30, &[5], 24, R::NameLen { found: 12, needed: 16 }),
        (40, &[0xE0, 3], 36, R::PastEnd { found: 992, room: 988 }),
        (40, &[0xD4, 3], 36, R::ShortRest { left: 8 }),
        (24, &[0x41, 0x42, 0x0F], 24, R::Inode { found: 1_000_001, most: 1_000_000 }),
        (30, &[0], 24, R::NameEmpty),
        (33, b"/", 24, R::NameByte { found: b'/' }),
        (33, b"\0", 24, R::NameByte { found: 0 }),
        (0, &[0], 0, R::DotName),
        (8, b"a", 0, R::DotName),
        (12, &[0], 12, R::DotDotName),
        (20, b"a", 12, R::DotDotName),
        (4, &[36], 36, R::DotDotName),
        (1018, &[9], 1018, R::HeaderCut),
    ];
    for (at, new, offset, what) in cases {
        let mut bad = good.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        let found = damages(f, &bad, true);
        if what == R::HeaderCut {
            // Only a walk that starts there can find it.
            assert_eq!((f.link(&bad, at), found), (Err(DirDamage { offset, what }), vec![]));
            continue;
        }
        assert_eq!(found, [DirDamage { offset, what }]);
    }
    // The inode is behind the reserved ones, or the type is one that Extant does not know: that is a checker's matter.
    for (at, new) in [(24, 7), (31, 8), (9, b'a'), (0, 13), (22, b'a')] {
        let mut odd = good.clone();
        odd[at] = new;
        assert_eq!(damages(f, &odd, true), [], "byte {at}");
    }
}

#[test]
fn each_damage_of_a_leafs_end_is_found_alone() {
    use DirRule as R;
    let f = format(true, true);
    let mut good = vec![0; 1024];
    f.init_leaf(&mut good);
    f.insert(&mut good, b"ab", 20, Some(FileType::Regular)).unwrap();
    seal_leaf(&mut good, seed(1));
    assert_eq!(damages(f, &good, false), []);
    let mut bad = good.clone();
    bad[4..6].copy_from_slice(&1024u16.to_le_bytes());
    seal_leaf(&mut bad, seed(1));
    assert_eq!(damages(f, &bad, false), [DirDamage { offset: 0, what: R::InTail { found: 1024, room: 1012 } }]);
    for at in [1012, 1016, 1018, 1019] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(damages(f, &bad, false), [DirDamage { offset: 1012, what: R::TailMissing }]);
    }
    let mut bad = good.clone();
    bad[1023] ^= 1;
    assert!(matches!(damages(f, &bad, false)[..], [DirDamage { offset: 1012, what: R::Checksum { .. } }]));
    assert_eq!(verify_leaf(&[0; 8], seed(1)), Err(DirDamage { offset: 0, what: R::NoTailRoom }));
}

#[test]
fn a_scan_gives_sound_entries_beside_damaged_ones() {
    let f = format(true, false);
    let mut block = vec![0; 1024];
    f.init_leaf(&mut block);
    for name in [b"aa", b"b/", b"cc", b"dd"] {
        let written = if name == b"b/" { b"bb" } else { name };
        f.insert(&mut block, written, 20, Some(FileType::Regular)).unwrap();
    }
    block[12 + 9] = b'/';
    let names: Vec<_> = f.entries(&block).flatten().map(|entry| entry.name).collect();
    assert_eq!(names, [b"aa", b"cc", b"dd"]);
    let wrong: Vec<_> = f.entries(&block).filter_map(Result::err).collect();
    assert_eq!(wrong, [DirDamage { offset: 12, what: DirRule::NameByte { found: b'/' } }]);
}

#[test]
fn a_stored_entry_shows_what_lies_behind_its_name() {
    let f = format(false, true);
    let mut block = vec![0; 1024];
    f.init_leaf(&mut block);
    f.insert(&mut block, b"abc", 20, None).unwrap();
    (block[7], block[11]) = (9, b'!');
    let entry = StoredEntry::at(&block, 0).unwrap();
    assert_eq!((entry.ino, entry.rec_len, entry.file_type, entry.name, entry.after), (20, 1012, 9, &b"abc"[..], b'!'));
    assert!(StoredEntry::checked(&block, 0, 1012).is_ok());
    let past = DirDamage { offset: 0, what: DirRule::PastEnd { found: 1012, room: 1008 } };
    assert_eq!(StoredEntry::checked(&block, 0, 1008).err(), Some(past));
    // A name that the block cuts off.
    block[1022] = 255;
    let cut = StoredEntry::at(&block, 1016).unwrap();
    assert_eq!((cut.name_len, cut.name, cut.after), (255, &[][..], 0));
    assert!(StoredEntry::at(&block, 1017).is_none());
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![b'a'..=b'd', 0x80u8..=0xFF];
    prop_oneof![prop::collection::vec(byte.clone(), 1..6), prop::collection::vec(byte, 200..256)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn block_agrees_with_model(
        size in prop_oneof![Just(1024usize), Just(2048), Just(4096), Just(65536)],
        filetype: bool,
        csum: bool,
        steps in prop::collection::vec((any_name(), 1u32..1000, any::<bool>()), 1..300),
    ) {
        let f = format(filetype, csum);
        let mut block = vec![0; size];
        f.init_leaf(&mut block);
        let mut model = BTreeMap::new();
        for (name, ino, removing) in steps {
            let found = f.find(&block, &name).unwrap().map(|entry| (entry.offset, entry.ino));
            prop_assert_eq!(found.map(|(_, ino)| ino), model.get(&name).copied());
            match found {
                Some((offset, _)) if removing => {
                    f.remove(&mut block, offset).unwrap();
                    model.remove(&name);
                }
                _ => match f.insert(&mut block, &name, ino, Some(FileType::Fifo)).unwrap() {
                    Insert::Done { .. } => { model.insert(name, ino); }
                    Insert::Exists { .. } => prop_assert!(model.contains_key(&name)),
                    Insert::Full => prop_assert!(size < 65536 && model.len() > 2),
                },
            }
            prop_assert_eq!(&contents(f, &block), &model);
        }
        let mut packed = vec![0; size];
        f.pack(&mut packed, f.entries(&block).map(Result::unwrap)).unwrap();
        prop_assert_eq!(contents(f, &packed), model);
    }

    #[test]
    fn damage_never_panics(
        csum: bool,
        root: bool,
        flips in prop::collection::vec((0usize..1024, any::<u8>()), 1..20),
        offset in 0u32..1100,
    ) {
        let f = format(true, csum);
        let mut block = vec![0; 1024];
        if root { f.init_dots(&mut block, 2, 2) } else { f.init_leaf(&mut block) }
        for n in 0..20u8 {
            f.insert(&mut block, &[b'n', n + 1], 11, Some(FileType::Regular)).unwrap();
        }
        for (at, value) in flips {
            block[at] = value;
        }
        prop_assert!(f.entries(&block).count() <= 1024 / 12 + 1);
        let _ = (f.find(&block, b"zz"), f.dots(&block), f.entry_at(&block, offset), verify_leaf(&block, seed(1)));
        let _ = f.insert(&mut block.clone(), b"another", 12, Some(FileType::Regular));
        let _ = f.set_inode(&mut block.clone(), offset, 12, Some(FileType::Regular));
        let _ = f.pack(&mut vec![0; 1024], f.entries(&block).filter_map(Result::ok));
        for at in (0..1024).step_by(4) {
            let _ = f.remove(&mut block.clone(), at);
        }
    }
}
