//! Tables in the formats of ministat and mmtests.
//!
//! Main items: [`ministat`] (one figure, all contestants, the difference and its certainty), [`mmtests`] (many figures,
//! one column per contestant, change against the first in parentheses), [`answer`] and [`advice`] (the verdict in
//! words).
//!
//! The change in parentheses follows mmtests: positive is better, whatever the better direction of the figure is. So a
//! time that falls from 12 to 7 is printed as `( 41.67%)`. The percentage of a verdict has the same sign. There is no
//! percentage if neither direction is better, or if the baseline is 0.
//!
//! It decides nothing.
//!
//! # Locking
//! None.

use std::fmt::Write as _;

use crate::figure::Direction;
use crate::stats::{Comparison, Design, Form, Summary, Verdict};

/// The signs that ministat uses for its data sets; after the last, they repeat.
const SIGNS: &[char] = &['x', '+', '*', '%', '#', '@', 'O'];

/// The number of rounds below which no interval is printed. With one degree of freedom, Student's t makes it twelve
/// standard errors wide on each side, which is meaningless.
const INTERVAL_MIN: usize = 3;

/// Width of one contestant's column of [`mmtests`]: `      4208.00 (   0.00%)`.
const COLUMN: usize = 25;

/// Text from a result for a terminal: control characters are replaced.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The change of `value` relative to `base` as mmtests prints it; 0.05 is 5 % better. None if there is no percentage:
/// if `base` is 0, if the sign changes, or if no direction is better.
pub fn change(base: f64, value: f64, direction: Direction) -> Option<f64> {
    let change = match direction {
        Direction::LowerIsBetter => (base - value) / base.abs(),
        Direction::HigherIsBetter => (value - base) / base.abs(),
        Direction::Neither => return None,
    };
    if value == base { Some(0.0) } else { Some(change).filter(|c| c.is_finite() && base * value >= 0.0) }
}

/// A figure with about six significant digits.
pub fn number(v: f64) -> String {
    match v.abs() {
        // Counts are printed as integers.
        a if v.fract() == 0.0 && a < 1e15 => format!("{v:.0}"),
        a if a >= 1e15 => format!("{v:.6e}"),
        a if a >= 1000.0 => format!("{v:.2}"),
        a if a >= 1.0 => format!("{v:.4}"),
        a if a >= 1e-4 => format!("{v:.7}"),
        _ => format!("{v:.6e}"),
    }
}

/// A percentage, such as `+3.2 %`.
pub fn percent(v: f64) -> String {
    let v = v * 100.0;
    if v.abs() >= 1000.0 { format!("{v:+.0} %") } else { format!("{v:+.2} %") }
}

/// The output of ministat: first a line of signs, then N to Stddev in `unit`, then each contestant's difference from
/// the first. CV is the coefficient of variation: the standard deviation in per cent of the mean.
pub fn ministat(
    figure: &str,
    unit: &str,
    rows: &[(String, Option<Summary>)],
    comparisons: &[Option<Comparison>],
    advice_for: f64,
) -> String {
    let mut out = format!("- {} [{unit}] -\n", plain(figure));
    let sign = |i: usize| SIGNS[i % SIGNS.len()];
    for (i, (label, _)) in rows.iter().enumerate() {
        let _ = writeln!(out, "{} {}", sign(i), plain(label));
    }
    let _ =
        writeln!(out, "    N {:>13} {:>13} {:>13} {:>13} {:>13} {:>7}", "Min", "Max", "Median", "Avg", "Stddev", "CV");
    for (i, (_, summary)) in rows.iter().enumerate() {
        let Some(s) = summary else {
            let _ = writeln!(out, "{}   0", sign(i));
            continue;
        };
        let line = format!(
            "{} {:>3} {:>13} {:>13} {:>13} {:>13} {:>13} {:>7}",
            sign(i),
            s.n,
            number(s.min),
            number(s.max),
            number(s.median),
            number(s.mean),
            s.sd.map(number).unwrap_or_default(),
            s.cv.map(|cv| format!("{:.2}%", cv * 100.0)).unwrap_or_default(),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for (i, (label, _)) in rows.iter().enumerate().skip(1) {
        let comparison = comparisons.get(i).and_then(Option::as_ref);
        let _ = writeln!(out, "{} {}: {}", sign(i), plain(label), answer(comparison, unit));
        if let Some(advice) = comparison.and_then(|c| advice(c, advice_for, unit)) {
            let _ = writeln!(out, "  {advice}");
        }
    }
    out
}

/// The verdict, the difference and its interval, in one line. `unit` is the figure's. A percentage has the sign of
/// [`change`]: positive is better. Without a better direction it is a multiple of the baseline.
pub fn answer(comparison: Option<&Comparison>, unit: &str) -> String {
    let Some(c) = comparison else {
        return "no verdict: it takes two rounds on each side".into();
    };
    let word = match c.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Different => "different",
        Verdict::NoDifferenceShown => "no difference shown",
        Verdict::NotJudged => "no verdict",
    };
    let show = |v: f64| match (c.form, c.direction) {
        (Form::Difference, _) => format!("{}{} {unit}", sign_of(v), number(v.abs())),
        (Form::Ratio, Direction::Neither) => format!("{:.3} times", 1.0 + v),
        (Form::Ratio, Direction::HigherIsBetter) => percent(v),
        (Form::Ratio, Direction::LowerIsBetter) => percent(-v),
    };
    let (low, high) = match (c.form, c.direction) {
        (Form::Ratio, Direction::LowerIsBetter) => (c.interval.1, c.interval.0),
        _ => c.interval,
    };
    let mut how = match c.design {
        Design::Paired => format!("{} rounds, paired", c.n.0),
        Design::Sittings => format!("{} and {} runs, a value each", c.n.0, c.n.1),
        Design::Trials => format!("{} and {} trials, as if every run were like these", c.n.0, c.n.1),
    };
    if c.judged() {
        how += &if c.p < 1e-4 { ", p < 0.0001".to_owned() } else { format!(", p = {:.4}", c.p) };
    }
    if c.n.0.min(c.n.1) < INTERVAL_MIN {
        return format!("{word}: {} (too few for an interval: {how})", show(c.estimate));
    }
    format!("{word}: {} [{}, {}] at 95% confidence ({how})", show(c.estimate), show(low), show(high))
}

fn sign_of(v: f64) -> &'static str {
    if v < 0.0 { "-" } else { "+" }
}

/// The difference that this many rounds could have shown, if none was found.
pub fn advice(c: &Comparison, effect: f64, unit: &str) -> Option<String> {
    if c.verdict != Verdict::NoDifferenceShown || c.n.0.min(c.n.1) < INTERVAL_MIN {
        return None;
    }
    let (what, new) = match c.design {
        Design::Sittings => ("runs", "runs of each, by turns"),
        Design::Paired | Design::Trials => ("rounds", "rounds in a new run"),
    };
    let reach = match c.form {
        Form::Ratio => percent(c.detectable).trim_start_matches('+').to_owned(),
        Form::Difference => format!("{} {unit}", number(c.detectable)),
    };
    let mut text = format!("so many {what} could have shown a difference of {reach} (power 80%)");
    if c.form == Form::Ratio {
        let wanted = percent(effect);
        let wanted = wanted.trim_start_matches('+');
        match c.rounds_to_show(effect) {
            Some(n) => {
                let _ = write!(text, "; {wanted} takes {n} {new}");
            }
            None => {
                let _ = write!(text, "; {wanted} takes more {what} than are sensible: the figures scatter too much");
            }
        }
    }
    Some(text)
}

/// One line of [`mmtests`].
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    pub direction: Direction,
    pub unit: &'static str,
    /// The mean of each contestant; None is printed as blank.
    pub means: Vec<Option<f64>>,
}

/// The table of mmtests: one column per contestant; the first is the baseline.
pub fn mmtests(labels: &[String], rows: &[Row]) -> String {
    let names: Vec<String> = rows.iter().map(|r| format!("{} [{}]", plain(&r.name), r.unit)).collect();
    let name_width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0) + 4;
    let wrapped: Vec<Vec<String>> = labels.iter().map(|l| wrap(&plain(l), COLUMN - 2)).collect();
    let mut out = String::new();
    for line in 0..wrapped.iter().map(Vec::len).max().unwrap_or(0) {
        let mut text = " ".repeat(name_width);
        for label in &wrapped {
            // Short labels are aligned with the last lines, next to their figures.
            let deepest = wrapped.iter().map(Vec::len).max().unwrap_or(0);
            let part = (line + label.len()).checked_sub(deepest).and_then(|i| label.get(i));
            let _ = write!(text, "{:>COLUMN$}", part.map_or("", String::as_str));
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
    for (row, name) in rows.iter().zip(&names) {
        let mut text = format!("Ops {name:<width$}", width = name_width - 4);
        let base = row.means.first().copied().flatten();
        let digits = digits(&row.means);
        for mean in &row.means {
            let _ = match (mean, base) {
                (None, _) => write!(text, "{:COLUMN$}", ""),
                (Some(v), Some(base)) => match change(base, *v, row.direction) {
                    Some(c) => write!(text, "{:>width$.digits$} ({:>7.2}%)", v, c * 100.0, width = COLUMN - 11),
                    None => write!(text, "{:>width$.digits$} {:10}", v, "", width = COLUMN - 11),
                },
                (Some(v), None) => write!(text, "{:>width$.digits$} {:10}", v, "", width = COLUMN - 11),
            };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
    out
}

/// Digits after the decimal point: two, as in mmtests, unless these would not show the differences.
fn digits(means: &[Option<f64>]) -> usize {
    let all = || means.iter().flatten().map(|v| v.abs());
    match all().fold(0.0, f64::max) {
        _ if all().all(|v| v.fract() == 0.0) => 2,
        most if most < 0.1 => 6,
        most if most < 10.0 => 4,
        _ => 2,
    }
}

/// Pieces of at most `width` characters, split after a comma, colon, slash or space where possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line: Vec<char> = Vec::new();
    for c in text.chars() {
        if line.len() == width {
            let cut = line.iter().rposition(|c| matches!(c, ',' | ':' | '/' | ' ' | '=')).map_or(width, |i| i + 1);
            let rest = line.split_off(cut);
            lines.push(line.iter().collect());
            line = rest;
        }
        line.push(c);
    }
    lines.push(line.iter().collect());
    lines
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
