//! Chooses the right superblock: the primary with other fields, or a backup.
//!
//! Main function: [`choose`].
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Note, Options, Problem as P, Report};
use extant_ondisk::superblock::{
    MAGIC, RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, SuperContext, backup_candidates,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{damage, judged};
use crate::error::Result;
use crate::prove::Layers;
use crate::view::seal_super;

/// The number of backups that are tried.
const BACKUPS_MAX: usize = 3;

/// Uses the candidate for the superblock with the fewest findings, if there are fewer than with the current one.
/// Returns whether there is one.
///
/// # Errors
/// Those of the devices.
pub fn choose(device: &Arc<CowDevice>, report: &Report, layers: &Layers, options: &Options) -> Result<bool> {
    let mut best: Option<(u64, CowDevice)> = None;
    let mut least = damage(report);
    let used = report.notes.iter().find_map(|note| match note {
        Note::BackupSuperblock { offset } => Some(*offset),
        _ => None,
    });
    // The check of a backup does not check the primary.
    if used.is_some() {
        least = u64::MAX;
    }
    let plain = Options { superblock: None, block_size: None, ..options.clone() };
    // If the caller has specified a backup, it is preferred to equal ones.
    let named = used.filter(|_| options.superblock.is_some());
    for candidate in candidates(&**device, report, named)? {
        let over = Arc::new(layers.over(device.clone()));
        write(&*over, &candidate)?;
        let is_primary = primary_is_sound(&*over);
        let found = if is_primary { judged(&over, &plain) } else { u64::MAX };
        if found < least {
            least = found;
            best = Arc::into_inner(over).map(|over| (found, over));
        }
    }
    match best {
        Some((_, over)) => device.absorb(&over).map(|()| true).map_err(Into::into),
        None => Ok(false),
    }
}

/// Whether the primary superblock describes a layout without fatal damage.
fn primary_is_sound(device: &dyn BlockDevice) -> bool {
    extant_recovery::locate::read_super(device).is_ok()
}

fn read(device: &dyn BlockDevice, at: u64) -> Option<RawSuperBlock> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(at, &mut bytes, BioFlags::META).ok()?;
    RawSuperBlock::read_from_bytes(&bytes).ok()
}

fn write(device: &dyn BlockDevice, raw: &RawSuperBlock) -> Result<()> {
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % unit;
    let mut bytes = vec![0; unit as usize];
    device.read_at(start, &mut bytes, BioFlags::META)?;
    bytes[(SUPERBLOCK_OFFSET - start) as usize..][..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
    Ok(device.write_at(start, &[&bytes], BioFlags::META)?)
}

/// The candidates: the primary with the values that its findings expect; the primary with the constant fields of each
/// backup; each backup as a whole. The one at byte `named` comes first.
fn candidates(device: &dyn BlockDevice, report: &Report, named: Option<u64>) -> Result<Vec<RawSuperBlock>> {
    let mut all = Vec::new();
    let primary = read(device, SUPERBLOCK_OFFSET);
    if let Some(backup) = named.and_then(|at| read(device, at)) {
        all.extend(primary.filter(|raw| raw.s_magic.get() == MAGIC).map(|primary| with_identity(&primary, &backup)));
        all.push(as_primary(&backup));
    }
    if let Some(primary) = primary.filter(|raw| raw.s_magic.get() == MAGIC) {
        all.push(mended(&primary, report, 0));
        let meta = report.findings.iter().find(|finding| finding.problem == P::FirstMetaBgTooBig);
        all.extend(meta.map(|finding| mended(&primary, report, finding.expected as u32)));
    }
    for backup in backups(device, primary.as_ref()) {
        if let Some(primary) = primary.filter(|raw| raw.s_magic.get() == MAGIC) {
            all.push(with_identity(&primary, &backup));
        }
        all.push(as_primary(&backup));
    }
    Ok(all)
}

/// The primary with the values that its findings expect, and a correct checksum. `first_meta_bg` is the first
/// metagroup, if the stored one is impossible.
fn mended(primary: &RawSuperBlock, report: &Report, first_meta_bg: u32) -> RawSuperBlock {
    let mut raw = *primary;
    for finding in &report.findings {
        let expected = U32::new(finding.expected as u32);
        match finding.problem {
            P::FsSizeWrong => {
                raw.s_blocks_count_lo = expected;
                raw.s_blocks_count_hi.set((finding.expected >> 32) as u32);
            }
            P::FirstDataBlock => raw.s_first_data_block = expected,
            P::InodeCountWrong => raw.s_inodes_count = expected,
            P::FirstMetaBgTooBig => raw.s_first_meta_bg.set(first_meta_bg),
            _ => {}
        }
    }
    seal_super(&mut raw);
    raw
}

/// The backups from which a layout can be derived, without duplicates.
fn backups(device: &dyn BlockDevice, primary: Option<&RawSuperBlock>) -> Vec<RawSuperBlock> {
    let context = SuperContext { device_bytes: Some(device.size_bytes()), now: None };
    let layout = primary.and_then(|raw| SuperBlock::parse(raw.as_bytes(), &context, &mut |_| {}));
    let named: Vec<u64> = layout
        .iter()
        .flat_map(|sb| {
            sb.backup_groups().take(8).map(|group| sb.super_location(group).0.0 << sb.block_bits).collect::<Vec<_>>()
        })
        .collect();
    let usual = backup_candidates(device.size_bytes()).map(|(at, _)| at);
    let mut found: Vec<RawSuperBlock> = Vec::new();
    for at in named.into_iter().chain(usual) {
        if found.len() >= BACKUPS_MAX {
            break;
        }
        let Some(raw) = read(device, at).filter(|raw| raw.s_magic.get() == MAGIC) else { continue };
        let mut fatal = false;
        let parsed = SuperBlock::parse(raw.as_bytes(), &context, &mut |one| {
            use extant_ondisk::Damage;
            fatal |= one.is_fatal();
        });
        let Some(sb) = parsed.filter(|_| !fatal) else { continue };
        let placed = sb.backup_groups().any(|group| sb.super_location(group).0.0 << sb.block_bits == at);
        let fresh = as_primary(&raw);
        if placed && !found.iter().any(|other| as_primary(other).as_bytes() == fresh.as_bytes()) {
            found.push(raw);
        }
    }
    found
}

/// A backup as it would be stored in place of the primary.
fn as_primary(backup: &RawSuperBlock) -> RawSuperBlock {
    let mut raw = *backup;
    raw.s_block_group_nr.set(0);
    seal_super(&mut raw);
    raw
}

/// The primary with the fields of a backup that describe layout and identity.
fn with_identity(primary: &RawSuperBlock, backup: &RawSuperBlock) -> RawSuperBlock {
    // Bits that change while a file system is used, and that a backup may lack.
    const COMPAT: u32 = 0x8;
    const INCOMPAT: u32 = 0x4;
    const RO_COMPAT: u32 = 0x1_0022;
    let mut raw = *backup;
    let mix = |old: U32, new: U32, bits: u32| U32::new(new.get() & !bits | old.get() & bits);
    raw.s_feature_compat = mix(primary.s_feature_compat, backup.s_feature_compat, COMPAT);
    raw.s_feature_incompat = mix(primary.s_feature_incompat, backup.s_feature_incompat, INCOMPAT);
    raw.s_feature_ro_compat = mix(primary.s_feature_ro_compat, backup.s_feature_ro_compat, RO_COMPAT);
    raw.s_block_group_nr.set(0);
    raw.s_free_blocks_count_lo = primary.s_free_blocks_count_lo;
    raw.s_free_blocks_count_hi = primary.s_free_blocks_count_hi;
    raw.s_free_inodes_count = primary.s_free_inodes_count;
    (raw.s_mtime, raw.s_mtime_hi) = (primary.s_mtime, primary.s_mtime_hi);
    (raw.s_wtime, raw.s_wtime_hi) = (primary.s_wtime, primary.s_wtime_hi);
    (raw.s_mnt_count, raw.s_state) = (primary.s_mnt_count, primary.s_state);
    raw.s_last_mounted = primary.s_last_mounted;
    raw.s_volume_name = primary.s_volume_name;
    raw.s_last_orphan = primary.s_last_orphan;
    raw.s_kbytes_written = primary.s_kbytes_written;
    raw.s_mount_opts = primary.s_mount_opts;
    seal_super(&mut raw);
    raw
}
