//! The rules of extended attributes, in inodes and in blocks of their own.
//!
//! Entries are read leniently: each problem is reported, and what can still be read is.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::csum::crc32c;
use extant_ondisk::encryption::{self, ContextDamage};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::xattr::{MAGIC, block_checksum, entry_hash, entry_hash_signed, index};
use extant_ondisk::{BlockNr, InodeNr};

use super::inodes::Inode;
use super::walk::{AttributeRef, Charge, Mode, Out, Tally, ValueInode, ValueRef, Walker};
use crate::context::{Check, InodeState};
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::scan;

const HEADER_LEN: usize = 32;
const ENTRY_LEN: usize = 16;
const VALUE_MAX: u64 = 1 << 24;
/// `system.data`, which holds inline data.
const INDEX_SYSTEM: u8 = 7;
const INLINE_ROOM: u64 = 60;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn pad4(length: usize) -> usize {
    (length + 3) & !3
}

/// Whether an inode's area has attributes.
pub fn has_magic(area: &[u8]) -> bool {
    word(area, 0) == Some(MAGIC)
}

/// An entry as it lies in the bytes.
struct Entry<'a> {
    at: usize,
    name: &'a [u8],
    name_len: usize,
    index: u8,
    value_offset: usize,
    value_ino: u32,
    value_size: u32,
    hash: u32,
}

fn entry(bytes: &[u8], at: usize) -> Option<Entry<'_>> {
    let head = bytes.get(at..at + ENTRY_LEN)?;
    let name_len = usize::from(head[0]);
    let from = at + ENTRY_LEN;
    Some(Entry {
        at,
        name: &bytes[from..(from + name_len).min(bytes.len())],
        name_len,
        index: head[1],
        value_offset: usize::from(u16::from_le_bytes([head[2], head[3]])),
        value_ino: word(head, 4)?,
        value_size: word(head, 8)?,
        hash: word(head, 12)?,
    })
}

impl Entry<'_> {
    fn end(&self) -> usize {
        self.at + pad4(ENTRY_LEN + self.name_len)
    }

    /// What the hash should be, unless it is right. It covers whole words: the bytes that fill up the last one, too,
    /// which need not be zero.
    fn wrong_hash(&self, value: &[u8]) -> Option<u32> {
        let hash = entry_hash(self.name, value);
        (self.hash != hash && self.hash != entry_hash_signed(self.name, value)).then_some(hash)
    }
}

/// Whether any two of these ranges overlap, or one ends behind `end`.
fn overlap(mut parts: Vec<(usize, usize)>, end: usize) -> bool {
    parts.sort_unstable();
    parts.windows(2).any(|pair| pair[1].0 < pair[0].1) || parts.iter().any(|part| part.1 > end)
}

/// The area of attributes in an inode, if it has one.
fn area<'a>(inode: &Inode<'a>) -> Option<&'a [u8]> {
    let bytes = inode.bytes;
    let extra = usize::from(u16::from_le_bytes([*bytes.get(128)?, *bytes.get(129)?]));
    bytes.get(128 + extra..).filter(|area| has_magic(area))
}

/// The entries from byte `at` on, as far as they can be read.
fn entries(area: &[u8], mut at: usize) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        if word(area, at).is_none_or(|first| first == 0) {
            return None;
        }
        let entry = entry(area, at)?;
        at = entry.end();
        Some(entry)
    })
}

/// The length of an inode's inline data; `None`: it has none.
pub fn inline_length(inode: &Inode<'_>, check: &Check) -> Option<u64> {
    if check.geo.inode_size <= 128 {
        return None;
    }
    let area = area(inode)?;
    let data = entries(area, 4).find(|entry| entry.index == INDEX_SYSTEM && entry.name == b"data")?;
    Some(INLINE_ROOM + u64::from(data.value_size))
}

/// An inode's inline data: the bytes of `i_block`, then those of the attribute.
pub fn inline_bytes(inode: &Inode<'_>, check: &Check) -> Option<Vec<u8>> {
    if check.geo.inode_size <= 128 {
        return None;
    }
    let area = area(inode)?;
    let data = entries(area, 4).find(|entry| entry.index == INDEX_SYSTEM && entry.name == b"data")?;
    let from = 4 + data.value_offset;
    let rest = area.get(from..from.checked_add(data.value_size as usize)?)?;
    Some([&inode.raw.i_block[..], rest].concat())
}

/// Whether an inode has inline data.
pub fn has_inline_data(inode: &Inode<'_>, check: &Check) -> bool {
    inline_length(inode, check).is_some()
}

/// Whether values of an inode's attributes lie in other inodes.
pub fn has_outside_values(inode: &Inode<'_>) -> bool {
    area(inode).is_some_and(|area| entries(area, 4).any(|entry| entry.value_ino != 0))
}

/// Looks at the attributes in an inode. `area` begins with the magic.
pub fn in_inode(walker: &mut Walker<'_>, inode: &Inode<'_>, area: &[u8]) {
    if walker.mode == Mode::Owners {
        return;
    }
    let (ino, generation) = (inode.ino, inode.raw.i_generation.get());
    let of = AttributeRef { block: 0, ino, generation, seeks_context: false };
    let mut remain = area.len() - 4;
    let mut parts = vec![(0, 4)];
    let mut at = 4;
    // Where parts overlap, a wrong hash is only what comes of it.
    let mut hash = None;
    while remain >= ENTRY_LEN && word(area, at).is_some_and(|first| first != 0) {
        let Some(entry) = entry(area, at) else { break };
        parts.push((at, entry.end()));
        remain -= ENTRY_LEN;
        if pad4(entry.name_len) > remain {
            return walker.bad_inode(Problem::AttrNameLen, ino, entry.name_len as u64, 0u64);
        }
        remain -= pad4(entry.name_len);
        if entry.value_ino == 0 {
            let size = entry.value_size as usize;
            if size > remain {
                return walker.bad_inode(Problem::AttrValueSize, ino, size as u64, 0u64);
            }
            remain -= size;
            // An empty value lies nowhere.
            let from = if size == 0 { 0 } else { 4 + entry.value_offset };
            let Some(value) = area.get(from..from + size) else {
                return walker.bad_inode(Problem::InodeEaAllocCollision, ino, 0u64, 0u64);
            };
            if size != 0 {
                parts.push((from, from + pad4(size)));
            }
            let padded = area.get(from..from + pad4(size)).unwrap_or(value);
            if let Some(expected) = entry.wrong_hash(padded).filter(|_| entry.hash != 0) {
                hash = hash.or(Some((entry.hash, expected)));
            }
        } else {
            outside(walker, of, &entry);
        }
        at = entry.end();
    }
    parts.push((at, at + 4));
    if overlap(parts, area.len()) {
        walker.bad_inode(Problem::InodeEaAllocCollision, ino, 0u64, 0u64);
    } else if let Some((found, expected)) = hash {
        walker.bad_inode(Problem::AttrHash, ino, found, expected);
    }
}

/// Notes an attribute whose value lies in an inode. `of`: the inode with the attribute, and its attribute block or 0.
fn outside(walker: &mut Walker<'_>, of: AttributeRef, entry: &Entry<'_>) {
    if !walker.check.features.ea_inode {
        walker.bad_inode(Problem::EaInodeFeature, of.ino, entry.value_ino, 0u64);
    }
    walker.out.value_refs.push(ValueRef {
        value: entry.value_ino,
        ino: of.ino,
        generation: of.generation,
        block: of.block,
        size: entry.value_size.into(),
        hash: entry.hash,
        // A value's hash takes the place of its bytes.
        name_hashes: [entry_hash(entry.name, &[0; 4]), entry_hash_signed(entry.name, &[0; 4])],
    });
}

/// Compares the inodes that hold values with the attributes that refer to them. An inode that no attribute refers to
/// counts as a file from now on. Returns what the values add to the usage of other inodes, sorted.
pub fn values(check: &Check, all: &mut Out) -> Vec<Charge> {
    all.values.sort_unstable();
    all.value_refs.sort_unstable();
    let mut bad = |problem, ino: u32, found: u64, expected: u64| {
        all.sink.push(Finding::new(problem, Place::Inode(InodeNr(ino)), found, expected));
    };
    let mut charges = Vec::new();
    for one in &all.value_refs {
        let of = (one.block, if one.block == 0 { one.ino } else { 0 });
        let clusters = value_clusters(check, one, &all.values, &mut bad);
        charges.push(Charge { of, clusters: clusters.unwrap_or(0), inodes: 1, unknown: clusters.is_none() });
    }
    for value in &all.values {
        let from = all.value_refs.partition_point(|one| one.value < value.ino);
        let to = all.value_refs.partition_point(|one| one.value <= value.ino);
        let count = (to - from) as u64;
        if count == 0 {
            check.inodes.clear(InodeNr(value.ino), InodeState::VALUE);
            bad(Problem::EaInodeSpuriousFlag, value.ino, 0, 0);
        } else if count != value.references && !value.uncounted {
            bad(Problem::EaInodeRefCount, value.ino, value.references, count);
        }
    }
    charges.sort_unstable();
    // Many inodes may share a block of many attributes: each adds one sum.
    charges.dedup_by(|charge, kept| {
        let same = charge.of == kept.of;
        if same {
            kept.clusters += charge.clusters;
            kept.inodes = kept.inodes.saturating_add(charge.inodes);
            kept.unknown |= charge.unknown;
        }
        same
    });
    charges
}

/// The clusters that a value adds to the usage of its owner. `None`: it is not what the attribute says.
fn value_clusters(
    check: &Check,
    one: &ValueRef,
    values: &[ValueInode],
    bad: &mut impl FnMut(Problem, u32, u64, u64),
) -> Option<u64> {
    if one.value < check.geo.first_ino || one.value > check.geo.inodes_count {
        bad(Problem::AttrValueEaInode, one.ino, one.value.into(), 0);
        return None;
    }
    let Ok(at) = values.binary_search_by_key(&one.value, |value| value.ino) else {
        if one.size == 0 {
            bad(Problem::AttrValueSize, one.ino, 0, 0);
        }
        bad(Problem::AttrSetEaInodeFl, one.ino, one.value.into(), 0);
        bad(Problem::AttrNoEaInodeFl, one.ino, one.value.into(), 0);
        return None;
    };
    let value = values[at];
    if one.size == 0 || one.size != value.size {
        bad(Problem::AttrValueSize, one.ino, one.size, value.size);
        return None;
    }
    if one.name_hashes.iter().any(|name| name ^ value.hash == one.hash) {
        return Some(one.size.div_ceil(u64::from(check.geo.block_size) << check.geo.cluster_bits));
    }
    // A value of Lustre belongs to one inode, which does not count its blocks.
    if value.owner == one.ino && value.generation == one.generation {
        return Some(0);
    }
    bad(Problem::AttrHash, one.ino, one.hash.into(), (one.name_hashes[0] ^ value.hash).into());
    None
}

/// Adds the values of an inode's attributes to its tally.
pub fn charge(tally: &mut Tally, charges: &[Charge]) {
    let in_block = (tally.attributes, 0);
    for of in [(0, tally.ino), in_block].into_iter().filter(|of| tally.late && *of != (0, 0)) {
        if let Ok(at) = charges.binary_search_by_key(&of, |charge| charge.of) {
            let charge = charges[at];
            tally.sums.clusters += charge.clusters;
            tally.values = tally.values.saturating_add(charge.inodes);
            tally.unknown_values |= charge.unknown;
        }
    }
}

/// The encryption context among these entries of `bytes`, whose values lie at offsets from `base`.
fn context_in<'a>(entries: impl Iterator<Item = Entry<'a>>, bytes: &'a [u8], base: usize) -> Option<&'a [u8]> {
    let mut all = entries.filter(|entry| entry.index == index::ENCRYPTION && entry.name == encryption::NAME);
    let entry = all.next().filter(|entry| entry.value_ino == 0)?;
    let from = base + entry.value_offset;
    bytes.get(from..from.checked_add(entry.value_size as usize)?)
}

fn context<'a>(inode: &Inode<'a>) -> Option<&'a [u8]> {
    let area = area(inode)?;
    context_in(entries(area, 4), area, 4)
}

/// Whether an encrypted inode's context can only lie in its attribute block.
pub fn seeks_context(inode: &Inode<'_>) -> bool {
    inode.flags.contains(InodeFlags::ENCRYPT) && context(inode).is_none()
}

/// The context of an encrypted inode, which says by which policy it is encrypted.
pub fn encryption(walker: &mut Walker<'_>, inode: &Inode<'_>) {
    if let Some(context) = context(inode) {
        learn_policy(walker, inode.ino, context);
    } else if !has_block(walker.check, inode) {
        walker.bad_inode(Problem::MissingEncryptionXattr, inode.ino, 0u64, 0u64);
    }
}

/// Whether an inode has an attribute block that can be read.
pub fn has_block(check: &Check, inode: &Inode<'_>) -> bool {
    let (geo, block) = (&check.geo, inode.file_acl);
    check.features.xattrs && block != 0 && block >= geo.first_data_block && block < geo.blocks_count
}

/// Judges a context, and notes the policy in it.
fn learn_policy(walker: &mut Walker<'_>, ino: u32, context: &[u8]) {
    match encryption::policy(context) {
        // All policies of unknown versions are alike.
        Ok(policy) => walker.out.policies.push((ino, policy.map_or(0, |policy| crc32c(!0, policy)))),
        Err(damage) => {
            let expected = match damage {
                ContextDamage::Version => 0,
                ContextDamage::Length { expected, .. } => expected,
            };
            walker.bad_inode(Problem::CorruptEncryptionXattr, ino, context.len() as u64, expected);
        }
    }
}

/// Claims and reads the attribute blocks that inodes refer to.
pub fn blocks(check: &Arc<Check>, mode: Mode, all: &mut Out) -> Result<()> {
    let mut refs = std::mem::take(&mut all.attributes);
    refs.sort_unstable();
    let mut walker = Walker { check, mode, out: all };
    if mode == Mode::Owners {
        for AttributeRef { block, ino, .. } in refs {
            walker.claim(ino, 0, block, 1);
        }
        return Ok(());
    }
    // Each block once: the first inode, and how many there are.
    let mut shared: Vec<(AttributeRef, u32)> = Vec::new();
    let seeking: Vec<AttributeRef> = refs.iter().filter(|one| one.seeks_context).copied().collect();
    for one in refs {
        match shared.last_mut() {
            Some((first, count)) if first.block == one.block => *count += 1,
            _ => {
                walker.claim(one.ino, 0, one.block, 1);
                shared.push((one, 1));
            }
        }
    }
    let runs = scan::runs(&shared, check.geo.block_bits, |(first, _)| (first.block, 1));
    if runs.is_empty() {
        return Ok(());
    }
    let outs = scan::wave(check, runs, move |check, run, data, out: &mut Out| {
        let size = check.geo.block_size as usize;
        let walker = &mut Walker { check, mode: Mode::Check, out };
        for (first, count) in &shared[run.items.0..run.items.1] {
            let at = (first.block - run.first) as usize * size;
            let block = &data[at..at + size];
            in_block(walker, *first, *count, block);
            let from = seeking.partition_point(|one| one.block < first.block);
            let context = seeking[from..].first().and_then(|_| context_in(entries(block, HEADER_LEN), block, 0));
            for one in seeking[from..].iter().take_while(|one| one.block == first.block) {
                match context.filter(|_| has_magic(block)) {
                    Some(context) => learn_policy(walker, one.ino, context),
                    None => walker.bad_inode(Problem::MissingEncryptionXattr, one.ino, 0u64, 0u64),
                }
            }
        }
    })?;
    for out in outs {
        all.value_refs.extend(out.value_refs);
        all.policies.extend(out.policies);
    }
    Ok(())
}

/// Looks at an attribute block that `count` inodes refer to.
fn in_block(walker: &mut Walker<'_>, of: AttributeRef, count: u32, block: &[u8]) {
    let place = Place::Attributes { ino: InodeNr(of.ino), block: BlockNr(of.block) };
    let mut bad =
        |problem, found: u32, expected: u32| walker.out.sink.push(Finding::new(problem, place, found, expected));
    let field = |at: usize| word(block, at).unwrap_or(0);
    if field(0) != MAGIC {
        return bad(Problem::BadEaBlock, field(0), MAGIC);
    }
    if field(8) != 1 {
        bad(Problem::EaMultiBlock, field(8), 1);
    }
    if field(4) != count {
        bad(Problem::ExtattrRefcount, field(4), count);
    }
    let seed = walker.check.geo.seed.raw();
    let checksum = block_checksum(seed, BlockNr(of.block), block);
    if walker.check.geo.metadata_csum && field(16) != checksum {
        bad(Problem::EaBlockOnlyCsumInvalid, field(16), checksum);
    }
    let mut parts = vec![(0, HEADER_LEN)];
    let mut at = HEADER_LEN;
    let mut values = Vec::new();
    while word(block, at).is_some_and(|first| first != 0) {
        let Some(entry) = entry(block, at) else {
            return bad(Problem::EaAllocCollision, 0, 0);
        };
        parts.push((at, entry.end()));
        if entry.index == 0 {
            return bad(Problem::EaBadName, 0, 0);
        }
        if entry.value_ino == 0 {
            let (from, size) = (entry.value_offset, entry.value_size as usize);
            let value = block.get(from..from.saturating_add(size)).filter(|_| (size as u64) <= VALUE_MAX);
            let Some(value) = value else {
                return bad(Problem::EaBadValue, entry.value_size, 0);
            };
            if size != 0 {
                parts.push((from, from + pad4(size)));
            }
            let padded = block.get(from..from + pad4(size)).unwrap_or(value);
            if let Some(expected) = entry.wrong_hash(padded) {
                bad(Problem::AttrHash, entry.hash, expected);
            }
        } else {
            values.push(entry);
        }
        at = entry_end(block, at);
    }
    parts.push((at, at + 4));
    if overlap(parts, block.len()) {
        bad(Problem::EaAllocCollision, 0, 0);
    }
    for entry in values {
        outside(walker, of, &entry);
    }
}

fn entry_end(bytes: &[u8], at: usize) -> usize {
    entry(bytes, at).map_or(bytes.len(), |entry| entry.end())
}
