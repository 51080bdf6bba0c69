//! One step down a file's map, in either of its two forms. From the bytes of a node it finds the nodes below, the runs
//! of blocks that it maps, and its faults.
//!
//! Main functions: [`root`] (the 60 bytes of `i_block`), [`node`] (a block that a step found). Main types:
//! [`StepItem`], [`Child`], [`Run`], [`MapDamage`].
//!
//! What it does not do: I/O, or keep state. A caller that walks a map reads the children, and must not read a block
//! again for each pointer to it. Every child has fewer levels below it than its parent, so a walk is at most
//! [`crate::extent::DEPTH_MAX`] steps deep.
//!
//! # Locking
//! None.

#[cfg(test)]
mod tests;

use crate::damage::Damage;
use crate::extent::{self, ExtentDamage, NodeContext, NodeEntry, NodeRef, Promise};
use crate::indirect::{self, IndirectDamage};
use crate::{BlockNr, LogicalBlock};

/// The form of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// An extent tree.
    Extents,
    /// Direct and indirect blocks.
    Indirect,
}

/// A node below the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// The block of the node.
    pub block: BlockNr,
    /// The first logical block below it.
    pub first: u32,
    /// One past the last logical block that it may map.
    pub end: u64,
    /// The number of levels of nodes below it.
    pub depth: u16,
    /// The form of the whole map.
    pub form: Form,
}

/// Logical blocks that are adjacent on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block in the file.
    pub lblk: LogicalBlock,
    /// The number of blocks.
    pub len: u32,
    /// The first block on the device.
    pub pblk: BlockNr,
    /// Allocated, but never written.
    pub unwritten: bool,
}

/// One fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapDamage {
    /// A fault of a node of an extent tree.
    #[error(transparent)]
    Extent(ExtentDamage),
    /// A fault of a block of pointers.
    #[error(transparent)]
    Indirect(IndirectDamage),
}

impl Damage for MapDamage {
    fn is_fatal(&self) -> bool {
        match self {
            MapDamage::Extent(damage) => damage.is_fatal(),
            MapDamage::Indirect(damage) => damage.is_fatal(),
        }
    }
}

/// The results of a step, in the order of the node. Damage of a node as a whole comes before its entries, and damage of
/// an entry comes in the entry's place. An entry with fatal damage yields neither a run nor a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepItem {
    /// A node to read next.
    Child(Child),
    /// A run of blocks of the file.
    Run(Run),
    /// A fault.
    Damage(MapDamage),
}

/// The step from an inode: examines `i_block` as a map of this form. Only for inodes that have a map
/// ([`crate::inode::InodeDesc::has_map`]).
pub fn root<F: Fn(BlockNr, u32) -> bool>(
    form: Form,
    i_block: &[u8; extent::ROOT_BYTES],
    block_size: u32,
    context: &NodeContext<F>,
    found: &mut impl FnMut(StepItem),
) {
    match form {
        Form::Extents => extents(i_block, None, context, found),
        Form::Indirect => {
            let geometry = indirect::Geometry::new(block_size);
            let (direct, trees) = i_block.split_at(indirect::DIRECT as usize * indirect::POINTER_BYTES);
            let mut pointers = Pointers { geometry, context, offset: 0 };
            pointers.step(direct, 0, 0, found);
            for (pointer, slot) in trees.chunks_exact(indirect::POINTER_BYTES).zip(indirect::DIRECT..) {
                if let Some((first, depth)) = geometry.slot_start(slot as usize) {
                    pointers.offset = slot;
                    pointers.step(pointer, first, depth as u16, found);
                }
            }
        }
    }
}

/// The step from a node: `bytes` is the block of `child`.
pub fn node<F: Fn(BlockNr, u32) -> bool>(
    child: &Child,
    bytes: &[u8],
    context: &NodeContext<F>,
    found: &mut impl FnMut(StepItem),
) {
    match child.form {
        Form::Extents => {
            let promise = Promise { depth: child.depth, first: child.first, end: child.end };
            extents(bytes, Some(&promise), context, found);
        }
        Form::Indirect => {
            let geometry = indirect::Geometry::new(bytes.len() as u32);
            let below = child.depth;
            Pointers { geometry, context, offset: 0 }.step(bytes, child.first.into(), below, found);
        }
    }
}

fn extents<F: Fn(BlockNr, u32) -> bool>(
    bytes: &[u8],
    promise: Option<&Promise>,
    context: &NodeContext<F>,
    found: &mut impl FnMut(StepItem),
) {
    let Some(node) = NodeRef::sound(bytes) else {
        return extent::header_damage(bytes, &mut |damage| found(StepItem::Damage(MapDamage::Extent(damage))));
    };
    let depth = node.depth();
    node.step(promise, context, &mut |step| {
        found(match step {
            Err(damage) => StepItem::Damage(MapDamage::Extent(damage)),
            Ok(NodeEntry::Extent(extent::Extent { lblk, len, pblk, unwritten })) => {
                StepItem::Run(Run { lblk, len, pblk, unwritten })
            }
            Ok(NodeEntry::Child { index, end }) => StepItem::Child(Child {
                block: index.child,
                first: index.lblk.0,
                end,
                // A child is returned only if the node's depth matches its parent.
                depth: depth.saturating_sub(1),
                form: Form::Extents,
            }),
        });
    });
}

struct Pointers<'a, F> {
    geometry: indirect::Geometry,
    context: &'a NodeContext<F>,
    /// The index of the first pointer, for messages.
    offset: u32,
}

impl<F: Fn(BlockNr, u32) -> bool> Pointers<'_, F> {
    /// Examines the pointers in `bytes`. The first of them is for logical block `first`, and `depth` levels of pointer
    /// blocks lie between them and the data.
    fn step(&self, bytes: &[u8], first: u64, depth: u16, found: &mut impl FnMut(StepItem)) {
        let span = self.geometry.span(depth.into());
        let end = u64::from(self.geometry.logical_end());
        let mut run: Option<Run> = None;
        for (i, block) in indirect::pointers(bytes) {
            let (lblk, index) = (first + u64::from(i) * span, self.offset + i);
            let damage = if !(self.context.valid)(BlockNr(block.into()), 1) {
                Some(IndirectDamage::Pointer { index, block })
            } else if lblk >= end {
                Some(IndirectDamage::BehindEnd { index, block, lblk })
            } else {
                None
            };
            if let Some(damage) = damage {
                run.take().map(StepItem::Run).into_iter().for_each(&mut *found);
                found(StepItem::Damage(MapDamage::Indirect(damage)));
                continue;
            }
            let (lblk, pblk) = (lblk as u32, BlockNr(block.into()));
            if depth > 0 {
                let end = (u64::from(lblk) + span).min(end);
                found(StepItem::Child(Child { block: pblk, first: lblk, end, depth: depth - 1, form: Form::Indirect }));
                continue;
            }
            match &mut run {
                Some(run) if run.lblk.0 + run.len == lblk && run.pblk.0 + u64::from(run.len) == pblk.0 => run.len += 1,
                _ => {
                    let next = Run { lblk: LogicalBlock(lblk), len: 1, pblk, unwritten: false };
                    run.replace(next).map(StepItem::Run).into_iter().for_each(&mut *found);
                }
            }
        }
        run.map(StepItem::Run).into_iter().for_each(found);
    }
}
