//! [`LocalityGroup`]: one processor's preallocations for small files. Linux: `struct ext4_locality_group`.
//!
//! Small files that are written together become adjacent, and their writers share no lock as long as they run on
//! different processors.
//!
//! # Locking
//! [`crate::lock::LOCALITY`] protects the lists.

use std::sync::Arc;

use extant_base::sync::Mutex;

use super::{Cut, Preallocation};
use crate::lock;

/// Lists by log2 of the remaining blocks (Linux: `PREALLOC_TB_SIZE`).
const LISTS: usize = 10;
/// A list longer than this is trimmed.
const LIST_LONG: usize = 8;
/// The length of a list after trimming.
const LIST_TRIMMED: usize = 5;
/// As [`LIST_LONG`], if remnants are not kept: the chunks in a list are then for different homes.
const HOMES_MAX: usize = 64;

#[derive(Debug)]
pub struct LocalityGroup {
    lists: Mutex<[Vec<Arc<Preallocation>>; LISTS]>,
}

/// A preallocation and the part that was cut from it.
type Taken = (Arc<Preallocation>, Cut);

fn list_of(left: u32) -> usize {
    (left.max(1).ilog2() as usize).min(LISTS - 1)
}

impl LocalityGroup {
    pub fn new() -> LocalityGroup {
        LocalityGroup { lists: Mutex::new(&lock::LOCALITY, Default::default()) }
    }

    /// Cuts `len` blocks from the preallocation for which `distance` is least (None: not usable). The second value
    /// lists those to be discarded: because too many are nearly empty, or because they have fewer than `len` blocks and
    /// remnants are not kept.
    pub fn cut(
        &self,
        len: u32,
        keeps_remnants: bool,
        distance: impl Fn(&Preallocation) -> Option<u64>,
    ) -> (Option<Taken>, Vec<Arc<Preallocation>>) {
        let mut lists = self.lists.lock();
        for i in list_of(len)..LISTS {
            loop {
                lists[i].retain(|p| p.left() > 0);
                let nearest = lists[i].iter().enumerate().filter(|(_, p)| p.left() >= len);
                let nearest = nearest.filter_map(|(at, p)| distance(p).map(|d| (d, at))).min();
                let Some((_, at)) = nearest else { break };
                let pa = lists[i].remove(at);
                match pa.cut_first(len) {
                    Some(cut) => {
                        let gone = if cut.last { Vec::new() } else { insert(&mut lists, pa.clone(), keeps_remnants) };
                        return (Some((pa, cut)), gone);
                    }
                    // Another thread has discarded it meanwhile (it cannot be fragmented), so search again.
                    None if pa.left() == 0 => {}
                    None => return (None, vec![pa]),
                }
            }
        }
        if keeps_remnants {
            return (None, Vec::new());
        }
        let too_short = |p: &mut Arc<Preallocation>| p.left() < len && distance(p).is_some();
        let gone =
            lists[..=list_of(len)].iter_mut().flat_map(|list| list.extract_if(.., too_short).collect::<Vec<_>>());
        (None, gone.collect())
    }

    /// Adds a preallocation; returns those to be discarded.
    pub fn add(&self, pa: Arc<Preallocation>, keeps_remnants: bool) -> Vec<Arc<Preallocation>> {
        insert(&mut self.lists.lock(), pa, keeps_remnants)
    }
}

/// Adds it at the end of its list, because the least recently used one is discarded first.
fn insert(
    lists: &mut [Vec<Arc<Preallocation>>; LISTS],
    pa: Arc<Preallocation>,
    keeps_remnants: bool,
) -> Vec<Arc<Preallocation>> {
    let (long, trimmed) = if keeps_remnants { (LIST_LONG, LIST_TRIMMED) } else { (HOMES_MAX, HOMES_MAX) };
    let list = &mut lists[list_of(pa.left())];
    list.retain(|p| p.left() > 0);
    list.push(pa);
    if list.len() > long { list.drain(..list.len() - trimmed).collect() } else { Vec::new() }
}
