//! Extended attributes, in inodes and in separate blocks: the damage that `extant_ondisk` finds in either, the number
//! of inodes that refer to a block, and the inodes with values.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::csum::crc32c;
use extant_ondisk::encryption::{self, ContextDamage};
use extant_ondisk::features::Compat;
use extant_ondisk::inode::{InodeFlags, inline};
use extant_ondisk::xattr::inode_area::{area_of, scan_area};
use extant_ondisk::xattr::{
    EntryRef, MAGIC, Name, XattrContext, XattrDamage, entry_hash, entry_hash_signed, index, scan_block,
};
use extant_ondisk::{BlockNr, InodeNr};

use super::inodes::Inode;
use super::walk::{AttributeRef, Charge, Mode, Out, Tally, ValueInode, ValueRef, Walker};
use crate::context::{Check, InodeState};
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::scan;

const CONTEXT: Name<'_> = Name { index: index::ENCRYPTION, suffix: encryption::NAME };

type Step<'a> = std::result::Result<EntryRef<'a>, XattrDamage>;

fn rules(check: &Check) -> XattrContext {
    let geo = &check.geo;
    let seed = geo.metadata_csum.then(|| geo.seed.raw());
    XattrContext { seed, ea_inode: geo.ea_inode, inodes: (geo.first_ino, geo.inodes_count) }
}

/// The first of the attributes found by `scan` for which `is_it` holds.
fn first<'a>(
    scan: impl FnOnce(&mut dyn FnMut(Step<'a>)),
    is_it: impl Fn(&EntryRef<'a>) -> bool,
) -> Option<EntryRef<'a>> {
    let mut first = None;
    scan(&mut |step| first = first.or(step.ok().filter(&is_it)));
    first
}

/// The first of an inode's own attributes for which `is_it` holds.
fn own<'a>(check: &Check, inode: &Inode<'a>, is_it: impl Fn(&EntryRef<'a>) -> bool) -> Option<EntryRef<'a>> {
    let area = area_of(inode.bytes)?;
    first(|mut sink| scan_area(area, &rules(check), &mut sink), is_it)
}

/// The bytes of an inode's inline data that lie in its attribute; `None`: it has no such attribute.
pub fn inline_rest(inode: &Inode<'_>, check: &Check) -> Option<usize> {
    own(check, inode, |entry| entry.name == inline::DATA).map(|entry| entry.value.len())
}

/// An inode's inline data: the bytes of `i_block`, then those of the attribute.
pub fn inline_bytes(inode: &Inode<'_>, check: &Check) -> Option<Vec<u8>> {
    let entry = own(check, inode, |entry| entry.name == inline::DATA)?;
    Some([&inode.raw.i_block[..], entry.value].concat())
}

/// Whether an inode has inline data.
pub fn has_inline_data(inode: &Inode<'_>, check: &Check) -> bool {
    inline_rest(inode, check).is_some()
}

/// Whether values of an inode's attributes are in other inodes.
pub fn has_outside_values(check: &Check, inode: &Inode<'_>) -> bool {
    own(check, inode, |entry| entry.outside.is_some()).is_some()
}

/// Checks the attributes in an inode. `area` begins with the magic.
pub fn in_inode(walker: &mut Walker<'_>, inode: &Inode<'_>, area: &[u8]) {
    if walker.mode == Mode::Owners {
        return;
    }
    let of = AttributeRef { block: 0, ino: inode.ino, generation: inode.raw.i_generation.get(), seeks_context: false };
    // If parts overlap, a wrong hash is only a consequence.
    let (mut hash, mut collides) = (None, false);
    scan_area(area, &rules(walker.check), &mut |step| match step.map_err(|damage| in_area(damage, area.len())) {
        Ok(entry) => outside(walker, of, &entry),
        Err(Some(found @ (Problem::AttrHash, ..))) => hash = hash.or(Some(found)),
        Err(Some((problem, found, expected))) => {
            let again = collides && problem == Problem::InodeEaAllocCollision;
            collides |= problem == Problem::InodeEaAllocCollision;
            if !again {
                walker.bad_inode(problem, of.ino, found, expected);
            }
        }
        Err(None) => {}
    });
    if let Some((problem, found, expected)) = hash.filter(|_| !collides) {
        walker.bad_inode(problem, of.ino, found, expected);
    }
}

/// Converts damage of the attributes in an inode: the problem, found, expected. `None` if it is no damage there for
/// e2fsck. `room` is the number of bytes that they have.
fn in_area(damage: XattrDamage, room: usize) -> Option<(Problem, u32, u32)> {
    use XattrDamage as D;
    Some(match damage {
        D::Unterminated | D::EntryCut { .. } => (Problem::InodeEaAllocCollision, 0, 0),
        D::Overlap { start, end } => (Problem::InodeEaAllocCollision, start, end),
        D::NameCut { len, .. } => (Problem::AttrNameLen, len.into(), 0),
        D::NameByte { .. } => (Problem::AttrNameLen, 0, 0),
        D::ValuePastEnd { size, .. } if size as usize > room => (Problem::AttrValueSize, size, 0),
        D::ValuePastEnd { start, size, .. } => (Problem::InodeEaAllocCollision, start, size),
        D::Hash { found, expected, .. } => (Problem::AttrHash, found, expected),
        D::ValueInodeFeature { inode, .. } => (Problem::EaInodeFeature, inode.0, 0),
        D::ValueInode { inode, .. } => (Problem::AttrValueEaInode, inode.0, 0),
        // The other kinds occur only in blocks.
        D::NoName { .. } | D::NoIndex { .. } => return None,
        D::Length { .. } | D::Magic { .. } | D::Blocks { .. } | D::NoReferences | D::Checksum { .. } => return None,
    })
}

/// Records an attribute whose value is in an inode. `of` is the inode with the attribute, and its attribute block or 0.
fn outside(walker: &mut Walker<'_>, of: AttributeRef, entry: &EntryRef<'_>) {
    let Some((value, size)) = entry.outside else { return };
    walker.out.value_refs.push(ValueRef {
        value: value.0,
        ino: of.ino,
        generation: of.generation,
        block: of.block,
        size: size.into(),
        hash: entry.hash,
        // The hash of a value replaces its bytes.
        name_hashes: [entry_hash(entry.name.suffix, &[0; 4]), entry_hash_signed(entry.name.suffix, &[0; 4])],
    });
}

/// Compares the inodes that contain values with the attributes that refer to them. An inode without such an attribute
/// then counts as a file. Returns the usage that the values add to other inodes, sorted.
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
    // Many inodes may share a block of many attributes, so each of them adds one sum.
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

/// The clusters that a value adds to the usage of its owner. `None` if it differs from the attribute.
fn value_clusters(
    check: &Check,
    one: &ValueRef,
    values: &[ValueInode],
    bad: &mut impl FnMut(Problem, u32, u64, u64),
) -> Option<u64> {
    if one.value < check.geo.first_ino || one.value > check.geo.inodes_count {
        // The attribute's own damage explains the rest.
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

fn context<'a>(check: &Check, inode: &Inode<'a>) -> Option<&'a [u8]> {
    own(check, inode, |entry| entry.name == CONTEXT).and_then(context_in)
}

/// The context in an attribute. It is never in a separate inode.
fn context_in(entry: EntryRef<'_>) -> Option<&[u8]> {
    entry.outside.is_none().then_some(entry.value)
}

/// Whether an encrypted inode's context can only be in its attribute block.
pub fn seeks_context(check: &Check, inode: &Inode<'_>) -> bool {
    inode.flags.contains(InodeFlags::ENCRYPT) && context(check, inode).is_none()
}

/// Handles the context of an encrypted inode, which contains its policy.
pub fn encryption(walker: &mut Walker<'_>, inode: &Inode<'_>) {
    if let Some(context) = context(walker.check, inode) {
        learn_policy(walker, inode.ino, context);
    } else if !has_block(walker.check, inode) {
        walker.bad_inode(Problem::MissingEncryptionXattr, inode.ino, 0u64, 0u64);
    }
}

/// Whether an inode has an attribute block that can be read.
pub fn has_block(check: &Check, inode: &Inode<'_>) -> bool {
    let (geo, block) = (&check.geo, inode.file_acl);
    check.sb.compat().contains(Compat::EXT_ATTR)
        && block != 0
        && block >= geo.first_data_block
        && block < geo.blocks_count
}

/// Checks a context, and records the policy in it.
fn learn_policy(walker: &mut Walker<'_>, ino: u32, context: &[u8]) {
    match encryption::policy(context) {
        // All policies of unknown versions are treated the same.
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
    // Each block occurs once: the first inode, and the number of inodes.
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
            let nr = BlockNr(first.block);
            let context = seeking.get(from).filter(|one| one.block == first.block).and_then(|_| {
                let scan = self::first(
                    |mut sink| _ = scan_block(block, nr, &rules(check), &mut sink),
                    |entry| entry.name == CONTEXT,
                );
                scan.and_then(context_in)
            });
            for one in seeking[from..].iter().take_while(|one| one.block == first.block) {
                match context {
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

/// Checks an attribute block that `count` inodes refer to.
fn in_block(walker: &mut Walker<'_>, of: AttributeRef, count: u32, block: &[u8]) {
    let place = Place::Attributes { ino: InodeNr(of.ino), block: BlockNr(of.block) };
    let (mut collides, mut has_magic) = (false, true);
    let references = scan_block(block, BlockNr(of.block), &rules(walker.check), &mut |step| match step {
        Ok(entry) => outside(walker, of, &entry),
        Err(damage) => {
            let Some((problem, found, expected)) = as_block(damage).filter(|_| has_magic) else { return };
            has_magic = problem != Problem::BadEaBlock;
            let again = collides && problem == Problem::EaAllocCollision;
            collides |= problem == Problem::EaAllocCollision;
            if !again {
                walker.out.sink.push(Finding::new(problem, place, found, expected));
            }
        }
    });
    if let Some(references) = references.filter(|references| references.count != count) {
        walker.out.sink.push(Finding::new(Problem::ExtattrRefcount, place, references.count, count));
    }
}

/// Converts damage of an attribute block: the problem, found, expected. `None` if the reference count shows it.
fn as_block(damage: XattrDamage) -> Option<(Problem, u32, u32)> {
    use XattrDamage as D;
    Some(match damage {
        D::Length { found } | D::Magic { found } => (Problem::BadEaBlock, found, MAGIC),
        D::Blocks { found } => (Problem::EaMultiBlock, found, 1),
        D::NoReferences => return None,
        D::Checksum { found, expected } => (Problem::EaBlockOnlyCsumInvalid, found, expected),
        D::Unterminated | D::EntryCut { .. } => (Problem::EaAllocCollision, 0, 0),
        D::NameCut { len, .. } => (Problem::EaAllocCollision, len.into(), 0),
        D::Overlap { start, end } => (Problem::EaAllocCollision, start, end),
        D::NoName { .. } | D::NoIndex { .. } | D::NameByte { .. } => (Problem::EaBadName, 0, 0),
        D::ValuePastEnd { size, .. } => (Problem::EaBadValue, size, 0),
        D::Hash { found, expected, .. } => (Problem::AttrHash, found, expected),
        D::ValueInodeFeature { inode, .. } => (Problem::EaInodeFeature, inode.0, 0),
        D::ValueInode { inode, .. } => (Problem::AttrValueEaInode, inode.0, 0),
    })
}
