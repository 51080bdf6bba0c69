//! Files with a Merkle tree (fs-verity; Linux: fs/verity/, fs/ext4/verity.c): reads are verified, and the content never
//! changes.
//!
//! Main type: [`Verity`], the tree of one file. It begins at the next multiple of 64 KiB after the end of the file,
//! with its root first. The descriptor with the root's hash follows it. Each read hashes its blocks and the path above
//! them; a path that several blocks of a read share is hashed once. `ops/verified.rs` reads the files.
//!
//! What it does not do: enable protection, check signatures, or measure files.
//!
//! # Locking
//! None.

use std::collections::HashMap;

use sha2::{Digest, Sha256, Sha512};

use crate::error::Result;

/// The tree begins at a multiple of this (Linux: `ext4_verity_metadata_pos`).
pub(crate) const TREE_ALIGNMENT: u64 = 64 << 10;
/// `struct fsverity_descriptor` without a signature.
pub(crate) const DESCRIPTOR_BYTES: usize = 256;
/// The maximum size of a descriptor with its signature, in bytes (Linux: `FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub(crate) const DESCRIPTOR_MAX: u64 = 16384;
/// The number of levels of the largest tree (Linux: `FS_VERITY_MAX_LEVELS`).
const LEVELS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn digest_bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    /// The salt is padded to a multiple of this.
    fn block_bytes(self) -> usize {
        2 * self.digest_bytes()
    }
}

/// The tree of a file.
#[derive(Debug)]
pub(crate) struct Verity {
    algorithm: Algorithm,
    pub block_bits: u32,
    /// The salt, padded.
    salt: Vec<u8>,
    root: Vec<u8>,
    /// The size of the file, in bytes.
    pub size: u64,
    pub tree_at: u64,
    /// The first block of each level in the tree, beginning with the level above the content.
    levels: Vec<u64>,
}

impl Verity {
    pub fn parse(descriptor: &[u8], size: u64) -> std::result::Result<Verity, String> {
        let algorithm = match descriptor[1] {
            1 => Algorithm::Sha256,
            2 => Algorithm::Sha512,
            other => return Err(format!("hash algorithm {other}")),
        };
        let (version, block_bits, salt_bytes) = (descriptor[0], u32::from(descriptor[2]), usize::from(descriptor[3]));
        let data_size = u64::from_le_bytes(descriptor[8..16].try_into().map_err(|_| "a short descriptor")?);
        if version != 1 || salt_bytes > 32 || !(10..=16).contains(&block_bits) {
            return Err(format!("version {version}, a salt of {salt_bytes} bytes, blocks of 2^{block_bits} bytes"));
        }
        if data_size != size {
            return Err(format!("it is that of a file of {data_size} bytes, and this one has {size}"));
        }
        let mut salt = descriptor[80..80 + salt_bytes].to_vec();
        salt.resize(salt_bytes.next_multiple_of(algorithm.block_bytes()), 0);
        let hashes = (1u64 << block_bits) / algorithm.digest_bytes() as u64;
        let mut counts = Vec::new();
        let mut blocks = size.div_ceil(1 << block_bits);
        while blocks > 1 {
            blocks = blocks.div_ceil(hashes);
            counts.push(blocks);
        }
        if counts.len() > LEVELS_MAX {
            return Err(format!("a tree of {} levels", counts.len()));
        }
        // The root comes first.
        let mut levels = vec![0; counts.len()];
        let mut first = 0;
        for (level, count) in counts.iter().enumerate().rev() {
            levels[level] = first;
            first += count;
        }
        let root = descriptor[16..16 + algorithm.digest_bytes()].to_vec();
        Ok(Verity { algorithm, block_bits, salt, root, size, tree_at: size.next_multiple_of(TREE_ALIGNMENT), levels })
    }

    fn hash(&self, block: &[u8]) -> Vec<u8> {
        match self.algorithm {
            Algorithm::Sha256 => Sha256::new().chain_update(&self.salt).chain_update(block).finalize().to_vec(),
            Algorithm::Sha512 => Sha512::new().chain_update(&self.salt).chain_update(block).finalize().to_vec(),
        }
    }

    /// Verifies a block of the content. `read` returns blocks of the tree; `verified` contains those that have been
    /// verified.
    pub fn verify(
        &self,
        number: u64,
        block: &[u8],
        verified: &mut HashMap<u64, Vec<u8>>,
        mut read: impl FnMut(u64) -> Result<Vec<u8>>,
    ) -> Result<bool> {
        let (digest, hashes) =
            (self.algorithm.digest_bytes(), (1u64 << self.block_bits) / self.algorithm.digest_bytes() as u64);
        let (mut hash, mut index) = (self.hash(block), number);
        let mut path = Vec::new();
        for first in &self.levels {
            let (above, at) = (first + index / hashes, (index % hashes) as usize * digest);
            if let Some(known) = verified.get(&above) {
                if known[at..at + digest] != hash[..] {
                    return Ok(false);
                }
                verified.extend(path);
                return Ok(true);
            }
            let block = read(above)?;
            if block[at..at + digest] != hash[..] {
                return Ok(false);
            }
            (hash, index) = (self.hash(&block), index / hashes);
            path.push((above, block));
        }
        if hash != self.root {
            return Ok(false);
        }
        verified.extend(path);
        Ok(true)
    }
}
