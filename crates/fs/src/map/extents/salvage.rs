//! Lookups in a damaged extent tree, for a rescue. Each node contributes the entries that are valid on their own.
//!
//! Main function: [`salvage`]. An ordinary lookup refuses a node with a damaged entry or a wrong checksum. This one
//! finds the remaining entries, and how far the damage reaches.
//!
//! # Locking
//! The caller's map lock.

use extant_ondisk::damage::Damage as _;
use extant_ondisk::extent::{LOGICAL_END, NodeContext, NodeRef};
use extant_ondisk::map::{self, Child, Form, MapDamage, Run, StepItem};
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::map::{Lost, MapRoot, MapState, MapStore, Mapping};

/// The entries of a node around a logical block.
struct Around {
    /// The node; `None` for the root.
    block: Option<BlockNr>,
    run: Option<Run>,
    child: Option<Child>,
    /// Of the nodes that begin after the block, the one that begins first.
    after: Option<Child>,
    /// The start of the next entry, or the end of the node.
    next: u64,
    /// The first fatal damage of the node. The unusable entry may have covered the block.
    damage: Option<MapDamage>,
}

impl Around {
    fn new(block: Option<BlockNr>, end: u64, after: Option<Child>) -> Around {
        Around { block, run: None, child: None, after, next: end, damage: None }
    }

    fn note(&mut self, lblk: u32, found: StepItem) {
        let (first, end) = match &found {
            StepItem::Run(run) => (run.lblk.0, u64::from(run.lblk.0) + u64::from(run.len)),
            StepItem::Child(child) => (child.first, child.end),
            StepItem::Damage(damage) => {
                self.damage = self.damage.or(Some(*damage).filter(MapDamage::is_fatal));
                return;
            }
        };
        let is_behind = first > lblk;
        self.next = if is_behind { self.next.min(first.into()) } else { self.next };
        match found {
            StepItem::Child(child) if is_behind => {
                self.after = self.after.filter(|after| after.first <= child.first).or(Some(child));
            }
            StepItem::Run(run) if !is_behind && u64::from(lblk) < end => self.run = Some(run),
            StepItem::Child(child) if u64::from(lblk) < end => self.child = Some(child),
            _ => {}
        }
    }
}

/// One lookup.
struct Search<'a, S: MapStore> {
    root: &'a MapRoot,
    store: &'a S,
    lblk: u32,
}

impl<S: MapStore> Search<'_, S> {
    /// Descends from `around` to the leaf for the block.
    fn descend(&self, mut around: Around) -> Result<Around, Lost<S::Error>> {
        let Search { root, store, lblk } = *self;
        let valid = |start: BlockNr, len: u32| store.block_range_valid(start, len);
        // The checksum is compared below, because a wrong checksum does not make the entries unusable.
        let context = NodeContext { seed: None, is_dir: false, cluster_bits: 0, valid };
        if around.block.is_none() && around.child.is_none() {
            map::root(Form::Extents, &root.i_block, store.block_size(), &context, &mut |found| {
                around.note(lblk, found)
            });
        }
        // The loop ends, because each child has a smaller depth than its parent.
        while let Some(child) = around.child {
            let block = Some(child.block);
            around = Around::new(block, child.end, around.after);
            let read = store.read_damaged(child.block, |bytes| {
                map::node(&child, bytes, &context, &mut |found| around.note(lblk, found));
                root.csum_seed.and_then(|seed| {
                    let node = NodeRef::sound(bytes)?;
                    (node.stored_checksum() != node.checksum(seed))
                        .then_some("its checksum is wrong; used nevertheless")
                })
            });
            match read {
                Ok(None) => {}
                Ok(Some(doubt)) => store.doubt(root.corrupt(block, doubt)),
                Err(error) => return Err(Lost { end: child.end, error }),
            }
        }
        Ok(around)
    }

    fn leaf(&self) -> Result<Around, Lost<S::Error>> {
        let found = self.descend(Around::new(None, LOGICAL_END.into(), None))?;
        let Some(after) = found.after.filter(|after| found.run.is_none() && found.next >= u64::from(after.first))
        else {
            return Ok(found);
        };
        // The block lies in a hole that ends where the next node begins. If that node's key is wrong, the hole hides
        // the node's first entries, so look for the block in the node.
        let promise = Child { first: self.lblk, ..after };
        match self.descend(Around { child: Some(promise), ..Around::new(found.block, promise.end, None) }) {
            Ok(second) if second.run.is_some() => {
                let doubt = "an index entry begins behind its first extent; used nevertheless";
                self.store.doubt(self.root.corrupt(found.block, doubt));
                Ok(second)
            }
            Ok(second) => Ok(Around { next: found.next.min(second.next), ..found }),
            // A read past the hole reports the error.
            Err(_) => Ok(found),
        }
    }
}

/// The state of `lblk`, and of at most `max_len` blocks from there, according to the valid entries on the way to it.
pub(crate) fn salvage<S: MapStore>(
    root: &MapRoot,
    store: &S,
    lblk: u32,
    max_len: u32,
) -> Result<Mapping, Lost<S::Error>> {
    let around = Search { root, store, lblk }.leaf()?;
    let limit = u64::from(lblk) + u64::from(max_len.max(1));
    if let Some(Run { lblk: first, len, pblk, unwritten }) = around.run {
        let skip = lblk - first.0;
        let start = BlockNr(pblk.0 + u64::from(skip));
        let state = if unwritten { MapState::Unwritten(start) } else { MapState::Written(start) };
        return Ok(Mapping { lblk: LogicalBlock(lblk), len: (len - skip).min(max_len.max(1)), state });
    }
    match around.damage {
        Some(damage) => Err(Lost { end: around.next, error: root.corrupt(around.block, damage.to_string()) }),
        None => {
            let len = around.next.min(limit).saturating_sub(lblk.into()).max(1) as u32;
            Ok(Mapping { lblk: LogicalBlock(lblk), len, state: MapState::Hole })
        }
    }
}
