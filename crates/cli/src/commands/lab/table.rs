//! The table at the end of a run.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::Path;

use extant_lab::result::Trial;

use crate::failure::{Failure, Result};

/// Prints the headline of each contestant of the results in `dir`.
pub fn print(dir: &Path) -> Result<()> {
    let trials = extant_lab::run::load(dir).map_err(|e| Failure::op(e.to_string()))?;
    let mut labels: Vec<&str> = Vec::new();
    for trial in &trials {
        if !labels.contains(&trial.contestant.label.as_str()) {
            labels.push(&trial.contestant.label);
        }
    }
    let mut out = std::io::stdout().lock();
    for label in labels {
        let mine: Vec<&Trial> = trials.iter().filter(|t| t.contestant.label == label && t.usable()).collect();
        let mut rates: Vec<f64> = mine
            .iter()
            .filter_map(|t| t.phase(&t.workload.headline))
            .filter(|p| p.seconds > 0.0)
            .map(|p| p.operations as f64 / p.seconds)
            .collect();
        rates.sort_by(f64::total_cmp);
        let shown = rates.get(rates.len() / 2).map_or_else(|| "-".to_owned(), |m| format!("{m:.2}"));
        writeln!(out, "{label:60} {shown:>14} /s  (median of {})", rates.len())?;
    }
    Ok(())
}
