//! Metadata buffers, folios with file data, and the memory budget that they share.
//!
//! Main types: [`Budget`] (one `cache=SIZE` for everything that can be evicted), [`BufferCache`] and [`Buffer`]
//! (metadata blocks, whose state only the journal changes when they are held), [`AddressSpace`] and [`Folio`] (dirty
//! and cached file data), [`Flusher`] (background writeback), [`BulkWindow`] (limits the data that a device writes at
//! the same time), [`Writebacks`] (data that is being written), [`LossLedger`] (lost writes, and their report to every
//! party), [`IoWait`] (waits for a few requests).
//!
//! What it does not do: it does not know the meaning of a block, allocate blocks, or start transactions.
//! [`AddressSpaceOps`], which `fs` implements, maps folios to blocks.
//!
//! # Locking
//! `folio` (40) before `buffer` (80) before `buffer shard` (90). Reclaim only tries to take locks, so it has no rank of
//! its own.
#![forbid(unsafe_code)]

mod budget;
mod buffer;
mod folio;
mod io_wait;
mod loss_ledger;
mod pace;
pub mod reclaim;
mod writeback;
mod writes;

pub use budget::{BackgroundReclaim, Budget, Shrinker};
pub use buffer::{BufKind, Buffer, BufferCache, BufferState, CacheStats};
pub use folio::{AddressSpace, DirtyRun, Folio, Home, PAGE_SIZE, RunCompletion, Taken, WriteRefused};
pub use io_wait::{IoToken, IoWait};
pub use loss_ledger::{Loss, LossCursor, LossLedger, OpenCursor, Party, Position};
pub use pace::{BulkWindow, Lightness, Meter, Sent, WINDOW_NS, longest_pause_ns, pause_ns};
pub use reclaim::ReclaimPolicy;
pub use writeback::{AddressSpaceOps, Flusher, FlusherOptions, Listed};
pub use writes::{Epoch, WritebackToken, Writebacks};
