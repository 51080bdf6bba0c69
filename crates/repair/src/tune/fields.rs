//! Fields of the superblock.
//!
//! Main function: [`apply`].
//!
//! # Locking
//! None.

use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::superblock::{FsState, RawSuperBlock, SuperBlock, SuperFlags};

use super::{CannotTune, Change, Feature};

/// The maximum part of the blocks that only root may use, in percent (as in tune2fs).
const RESERVED_PERCENT_MAX: f64 = 50.0;

/// Makes one change in the superblock. `before` is the current superblock.
pub fn apply(raw: &mut RawSuperBlock, before: &SuperBlock, change: &Change) -> Result<(), CannotTune> {
    let blocks = before.blocks_count;
    match change {
        Change::Label(label) => put_text(&mut raw.s_volume_name, label, "the label", 0)?,
        Change::Uuid(uuid) => raw.s_uuid = *uuid,
        Change::ReservedPercent(percent) => {
            if !(0.0..=RESERVED_PERCENT_MAX).contains(percent) {
                return refuse(format!("root may reserve 0 to {RESERVED_PERCENT_MAX} percent, not {percent}"));
            }
            set_reserved(raw, (percent * blocks as f64 / 100.0) as u64);
        }
        Change::ReservedBlocks(count) => {
            if *count > blocks / 2 {
                return refuse(format!("root may reserve up to half of the {blocks} blocks, not {count}"));
            }
            set_reserved(raw, *count);
        }
        Change::ReservedUser(id) => raw.s_def_resuid.set(*id),
        Change::ReservedGroup(id) => raw.s_def_resgid.set(*id),
        Change::Errors(errors) => raw.s_errors.set(*errors),
        Change::MountBits { clear, set } => {
            let bits = raw.s_default_mount_opts.get() & !clear | set;
            raw.s_default_mount_opts.set(bits);
        }
        Change::MountText(text) => put_text(&mut raw.s_mount_opts, text, "the text of mount options", 1)?,
        Change::MaxMounts(count) => raw.s_max_mnt_count.set(*count as u16),
        Change::Mounts(count) => raw.s_mnt_count.set(*count),
        Change::Interval(seconds) => raw.s_checkinterval.set(*seconds),
        Change::LastCheck(when) => {
            let when = (*when).clamp(0, (1 << 40) - 1);
            raw.s_lastcheck.set(when as u32);
            raw.s_lastcheck_hi = (when >> 32) as u8;
        }
        Change::LastMounted(path) => put_text(&mut raw.s_last_mounted, path, "the directory", 1)?,
        Change::Hash(version) => raw.s_def_hash_version = *version,
        Change::Stride(blocks) => raw.s_raid_stride.set(*blocks),
        Change::StripeWidth(blocks) => raw.s_raid_stripe_width.set(*blocks),
        Change::MmpInterval(seconds) => raw.s_mmp_update_interval.set(*seconds),
        Change::ClearMmp => {
            if !before.incompat().contains(Incompat::MMP) {
                return refuse("it has no block of multi-mount protection".to_owned());
            }
        }
        Change::ForceCheck => raw.s_state.set(raw.s_state.get() | FsState::ERROR.bits()),
        Change::TestFs(on) => {
            let mut flags = SuperFlags::from_bits_retain(raw.s_flags.get());
            flags.set(SuperFlags::TEST_FILESYS, *on);
            raw.s_flags.set(flags.bits());
        }
        Change::ExternalJournal { uuid, number, block_size } => {
            if before.compat().contains(Compat::HAS_JOURNAL) {
                return refuse("it has a journal already, which '-O ^has_journal' removes".to_owned());
            }
            if *block_size != before.block_size {
                let own = before.block_size;
                return refuse(format!("the blocks of the journal have {block_size} bytes, and its own {own}"));
            }
            set_feature(raw, Feature::Compat(Compat::HAS_JOURNAL), true);
            raw.s_journal_uuid = *uuid;
            raw.s_journal_dev.set(*number);
            raw.s_journal_inum.set(0);
        }
        Change::Feature { feature, on } => set_feature(raw, *feature, *on),
    }
    Ok(())
}

fn refuse(why: String) -> Result<(), CannotTune> {
    Err(CannotTune::Value(why))
}

/// Stores bytes in a field, followed by zeros, of which at least `least` must be left.
fn put_text(field: &mut [u8], text: &[u8], what: &str, least: usize) -> Result<(), CannotTune> {
    let most = field.len() - least;
    if text.len() > most {
        return refuse(format!("{what} has {} bytes; at most {most} are possible", text.len()));
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
    Ok(())
}

fn set_reserved(raw: &mut RawSuperBlock, blocks: u64) {
    raw.s_r_blocks_count_lo.set(blocks as u32);
    if raw.s_feature_incompat.get() & Incompat::BIT64.bits() != 0 {
        raw.s_r_blocks_count_hi.set((blocks >> 32) as u32);
    }
}

/// Sets or clears a feature's bit.
pub fn set_feature(raw: &mut RawSuperBlock, feature: Feature, on: bool) {
    let (word, bits) = match feature {
        Feature::Compat(bits) => (&mut raw.s_feature_compat, bits.bits()),
        Feature::Incompat(bits) => (&mut raw.s_feature_incompat, bits.bits()),
        Feature::RoCompat(bits) => (&mut raw.s_feature_ro_compat, bits.bits()),
    };
    let old = word.get();
    word.set(if on { old | bits } else { old & !bits });
}

/// The features of a superblock's bytes.
pub fn features(raw: &RawSuperBlock) -> (Compat, Incompat, RoCompat) {
    (
        Compat::from_bits_retain(raw.s_feature_compat.get()),
        Incompat::from_bits_retain(raw.s_feature_incompat.get()),
        RoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
    )
}
