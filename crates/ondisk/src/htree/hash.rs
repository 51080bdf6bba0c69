//! The hashes of names: legacy, half MD4 and TEA, each over signed or unsigned characters.
//!
//! Early machines disagreed on whether `char` is signed, and names with bytes from 0x80 up hash differently. The
//! superblock's flags show which variant an image uses. A directory stores only the family (0 to 2).
//!
//! # Locking
//! None.

use crate::casefold::fold;

/// A hash family and the signedness of its characters (Linux: `DX_HASH_*`, fs/ext4/ext4.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The hash of the first htree, signed characters; 0 on disk.
    Legacy,
    /// Half an MD4, signed characters; 1 on disk. The default of mke2fs.
    HalfMd4,
    /// TEA, signed characters; 2 on disk.
    Tea,
    /// As `Legacy`, with unsigned characters; 3 on disk.
    LegacyUnsigned,
    /// As `HalfMd4`, with unsigned characters; 4 on disk.
    HalfMd4Unsigned,
    /// As `Tea`, with unsigned characters; 5 on disk.
    TeaUnsigned,
}

impl HashVersion {
    /// All variants, for tests and tools.
    pub const ALL: [HashVersion; 6] = [
        HashVersion::Legacy,
        HashVersion::HalfMd4,
        HashVersion::Tea,
        HashVersion::LegacyUnsigned,
        HashVersion::HalfMd4Unsigned,
        HashVersion::TeaUnsigned,
    ];

    /// The version for the number in a root block or in the superblock, and the superblock's "unsigned" flag. `None`
    /// for a number that is invalid there (SipHash needs a key that is not in the image).
    pub fn from_disk(number: u8, unsigned: bool) -> Option<HashVersion> {
        match (number, unsigned) {
            (0, false) => Some(HashVersion::Legacy),
            (1, false) => Some(HashVersion::HalfMd4),
            (2, false) => Some(HashVersion::Tea),
            (0, true) => Some(HashVersion::LegacyUnsigned),
            (1, true) => Some(HashVersion::HalfMd4Unsigned),
            (2, true) => Some(HashVersion::TeaUnsigned),
            _ => None,
        }
    }

    /// The number for a root block, which contains only the family.
    pub fn to_disk(self) -> u8 {
        match self {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => 0,
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => 1,
            HashVersion::Tea | HashVersion::TeaUnsigned => 2,
        }
    }

    /// Whether characters count as unsigned.
    pub fn is_unsigned(self) -> bool {
        matches!(self, HashVersion::LegacyUnsigned | HashVersion::HalfMd4Unsigned | HashVersion::TeaUnsigned)
    }
}

/// The hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    /// The key in the index; bit 0 is always clear.
    pub hash: u32,
    /// Breaks ties in listings; always 0 for the legacy family.
    pub minor: u32,
}

/// Hashes names for one image (Linux: `ext4fs_dirhash`, fs/ext4/hash.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    version: HashVersion,
    start: [u32; 4],
    folds: bool,
}

/// MD4's initial state, used when the superblock has no seed.
const MD4_START: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
/// This hash would be the end-of-directory mark of 32-bit listings, so it is replaced by the next lower one.
const RESERVED_HASH: u32 = 0xFFFF_FFFE;

impl Hasher {
    /// `seed` is the superblock's `s_hash_seed` as little-endian words; all zeros means the default.
    pub fn new(version: HashVersion, seed: [u32; 4]) -> Hasher {
        Hasher { version, start: if seed == [0; 4] { MD4_START } else { seed }, folds: false }
    }

    /// The same hash, over folded names if `folds` is set, for case-insensitive directories (Linux: `ext4fs_dirhash`).
    #[must_use]
    pub fn folding(self, folds: bool) -> Hasher {
        Hasher { folds, ..self }
    }

    /// The version with which it was created.
    pub fn version(&self) -> HashVersion {
        self.version
    }

    /// The hash that the index uses.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        if self.folds { self.hash_bytes(&fold(name)) } else { self.hash_bytes(name) }
    }

    fn hash_bytes(&self, name: &[u8]) -> NameHash {
        let unsigned = self.version.is_unsigned();
        let mut state = self.start;
        let (hash, minor) = match self.version {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => (legacy(name, unsigned), 0),
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => {
                for_pieces::<8>(name, unsigned, |words| half_md4(&mut state, words));
                (state[1], state[2])
            }
            HashVersion::Tea | HashVersion::TeaUnsigned => {
                for_pieces::<4>(name, unsigned, |words| tea(&mut state, words));
                (state[0], state[1])
            }
        };
        let hash = hash & !1;
        NameHash { hash: if hash == RESERVED_HASH { RESERVED_HASH - 2 } else { hash }, minor }
    }
}

/// The byte of a name, widened as the C type would be.
#[inline(always)]
fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { byte as i8 as u32 }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut newest, mut older) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for &byte in name {
        let mut next = older.wrapping_add(newest ^ widen(byte, unsigned).wrapping_mul(7_152_373));
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        (older, newest) = (newest, next);
    }
    newest << 1
}

/// Splits a name into pieces of `N` words, big-endian within a word, and calls `mix` with each. An incomplete piece is
/// filled with a pattern from the length that remained at its start.
fn for_pieces<const N: usize>(name: &[u8], unsigned: bool, mut mix: impl FnMut(&[u32; N])) {
    let mut rest = name;
    while !rest.is_empty() {
        let left = rest.len() as u32;
        let pad = (left | (left << 8)).wrapping_mul(0x0001_0001);
        let piece = &rest[..rest.len().min(4 * N)];
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(piece.chunks(4)) {
            for &byte in bytes {
                *word = (*word << 8).wrapping_add(widen(byte, unsigned));
            }
        }
        mix(&words);
        rest = &rest[piece.len()..];
    }
}

/// Three rounds of eight steps: MD4's compression function on half of its input.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    const ROUND_2: u32 = 0x5A82_7999;
    const ROUND_3: u32 = 0x6ED9_EBA1;
    const ORDER: [[usize; 8]; 3] = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const TURNS: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    let [mut a, mut b, mut c, mut d] = *state;
    for round in 0..3 {
        for step in 0..8 {
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c).wrapping_add((b ^ c) & d).wrapping_add(ROUND_2),
                _ => (b ^ c ^ d).wrapping_add(ROUND_3),
            };
            let sum = a.wrapping_add(mixed).wrapping_add(words[ORDER[round][step]]);
            // The registers rotate: the new value becomes b, and the former d is changed next.
            (a, d, c, b) = (d, c, b, sum.rotate_left(TURNS[round][step % 4]));
        }
    }
    for (word, new) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(new);
    }
}

/// Sixteen rounds of the Tiny Encryption Algorithm with the name as the key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut x, mut y, mut sum) = (state[0], state[1], 0u32);
    let half = |v: u32, sum: u32, k0: u32, k1: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        x = x.wrapping_add(half(y, sum, key[0], key[1]));
        y = y.wrapping_add(half(x, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}
