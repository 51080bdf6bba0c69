//! Linux 3.9: each pass over a zone is harder than the one before, and reclaim writes what it meets.
//!
//! Main item: [`VANILLA`]. What it is made of, [`super::lists`] says.
//!
//! # Locking
//! None.

use super::lists::{Marks, Rules, Stalls, Writes};

pub(super) static VANILLA: Rules = Rules {
    writes: Writes::Harder,
    dirty_tail: Marks::Never,
    writeback_tail: Marks::Never,
    stalls: Stalls::Congested,
    proportional: false,
    slab_once: false,
};
