//! Whether a contestant is worse than the baseline: one answer per workload.
//!
//! Main items: [`judge`], [`Finding`], [`Answer`], [`status`]. `compare` decides whether a difference is shown; this
//! module decides whether a loss of [`LIMIT`] can be excluded, because the 95 % confidence interval of the headline
//! lies above it. If the times vary too much for that, counts decide: a contestant with exactly the same requests,
//! commits and allocations in every round did the same work. An interval below the limit is a regression, whatever the
//! counts are. Anything else is undecided, which does not mean "no regression".
//!
//! It neither runs nor reads trials.
//!
//! # Locking
//! None.

use std::fmt;

use crate::compare::{Group, REGRESSION, Series};
use crate::figure::{Direction, direction, figures, is_count};
use crate::stats::{Comparison, Design, Form};
use crate::table::{percent, plain};

/// The loss that must be excluded. Excluding a smaller loss is not worth the rounds.
pub const LIMIT: f64 = -0.03;

/// The exit status if nothing regressed, but something is undecided.
pub const UNDECIDED: u8 = 4;

/// The maximum number of counts that are named in a line.
const NAMED_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    NoRegression,
    /// The times do not decide, but the work was the same.
    CountsEqual,
    /// A loss of more than [`LIMIT`] is shown.
    Regressed,
    /// A loss of more than [`LIMIT`] is neither shown nor excluded.
    Undecided,
}

/// One contestant against the baseline in one workload. Its text is one line.
#[derive(Clone, Debug)]
pub struct Finding {
    pub workload: String,
    pub contestant: String,
    pub answer: Answer,
    figure: String,
    /// The change and the ends of its interval; positive is better. None if there are too few rounds, or the figures
    /// have no ratio.
    change: Option<[f64; 3]>,
    rounds: usize,
    counts: Counts,
    /// The number of rounds that would decide, if nothing changed. None if it is unreasonably large.
    rounds_to_decide: Option<usize>,
}

/// The comparison of the counts of two contestants.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counts {
    /// This many counts, each the same in every round of both.
    Equal(usize),
    /// Counts that are not the same in every round of both.
    Differ(Vec<String>),
    /// Neither target has counts.
    None,
}

/// All contestants of all groups against their baselines.
pub fn judge(groups: &[Group]) -> Vec<Finding> {
    groups.iter().flat_map(|g| (1..g.series.len()).map(|i| finding(g, i))).collect()
}

fn finding(group: &Group, i: usize) -> Finding {
    let comparison = group.comparison(i, &group.headline);
    let change = comparison.as_ref().and_then(|c| change(c, direction(&group.headline)));
    let counts = counts(&group.series[0], &group.series[i]);
    let answer = match (change, &counts) {
        (Some([_, _, high]), _) if high < LIMIT => Answer::Regressed,
        (Some([_, low, _]), _) if low > LIMIT => Answer::NoRegression,
        (_, Counts::Equal(_)) => Answer::CountsEqual,
        _ => Answer::Undecided,
    };
    Finding {
        workload: group.workload.name.clone(),
        contestant: group.series[i].label.clone(),
        answer,
        figure: group.headline.clone(),
        change,
        rounds: comparison.as_ref().map_or(0, |c| c.n.0),
        counts,
        rounds_to_decide: comparison.and_then(|c| c.rounds_to_show(-LIMIT)),
    }
}

/// Exit status for all findings: 0, [`REGRESSION`] or [`UNDECIDED`].
pub fn status(findings: &[Finding]) -> u8 {
    let any = |answer| findings.iter().any(|f| f.answer == answer);
    match (any(Answer::Regressed), any(Answer::Undecided)) {
        (true, _) => REGRESSION,
        (false, true) => UNDECIDED,
        (false, false) => 0,
    }
}

/// The change and its interval, expressed as for a rate: a time that doubles is a loss of 50 %.
fn change(c: &Comparison, direction: Direction) -> Option<[f64; 3]> {
    // For different runs there is no interval that could exclude anything.
    if c.form != Form::Ratio || c.design != Design::Paired {
        return None;
    }
    let (low, high) = c.interval;
    let inverse = |v: f64| 1.0 / (1.0 + v) - 1.0;
    match direction {
        Direction::LowerIsBetter => Some([inverse(c.estimate), inverse(high), inverse(low)]),
        Direction::HigherIsBetter | Direction::Neither => Some([c.estimate, low, high]),
    }
}

fn counts(base: &Series, other: &Series) -> Counts {
    let trials = || base.trials().chain(other.trials());
    let mut names: Vec<String> = trials().flat_map(figures).map(|(name, _)| name).filter(|n| is_count(n)).collect();
    names.sort();
    names.dedup();
    // The number of files left shows that the work was done, but not how.
    if names.iter().all(|n| n == "files_left") {
        return Counts::None;
    }
    let all = trials().count();
    let same = |name: &str| {
        let values: Vec<f64> = [base, other].iter().flat_map(|s| s.values(name)).collect();
        values.len() == all && values.windows(2).all(|w| w[0] == w[1])
    };
    let differ: Vec<String> = names.iter().filter(|n| !same(n)).cloned().collect();
    if differ.is_empty() { Counts::Equal(names.len()) } else { Counts::Differ(differ) }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.answer {
            Answer::NoRegression => "no regression",
            Answer::CountsEqual => "counts equal",
            Answer::Regressed => "REGRESSED",
            Answer::Undecided => "undecided",
        };
        write!(f, "{:14} {word:14} {} ", plain(&self.workload), plain(&self.figure))?;
        match self.change {
            Some([change, low, high]) => write!(
                f,
                "{} [{}, {}] at 95% confidence ({} rounds)",
                percent(change),
                percent(low),
                percent(high),
                self.rounds
            )?,
            None => write!(f, "without an interval")?,
        }
        match &self.counts {
            Counts::Equal(n) => write!(f, "; all {n} counts equal")?,
            Counts::Differ(names) => {
                let named: Vec<String> = names.iter().take(NAMED_MAX).map(|n| plain(n)).collect();
                let more = names.len() - named.len();
                write!(f, "; counts not equal: {}", named.join(", "))?;
                if more > 0 {
                    write!(f, " and {more} more")?;
                }
            }
            Counts::None => write!(f, "; no counts")?,
        }
        match (self.answer, self.rounds_to_decide) {
            (Answer::Undecided, Some(n)) => write!(f, "; about {n} rounds in a new run would decide"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "regression_tests.rs"]
mod tests;
