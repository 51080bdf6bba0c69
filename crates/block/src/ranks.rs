//! The lock classes of this crate, in one place so that their order is visible.
//!
//! All are leaves for the crates above: a thread that holds one calls only devices below it.

use extant_base::sync::LockClass;

/// The pieces of a [`crate::device::CowDevice`]; a write calls the device of the spilled pieces under it.
pub(crate) static COW: LockClass = LockClass::new("block cow", 790);
/// Tags, and the requests that wait for one.
pub(crate) static TAG_LINE: LockClass = LockClass::new("block tag line", 800);
/// One wait queue of a set of tags.
pub(crate) static TAG_WAITERS: LockClass = LockClass::new("block tag waiters", 801);
/// The common list of free tags, and within it the list of a processor.
pub(crate) static TAG_POOL: LockClass = LockClass::new("block tag pool", 802);
pub(crate) static TAG_CORE: LockClass = LockClass::new("block tag core", 803);
/// Bios that a completion submitted when no tag was free.
pub(crate) static TAG_POSTPONED: LockClass = LockClass::new("block tag postponed", 804);
/// The swap of one word of a tag bitmap.
pub(crate) static TAG_SWAP: LockClass = LockClass::new("block tag swap", 805);
/// The counts of requests that wait for a tag.
pub(crate) static TAG_LEDGER: LockClass = LockClass::new("block tag ledger", 806);
/// One thread that waits for a tag.
pub(crate) static TAG_SLEEPER: LockClass = LockClass::new("block tag sleeper", 807);
/// Bios that a [`crate::device::LateDevice`] has not passed on yet.
pub(crate) static LATE: LockClass = LockClass::new("block late", 835);
/// The queue in front of a [`crate::device::RateDevice`].
pub(crate) static RATE: LockClass = LockClass::new("block rate", 836);
/// Rules of a [`crate::device::HeldDevice`], and the requests that it holds.
pub(crate) static HELD: LockClass = LockClass::new("block held", 830);
/// Rules of a [`crate::device::FaultyDevice`].
pub(crate) static FAULTS: LockClass = LockClass::new("block faults", 840);
/// Records of a [`crate::device::TracedDevice`].
pub(crate) static TRACED: LockClass = LockClass::new("block traced", 845);
/// The model of a [`crate::device::TimedDevice`].
pub(crate) static TIMED: LockClass = LockClass::new("block timed", 846);
/// The ranges of a [`crate::device::MetaOnlyDevice`] that were written as data.
pub(crate) static DROPPED: LockClass = LockClass::new("block dropped", 847);
/// Bios that a deferring [`crate::device::CrashDevice`] has not completed yet.
pub(crate) static CRASH_DEFERRED: LockClass = LockClass::new("block crash deferred", 890);
/// Checkpoints from which crash states are built; held while the log is read.
pub(crate) static CRASH_STATES: LockClass = LockClass::new("block crash states", 900);
/// The log of a [`crate::device::CrashDevice`]; held while the live image is written, so that both have the same order.
pub(crate) static CRASH_LOG: LockClass = LockClass::new("block crash log", 905);
/// One shard of a [`crate::device::MemDevice`]. Only a snapshot holds several, in index order.
pub(crate) static MEM_SHARD: LockClass = LockClass::new("block memory shard", 920);
/// The flush stream of a file.
pub(crate) static FILE_FLUSH: LockClass = LockClass::new("block file flush", 940);
/// In-flight table and submission side of an io_uring.
#[cfg(target_os = "linux")]
pub(crate) static RING: LockClass = LockClass::new("block ring", 945);
/// The first flush error of a file.
pub(crate) static FILE_POISON: LockClass = LockClass::new("block file poison", 950);
/// Bios for a [`crate::device::NbdDevice`]'s thread that carries out several requests for each.
pub(crate) static NBD_JOBS: LockClass = LockClass::new("block nbd jobs", 955);
/// The sending side of a connection to an NBD server.
pub(crate) static NBD_SEND: LockClass = LockClass::new("block nbd send", 956);
/// The requests in progress on a connection to an NBD server.
pub(crate) static NBD_PENDING: LockClass = LockClass::new("block nbd pending", 957);
/// Completions that a thread waits for.
pub(crate) static BIO_WAIT: LockClass = LockClass::new("block bio wait", 990);
