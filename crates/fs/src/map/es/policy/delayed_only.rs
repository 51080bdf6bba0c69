//! Nothing is kept that the map says, too: what every cache of clean entries must beat.
//!
//! A lookup in the map with its leaf in the buffer cache costs little more than one here, and the buffer cache keeps 12
//! bytes an extent as well.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use super::EsPolicy;
use crate::map::es::core::{Core, Node, Shrunk};
use crate::map::es::packed::PackedTree;

#[derive(Default)]
pub(in crate::map::es) struct DelayedOnly;

impl EsPolicy for DelayedOnly {
    type Tree = PackedTree;
    type PerInode = ();
    const KEEPS_CLEAN: bool = false;

    fn touched(_core: &Core<Self>, _node: &Arc<Node<Self>>, _evictable: u64) {}

    fn shrink(_core: &Core<Self>, _nr: u64) -> Shrunk {
        Shrunk::default()
    }
}
