//! Linux 3.9: each pass over a zone is harder than the one before, and reclaim writes what it meets.
//!
//! Main item: [`VANILLA`]. What it is made of, [`super::lists`] says.
//!
//! # Locking
//! None.

use super::lists::{Congestion, Marks, Rules, Stalls, Writes};

pub(super) static VANILLA: Rules = Rules {
    writes: Writes::Harder,
    dirty_tail: Marks::Never,
    writeback_tail: Marks::Never,
    congestion: Congestion::Refused,
    stalls: Stalls::Congested,
    sees_unstable: false,
    proportional: false,
    slab_once: false,
};
