//! [`CowDevice`]: a device whose changes are stored separately. The device itself is not written.
//!
//! Changes are stored in pieces of [`CowDevice::PIECE_BYTES`], in memory up to a limit and then on another device,
//! which is created when it is needed ([`Spill`]). [`CowDevice::pieces`] lists them, so that no caller needs to compare
//! whole devices. One such device may be the base of another, and [`CowDevice::absorb`] takes over its changes.
//!
//! If the device below cannot read a part of a piece, the rest of the piece may still be changed, and reading that part
//! still fails.
//!
//! What it does not do: make anything durable.
//!
//! # Locking
//! `block cow` protects the pieces. A write calls the device of the spilled pieces under it, because two writes may
//! change parts of one piece.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::sync::RwLock;

use super::{BlockDevice, Limits, check_range, submit_inline};
use crate::bio::{Bio, BioData, BioFlags, BioOp};
use crate::error::Result;
use crate::ranks::COW;

/// Creates the device for the pieces that are not kept in memory, with the size in bytes that it needs. It is called at
/// most once.
pub type Spill = Box<dyn Fn(u64) -> Result<Arc<dyn BlockDevice>> + Send + Sync>;

/// The bytes of a piece in memory.
type Piece = Arc<[u8]>;

#[derive(Default)]
struct State {
    memory: BTreeMap<u64, Piece>,
    /// The pieces on `side`.
    spilled: BTreeSet<u64>,
    side: Option<Arc<dyn BlockDevice>>,
    /// The sectors of changed pieces that the device below could not read, and that have not been written since.
    unread: BTreeMap<u64, Sectors>,
}

/// Sectors of a piece: one bit each.
type Sectors = u8;

/// A device whose changes are stored separately.
pub struct CowDevice {
    base: Arc<dyn BlockDevice>,
    limits: Limits,
    memory_max: u64,
    spill: Option<Spill>,
    state: RwLock<State>,
}

/// The bytes of the base in a piece.
struct OldBytes {
    bytes: Vec<u8>,
    unread: Sectors,
}

/// The size of a sector in bytes.
const SECTOR: usize = 512;

/// The location of the bytes of a piece.
enum PieceSource {
    Base,
    Memory(Piece),
    Side(Arc<dyn BlockDevice>),
}

impl State {
    fn find(&self, piece: u64) -> PieceSource {
        match (self.memory.get(&piece), &self.side) {
            (Some(bytes), _) => PieceSource::Memory(bytes.clone()),
            (None, Some(side)) if self.spilled.contains(&piece) => PieceSource::Side(side.clone()),
            _ => PieceSource::Base,
        }
    }

    /// Whether a part of a piece was not read and not written.
    fn is_unread(&self, at: u64, len: usize) -> bool {
        let unread = self.unread.get(&(at / CowDevice::PIECE_BYTES));
        unread.is_some_and(|unread| unread & CowDevice::sectors(at, len, true) != 0)
    }

    /// The first changed piece from `from` on.
    fn next(&self, from: u64) -> Option<u64> {
        let memory = self.memory.range(from..).next().map(|(piece, _)| *piece);
        memory.into_iter().chain(self.spilled.range(from..).next().copied()).min()
    }
}

impl CowDevice {
    /// The unit of changes: a multiple of every block size up to it and of every sector size.
    pub const PIECE_BYTES: u64 = 4096;

    /// A device with the contents of `base`, which nothing else may change. Changes are kept in memory.
    pub fn new(base: Arc<dyn BlockDevice>) -> CowDevice {
        CowDevice::build(base, u64::MAX, None)
    }

    /// The same, but changes of more than `memory_max` bytes are stored on the device that `spill` creates.
    pub fn spilling(base: Arc<dyn BlockDevice>, memory_max: u64, spill: Spill) -> CowDevice {
        CowDevice::build(base, memory_max, Some(spill))
    }

    fn build(base: Arc<dyn BlockDevice>, memory_max: u64, spill: Option<Spill>) -> CowDevice {
        let limits = Limits { discard: false, volatile_cache: false, ..*base.limits() };
        CowDevice { base, limits, memory_max, spill, state: RwLock::new(&COW, State::default()) }
    }

    /// The base device, which is not written.
    pub fn base(&self) -> &Arc<dyn BlockDevice> {
        &self.base
    }

    /// The changed pieces, ascending.
    pub fn pieces(&self) -> Vec<u64> {
        let state = self.state.read();
        let mut all: Vec<u64> = state.memory.keys().chain(&state.spilled).copied().collect();
        all.sort_unstable();
        all
    }

    /// Whether nothing was written.
    pub fn is_unchanged(&self) -> bool {
        self.state.read().next(0).is_none()
    }

    /// Takes over the changes of a device whose base is this one.
    ///
    /// # Errors
    /// Those of the devices that store the pieces.
    pub fn absorb(&self, over: &CowDevice) -> Result<()> {
        let mut bytes = vec![0; Self::PIECE_BYTES as usize];
        for piece in over.pieces() {
            let at = piece * Self::PIECE_BYTES;
            let len = Self::PIECE_BYTES.min(self.base.size_bytes() - at) as usize;
            let unread = over.state.read().unread.get(&piece).copied().unwrap_or(0);
            if unread == 0 {
                BlockDevice::read_at(over, at, &mut bytes[..len], BioFlags::META)?;
                BlockDevice::write_at(self, at, &[&bytes[..len]], BioFlags::META)?;
                continue;
            }
            for sector in (0..len).step_by(SECTOR).filter(|sector| unread & 1 << (sector / SECTOR) == 0) {
                let (at, part) = (at + sector as u64, &mut bytes[..SECTOR.min(len - sector)]);
                BlockDevice::read_at(over, at, part, BioFlags::META)?;
                BlockDevice::write_at(self, at, &[part], BioFlags::META)?;
            }
        }
        Ok(())
    }

    /// The sectors in a part of a piece: those that it touches, or only those that it covers completely.
    fn sectors(at: u64, len: usize, touched: bool) -> Sectors {
        let from = (at % Self::PIECE_BYTES) as usize;
        let end = from + len;
        let covered = if touched { from / SECTOR..end.div_ceil(SECTOR) } else { from.div_ceil(SECTOR)..end / SECTOR };
        covered.fold(0, |all, sector| all | 1 << sector)
    }

    /// The parts of a range by piece: offset, length.
    fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
        let (mut at, end) = (offset, offset + len);
        std::iter::from_fn(move || {
            let next = ((at / Self::PIECE_BYTES + 1) * Self::PIECE_BYTES).min(end);
            let part = (at, (next - at) as usize);
            let more = at < end;
            at = next;
            more.then_some(part)
        })
    }

    /// Whether a piece in the range is changed.
    fn is_changed(&self, offset: u64, len: u64) -> bool {
        let first = self.state.read().next(offset / Self::PIECE_BYTES);
        first.is_some_and(|piece| piece * Self::PIECE_BYTES < offset.saturating_add(len))
    }

    /// The bytes of the base around a part that a write covers only partly, and the sectors that cannot be read. The
    /// base does not change, so they stay valid regardless of other writes.
    fn before(&self, at: u64, len: usize) -> Result<Option<OldBytes>> {
        let start = at - at % Self::PIECE_BYTES;
        let whole = Self::PIECE_BYTES.min(self.base.size_bytes() - start) as usize;
        let changed = || !matches!(self.state.read().find(at / Self::PIECE_BYTES), PieceSource::Base);
        if len == whole || changed() {
            return Ok(None);
        }
        let mut bytes = vec![0; whole];
        let mut unread = 0;
        if let Err(e) = self.base.read_at(start, &mut bytes, BioFlags::META) {
            let unit = SECTOR.max(self.limits.logical_block as usize);
            for from in (0..whole).step_by(unit) {
                let part = from..(from + unit).min(whole);
                let at = start + from as u64;
                if self.base.read_at(at, &mut bytes[part.clone()], BioFlags::META).is_err() {
                    bytes[part.clone()].fill(0);
                    unread |= Self::sectors(at, part.len(), true);
                }
            }
            // The write would lose the rest of a sector that it covers only partly.
            if unread & Self::sectors(at, len, true) & !Self::sectors(at, len, false) != 0 {
                return Err(e);
            }
        }
        Ok(Some(OldBytes { bytes, unread }))
    }

    /// Writes into one piece. `before` are the bytes of the base, if they are needed.
    fn put(&self, state: &mut State, at: u64, data: &[u8], before: Option<OldBytes>) -> Result<()> {
        let piece = at / Self::PIECE_BYTES;
        let start = piece * Self::PIECE_BYTES;
        let whole = Self::PIECE_BYTES.min(self.base.size_bytes() - start) as usize;
        let from = (at - start) as usize;
        let covered = Self::sectors(at, data.len(), false);
        if let Some(unread) = state.unread.get_mut(&piece) {
            if *unread & Self::sectors(at, data.len(), true) & !covered != 0 {
                // The rest of a sector is needed in this case.
                let (first, end) = (from - from % SECTOR, (from + data.len()).next_multiple_of(SECTOR).min(whole));
                let mut sectors = vec![0; end - first];
                self.base.read_at(start + first as u64, &mut sectors, BioFlags::META)?;
                sectors[from - first..][..data.len()].copy_from_slice(data);
                return self.put(state, start + first as u64, &sectors, before);
            }
            *unread &= !covered;
        }
        if let Some(bytes) = state.memory.get_mut(&piece) {
            Arc::make_mut(bytes)[from..from + data.len()].copy_from_slice(data);
            return Ok(());
        }
        let spilled = state.spilled.contains(&piece);
        let OldBytes { mut bytes, unread } = before.unwrap_or_else(|| OldBytes { bytes: vec![0; whole], unread: 0 });
        if unread & !covered != 0 {
            state.unread.insert(piece, unread & !covered);
        }
        if let Some(side) = state.side.as_ref().filter(|_| spilled && data.len() < whole) {
            side.read_at(start, &mut bytes, BioFlags::META)?;
        }
        bytes[from..from + data.len()].copy_from_slice(data);
        let room = (state.memory.len() as u64 + 1) * Self::PIECE_BYTES <= self.memory_max;
        match &self.spill {
            Some(spill) if spilled || !room => {
                let side = match &state.side {
                    Some(side) => side.clone(),
                    None => state.side.insert(spill(self.base.size_bytes())?).clone(),
                };
                side.write_at(start, &[&bytes], BioFlags::empty())?;
                state.spilled.insert(piece);
            }
            _ => drop(state.memory.insert(piece, bytes.into())),
        }
        Ok(())
    }
}

impl super::wrapper::Wrapper for CowDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.base
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        false
    }

    fn submit(&self, bio: Bio) {
        let is_read = bio.op == BioOp::Read && matches!(bio.data, BioData::Read(_));
        if is_read && !self.is_changed(bio.offset, bio.len) {
            return self.base.submit(bio);
        }
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        if !self.is_changed(offset, buf.len() as u64) {
            return self.base.read_at(offset, buf, flags);
        }
        check_range(self, BioOp::Read, offset, buf.len() as u64)?;
        for (at, len) in Self::parts(offset, buf.len() as u64) {
            let piece = at / Self::PIECE_BYTES;
            let found = {
                let state = self.state.read();
                if state.is_unread(at, len) { PieceSource::Base } else { state.find(piece) }
            };
            let to = &mut buf[(at - offset) as usize..][..len];
            match found {
                PieceSource::Base => self.base.read_at(at, to, flags)?,
                PieceSource::Side(side) => side.read_at(at, to, flags)?,
                PieceSource::Memory(bytes) => {
                    to.copy_from_slice(&bytes[(at - piece * Self::PIECE_BYTES) as usize..][..len]);
                }
            }
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let changed = self.state.read().next(offset / Self::PIECE_BYTES);
        let changed = changed.map(|piece| offset.max(piece * Self::PIECE_BYTES));
        Ok(self.base.next_data(offset)?.into_iter().chain(changed).min().filter(|at| *at < self.base.size_bytes()))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], _flags: BioFlags) -> Result<()> {
        let data = pieces.concat();
        check_range(self, BioOp::Write, offset, data.len() as u64)?;
        for (at, len) in Self::parts(offset, data.len() as u64) {
            let before = self.before(at, len)?;
            self.put(&mut self.state.write(), at, &data[(at - offset) as usize..][..len], before)?;
        }
        Ok(())
    }

    /// Does nothing, because the changes need not be durable.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_base::rng::Rng;

    use super::*;
    use crate::device::{Fault, FaultyDevice, MemDevice};

    const SIZE: u64 = 20 * CowDevice::PIECE_BYTES + 512;

    fn base() -> MemDevice {
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8).collect();
        MemDevice::from_bytes(&bytes)
    }

    /// Writes at random, and compares with a device in memory.
    fn compare(cow: &CowDevice, model: &MemDevice, seed: u64) {
        let mut rng = Rng::new(seed);
        for _ in 0..200 {
            let at = rng.below(SIZE / 512) * 512;
            let len = (1 + rng.below(20)) * 512;
            let data = vec![rng.next_u32() as u8; len.min(SIZE - at) as usize];
            cow.write_at(at, &[&data], BioFlags::empty()).expect("written");
            model.write_at(at, &[&data], BioFlags::empty()).expect("written");
            let (from, len) = (rng.below(SIZE), 1 + rng.below(9000));
            let len = len.min(SIZE - from) as usize;
            let (mut one, mut other) = (vec![0; len], vec![1; len]);
            cow.read_at(from, &mut one, BioFlags::empty()).expect("read");
            model.read_at(from, &mut other, BioFlags::empty()).expect("read");
            assert!(one == other, "{from}, {len}");
        }
    }

    #[test]
    fn changes_lie_beside_the_base_in_memory_and_beyond_the_limit_elsewhere() {
        for memory_max in [u64::MAX, 5 * CowDevice::PIECE_BYTES, 0] {
            let below = Arc::new(base());
            let spill: Spill = Box::new(|size| Ok(Arc::new(MemDevice::new(size))));
            let cow = CowDevice::spilling(below.clone(), memory_max, spill);
            assert!(cow.is_unchanged());
            compare(&cow, &base(), 3);
            assert!(below.first_difference(&base()).expect("compared").is_none());
            let memory = cow.state.read().memory.len() as u64 * CowDevice::PIECE_BYTES;
            assert!(memory <= memory_max && cow.pieces().len() == 21, "{memory}");
        }
    }

    #[test]
    fn the_changes_of_a_device_above_are_taken() {
        let lower = Arc::new(CowDevice::new(Arc::new(base())));
        let model = base();
        compare(&lower, &model, 5);
        let upper = CowDevice::new(lower.clone());
        let before: Vec<u64> = lower.pieces();
        upper.write_at(0, &[&[9; 512]], BioFlags::empty()).expect("written");
        assert_eq!((upper.pieces(), lower.pieces()), (vec![0], before));
        lower.absorb(&upper).expect("taken");
        model.write_at(0, &[&[9; 512]], BioFlags::empty()).expect("written");
        compare(&lower, &model, 6);
    }

    #[test]
    fn a_sector_that_cannot_be_read_stays_so_beside_one_that_changes() {
        let faulty = Arc::new(FaultyDevice::new(Arc::new(base())));
        faulty.inject(Fault::eio().op(BioOp::Read).range(1024..1536));
        let cow = CowDevice::new(faulty);
        let read = |cow: &CowDevice, at| {
            let mut bytes = [0; 512];
            cow.read_at(at, &mut bytes, BioFlags::META).map(|()| bytes)
        };
        cow.write_at(512, &[&[9; 512]], BioFlags::empty()).expect("written");
        assert_eq!((read(&cow, 512).expect("read"), read(&cow, 1024).is_err()), ([9; 512], true));
        let mut rest = [0; 512];
        base().read_at(1536, &mut rest, BioFlags::META).expect("read");
        assert_eq!(read(&cow, 1536).expect("read"), rest);
        assert!(cow.write_at(1100, &[&[7; 8]], BioFlags::empty()).is_err());
        // The same, through a second device over this one.
        let cow = Arc::new(cow);
        let upper = CowDevice::new(cow.clone());
        upper.write_at(0, &[&[5; 512]], BioFlags::empty()).expect("written");
        cow.absorb(&upper).expect("taken");
        assert_eq!((read(&cow, 0).expect("read"), read(&cow, 1024).is_err()), ([5; 512], true));
        cow.write_at(1024, &[&[7; 512]], BioFlags::empty()).expect("written");
        assert_eq!(read(&cow, 1024).expect("read"), [7; 512]);
    }

    #[test]
    fn a_change_in_a_hole_is_data() {
        let cow = CowDevice::new(Arc::new(MemDevice::new(1 << 30)));
        assert_eq!(cow.next_data(0).expect("searched").filter(|at| *at < 1 << 20), None);
        cow.write_at(1 << 16, &[&[1; 512]], BioFlags::empty()).expect("written");
        assert_eq!(cow.next_data(0).expect("searched"), Some(1 << 16));
        assert_eq!(cow.next_data((1 << 16) + 100).expect("searched"), Some((1 << 16) + 100));
    }
}
