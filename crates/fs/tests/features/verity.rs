//! Files with a Merkle tree: what is read was verified, and nothing changes the content.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Error, FallocateMode, Filesystem, MountOptions, Mounted, SetAttr, WriteFlags};
use extant_testkit::verity::with_protected_file;

const BLOCK: usize = extant_testkit::verity::BLOCK;

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// An image with a protected file, and its content.
fn protected(algorithm: u8, salt: &[u8], size: usize) -> (Arc<MemDevice>, Vec<u8>) {
    let dev = tools::made(&["-t", "ext4", "-b", "4096", "-O", "verity"], "24M");
    let content: Vec<u8> = (0..size).map(|i| (i / 7 + i / BLOCK) as u8).collect();
    let dev = Arc::new(with_protected_file(dev, "f", &content, algorithm, salt));
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
