//! Linux 3.9: each pass over a zone is harder than the one before, and reclaim writes dirty pages that it meets.
//!
//! Main item: [`VANILLA`]. [`super::lists`] describes the rules that it sets.
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
    refaults: false,
};
