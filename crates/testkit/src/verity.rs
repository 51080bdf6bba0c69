//! Files with a Merkle tree that this module computes: Extant reads them, and enables none.
//!
//! Main function: [`with_protected_file`].
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};
use extant_oracle::memory::edited;
use sha2::{Digest, Sha256, Sha512};

/// The bytes of a block of the tree, and of the image.
pub const BLOCK: usize = 4096;
/// Where a tree may begin: at a multiple of this.
const TREE_ALIGNMENT: usize = 64 << 10;

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

/// The image `dev`, of blocks of 4 KiB and with the feature `verity`, with a protected file in its root. `algorithm`: 1
/// for SHA-256, 2 for SHA-512.
///
/// # Panics
/// If Extant or debugfs fails.
pub fn with_protected_file(dev: MemDevice, name: &str, content: &[u8], algorithm: u8, salt: &[u8]) -> MemDevice {
    let (tree, root) = tree(algorithm, salt, content);
    let size = content.len();
    let mut descriptor = vec![0; 256];
    descriptor[..4].copy_from_slice(&[1, algorithm, 12, salt.len() as u8]);
    descriptor[8..16].copy_from_slice(&(size as u64).to_le_bytes());
    descriptor[16..16 + root.len()].copy_from_slice(&root);
    descriptor[80..80 + salt.len()].copy_from_slice(salt);
    descriptor.resize(BLOCK - 4, 0);
    descriptor.extend(256u32.to_le_bytes());
    let dev = Arc::new(dev);
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    let f =
        fs.create(&fs.root().expect("root"), name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created");
    let behind = [tree, descriptor].concat();
    for (at, bytes) in [(0, content), (size.next_multiple_of(TREE_ALIGNMENT), &behind)] {
        let mut done = 0;
        while done < bytes.len() {
            done += fs.write(&f, (at + done) as u64, &bytes[done..], WriteFlags::default()).expect("written");
        }
    }
    drop(f);
    fs.unmount().expect("unmounted");
    edited(&dev, &[&format!("sif /{name} size {size}"), &format!("sif /{name} flags 0x180000")])
}
