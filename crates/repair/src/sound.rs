//! A sound file system that is changed intentionally, and the proof that it is still sound.
//!
//! Main type: [`Sound`]. Main functions: [`Sound::open`] (checks the current state), [`prove`] (checks the result).
//!
//! What it does not do: change anything except the log, which is replayed into the overlay.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_check::{Checked, Finding, Note, Options, Report, Severity, examine};
use extant_ondisk::superblock::FsState;

use crate::apply::journal;
use crate::error::Error;
use crate::prove::{End, FreshBlocks, Outcome};
use crate::view::Image;

/// The reason why a file system is not changed.
#[derive(Debug, thiserror::Error)]
pub enum Unsound {
    /// It is damaged.
    #[error("it is damaged: {first}")]
    Damaged {
        /// The first finding of the check.
        first: String,
    },
    /// The check cannot check all of it.
    #[error("it cannot be checked: {why}")]
    Unchecked {
        /// The reason.
        why: String,
    },
    /// A device or the check failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// A file system without damage.
pub struct Sound {
    /// The file system; changes are written to an overlay over its device.
    pub image: Image,
    /// The findings of the check, none of which is damage.
    pub report: Report,
    /// The number of transactions in the log that were replayed.
    pub replayed: u32,
}

impl Sound {
    /// Checks the file system on `device`, and replays its log into the overlay.
    pub fn open(device: &Arc<CowDevice>, check: &Options) -> Result<Sound, Unsound> {
        let mut checked = look(device, check)?;
        let mut replayed = 0;
        refuse(&checked)?;
        if checked.report.notes.iter().any(|note| matches!(note, Note::Replayed { .. })) {
            (replayed, _) = journal::replay(device)?;
            checked = look(device, check)?;
            refuse(&checked)?;
        }
        let no_facts = || Unsound::Unchecked { why: "it has no superblock".to_owned() };
        let (image, report) = Image::new(device.clone(), checked, check.now).ok_or_else(no_facts)?;
        Ok(Sound { image, report, replayed })
    }
}

/// Checks the file system on the device.
pub fn look(device: &Arc<CowDevice>, check: &Options) -> Result<Checked, Error> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    Ok(examine(&shared, check)?)
}

/// The result of a change, if the check finds no damage in it; otherwise the first finding.
pub fn prove(
    device: Arc<CowDevice>,
    check: &Options,
    (report, replayed): (Report, u32),
    fresh: FreshBlocks,
) -> Result<Result<Outcome, String>, Error> {
    let proof = look(&device, check)?;
    if let Some(first) = damage(&proof.report).next() {
        return Ok(Err(shown(first)));
    }
    Ok(Ok(Outcome {
        end: End::Proved,
        device,
        steps: Vec::new(),
        losses: Vec::new(),
        left: Vec::new(),
        report,
        replayed,
        fast_commits: 0,
        rounds: 0,
        fresh,
    }))
}

fn shown(finding: &Finding) -> String {
    format!("{}: {finding}", finding.problem.name())
}

fn damage(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.problem.severity() == Severity::Damage)
}

/// Checks that the check has examined all of a sound file system.
fn refuse(checked: &Checked) -> Result<(), Unsound> {
    let report = &checked.report;
    if let Some(first) = damage(report).next() {
        return Err(Unsound::Damaged { first: shown(first) });
    }
    if let Some(note) = report.notes.iter().find(|note| !matches!(note, Note::Replayed { .. })) {
        return Err(Unsound::Unchecked { why: note.to_string() });
    }
    let state = checked.facts.as_ref().map(|facts| facts.super_block().state());
    if !report.complete || state.is_some_and(|state| state.contains(FsState::ERROR)) {
        return Err(Unsound::Damaged { first: "an error was recorded in its superblock".to_owned() });
    }
    Ok(())
}
