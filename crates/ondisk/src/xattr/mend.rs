//! Repairs attributes in place: the usable entries are kept, the others are removed.
//!
//! Main type: [`Fate`]. Main functions: [`mend_area`], [`mend_block`]. Values do not move, and references to values in
//! separate inodes are kept.
//!
//! # Locking
//! None.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::block::{HEADER_LEN, seal};
use super::entry::{ENTRY_LEN, EntryRef, RawEntry, TERMINATOR_LEN};
use super::{MAGIC, Name, XattrContext, block_hash, entry_hash, entry_hash_signed, pad4};
use crate::{BlockNr, InodeNr};

/// The decision about a usable attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The attribute is removed.
    Goes,
    /// The attribute is kept. If its value is in the same area or block, its hash is corrected.
    Stays,
    /// The attribute is kept. Its value is in a separate inode, and has this hash.
    StaysWith {
        /// The value of `e_hash`.
        hash: u32,
    },
}

/// An entry with a complete name.
struct NamedEntry {
    name: Range<usize>,
    value: Option<Range<usize>>,
    /// The stored hash is correct.
    fits: bool,
}

/// Repairs the attributes in an inode, from their magic number on. `keep` decides about each usable attribute. Returns
/// the number of attributes that are removed.
pub fn mend_area(area: &mut [u8], context: &XattrContext, keep: &mut dyn FnMut(&EntryRef<'_>) -> Fate) -> usize {
    mend(area, 4, 4, context, keep).0
}

/// Repairs an attribute block, which gets a valid header. Returns how many attributes are removed, and how many are
/// kept.
pub fn mend_block(
    block: &mut [u8],
    nr: BlockNr,
    references: u32,
    context: &XattrContext,
    keep: &mut dyn FnMut(&EntryRef<'_>) -> Fate,
) -> (usize, usize) {
    if block.len() < HEADER_LEN + TERMINATOR_LEN {
        return (0, 0);
    }
    let (dropped, hashes) = mend(block, HEADER_LEN, 0, context, keep);
    let kept = hashes.len();
    for (at, word) in [MAGIC, references.max(1), 1, block_hash(hashes)].into_iter().enumerate() {
        block[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    seal(block, nr, context.seed);
    (dropped, kept)
}

fn mend(
    bytes: &mut [u8],
    first: usize,
    value_base: usize,
    context: &XattrContext,
    keep: &mut dyn FnMut(&EntryRef<'_>) -> Fate,
) -> (usize, Vec<u32>) {
    let mut found = Vec::new();
    let mut at = first;
    let mut count = 0;
    while bytes.get(at..at + TERMINATOR_LEN).is_some_and(|word| word != [0; TERMINATOR_LEN]) {
        count += 1;
        let Some(entry) = look(bytes, at, value_base) else { break };
        at = entry.name.end;
        found.push(entry);
    }
    let names_end = (at + TERMINATOR_LEN).min(bytes.len());
    // Of entries whose values overlap, those with correct hashes are kept.
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by_key(|i| !found[*i].fits);
    // A value may be neither among the names nor in the header.
    let mut taken: Vec<Range<usize>> = Vec::from([Range { start: 0, end: names_end }]);
    let mut stay = vec![Fate::Goes; found.len()];
    for i in order {
        let entry = &found[i];
        let clear = entry
            .value
            .as_ref()
            .is_none_or(|value| taken.iter().all(|one| value.end <= one.start || one.end <= value.start));
        let fate = if clear { usable(bytes, entry, context, keep) } else { Fate::Goes };
        if fate == Fate::Goes {
            continue;
        }
        taken.extend(entry.value.clone());
        stay[i] = fate;
    }
    let (mut to, mut hashes) = (first, Vec::new());
    for (entry, fate) in found.iter().zip(&stay).filter(|(_, fate)| **fate != Fate::Goes) {
        bytes.copy_within(entry.name.clone(), to);
        hashes.push(rehash(bytes, to, entry, *fate, value_base == 0));
        to += entry.name.len();
    }
    let end = at.max(to + TERMINATOR_LEN).min(bytes.len());
    bytes[to.min(end)..end].fill(0);
    (count - hashes.len(), hashes)
}

/// Reads the entry at this byte offset; `None` if its name is cut off.
fn look(bytes: &[u8], at: usize, value_base: usize) -> Option<NamedEntry> {
    let (raw, _) = RawEntry::ref_from_prefix(bytes.get(at..)?).ok()?;
    let suffix = bytes.get(at + ENTRY_LEN..at + ENTRY_LEN + usize::from(raw.e_name_len))?;
    let name = at..at + pad4(ENTRY_LEN + suffix.len());
    if name.end + TERMINATOR_LEN > bytes.len() {
        return None;
    }
    let size = raw.e_value_size.get() as usize;
    let inside = raw.e_value_inum.get() == 0 && size > 0;
    let start = value_base + usize::from(raw.e_value_offs.get());
    // A value that extends past the end counts as overlapping everything.
    let value = inside.then_some(start..start.saturating_add(pad4(size)));
    let words = value.clone().map_or(Some(&[][..]), |value| bytes.get(value));
    let hash = raw.e_hash.get();
    let fits = words.is_some_and(|words| hash == entry_hash(suffix, words) || hash == entry_hash_signed(suffix, words));
    Some(NamedEntry { name, value, fits })
}

fn usable(
    bytes: &[u8],
    entry: &NamedEntry,
    context: &XattrContext,
    keep: &mut dyn FnMut(&EntryRef<'_>) -> Fate,
) -> Fate {
    let Ok((raw, rest)) = RawEntry::ref_from_prefix(&bytes[entry.name.start..]) else { return Fate::Goes };
    let suffix = &rest[..usize::from(raw.e_name_len)];
    let inode = InodeNr(raw.e_value_inum.get());
    let (low, high) = context.inodes;
    let outside = (inode.0 != 0).then_some((inode, raw.e_value_size.get()));
    if raw.e_name_index == 0 || suffix.contains(&0) || (inode.0 != 0 && !(low..=high).contains(&inode.0)) {
        return Fate::Goes;
    }
    let value = match &entry.value {
        None => &[][..],
        Some(at) => match bytes.get(at.start..at.start + raw.e_value_size.get() as usize) {
            Some(value) => value,
            None => return Fate::Goes,
        },
    };
    let name = Name { index: raw.e_name_index, suffix };
    keep(&EntryRef { name, value, outside, hash: raw.e_hash.get() })
}

/// Corrects the hash of the entry at this byte offset. In an inode, it may be 0.
fn rehash(bytes: &mut [u8], at: usize, entry: &NamedEntry, fate: Fate, in_block: bool) -> u32 {
    let Ok((raw, rest)) = RawEntry::ref_from_prefix(&bytes[at..]) else { return 0 };
    let mut raw = *raw;
    if let Fate::StaysWith { hash } = fate {
        raw.e_hash.set(hash);
    } else if raw.e_value_inum.get() == 0 && !entry.fits && (in_block || raw.e_hash.get() != 0) {
        let words = entry.value.clone().and_then(|value| bytes.get(value)).unwrap_or_default();
        raw.e_hash.set(entry_hash(&rest[..usize::from(raw.e_name_len)], words));
    }
    bytes[at..at + ENTRY_LEN].copy_from_slice(raw.as_bytes());
    raw.e_hash.get()
}

#[cfg(test)]
mod tests {
    use super::super::inode_area;
    use super::*;
    use crate::xattr::{EntryList, XattrBlock, index, scan_block};

    fn context() -> XattrContext {
        XattrContext { seed: Some(7), ea_inode: true, inodes: (11, 100) }
    }

    fn list(names: &[&str]) -> EntryList {
        let mut list = EntryList::new();
        for name in names {
            assert!(list.set(Name { index: index::USER, suffix: name.as_bytes() }, name.repeat(3).as_bytes()));
        }
        list
    }

    fn block(names: &[&str]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        XattrBlock::encode(&list(names), 2, &mut block, BlockNr(90), Some(7)).expect("room");
        block
    }

    fn damages(block: &[u8]) -> usize {
        let mut count = 0;
        scan_block(block, BlockNr(90), &context(), &mut |step| count += usize::from(step.is_err()));
        count
    }

    #[test]
    fn a_sound_block_is_not_changed() {
        let sound = block(&["a", "bc", "def"]);
        let mut mended = sound.clone();
        assert_eq!(mend_block(&mut mended, BlockNr(90), 2, &context(), &mut |_| Fate::Stays), (0, 3));
        assert!(mended == sound);
    }

    #[test]
    fn damaged_bytes_anywhere_leave_a_sound_block() {
        let sound = block(&["a", "bc", "def", "ghij"]);
        let mut rng = small_rng(5);
        for _ in 0..20_000 {
            let mut bad = sound.clone();
            for _ in 0..1 + rng() % 4 {
                let at = if rng().is_multiple_of(2) { rng() as usize % 160 } else { rng() as usize % 1024 };
                bad[at] = rng() as u8;
            }
            mend_block(&mut bad, BlockNr(90), 2, &context(), &mut |_| Fate::Stays);
            assert_eq!(damages(&bad), 0);
        }
    }

    /// A small random number generator, because this crate has none.
    fn small_rng(mut state: u32) -> impl FnMut() -> u32 {
        move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        }
    }

    #[test]
    fn an_overlapping_value_goes_and_the_rest_stays() {
        let mut bad = block(&["a", "bc", "def"]);
        // The second entry gets the value of the first.
        let first = [bad[34], bad[35]];
        bad[32 + 20 + 2..32 + 20 + 4].copy_from_slice(&first);
        assert_eq!(mend_block(&mut bad, BlockNr(90), 2, &context(), &mut |_| Fate::Stays), (1, 2));
        assert_eq!(damages(&bad), 0);
    }

    #[test]
    fn attributes_in_an_inode_are_dropped_by_choice() {
        let mut area = vec![0; 96];
        inode_area::encode(&list(&["a", "bc"]), &mut area).expect("room");
        let mut choose = |entry: &EntryRef<'_>| if entry.name.suffix == b"a" { Fate::Goes } else { Fate::Stays };
        assert_eq!(mend_area(&mut area, &context(), &mut choose), 1);
        let left = inode_area::decode(&area, InodeNr(12)).expect("sound");
        let names: Vec<_> = left.iter().map(|entry| entry.suffix.clone()).collect();
        assert_eq!(names, [b"bc".to_vec()]);
    }
}
