//! The journal on a device of its own that a file system gets (`-J device=`) or gives back.
//!
//! Main type: [`Journal`]. The order is: open and claim (a refusal changes nothing), then the file system's blocks,
//! then the journal's list of users, and last the file system's superblocks. A cut before them leaves a journal that
//! belongs to no file system; -F gives it to another one. A journal is given back the other way round: a cut leaves one
//! that names a file system which does not use it.
//!
//! # Locking
//! None.

use std::os::unix::fs::MetadataExt;

use extant_build::options::ExternalJournal;
use extant_recovery::{Error, JournalFile, journal_device, wipe};

use crate::failure::{Failure, Result, plain_text};
use crate::image::{Access, ImageSpec, Part, open_device};
use crate::text;

/// An opened journal, which no other program uses.
pub struct Journal {
    file: JournalFile,
    uuid: [u8; 16],
    /// The number of its device in Linux; 0 for a file.
    number: u32,
}

impl Journal {
    /// Opens the journal at `path`, for the file system `own` if there is one already. `forced`: it may be another file
    /// system's. `dry`: it is only read.
    pub fn open(path: &str, own: Option<[u8; 16]>, forced: bool, dry: bool) -> Result<Journal> {
        let journal = Journal::any(path, dry)?;
        let (sb, name) = (journal.file.super_block(), ImageSpec::parse(path.as_ref()).shown());
        if let Some(user) = sb.users().next().filter(|user| !forced && Some(*user) != own) {
            let log = if sb.is_live() { ", and its log has to be replayed" } else { "" };
            let letter = if own.is_none() { "-F" } else { "-f" };
            let user = text::uuid(&user);
            return Err(Failure::op(format!(
                "-J device={name}: it is the journal of the file system {user}{log}; {letter} takes it from that one"
            )));
        }
        Ok(journal)
    }

    /// Opens the journal at `path` that the file system `own` has; `uuid` is the journal's.
    pub fn of(path: &str, uuid: [u8; 16], own: [u8; 16]) -> Result<Journal> {
        let journal = Journal::any(path, false)?;
        if journal.uuid == uuid && journal.file.super_block().users().any(|user| user == own) {
            return Ok(journal);
        }
        let name = ImageSpec::parse(path.as_ref()).shown();
        Err(Failure::op(format!("-J device={name}: it is the journal of another file system")))
    }

    fn any(path: &str, dry: bool) -> Result<Journal> {
        let spec = ImageSpec::parse(path.as_ref());
        let name = spec.shown();
        let unusable = |e: Error| match e {
            Error::Device(e) => e.into(),
            e => Failure::op(plain_text(&format!(
                "-J device={name}: {e}; 'extant mkfs -O journal_dev {name}' makes one"
            ))),
        };
        let device = open_device(&spec, &Access { by_superblock: true, write_member: true, ..Access::tool(dry) })?;
        let found = journal_device(&*device).map_err(unusable)?;
        let (file, uuid) = JournalFile::open_any_external(device, found.block_size).map_err(unusable)?;
        let number = match spec.is_block_device() && spec.part == Part::Any {
            true => spec.path.metadata().map_or(0, |meta| meta.rdev() as u32),
            false => 0,
        };
        Ok(Journal { file, uuid, number })
    }

    /// The facts about it that the file system records.
    pub fn external(&self) -> ExternalJournal {
        ExternalJournal { uuid: self.uuid, number: self.number, block_size: self.file.block_size() }
    }

    /// Makes the file system `user` the only one that uses the journal, whose log becomes empty.
    pub fn bind(&mut self, user: [u8; 16]) -> extant_build::Result<()> {
        let device = self.file.device().clone();
        let mut bind = || -> std::result::Result<(), Error> {
            // Later transactions have higher numbers than those that are in the log.
            wipe(&mut self.file, &*device)?;
            let mut sb = self.file.super_block().clone();
            sb.set_user(user);
            sb.errno = 0;
            self.file.write_super(sb)
        };
        bind().map_err(|e| match e {
            Error::Device(e) => extant_build::Error::Device(e),
            e => extant_build::Error::Options(format!("the journal {}: {e}", device.name())),
        })
    }

    /// Makes the journal one that no file system uses.
    pub fn release(&mut self) -> std::result::Result<(), Error> {
        let mut sb = self.file.super_block().clone();
        sb.clear_users();
        self.file.write_super(sb)
    }
}
