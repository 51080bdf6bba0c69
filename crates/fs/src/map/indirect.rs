//! Indirect maps (ext2, ext3) over a store: look up, map, unmap, walk.
//!
//! A path of at most three pointer blocks leads to the pointer of each logical block. A pointer of 0 at any step is a
//! hole as large as the range below it. Linux: fs/ext4/indirect.c.
//!
//! What it does not do: unwritten blocks, which this format cannot express.
//!
//! # Locking
//! The caller's map lock.

use std::ops::{ControlFlow, RangeInclusive};

use extant_ondisk::indirect::{self, Geometry, IndirectPath, LEVELS_MAX, POINTER_END, PointerBlock, SLOTS};
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use super::{MapError, MapRoot, MapState, MapStore, Mapping, NewNode, Progress, Shared};

fn verify<S: MapStore>(store: &S, bytes: &[u8], block: BlockNr) -> Result<(), String> {
    indirect::validate(bytes, block.0, |b| store.gives_up() || store.block_range_valid(b, 1)).map_err(|e| e.to_string())
}

/// Checks a pointer and returns its block. This check is needed at every use: the cache never verifies the root, and it
/// may have verified a block as another kind.
fn follow<S: MapStore>(
    root: &MapRoot,
    store: &S,
    holder: Option<BlockNr>,
    pointer: u32,
) -> Result<Option<BlockNr>, S::Error> {
    let block = BlockNr(u64::from(pointer));
    match pointer {
        0 => Ok(None),
        _ if store.block_range_valid(block, 1) => Ok(Some(block)),
        _ => Err(root.corrupt(holder, format!("a pointer names {block}, which no file can own"))),
    }
}

/// Checks only the pointers to data, as Linux does (`ext4_ind_check_inode`). The others are checked when they are
/// followed.
pub(super) fn check_root<S: MapStore>(root: &MapRoot, store: &S) -> Result<(), S::Error> {
    for slot in 0..indirect::DIRECT as usize {
        follow(root, store, None, indirect::pointer(&root.i_block, slot).unwrap_or(0))?;
    }
    Ok(())
}

fn path_of<S: MapStore>(root: &MapRoot, geometry: &Geometry, lblk: u32) -> Result<IndirectPath, S::Error> {
    geometry.path(LogicalBlock(lblk)).ok_or_else(|| MapError::TooBig { ino: root.ino, lblk: u64::from(lblk) }.into())
}

/// Runs `f` on the pointer array of `holder`: a pointer block, or the slots of `i_block`.
fn with_pointers<S: MapStore, R>(
    root: &MapRoot,
    store: &S,
    holder: Option<BlockNr>,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<R, S::Error> {
    match holder {
        None => Ok(f(&root.i_block)),
        Some(block) => store.read(block, |bytes| verify(store, bytes, block), f),
    }
}

/// As [`with_pointers`], for a lookup: it reads a damaged array as well, and also returns the damage of the array as a
/// whole. The caller checks the pointer that it follows, so a bad pointer hides only the blocks below it. (Linux checks
/// an array when it reads it from the device; later lookups in the same array succeed.)
fn look<S: MapStore, R>(
    root: &MapRoot,
    store: &S,
    holder: Option<BlockNr>,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<(R, Option<S::Error>), S::Error> {
    let Some(block) = holder else { return Ok((f(&root.i_block), None)) };
    let (mut f, mut is_damaged) = (Some(f), false);
    let check = |bytes: &[u8]| verify(store, bytes, block).inspect_err(|_| is_damaged = true);
    match store.read(block, check, |bytes| f.take().map(|f| f(bytes))) {
        Err(e) if is_damaged => {
            let read = store.read_damaged(block, |bytes| f.take().map(|f| f(bytes)))?;
            read.map(|r| (r, Some(e))).ok_or_else(|| root.corrupt(holder, "read twice"))
        }
        read => read?.map(|r| (r, None)).ok_or_else(|| root.corrupt(holder, "read twice")),
    }
}

/// Accepts an empty pointer as a hole, unless its array is damaged. Blocks may then be missing, and a write must not go
/// there. A rescue has to assume a hole nevertheless.
fn hole<S: MapStore>(store: &S, damage: Option<S::Error>) -> Result<(), S::Error> {
    damage.filter(|_| !store.salvages()).map_or(Ok(()), Err)
}

/// All pointer blocks that the array of `holder` refers to; none of them is read.
fn pointer_blocks<S: MapStore>(root: &MapRoot, store: &S, holder: Option<BlockNr>) -> Vec<BlockNr> {
    let first = if holder.is_none() { indirect::DIRECT as usize } else { 0 };
    let pointers = with_pointers(root, store, holder, |bytes| {
        (first..bytes.len() / indirect::POINTER_BYTES)
            .filter_map(|i| indirect::pointer(bytes, i))
            .filter(|pointer| *pointer != 0)
            .map(|pointer| BlockNr(u64::from(pointer)))
            .collect()
    });
    pointers.unwrap_or_default()
}

fn with_pointers_mut<S: MapStore, R>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    holder: Option<BlockNr>,
    f: impl FnOnce(&mut [u8]) -> R,
) -> Result<R, S::Error> {
    match holder {
        None => {
            root.dirty = true;
            Ok(f(&mut root.i_block))
        }
        Some(block) => store.modify(txn, block, |bytes| verify(store, bytes, block), f),
    }
}

/// The purpose of a path. A lookup needs only the pointers that it follows; a change needs whole arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Lookup,
    Insert,
    Remove,
}

/// The blocks on the path to a logical block: `holders[step]` contains the pointer `offsets[step]`. The chain ends
/// early at a hole.
struct Chain {
    path: IndirectPath,
    holders: [Option<BlockNr>; LEVELS_MAX + 1],
    /// The last step whose holder exists.
    reached: usize,
    /// The blocks below the pointer at the last step are unreadable, and the removal drops them.
    lost: bool,
}

impl Chain {
    /// Whether the last level's array of pointers exists.
    fn complete(&self) -> bool {
        self.reached == self.path.levels
    }

    /// The missing pointer blocks on the path to `lblk`, from the top.
    fn missing(&self, lblk: u32, geometry: &Geometry) -> Vec<PointerBlock> {
        let names = |step| self.path.names(step, LogicalBlock(lblk), geometry);
        (self.reached..self.path.levels).filter_map(names).collect()
    }

    /// Follows the path. A removal follows no pointer block that is unallocated or unreadable. If the store tolerates
    /// the damage, the chain of a removal ends at the pointer to the damaged block.
    fn find<S: MapStore>(root: &MapRoot, store: &S, path: IndirectPath, why: Purpose) -> Result<Chain, S::Error> {
        let removes = why == Purpose::Remove;
        let mut chain = Chain { path, holders: [None; LEVELS_MAX + 1], reached: 0, lost: false };
        while chain.reached < path.levels {
            let (holder, offset) = (chain.holders[chain.reached], path.offsets[chain.reached] as usize);
            let pick = |bytes: &[u8]| indirect::pointer(bytes, offset).unwrap_or(0);
            let pointer = match why {
                Purpose::Lookup => match look(root, store, holder, pick)? {
                    (0, damage) => hole(store, damage).map(|()| 0)?,
                    (pointer, _) => pointer,
                },
                Purpose::Insert | Purpose::Remove => with_pointers(root, store, holder, pick)?,
            };
            let next = follow(root, store, holder, pointer).and_then(|next| {
                let Some(block) = next else { return Ok(None) };
                if removes {
                    store.check_in_use(block)?;
                }
                store.read_ahead(block, || pointer_blocks(root, store, holder));
                if removes {
                    with_pointers(root, store, next, |_| ())?;
                }
                Ok(next)
            });
            match next {
                Ok(None) => break,
                Ok(next) => {
                    chain.reached += 1;
                    chain.holders[chain.reached] = next;
                }
                Err(e) if removes && store.passes(&e) => {
                    chain.lost = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(chain)
    }
}

/// The number of pointers from `offset` to the end of the last level's array.
fn array_rest(path: &IndirectPath, geometry: &Geometry) -> u32 {
    let last = path.offsets[path.levels];
    if path.levels == 0 { indirect::DIRECT.saturating_sub(last) } else { geometry.per_block.saturating_sub(last) }
}

/// A run within one pointer array, or a hole below one empty pointer.
fn segment<S: MapStore>(root: &MapRoot, store: &S, lblk: u32, max_len: u32) -> Result<(u32, u32), S::Error> {
    let geometry = Geometry::new(store.block_size());
    let path = path_of::<S>(root, &geometry, lblk)?;
    let chain = Chain::find(root, store, path, Purpose::Lookup)?;
    if !chain.complete() {
        let hole = path.span(chain.reached, &geometry) - path.inside(chain.reached, &geometry);
        return Ok((0, hole.min(u64::from(max_len)) as u32));
    }
    let holder = chain.holders[path.levels];
    let (first, limit) = (path.offsets[path.levels] as usize, array_rest(&path, &geometry).min(max_len).max(1));
    let ((pointer, run), damage) = look(root, store, holder, |bytes| {
        let start = indirect::pointer(bytes, first).unwrap_or(0);
        let continues = |i: u32| {
            let want = if start == 0 { Some(0) } else { start.checked_add(i) };
            indirect::pointer(bytes, first + i as usize) == want
        };
        (start, (1..limit).find(|i| !continues(*i)).unwrap_or(limit))
    })?;
    if pointer == 0 {
        return hole(store, damage).map(|()| (0, run));
    }
    let start = BlockNr(u64::from(pointer));
    if store.block_range_valid(start, run) {
        return Ok((pointer, run));
    }
    // Extend the run over the blocks that a file may own.
    follow(root, store, holder, pointer)?;
    let (mut valid, mut invalid) = (1, run);
    while invalid - valid > 1 {
        let middle = valid + (invalid - valid) / 2;
        *if store.block_range_valid(start, middle) { &mut valid } else { &mut invalid } = middle;
    }
    Ok((pointer, valid))
}

/// One past the last logical block that the damage on the way to `lblk` hides.
pub(super) fn lost_end<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> u64 {
    let geometry = Geometry::new(store.block_size());
    let Some(path) = geometry.path(LogicalBlock(lblk)) else { return u64::from(lblk) + 1 };
    let below = |step| u64::from(lblk) - path.inside(step, &geometry) + path.span(step, &geometry);
    let mut holder = None;
    for step in 0..=path.levels {
        let offset = path.offsets[step] as usize;
        let pointer = look(root, store, holder, |bytes| indirect::pointer(bytes, offset).unwrap_or(0));
        // The array itself is unreadable.
        let Ok((pointer, _)) = pointer else { return below(step.saturating_sub(1)) };
        match follow(root, store, holder, pointer) {
            Ok(next) => holder = next,
            Err(_) => return below(step),
        }
    }
    u64::from(lblk) + 1
}

/// Whether the lookup of `lblk` needs no I/O.
fn at_hand<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<bool, S::Error> {
    let path = path_of::<S>(root, &Geometry::new(store.block_size()), lblk)?;
    let mut holder = None;
    for offset in &path.offsets[..path.levels] {
        let pointer = with_pointers(root, store, holder, |b| indirect::pointer(b, *offset as usize).unwrap_or(0))?;
        holder = follow(root, store, holder, pointer)?;
        match holder {
            None => break,
            Some(block) if !store.in_memory(block) => return Ok(false),
            Some(_) => {}
        }
    }
    Ok(true)
}

/// Finds the run at `lblk`. The lookup reads map blocks only as long as the run is shorter than `wanted`.
pub(super) fn lookup<S: MapStore>(
    root: &MapRoot,
    store: &S,
    lblk: u32,
    wanted: u32,
    max_len: u32,
) -> Result<Mapping, S::Error> {
    let end = Geometry::new(store.block_size()).logical_end();
    let max_len = max_len.min(end - lblk);
    let (first, mut len) = segment(root, store, lblk, max_len)?;
    // A run continues in the next array if the blocks continue, and a hole if that array is empty as well. Damage after
    // the wanted blocks is an error only for a caller that wants more blocks.
    while len < max_len && (len < wanted || at_hand(root, store, lblk + len).unwrap_or(false)) {
        let (next, more) = match segment(root, store, lblk + len, max_len - len) {
            Err(_) if len >= wanted => break,
            segment => segment?,
        };
        let follows = if first == 0 { next == 0 } else { first.checked_add(len) == Some(next) };
        if !follows {
            break;
        }
        len += more;
    }
    let state = if first == 0 { MapState::Hole } else { MapState::Written(BlockNr(u64::from(first))) };
    Ok(Mapping { lblk: LogicalBlock(lblk), len, state })
}

pub(super) fn missing<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<(Vec<PointerBlock>, u64), S::Error> {
    let geometry = Geometry::new(store.block_size());
    let path = path_of::<S>(root, &geometry, lblk)?;
    let chain = Chain::find(root, store, path, Purpose::Insert)?;
    Ok((chain.missing(lblk, &geometry), u64::from(lblk) + u64::from(array_rest(&path, &geometry))))
}

pub(super) fn insert<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    lblk: u32,
    pblk: BlockNr,
    len: u32,
) -> Result<u32, S::Error> {
    if pblk.0 + u64::from(len) > POINTER_END {
        return Err(MapError::Invalid { ino: root.ino, detail: "blocks beyond 32 bits" }.into());
    }
    let mut done = 0;
    while done < len {
        // The caller's credits cover one array of pointers. For each further array the handle must have credits left.
        if done > 0 && !store.has_credits(txn, credits_for_array()) {
            break;
        }
        match insert_in_array(root, store, txn, lblk + done, (pblk.0 as u32) + done, len - done) {
            Ok(more) => done += more,
            Err(e) if done == 0 => return Err(e),
            // Nothing of this array has changed. The next call begins with it and returns the error.
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Maps the part of the range that lies in the first block's pointer array, and allocates the missing pointer blocks
/// first.
fn insert_in_array<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    lblk: u32,
    pblk: u32,
    len: u32,
) -> Result<u32, S::Error> {
    let geometry = Geometry::new(store.block_size());
    let path = path_of::<S>(root, &geometry, lblk)?;
    let chain = Chain::find(root, store, path, Purpose::Insert)?;
    let (first, len) = (path.offsets[path.levels] as usize, array_rest(&path, &geometry).min(len));
    let holder = chain.holders[chain.reached];
    let fill = |bytes: &mut [u8]| (0..len).all(|i| indirect::set_pointer(bytes, first + i as usize, pblk + i));
    let broken = |root: &MapRoot| -> S::Error { root.corrupt(holder, "a pointer array is shorter than its block") };
    if chain.complete() {
        let used = with_pointers(root, store, holder, |bytes| {
            (0..len).find(|i| indirect::pointer(bytes, first + *i as usize).unwrap_or(0) != 0)
        })?;
        if let Some(used) = used {
            return Err(MapError::Mapped { ino: root.ino, lblk: lblk + used }.into());
        }
        let fine = with_pointers_mut(root, store, txn, holder, fill)?;
        root.blocks_delta += i64::from(len);
        return if fine { Ok(len) } else { Err(broken(root)) };
    }
    let new = allocate(root, store, txn, &chain.missing(lblk, &geometry), holder, BlockNr(u64::from(pblk)))?;
    // Fill the blocks bottom-up, so that no pointer leads to a block without content. `new.last()` contains the
    // pointers to the data.
    let mut fine = true;
    for (i, block) in new.iter().enumerate().rev() {
        fine &= match new.get(i + 1) {
            None => store.init(txn, *block, fill)?,
            Some(child) => {
                let offset = path.offsets[chain.reached + 1 + i] as usize;
                store.init(txn, *block, |bytes| indirect::set_pointer(bytes, offset, child.0 as u32))?
            }
        };
    }
    let offset = path.offsets[chain.reached] as usize;
    let top = new.first().map_or(0, |b| b.0 as u32);
    fine &= with_pointers_mut(root, store, txn, holder, |bytes| indirect::set_pointer(bytes, offset, top))?;
    root.blocks_delta += i64::from(len);
    if fine { Ok(len) } else { Err(broken(root)) }
}

/// Allocates all these pointer blocks, or none. Their numbers must fit in 32 bits.
fn allocate<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    missing: &[PointerBlock],
    parent: Option<BlockNr>,
    data: BlockNr,
) -> Result<Vec<BlockNr>, S::Error> {
    let mut new = Vec::with_capacity(missing.len());
    for pointers in missing {
        let node = NewNode { pointers: Some(*pointers), parent, data: Some(data) };
        let result = match store.allocate_meta(txn, node) {
            Ok(block) if block.0 < POINTER_END => Ok(block),
            Ok(block) => {
                store.free_meta(txn, block)?;
                Err(MapError::NoSpace { ino: root.ino }.into())
            }
            Err(e) => Err(e),
        };
        match result {
            Ok(block) => new.push(block),
            Err(e) => {
                for block in new {
                    store.free_meta(txn, block)?;
                }
                return Err(e);
            }
        }
    }
    root.blocks_delta += missing.len() as i64;
    Ok(new)
}

pub(super) fn remove<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    from: u32,
    to: u32,
) -> Result<Progress, S::Error> {
    let geometry = Geometry::new(store.block_size());
    let mut to = to;
    while from <= to {
        let path = path_of::<S>(root, &geometry, to)?;
        let chain = Chain::find(root, store, path, Purpose::Remove)?;
        // The first logical block below the deepest existing pointer, or array of pointers.
        let lowest = if chain.complete() {
            let array = if path.levels == 0 { 0 } else { to - path.offsets[path.levels] };
            match remove_in_array(root, store, txn, &chain, from.max(array), to)? {
                Progress::Done => array,
                Progress::Stopped { at } => {
                    if at.0 == to {
                        return Ok(Progress::Stopped { at });
                    }
                    to = at.0;
                    continue;
                }
            }
        } else {
            if !remove_empty(root, store, txn, &chain)? {
                return Ok(Progress::Stopped { at: LogicalBlock(to) });
            }
            (u64::from(to) - path.inside(chain.reached, &geometry)) as u32
        };
        if lowest <= from {
            break;
        }
        to = lowest - 1;
    }
    Ok(Progress::Done)
}

/// Unmaps `from..=to`, which lies in one array of pointers, as far as the credits allow. Frees the array if it becomes
/// empty, and then the empty pointer blocks above it. With `Stopped { at }`, everything after `at` is unmapped.
fn remove_in_array<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    chain: &Chain,
    from: u32,
    to: u32,
) -> Result<Progress, S::Error> {
    let levels = chain.path.levels;
    let holder = chain.holders[levels];
    let last = chain.path.offsets[levels];
    let first = last - (to - from);
    let pointers: Vec<u32> = with_pointers(root, store, holder, |bytes| {
        (first..=last).map(|i| indirect::pointer(bytes, i as usize).unwrap_or(0)).collect()
    })?;
    let mut groups: Vec<GroupNr> = Vec::new();
    let mut runs: Vec<(BlockNr, u32)> = Vec::new();
    let (mut low, mut lost) = (last + 1, false);
    for (i, pointer) in (first..=last).rev().zip(pointers.into_iter().rev()) {
        let block = match follow(root, store, holder, pointer) {
            Err(e) if store.gives_up() => {
                if runs.is_empty() && !lost && !store.has_credits(txn, array_credits(levels)) {
                    break;
                }
                if !store.passes(&e) {
                    return Err(e);
                }
                lost = true;
                None
            }
            block => block?,
        };
        if let Some(block) = block {
            let group = store.group_of(block);
            let place = groups.binary_search(&group);
            let credits = array_credits(levels) + 2 * (groups.len() + usize::from(place.is_err())) as u32;
            if place.is_err() || runs.is_empty() {
                if !store.has_credits(txn, credits) {
                    break;
                }
                if let Err(place) = place {
                    groups.insert(place, group);
                }
            }
            match runs.last_mut() {
                Some((start, len)) if block.0 + 1 == start.0 => (*start, *len) = (block, *len + 1),
                _ => runs.push((block, 1)),
            }
        }
        low = i;
    }
    if low > last {
        return Ok(Progress::Stopped { at: LogicalBlock(to) });
    }
    let progress =
        if low == first { Progress::Done } else { Progress::Stopped { at: LogicalBlock(to - (last + 1 - low)) } };
    if runs.is_empty() && levels > 0 && !lost {
        // There is nothing to free in this range. The array may have been empty before, so check that and free it here.
        let empty = with_pointers(root, store, holder, indirect::is_empty)?;
        if !empty {
            return Ok(progress);
        }
        if !store.has_credits(txn, array_credits(levels)) {
            return Ok(Progress::Stopped { at: LogicalBlock(to) });
        }
    } else if runs.is_empty() && !lost {
        return Ok(progress);
    }
    clear(root, store, txn, chain, levels, low..=last)?;
    for (start, len) in runs {
        root.blocks_delta -= i64::from(len);
        store.free_data(txn, start, len, Shared::default())?;
    }
    Ok(progress)
}

/// Frees the array at the end of the chain if it is already empty; Linux leaves such arrays when it punches holes. For
/// lost blocks, this clears the pointer to them instead. Returns false if there are too few credits.
fn remove_empty<S: MapStore>(root: &mut MapRoot, store: &S, txn: &mut S::Txn, chain: &Chain) -> Result<bool, S::Error> {
    let step = chain.reached;
    if !chain.lost && (step == 0 || !with_pointers(root, store, chain.holders[step], indirect::is_empty)?) {
        return Ok(true);
    }
    let enough = store.has_credits(txn, array_credits(step));
    if enough {
        clear(root, store, txn, chain, step, chain.path.offsets[step]..=chain.path.offsets[step])?;
    }
    Ok(enough)
}

/// Clears pointers in the chain's array at `step`. Then, from the bottom up, frees each array that becomes empty and
/// clears the pointer to it.
fn clear<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    chain: &Chain,
    mut step: usize,
    mut cleared: RangeInclusive<u32>,
) -> Result<(), S::Error> {
    let mut emptied = Vec::new();
    loop {
        let holder = chain.holders[step];
        let range = cleared.clone();
        let empty = with_pointers_mut(root, store, txn, holder, |bytes| {
            let fine = range.clone().all(|i| indirect::set_pointer(bytes, i as usize, 0));
            fine && indirect::is_empty(bytes)
        })?;
        let Some(block) = holder.filter(|_| empty && step > 0) else { break };
        emptied.push(block);
        step -= 1;
        cleared = chain.path.offsets[step]..=chain.path.offsets[step];
    }
    for block in emptied {
        root.blocks_delta -= 1;
        store.free_meta(txn, block)?;
    }
    Ok(())
}

pub(super) fn walk<S: MapStore>(
    root: &MapRoot,
    store: &S,
    from: u32,
    mut f: impl FnMut(Mapping) -> ControlFlow<()>,
) -> Result<(), S::Error> {
    let end = Geometry::new(store.block_size()).logical_end();
    let mut at = from;
    let mut run: Option<Mapping> = None;
    while at < end {
        let (pointer, len) = segment(root, store, at, end - at)?;
        let piece = Mapping {
            lblk: LogicalBlock(at),
            len,
            state: if pointer == 0 { MapState::Hole } else { MapState::Written(BlockNr(u64::from(pointer))) },
        };
        run = match (run, piece.state) {
            (Some(mut r), MapState::Written(next)) if matches!(r.state, MapState::Written(b) if b.0 + u64::from(r.len) == next.0) =>
            {
                r.len += len;
                Some(r)
            }
            (before, state) => {
                if let Some(before) = before
                    && f(before).is_break()
                {
                    return Ok(());
                }
                (state != MapState::Hole).then_some(piece)
            }
        };
        at += len;
    }
    if let Some(last) = run {
        let _ = f(last);
    }
    Ok(())
}

pub(super) fn walk_meta<S: MapStore>(root: &MapRoot, store: &S, f: &mut impl FnMut(BlockNr)) -> Result<(), S::Error> {
    for slot in indirect::DIRECT as usize..SLOTS {
        let pointer = indirect::pointer(&root.i_block, slot).unwrap_or(0);
        if let Some(block) = follow(root, store, None, pointer)? {
            walk_meta_below(root, store, block, slot - indirect::DIRECT as usize, f)?;
        }
    }
    Ok(())
}

/// Calls `f` with the pointer blocks below this one; `above` is the number of levels of pointer blocks below it.
fn walk_meta_below<S: MapStore>(
    root: &MapRoot,
    store: &S,
    block: BlockNr,
    above: usize,
    f: &mut impl FnMut(BlockNr),
) -> Result<(), S::Error> {
    f(block);
    if above == 0 {
        return Ok(());
    }
    let pointers: Vec<u32> = with_pointers(root, store, Some(block), |bytes| {
        let all = (0..bytes.len() / indirect::POINTER_BYTES).filter_map(|i| indirect::pointer(bytes, i));
        all.filter(|p| *p != 0).collect()
    })?;
    for pointer in pointers {
        if let Some(child) = follow(root, store, Some(block), pointer)? {
            walk_meta_below(root, store, child, above - 1, f)?;
        }
    }
    Ok(())
}

/// The credits for one array of pointers and the blocks above it, each of which is changed or freed (bitmap,
/// descriptor, revoke record).
fn array_credits(levels: usize) -> u32 {
    1 + 4 * levels as u32
}

/// The credits to fill one array of pointers if all blocks above it are new: each needs one for itself, its bitmap and
/// its descriptor.
fn credits_for_array() -> u32 {
    1 + 3 * LEVELS_MAX as u32
}

pub(super) fn credits_for_insert(block_size: u32, len: u32) -> u32 {
    let arrays = len / Geometry::new(block_size).per_block.max(1) + 2;
    // Only the first array can need three new blocks. Each further array needs its own block, and occasionally one
    // above it.
    credits_for_array() + 3 * (arrays + arrays / 128 + 1)
}

pub(super) fn credits_for_remove(groups: u32) -> u32 {
    array_credits(LEVELS_MAX) + 2 * groups.max(1)
}
