//! The policies that choose which frames to evict when memory is short.
//!
//! | name | idea in one sentence | after | judged by |
//! |---|---|---|---|
//! | `vanilla` | two lists; the more frames it meets that are dirty or under writeback, the harder it scans everything, and reclaim itself writes | Linux 3.9, mm/vmscan.c | experiments/020, 021 |
//! | `proportional` | the same lists, scanned in the proportion of their initial lengths, and no harder while enough is freed | mmotm of 2013-05-22 (Mel Gorman, "Reduce system disruption due to kswapd") | experiments/020, 021 |
//! | `stall-once` | the same; a reclaimer that meets only frames that are dirty or under writeback waits for the device | Linux 3.11 (the same, follow-up V3) | experiments/020, 021 |
//! | `workingset` | the same; a frame that comes back while as many frames as the active list has have left joins that list at once | Linux 3.15, mm/workingset.c | experiments/020, 021, 022, 036 |
//! | `generations` | up to four generations; frames that were read often are spared if those of their tier come back more often than frames read once | Linux 6.1, the multi-gen LRU | experiments/020, 021, 022, 036 |
//! | `used-once` | frames used once leave first, frames that come back stay; dirty frames stand on no list, and a lack of clean frames drives the flusher | S3-FIFO (Yang et al., SOSP 2023), refault distances (Linux, mm/workingset.c) | experiments/020, 021 |
//!
//! A policy makes decisions about frames ([`super::core::Field`]). [`super::Core`] counts, and [`super::Reclaim`] takes
//! the locks and calls the owners that free frames.

#[cfg(test)]
mod contract;
mod generations;
mod lists;
mod proportional;
mod slab;
mod stall_once;
#[cfg(test)]
mod test_cache;
mod used_once;
mod vanilla;
mod workingset;

use self::generations::{Generations, Pacer};
use self::lists::{Kswapd, Lists};
use self::proportional::PROPORTIONAL;
use self::stall_once::STALL_ONCE;
use self::used_once::UsedOnce;
use self::vanilla::VANILLA;
use self::workingset::WORKINGSET;
use super::core::{Core, Field, Host, Next};
use super::frame::{FrameId, State, Touches};

extant_base::policies! {
    /// The policies by name.
    pub enum ReclaimPolicy: "reclaim_policy", "what leaves the cache when memory is short", default UsedOnce {
        Vanilla = "vanilla", "active and inactive lists, scanned harder the less is freed; reclaim writes (Linux 3.9)";
        Proportional = "proportional", "the same lists, scanned in proportion and no harder than needed (mmotm, May 2013)";
        StallOnce = "stall-once", "the same; reclaim waits where it meets only what is dirty or on its way (Linux 3.11)";
        Workingset = "workingset", "the same; what comes back soon after it left joins the active list at once (Linux 3.15)";
        Generations = "generations", "four generations; what was read often is spared if such frames come back (Linux 6.1)";
        UsedOnce = "used-once", "what was used once leaves first; what is dirty drives the flusher, and is never looked at";
    }
}

impl ReclaimPolicy {
    /// The maximum number of uses of a frame that the policy wants to be counted.
    pub(super) fn uses_counted(self) -> u8 {
        if self == ReclaimPolicy::Generations { generations::USES } else { Touches::USUAL }
    }
}

/// The state of one core's policy.
pub(super) enum Policy {
    Lists(Lists),
    Generations(Generations),
    UsedOnce(UsedOnce),
}

impl Policy {
    pub fn new(kind: ReclaimPolicy) -> Policy {
        match kind {
            ReclaimPolicy::Vanilla => Policy::Lists(Lists::new(&VANILLA)),
            ReclaimPolicy::Proportional => Policy::Lists(Lists::new(&PROPORTIONAL)),
            ReclaimPolicy::StallOnce => Policy::Lists(Lists::new(&STALL_ONCE)),
            ReclaimPolicy::Workingset => Policy::Lists(Lists::new(&WORKINGSET)),
            ReclaimPolicy::Generations => Policy::Generations(Generations::default()),
            ReclaimPolicy::UsedOnce => Policy::UsedOnce(UsedOnce::default()),
        }
    }

    /// Handles a new frame, which is on no list.
    pub fn inserted(&mut self, field: &mut Field, id: FrameId) {
        match self {
            Policy::Lists(p) => p.inserted(field, id),
            Policy::Generations(p) => p.inserted(field, id),
            Policy::UsedOnce(p) => p.inserted(field, id),
        }
    }

    /// Handles a change of the frame's owner flags; `before` is the old state.
    pub fn changed(&mut self, field: &mut Field, id: FrameId, before: State) {
        match self {
            Policy::Lists(p) => p.changed(field, id, before),
            Policy::Generations(p) => p.changed(field, id, before),
            Policy::UsedOnce(p) => p.changed(field, id),
        }
    }

    /// Handles a chosen frame that could not be freed, or a parked frame whose last user is done. It is on no list.
    pub fn kept(&mut self, field: &mut Field, id: FrameId) {
        match self {
            Policy::Lists(p) => p.kept(field, id),
            Policy::Generations(p) => p.kept(field, id),
            Policy::UsedOnce(p) => p.kept(field, id),
        }
    }

    /// Handles a chosen frame that the owner frees now.
    pub fn freed(&mut self, field: &mut Field, id: FrameId) {
        match self {
            Policy::Lists(p) => p.freed(field, id),
            Policy::Generations(p) => p.freed(field, id),
            Policy::UsedOnce(p) => p.freed(field, id),
        }
    }
}

/// The state of the background reclaimer, over all zones.
pub(super) enum Driver {
    Kswapd(Box<Kswapd>),
    Pacer(Pacer),
    UsedOnce,
}

impl Driver {
    pub fn new(kind: ReclaimPolicy) -> Driver {
        match kind {
            ReclaimPolicy::Vanilla => Driver::Kswapd(Box::new(Kswapd::new(&VANILLA))),
            ReclaimPolicy::Proportional => Driver::Kswapd(Box::new(Kswapd::new(&PROPORTIONAL))),
            ReclaimPolicy::StallOnce => Driver::Kswapd(Box::new(Kswapd::new(&STALL_ONCE))),
            ReclaimPolicy::Workingset => Driver::Kswapd(Box::new(Kswapd::new(&WORKINGSET))),
            ReclaimPolicy::Generations => Driver::Pacer(Pacer::new()),
            ReclaimPolicy::UsedOnce => Driver::UsedOnce,
        }
    }

    pub fn wake(&mut self) {
        match self {
            Driver::Kswapd(k) => k.wake(),
            Driver::Pacer(p) => p.wake(),
            Driver::UsedOnce => {}
        }
    }

    pub fn step(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        match self {
            Driver::Kswapd(k) => k.step(zones, host),
            Driver::Pacer(p) => p.step(zones, host),
            Driver::UsedOnce => used_once::step(zones, host),
        }
    }

    pub fn direct(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        match self {
            Driver::Kswapd(k) => k.direct(zones, host),
            Driver::Pacer(p) => p.direct(zones, host),
            Driver::UsedOnce => used_once::direct(zones, host),
        }
    }
}
