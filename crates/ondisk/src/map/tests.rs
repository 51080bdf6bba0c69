//! Steps down maps of both forms: everything is found, once and in order.

use super::*;
use crate::extent::{Extent, Index, NodeMut, pack_tree};

const SIZE: u32 = 1024;

fn context() -> NodeContext<impl Fn(BlockNr, u32) -> bool> {
    let valid = |start: BlockNr, len: u32| start.0 > 0 && start.0 + u64::from(len) <= 1_000_000;
    NodeContext { seed: Some(5), is_dir: false, cluster_bits: 0, valid }
}

fn root_step(form: Form, i_block: &[u8; 60]) -> Vec<StepItem> {
    let mut all = Vec::new();
    root(form, i_block, SIZE, &context(), &mut |found| all.push(found));
    all
}

fn node_step(child: &Child, bytes: &[u8]) -> Vec<StepItem> {
    let mut all = Vec::new();
    node(child, bytes, &context(), &mut |found| all.push(found));
    all
}

/// Walks a whole map in depth-first order.
fn walk(steps: Vec<StepItem>, read: &dyn Fn(BlockNr) -> Vec<u8>, runs: &mut Vec<Run>) {
    for found in steps {
        match found {
            StepItem::Run(run) => runs.push(run),
            StepItem::Child(child) => walk(node_step(&child, &read(child.block)), read, runs),
            StepItem::Damage(damage) => panic!("{damage}"),
        }
    }
}

#[test]
fn a_walk_down_an_extent_tree_gives_the_packed_extents() {
    for count in [0u32, 4, 85, 5000] {
        let extents: Vec<Extent> = (0..count)
            .map(|i| Extent {
                lblk: LogicalBlock(i * 3),
                len: 2,
                pblk: BlockNr(1000 + u64::from(i) * 5),
                unwritten: i % 3 == 0,
            })
            .collect();
        let mut next = 500_000;
        let mut alloc = || {
            next += 1;
            Some(BlockNr(next))
        };
        let tree = pack_tree(&extents, SIZE, Some(5), &mut alloc).unwrap();
        let read = |block| tree.blocks.iter().find(|(nr, _)| *nr == block).unwrap().1.clone();
        let mut runs = Vec::new();
        walk(root_step(Form::Extents, &tree.root), &read, &mut runs);
        let expected: Vec<Run> =
            extents.iter().map(|e| Run { lblk: e.lblk, len: e.len, pblk: e.pblk, unwritten: e.unwritten }).collect();
        assert_eq!(runs, expected);
    }
}

#[test]
fn a_walk_down_indirect_blocks_gives_every_pointer_at_its_logical_block() {
    let geometry = indirect::Geometry::new(SIZE);
    // The first and the last pointer of each tree; in the triple indirect tree, one at the very end of the format.
    let lblks = [0, 11, 12, 267, 268, 65_803, 65_804, geometry.logical_end() - 1];
    let mut blocks: std::collections::BTreeMap<u64, Vec<u8>> = std::collections::BTreeMap::new();
    let mut i_block = [0; 60];
    let mut next = 1000;
    for lblk in lblks {
        let path = geometry.path(LogicalBlock(lblk)).unwrap();
        let mut at: Option<u64> = None;
        for offset in &path.offsets[..=path.levels] {
            let bytes: &mut [u8] = match at {
                None => &mut i_block,
                Some(block) => blocks.entry(block).or_insert_with(|| vec![0; SIZE as usize]),
            };
            let mut pointer = indirect::pointer(bytes, *offset as usize).unwrap();
            if pointer == 0 {
                next += 2;
                pointer = next;
                assert!(indirect::set_pointer(bytes, *offset as usize, pointer));
            }
            at = Some(pointer.into());
        }
    }
    let mut runs = Vec::new();
    walk(root_step(Form::Indirect, &i_block), &|block| blocks[&block.0].clone(), &mut runs);
    assert_eq!(runs.iter().map(|run| run.lblk.0).collect::<Vec<_>>(), lblks);
    assert!(runs.iter().all(|run| run.len == 1 && !run.unwritten && !blocks.contains_key(&run.pblk.0)));
}

#[test]
fn neighbours_of_pointers_become_one_run() {
    let mut bytes = vec![0; 1024];
    for (i, block) in [(0, 50), (1, 51), (2, 52), (4, 54), (5, 55), (6, 90)] {
        assert!(indirect::set_pointer(&mut bytes, i, block));
    }
    let child = Child { block: BlockNr(9), first: 12, end: 268, depth: 0, form: Form::Indirect };
    let run =
        |lblk, len, pblk| StepItem::Run(Run { lblk: LogicalBlock(lblk), len, pblk: BlockNr(pblk), unwritten: false });
    assert_eq!(node_step(&child, &bytes), [run(12, 3, 50), run(16, 2, 54), run(18, 1, 90)]);
}

#[test]
fn damage_is_reported_in_place_of_its_entry_and_the_step_continues() {
    let mut i_block = [0; 60];
    for (i, block) in [(0, 50), (1, 2_000_000), (2, 51), (12, 3_000_000), (13, 60)] {
        assert!(indirect::set_pointer(&mut i_block, i, block));
    }
    let run =
        |lblk, pblk| StepItem::Run(Run { lblk: LogicalBlock(lblk), len: 1, pblk: BlockNr(pblk), unwritten: false });
    let wild = |index, block| StepItem::Damage(MapDamage::Indirect(IndirectDamage::Pointer { index, block }));
    let child = Child { block: BlockNr(60), first: 268, end: 65_804, depth: 1, form: Form::Indirect };
    let expected = [run(0, 50), wild(1, 2_000_000), run(2, 51), wild(12, 3_000_000), StepItem::Child(child)];
    assert_eq!(root_step(Form::Indirect, &i_block), expected);

    let index = |lblk, child| Index { lblk: LogicalBlock(lblk), child: BlockNr(child) }.encode();
    assert!(NodeMut::init(&mut i_block, 2).set_all(&[index(0, 7), index(10, 0), index(5, 8), index(20, 9)]));
    let child =
        |block, first, end| StepItem::Child(Child { block: BlockNr(block), first, end, depth: 1, form: Form::Extents });
    let damage = |damage| StepItem::Damage(MapDamage::Extent(damage));
    let expected = [
        child(7, 0, 10),
        damage(ExtentDamage::Child { entry: 1, block: BlockNr(0) }),
        damage(ExtentDamage::OutOfOrder { entry: 2, start: 5, previous: 10 }),
        child(9, 20, u32::MAX.into()),
    ];
    assert_eq!(root_step(Form::Extents, &i_block), expected);
}

#[test]
fn pointers_behind_the_last_logical_block_are_damage() {
    let mut bytes = vec![0; 65536];
    assert!(indirect::set_pointer(&mut bytes, 5, 77));
    let child = Child { block: BlockNr(9), first: u32::MAX - 3, end: u32::MAX.into(), depth: 0, form: Form::Indirect };
    let lblk = u64::from(u32::MAX) + 2;
    let expected = MapDamage::Indirect(IndirectDamage::BehindEnd { index: 5, block: 77, lblk });
    assert_eq!(node_step(&child, &bytes), [StepItem::Damage(expected)]);
}

#[test]
fn a_node_of_the_wrong_depth_gives_no_entries() {
    let mut bytes = vec![0; 1024];
    let mut leaf = NodeMut::init(&mut bytes, 0);
    let extent = Extent { lblk: LogicalBlock(0), len: 1, pblk: BlockNr(5), unwritten: false };
    assert!(leaf.set_all(&[extent.encode()]));
    leaf.seal(Some(5));
    let child = Child { block: BlockNr(9), first: 0, end: 10, depth: 1, form: Form::Extents };
    let expected = MapDamage::Extent(ExtentDamage::Depth { found: 0, expected: 1 });
    assert_eq!(node_step(&child, &bytes), [StepItem::Damage(expected)]);
    let expected = MapDamage::Extent(ExtentDamage::Magic { found: 0 });
    assert_eq!(node_step(&child, &[0; 1024])[0], StepItem::Damage(expected));
}
