//! The ciphers of fscrypt over AES: XTS and CBC with ESSIV for contents, CBC with ciphertext stealing for names and
//! link targets (Linux: `fscrypt_modes`, fs/crypto/keysetup.c; IEEE 1619; NIST SP 800-38A, addendum, CBC-CS3).
//!
//! Main type: [`Cipher`]. Its round keys are wiped when it is dropped.
//!
//! What it does not do: derive keys ([`super::keys`]), choose initialization vectors ([`super`]), or authenticate.
//! Fscrypt does not authenticate either, so changed ciphertext decrypts to other bytes without an error.
//!
//! # Locking
//! None.

use aes::cipher::consts::U16;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes256};
use extant_ondisk::encryption::Mode;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

/// Bytes of a block of AES.
pub(super) const BLOCK: usize = 16;
/// The number of blocks whose masks XTS computes at once; enough to keep the processor's pipelines full.
const BATCH: usize = 32;

/// The direction of a transformation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Encrypt,
    Decrypt,
}

/// A cipher with its key.
pub(super) enum Cipher {
    Xts { data: Box<Aes256>, tweak: Box<Aes256> },
    Cts256(Box<Aes256>),
    Essiv { data: Box<Aes128>, vector: Box<Aes256> },
    Cts128(Box<Aes128>),
}

fn keyed<C: KeyInit>(key: &[u8]) -> Option<Box<C>> {
    C::new_from_slice(key).ok().map(Box::new)
}

impl Cipher {
    /// `None` if the key does not have [`Mode::key_len`] bytes.
    pub(super) fn new(mode: Mode, key: &[u8]) -> Option<Cipher> {
        Some(match mode {
            Mode::Aes256Xts => {
                let (data, tweak) = key.split_at_checked(32)?;
                Cipher::Xts { data: keyed(data)?, tweak: keyed(tweak)? }
            }
            Mode::Aes256Cts => Cipher::Cts256(keyed(key)?),
            Mode::Aes128CbcEssiv => {
                let mut hash = Sha256::digest(key);
                let vector = keyed(&hash);
                hash.zeroize();
                Cipher::Essiv { data: keyed(key)?, vector: vector? }
            }
            Mode::Aes128Cts => Cipher::Cts128(keyed(key)?),
        })
    }

    /// Encrypts or decrypts `data` in place: whole blocks of AES for contents, any length from one block upwards for
    /// names. Shorter data, and bytes after the last whole block of contents, do not change.
    pub(super) fn apply(&self, way: Way, mut vector: [u8; BLOCK], data: &mut [u8]) {
        match self {
            Cipher::Xts { data: cipher, tweak } => {
                tweak.encrypt_block(GenericArray::from_mut_slice(&mut vector));
                xts(&**cipher, way, u128::from_le_bytes(vector), data);
            }
            Cipher::Essiv { data: cipher, vector: of_vector } => {
                of_vector.encrypt_block(GenericArray::from_mut_slice(&mut vector));
                cbc(&**cipher, way, vector, data);
            }
            Cipher::Cts256(cipher) => cts(&**cipher, way, vector, data),
            Cipher::Cts128(cipher) => cts(&**cipher, way, vector, data),
        }
    }
}

fn xts<C>(cipher: &C, way: Way, mut mask: u128, data: &mut [u8])
where
    C: BlockEncrypt + BlockDecrypt + BlockSizeUser<BlockSize = U16>,
{
    let mut masks = [0u128; BATCH];
    for batch in data.chunks_mut(BATCH * BLOCK) {
        let (blocks, _) = batch.as_chunks_mut::<BLOCK>();
        for (block, kept) in blocks.iter_mut().zip(&mut masks) {
            *kept = mask;
            *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
            // Times x in GF(2^128).
            mask = (mask << 1) ^ ((mask >> 127) * 0x87);
        }
        let (whole, _) = InOutBuf::from(blocks.as_flattened_mut()).into_chunks::<U16>();
        match way {
            Way::Encrypt => cipher.encrypt_blocks_inout(whole),
            Way::Decrypt => cipher.decrypt_blocks_inout(whole),
        }
        for (block, kept) in blocks.iter_mut().zip(&masks) {
            *block = (u128::from_le_bytes(*block) ^ kept).to_le_bytes();
        }
    }
}

fn xor(a: &mut [u8; BLOCK], b: &[u8; BLOCK]) {
    *a = (u128::from_le_bytes(*a) ^ u128::from_le_bytes(*b)).to_le_bytes();
}

fn cbc<C>(cipher: &C, way: Way, mut before: [u8; BLOCK], data: &mut [u8])
where
    C: BlockEncrypt + BlockDecrypt + BlockSizeUser<BlockSize = U16>,
{
    for block in data.as_chunks_mut::<BLOCK>().0 {
        match way {
            Way::Encrypt => {
                xor(block, &before);
                cipher.encrypt_block(GenericArray::from_mut_slice(block));
                before = *block;
            }
            Way::Decrypt => {
                let stored = *block;
                cipher.decrypt_block(GenericArray::from_mut_slice(block));
                xor(block, &before);
                before = stored;
            }
        }
    }
}

/// CBC with ciphertext stealing: the last two blocks are exchanged, and the final one is cut to the length of the data.
fn cts<C>(cipher: &C, way: Way, vector: [u8; BLOCK], data: &mut [u8])
where
    C: BlockEncrypt + BlockDecrypt + BlockSizeUser<BlockSize = U16>,
{
    let len = data.len();
    if len <= BLOCK {
        return cbc(cipher, way, vector, data);
    }
    // The last two blocks: one whole block, and 1 to 16 bytes.
    let tail_at = (len - 1) / BLOCK * BLOCK - BLOCK;
    let (front, tail) = data.split_at_mut(tail_at);
    let last = tail.len() - BLOCK;
    let mut both = [0; 2 * BLOCK];
    match way {
        Way::Encrypt => {
            cbc(cipher, way, vector, front);
            let before = front.last_chunk().copied().unwrap_or(vector);
            both[..tail.len()].copy_from_slice(tail);
            cbc(cipher, way, before, &mut both);
            let (next_to_last, end) = both.split_at(BLOCK);
            tail[..BLOCK].copy_from_slice(end);
            tail[BLOCK..].copy_from_slice(&next_to_last[..last]);
        }
        Way::Decrypt => {
            let before = front.last_chunk().copied().unwrap_or(vector);
            cbc(cipher, way, vector, front);
            // The whole block stored here is the last block of CBC. It contains the encrypted bytes that the cut block
            // lacks.
            let mut end = [0; BLOCK];
            end.copy_from_slice(&tail[..BLOCK]);
            let mut stolen = end;
            cipher.decrypt_block(GenericArray::from_mut_slice(&mut stolen));
            stolen[..last].copy_from_slice(&tail[BLOCK..]);
            both[..BLOCK].copy_from_slice(&stolen);
            both[BLOCK..].copy_from_slice(&end);
            cbc(cipher, way, before, &mut both);
            tail.copy_from_slice(&both[..BLOCK + last]);
        }
    }
    both.zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("hex");
        digits.chunks(2).map(pair).collect()
    }

    fn both_ways(mode: Mode, key: &[u8], vector: [u8; BLOCK], plain: &[u8], stored: &[u8]) {
        let cipher = Cipher::new(mode, key).expect("a key of the right length");
        let mut data = plain.to_vec();
        cipher.apply(Way::Encrypt, vector, &mut data);
        assert_eq!(data, stored, "{mode:?}, {} bytes", plain.len());
        cipher.apply(Way::Decrypt, vector, &mut data);
        assert_eq!(data, plain, "{mode:?}, {} bytes", plain.len());
    }

    /// IEEE 1619-2007, vector 10.
    #[test]
    fn xts_gives_the_standards_vector() {
        let key = hex("2718281828459045235360287471352662497757247093699959574966967627
             3141592653589793238462643383279502884197169399375105820974944592");
        let plain: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let cipher = Cipher::new(Mode::Aes256Xts, &key).expect("a key");
        let mut data = plain.clone();
        let mut vector = [0; BLOCK];
        vector[0] = 0xff;
        cipher.apply(Way::Encrypt, vector, &mut data);
        assert_eq!(data[..32], hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"));
        assert_eq!(data[496..], hex("c4f36ffda9fcea70b9c6e693e148c151"));
        cipher.apply(Way::Decrypt, vector, &mut data);
        assert_eq!(data, plain);
    }

    /// RFC 3962, appendix B: its AES-128 vectors are those of CBC-CS3.
    #[test]
    fn cts_gives_the_vectors_of_rfc_3962() {
        let key = hex("636869636b656e207465726979616b69");
        let plain = hex("4920776f756c64206c696b652074686520
             47656e6572616c20476175277320436869636b656e2c20706c656173652c");
        let rows = [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
            (47, "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5"),
        ];
        for (len, stored) in rows {
            both_ways(Mode::Aes128Cts, &key, [0; BLOCK], &plain[..len], &hex(stored));
        }
        let short = Cipher::new(Mode::Aes128Cts, &key).expect("a key");
        let mut data = *b"too short";
        short.apply(Way::Encrypt, [0; BLOCK], &mut data);
        assert_eq!(&data, b"too short");
    }

    /// OpenSSL computed these values.
    #[test]
    fn essiv_and_aes_256_names_give_openssl_s_bytes() {
        let key: Vec<u8> = (0..32).collect();
        let plain: Vec<u8> = (0..48).collect();
        let mut vector = [0; BLOCK];
        vector[0] = 7;
        let stored = hex("586c1bc42ced9c66841eacdfe5765fe730669d46614c18964bbc0490185cf9fe
             f33e426af8f904eebfc7d648a07cf068");
        both_ways(Mode::Aes128CbcEssiv, &key[..16], vector, &plain, &stored);
        let mut name = [0; 32];
        name[..4].copy_from_slice(b"name");
        let stored = hex("7f2d20402d19d903615558f3612bbc1726d23f9af4fdf9be45f2ddc000a124d9");
        both_ways(Mode::Aes256Cts, &key, [0; BLOCK], &name, &stored);
    }
}
