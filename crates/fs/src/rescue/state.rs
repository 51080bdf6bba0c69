//! The state of a rescue mount.
//!
//! Main types: [`Rescue`], generic in the inodes so that the mount's own structure can hold it; [`Survey`].
//!
//! # Locking
//! `rescue survey` (15), below `inode` (20), because the survey reads directories.

use std::sync::OnceLock;

use extant_base::sync::{LockClass, Mutex};
use extant_ondisk::InodeNr;

use crate::number_set::NumberSet;

static SURVEY_CLASS: LockClass = LockClass::new("rescue survey", 15);

/// The number of the directory that stands in for a missing `lost+found`. The format reserves it for a directory of
/// deleted files, which no system has ever made (`EXT2_UNDEL_DIR_INO`).
pub(crate) const LOST_FOUND: InodeNr = InodeNr(6);

/// The additions of a rescue to a mount. `I` is a reference to an inode.
pub(crate) struct Rescue<I> {
    /// The group descriptors are the primary ones and intact, so what they call unused has never been used. A copy is
    /// as old as the file system.
    pub trusts_descriptors: bool,
    /// The file system may have encrypted files.
    pub encrypts: bool,
    /// Stands in for a root that cannot be read.
    pub root: OnceLock<I>,
    /// Stands in for a `lost+found` that is not there.
    pub lost_found: OnceLock<I>,
    /// The real `lost+found`, if there is one; not set before it was looked for.
    pub real_lost_found: OnceLock<Option<InodeNr>>,
    survey: OnceLock<Survey>,
    surveying: Mutex<()>,
}

/// The inodes that no name leads to.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Those that `lost+found` shows. The tree below a directory among them has names.
    pub adopted: NumberSet,
    /// The directories among them.
    pub directories: NumberSet,
    /// How many there are.
    pub count: u64,
    /// Numbers N of which the real `lost+found` has an entry `#N` for another inode.
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

    /// The directory that stands in for the one with this number.
    pub fn stand_in(&self, ino: InodeNr) -> Option<&I> {
        match ino {
            InodeNr::ROOT => self.root.get(),
            LOST_FOUND => self.lost_found.get(),
            _ => None,
        }
    }

    /// The survey, if one was needed so far.
    pub fn surveyed(&self) -> Option<&Survey> {
        self.survey.get()
    }

    /// The result of `survey`, which runs once. The caller holds no lock of an inode.
    pub fn survey_by(&self, survey: impl FnOnce() -> Survey) -> &Survey {
        if let Some(done) = self.survey.get() {
            return done;
        }
        let _one = self.surveying.lock();
        self.survey.get_or_init(survey)
    }
}

impl Survey {
    /// The name of an adopted inode in `lost+found`, as e2fsck gives it.
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

/// N of a name `#N`.
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
