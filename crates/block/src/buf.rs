//! Memory that O_DIRECT accepts: 512-byte aligned, zeroed, without `unsafe`.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The unit of alignment: every device Extant drives takes 512-byte aligned memory (Linux: `queue_dma_alignment`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(512))]
struct Chunk([u8; 512]);

/// A zero-initialised byte buffer whose start is aligned to 512 bytes.
pub struct AlignedBuf {
    chunks: Vec<Chunk>,
    len: usize,
}

impl AlignedBuf {
    /// Allocates `len` zero bytes. The caller must limit `len`: running out of memory aborts, as with `Vec`.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let chunks = Chunk::new_vec_zeroed(len.div_ceil(512)).expect("a length that fits the address space");
        AlignedBuf { chunks, len }
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> AlignedBuf {
        AlignedBuf::from_slice_padded(bytes, bytes.len())
    }

    /// A copy of `bytes`, followed by zeros up to `len`. The part that `bytes` covers is not zeroed first.
    pub fn from_slice_padded(bytes: &[u8], len: usize) -> AlignedBuf {
        let len = len.max(bytes.len());
        let mut chunks = Vec::with_capacity(len.div_ceil(512));
        let (whole, rest) = bytes.as_chunks::<512>();
        chunks.extend(whole.iter().map(|c| Chunk(*c)));
        if !rest.is_empty() {
            let mut last = Chunk([0; 512]);
            last.0[..rest.len()].copy_from_slice(rest);
            chunks.push(last);
        }
        chunks.resize(len.div_ceil(512), Chunk([0; 512]));
        AlignedBuf { chunks, len }
    }

    /// A buffer of `len` bytes with arbitrary contents, in the same memory if that is large enough. It is for a read,
    /// which fills it.
    pub fn reused(self, len: usize) -> AlignedBuf {
        match len.div_ceil(512) <= self.chunks.len() {
            true => AlignedBuf { chunks: self.chunks, len },
            false => AlignedBuf::zeroed(len),
        }
    }

    /// The size of the memory, in bytes.
    pub fn capacity(&self) -> usize {
        size_of_val(&*self.chunks)
    }

    /// The requested length in bytes. The memory may be longer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.chunks.as_bytes()[..self.len]
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.chunks.as_mut_bytes()[..self.len]
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> AlignedBuf {
        AlignedBuf { chunks: self.chunks.clone(), len: self.len }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_buffer_keeps_its_memory_if_it_is_large_enough() {
        let buffer = AlignedBuf::zeroed(4096);
        let at = buffer.as_ptr();
        let shorter = buffer.reused(1000);
        assert_eq!((shorter.len(), shorter.as_ptr()), (1000, at));
        let longer = shorter.reused(4096);
        assert_eq!((longer.len(), longer.capacity(), longer.as_ptr()), (4096, 4096, at));
        let more = longer.reused(4097);
        assert_eq!(more.len(), 4097);
        assert!(more.as_ptr().addr().is_multiple_of(512));
    }
}
