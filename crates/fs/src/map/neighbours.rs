//! Chooses the map blocks to read ahead when one is read: nearby blocks that the same pointer array or index node
//! refers to, or that lie in the same zone.
//!
//! What it does not do: read blocks.
//!
//! # Locking
//! None: pure functions.

use std::ops::Range;

use extant_ondisk::BlockNr;

/// The largest request, in blocks. Windows are counted from the first block of the first group, so that random reads
/// of a file whose map blocks are close to each other read each block once.
pub const WINDOW: u64 = 64;

/// The blocks of the window that contains `block`. `first` is the first block of the first group.
pub fn window(block: BlockNr, first: u64) -> Range<u64> {
    let start = block.0 - block.0.saturating_sub(first) % WINDOW;
    start..start + WINDOW
}

/// The blocks that one request should read: `block` and some of `siblings`, in ascending order. All lie in `window`,
/// and `is_wanted` is called only for blocks in it. At least half of the request must be wanted; until then, the blocks
/// beyond the largest hole are dropped.
pub fn around(
    block: BlockNr,
    window: &Range<u64>,
    siblings: impl IntoIterator<Item = BlockNr>,
    is_wanted: impl Fn(BlockNr) -> bool,
) -> Vec<BlockNr> {
    let inside = siblings.into_iter().filter(|b| window.contains(&b.0));
    let mut wanted: Vec<u64> = inside.filter(|b| is_wanted(*b)).map(|b| b.0).collect();
    wanted.push(block.0);
    wanted.sort_unstable();
    wanted.dedup();
    let mut run = wanted.as_slice();
    while let [first, .., last] = run
        && run.len() as u64 * 2 <= last - first
    {
        let behind_hole = (1..run.len()).max_by_key(|i| run[*i] - run[*i - 1]).unwrap_or(0);
        run = if run[behind_hole] > block.0 { &run[..behind_hole] } else { &run[behind_hole..] };
    }
    run.iter().copied().map(BlockNr).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(block: u64, siblings: &[u64]) -> Vec<u64> {
        let block = BlockNr(block);
        let window = window(block, 0);
        let is_wanted = |b: BlockNr| {
            assert!(window.contains(&b.0), "{b} is far away");
            true
        };
        around(block, &window, siblings.iter().copied().map(BlockNr), is_wanted).iter().map(|b| b.0).collect()
    }

    #[test]
    fn a_dense_run_is_read_to_the_end_of_its_window() {
        let all: Vec<u64> = (600..800).collect();
        assert_eq!(read(700, &all), (640..704).collect::<Vec<_>>());
        assert_eq!(read(600, &all), (600..640).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_spans_holes_while_half_of_it_is_wanted() {
        assert_eq!(read(640, &[642, 644, 646]), [640, 642, 644, 646]);
        assert_eq!(read(646, &[640, 644]), [644, 646]);
        assert_eq!(read(646, &[642]), [646], "two of five are not worth it");
        assert_eq!(read(641, &[640, 642, 690, 691, 692]), [640, 641, 642]);
        assert_eq!(read(690, &[640, 641, 642, 691, 703]), [690, 691]);
    }

    #[test]
    fn windows_start_at_the_first_group() {
        assert_eq!(window(BlockNr(63), 0), 0..64);
        assert_eq!(window(BlockNr(64), 1), 1..65);
        assert_eq!(window(BlockNr(65), 1), 65..129);
    }

    #[test]
    fn a_block_without_siblings_is_read_alone() {
        assert_eq!(read(700, &[]), [700]);
        assert_eq!(read(700, &[700, 639, 704, 1 << 40]), [700]);
    }
}
