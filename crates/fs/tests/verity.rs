//! Files with a Merkle tree: what is read was verified, and nothing changes the content.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Cred, Error, FallocateMode, Filesystem, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};
use sha2::{Digest, Sha256, Sha512};

const BLOCK: usize = 4096;

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn hash(algorithm: u8, salt: &[u8], block: &[u8]) -> Vec<u8> {
    let mut salt = salt.to_vec();
    salt.resize(salt.len().next_multiple_of(if algorithm == 1 { 64 } else { 128 }), 0);
    let all = [&salt[..], block].concat();
    if algorithm == 1 { Sha256::digest(all).to_vec() } else { Sha512::digest(all).to_vec() }
}

/// The tree of a content, its root first, and the hash of the root.
fn tree(algorithm: u8, salt: &[u8], content: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let padded = |bytes: &[u8]| {
        let mut block = bytes.to_vec();
        block.resize(BLOCK, 0);
        block
    };
    let mut level: Vec<Vec<u8>> = content.chunks(BLOCK).map(padded).collect();
    let mut tree = Vec::new();
    while level.len() > 1 {
        let hashes: Vec<u8> = level.iter().flat_map(|block| hash(algorithm, salt, block)).collect();
        level = hashes.chunks(BLOCK).map(padded).collect();
        tree = [level.concat(), tree].concat();
    }
    (tree, level.first().map_or(Vec::new(), |block| hash(algorithm, salt, block)))
}

/// An image with a protected file, and its content.
fn protected(algorithm: u8, salt: &[u8], size: usize) -> (Arc<MemDevice>, Vec<u8>) {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "4096", "-O", "verity"], "24M"));
    let content: Vec<u8> = (0..size).map(|i| (i / 7 + i / BLOCK) as u8).collect();
    let (tree, root) = tree(algorithm, salt, &content);
    let mut descriptor = vec![0; 256];
    descriptor[..4].copy_from_slice(&[1, algorithm, 12, salt.len() as u8]);
    descriptor[8..16].copy_from_slice(&(size as u64).to_le_bytes());
    descriptor[16..16 + root.len()].copy_from_slice(&root);
    descriptor[80..80 + salt.len()].copy_from_slice(salt);
    descriptor.resize(BLOCK - 4, 0);
    descriptor.extend(256u32.to_le_bytes());
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let f = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("created");
    let behind = [tree, descriptor].concat();
    for (at, bytes) in [(0, &content), (size.next_multiple_of(64 << 10), &behind)] {
        let mut done = 0;
        while done < bytes.len() {
            done += fs.write(&f, (at + done) as u64, &bytes[done..], WriteFlags::default()).expect("written");
        }
    }
    drop(f);
    fs.unmount().expect("unmounted");
    let requests = [format!("sif /f size {size}"), "sif /f flags 0x180000".to_owned()];
    let dev = Arc::new(tools::edited(&dev, &requests.each_ref().map(String::as_str)));
    tools::assert_clean(&dev);
    (dev, content)
}

fn read(fs: &Mounted, pos: u64, length: usize) -> extant_fs::Result<Vec<u8>> {
    let f = fs.walk(b"/f", true)?;
    let mut bytes = vec![0; length];
    let n = fs.read(&f, pos, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

#[test]
fn content_of_any_size_is_read_where_the_tree_is_right() {
    for (algorithm, salt, size) in
        [(1, &b""[..], 1), (1, b"pepper", 4096), (2, b"", 4097), (1, b"", 900_001), (2, b"salt", 2_000_000)]
    {
        let (dev, content) = protected(algorithm, salt, size);
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        assert!(read(&fs, 0, size + 10).expect("verified") == content, "{algorithm} {size}");
        for (pos, length) in [(size / 2, 10_000), (size - 1, 5), (0, 1)] {
            let found = read(&fs, pos as u64, length).expect("verified");
            assert!(found == content[pos..(pos + length).min(size)], "{algorithm} {size} {pos}");
        }
        fs.unmount().expect("unmounted");
        tools::assert_clean(&dev);
    }
}

#[test]
fn a_wrong_block_is_an_error_where_it_matters_and_nowhere_else() {
    let size = 900_001;
    let (dev, content) = protected(1, b"pepper", size);
    let blocks = tools::debugfs(&dev, "blocks /f");
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let data = size.div_ceil(BLOCK);
    // The tree has a root and two blocks above the content; the descriptor is last.
    assert_eq!(blocks.len(), data + 4);
    let whole = |fs: &Mounted| read(fs, 0, size);
    for (at, first_half, second_half) in [
        (10, false, true),
        (data, false, false),
        (data + 1, false, true),
        (data + 2, true, false),
        (data + 3, false, false),
    ] {
        let damaged = Arc::new(dev.snapshot());
        let mut block = vec![0; BLOCK];
        damaged.read_at(blocks[at] << 12, &mut block, BioFlags::empty()).expect("read");
        block[20] ^= 1;
        damaged.write_at(blocks[at] << 12, &[&block], BioFlags::empty()).expect("written");
        let fs = Filesystem::mount(damaged.clone(), options()).expect("mounted");
        let e = whole(&fs).expect_err("damaged");
        assert!(matches!(e, Error::Unverified { .. }) && e.errno() == 5, "{at}: {e}");
        // The blocks above the content have 128 hashes each.
        for (from, sound) in [(0, first_half), (128 * BLOCK, second_half)] {
            let found = read(&fs, from as u64, 20 * BLOCK);
            assert_eq!(found.is_ok(), sound, "{at} {from}: {:?}", found.err());
            assert!(found.is_err() || found.expect("sound") == content[from..from + 20 * BLOCK]);
        }
        fs.unmount().expect("unmounted");
    }
}

#[test]
fn protected_content_never_changes() {
    let (dev, content) = protected(1, b"", 50_000);
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let f = fs.walk(b"/f", true).expect("found");
    let refused = [
        fs.write(&f, 0, b"x", WriteFlags::default()).map(drop),
        fs.write(&f, 50_000, b"x", WriteFlags::default()).map(drop),
        fs.setattr(&f, &SetAttr { size: Some(1), ..SetAttr::default() }).map(drop),
        fs.fallocate(&f, FallocateMode::PunchHole, 0, 4096),
        fs.fallocate(&f, FallocateMode::Allocate { keep_size: true }, 0, 1 << 20),
    ];
    assert!(refused.iter().all(|done| matches!(done, Err(Error::NotPermitted))), "{refused:?}");
    // Names and modes may.
    fs.setattr(&f, &SetAttr { mode: Some(0o400), ..SetAttr::default() }).expect("changed");
    let root = fs.root().expect("root");
    fs.link(&f, &root, b"g").expect("linked");
    fs.unlink(&root, b"g").expect("unlinked");
    drop(f);
    assert!(read(&fs, 0, 50_000).expect("verified") == content);
    fs.unmount().expect("unmounted");
    tools::assert_clean(&dev);
    // Deleted, its tree goes with it.
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
    fs.unlink(&fs.root().expect("root"), b"f").expect("unlinked");
    fs.unmount().expect("unmounted");
    tools::assert_clean(&dev);
}
