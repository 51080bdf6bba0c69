//! Tests of extents and their nodes: known bytes, and random edits.

use proptest::prelude::*;

use super::*;
use crate::damage::Damage;

fn ext(lblk: u32, len: u32, pblk: u64, unwritten: bool) -> Extent {
    Extent { lblk: LogicalBlock(lblk), len, pblk: BlockNr(pblk), unwritten }
}

#[test]
fn entries_have_the_kernels_layout() {
    let e = ext(0x0403_0201, 5, 0x0605_0A09_0807, false);
    assert_eq!(e.encode(), [1, 2, 3, 4, 5, 0, 5, 6, 7, 8, 9, 10]);
    assert_eq!(Extent::decode(&e.encode()), e);
    let u = ext(7, UNWRITTEN_LEN_MAX, 9, true);
    assert_eq!(&u.encode()[4..6], &[0xFF, 0xFF]);
    assert_eq!(Extent::decode(&u.encode()), u);
    let w = ext(7, WRITTEN_LEN_MAX, 9, false);
    assert_eq!(&w.encode()[4..6], &[0x00, 0x80]);
    assert_eq!(Extent::decode(&w.encode()), w);
    let i = Index { lblk: LogicalBlock(0x0403_0201), child: BlockNr(0x0A09_0807_0605) };
    assert_eq!(i.encode(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]);
    assert_eq!(Index::decode(&i.encode()), i);
}

#[test]
fn adjacent_extents_merge_up_to_the_length_limit() {
    assert_eq!(ext(0, 4, 100, false).merged(&ext(4, 4, 104, false)), Some(ext(0, 8, 100, false)));
    assert_eq!(ext(0, 4, 100, false).merged(&ext(4, 4, 104, true)), None);
    assert_eq!(ext(0, 4, 100, false).merged(&ext(5, 4, 104, false)), None);
    assert_eq!(ext(0, 4, 100, false).merged(&ext(4, 4, 105, false)), None);
    assert_eq!(ext(0, 32767, 100, false).merged(&ext(32767, 1, 32867, false)).map(|e| e.len), Some(32768));
    assert_eq!(ext(0, 32768, 100, false).merged(&ext(32768, 1, 32868, false)), None);
    assert_eq!(ext(0, 32767, 100, true).merged(&ext(32767, 1, 32867, true)), None);
}

#[test]
fn clip_keeps_the_physical_side_in_step() {
    let e = ext(10, 10, 100, true);
    assert_eq!(e.clip(0, 10), None);
    assert_eq!(e.clip(20, 30), None);
    assert_eq!(e.clip(0, 100), Some(e));
    assert_eq!(e.clip(12, 15), Some(ext(12, 3, 102, true)));
}

#[test]
fn capacities_leave_room_for_the_tail() {
    assert_eq!(capacity(ROOT_BYTES), 4);
    for (bs, room) in [(1024, 84), (2048, 169), (4096, 340), (65536, 5460)] {
        assert_eq!(capacity(bs), room);
        assert!(HEADER_BYTES + room * ENTRY_BYTES + TAIL_BYTES <= bs);
    }
}

#[test]
fn nodes_are_edited_in_place() {
    let mut bytes = vec![0xAA; 1024];
    let mut node = NodeMut::init(&mut bytes, 0);
    assert!(node.insert(0, &ext(10, 5, 100, false).encode()));
    assert!(node.insert(1, &ext(30, 5, 200, false).encode()));
    assert!(node.insert(1, &ext(20, 5, 300, true).encode()));
    assert!(!node.insert(4, &ext(50, 5, 300, true).encode()));
    let keys: Vec<_> = (0..4).map(|i| node.view().key(i)).collect();
    assert_eq!(keys, [Some(10), Some(20), Some(30), None]);
    for (lblk, want) in [(0, None), (10, Some(0)), (19, Some(0)), (20, Some(1)), (4_000_000_000, Some(2))] {
        assert_eq!(node.view().search(lblk), want);
    }
    assert!(node.view().validate(0, 1, |_, _| true).is_ok());
    assert!(node.splice(0..2, &[ext(1, 2, 3, false).encode()]));
    assert_eq!(node.view().extent(0), Some(ext(1, 2, 3, false)));
    assert_eq!(node.view().extent(1), Some(ext(30, 5, 200, false)));
    assert!(node.set_key(1, LogicalBlock(29)));
    assert_eq!(node.view().key(1), Some(29));
    assert!(node.remove(0) && node.remove(0) && !node.remove(0));
    assert!(bytes[HEADER_BYTES..].iter().all(|b| *b == 0), "vacated room is zeroed");
}

#[test]
fn checksum_covers_all_before_the_tail() {
    let mut bytes = vec![0; 1024];
    let mut node = NodeMut::init(&mut bytes, 0);
    assert!(node.insert(0, &ext(10, 5, 100, false).encode()));
    node.seal(Some(0x1234_5678));
    for at in [9, 13, 500, 1019] {
        let mut copy = bytes.clone();
        let node = NodeRef::parse(&copy, 1).unwrap();
        assert_eq!(node.stored_checksum(), node.checksum(0x1234_5678));
        assert_ne!(node.stored_checksum(), node.checksum(0x1234_5679));
        copy[at] ^= 1;
        let node = NodeRef::parse(&copy, 1).unwrap();
        assert_ne!(node.stored_checksum(), node.checksum(0x1234_5678), "byte {at}");
    }
}

#[test]
fn validation_names_the_fault() {
    type Spoil = (&'static str, fn(&mut [u8]));
    let mut good = vec![0; 1024];
    let mut node = NodeMut::init(&mut good, 0);
    assert!(node.set_all(&[ext(10, 5, 100, false).encode(), ext(20, 5, 200, false).encode()]));
    let check = |bytes: &[u8]| {
        NodeRef::parse(bytes, 7)?.validate(0, 7, |start, len| start.0 > 0 && start.0 + u64::from(len) <= 1000)
    };
    assert_eq!(check(&good), Ok(()));
    let spoils: [Spoil; 9] = [
        ("magic", |b| b[0] ^= 1),
        ("entries in room", |b| b[2] = 85),
        ("room for", |b| b[4] = 81),
        ("room for", |b| b[4] = 85),
        ("depth", |b| b[6] = 1),
        ("before", |b| b[24] = 14),
        ("blocks from", |b| b[16] = 0),
        ("no file can own", |b| b[20 + 1] = 0x10),
        ("blocks from", |b| b[24..28].fill(0xFF)),
    ];
    for (want, spoil) in spoils {
        let mut bad = good.clone();
        spoil(&mut bad);
        let text = check(&bad).unwrap_err().to_string();
        assert!(text.contains(want), "{want}: {text}");
    }
    let node = NodeRef::parse(&good, 7).unwrap();
    assert!(node.check_place(0, 10, 25, 7).is_ok());
    assert!(node.check_place(0, 11, 25, 7).is_err());
    assert!(node.check_place(0, 10, 24, 7).is_err());
    assert!(node.check_place(1, 10, 25, 7).is_err());
}

/// All damage of a node of 1024 bytes in which blocks 1 to 999 may be owned.
fn damages(bytes: &[u8], promise: Option<Promise>, is_dir: bool, cluster_bits: u32) -> Vec<ExtentDamage> {
    let valid = |start: BlockNr, len: u32| start.0 > 0 && start.0 + u64::from(len) <= 1000;
    let context = NodeContext { seed: Some(SEED), is_dir, cluster_bits, valid };
    crate::damage::all(|mut sink| match NodeRef::sound(bytes) {
        Some(node) => node.damage(promise.as_ref(), &context, &mut sink),
        None => header_damage(bytes, &mut sink),
    })
}

const SEED: u32 = 77;

/// A node with these entries and its checksum.
fn node_of(depth: u16, entries: &[RawEntry]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let mut node = NodeMut::init(&mut bytes, depth);
    assert!(node.set_all(entries));
    node.seal(Some(SEED));
    bytes
}

#[test]
fn each_damage_of_a_header_is_found_alone() {
    use ExtentDamage as D;
    let good = node_of(0, &[ext(10, 5, 100, false).encode()]);
    assert_eq!(damages(&good, None, false, 0), []);
    assert_eq!(damages(&good[..59], None, false, 0), [D::Length { found: 59 }]);
    for (at, new, expected) in [
        (0, 0xF30B, D::Magic { found: 0xF30B }),
        (2, 85, D::Entries { found: 85, room: 84 }),
        (4, 81, D::Room { found: 81, expected: 84 }),
        (4, 85, D::Room { found: 85, expected: 84 }),
        (6, 6, D::TooDeep { found: 6 }),
    ] {
        let mut bad = good.clone();
        bad[at..at + 2].copy_from_slice(&u16::to_le_bytes(new));
        assert_eq!(damages(&bad, None, false, 0), [expected]);
        assert!(expected.is_fatal() && NodeRef::parse(&bad, 7).is_err());
    }
    let nonsense = damages(&[0x55; 1024], None, false, 0);
    assert!(matches!(nonsense[..], [D::Magic { .. }, D::Room { .. }, D::TooDeep { .. }]), "{nonsense:?}");
}

#[test]
fn each_damage_of_an_entry_is_found_alone() {
    use ExtentDamage as D;
    let index = |lblk, child| Index { lblk: LogicalBlock(lblk), child: BlockNr(child) }.encode();
    let zero = {
        let mut raw = ext(20, 5, 200, false).encode();
        raw[4] = 0;
        raw
    };
    let first = ext(10, 5, 100, false).encode();
    let leaf = [
        (ext(10, 5, 200, false).encode(), D::OutOfOrder { entry: 1, start: 10, previous: 10 }),
        (ext(9, 5, 200, false).encode(), D::OutOfOrder { entry: 1, start: 9, previous: 10 }),
        (ext(14, 5, 200, false).encode(), D::Overlap { entry: 1, start: 14, end: 15 }),
        (zero, D::ZeroLength { entry: 1, start: 20 }),
        (ext(u32::MAX, 1, 200, false).encode(), D::BehindEnd { entry: 1, start: u32::MAX, len: 1 }),
        (ext(20, 5, 1000, false).encode(), D::BlockStart { entry: 1, block: BlockNr(1000), len: 5 }),
        (ext(20, 5, 998, false).encode(), D::BlockEnd { entry: 1, block: BlockNr(998), len: 5 }),
    ];
    for (second, expected) in leaf {
        assert_eq!(damages(&node_of(0, &[first, second]), None, false, 0), [expected]);
        assert!(expected.is_fatal());
    }
    let unwritten = node_of(0, &[first, ext(20, 5, 200, true).encode()]);
    assert_eq!(damages(&unwritten, None, true, 0), [D::UnwrittenDirectory { entry: 1, len: 5 }]);
    assert_eq!(damages(&unwritten, None, false, 0), []);
    let bent = node_of(0, &[ext(16, 16, 32, false).encode(), ext(33, 5, 66, false).encode()]);
    assert_eq!(damages(&bent, None, false, 4), [D::Cluster { entry: 1, start: 33, block: BlockNr(66) }]);
    let inner = [
        (index(10, 7), D::OutOfOrder { entry: 1, start: 10, previous: 10 }),
        (index(11, 1000), D::Child { entry: 1, block: BlockNr(1000) }),
    ];
    for (second, expected) in inner {
        assert_eq!(damages(&node_of(1, &[index(10, 5), second]), None, false, 0), [expected]);
    }
    assert_eq!(damages(&node_of(1, &[]), None, false, 0), [D::Empty]);
}

#[test]
fn each_damage_of_a_nodes_place_is_found_alone() {
    use ExtentDamage as D;
    let good = node_of(0, &[ext(10, 5, 100, false).encode(), ext(20, 5, 200, false).encode()]);
    let promise = Promise { depth: 0, first: 10, end: 25 };
    assert_eq!(damages(&good, Some(promise), false, 0), []);
    for (promise, expected) in [
        (Promise { depth: 1, ..promise }, D::Depth { found: 0, expected: 1 }),
        (Promise { first: 11, ..promise }, D::BeforeParent { start: 10, first: 11 }),
        (Promise { first: 9, ..promise }, D::BehindKey { start: 10, first: 9 }),
        (Promise { end: 24, ..promise }, D::BehindParent { entry: 1, start: 20, end: 25, limit: 24 }),
    ] {
        assert_eq!(damages(&good, Some(promise), false, 0), [expected]);
    }
    let wild = [ext(10, 500, 100, false).encode(), ext(20, 5, 200, false).encode()];
    let found = damages(&node_of(0, &wild), Some(promise), false, 0);
    assert_eq!(found, [D::BehindParent { entry: 0, start: 10, end: 510, limit: 25 }], "the second is sound");
    // Unwritten blocks belong to the file as well, and the next extent overlaps them.
    let unwritten = [ext(10, 500, 100, true).encode(), ext(20, 5, 200, false).encode()];
    let behind = D::BehindParent { entry: 0, start: 10, end: 510, limit: 25 };
    let among = D::Overlap { entry: 1, start: 20, end: 510 };
    assert_eq!(damages(&node_of(0, &unwritten), Some(promise), false, 0), [behind, among]);
    let mut bad = good.clone();
    bad[500] ^= 1;
    assert!(matches!(damages(&bad, None, false, 0)[..], [D::Checksum { .. }]));
    let all = node_of(0, &[ext(10, 5, 1000, false).encode(), ext(9, 5, 999, false).encode()]);
    assert_eq!(damages(&all, Some(Promise { depth: 0, first: 11, end: 12 }), false, 0).len(), 6, "all are reported");
    // In a node of another level, the kind of the entries is unknown.
    let found = damages(&all, Some(Promise { depth: 2, first: 11, end: 12 }), false, 0);
    assert_eq!(found, [D::Depth { found: 0, expected: 2 }, D::BeforeParent { start: 10, first: 11 }]);
}

#[test]
fn last_logical_block_is_refused() {
    let mut bytes = vec![0; 1024];
    let mut node = NodeMut::init(&mut bytes, 0);
    assert!(node.set_all(&[ext(0xFFFF_FFFE, 1, 100, false).encode()]));
    assert!(node.view().validate(0, 1, |_, _| true).is_ok());
    assert!(node.set_all(&[ext(0xFFFF_FFFF, 1, 100, false).encode()]));
    assert!(node.view().validate(0, 1, |_, _| true).is_err());
}

fn unpack(tree: &PackedTree, bytes: &[u8], depth: u16, first: u32, end: u64, out: &mut Vec<Extent>) {
    let node = NodeRef::parse(bytes, 0).unwrap();
    node.validate(depth, 0, |_, _| true).unwrap();
    node.check_place(depth, first, end, 0).unwrap();
    for i in 0..node.len() {
        if depth == 0 {
            out.push(node.extent(i).unwrap());
        } else {
            let index = node.index(i).unwrap();
            let child = &tree.blocks.iter().find(|(nr, _)| *nr == index.child).unwrap().1;
            let end = node.key(i + 1).map_or(end, u64::from);
            unpack(tree, child, depth - 1, index.lblk.0, end, out);
        }
    }
}

#[test]
fn packed_trees_map_the_given_extents() {
    for count in [0u32, 1, 4, 5, 84, 85, 336, 337, 10_000] {
        let extents: Vec<_> = (0..count).map(|i| ext(i * 3, 2, 1000 + u64::from(i) * 5, i % 3 == 0)).collect();
        let mut next = 50_000_000;
        let tree = pack_tree(&extents, 1024, Some(9), || {
            next += 1;
            Some(BlockNr(next))
        })
        .unwrap();
        let depth = NodeRef::parse(&tree.root, 0).unwrap().depth();
        let mut out = Vec::new();
        unpack(&tree, &tree.root, depth, 0, u64::from(LOGICAL_END), &mut out);
        assert_eq!(out, extents);
        for (nr, bytes) in &tree.blocks {
            let node = NodeRef::parse(bytes, nr.0).unwrap();
            assert_eq!(node.stored_checksum(), node.checksum(9));
        }
    }
    assert!(pack_tree(&[ext(5, 2, 9, false), ext(6, 2, 20, false)], 1024, None, || None).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_a_node_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1024), sound in any::<bool>(),
                                  lblk in any::<u32>(), cut in 0usize..100) {
        let mut bytes = bytes;
        if sound {
            bytes.resize(1024, 0x5A);
            bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[2] = bytes[2].min(84); bytes[3] = 0; bytes[4] = 84; bytes[5] = 0; bytes[6] %= 6; bytes[7] = 0;
        }
        if let Ok(node) = NodeRef::parse(&bytes, 0) {
            let _ = node.search(lblk);
            let _ = node.validate(node.depth(), 0, |s, l| s.0.checked_add(u64::from(l)).is_some());
            let _ = node.check_place(node.depth(), 0, 100, 0);
            let _ = (node.checksum(1), node.stored_checksum(), node.extent(cut), node.index(cut));
        }
        if let Ok(mut node) = NodeMut::parse(&mut bytes, 0) {
            let _ = node.splice(cut..cut + 3, &[[1; 12]; 2]);
            let _ = node.insert(cut, &[2; 12]);
            node.seal(Some(3));
        }
    }
}
