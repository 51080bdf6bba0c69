//! A tree with names and sizes like those of the kernel's sources.
//!
//! Main type: [`Tree`].
//!
//! # Locking
//! None.

use extant_base::rng::Rng;

/// Directories (parents first) and files, in the order of an archive: the files of a directory follow it.
pub(super) struct Tree {
    pub directories: Vec<String>,
    /// Path and size in bytes.
    pub files: Vec<(String, u64)>,
}

/// The average number of files in a directory, and the maximum depth (as in Linux 5.18: 74,000 files, 4,900
/// directories).
const FILES_PER_DIRECTORY: u64 = 15;
const DEPTH_MAX: usize = 6;

/// File sizes by rank: (rank per thousand, bytes). Between two rows, sizes are evenly distributed. The mean is about 15
/// KiB.
const SIZES: [(u64, u64); 9] = [
    (0, 40),
    (100, 500),
    (250, 1500),
    (500, 4400),
    (750, 12_000),
    (900, 30_000),
    (970, 80_000),
    (995, 250_000),
    (1000, 1_000_000),
];

/// Mean size of a file, bytes.
pub(super) const MEAN_BYTES: u64 = 15 << 10;

impl Tree {
    /// A tree with `files` files.
    pub fn new(rng: &mut Rng, files: u64) -> Tree {
        let wanted = files.div_ceil(FILES_PER_DIRECTORY).max(1);
        let mut directories: Vec<String> = Vec::new();
        for i in 0..wanted {
            let parent = match directories.len() as u64 {
                0 => None,
                // Most directories are beside or below a recent one.
                n => Some(&directories[(n - 1 - rng.below(n.min(20))) as usize]),
            };
            let parent = parent.filter(|p| p.matches('/').count() + 1 < DEPTH_MAX && !rng.one_in(40));
            directories.push(parent.map_or_else(|| format!("d{i}"), |p| format!("{p}/d{i}")));
        }
        let mut tree = Tree { files: Vec::with_capacity(files as usize), directories };
        for i in 0..files {
            let directory = &tree.directories[(i * wanted / files.max(1)) as usize];
            let kind = if rng.one_in(3) { "h" } else { "c" };
            tree.files.push((format!("{directory}/f{i}.{kind}"), size(rng)));
        }
        tree
    }
}

fn size(rng: &mut Rng) -> u64 {
    let rank = rng.below(1000);
    let upper = SIZES.iter().position(|(r, _)| *r > rank).unwrap_or(SIZES.len() - 1);
    let ((from, low), (to, high)) = (SIZES[upper.saturating_sub(1)], SIZES[upper]);
    low + (high - low) * (rank - from) / (to - from).max(1) + rng.below(64)
}
