//! Merges parts of one run, from several machines or times.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::store::{self, Store};
use crate::error::{Error, Result};
use crate::result::{TRIALS, Trial};

/// Writes the trials of `parts` into `output`, a new directory. The parts must belong to the same run and contain no
/// trial twice. Returns the number of trials.
pub fn merge(parts: &[PathBuf], output: &Path) -> Result<usize> {
    let target = output.join(TRIALS);
    if target.exists() {
        return Err(Error::Usage(format!("{} exists: merge into a new directory", target.display())));
    }
    let mut all: BTreeMap<(u32, u32, String), (&PathBuf, Trial)> = BTreeMap::new();
    let mut first: Option<(&PathBuf, Trial)> = None;
    for part in parts {
        for trial in store::load(part)? {
            let (origin, of) = first.get_or_insert_with(|| (part, trial.clone()));
            let Some(identity) = &of.identity else {
                return Err(Error::Usage(format!(
                    "{}: written before results recorded their identity",
                    origin.display()
                )));
            };
            store::same_run(identity, &trial).map_err(|what| {
                Error::Usage(format!("{} and {}: not of the same run ({what})", origin.display(), part.display()))
            })?;
            let twin = all.values().find(|(_, t)| t.contestant.label == trial.contestant.label);
            if let Some((other, _)) = twin.filter(|(_, t)| t.contestant != trial.contestant) {
                let (label, other, part) = (&trial.contestant.label, other.display(), part.display());
                return Err(Error::Usage(format!(
                    "{label} has other options or another program in {other} than in {part}"
                )));
            }
            let key = (trial.round, trial.place, trial.contestant.label.clone());
            let shown = format!("round {} of {}", trial.round + 1, trial.contestant.label);
            if let Some((other, _)) = all.insert(key, (part, trial)) {
                return Err(Error::Usage(format!("{shown} is in {} and in {}", other.display(), part.display())));
            }
        }
    }
    let Some(identity) = first.and_then(|(_, trial)| trial.identity) else {
        return Err(Error::Usage("there are no trials".into()));
    };
    let mut store = Store::open(output, &identity, std::iter::empty())?;
    for (_, trial) in all.values() {
        store.append(trial)?;
    }
    Ok(all.len())
}
