//! A directory of results: `trials.ndjson` has one line per trial, which is durable before the next trial starts.
//!
//! Main type: [`Store`].
//!
//! # Locking
//! None: lines are appended atomically, so the parts of a run may share a directory.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::result::{Contestant, Identity, SCHEMA, TRIALS, Trial};

/// The trials in `dir`. A last line without its end is left out, also if only that is missing: whatever is appended
/// would join it.
pub fn load(dir: &Path) -> Result<Vec<Trial>> {
    let path = dir.join(TRIALS);
    let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
    let mut trials = Vec::new();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.ends_with('\n')) {
        let trial = serde_json::from_str::<Trial>(line.trim_end());
        trials.push(trial.map_err(|e| Error::Failed(format!("{}:{}: {e}", path.display(), i + 1)))?);
    }
    Ok(trials)
}

/// Whether the trial belongs to the run with that identity; otherwise the first difference.
pub fn same_run(identity: &Identity, trial: &Trial) -> std::result::Result<(), String> {
    if trial.schema != SCHEMA {
        return Err(format!("schema {}, this is {SCHEMA}", trial.schema));
    }
    let Some(other) = &trial.identity else { return Err("written before results recorded their identity".into()) };
    same_identity(identity, other)
}

/// The first difference. That of the image comes last, because it follows from others, such as the seed.
pub fn same_identity(identity: &Identity, other: &Identity) -> std::result::Result<(), String> {
    let mut names: Vec<&String> = identity.keys().chain(other.keys()).collect();
    names.sort_unstable_by_key(|name| (name.as_str() == "image", *name));
    for name in names {
        let (here, there) = (identity.get(name), other.get(name));
        if here != there {
            let say = |v: Option<&String>| v.map_or("none", |v| v).to_owned();
            return Err(format!("{name}: {} there, {} here", say(there), say(here)));
        }
    }
    Ok(())
}

/// A file of results to which trials are appended.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    there: HashSet<(String, u32)>,
}

impl Store {
    /// Opens or creates `dir`. Its trials must belong to the same run.
    pub fn open<'a>(
        dir: &Path,
        identity: &Identity,
        contestants: impl Iterator<Item = &'a Contestant> + Clone,
    ) -> Result<Store> {
        std::fs::create_dir_all(dir).map_err(Error::file(dir))?;
        let path = dir.join(TRIALS);
        let file = File::options().create(true).append(true).open(&path).map_err(Error::file(&path))?;
        let trials = load(dir)?;
        for trial in &trials {
            same_run(identity, trial).map_err(|what| {
                Error::Usage(format!("{}: its results are of another run ({what}): choose another", dir.display()))
            })?;
            if contestants.clone().any(|c| c.label == trial.contestant.label && *c != trial.contestant) {
                let (dir, label) = (dir.display(), &trial.contestant.label);
                return Err(Error::Usage(format!(
                    "{dir}: the contestant {label} there has other options or another program"
                )));
            }
        }
        // A run that was killed may have left half a line.
        let text = std::fs::read(&path).map_err(Error::file(&path))?;
        let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(Error::file(&path))?;
        }
        let there = trials.into_iter().map(|t| (t.contestant.label, t.round)).collect();
        Ok(Store { path, file, there })
    }

    /// The number of rounds that have a trial.
    pub fn rounds(&self) -> u32 {
        self.there.iter().map(|(_, round)| round + 1).max().unwrap_or(0)
    }

    /// Whether this trial has already been run.
    pub fn has(&self, label: &str, round: u32) -> bool {
        self.there.contains(&(label.to_owned(), round))
    }

    /// Adds a trial; durable on return.
    pub fn append(&mut self, trial: &Trial) -> Result<()> {
        let failed = Error::file(&self.path);
        let mut line = serde_json::to_vec(trial).map_err(|e| Error::Failed(e.to_string()))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(failed)?;
        self.there.insert((trial.contestant.label.clone(), trial.round));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests_support::trial;

    #[test]
    fn a_trial_whose_line_has_no_end_is_run_again() {
        let dir = tempfile::tempdir().expect("directory");
        let trials: Vec<Trial> =
            [0, 1].map(|round| Trial { round, identity: Some(Identity::new()), ..trial("a", round, 1.0) }).into();
        let lines: Vec<String> = trials.iter().map(|t| serde_json::to_string(t).expect("a line")).collect();
        std::fs::write(dir.path().join(TRIALS), lines.join("\n")).expect("written");
        assert_eq!(load(dir.path()).expect("loads").len(), 1);
        let mut store = Store::open(dir.path(), &Identity::new(), std::iter::empty()).expect("opens");
        assert!(store.has("a", 0) && !store.has("a", 1));
        store.append(&trials[1]).expect("appends");
        assert_eq!(load(dir.path()).expect("loads").len(), 2);
    }
}
