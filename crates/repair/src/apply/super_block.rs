//! Fields of the superblock.
//!
//! # Locking
//! None.

use extant_ondisk::superblock::{FsState, RawSuperBlock};

use crate::error::StepResult;
use crate::plan::{SuperField, Word};
use crate::view::Image;

/// Sets and clears feature bits.
pub fn feature(image: &mut Image, word: Word, set: u32, clear: u32) -> StepResult {
    image.change_super(|raw| {
        let bits = match word {
            Word::Compat => &mut raw.s_feature_compat,
            Word::Incompat => &mut raw.s_feature_incompat,
            Word::RoCompat => &mut raw.s_feature_ro_compat,
        };
        bits.set((bits.get() | set) & !clear);
    })
}

/// Sets a number.
pub fn field(image: &mut Image, field: SuperField, value: u64) -> StepResult {
    image.change_super(|raw| match field {
        SuperField::LastOrphan => raw.s_last_orphan.set(value as u32),
        SuperField::ReservedGdtBlocks => raw.s_reserved_gdt_blocks.set(value as u16),
        SuperField::MinExtraIsize => raw.s_min_extra_isize.set(value as u16),
        SuperField::WantExtraIsize => raw.s_want_extra_isize.set(value as u16),
        SuperField::UserQuota => raw.s_usr_quota_inum.set(value as u32),
        SuperField::GroupQuota => raw.s_grp_quota_inum.set(value as u32),
        SuperField::ProjectQuota => raw.s_prj_quota_inum.set(value as u32),
        SuperField::Journal => raw.s_journal_inum.set(value as u32),
        SuperField::OrphanFile => raw.s_orphan_file_inum.set(value as u32),
        SuperField::ReservedBlocks => {
            raw.s_r_blocks_count_lo.set(value as u32);
            raw.s_r_blocks_count_hi.set((value >> 32) as u32);
        }
    })
}

/// Forgets a journal on another device, because the one in the image is used.
pub fn forget_external_journal(image: &mut Image) -> StepResult {
    image.change_super(|raw| {
        raw.s_journal_uuid = [0; 16];
        raw.s_journal_dev.set(0);
    })
}

/// Sets the totals to the sums of the descriptors.
pub fn totals(image: &mut Image) -> StepResult {
    let clusters: u64 = image.descs.iter().map(|desc| u64::from(desc.free_clusters)).sum();
    let inodes: u64 = image.descs.iter().map(|desc| u64::from(desc.free_inodes)).sum();
    let (blocks, wide) = (clusters << image.geo.cluster_bits, image.geo.bit64);
    image.change_super(|raw| {
        raw.s_free_blocks_count_lo.set(blocks as u32);
        if wide {
            raw.s_free_blocks_count_hi.set((blocks >> 32) as u32);
        }
        raw.s_free_inodes_count.set(inodes.min(u32::MAX.into()) as u32);
    })
}

/// Records that the file system is sound and was checked: there is no known error any more, and no mount since.
pub fn mark_checked(image: &mut Image, is_sound: bool) -> StepResult {
    let now = image.now;
    image.change_super(|raw| checked(raw, now, is_sound))
}

fn checked(raw: &mut RawSuperBlock, now: i64, is_sound: bool) {
    let known = FsState::from_bits_retain(raw.s_state.get());
    if !is_sound {
        raw.s_state.set((known - FsState::VALID).bits());
        return;
    }
    raw.s_state.set(((known | FsState::VALID) - FsState::ERROR).bits());
    raw.s_mnt_count.set(0);
    let now = now.clamp(0, (1 << 40) - 1);
    (raw.s_lastcheck, raw.s_lastcheck_hi) = ((now as u32).into(), (now >> 32) as u8);
    (raw.s_wtime, raw.s_wtime_hi) = ((now as u32).into(), (now >> 32) as u8);
    raw.s_error_count.set(0);
    (raw.s_first_error_time, raw.s_first_error_time_hi, raw.s_first_error_errcode) = (0.into(), 0, 0);
    (raw.s_last_error_time, raw.s_last_error_time_hi, raw.s_last_error_errcode) = (0.into(), 0, 0);
    (raw.s_first_error_ino, raw.s_last_error_ino) = (0.into(), 0.into());
    (raw.s_first_error_block, raw.s_last_error_block) = (0.into(), 0.into());
    (raw.s_first_error_line, raw.s_last_error_line) = (0.into(), 0.into());
    (raw.s_first_error_func, raw.s_last_error_func) = ([0; 32], [0; 32]);
}
