//! Choices that only a check can make: candidates are tried in an overlay, and the one with the fewest findings is
//! used; the first if several are equal.
//!
//! Main functions: [`super_block`], [`unmentioned_log`], [`is_doubtful`], [`places`], [`log::choose`].
//!
//! # Locking
//! None.

pub mod log;
mod super_block;

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_check::{Options, Problem as P, Report, Severity, check};
use extant_ondisk::GroupNr;

use crate::apply::{groups, journal};
use crate::error::{Refusal, Result};
use crate::prove::{self, Layers};
use crate::view::Image;

pub use super_block::choose as super_block;

/// A measure of the damage of an image: the number of findings, or the maximum if the rest could not be checked.
pub fn damage(report: &Report) -> u64 {
    let counts = report.counts.iter().filter(|(problem, _)| problem.severity() == Severity::Damage);
    let sum = counts.map(|(_, count)| *count).sum();
    if report.complete { sum } else { u64::MAX }
}

/// Checks the changes of a candidate.
pub fn judged(candidate: &Arc<CowDevice>, options: &Options) -> u64 {
    let device: Arc<dyn BlockDevice> = candidate.clone();
    check(&device, options).map_or(u64::MAX, |report| damage(&report))
}

/// Whether so many checksums are wrong that the superblock, from which they are all derived, may be wrong.
pub fn is_doubtful(report: &Report) -> bool {
    const FEW: u64 = 24;
    let of = [
        P::InodeOnlyCsumInvalid,
        P::GdtCsum,
        P::ExtentOnlyCsumInvalid,
        P::LeafNodeOnlyCsumInvalid,
        P::BlockBitmapCsumInvalid,
        P::InodeBitmapCsumInvalid,
        P::EaBlockOnlyCsumInvalid,
        P::HtreeRootCsumInvalid,
        P::HtreeNodeCsumInvalid,
    ];
    let wrong: u64 = of.iter().map(|problem| report.count(*problem)).sum();
    wrong > FEW.max(report.totals.inodes_used / 8)
}

/// The groups with wrong places in their descriptors: with the places that mke2fs chooses, the check finds less. Only a
/// few groups can be wrong; if many places differ, another program has created the file system.
///
/// # Errors
/// Those of the devices.
pub fn places(image: &Image, report: &Report, options: &prove::Options) -> Result<Vec<GroupNr>> {
    const FEW: usize = 4;
    let of = [
        P::BbNotGroup,
        P::IbNotGroup,
        P::ItableNotGroup,
        P::BbConflict,
        P::IbConflict,
        P::ItableConflict,
        P::GdtCsum,
        P::NoRootInode,
        P::InodeIsGarbage,
    ];
    if of.iter().all(|problem| report.count(*problem) == 0) {
        return Ok(Vec::new());
    }
    let groups: Vec<GroupNr> = groups::unusual(image).take(FEW + 1).collect();
    if groups.is_empty() || groups.len() > FEW {
        return Ok(Vec::new());
    }
    let over = Arc::new(options.layers.over(image.device.clone()));
    let mut changed = image.with(over.clone());
    for group in &groups {
        match groups::usual(&mut changed, *group) {
            Err(Refusal::Device(e)) => return Err(e.into()),
            Err(_) => return Ok(Vec::new()),
            Ok(()) => {}
        }
    }
    Ok(if judged(&over, &options.check) < damage(report) { groups } else { Vec::new() })
}

/// Whether to replay a log that the superblock does not mention: if that leaves fewer findings than emptying it, which
/// is the behaviour of a mount.
///
/// # Errors
/// Those of the devices.
pub fn unmentioned_log(device: &Arc<CowDevice>, layers: &Layers, options: &Options) -> Result<bool> {
    let emptied = Arc::new(layers.over(device.clone()));
    journal::wipe(&emptied)?;
    let replayed = Arc::new(layers.over(device.clone()));
    let could = journal::replay(&replayed).is_ok();
    let better = could && judged(&replayed, options) < judged(&emptied, options);
    device.absorb(if better { &replayed } else { &emptied })?;
    Ok(better)
}
