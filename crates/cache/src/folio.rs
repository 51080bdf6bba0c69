//! File data in memory: folios, and the address space that contains those of one inode.
//!
//! Main types: [`AddressSpace`] (Linux: `struct address_space`), [`Folio`] (a naturally aligned power-of-two run of
//! pages, 4 to 64 KiB; a page is at least as large as a block), [`DirtyRun`] (consecutive dirty blocks for writeback).
//!
//! The bytes are an `Arc`: writeback takes a reference, and a writer that writes in the meantime gets its own copy
//! (`Arc::make_mut`), so pages under writeback are stable and no writer waits.
//!
//! Each file-system block has a state: uptodate (the bytes are those of the file), dirty (newer than on the device),
//! writeback (being written: until a read of the device would return them, not only until the write has completed).
//! Without `keep_clean`, a folio is removed when its last block is on the device: with FUSE, the kernel's page cache
//! already has the data, and a second copy would only use memory.
//!
//! Each folio is a frame of the budget's [`crate::Reclaim`]. An access counts as a use only if it includes a block that
//! has been used before: sixteen consecutive reads of four KiB each are one use of their folio.
//!
//! What it does not do: I/O, mapping to blocks, reservations. The caller fills in partial blocks before
//! [`AddressSpace::write`].
//!
//! # Locking
//! Each address space has one read-write lock (`folio`, 40), which is never held across I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{LockClass, RwLock};
use extant_block::{AlignedBuf, BioVec};
use extant_ondisk::InodeNr;

use crate::budget::Budget;
use crate::loss_ledger::{LossLedger, Position};
use crate::reclaim::{FrameId, Key, OwnerId, State, Tried};

/// The size of a page in bytes, unless blocks are larger; the size of every folio is a multiple of it.
pub const PAGE_SIZE: usize = 4096;
/// The size of the largest folio and of the largest block, in bytes. With blocks of 1 KiB or more, a mask with a bit
/// per block fits into a u64.
const FOLIO_BYTES_MAX: u64 = 64 << 10;
/// The size of the data structures per folio that the budget counts.
const OVERHEAD_BYTES: u64 = 128;

static FOLIO_CLASS: LockClass = LockClass::new("folio", 40);

/// A run of pages of one file. Masks have one bit per file-system block, counted from the folio's start.
#[derive(Debug)]
pub struct Folio {
    pages: u64,
    bytes: u64,
    data: Arc<AlignedBuf>,
    uptodate: u64,
    dirty: u64,
    writeback: u64,
    frame: FrameId,
    /// The blocks that were used since a use was last counted, and the byte at which the last access ended.
    seen: AtomicU64,
    end: AtomicU32,
    /// A writer has copied the bytes while they were being written, so there are two copies until that ends.
    copied: bool,
}

impl Folio {
    /// The number of bytes charged for the folio.
    fn charge(&self) -> u64 {
        self.bytes + OVERHEAD_BYTES
    }

    fn state(&self) -> State {
        let of = |mask: u64, state| if mask == 0 { State::CLEAN } else { state };
        of(self.dirty, State::DIRTY).or(of(self.writeback, State::WRITEBACK))
    }

    /// Records that the blocks `mask` were used, from byte `from` to byte `to`. Returns whether some of them had been
    /// used before.
    fn used(&self, mut mask: u64, from: usize, to: usize, block_bits: u32) -> bool {
        // An access that continues in the middle of a block belongs to the same use of it.
        if from & ((1 << block_bits) - 1) != 0 && self.end.load(Ordering::Relaxed) == from as u32 {
            mask &= !(1 << (from >> block_bits));
        }
        if self.end.load(Ordering::Relaxed) != to as u32 {
            self.end.store(to as u32, Ordering::Relaxed);
        }
        let seen = self.seen.load(Ordering::Relaxed);
        let again = seen & mask != 0;
        let now = if again { mask } else { seen | mask };
        if now != seen {
            self.seen.store(now, Ordering::Relaxed);
        }
        again
    }
}

/// The owner and object of an address space's frames, by which reclaim identifies them.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    pub owner: OwnerId,
    /// The inode's number.
    pub object: u64,
}

/// The blocks that [`AddressSpace::take_dirty`] took.
#[derive(Debug, Default)]
pub struct Taken {
    pub runs: Vec<DirtyRun>,
    /// The size of the file when they were taken: bytes of the last block after it do not belong to the file.
    pub size: u64,
    /// The next dirty block is under writeback, so it can be taken only when that has ended.
    pub blocked: bool,
}

/// The reason why [`AddressSpace::write`] has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRefused {
    /// The write covers this block in part, and the rest of the block is not in memory.
    NeedsFill { block: u64 },
    /// Data was lost since the caller read the map, so the reservations of its blocks may have been cancelled.
    Lost,
}

/// Consecutive dirty blocks, in file order.
#[derive(Debug)]
pub struct DirtyRun {
    /// The first block, in file-system blocks from the start of the file.
    pub start: u64,
    pub blocks: u32,
    /// The bytes, one piece per folio.
    pub vecs: Vec<BioVec>,
}

/// The next state of blocks whose write has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCompletion {
    /// The blocks are on the device. Without `keep_clean`, they are removed from memory.
    Written,
    /// The write was not possible (no credits, no memory), so the blocks are dirty again.
    Redirty,
}

#[derive(Default)]
struct Inner {
    /// The folios by first page.
    folios: BTreeMap<u64, Folio>,
    dirty_blocks: u64,
}

/// The cached data of one inode.
pub struct AddressSpace {
    block_bits: u32,
    /// log2 of the page size in bytes.
    page_bits: u32,
    keep_clean: bool,
    budget: Arc<Budget>,
    home: Home,
    inner: RwLock<Inner>,
    /// The charge of the folios in the map, readable without the lock, because most inodes of a FUSE mount have none.
    bytes: AtomicU64,
    /// `dirty_blocks`, readable without the lock.
    dirty: AtomicU64,
}

impl AddressSpace {
    /// Creates an address space. `block_bits` is log2 of the block size (10..=16); `keep_clean` decides whether written
    /// data stays cached.
    pub fn new(block_bits: u32, keep_clean: bool, budget: Arc<Budget>, home: Home) -> AddressSpace {
        AddressSpace {
            block_bits,
            page_bits: block_bits.max(PAGE_SIZE.trailing_zeros()),
            keep_clean,
            budget,
            home,
            inner: RwLock::new(&FOLIO_CLASS, Inner::default()),
            bytes: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
        }
    }

    /// The budget to which the data is charged.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub fn keeps_clean(&self) -> bool {
        self.keep_clean
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// The charge of all cached folios, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire) << self.block_bits
    }

    /// Updates the count that is readable without the lock, after a change under the lock.
    fn publish(&self, inner: &Inner) {
        self.dirty.store(inner.dirty_blocks, Ordering::Release);
    }

    fn page_size(&self) -> u64 {
        1 << self.page_bits
    }

    fn block_size(&self) -> u64 {
        1 << self.block_bits
    }

    fn blocks_per_page(&self) -> u64 {
        1 << (self.page_bits - self.block_bits)
    }

    /// The mask of `blocks` blocks from `first`, both relative to a folio.
    fn mask(first: u64, blocks: u64) -> u64 {
        if blocks >= 64 { u64::MAX << first } else { ((1u64 << blocks) - 1) << first }
    }

    /// Copies the cached bytes of `[pos, pos + buf.len())` into `buf`. Returns the byte ranges (relative to `buf`) that
    /// are not cached, in order.
    pub fn read_cached(&self, pos: u64, buf: &mut [u8]) -> Vec<(usize, usize)> {
        let len = buf.len();
        if self.is_empty() {
            return if len == 0 { Vec::new() } else { vec![(0, len)] };
        }
        let mut missing: Vec<(usize, usize)> = Vec::new();
        let mut miss = |from: usize, to: usize| match missing.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => missing.push((from, to)),
        };
        let inner = self.inner.read();
        let mut at = 0usize;
        // The current folio, the mask of its blocks so far, and the byte in it where this read began.
        let mut of: Option<(&Folio, u64, usize)> = None;
        while at < len {
            let abs = pos + at as u64;
            let block_end = ((abs >> self.block_bits) + 1) << self.block_bits;
            let Some((start, folio)) = self.covering(&inner, abs / self.page_size()) else {
                // Skip to the next folio in one step.
                let next =
                    inner.folios.range(abs / self.page_size()..).next().map_or(u64::MAX, |(p, _)| *p << self.page_bits);
                let to = (at as u64).saturating_add(next.saturating_sub(abs)).min(len as u64) as usize;
                miss(at, to);
                at = to;
                continue;
            };
            let to = len.min(at + (block_end - abs) as usize);
            let within = (abs - (start << self.page_bits)) as usize;
            let bit = 1 << (within >> self.block_bits);
            if folio.uptodate & bit != 0 {
                buf[at..to].copy_from_slice(&folio.data[within..within + (to - at)]);
                of = match of {
                    Some((last, mask, from)) if std::ptr::eq(last, folio) => Some((folio, mask | bit, from)),
                    _ => {
                        self.count_use(of, 0);
                        Some((folio, bit, within))
                    }
                };
            } else {
                miss(at, to);
            }
            at = to;
        }
        self.count_use(of, pos + len as u64);
        missing
    }

    /// Counts a use that ends at byte `end` of the file, or at the folio's end if that comes first.
    fn count_use(&self, of: Option<(&Folio, u64, usize)>, end: u64) {
        let Some((folio, mask, from)) = of else { return };
        let to = (end % (folio.bytes)) as usize;
        if folio.used(mask, from, to, self.block_bits) {
            self.budget.reclaim().touches().touch(folio.frame);
        }
    }

    /// Passes the folio's new state (dirty, writeback, clean) on to reclaim.
    fn note_state(&self, folio: &Folio) {
        let reclaim = self.budget.reclaim();
        reclaim.with(|core| core.set_state(folio.frame, folio.state()));
    }

    /// The bytes of a folio for a change. If they are under writeback, they are copied, and the copy is charged.
    fn bytes_mut<'a>(budget: &Budget, folio: &'a mut Folio) -> &'a mut AlignedBuf {
        if !folio.copied && folio.writeback != 0 && Arc::strong_count(&folio.data) > 1 {
            folio.copied = true;
            budget.charge(folio.bytes);
        }
        Arc::make_mut(&mut folio.data)
    }

    /// Whether any block of the byte range is cached.
    pub fn overlaps(&self, pos: u64, len: u64) -> bool {
        if self.is_empty() || len == 0 {
            return false;
        }
        let (first, last) = (pos / self.page_size(), (pos + len - 1) / self.page_size());
        let inner = self.inner.read();
        self.covering(&inner, first).is_some() || inner.folios.range(first..=last).next().is_some()
    }

    /// Whether the bytes of block `block` are cached.
    pub fn block_uptodate(&self, block: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let page = block / self.blocks_per_page();
        let inner = self.inner.read();
        self.covering(&inner, page)
            .is_some_and(|(start, f)| f.uptodate & (1 << (block - start * self.blocks_per_page())) != 0)
    }

    /// The first block of `from..to` whose bytes are cached; `to` if there is none.
    pub fn next_uptodate(&self, from: u64, to: u64) -> u64 {
        if self.is_empty() || from >= to {
            return to;
        }
        let bpp = self.blocks_per_page();
        let inner = self.inner.read();
        let begin = self.covering(&inner, from / bpp).map_or(from / bpp, |(start, _)| start);
        for (start, folio) in inner.folios.range(begin..to.div_ceil(bpp)) {
            let base = start * bpp;
            let skip = from.saturating_sub(base);
            let rest = folio.uptodate >> skip;
            if rest != 0 {
                return (base + skip + u64::from(rest.trailing_zeros())).min(to);
            }
        }
        to
    }

    fn covering<'a>(&self, inner: &'a Inner, page: u64) -> Option<(u64, &'a Folio)> {
        let (start, folio) = inner.folios.range(..=page).next_back()?;
        (page < start + folio.pages).then_some((*start, folio))
    }

    /// The folio that covers `page`. If there is none, creates one that is as large as `want_pages` and its neighbours
    /// allow, and fills it with `content`, which is the data that the caller will write from the page's start on.
    /// `dirty` means that the caller makes it dirty.
    fn covering_mut<'a>(
        &self,
        inner: &'a mut Inner,
        page: u64,
        want_pages: u64,
        content: &[u8],
        dirty: bool,
    ) -> (u64, &'a mut Folio, bool) {
        let found = inner.folios.range(..=page).next_back().filter(|(s, f)| page < **s + f.pages).map(|(s, _)| *s);
        let start = match found {
            Some(start) => start,
            None => {
                let room = inner.folios.range(page..).next().map_or(u64::MAX, |(next, _)| next - page);
                let most = want_pages.min(FOLIO_BYTES_MAX >> self.page_bits).min(room);
                let mut pages = 1;
                while pages * 2 <= most && page.is_multiple_of(pages * 2) {
                    pages *= 2;
                }
                let bytes = (pages << self.page_bits) as usize;
                let charge = bytes as u64 + OVERHEAD_BYTES;
                let key = Key { object: self.home.object, page };
                let state = if dirty { State::DIRTY } else { State::CLEAN };
                let frame = self.budget.reclaim().with(|core| core.insert(self.home.owner, key, charge as u32, state));
                let folio = Folio {
                    pages,
                    bytes: bytes as u64,
                    data: Arc::new(AlignedBuf::from_slice_padded(&content[..content.len().min(bytes)], bytes)),
                    uptodate: 0,
                    dirty: 0,
                    writeback: 0,
                    frame,
                    seen: AtomicU64::new(0),
                    end: AtomicU32::new(0),
                    copied: false,
                };
                inner.folios.insert(page, folio);
                self.bytes.fetch_add(charge, Ordering::Release);
                self.budget.charge(charge);
                page
            }
        };
        (start, inner.folios.get_mut(&start).expect("found or inserted above"), found.is_none())
    }

    /// Stores `data` at byte `pos` and marks its blocks dirty. `fills` contains the current content of blocks that
    /// `data` covers only in part and that were not uptodate (see [`AddressSpace::block_uptodate`]). From then on, the
    /// file is at least `pos + data.len()` long, both for `size` and for writeback. `before` is the end of the file's
    /// ledger before the caller read these blocks of the map. Returns how many bytes became dirty that were not dirty
    /// before.
    ///
    /// # Errors
    /// [`WriteRefused`]; nothing has changed. A block that needs a fill may have been uptodate just before.
    pub fn write(
        &self,
        pos: u64,
        data: &[u8],
        fills: &[(u64, AlignedBuf)],
        size: &AtomicU64,
        before: Position<'_>,
    ) -> Result<u64, WriteRefused> {
        let mut inner = self.inner.write();
        if !before.is_end() {
            return Err(WriteRefused::Lost);
        }
        let bs = self.block_size();
        let end = pos + data.len() as u64;
        for block in [pos >> self.block_bits, end.saturating_sub(1) >> self.block_bits] {
            let whole = pos <= block * bs && end >= (block + 1) * bs;
            let page = block / self.blocks_per_page();
            let uptodate = self
                .covering(&inner, page)
                .is_some_and(|(start, f)| f.uptodate & (1 << (block - start * self.blocks_per_page())) != 0);
            if !whole && !uptodate && !fills.iter().any(|(b, _)| *b == block) {
                return Err(WriteRefused::NeedsFill { block });
            }
        }
        let mut newly = 0u64;
        let mut at = 0usize;
        while at < data.len() {
            let abs = pos + at as u64;
            let page = abs / self.page_size();
            let want = (data.len() - at + (abs % self.page_size()) as usize).div_ceil(self.page_size() as usize) as u64;
            let bpp = self.blocks_per_page();
            let from_start = abs.is_multiple_of(self.page_size());
            let content = if from_start { &data[at..] } else { &[] };
            let (start, folio, fresh) = self.covering_mut(&mut inner, page, want, content, true);
            let within = (abs - (start << self.page_bits)) as usize;
            let n = (data.len() - at).min(folio.bytes as usize - within);
            let uptodate = folio.uptodate;
            let bytes = Self::bytes_mut(&self.budget, folio);
            let first = (within as u64) >> self.block_bits;
            let last = (within + n - 1) as u64 >> self.block_bits;
            for (block, fill) in fills {
                let Some(rel) = block.checked_sub(start * bpp) else { continue };
                if (first..=last).contains(&rel) && uptodate & (1 << rel) == 0 {
                    let off = (rel * bs) as usize;
                    bytes[off..off + fill.len()].copy_from_slice(fill);
                }
            }
            // A new folio already has the data, except for a last block that was just filled in.
            if !(fresh && from_start && fills.is_empty()) {
                bytes[within..within + n].copy_from_slice(&data[at..at + n]);
            }
            let mask = Self::mask(first, last - first + 1);
            newly += u64::from((mask & !folio.dirty).count_ones());
            folio.uptodate |= mask;
            let was_clean = folio.dirty == 0;
            folio.dirty |= mask;
            if was_clean && !fresh {
                self.note_state(folio);
            }
            if folio.used(mask, within, within + n, self.block_bits) {
                self.budget.reclaim().touches().touch(folio.frame);
            }
            at += n;
        }
        inner.dirty_blocks += newly;
        self.publish(&inner);
        // This is done under the lock, because writeback takes the blocks together with the size that covers them.
        size.fetch_max(end, Ordering::AcqRel);
        Ok(newly << self.block_bits)
    }

    /// Caches bytes that were read from the device (whole blocks from `pos` on). None of the blocks may have been
    /// uptodate when the read began: such a block may have been written and removed since, and the read has its old
    /// bytes. Blocks that are uptodate now keep their bytes. The first `wanted` bytes are used now; the others were
    /// read ahead, and have not been used yet.
    pub fn insert_clean(&self, pos: u64, data: &[u8], wanted: usize) {
        debug_assert_eq!(pos % self.block_size(), 0);
        let mut inner = self.inner.write();
        let mut at = 0usize;
        while at < data.len() {
            let abs = pos + at as u64;
            let page = abs / self.page_size();
            let want = (data.len() - at).div_ceil(self.page_size() as usize) as u64;
            let (start, folio, _) = self.covering_mut(&mut inner, page, want, &[], false);
            let within = (abs - (start << self.page_bits)) as usize;
            let n = (data.len() - at).min(folio.bytes as usize - within);
            let (first, last) = (within >> self.block_bits, (within + n - 1) >> self.block_bits);
            for rel in first..=last {
                if folio.uptodate & (1 << rel) != 0 {
                    continue;
                }
                let off = rel << self.block_bits;
                let from = at + (off - within);
                let to = data.len().min(from + (1 << self.block_bits));
                Self::bytes_mut(&self.budget, folio)[off..off + (to - from)].copy_from_slice(&data[from..to]);
                folio.uptodate |= 1 << rel;
            }
            let used = n.min(wanted.saturating_sub(at));
            if used > 0 {
                let blocks = ((within + used - 1) >> self.block_bits) - first + 1;
                folio.used(Self::mask(first as u64, blocks as u64), within, within + used, self.block_bits);
            }
            at += n;
        }
    }

    /// Takes up to `max_blocks` dirty blocks from block `from` on, as runs in file order, and marks them as under
    /// writeback. The caller passes each run to [`AddressSpace::finish`] or [`AddressSpace::lose`]. Stops before a
    /// block that is already under writeback, because of two writes in flight the older might win (Linux waits there,
    /// too: `mpage_prepare_extent_to_map`).
    pub fn take_dirty(&self, from: u64, to: u64, max_blocks: u64, size: &AtomicU64) -> Taken {
        if self.is_empty() {
            return Taken::default();
        }
        let bpp = self.blocks_per_page();
        let mut inner = self.inner.write();
        let mut runs: Vec<DirtyRun> = Vec::new();
        let mut taken = 0u64;
        let mut blocked = false;
        let first_page = from / bpp;
        let begin = inner.folios.range(..=first_page).next_back().map_or(first_page, |(s, _)| *s);
        'folios: for (start, folio) in inner.folios.range_mut(begin..) {
            let base = start * bpp;
            if base >= to {
                break;
            }
            let mut rel = from.saturating_sub(base);
            let blocks = folio.pages * bpp;
            let before = taken;
            while rel < blocks && base + rel < to {
                if folio.dirty & (1 << rel) == 0 {
                    let rest = folio.dirty >> rel;
                    if rest == 0 {
                        break;
                    }
                    rel += u64::from(rest.trailing_zeros());
                    continue;
                }
                let free = folio.dirty & !folio.writeback;
                blocked = taken < max_blocks && free & (1 << rel) == 0;
                if taken == max_blocks || blocked {
                    if taken > before {
                        self.note_state(folio);
                    }
                    break 'folios;
                }
                let mut n = u64::from((!(free >> rel)).trailing_zeros());
                n = n.min(blocks - rel).min(to - (base + rel)).min(max_blocks - taken);
                let mask = Self::mask(rel, n);
                folio.dirty &= !mask;
                folio.writeback |= mask;
                taken += n;
                let vec = BioVec {
                    buf: folio.data.clone(),
                    offset: (rel << self.block_bits) as usize,
                    len: (n << self.block_bits) as usize,
                };
                match runs.last_mut() {
                    Some(r) if r.start + u64::from(r.blocks) == base + rel => {
                        r.blocks += n as u32;
                        r.vecs.push(vec);
                    }
                    _ => runs.push(DirtyRun { start: base + rel, blocks: n as u32, vecs: vec![vec] }),
                }
                rel += n;
            }
            if taken > before {
                self.note_state(folio);
            }
        }
        inner.dirty_blocks -= taken;
        self.publish(&inner);
        Taken { runs, size: size.load(Ordering::Acquire), blocked }
    }

    /// Ends the writeback of blocks that [`AddressSpace::take_dirty`] took. Returns how many bytes are dirty again.
    pub fn finish(&self, start: u64, blocks: u32, how: RunCompletion) -> u64 {
        let mut inner = self.inner.write();
        self.end_writeback(&mut inner, start, blocks, |folio, mask| match how {
            RunCompletion::Redirty => {
                let again = (mask & !folio.dirty).count_ones();
                folio.dirty |= mask;
                again
            }
            RunCompletion::Written => 0,
        })
    }

    /// Gives up blocks that [`AddressSpace::take_dirty`] took and that could not be written because of `cause`, which
    /// is recorded in the file's ledger. Blocks that were written to again in the meantime are kept. The others are
    /// dropped, and passed to `gone` as runs of a first block and a length. `gone` runs under the lock, so that the
    /// next writer of these blocks finds its effects.
    pub fn lose<E: Clone>(
        &self,
        start: u64,
        blocks: u32,
        losses: &LossLedger<E>,
        cause: E,
        mut gone: impl FnMut(u64, u32),
    ) {
        let bpp = self.blocks_per_page();
        let mut inner = self.inner.write();
        let (mut from, end) = (start, start + u64::from(blocks));
        for block in start..end {
            let dirty = self
                .covering(&inner, block / bpp)
                .is_some_and(|(first, f)| f.dirty & (1 << (block - first * bpp)) != 0);
            if dirty {
                if from < block {
                    gone(from, (block - from) as u32);
                }
                from = block + 1;
            }
        }
        if from < end {
            gone(from, (end - from) as u32);
        }
        // This is done after `gone`: a writer that reads the map after the ledger has changed does not find the old
        // reservation there.
        losses.record(InodeNr(self.home.object as u32), Some(start..end), cause);
        self.end_writeback(&mut inner, start, blocks, |folio, mask| {
            folio.uptodate &= !(mask & !folio.dirty);
            0
        });
    }

    /// Ends the writeback of blocks. Calls `settle` with the mask of each folio's blocks, which returns how many of
    /// them became dirty. Returns how many bytes became dirty.
    fn end_writeback(
        &self,
        inner: &mut Inner,
        start: u64,
        blocks: u32,
        mut settle: impl FnMut(&mut Folio, u64) -> u32,
    ) -> u64 {
        let bpp = self.blocks_per_page();
        let end = start + u64::from(blocks);
        let first_page = start / bpp;
        let begin = inner.folios.range(..=first_page).next_back().map_or(first_page, |(s, _)| *s);
        let mut again = 0u64;
        let mut drop_list = Vec::new();
        let mut cleaned = false;
        for (s, folio) in inner.folios.range_mut(begin..) {
            let base = s * bpp;
            if base >= end {
                break;
            }
            let rel = start.saturating_sub(base);
            let rel_end = (end - base).min(folio.pages * bpp);
            if rel >= rel_end {
                continue;
            }
            let mask = Self::mask(rel, rel_end - rel) & folio.writeback;
            folio.writeback &= !mask;
            again += u64::from(settle(folio, mask));
            if folio.writeback == 0 && std::mem::take(&mut folio.copied) {
                self.budget.uncharge(folio.bytes);
            }
            let clean = folio.dirty == 0 && folio.writeback == 0;
            cleaned |= clean;
            if clean && (!self.keep_clean || folio.uptodate == 0) {
                drop_list.push(*s);
            } else {
                self.note_state(folio);
            }
        }
        for s in drop_list {
            self.remove_folio(inner, s);
        }
        inner.dirty_blocks += again;
        self.publish(inner);
        if cleaned {
            self.budget.reclaim().written();
        }
        again << self.block_bits
    }

    fn remove_folio(&self, inner: &mut Inner, start: u64) {
        if let Some(f) = inner.folios.remove(&start) {
            inner.dirty_blocks -= u64::from(f.dirty.count_ones());
            self.bytes.fetch_sub(f.charge(), Ordering::Release);
            self.budget.reclaim().with(|core| core.remove(f.frame));
            self.budget.uncharge(f.charge() + if f.copied { f.bytes } else { 0 });
        }
    }

    /// Removes all blocks in `[from, to)` (whole blocks), which were truncated or punched. Returns how many dirty bytes
    /// were dropped. Blocks under writeback are removed, too; the caller has excluded writeback.
    pub fn discard(&self, from: u64, to: u64) -> u64 {
        if self.is_empty() || from >= to {
            return 0;
        }
        let bpp = self.blocks_per_page();
        let mut inner = self.inner.write();
        let before = inner.dirty_blocks;
        let begin = inner.folios.range(..=from / bpp).next_back().map_or(from / bpp, |(s, _)| *s);
        let keys: Vec<u64> = inner.folios.range(begin..).map(|(s, _)| *s).take_while(|s| s * bpp < to).collect();
        for s in keys {
            let folio = inner.folios.get_mut(&s).expect("key just listed");
            let base = s * bpp;
            let blocks = folio.pages * bpp;
            let (rel, rel_end) = (from.saturating_sub(base).min(blocks), (to - base).min(blocks));
            if rel >= rel_end {
                continue;
            }
            let mask = Self::mask(rel, rel_end - rel);
            let dirty = (folio.dirty & mask).count_ones();
            folio.dirty &= !mask;
            folio.uptodate &= !mask;
            folio.writeback &= !mask;
            let gone = folio.uptodate == 0 && folio.dirty == 0;
            if !gone {
                self.note_state(folio);
            }
            inner.dirty_blocks -= u64::from(dirty);
            if gone {
                self.remove_folio(&mut inner, s);
            }
        }
        self.publish(&inner);
        (before - inner.dirty_blocks) << self.block_bits
    }

    /// Zeroes the cached bytes from `pos` to the end of its block without marking them dirty (the rest of the block
    /// after a new end of file, which is written only if its block is).
    pub fn zero_tail(&self, pos: u64) {
        let within_block = pos % self.block_size();
        if within_block == 0 || self.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        let page = pos / self.page_size();
        let Some(start) = self.covering(&inner, page).map(|(s, _)| s) else { return };
        let folio = inner.folios.get_mut(&start).expect("covering");
        let off = (pos - (start << self.page_bits)) as usize;
        if folio.uptodate & (1 << (off >> self.block_bits)) != 0 {
            let end = off + (self.block_size() - within_block) as usize;
            Self::bytes_mut(&self.budget, folio)[off..end].fill(0);
        }
    }

    /// Whether block `block` is newer in memory than on the device, or is being written.
    pub fn block_dirty(&self, block: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let inner = self.inner.read();
        self.covering(&inner, block / self.blocks_per_page())
            .is_some_and(|(start, f)| (f.dirty | f.writeback) & (1 << (block - start * self.blocks_per_page())) != 0)
    }

    /// Frees the folio at `page` if it is clean and its frame is `id`. Returns the result. Never waits.
    pub fn try_free(&self, page: u64, id: FrameId) -> Tried {
        let Some(mut inner) = self.inner.try_write() else { return Tried::Busy };
        let free = inner.folios.get(&page).is_some_and(|f| f.frame == id && f.state() == State::CLEAN);
        if free {
            self.remove_folio(&mut inner, page);
            return Tried::Freed;
        }
        Tried::Changed
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let mut inner = self.inner.write();
        let keys: Vec<u64> = inner.folios.keys().copied().collect();
        for s in keys {
            self.remove_folio(&mut inner, s);
        }
    }
}

#[cfg(test)]
#[path = "folio_tests.rs"]
mod tests;
