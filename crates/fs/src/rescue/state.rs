//! The state of a rescue mount.
//!
//! Main types: [`Rescue`], which is generic over the inodes so that the mount's own structure can contain it;
//! [`Survey`].
//!
//! # Locking
//! `rescue survey` (15), taken before `inode` (20), because the survey reads directories.

use std::sync::OnceLock;

use extant_base::sync::{LockClass, Mutex};
use extant_ondisk::InodeNr;

use crate::number_set::NumberSet;

static SURVEY_CLASS: LockClass = LockClass::new("rescue survey", 15);

/// The inode number of the stand-in for a missing `lost+found`. The format reserves it for a directory of deleted
/// files, which no system has ever created (`EXT2_UNDEL_DIR_INO`).
pub(crate) const LOST_FOUND: InodeNr = InodeNr(6);

/// The state that a rescue adds to a mount. `I` is a reference to an inode.
pub(crate) struct Rescue<I> {
    /// The group descriptors are intact primaries, so inodes that they mark as never used are unused. A copy is as old
    /// as the file system.
    pub trusts_descriptors: bool,
    /// The file system may have encrypted files.
    pub encrypts: bool,
    /// Replaces a root that cannot be read.
    pub root: OnceLock<I>,
    /// Replaces a missing `lost+found`.
    pub lost_found: OnceLock<I>,
    /// The real `lost+found`, if there is one; not set before the first search for it.
    pub real_lost_found: OnceLock<Option<InodeNr>>,
    survey: OnceLock<Survey>,
    surveying: Mutex<()>,
}

/// The inodes that no name refers to.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The inodes that `lost+found` shows. If one is a directory, everything below it has names.
    pub adopted: NumberSet,
    /// The adopted inodes that are directories.
    pub directories: NumberSet,
    /// The number of adopted inodes.
    pub count: u64,
    /// The numbers N for which the real `lost+found` has an entry `#N` that refers to another inode.
    pub taken: NumberSet,
}

impl<I> Rescue<I> {
    pub fn new(trusts_descriptors: bool, encrypts: bool) -> Rescue<I> {
        Rescue {
            trusts_descriptors,
            encrypts,
            root: OnceLock::new(),
            lost_found: OnceLock::new(),
            real_lost_found: OnceLock::new(),
            survey: OnceLock::new(),
            surveying: Mutex::new(&SURVEY_CLASS, ()),
        }
    }

    /// The stand-in with this inode number, if there is one.
    pub fn stand_in(&self, ino: InodeNr) -> Option<&I> {
        match ino {
            InodeNr::ROOT => self.root.get(),
            LOST_FOUND => self.lost_found.get(),
            _ => None,
        }
    }

    /// The survey, if it has already run.
    pub fn surveyed(&self) -> Option<&Survey> {
        self.survey.get()
    }

    /// The result of `survey`, which runs only once. The caller holds no lock of an inode.
    pub fn survey_by(&self, survey: impl FnOnce() -> Survey) -> &Survey {
        if let Some(done) = self.survey.get() {
            return done;
        }
        let _one = self.surveying.lock();
        self.survey.get_or_init(survey)
    }
}

impl Survey {
    /// The name of an adopted inode in `lost+found`, as e2fsck would choose it.
    pub fn name_of(&self, ino: InodeNr) -> Vec<u8> {
        let more = if self.taken.contains(ino.0.into()) { "~" } else { "" };
        format!("#{}{more}", ino.0).into_bytes()
    }

    /// The adopted inode with this name.
    pub fn find(&self, name: &[u8]) -> Option<InodeNr> {
        let ino = number_of(name.strip_suffix(b"~").unwrap_or(name))?;
        (self.adopted.contains(ino.0.into()) && self.name_of(ino) == name).then_some(ino)
    }
}

/// The number N in a name `#N`.
pub(crate) fn number_of(name: &[u8]) -> Option<InodeNr> {
    let digits = name.strip_prefix(b"#")?;
    let number = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with(['0', '+']))?;
    number.parse().ok().map(InodeNr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopted_names_lead_back_to_their_inodes_beside_other_entries_of_the_same_name() {
        let mut survey = Survey::default();
        (12..15).for_each(|n| assert_eq!(survey.adopted.insert(n), Some(true)));
        survey.taken.insert(13);
        assert_eq!(survey.name_of(InodeNr(12)), b"#12");
        assert_eq!(survey.name_of(InodeNr(13)), b"#13~");
        for ino in [12, 13, 14].map(InodeNr) {
            assert_eq!(survey.find(&survey.name_of(ino)), Some(ino));
        }
        for wrong in [&b"#13"[..], b"#12~", b"#012", b"#+12", b"12", b"#", b"#15", b"#12 ", b"#4294967308"] {
            assert_eq!(survey.find(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn a_survey_runs_once() {
        let rescue = Rescue::<()>::new(true, false);
        let mut runs = 0;
        for _ in 0..2 {
            let count = rescue.survey_by(|| {
                runs += 1;
                Survey { count: 5, ..Survey::default() }
            });
            assert_eq!(count.count, 5);
        }
        assert_eq!(runs, 1);
    }
}
