//! The journal on a device of its own (`-j`): opened beside the image, and replayed before a repair.
//!
//! Main functions: [`open`], [`replay`]. A repair does not write through it: its log is empty by then, and a record of
//! the old blocks undoes the repair.
//!
//! # Locking
//! None.

use std::io::Write;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_check::{JournalDevice, Options};
use extant_fs::{Filesystem, MountOptions};
use extant_image::probe;
use extant_ondisk::superblock::FsState;
use extant_recovery::locate::{read_super, write_super};
use extant_recovery::{Accept, Error, JournalFile, JournalState, Replay, journal_state};

use super::{OPERATIONAL, operational};
use crate::args::{FsckArgs, ImageArgs};
use crate::failure::{Failure, Result, plain_text, warn};
use crate::image::{self, ImageSpec};
use crate::text::image_argument;

/// Opens the journal that `-j` names, if the image has its journal elsewhere. A journal of another file system is
/// refused; damage is for the check.
pub fn open(
    args: &FsckArgs,
    how: &ImageArgs,
    device: &dyn BlockDevice,
    spec: &ImageSpec,
    read_only: bool,
) -> Result<Option<JournalDevice>> {
    let Some(at) = &args.letters.journal else { return Ok(None) };
    let name = spec.shown();
    let sb = probe(device).ok().map(|(sb, _)| sb);
    let Some((sb, uuid)) = sb.and_then(|sb| sb.external_journal().map(|uuid| (sb, uuid))) else {
        warn(&format!("{name}: -j: the journal is not on another device; it is not used"));
        return Ok(None);
    };
    let journal = image::open_journal(at, spec, &how.access(read_only)).map_err(operational)?.0;
    match JournalFile::open_external(journal.clone(), sb.block_size, uuid, sb.uuid()) {
        Err(e @ (Error::NoJournal { .. } | Error::Device(_))) => Err(not_checked(&name, &e)),
        _ => Ok(Some(JournalDevice(journal))),
    }
}

fn not_checked(name: &str, e: &Error) -> Failure {
    Failure::new(OPERATIONAL, plain_text(&format!("{name}: not checked: {e}")))
}

/// Replays the log on another device, if there is something to replay, and returns the number of its transactions. The
/// image is then like one whose log is empty.
pub fn replay(args: &FsckArgs, device: &Arc<dyn BlockDevice>, check: &Options, spec: &ImageSpec) -> Result<usize> {
    let name = spec.shown();
    // Damage of the superblock is for the repair.
    let Ok((sb, backup)) = probe(&**device) else { return Ok(0) };
    // A backup does not say whether the log has to be replayed; the log itself does.
    let recover = sb.needs_recovery() || backup.is_some();
    let Some(uuid) = sb.external_journal() else { return Ok(0) };
    let Some(JournalDevice(journal)) = &check.journal else {
        if !recover {
            return Ok(0);
        }
        let image = image_argument(spec);
        let message = format!(
            "{name}: not checked: its journal, which has to be replayed, is on another device; 'extant fsck -j DEVICE \
             {image}' names it"
        );
        return Err(Failure::new(OPERATIONAL, message));
    };
    let failed = |e: Error| not_checked(&name, &e);
    let mut file =
        JournalFile::open_external(journal.clone(), sb.block_size, uuid, sb.uuid()).map_err(|e| match e {
            Error::NoJournal { .. } | Error::Device(_) => failed(e),
            e => {
                let text = format!(
                    "{name}: not checked: the journal {}: {e}; 'tune2fs -f -O ^has_journal' takes it away, with what it \
                     holds",
                    journal.name()
                );
                Failure::new(OPERATIONAL, plain_text(&text))
            }
        })?;
    match journal_state(file.super_block(), recover) {
        JournalState::Clean => return Ok(0),
        JournalState::LiveButUnflagged => {
            warn(&format!("{name}: the log on {} is not replayed: the image was written since", journal.name()));
            return Ok(0);
        }
        JournalState::EmptyButFlagged | JournalState::Live => {}
    }
    let log = Replay::load(&file, &**device, &mut |_| {}).map_err(failed)?;
    if log.fast_commits.is_empty() {
        // Behind damage of the log there may be changes that are lost. The check finds what they left in halves.
        let accept = if args.letters.preen { Accept::WholeOnly } else { Accept::Damaged };
        log.apply(&mut file, &**device, accept, &mut |_| {}).map_err(failed)?;
        let errno = file.super_block().errno != 0;
        settle(&**device, errno || !log.damage.is_empty()).map_err(failed)?;
        if errno {
            let mut sb = file.super_block().clone();
            sb.errno = 0;
            file.write_super(sb).map_err(failed)?;
        }
    } else {
        // They change what operations change, which only the engine does.
        let journal_device = Some(extant_fs::JournalDevice(journal.clone()));
        let options = MountOptions { journal_device, threads: false, counted: false, ..MountOptions::default() };
        let mounted = Filesystem::mount(device.clone(), options).and_then(|fs| fs.unmount());
        mounted.map_err(|e| Failure::new(OPERATIONAL, plain_text(&format!("{name}: not checked: {e}"))))?;
    }
    if log.transactions > 0 && !args.json {
        writeln!(std::io::stdout(), "replay: {} transactions of the log on {}", log.transactions, journal.name())?;
    }
    Ok(log.transactions as usize)
}

/// Nothing is left to replay; with `damaged`, the file system is marked so that it is checked.
fn settle(device: &dyn BlockDevice, damaged: bool) -> std::result::Result<(), Error> {
    let mut sb = match read_super(device) {
        // The repair takes a backup.
        Err(Error::Format(_)) => return Ok(()),
        sb => sb?,
    };
    sb.set_needs_recovery(false);
    if damaged {
        let state = sb.state() | FsState::ERROR;
        sb.set_state(state);
    }
    write_super(device, &sb)
}
