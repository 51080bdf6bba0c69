//! Blocks set aside for pointer blocks, in front of the data that these will map. They are taken from one run with that
//! data, and used when the data is mapped.
//!
//! Each is a separate preallocation, because they are needed one by one. Some are not needed at all, if another part of
//! the file gets the same pointer block first. They are not claimed, so under pressure they are discarded like other
//! preallocations.
//!
//! # Locking
//! As for preallocations.

use std::sync::Arc;

use extant_ondisk::indirect::PointerBlock;

use super::Preallocation;
use crate::allocator::Allocator;
use crate::ranges::RangeSet;
use crate::search::Extent;
use crate::{Allocation, GroupStore, Kind, Pointers, Request};

/// The preallocations of some pointer blocks.
pub(crate) type LeadingPreallocations = Vec<(PointerBlock, Arc<Preallocation>)>;

/// The pointer blocks that belong in front of the data of this request, and for which no block is set aside yet.
pub(crate) fn pointer_blocks(request: &Request<'_>) -> Vec<PointerBlock> {
    match (request.kind, request.pointers) {
        (Kind::Data { .. }, Some(Pointers { owner, blocks, .. })) => {
            blocks.iter().copied().filter(|which| !owner.has_pointer_block(*which)).collect()
        }
        _ => Vec::new(),
    }
}

/// Splits an extent into blocks for `lead` and the data behind them. If that would leave no data, the whole extent is
/// used for data.
pub(crate) fn lead_off(found: Extent, lead: &[PointerBlock]) -> (LeadingPreallocations, Extent) {
    let len = lead.len() as u32;
    if found.len <= len {
        return (Vec::new(), found);
    }
    let in_front = (found.start..)
        .zip(lead)
        .map(|(at, which)| (*which, Preallocation::new(found.group, at, 1, which.first.0, RangeSet::of(at, 1))));
    (in_front.collect(), Extent { start: found.start + len, len: found.len - len, ..found })
}

impl<S: GroupStore> Allocator<S> {
    /// Whether a request for data must name its missing pointer blocks ([`Request::pointers`]). If so, the policy
    /// allocates both together, with the pointer blocks in front.
    pub fn puts_pointers_in_front(&self) -> bool {
        self.meta.in_front()
    }

    /// Takes the block that was set aside for the pointer block of this request.
    pub(crate) fn use_pointer_block(&self, request: &Request<'_>, limit: u32) -> Result<Option<Allocation>, S::Error> {
        let Some(Pointers { owner, blocks: &[which], .. }) = request.pointers.filter(|_| self.meta.in_front()) else {
            return Ok(None);
        };
        self.in_transit.begin(1);
        let Some((pa, cut)) = owner.cut_pointer_block(which, |pa| self.usable(pa, limit)) else {
            self.in_transit.end(1);
            return Ok(None);
        };
        self.counters.inode_pa_hits.inc();
        self.settle_cut(request, &pa, cut, &[]).map(Some)
    }

    pub(crate) fn keep_in_front(&self, request: &Request<'_>, in_front: LeadingPreallocations) {
        let Some(pointers) = request.pointers else { return };
        for (which, pa) in in_front {
            self.discard_list(pointers.owner.add_pointer_block(which, pa));
        }
    }
}
