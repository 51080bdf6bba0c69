//! Linux 3.11: who meets only what is dirty or on its way waits for the device.
//!
//! Main item: [`STALL_ONCE`]. What it is made of, [`super::lists`] says.
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
};
