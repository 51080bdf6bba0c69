//! Stores nothing that is also in the map. This is the baseline that every cache of clean entries must improve on.
//!
//! If a leaf of the map is in the buffer cache, a lookup in it costs little more than a lookup here, and the buffer
//! cache also uses 12 bytes for an extent.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use super::EsPolicy;
use crate::core::{Core, Node, Shrunk};
use crate::packed::PackedTree;

#[derive(Default)]
pub(crate) struct DelayedOnly;

impl EsPolicy for DelayedOnly {
    type Tree = PackedTree;
    type PerInode = ();
    const KEEPS_CLEAN: bool = false;

    fn touched(_core: &Core<Self>, _node: &Arc<Node<Self>>, _evictable: u64) {}

    fn shrink(_core: &Core<Self>, _nr: u64) -> Shrunk {
        Shrunk::default()
    }
}
