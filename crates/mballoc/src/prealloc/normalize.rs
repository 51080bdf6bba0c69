//! The size of a file's preallocation: [`normalize`] (Linux: `ext4_mb_normalize_request`, fs/ext4/mballoc.c),
//! [`grow`], or [`fill`].
//!
//! A file is expected to grow to the next size in a table; a large file gets aligned chunks. The chunk never covers
//! blocks that are already mapped or preallocated.
//!
//! # Locking
//! None: pure functions.

use extant_ondisk::BlockNr;

use crate::Neighbour;

/// The known facts about the file near the request.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub block_bits: u32,
    pub blocks_per_group: u32,
    pub logical: u32,
    pub len: u32,
    pub file_blocks: u64,
    pub left: Option<Neighbour>,
    pub right: Option<Neighbour>,
    /// Bounds set by the inode's other preallocations: `(start, end)`.
    pub gap: (u64, u64),
}

/// The logical range to allocate, and the block at which it would continue existing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Normalized {
    pub start: u32,
    pub len: u32,
    pub try_goal: Option<BlockNr>,
}

/// Sizes in KiB to which small files are rounded up.
const SMALL_KIB: [u64; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// Computes the range to allocate. It contains `shape.logical`, does not overlap neighbours or other preallocations,
/// and fits into a group.
pub fn normalize(shape: &Shape) -> Normalized {
    let bits = shape.block_bits;
    let logical = u64::from(shape.logical);
    let req_end = logical + u64::from(shape.len);
    let size = shape.file_blocks.max(req_end) << bits;
    // The largest chunk in KiB: 2 MiB with 1 KiB blocks, 4 MiB with 2 KiB, else 8 MiB.
    let largest_kib = 2u64 << bits;
    let aligned = |mib_bits: u32| {
        let start = (logical << bits) >> mib_bits << mib_bits;
        (start, 1u64 << mib_bits)
    };
    let (start, bytes) = if let Some(kib) = SMALL_KIB.iter().find(|&&kib| size <= kib << 10) {
        (0, kib << 10)
    } else if u64::from(shape.len) << bits > 8 << 20 {
        (logical << bits, u64::from(shape.len) << bits)
    } else if size <= 4 << 20 || largest_kib <= 2048 {
        aligned(21)
    } else if size <= 8 << 20 || largest_kib <= 4096 {
        aligned(22)
    } else {
        aligned(23)
    };
    let mut start = start >> bits;
    // At least one block, even if a block is larger than the first entries of the table.
    let mut end = (start + (bytes >> bits).max(1)).max(logical + 1);

    // Groups may be tiny.
    let bpg = u64::from(shape.blocks_per_group);
    if end - start > bpg {
        start = start.max(logical / bpg * bpg);
        end = end.min(start + bpg);
    }
    clip(shape, start, end)
}

/// As [`normalize`], for a file that grows in proportion to its size. The length is `times` the size of the file with
/// this request, at most `most` blocks (but at least the request) and at most a group. It begins at the request.
pub fn grow(shape: &Shape, times: u32, most: u64) -> Normalized {
    let (logical, len) = (u64::from(shape.logical), u64::from(shape.len));
    let size = shape.file_blocks.max(logical + len);
    let chunk = size.saturating_mul(u64::from(times)).saturating_sub(logical);
    clip(shape, logical, logical + chunk.min(most).max(len).min(u64::from(shape.blocks_per_group)))
}

/// Everything up to the logical block `end`, as a continuation of the file; at most `most` blocks, but at least the
/// request. It begins at the request.
pub fn fill(shape: &Shape, end: u64, most: u64) -> Normalized {
    let (logical, len) = (u64::from(shape.logical), u64::from(shape.len));
    clip(shape, logical, end.min(logical + most.max(len)).min(logical + u64::from(shape.blocks_per_group)))
}

/// Excludes blocks that are already taken.
fn clip(shape: &Shape, mut start: u64, mut end: u64) -> Normalized {
    let logical = u64::from(shape.logical);
    start = start.max(shape.gap.0);
    end = end.min(shape.gap.1);
    if let Some(left) = shape.left {
        start = start.max(u64::from(left.logical.0) + 1);
    }
    if let Some(right) = shape.right {
        end = end.min(u64::from(right.logical.0));
    }
    // The last logical block cannot be mapped. A caller that reports wrong neighbours still gets its block.
    end = end.min(u64::from(u32::MAX)).max(logical + 1);
    start = start.min(logical);

    let len = (end - start) as u32;
    let mut try_goal = None;
    if let Some(right) = shape.right
        && u64::from(right.logical.0) == end
    {
        try_goal = right.block.0.checked_sub(u64::from(len)).map(BlockNr);
    }
    if let Some(left) = shape.left
        && u64::from(left.logical.0) + 1 == start
    {
        try_goal = left.block.0.checked_add(1).map(BlockNr);
    }
    Normalized { start: start as u32, len, try_goal }
}

/// Where to place an extent of `got` blocks (fewer than wanted) in the wanted logical range. The range `[start, start +
/// got)` must contain the beginning of the request, and should contain all of it. Linux: `ext4_mb_new_inode_pa`.
pub fn place(wanted: Normalized, got: u32, req_start: u32, req_end: u64) -> u32 {
    if got >= wanted.len {
        return wanted.start;
    }
    // At the end of the range, or else at its start, or else at the start of the request.
    let at_end = wanted.start + (wanted.len - got);
    if at_end <= req_start {
        return at_end;
    }
    if req_end <= u64::from(wanted.start) + u64::from(got) {
        return wanted.start;
    }
    req_start
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_ondisk::LogicalBlock;

    const FREE: Shape = Shape {
        block_bits: 12,
        blocks_per_group: 32768,
        logical: 0,
        len: 1,
        file_blocks: 1,
        left: None,
        right: None,
        gap: (0, u64::MAX),
    };

    fn range(s: Shape) -> (u32, u32) {
        let n = normalize(&s);
        (n.start, n.len)
    }

    #[test]
    fn sizes_follow_the_table() {
        assert_eq!(range(FREE), (0, 4), "16 KiB");
        assert_eq!(range(Shape { logical: 17, file_blocks: 18, ..FREE }), (0, 32), "128 KiB");
        assert_eq!(range(Shape { logical: 600, file_blocks: 601, ..FREE }), (512, 512), "2 MiB aligned");
        assert_eq!(range(Shape { logical: 1100, file_blocks: 1101, ..FREE }), (1024, 1024), "4 MiB aligned");
        assert_eq!(range(Shape { logical: 5000, file_blocks: 5001, ..FREE }), (4096, 2048), "8 MiB aligned");
        assert_eq!(range(Shape { logical: 5000, len: 4000, file_blocks: 9000, ..FREE }), (5000, 4000), "as is");
        let kib = Shape { block_bits: 10, blocks_per_group: 8192, ..FREE };
        assert_eq!(range(Shape { logical: 50_000, file_blocks: 50_001, ..kib }), (49_152, 2048), "2 MiB at most");
        assert_eq!(range(Shape { block_bits: 16, ..FREE }), (0, 1), "blocks of 64 KiB");
    }

    #[test]
    fn the_range_avoids_mapped_and_preallocated_blocks() {
        let n = |logical, block| Some(Neighbour { logical: LogicalBlock(logical), block: BlockNr(block) });
        let s = Shape { logical: 17, file_blocks: 18, left: n(16, 1000), ..FREE };
        assert_eq!(normalize(&s), Normalized { start: 17, len: 15, try_goal: Some(BlockNr(1001)) });
        let s = Shape { logical: 17, file_blocks: 18, left: n(10, 1000), right: n(20, 5000), ..FREE };
        assert_eq!(normalize(&s), Normalized { start: 11, len: 9, try_goal: Some(BlockNr(1001)) });
        let s = Shape { logical: 17, file_blocks: 30, right: n(20, 5000), gap: (12, 100), ..FREE };
        assert_eq!(normalize(&s), Normalized { start: 12, len: 8, try_goal: Some(BlockNr(4992)) });
        let s = Shape { logical: u32::MAX - 1, file_blocks: u64::from(u32::MAX), ..FREE };
        let got = normalize(&s);
        assert!(u64::from(got.start) + u64::from(got.len) <= u64::from(u32::MAX));
        // A request with invalid neighbours still gets its block.
        let s = Shape { logical: 17, file_blocks: 18, left: n(40, 1), right: n(3, 2), ..FREE };
        assert_eq!(range(s), (17, 1));
    }

    #[test]
    fn a_short_extent_contains_the_start_of_the_request() {
        let w = Normalized { start: 100, len: 50, try_goal: None };
        assert_eq!(place(w, 50, 120, 125), 100);
        assert_eq!(place(w, 40, 120, 125), 110, "at the end");
        assert_eq!(place(w, 25, 120, 125), 100, "at the start");
        assert_eq!(place(w, 10, 120, 125), 120);
        assert_eq!(place(w, 3, 120, 125), 120);
    }
}
