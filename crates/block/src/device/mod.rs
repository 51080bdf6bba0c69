//! Devices: one trait, many implementers.

use crate::bio::{Bio, BioFlags};
use crate::error::Result;

/// What a device can do (Linux: `struct queue_limits`). Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest unit of I/O.
    pub logical_block: u32,
    /// Unit that the device writes without tearing it.
    pub physical_block: u32,
    /// Largest single transfer.
    pub max_transfer: u32,
    pub discard: bool,
    /// False when a completed write is durable without a flush.
    pub volatile_cache: bool,
}

/// Exact counts since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// Flushes asked for explicitly, by PREFLUSH or by FUA.
    pub flushes: u64,
    pub discards: u64,
}

/// Where blocks live. All offsets and lengths are bytes.
///
/// Duties of the implementer: any number of threads may call at once; a write that overlaps one in flight may end up
/// either way, but each of the two wholly reaches the medium or fails; after a successful `flush`, everything that had
/// completed before it was called survives a power cut. A failed flush is an error for good: data may be lost.
pub trait BlockDevice: Send + Sync {
    /// For messages: the path of the image, say.
    fn name(&self) -> &str;

    fn size_bytes(&self) -> u64;

    fn limits(&self) -> &Limits;

    fn read_only(&self) -> bool;

    /// Starts a request. May wait for a free tag, never for the I/O itself unless the device completes inline; `end_io`
    /// may run before this returns.
    fn submit(&self, bio: Bio);

    /// Reads and waits. `buf` needs no alignment (an unaligned one may cost a copy).
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()>;

    /// Writes the pieces one after the other and waits. Durable on return only with `FUA`.
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()>;

    /// Makes durable everything that completed before the call.
    fn flush(&self) -> Result<()>;

    /// Tells the device that the range holds nothing of use; a device without discard ignores it.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    fn stats(&self) -> IoStats;
}
