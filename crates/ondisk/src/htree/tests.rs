//! Tests of name hashes against e2fsprogs' debugfs, of index blocks against a model, and of both under damage.

use proptest::prelude::*;

use super::*;
use crate::csum::ChecksumSeed;
use crate::dirent::{DirBlockFormat, DirDamage, DirRule, Insert};
use crate::inode::FileType;

/// 01234567-89ab-cdef-0123-456789abcdef in the form of the superblock.
const SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x6745_2301, 0xEFCD_AB89];

#[test]
fn hashes_equal_those_of_debugfs() {
    // Output of debugfs 1.47.0: dx_hash -h N -s 01234567-89ab-cdef-0123-456789abcdef h\xe9llo
    let expected = [
        (0xA45A_86CC, 0),
        (0xD42D_A6D0, 0x55CF_442A),
        (0xE3C9_CF5C, 0x3858_92BC),
        (0xA380_98D0, 0),
        (0x9B4F_D7BE, 0x33FF_8EE4),
        (0xCD64_276C, 0xD6C8_69FB),
    ];
    for (version, (hash, minor)) in HashVersion::ALL.into_iter().zip(expected) {
        assert_eq!(Hasher::new(version, SEED).hash(b"h\xE9llo"), NameHash { hash, minor }, "{version:?}");
    }
    let unseeded = Hasher::new(HashVersion::HalfMd4, [0; 4]).hash(b"hello");
    assert_eq!(unseeded, NameHash { hash: 0x1746_DA32, minor: 0x4200_13B5 });
}

/// All lengths, low and high bytes, all variants, with and without seed. The installed tool gives the expected values.
#[test]
fn hashes_agree_with_the_installed_debugfs() {
    let mut names = Vec::new();
    let mut rng = 0x2545_F491_4F6C_DD1Du64;
    for len in 1..=255usize {
        let name: Vec<u8> = (0..len)
            .map(|_| {
                rng ^= rng << 13;
                rng ^= rng >> 7;
                rng ^= rng << 17;
                if rng & 256 == 0 { b'a' + (rng % 26) as u8 } else { 0xA0 + (rng % 95) as u8 }
            })
            .collect();
        names.push(name);
    }
    let mut script = Vec::new();
    let mut ours = Vec::new();
    for (number, version) in HashVersion::ALL.into_iter().enumerate() {
        for name in &names {
            for (argument, seed) in [("-s 01234567-89ab-cdef-0123-456789abcdef ", SEED), ("", [0; 4])] {
                script.extend_from_slice(format!("dx_hash -h {number} {argument}").as_bytes());
                script.extend_from_slice(name);
                script.push(b'\n');
                ours.push(Hasher::new(version, seed).hash(name));
            }
        }
    }
    // The hash does not come from an image.
    let theirs = extant_oracle::debugfs("/dev/null", script).unwrap();
    let theirs: Vec<NameHash> = theirs.lines().filter_map(parse_answer).collect();
    assert_eq!(theirs.len(), ours.len());
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "answer {at}");
    }
}

fn parse_answer(line: &str) -> Option<NameHash> {
    let (hash, minor) = line.rsplit_once(" is 0x")?.1.split_once(" (minor 0x")?;
    let hex = |digits: &str| u32::from_str_radix(digits.trim_end_matches(')').trim(), 16).ok();
    Some(NameHash { hash: hex(hash)?, minor: hex(minor)? })
}

#[test]
fn only_hash_families_are_stored_on_disk() {
    for version in HashVersion::ALL {
        assert_eq!(HashVersion::from_disk(version.to_disk(), version.is_unsigned()), Some(version));
    }
    assert_eq!((HashVersion::from_disk(3, false), HashVersion::from_disk(6, true)), (None, None));
}

fn dots() -> DirBlockFormat {
    DirBlockFormat { has_filetype: true, has_csum: true, inodes_count: 1000, encrypted: false }
}

fn new_root(format: DxFormat, size: usize) -> Vec<u8> {
    let mut root = vec![0x55; size];
    format.init_root(&mut root, DirBlockFormat { has_csum: format.has_csum, ..dots() }, [12, 2], 1, 1);
    root
}

#[test]
fn limits_are_exact() {
    let (with, without) = (DxFormat { has_csum: true }, DxFormat { has_csum: false });
    assert_eq!((with.limit(DxShape::Root, 4096), with.limit(DxShape::Node, 4096)), (507, 510));
    assert_eq!((without.limit(DxShape::Root, 4096), without.limit(DxShape::Node, 4096)), (508, 511));
    assert_eq!((without.limit(DxShape::Root, 1024), without.limit(DxShape::Node, 1024)), (124, 127));
    assert_eq!(without.limit(DxShape::Node, 65536), 8191);
}

#[test]
fn a_root_has_the_bytes_of_the_format() {
    for size in [1024usize, 4096, 65536] {
        let format = DxFormat { has_csum: false };
        let root = new_root(format, size);
        assert_eq!(shape_of(&root), Some(DxShape::Root));
        let plain = DirBlockFormat { has_csum: false, ..dots() };
        assert_eq!(plain.dots(&root), Ok((12, 2, 12)));
        assert_eq!(plain.entries(&root).count(), 2, "old readers see only the dots");
        assert_eq!(&root[24..32], &[0, 0, 0, 0, 1, 8, 0, 0]);
        let (info, node) = format.root(&root).unwrap();
        assert_eq!((info.hash_version, info.indirect_levels), (1, 0));
        assert_eq!((node.count(), node.child(0), node.limit()), (1, 1, (size - 32) / 8));
    }
}

#[test]
fn search_enters_a_run_of_equal_hashes_at_its_first_leaf() {
    let format = DxFormat { has_csum: true };
    let mut root = new_root(format, 1024);
    for (at, key) in [10u32, 20, 21, 21, 40].into_iter().enumerate() {
        format.insert(&mut root, DxShape::Root, at, key, at as u32 + 2).unwrap();
    }
    let (_, node) = format.root(&root).unwrap();
    let found: Vec<usize> = [0, 8, 10, 18, 20, 22, 38, 40, 0xFFFF_FFFC].map(|hash| node.search(hash)).to_vec();
    assert_eq!(found, [0, 0, 1, 1, 2, 4, 4, 5, 5]);
    assert_eq!(node.validate(DxShape::Root, 7), Ok(()));
    assert!(node.validate(DxShape::Root, 6).is_err(), "child outside the directory");
    let mut unsorted = root.clone();
    unsorted[32 + 8..32 + 12].copy_from_slice(&100u32.to_le_bytes());
    assert!(format.root(&unsorted).unwrap().1.validate(DxShape::Root, 7).is_err());
}

#[test]
fn full_nodes_split_and_roots_gain_a_level() {
    for (has_csum, size) in [(true, 1024), (false, 1024), (true, 4096)] {
        let format = DxFormat { has_csum };
        let mut root = new_root(format, size);
        let limit = format.limit(DxShape::Root, size);
        for at in 0..limit - 1 {
            format.insert(&mut root, DxShape::Root, at, (at as u32 + 1) * 2, at as u32 + 2).unwrap();
        }
        assert!(format.insert(&mut root, DxShape::Root, 0, 1, 1).is_err(), "full");
        let mut node = vec![0xFF; size];
        format.root_to_node(&root, &mut node).unwrap();
        format.raise_root(&mut root, 777).unwrap();
        let (info, view) = format.root(&root).unwrap();
        assert_eq!((info.indirect_levels, view.count(), view.child(0)), (1, 1, 777));
        assert_eq!(format.node(DxShape::Node, &node).unwrap().count(), limit);
        let mut upper = vec![0xFF; size];
        let key = format.upper_half(&node, &mut upper).unwrap();
        let all: Vec<(u32, u32)> = children(format, &node);
        format.keep_lower_half(&mut node).unwrap();
        let mut rejoined = children(format, &node);
        assert_eq!(rejoined.len(), limit / 2);
        let mut right = children(format, &upper);
        right[0].0 = key;
        rejoined.extend(right);
        assert_eq!(rejoined, all);
    }
}

fn children(format: DxFormat, block: &[u8]) -> Vec<(u32, u32)> {
    let node = format.node(DxShape::Node, block).unwrap();
    (0..node.count()).map(|at| (node.key(at), node.child(at))).collect()
}

#[test]
fn checksum_covers_entries_in_use() {
    let format = DxFormat { has_csum: true };
    let mut root = new_root(format, 1024);
    format.insert(&mut root, DxShape::Root, 0, 50, 2).unwrap();
    format.seal(&mut root, ChecksumSeed::from_raw(99)).unwrap();
    assert_eq!(format.verify(&root, ChecksumSeed::from_raw(99)), Ok(()));
    assert!(format.verify(&root, ChecksumSeed::from_raw(98)).is_err());
    let tail = 32 + format.limit(DxShape::Root, 1024) * 8;
    assert_eq!(tail + 8, 1024);
    for at in (0..32 + 16).chain(tail..tail + 8) {
        root[at] ^= 0x10;
        assert!(format.verify(&root, ChecksumSeed::from_raw(99)).is_err(), "flip at {at}");
        root[at] ^= 0x10;
    }
    root[60] ^= 1;
    assert_eq!(format.verify(&root, ChecksumSeed::from_raw(99)), Ok(()), "unused entries are not covered");
}

/// The damage of a block of a directory of seven blocks.
fn damaged(format: DxFormat, shape: DxShape, block: &[u8]) -> Result<(), DirDamage> {
    let node = match shape {
        DxShape::Root => format.root(block)?.1,
        DxShape::Node => format.node(shape, block)?,
    };
    node.validate(shape, 7)?;
    format.verify(block, ChecksumSeed::from_raw(99))
}

#[test]
fn each_damage_of_an_index_block_is_found_alone() {
    use DirRule as R;
    type Case<'a> = (usize, &'a [u8], u32, DirRule);
    let format = DxFormat { has_csum: false };
    let mut root = new_root(format, 1024);
    format.insert(&mut root, DxShape::Root, 0, 50, 2).unwrap();
    format.insert(&mut root, DxShape::Root, 1, 60, 3).unwrap();
    assert_eq!(damaged(format, DxShape::Root, &root), Ok(()));
    let roots: [Case<'_>; 11] = [
        (16, &[0], 24, R::RootDots),
        (25, &[1], 24, R::RootReserved { found: 0x100 }),
        (29, &[9], 24, R::RootLength { found: 9 }),
        (31, &[1], 24, R::RootFlags { found: 1 }),
        (28, &[6], 24, R::HashVersion { found: 6 }),
        (30, &[3], 24, R::Levels { found: 3, most: 2 }),
        (32, &[123], 32, R::Limit { found: 123, expected: 124 }),
        (34, &[0], 32, R::Count { found: 0, limit: 124 }),
        (34, &[125], 32, R::Count { found: 125, limit: 124 }),
        (48, &[40], 48, R::KeyOrder { found: 40, previous: 50 }),
        (52, &[7], 48, R::Child { found: 7, blocks: 7 }),
    ];
    for (at, new, offset, what) in roots {
        let mut bad = root.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        assert_eq!(damaged(format, DxShape::Root, &bad), Err(DirDamage { offset, what }));
    }
    assert_eq!(damaged(format, DxShape::Root, &root[..28]).map_err(|d| d.what), Err(R::RootTooSmall));

    let mut node = vec![0; 1024];
    format.init_node(&mut node, 3);
    assert_eq!(damaged(format, DxShape::Node, &node), Ok(()));
    assert!(format.is_node(&node) && !format.is_node(&root));
    assert_eq!(damaged(format, DxShape::Node, &node[..12]).map_err(|d| d.what), Err(R::IndexTooSmall));
    node[4] = 12;
    assert_eq!(damaged(format, DxShape::Node, &node), Err(DirDamage { offset: 0, what: R::LeafForIndex }));
    assert!(!format.is_node(&node));
    let sealed = DxFormat { has_csum: true };
    let mut root = new_root(sealed, 1024);
    sealed.seal(&mut root, ChecksumSeed::from_raw(99)).unwrap();
    assert_eq!(damaged(sealed, DxShape::Root, &root), Ok(()));
    root[1023] ^= 1;
    assert!(matches!(damaged(sealed, DxShape::Root, &root), Err(DirDamage { what: R::IndexChecksum { .. }, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn damage_never_panics(
        has_csum: bool,
        is_root: bool,
        flips in prop::collection::vec((0usize..96, any::<u8>()), 1..12),
        cut in 0usize..1024,
        hash: u32,
    ) {
        let format = DxFormat { has_csum };
        let mut block = new_root(format, 1024);
        if !is_root {
            format.init_node(&mut block, 3);
        }
        let shape = if is_root { DxShape::Root } else { DxShape::Node };
        for at in 0..5 {
            format.insert(&mut block, shape, at, at as u32 * 100 + 100, at as u32 + 5).unwrap();
        }
        for (at, value) in flips {
            block[at] = value;
        }
        for bytes in [&block[..], &block[..cut]] {
            let mut copy = bytes.to_vec();
            if let Ok(node) = format.node(shape, bytes) {
                prop_assert!(node.search(hash) < node.count());
                let _ = node.validate(shape, 9);
            }
            let _ = (format.root(bytes), format.verify(bytes, ChecksumSeed::from_raw(7)), format.seal(&mut copy, ChecksumSeed::from_raw(7)));
            let _ = format.insert(&mut copy, shape, 2, 33, 44);
            let mut other = vec![0; 1024];
            let _ = (format.upper_half(bytes, &mut other), format.root_to_node(bytes, &mut other));
            let _ = (format.keep_lower_half(&mut copy), format.raise_root(&mut copy, 3));
            let _ = DirBlockFormat { has_csum, ..dots() }.entries(bytes).count();
        }
    }

    #[test]
    fn leaf_of_one_kind_is_not_taken_for_the_other(name in prop::collection::vec(b'a'..=b'z', 1..20)) {
        let (format, leaf) = (DxFormat { has_csum: true }, dots());
        let mut block = vec![0; 1024];
        leaf.init_leaf(&mut block);
        let inserted = leaf.insert(&mut block, &name, 5, Some(FileType::Regular));
        prop_assert_eq!(inserted, Ok(Insert::Done { offset: 0 }));
        prop_assert!(format.node(DxShape::Node, &block).is_err());
        format.init_node(&mut block, 3);
        prop_assert!(leaf.insert(&mut block, &name, 5, Some(FileType::Regular)).is_err());
    }
}
