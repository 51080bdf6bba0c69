//! Whole directories, with lookups that work as in the kernel.

use super::*;
use crate::dirent::verify_leaf;
use crate::htree::HashVersion;

const SEED: [u32; 4] = [1, 2, 3, 4];

fn format(block_size: usize, has_csum: bool, levels_most: u8) -> WholeFormat {
    let blocks = DirBlockFormat { has_filetype: true, has_csum, inodes_count: u32::MAX, encrypted: false };
    let hasher = Some(Hasher::new(HashVersion::HalfMd4, SEED));
    WholeFormat { blocks, block_size, hasher, levels_most }
}

/// All blocks of a directory in which name `i` has inode `100 + i`.
fn build(format: &WholeFormat, names: &[Vec<u8>], blocks_min: u32) -> (DirectoryLayout, Vec<Vec<u8>>) {
    let name = |number: u32| names[number as usize].as_slice();
    let whole = format.lay_out(names.len() as u32, name, blocks_min).unwrap();
    let entry = |number: u32| (name(number), Target { ino: 100 + number, file_type: FileType::Regular });
    let seed = format.blocks.has_csum.then(|| ChecksumSeed::from_raw(7));
    let fill = |number| {
        let mut block = vec![0xff; format.block_size];
        format.fill(&whole, number, &mut block, [12, 2], entry, seed).unwrap();
        block
    };
    let blocks = (0..whole.blocks()).map(fill).collect();
    (whole, blocks)
}

/// Finds a name through the index: its inode, and the number of leaves that were searched.
fn look_up(format: &WholeFormat, blocks: &[Vec<u8>], name: &[u8]) -> Option<(u32, u32)> {
    let hash = format.hasher.unwrap().hash(name).hash;
    let (info, root) = format.dx().root(&blocks[0]).unwrap();
    // For each level: the block, its entries, and the index of the one taken.
    let mut path = vec![(0, root.search(hash))];
    for _ in 0..info.indirect_levels {
        let child = entries(format, blocks, &path).child(path.last().unwrap().1);
        let node = format.dx().node(DxShape::Node, &blocks[child as usize]).unwrap();
        path.push((child, node.search(hash)));
    }
    for searched in 1.. {
        let leaf = entries(format, blocks, &path).child(path.last().unwrap().1);
        if let Some(found) = format.blocks.find(&blocks[leaf as usize], name).unwrap() {
            return Some((found.ino, searched));
        }
        // The next leaf, if its key shows that the hash continues there.
        let depth = path.len();
        let level = (0..depth).rev().find(|level| {
            let node = entries(format, blocks, &path[..=*level]);
            path[*level].1 + 1 < node.count()
        })?;
        path.truncate(level + 1);
        path[level].1 += 1;
        if entries(format, blocks, &path).key(path[level].1) != hash | 1 {
            return None;
        }
        while path.len() < depth {
            let child = entries(format, blocks, &path).child(path.last().unwrap().1);
            path.push((child, 0));
        }
    }
    None
}

fn entries<'b>(format: &WholeFormat, blocks: &'b [Vec<u8>], path: &[(u32, usize)]) -> crate::htree::DxNode<'b> {
    let block = path.last().unwrap().0;
    let shape = if block == 0 { DxShape::Root } else { DxShape::Node };
    format.dx().node(shape, &blocks[block as usize]).unwrap()
}

fn check(format: &WholeFormat, names: &[Vec<u8>], levels: u8) -> u32 {
    let (whole, blocks) = build(format, names, 0);
    assert!(whole.is_indexed());
    let seed = ChecksumSeed::from_raw(7);
    for (number, block) in blocks.iter().enumerate() {
        if number < whole.index_blocks() as usize {
            let shape = if number == 0 { DxShape::Root } else { DxShape::Node };
            let node = match format.dx().root(block) {
                Ok((info, node)) => {
                    assert_eq!((number, info.indirect_levels), (0, levels));
                    node
                }
                Err(_) => format.dx().node(shape, block).unwrap(),
            };
            assert_eq!(node.validate(shape, whole.blocks()), Ok(()), "index block {number}");
            assert_eq!(format.dx().verify(block, seed), Ok(()), "index block {number}");
        } else {
            assert!(format.blocks.entries(block).all(|entry| entry.is_ok()), "leaf {number}");
            assert!(!format.blocks.has_csum || verify_leaf(block, seed).is_ok(), "leaf {number}");
        }
    }
    let mut most = 0;
    for (number, name) in names.iter().enumerate() {
        let (ino, searched) = look_up(format, &blocks, name).unwrap_or_else(|| panic!("name {number} is not found"));
        assert_eq!(ino, 100 + number as u32);
        most = most.max(searched);
    }
    most
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("{i:x}").into_bytes()).collect()
}

#[test]
fn names_that_fit_one_block_are_linear_in_their_order() {
    for has_csum in [false, true] {
        let format = format(1024, has_csum, 1);
        let names = numbered(if has_csum { 82 } else { 83 });
        let (whole, blocks) = build(&format, &names, 0);
        assert_eq!((whole.blocks(), whole.is_indexed()), (1, false));
        let listed: Vec<Vec<u8>> = format.blocks.entries(&blocks[0]).map(|e| e.unwrap().name.to_vec()).collect();
        assert_eq!(listed[..2], [b".".to_vec(), b"..".to_vec()]);
        assert_eq!(listed[2..], names);
        assert!(format.lay_out(84, |i| names.get(i as usize).map_or(&b"f"[..], |n| n), 0).unwrap().is_indexed());
    }
}

#[test]
fn without_an_index_names_keep_their_order_over_blocks() {
    let format = WholeFormat { hasher: None, ..format(1024, true, 1) };
    let names = numbered(1000);
    let (whole, blocks) = build(&format, &names, 0);
    assert!(!whole.is_indexed() && whole.blocks() > 10);
    let all = blocks.iter().flat_map(|block| format.blocks.entries(block).map(|e| e.unwrap().name.to_vec()));
    assert_eq!(all.skip(2).collect::<Vec<_>>(), names);
}

#[test]
fn reserve_blocks_are_empty_and_without_an_index() {
    let format = format(1024, true, 1);
    let (whole, blocks) = build(&format, &numbered(100), 16);
    assert_eq!((whole.blocks(), whole.is_indexed()), (16, false));
    let used = |block: &Vec<u8>| format.blocks.entries(block).filter(|e| e.unwrap().is_used()).count();
    assert_eq!(blocks.iter().map(used).sum::<usize>(), 102);
    assert_eq!(used(&blocks[15]), 0);
}

#[test]
fn each_name_is_found_by_an_index_of_each_height() {
    for has_csum in [false, true] {
        check(&format(1024, has_csum, 1), &numbered(500), 0);
        check(&format(4096, has_csum, 1), &numbered(3000), 0);
        check(&format(1024, has_csum, 1), &numbered(50_000), 1);
        check(&format(65_536, has_csum, 1), &numbered(50_000), 0);
    }
    let long: Vec<Vec<u8>> = (0..3000).map(|i| format!("{i:0255}").into_bytes()).collect();
    check(&format(1024, true, 1), &long, 1);
}

/// Among this many names, some share a hash and lie at the border of two leaves.
#[test]
fn names_of_one_hash_are_found_in_two_leaves() {
    let most = check(&format(1024, true, 2), &numbered(1_000_000), 2);
    assert!(most > 1, "no leaf ends inside the names of one hash: more names are needed");
}

#[test]
fn more_names_than_an_index_can_have_are_refused() {
    let names = numbered(1_000_000);
    let error = format(1024, true, 1).lay_out(1_000_000, |i| &names[i as usize], 0).unwrap_err();
    assert_eq!(error.what, DirRule::IndexFull);
}

#[test]
fn names_that_may_not_be_written_are_refused() {
    for name in [&b""[..], b"a/b", b"a\0", &[b'x'; 256]] {
        let error = format(1024, true, 1).lay_out(1, |_| name, 0).unwrap_err();
        assert_eq!(error.what, DirRule::Unwritable);
    }
}
