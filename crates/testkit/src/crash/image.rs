//! The images of the crash tests: small, with small journals, and poison wherever nothing is stored.
//!
//! # Locking
//! None.

use std::path::Path;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};

use crate::crash::pattern::POISON;
use crate::oracle::{MkfsOptions, arg, make_image, run_ok};
use crate::{Error, Result};

/// A kind of file system to crash.
#[derive(Clone, Copy, Debug)]
pub struct CrashImage {
    pub name: &'static str,
    pub fs_type: &'static str,
    pub block_size: u32,
    pub features: &'static str,
    /// Blocks of the journal; 0 for none.
    pub journal_blocks: u32,
    /// Files are mapped by extents: preallocation works.
    pub extents: bool,
}

/// Bytes of each image.
pub const SIZE: u64 = 16 << 20;

/// The configurations that are explored by default. Journals have the least size that the kernel accepts, so that the log
/// wraps.
pub const IMAGES: [CrashImage; 5] = [
    CrashImage { name: "ext4", fs_type: "ext4", block_size: 4096, features: "", journal_blocks: 1024, extents: true },
    CrashImage {
        name: "ext4-1k",
        fs_type: "ext4",
        block_size: 1024,
        features: "orphan_file,metadata_csum_seed",
        journal_blocks: 1024,
        extents: true,
    },
    CrashImage { name: "ext3", fs_type: "ext3", block_size: 1024, features: "", journal_blocks: 1024, extents: false },
    CrashImage {
        name: "ext4-nojournal",
        fs_type: "ext4",
        block_size: 4096,
        features: "^has_journal",
        journal_blocks: 0,
        extents: true,
    },
    CrashImage { name: "ext2", fs_type: "ext2", block_size: 1024, features: "", journal_blocks: 0, extents: false },
];

impl CrashImage {
    pub fn has_journal(&self) -> bool {
        self.journal_blocks > 0
    }

    /// The block size of an image without a journal.
    pub fn unjournalled(&self) -> Option<u32> {
        (!self.has_journal()).then_some(self.block_size)
    }

    /// Makes the image, with every free block and every unused inode table poisoned.
    pub fn build(&self, dir: &Path) -> Result<MemDevice> {
        let device = |e: extant_block::Error| Error::Mismatch { what: self.name.into(), difference: e.to_string() };
        let mut options = MkfsOptions::new(self.fs_type, SIZE);
        options.block_size = self.block_size;
        options.features = self.features.to_owned();
        options.extra_args = vec!["-N".into(), "1024".into()];
        if self.has_journal() {
            let mib = (u64::from(self.journal_blocks) * u64::from(self.block_size)) >> 20;
            options.extra_args.extend(["-J".into(), format!("size={}", mib.max(1))]);
        }
        let path = make_image(dir, &options)?;
        let dev = MemDevice::load(&path).map_err(device)?;
        let poison: Vec<u8> = POISON.iter().copied().cycle().take(self.block_size as usize).collect();
        for (first, last) in unused_blocks(&run_ok("dumpe2fs", &[arg(&path)])?) {
            for block in first..=last {
                dev.write_at(block * u64::from(self.block_size), &[&poison], BioFlags::empty()).map_err(device)?;
            }
        }
        std::fs::remove_file(&path).map_err(Error::io("remove"))?;
        Ok(dev)
    }
}

/// Ranges of blocks that hold nothing, from the listing of dumpe2fs: free ones, and the inode tables that were not zeroed.
fn unused_blocks(listing: &str) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut lazy_table = false;
    for line in listing.lines() {
        if line.starts_with("Group ") {
            lazy_table = line.contains("INODE_UNINIT") && !line.contains("ITABLE_ZEROED");
        } else if let Some(list) = line.strip_prefix("  Free blocks: ") {
            out.extend(list.split(", ").filter_map(range));
        } else if let Some(rest) = line.strip_prefix("  Inode table at ")
            && lazy_table
        {
            out.extend(rest.split_whitespace().next().and_then(range));
        }
    }
    out
}

fn range(text: &str) -> Option<(u64, u64)> {
    let text = text.trim();
    match text.split_once('-') {
        Some((a, b)) => Some((a.parse().ok()?, b.parse().ok()?)),
        None => text.parse().ok().map(|n| (n, n)),
    }
}
