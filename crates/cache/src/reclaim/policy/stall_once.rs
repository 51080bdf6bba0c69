//! Linux 3.11: a reclaimer that meets only frames that are dirty or under writeback waits for the device.
//!
//! Main item: [`STALL_ONCE`]. [`super::lists`] describes the rules that it sets.
//!
//! # Locking
//! None.

use super::lists::{Congestion, Marks, Rules, Stalls, Writes};

pub(super) static STALL_ONCE: Rules = Rules {
    writes: Writes::DirtyTail,
    dirty_tail: Marks::All,
    writeback_tail: Marks::All,
    congestion: Congestion::Met,
    stalls: Stalls::AgainOrUnqueued,
    sees_unstable: true,
    proportional: true,
    slab_once: true,
    refaults: false,
};
