//! Statistics of a few figures: summary, difference with its confidence interval, and the number of rounds for a
//! verdict.
//!
//! Main types: [`Summary`] (of one contestant) and [`Comparison`] (of another with the baseline); [`compare`] is for
//! contestants of one run, [`compare_runs`] for those of different runs, each a [`Sitting`].
//!
//! Times and rates are positive, and disturbances multiply (a slower disk, a busier machine: "3 % longer", not "2 ms
//! longer"). So two contestants are compared by the *logarithm of the ratio*. Its spread does not grow with the figure,
//! and it is symmetric for heavy right tails, unlike a difference. The answer is a percentage, and time and rate of the
//! same work give the same verdict. If some figure is zero (a count of swaps), there is no ratio, and plain differences
//! are used. Both use Student's t test. It is paired by round if the contestants ran in the same rounds, which removes
//! effects that a round has on both. Otherwise it is Welch's test, which does not need equal variances.
//!
//! Trials of one sitting resemble each other, because the machine's load, temperature and fragmentation are the same.
//! Their spread says nothing about the next sitting. So a test that treats them as independent finds differences
//! between a run and its repetition (tests/trials/resampling.rs: in up to four of ten). Runs are therefore judged by
//! one value per sitting, and only if the two sides took turns at least [`SITTINGS_MIN`] times. Otherwise the
//! difference is printed and not judged.
//!
//! With outliers the t test loses power, but its error rate stays at or below 5 % (docs/lab.md has the measured rates).
//! Distributions and moments come from `statrs`.
//!
//! It does not know the meaning of figures; `figure` knows which direction is good.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use statrs::distribution::{ChiSquared, ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};

use crate::figure::Direction;

/// The probability of finding a difference where there is none.
pub const ALPHA: f64 = 0.05;

/// The probability of finding an existing difference; "could have shown" and "rounds proposed" are based on it.
pub const POWER: f64 = 0.80;

/// The difference for which [`Comparison::rounds_to_show`] proposes rounds by default.
pub const DEFAULT_EFFECT: f64 = 0.05;

/// The largest number of rounds that is proposed; beyond it, a quieter machine is needed.
pub const ROUNDS_MAX: usize = 10_000;

/// The number of alternating sittings per side below which different runs get no verdict.
pub const SITTINGS_MIN: usize = 5;

/// Logarithms of ratios below this are rounding errors, not differences: equal counts must compare as equal.
const ROUNDING: f64 = 1e-12;

/// One contestant's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub n: usize,
    pub min: f64,
    pub max: f64,
    pub median: f64,
    /// 25th percentile.
    pub lower_quartile: f64,
    /// 75th percentile.
    pub upper_quartile: f64,
    pub mean: f64,
    /// Standard deviation of the sample (n - 1). None for a single figure, which has no spread.
    pub sd: Option<f64>,
    /// Coefficient of variation: `sd / |mean|`. None also if the mean is 0.
    pub cv: Option<f64>,
}

impl Summary {
    /// The summary of `values`. None if there are none, or if one is not a number.
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mean = values.mean();
        let sd = (values.len() > 1).then(|| values.std_dev());
        let mut data = Data::new(values.to_vec());
        Some(Summary {
            n: values.len(),
            min: values.min(),
            max: values.max(),
            median: data.median(),
            lower_quartile: data.lower_quartile().max(values.min()),
            upper_quartile: data.upper_quartile().min(values.max()),
            mean,
            sd,
            cv: sd.filter(|_| mean != 0.0).map(|sd| sd / mean.abs()),
        })
    }
}

/// The scale of the average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Logarithms of ratios: the estimate is `other / baseline - 1`.
    Ratio,
    /// Differences: the estimate is `other - baseline`.
    Difference,
}

/// How the two sides are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Round by round, n pairs.
    Paired,
    /// One value per sitting (Welch).
    Sittings,
    /// Every trial is a value, because there are too few sittings (Welch): this gives a difference, not a verdict.
    Trials,
}

/// The answer of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// A difference is shown, in a figure without a better direction.
    Different,
    NoDifferenceShown,
    /// The runs differ, and there are not [`SITTINGS_MIN`] alternating sittings of each: the sittings may cause the
    /// difference.
    NotJudged,
}

/// The comparison of another contestant with the baseline, in one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub form: Form,
    pub design: Design,
    /// The numbers of figures of the baseline and of the other that were used; equal if paired.
    pub n: (usize, usize),
    /// See [`Form`].
    pub estimate: f64,
    /// Ends of the 95 % confidence interval of `estimate`.
    pub interval: (f64, f64),
    /// Two-sided; 0 if every round shows exactly the same difference. It has no meaning for a comparison that is not
    /// judged.
    pub p: f64,
    pub freedom: f64,
    pub verdict: Verdict,
    /// The better direction of the figure.
    pub direction: Direction,
    /// The smallest difference (in the unit of `estimate`, always positive) that this number of rounds would show with
    /// [`POWER`].
    pub detectable: f64,
    /// Standard deviation of the contribution of one round, on the scale of [`Form`] before exponentiation.
    spread: f64,
}

/// The figures of one contestant of a run, each with its round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// `(round, figure)`
    pub figures: Vec<(u32, f64)>,
}

impl Sample {
    pub fn values(&self) -> Vec<f64> {
        self.figures.iter().map(|(_, v)| *v).collect()
    }

    /// Figures of rounds 0, 1, 2...
    pub fn rounds(values: &[f64]) -> Sample {
        Sample { figures: (0..).zip(values.iter().copied()).collect() }
    }
}

/// A run, as a part of one side. It is one visit to the machine, whose trials resemble each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sitting {
    /// The start of its first trial, in nanoseconds since the epoch: it shows whether the sides took turns.
    pub started_ns: u64,
    pub figures: Vec<f64>,
}

/// Compares `other` with `base`. If at least two rounds are in both, they are paired (rounds without a partner are left
/// out). Otherwise the comparison is trial by trial and not judged. None if a side has fewer than two figures, or a
/// figure is not a number.
pub fn compare(base: &Sample, other: &Sample, direction: Direction) -> Option<Comparison> {
    let pairs = pairs(base, other);
    if pairs.len() < 2 {
        return lay(&base.values(), &other.values(), Design::Trials, direction).map(Comparison::not_judged);
    }
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    lay(&a, &b, Design::Paired, direction)
}

/// Compares runs with runs. With [`SITTINGS_MIN`] turns, each sitting that was part of one is a value, and the
/// comparison is judged. With fewer, it is not judged. Its unit is then the sitting if both sides have several,
/// otherwise the trial.
pub fn compare_runs(base: &[Sitting], other: &[Sitting], direction: Direction) -> Option<Comparison> {
    let all = || base.iter().chain(other).flat_map(|s| &s.figures);
    let value = |s: &Sitting| match all().all(|v| *v > 0.0) {
        // The mean on the scale on which sittings are compared.
        true => s.figures.iter().map(|v| v.ln()).collect::<Vec<_>>().mean().exp(),
        false => s.figures.as_slice().mean(),
    };
    let turns = turns(base, other);
    if turns.len() >= SITTINGS_MIN {
        let (a, b): (Vec<f64>, Vec<f64>) = turns.iter().map(|(a, b)| (value(a), value(b))).unzip();
        return lay(&a, &b, Design::Sittings, direction);
    }
    let (a, b, design): (Vec<f64>, Vec<f64>, _) = if base.len() > 1 && other.len() > 1 {
        (base.iter().map(value).collect(), other.iter().map(value).collect(), Design::Sittings)
    } else {
        let trials = |side: &[Sitting]| side.iter().flat_map(|s| s.figures.clone()).collect();
        (trials(base), trials(other), Design::Trials)
    };
    lay(&a, &b, design, direction).map(Comparison::not_judged)
}

/// Pairs of successive sittings, one of each side, in either order. Successive sittings of one side count for one turn:
/// otherwise a change over time would be attributed to a side.
pub fn turns<'a>(base: &'a [Sitting], other: &'a [Sitting]) -> Vec<(&'a Sitting, &'a Sitting)> {
    let mut all: Vec<(bool, &Sitting)> =
        base.iter().map(|s| (false, s)).chain(other.iter().map(|s| (true, s))).collect();
    all.sort_by_key(|(_, s)| s.started_ns);
    let mut turns = Vec::new();
    let mut waiting: Option<(bool, &Sitting)> = None;
    for (side, sitting) in all {
        match waiting.take() {
            Some((first, before)) if first != side => {
                turns.push(if side { (before, sitting) } else { (sitting, before) });
            }
            _ => waiting = Some((side, sitting)),
        }
    }
    turns
}

fn lay(a: &[f64], b: &[f64], design: Design, direction: Direction) -> Option<Comparison> {
    if a.len() < 2 || b.len() < 2 || a.iter().chain(b).any(|v| !v.is_finite()) {
        return None;
    }
    let form = if a.iter().chain(b).all(|v| *v > 0.0) { Form::Ratio } else { Form::Difference };
    let scale = |v: &f64| if form == Form::Ratio { v.ln() } else { *v };
    let a: Vec<f64> = a.iter().map(scale).collect();
    let b: Vec<f64> = b.iter().map(scale).collect();
    let moments = if design == Design::Paired { Moments::paired(&a, &b) } else { Moments::welch(&a, &b, design) };
    // Figures near the largest floating-point number have no mean.
    (moments.mean.is_finite() && moments.error.is_finite()).then(|| moments.judge(form, direction))
}

/// Figures of the rounds that are in both, once each.
fn pairs(base: &Sample, other: &Sample) -> Vec<(f64, f64)> {
    let once = |s: &Sample| {
        let mut rounds: Vec<u32> = s.figures.iter().map(|(r, _)| *r).collect();
        rounds.sort_unstable();
        rounds.dedup();
        rounds.len() == s.figures.len()
    };
    // A round that occurs twice ran twice: it is unknown which one belongs to the partner.
    if !once(base) || !once(other) {
        return Vec::new();
    }
    let partners: BTreeMap<u32, f64> = other.figures.iter().copied().collect();
    base.figures.iter().filter_map(|(round, a)| Some((*a, *partners.get(round)?))).collect()
}

/// The input of the t test, on the scale of the form.
struct Moments {
    design: Design,
    n: (usize, usize),
    mean: f64,
    /// Standard error of `mean`.
    error: f64,
    freedom: f64,
    /// See [`Comparison::spread`].
    spread: f64,
}

impl Moments {
    fn paired(a: &[f64], b: &[f64]) -> Moments {
        let d: Vec<f64> =
            a.iter().zip(b).map(|(a, b)| b - a).map(|d| if d.abs() < ROUNDING { 0.0 } else { d }).collect();
        let spread = still(d.as_slice().std_dev());
        let n = d.len();
        Moments {
            design: Design::Paired,
            n: (n, n),
            mean: d.as_slice().mean(),
            error: spread / (n as f64).sqrt(),
            freedom: (n - 1) as f64,
            spread,
        }
    }

    fn welch(a: &[f64], b: &[f64], design: Design) -> Moments {
        let (n, m) = (a.len() as f64, b.len() as f64);
        let (va, vb) = (still(a.std_dev()).powi(2) / n, still(b.std_dev()).powi(2) / m);
        let error = (va + vb).sqrt();
        // Welch and Satterthwaite's degrees of freedom.
        let freedom = if error == 0.0 {
            n + m - 2.0
        } else {
            (va + vb).powi(2) / (va.powi(2) / (n - 1.0) + vb.powi(2) / (m - 1.0))
        };
        let mean = b.mean() - a.mean();
        Moments {
            design,
            n: (a.len(), b.len()),
            mean: if mean.abs() < ROUNDING { 0.0 } else { mean },
            error,
            freedom,
            // As if both sides had as many rounds as the smaller one, and each round contributed one figure of each.
            spread: error * n.min(m).sqrt(),
        }
    }

    fn judge(&self, form: Form, direction: Direction) -> Comparison {
        let unscale = |v: f64| if form == Form::Ratio { v.exp_m1() } else { v };
        let half = quantile(1.0 - ALPHA / 2.0, self.freedom) * self.error;
        let p = if self.error > 0.0 {
            2.0 * student(self.freedom).map_or(0.5, |t| t.sf((self.mean / self.error).abs()))
        } else if self.mean == 0.0 {
            1.0
        } else {
            0.0
        };
        let verdict = match direction {
            _ if p >= ALPHA => Verdict::NoDifferenceShown,
            Direction::Neither => Verdict::Different,
            Direction::HigherIsBetter if self.mean > 0.0 => Verdict::Better,
            Direction::LowerIsBetter if self.mean < 0.0 => Verdict::Better,
            Direction::HigherIsBetter | Direction::LowerIsBetter => Verdict::Worse,
        };
        Comparison {
            form,
            design: self.design,
            n: self.n,
            estimate: unscale(self.mean),
            interval: (unscale(self.mean - half), unscale(self.mean + half)),
            p,
            freedom: self.freedom,
            verdict,
            direction,
            detectable: unscale(noncentrality(self.freedom) * self.error),
            spread: self.spread,
        }
    }
}

impl Comparison {
    fn not_judged(self) -> Comparison {
        Comparison { verdict: Verdict::NotJudged, ..self }
    }

    /// Whether a verdict was possible: only then does `p` belong to a family of tests.
    pub fn judged(&self) -> bool {
        self.verdict != Verdict::NotJudged
    }

    /// How many rounds (for [`Design::Sittings`], sittings of each side) a *new* run needs to show a difference of
    /// `effect` with [`POWER`]. For a ratio, 0.05 is 5 %; otherwise `effect` is in the figure's unit. None if there are
    /// more than [`ROUNDS_MAX`], if there is no such effect, or if the trials do not predict another run.
    ///
    /// The spread of a few rounds is itself an estimate, and too small an estimate would give too few rounds. So this
    /// uses the upper end of the one-sided 80 % confidence interval (Browne, "On the use of a pilot sample for sample
    /// size determination", Statistics in Medicine, 1995).
    pub fn rounds_to_show(&self, effect: f64) -> Option<usize> {
        let wanted = match self.form {
            Form::Ratio => effect.ln_1p(),
            Form::Difference => effect,
        };
        if !wanted.is_finite() || wanted <= 0.0 || self.design == Design::Trials {
            return None;
        }
        let spread = self.spread * self.caution();
        // A Welch comparison has as many rounds on each side, and twice the degrees of freedom.
        let freedom = |n: usize| if self.design == Design::Paired { n - 1 } else { 2 * (n - 1) } as f64;
        let enough = |n: usize| noncentrality(freedom(n)) * spread / (n as f64).sqrt() <= wanted;
        if !enough(ROUNDS_MAX) {
            return None;
        }
        // `enough` is monotonic: both factors decrease with n.
        let (mut low, mut high) = (1, ROUNDS_MAX);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if enough(middle) { high = middle } else { low = middle }
        }
        Some(if self.design == Design::Sittings { high.max(SITTINGS_MIN) } else { high })
    }

    /// The factor by which the observed spread is multiplied, so that the true spread is below the product in four of
    /// five cases.
    fn caution(&self) -> f64 {
        ChiSquared::new(self.freedom).map_or(1.0, |c| (self.freedom / c.inverse_cdf(1.0 - POWER)).sqrt().max(1.0))
    }
}

/// Which of the `p` of one family are significant at `alpha` as a family (Holm's step-down). Used for the verdict over
/// many workloads, where single tests at 5 % would be wrong in one run of three.
pub fn holm(p: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut shown = vec![false; p.len()];
    for (place, &i) in order.iter().enumerate() {
        if p[i] >= alpha / (p.len() - place) as f64 {
            break;
        }
        shown[i] = true;
    }
    shown
}

/// Treats a spread that is only rounding as zero.
fn still(sd: f64) -> f64 {
    if sd.is_nan() || sd < ROUNDING { 0.0 } else { sd }
}

fn student(freedom: f64) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, freedom).ok()
}

fn quantile(p: f64, freedom: f64) -> f64 {
    student(freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(p))
}

/// The distance in standard errors at which a true difference is found with [`POWER`]: the usual sum of two quantiles
/// of t. It is exact in the limit; the actual power is 0.73 with 2 rounds, 0.77 with 3, and 0.79 to 0.80 from 4 on.
fn noncentrality(freedom: f64) -> f64 {
    quantile(1.0 - ALPHA / 2.0, freedom) + quantile(POWER, freedom)
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
