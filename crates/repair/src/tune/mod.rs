//! Changes a file system's identity, limits and features. The changes are proved before they are written.
//!
//! Main function: [`tune`] (makes the changes in an overlay and checks them; [`crate::commit`] writes them). Main
//! types: [`Change`], [`Feature`], [`CannotTune`].
//!
//! Most changes are fields of the superblock and of its copies (`fields`). A feature may require more (`features`):
//! adding or removing a file, directories in another form, descriptors with other checksums. If the seed of the
//! checksums changes, all metadata is updated (`reseal`).
//!
//! What it does not do: change sizes of inodes or blocks, or features that require a new layout (`64bit`, `flex_bg`,
//! `bigalloc`).
//!
//! # Locking
//! None of its own.

mod features;
mod fields;
pub(crate) mod reseal;

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_check::Options;
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::superblock::{RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use zerocopy::IntoBytes;

use crate::apply::groups;
use crate::error::{Error, Refusal};
use crate::prove::{FreshBlocks, Outcome};
use crate::sound::{Sound, Unsound, look, prove};
use crate::view::{Image, seal_super};

/// A feature bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A compatible one.
    Compat(Compat),
    /// An incompatible one.
    Incompat(Incompat),
    /// A read-only compatible one.
    RoCompat(RoCompat),
}

impl Feature {
    /// The feature with this name in e2fsprogs.
    pub fn by_name(name: &str) -> Option<Feature> {
        let lower = name.to_ascii_lowercase();
        let name = match lower.as_str() {
            "extents" => "extent",
            "uninit_groups" | "lazy_bg" => "uninit_bg",
            "fname_encoding" => "casefold",
            "has_snapshot" => "snapshot",
            name => name,
        };
        let compat = Compat::by_name(name).map(Feature::Compat);
        let incompat = || Incompat::by_name(name).map(Feature::Incompat);
        compat.or_else(incompat).or_else(|| RoCompat::by_name(name).map(Feature::RoCompat))
    }

    /// The name.
    pub fn name(self) -> String {
        let names = match self {
            Feature::Compat(bits) => bits.names(),
            Feature::Incompat(bits) => bits.names(),
            Feature::RoCompat(bits) => bits.names(),
        };
        names.join(",")
    }
}

/// One requested change. If there are several, the last one is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The label: at most 16 bytes.
    Label(Vec<u8>),
    /// The UUID.
    Uuid([u8; 16]),
    /// The part of the blocks that only root may use, in percent.
    ReservedPercent(f64),
    /// The number of blocks that only root may use.
    ReservedBlocks(u64),
    /// The user that may use the reserved blocks, too.
    ReservedUser(u16),
    /// The group that may use the reserved blocks, too.
    ReservedGroup(u16),
    /// The reaction to an error: 1 continue, 2 read-only, 3 panic.
    Errors(u16),
    /// Bits of the default mount options.
    MountBits {
        /// The bits to clear.
        clear: u32,
        /// The bits to set.
        set: u32,
    },
    /// Options for each mount as text: at most 63 bytes.
    MountText(Vec<u8>),
    /// The number of mounts after which a check is due; -1 or 0 for never.
    MaxMounts(i16),
    /// The number of mounts since the last check.
    Mounts(u16),
    /// The number of seconds after which a check is due; 0 for never.
    Interval(u32),
    /// The time of the last check, in seconds since 1970.
    LastCheck(i64),
    /// The directory of the last mount: at most 63 bytes.
    LastMounted(Vec<u8>),
    /// The hash of new directory indexes: 0 legacy, 1 half MD4, 2 TEA.
    Hash(u8),
    /// The RAID stride: the number of consecutive blocks on one disk before the next disk is used.
    Stride(u16),
    /// The RAID stripe width: the number of data blocks in a stripe, across all disks.
    StripeWidth(u32),
    /// The interval in which a mount updates the block of multi-mount protection, in seconds.
    MmpInterval(u16),
    /// The block of multi-mount protection is changed to say that no mount uses the file system.
    ClearMmp,
    /// The next e2fsck checks the file system.
    ForceCheck,
    /// Whether it is marked as created for development code.
    TestFs(bool),
    /// A journal on another device, which names this file system as its user, is added.
    ExternalJournal {
        /// Its UUID.
        uuid: [u8; 16],
        /// The number of its device in Linux, a hint; 0: not known.
        number: u32,
        /// The bytes of its blocks.
        block_size: u32,
    },
    /// A feature is added or removed.
    Feature {
        /// The feature.
        feature: Feature,
        /// Whether it is added.
        on: bool,
    },
}

/// The reason why a file system is not changed. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum CannotTune {
    /// It is damaged, or cannot be checked.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// A value is invalid or too long.
    #[error("{0}")]
    Value(String),
    /// The feature cannot be added or removed in place.
    #[error("the feature {feature} cannot be {}: {why}", if *.on { "added" } else { "removed" })]
    Feature {
        /// Its name.
        feature: String,
        /// Whether it should be added.
        on: bool,
        /// The reason.
        why: &'static str,
    },
    /// Orphans would be deleted by a mount, and must be removed before their metadata is rewritten.
    #[error("it has files that were deleted while they were open, which a mount or 'extant fsck -p' removes first")]
    Orphans,
    /// The checksums of attribute values depend on the UUID.
    #[error(
        "it has attributes with an inode of their own, whose checksums depend on the UUID; \
         '-O metadata_csum_seed' makes all checksums independent of it"
    )]
    Values,
    /// The superblock would break a rule of the format.
    #[error("the superblock would not be valid: {0}")]
    Layout(extant_ondisk::Error),
    /// The check of the result found damage, because a feature is in use, or this program has a fault.
    #[error("the change would leave damage, and was not made: {first}")]
    Unproved {
        /// The first finding.
        first: String,
    },
    /// A structure cannot be changed.
    #[error("{0}")]
    Step(String),
    /// A device or the check failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Refusal> for CannotTune {
    fn from(refusal: Refusal) -> CannotTune {
        match refusal {
            Refusal::Device(e) => CannotTune::Failed(e.into()),
            other => CannotTune::Step(other.to_string()),
        }
    }
}

/// The result of [`tune`].
pub struct Tuned {
    /// The changes in an overlay, for [`crate::commit`].
    pub outcome: Outcome,
    /// The superblock before.
    pub before: SuperBlock,
    /// The superblock after.
    pub after: SuperBlock,
}

/// Makes the changes in an overlay over the file system on `device`, and checks the result. `journal_blocks` is the
/// size of an added journal. The check's time becomes that of the last write.
///
/// # Errors
/// [`CannotTune`]; the changes must then not be used.
pub fn tune(
    device: Arc<CowDevice>,
    check: &Options,
    changes: &[Change],
    journal_blocks: Option<u32>,
) -> Result<Tuned, CannotTune> {
    let Sound { image: old, report, replayed } = Sound::open(&device, check)?;
    let before = old.sb.clone();
    let mut raw = *before.raw();
    for change in changes {
        fields::apply(&mut raw, &before, change)?;
    }
    if before.external_journal().is_some() && raw.s_uuid != before.uuid() {
        return Err(CannotTune::Value(
            "the journal, which is on another device, names the file system by its UUID; tune2fs -U changes both"
                .into(),
        ));
    }
    let plan = features::Plan::of(&before, &mut raw)?;
    let (now, high) = (check.now as u32, (check.now >> 32) as u8);
    raw.s_wtime.set(now);
    raw.s_wtime_hi = high;
    let mut new = with_super(&old, &raw)?;
    new.write(SUPERBLOCK_OFFSET, sealed(raw).as_bytes())?;
    if !plan.is_plain() {
        if !old.facts.orphans().is_empty() {
            return Err(CannotTune::Orphans);
        }
        features::apply(&old, &mut new, &plan, journal_blocks)?;
        let mut fresh = reread(&device, check)?;
        features::recount(&mut fresh, &plan)?;
        reseal::descriptors(&fresh)?;
    }
    if changes.contains(&Change::ClearMmp) {
        groups::multi_mount(&mut new)?;
    }
    let after = write_copies(&new)?;
    let outcome = prove(device, check, (report, replayed), FreshBlocks::Nothing)?;
    let outcome = outcome.map_err(|first| CannotTune::Unproved { first })?;
    Ok(Tuned { outcome, before, after })
}

fn sealed(mut raw: RawSuperBlock) -> RawSuperBlock {
    seal_super(&mut raw);
    raw
}

/// The same file system, read with another superblock.
fn with_super(old: &Image, raw: &RawSuperBlock) -> Result<Image, CannotTune> {
    let sb = SuperBlock::decode(sealed(*raw).as_bytes(), SUPERBLOCK_OFFSET).map_err(CannotTune::Layout)?;
    let mut new = old.with(old.device.clone());
    (new.geo, new.sb) = (sb.geometry().clone(), sb);
    Ok(new)
}

/// The current file system in the overlay.
fn reread(device: &Arc<CowDevice>, check: &Options) -> Result<Image, CannotTune> {
    let checked = look(device, check)?;
    let lost = || CannotTune::Step("the changed superblock cannot be read".to_owned());
    Ok(Image::new(device.clone(), checked, check.now).ok_or_else(lost)?.0)
}

/// Also writes the superblock on the device to its copies.
fn write_copies(image: &Image) -> Result<SuperBlock, CannotTune> {
    let bytes = image.bytes(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
    let sb = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).map_err(CannotTune::Layout)?;
    for group in sb.geometry().backup_groups() {
        let (block, _) = sb.geometry().super_location(group);
        let mut copy = image.block(block)?;
        sb.backup_for(group).encode_into(&mut copy);
        image.put_block(block, &copy)?;
    }
    Ok(sb)
}
