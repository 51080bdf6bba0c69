//! mmotm of 2013-05-22: scan in proportion, and no harder as long as enough is freed.
//!
//! Main item: [`PROPORTIONAL`]. [`super::lists`] describes the rules that it sets.
//!
//! # Locking
//! None.

use super::lists::{Congestion, Marks, Rules, Stalls, Writes};

pub(super) static PROPORTIONAL: Rules = Rules {
    writes: Writes::DirtyTail,
    dirty_tail: Marks::Share,
    writeback_tail: Marks::Share,
    congestion: Congestion::Refused,
    stalls: Stalls::CongestedOrAgain,
    sees_unstable: false,
    proportional: true,
    slab_once: true,
    refaults: false,
};
