//! Figures of an unmounted image: its geometry, its free space, and the layout of its files.
//!
//! # Locking
//! None.

use std::path::Path;

use extant_block::device::{Engine, FileDevice, OpenOptions};
use extant_ondisk::superblock::Geometry;
use extant_recovery::read::find_super;

use super::Figures;
use super::transactions::Layout;
use crate::error::{Error, Result};

/// Opens an image for one reader with one request at a time, so without rings.
fn open(image: &Path) -> Option<FileDevice> {
    FileDevice::open(image, OpenOptions { engine: Engine::Psync, ..OpenOptions::read_only() }).ok()
}

/// Geometry of an image.
pub fn geometry(image: &Path) -> Option<Geometry> {
    let device = open(image)?;
    Some(find_super(&device, None, false).ok()?.sb.geometry().clone())
}

/// The number of free bytes in an image, according to its superblock.
///
/// # Errors
/// The error in the file, or in its superblock.
pub fn free_bytes(image: &Path) -> Result<u64> {
    let failed = |why: String| Error::Usage(format!("{}: {why}", image.display()));
    let options = OpenOptions { engine: Engine::Psync, ..OpenOptions::read_only() };
    let device = FileDevice::open(image, options).map_err(|e| failed(e.to_string()))?;
    let superblock = find_super(&device, None, false).map_err(|e| failed(e.to_string()))?.sb;
    Ok(superblock.free_blocks().saturating_mul(u64::from(superblock.geometry().block_size)))
}

/// The places of an image's groups.
pub fn layout(image: &Path) -> Option<Layout> {
    let g = geometry(image)?;
    Some(Layout { first_block: g.first_data_block, blocks_per_group: g.blocks_per_group })
}

/// Adds the figures of an unmounted image. If it cannot be read, the figures are left out: e2fsck will report the
/// reason.
pub fn figures(image: &Path, figures: &mut Figures) {
    let Some(layout) = open(image).and_then(|device| crate::layout::Layout::of(&device).ok()) else { return };
    let mut put = |name: &str, value: f64| figures.insert(name.to_owned(), value);
    put("files_left", layout.files as f64);
    if layout.files > 0 {
        put("extents_per_file", layout.extents_per_file);
        put("extents_per_file_max", layout.extents_per_file_max as f64);
        put("groups_from_inode", layout.groups_from_inode);
    }
    put("map_blocks", layout.map_blocks as f64);
    if layout.map_blocks > 0 {
        put("map_runs", layout.map_runs as f64);
        put("map_runs_per_block", layout.map_runs_per_block);
        put("map_jumps", layout.map_jumps as f64);
        put("map_blocks_per_group_max", layout.map_blocks_per_group_max as f64);
    }
}
