//! The headline figure of results: `run` prints it at its end, and `matrix` judges it.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::{Path, PathBuf};

use extant_lab::compare::{self, Group};
use extant_lab::result::Trial;
use extant_lab::stats::{DEFAULT_EFFECT, Summary};
use extant_lab::table::number;
use extant_lab::{figure, names};

use crate::failure::{Failure, Result};
use crate::text::shown;

/// Prints warnings about the results in `dir` and their headline, compared with the contestant `baseline`.
pub fn print(dir: &Path, baseline: &str) -> Result<()> {
    let trials = extant_lab::run::load(dir).map_err(|e| Failure::op(e.to_string()))?;
    let usable = |label: &str| trials.iter().any(|t| t.contestant.label == label && t.usable());
    let others = trials.iter().any(|t| t.contestant.label != baseline && t.usable());
    let mut out = std::io::stdout().lock();
    if !usable(baseline) || !others {
        // There is only one contestant, or only one part of a run.
        return plain(&mut out, &trials);
    }
    for group in groups(dir, baseline)? {
        writeln!(out, "{}", shown(names::title(&group).as_bytes()))?;
        writeln!(out, "{}", group.title())?;
        for note in &group.notes {
            writeln!(out, "note: {}", shown(note.as_bytes()))?;
        }
        write!(out, "{}", group.ministat(&group.headline, DEFAULT_EFFECT))?;
    }
    Ok(())
}

/// The results in `dir`, with the contestant `baseline` first.
pub fn groups(dir: &Path, baseline: &str) -> Result<Vec<Group>> {
    let sides: [Vec<PathBuf>; 1] = [vec![dir.to_owned()]];
    compare::open(&sides, Some(baseline), false).map_err(super::compare::failure)
}

/// The median headline of each contestant.
fn plain(out: &mut impl Write, trials: &[Trial]) -> Result<()> {
    let mut labels: Vec<&str> = Vec::new();
    for trial in trials {
        if !labels.contains(&trial.contestant.label.as_str()) {
            labels.push(&trial.contestant.label);
        }
    }
    for label in labels {
        let usable: Vec<&Trial> = trials.iter().filter(|t| t.contestant.label == label && t.usable()).collect();
        let label = shown(label.as_bytes());
        let Some(headline) = figure::headline_of(&usable) else {
            writeln!(out, "{label}: no trial can be used")?;
            continue;
        };
        let all = usable.iter().flat_map(|t| figure::figures(t));
        let values: Vec<f64> = all.filter(|(name, _)| *name == headline).map(|(_, v)| v).collect();
        let median = Summary::of(&values).map_or_else(|| "-".to_owned(), |s| number(s.median));
        writeln!(out, "{label}: {headline} {median} {} (median of {})", figure::unit(&headline), values.len())?;
    }
    Ok(())
}
