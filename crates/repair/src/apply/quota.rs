//! Quota files, recreated from the usage that the check has counted.
//!
//! Main function: [`renew`]. Limits and grace times are kept if an entry of the old file can be read.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::InodeNr;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::quota::pack::{GRACE, Owner, whole};
use extant_ondisk::quota::{BLOCK_BYTES, LEVELS, Limits, QuotaDamage, QuotaFile, QuotaKind, ROOT, Usage};

use super::content;
use crate::error::{Refusal, StepResult};
use crate::view::Image;

/// Recreates a quota file, with the usage of the files.
pub fn renew(image: &mut Image, ino: InodeNr) -> StepResult {
    let raw = image.sb.raw();
    let named = [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), raw.s_prj_quota_inum.get()];
    let kind = QuotaKind::ALL.into_iter().zip(named).find(|(_, named)| *named == ino.0);
    let kind = kind.ok_or(Refusal::Lost("the superblock names no such quota file"))?.0;
    let inode = image.inode(ino)?;
    if !inode.is_file() || inode.has(InodeFlags::INLINE_DATA) {
        return Err(Refusal::Lost("the inode cannot hold a quota file"));
    }
    let (grace, limits) = old(image, ino, kind)?;
    let mut owners: BTreeMap<u32, Owner> = BTreeMap::new();
    for (id, limits) in limits {
        owners.insert(id, Owner { usage: Usage { id, bytes: 0, inodes: 0 }, limits });
    }
    let usage = image.facts.usage(kind).ok_or(Refusal::Lost("the usage of some owners is not known"))?;
    for usage in usage {
        let owner = owners.entry(usage.id).or_insert(Owner { usage, limits: Limits::default() });
        owner.usage = usage;
    }
    content::write(image, ino, &whole(kind, grace, owners.into_values()))
}

/// The grace times and the limits in the readable part of an old file. A block is descended once, so that cycles in a
/// tree end. Owners without limits are left out.
fn old(image: &Image, ino: InodeNr, kind: QuotaKind) -> StepResult<([u32; 2], BTreeMap<u32, Limits>)> {
    let inode = image.inode(ino)?;
    let mapped = image.map(&inode);
    let size = u64::from(image.geo.block_size);
    let read = |number: u32| -> Option<Vec<u8>> {
        let at = u64::from(number) * BLOCK_BYTES as u64;
        let place = mapped.place(at / size).filter(|block| !image.is_unreadable(*block, 1))?;
        let bytes = image.block(place).ok()?;
        bytes.get((at % size) as usize..)?.get(..BLOCK_BYTES).map(<[u8]>::to_vec)
    };
    let mut limits = BTreeMap::new();
    let Some(first) = read(0) else { return Ok(([GRACE; 2], limits)) };
    let mut usable = true;
    let counts = |damage: &QuotaDamage| matches!(damage, QuotaDamage::Version { .. } | QuotaDamage::Length { .. });
    QuotaFile::damage(&first, kind, inode.size(), &mut |damage| usable &= !counts(&damage));
    if !usable {
        return Ok(([GRACE; 2], limits));
    }
    let file = QuotaFile::parse(&first);
    let (mut level, mut seen) = (BTreeSet::from([ROOT]), BTreeSet::from([0, ROOT]));
    for _ in 0..LEVELS {
        let mut next = BTreeSet::new();
        for block in level.iter().filter_map(|number| read(*number)) {
            next.extend(file.children(&block, &mut |_| {}).filter(|child| seen.insert(*child)));
        }
        level = next;
    }
    for block in level.iter().filter_map(|number| read(*number)) {
        for owner in file.owners(&block).filter(|owner| owner.limits != Limits::default()) {
            limits.entry(owner.usage.id).or_insert(owner.limits);
        }
    }
    let grace = file.grace.map(|seconds| if seconds == 0 { GRACE } else { seconds });
    Ok((grace, limits))
}
