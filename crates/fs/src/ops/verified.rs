//! Reads of files with a Merkle tree (fs-verity).
//!
//! Main function: [`ContentView::read_verified`].
//!
//! What it does not do: compute hashes ([`crate::verity`]), or give files a tree.
//!
//! # Locking
//! The caller holds `inode` (20), shared.

use std::collections::HashMap;
use std::ops::ControlFlow;

use extant_ondisk::LogicalBlock;

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::map::MapState;
use crate::ops::pages::ContentView;
use crate::verity::{DESCRIPTOR_BYTES, DESCRIPTOR_MAX, TREE_ALIGNMENT, Verity};

/// The error for content that cannot be verified.
fn wrong(inode: &Inode, detail: impl Into<String>) -> Error {
    Error::Unverified { ino: inode.ino, detail: detail.into() }
}

impl ContentView<'_> {
    /// Reads from a file with a Merkle tree, within its size.
    ///
    /// # Errors
    /// [`Error::Unverified`] if the content does not match the tree, or the tree cannot be used.
    pub(crate) fn read_verified(&self, pos: u64, buf: &mut [u8]) -> Result<()> {
        let verity = match self.inode.verity.get() {
            Some(verity) => verity,
            None => {
                let loaded = self.load_verity()?;
                self.inode.verity.get_or_init(|| Box::new(loaded))
            }
        };
        let bytes = 1u64 << verity.block_bits;
        let mut verified = HashMap::new();
        let mut block = vec![0; bytes as usize];
        for number in pos / bytes..(pos + buf.len() as u64).div_ceil(bytes) {
            let start = number * bytes;
            block.fill(0);
            let length = bytes.min(verity.size - start) as usize;
            self.read_locked(start, &mut block[..length])?;
            let sound = verity.verify(number, &block, &mut verified, |above| {
                let mut block = vec![0; bytes as usize];
                self.read_device(verity.tree_at + above * bytes, &mut block)?;
                Ok(block)
            })?;
            if !sound {
                return Err(wrong(self.inode, format!("the content at byte {start} is not that of its Merkle tree")));
            }
            let (from, to) = (pos.max(start), (pos + buf.len() as u64).min(start + length as u64));
            buf[(from - pos) as usize..(to - pos) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    /// Reads the descriptor of the tree, at the end of the blocks behind the file's end (Linux:
    /// `ext4_get_verity_descriptor_location`).
    fn load_verity(&self) -> Result<Verity> {
        let (size, bits) = (self.inode.size(), self.fs.geo.block_bits);
        let tree_at = size.next_multiple_of(TREE_ALIGNMENT);
        let first = u32::try_from(tree_at >> bits).map_err(|_| Error::FileTooBig)?;
        let mut end = 0u64;
        let view = self.fs.map_view(self.inode);
        self.inode.map.read().walk(&view, LogicalBlock(first), |mapping| {
            if mapping.state != MapState::Hole {
                end = (u64::from(mapping.lblk.0) + u64::from(mapping.len)) << bits;
            }
            ControlFlow::Continue(())
        })?;
        if end < tree_at + DESCRIPTOR_BYTES as u64 {
            return Err(wrong(self.inode, "no Merkle tree behind its end"));
        }
        let mut length = [0; 4];
        self.read_device(end - 4, &mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let at = (end - 4).checked_sub(length).map(|at| at >> bits << bits);
        let at = at.filter(|at| *at >= tree_at && (DESCRIPTOR_BYTES as u64..=DESCRIPTOR_MAX).contains(&length));
        let at = at.ok_or_else(|| wrong(self.inode, format!("a descriptor of {length} bytes")))?;
        let mut descriptor = vec![0; DESCRIPTOR_BYTES];
        self.read_device(at, &mut descriptor)?;
        Verity::parse(&descriptor, size).map_err(|detail| wrong(self.inode, format!("its descriptor: {detail}")))
    }
}
