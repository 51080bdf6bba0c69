//! Hostile bytes: every operation ends with a result, regardless of the bytes that are flipped.

use std::ops::ControlFlow;

use extant_base::rng::Rng;
use extant_ondisk::extent::NodeMut;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::fake::{Fake, Txn};
use crate::map::{MapRoot, MapStore, Progress};

/// A map with a few hundred extents or pointers, in its own file system.
fn victim(extents: bool, seed: u64) -> (Fake, MapRoot) {
    let fake = Fake::new(1024, seed);
    let mut root = MapRoot::empty(InodeNr(12), extents, None);
    let mut rng = Rng::new(seed);
    let mut lblk = 0u32;
    for _ in 0..400 {
        lblk += 1 + rng.below(40) as u32;
        let len = 1 + rng.below(9) as u32;
        let pblk = fake.allocate_data(len, rng.one_in(2));
        let mut txn = Txn::new(1000);
        let done = root.insert(&fake, &mut txn, LogicalBlock(lblk), pblk, len, extents && rng.one_in(3)).unwrap();
        fake.return_data(BlockNr(pblk.0 + u64::from(done)), len - done);
        lblk += len;
    }
    (fake, root)
}

fn flip(fake: &Fake, root: &mut MapRoot, rng: &mut Rng) {
    let mut blocks = fake.blocks.borrow_mut();
    let keys: Vec<u64> = blocks.meta.keys().copied().collect();
    for _ in 0..1 + rng.below(4) {
        let which = rng.below(keys.len() as u64 + 2) as usize;
        let other = keys[rng.below(keys.len() as u64) as usize];
        let bytes: &mut [u8] = match keys.get(which) {
            Some(key) => blocks.meta.get_mut(key).unwrap(),
            None => &mut root.i_block,
        };
        let len = bytes.len() as u64;
        let at = if rng.one_in(2) { rng.below(len.min(64)) } else { rng.below(len) } as usize;
        match rng.below(3) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u32() as u8,
            // A pointer to another node of the same map, which makes cycles and shared children.
            _ => {
                let entry = at / 12 * 12;
                for (i, byte) in (other as u32).to_le_bytes().into_iter().enumerate() {
                    if let Some(room) = bytes.get_mut(entry + 4 + i) {
                        *room = byte;
                    }
                }
            }
        }
    }
}

fn attack(extents: bool, verified: bool, rounds: u64) {
    for seed in 0..rounds {
        let (mut fake, mut root) = victim(extents, seed);
        fake.blocks_count = fake.blocks.borrow().next + 100;
        let mut rng = Rng::new(seed ^ 0xF00D);
        flip(&fake, &mut root, &mut rng);
        fake.drop_cache();
        if !verified {
            // The cache has already verified the blocks as another kind, so it verifies nothing here.
            let keys: Vec<u64> = fake.blocks.borrow().meta.keys().copied().collect();
            for key in keys {
                fake.read(BlockNr(key), |_| Ok(()), |_| ()).unwrap();
            }
        }
        for _ in 0..40 {
            let lblk = LogicalBlock(rng.below(12_000) as u32);
            let len = 1 + rng.below(300) as u32;
            let mut txn = Txn::new(2_000_000);
            fake.salvages = rng.one_in(2);
            match rng.below(7) {
                6 => match root.salvage(&fake, lblk, len) {
                    Ok(m) => assert!(m.lblk == lblk && m.len >= 1 && m.len <= len),
                    Err(lost) => assert!(lost.end > u64::from(lblk.0)),
                },
                0 => {
                    if let Ok(m) = root.lookup(&fake, lblk, len) {
                        assert!(m.len >= 1 && m.len <= len);
                    }
                }
                1 => {
                    let mut last = None;
                    let mut steps = 0u32;
                    let _ = root.walk(&fake, lblk, |m| {
                        assert!(last.is_none_or(|l| l < m.lblk), "walk goes forward");
                        last = Some(m.lblk);
                        steps += 1;
                        if steps < 100_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    });
                }
                2 => {
                    let pblk = fake.allocate_data(1, false);
                    fake.blocks_count += 1;
                    let _ = root.insert(&fake, &mut txn, lblk, pblk, 1, false);
                }
                3 => drop(root.convert_unwritten(&fake, &mut txn, lblk, len)),
                4 => drop(root.mark_unwritten(&fake, &mut txn, lblk, len)),
                _ => drop(root.remove(&fake, &mut txn, lblk, LogicalBlock(lblk.0 + len))),
            }
        }
        let mut txn = Txn::new(2_000_000);
        let _ = root.walk_meta(&fake, |_| ());
        let _ = root.remove(&fake, &mut txn, LogicalBlock(0), LogicalBlock(u32::MAX));
    }
}

#[test]
fn flipped_extent_trees_end_in_a_result() {
    attack(true, true, 300);
    attack(true, false, 300);
}

#[test]
fn flipped_indirect_maps_end_in_a_result() {
    attack(false, true, 100);
    attack(false, false, 100);
}

#[test]
fn empty_leaves_of_old_kernels_are_removed() {
    let (fake, mut root) = victim(true, 1);
    // Empty one leaf by hand and free its data.
    let leaf = *fake.blocks.borrow().meta.keys().nth(1).unwrap();
    let mut bytes = fake.blocks.borrow().meta[&leaf].clone();
    let mut node = NodeMut::parse(&mut bytes, leaf).unwrap();
    for i in 0..node.view().len() {
        let e = node.view().extent(i).unwrap();
        fake.return_data(e.pblk, e.len);
    }
    assert!(node.view().depth() == 0 && node.set_all(&[]));
    fake.blocks.borrow_mut().meta.insert(leaf, bytes);
    let mut txn = Txn::new(10_000);
    let done = root.remove(&fake, &mut txn, LogicalBlock(0), LogicalBlock(u32::MAX)).unwrap();
    assert_eq!(done, Progress::Done);
    assert!(fake.blocks.borrow().meta.is_empty() && fake.blocks.borrow().data.is_empty());
    assert_eq!(root.i_block, MapRoot::empty(InodeNr(12), true, None).i_block);
}
