//! Figures for other programs: a comparison as JSON or CSV, and the figures of every trial as CSV.
//!
//! Main items: [`comparison_json`], [`comparison_csv`], [`trials_csv`]. CSV follows RFC 4180 with a header line. It is
//! in the long form, one line for each figure of each contestant, because contestants have different figures.
//! Percentages have the same sign as in the tables: positive is better. A missing value is an empty field.
//!
//! It computes nothing. It writes no Parquet: the crate for that is larger than all other dependencies of the lab, and
//! DuckDB, pandas and Polars convert these files in one call.
//!
//! # Locking
//! None.

use serde_json::{Value, json};

use crate::compare::{Group, TableRow};
use crate::figure::{self, Direction};
use crate::result::{Outcome, Trial};
use crate::stats::{Comparison, Design, Form, Verdict};
use crate::table::change;

/// Names of the fields of [`comparison_csv`].
const COMPARISON: &[&str] = &[
    "workload",
    "point",
    "figure",
    "unit",
    "direction",
    "contestant",
    "n",
    "mean",
    "median",
    "sd",
    "min",
    "max",
    "change_percent",
    "verdict",
    "estimate",
    "low",
    "high",
    "form",
    "p",
    "verdict_in_family",
];

/// Names of the fields of [`trials_csv`], before those of swept values.
const TRIALS: &[&str] = &[
    "workload",
    "contestant",
    "round",
    "outcome",
    "started_s",
    "seed",
    "scale",
    "figure",
    "unit",
    "direction",
    "value",
];

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::HigherIsBetter => "higher",
        Direction::LowerIsBetter => "lower",
        Direction::Neither => "neither",
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Different => "different",
        Verdict::NoDifferenceShown => "no-difference-shown",
        Verdict::NotJudged => "not-judged",
    }
}

/// The estimate and its interval, with the sign of the tables, and their kind: a percentage, a multiple of the
/// baseline, or a difference in the figure's unit.
fn estimate(c: &Comparison) -> ([f64; 3], &'static str) {
    let (low, high) = c.interval;
    match (c.form, c.direction) {
        (Form::Difference, _) => ([c.estimate, low, high], "difference"),
        (Form::Ratio, Direction::Neither) => ([1.0 + c.estimate, 1.0 + low, 1.0 + high], "times"),
        (Form::Ratio, Direction::HigherIsBetter) => ([c.estimate, low, high].map(|v| v * 100.0), "percent"),
        (Form::Ratio, Direction::LowerIsBetter) => ([-c.estimate, -high, -low].map(|v| v * 100.0), "percent"),
    }
}

/// All groups of a comparison.
pub fn comparison_json(groups: &[Group]) -> Value {
    let groups: Vec<Value> = groups.iter().map(group_json).collect();
    json!({ "schema": 1, "comparisons": groups })
}

fn group_json(group: &Group) -> Value {
    let figures: Vec<Value> = group.table().iter().map(|row| figure_json(group, row)).collect();
    json!({
        "title": crate::names::title(group),
        "workload": group.workload,
        "point": group.point(),
        "headline": group.headline,
        "baseline": group.series.first().map(|s| &s.label),
        "contestants": group.labels(),
        "notes": group.notes,
        "figures": figures,
    })
}

fn figure_json(group: &Group, row: &TableRow) -> Value {
    let name = &row.row.name;
    let comparisons = group.comparisons(name);
    let cells: Vec<Value> = (0..group.series.len())
        .map(|i| {
            let label = &group.series[i].label;
            let Some(s) = group.summary(i, name) else { return json!({ "contestant": label, "n": 0 }) };
            let mut cell = json!({
                "contestant": label,
                "n": s.n,
                "mean": s.mean,
                "median": s.median,
                "sd": s.sd,
                "min": s.min,
                "max": s.max,
                "change_percent": change_percent(row, i),
                "values": group.series[i].values(name),
            });
            if let Some(c) = &comparisons[i] {
                let ([estimate, low, high], form) = estimate(c);
                cell["comparison"] = json!({
                    "verdict": verdict_name(c.verdict),
                    "verdict_in_family": row.shown[i].map(verdict_name),
                    "form": form,
                    "estimate": estimate,
                    "low": low,
                    "high": high,
                    "p": c.judged().then_some(c.p),
                    "design": match c.design {
                        Design::Paired => "paired",
                        Design::Sittings => "runs",
                        Design::Trials => "trials",
                    },
                });
            }
            cell
        })
        .collect();
    json!({
        "name": name,
        "unit": row.row.unit,
        "direction": direction_name(row.row.direction),
        "headline": *name == group.headline,
        "contestants": cells,
    })
}

fn change_percent(row: &TableRow, i: usize) -> Option<f64> {
    let (base, mean) = (row.row.means.first().copied().flatten()?, row.row.means.get(i).copied().flatten()?);
    Some(change(base, mean, row.row.direction).filter(|_| i > 0)? * 100.0)
}

/// All groups of a comparison, as CSV.
pub fn comparison_csv(groups: &[Group]) -> String {
    let mut out = line(COMPARISON.iter().map(|s| (*s).to_owned()));
    for group in groups {
        for row in group.table() {
            let name = &row.row.name;
            let comparisons = group.comparisons(name);
            for (i, comparison) in comparisons.iter().enumerate() {
                let Some(s) = group.summary(i, name) else { continue };
                let mut fields = vec![
                    group.workload.name.clone(),
                    point_text(group.point()),
                    name.clone(),
                    row.row.unit.to_owned(),
                    direction_name(row.row.direction).to_owned(),
                    group.series[i].label.clone(),
                    s.n.to_string(),
                    s.mean.to_string(),
                    s.median.to_string(),
                    optional(s.sd),
                    s.min.to_string(),
                    s.max.to_string(),
                    optional(change_percent(&row, i)),
                ];
                match comparison {
                    None => fields.resize(COMPARISON.len(), String::new()),
                    Some(c) => {
                        let ([estimate, low, high], form) = estimate(c);
                        fields.extend([
                            verdict_name(c.verdict).to_owned(),
                            estimate.to_string(),
                            low.to_string(),
                            high.to_string(),
                            form.to_owned(),
                            optional(c.judged().then_some(c.p)),
                            row.shown[i].map(verdict_name).unwrap_or_default().to_owned(),
                        ]);
                    }
                }
                out += &line(fields.into_iter());
            }
        }
    }
    out
}

/// Every figure of every trial; for a sweep, with a field for each swept value. A failed trial has a line without a
/// figure.
pub fn trials_csv(trials: &[Trial]) -> String {
    let mut swept: Vec<&String> = trials.iter().flat_map(|t| t.point.keys()).collect();
    swept.sort_unstable();
    swept.dedup();
    let names = TRIALS.iter().map(|s| (*s).to_owned()).chain(swept.iter().map(|s| (*s).clone()));
    let mut out = line(names);
    for t in trials {
        let outcome = match t.outcome {
            Outcome::Checked => "checked",
            Outcome::Unchecked => "unchecked",
            Outcome::Failed(_) => "failed",
        };
        let mut put = |figure: &str, unit: &str, direction: &str, value: String| {
            let fields = [
                t.workload.name.clone(),
                t.contestant.label.clone(),
                t.round.to_string(),
                outcome.to_owned(),
                t.started_s.to_string(),
                t.workload.seed.to_string(),
                t.workload.scale.to_string(),
                figure.to_owned(),
                unit.to_owned(),
                direction.to_owned(),
                value,
            ];
            let values = swept.iter().map(|name| t.point.get(*name).cloned().unwrap_or_default());
            out += &line(fields.into_iter().chain(values));
        };
        match t.usable() {
            false => put("", "", "", String::new()),
            true => figure::figures(t).iter().for_each(|(name, value)| {
                put(name, figure::unit(name), direction_name(figure::direction(name)), value.to_string());
            }),
        }
    }
    out
}

/// A point as text: `a=1 b=2`.
pub fn point_text(point: &std::collections::BTreeMap<String, String>) -> String {
    point.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn optional(v: Option<f64>) -> String {
    v.map(|v| v.to_string()).unwrap_or_default()
}

/// Makes a line. Fields with commas, quotes or line ends are quoted. A field that a spreadsheet would take for a
/// formula, unless it is a number, is quoted and gets a leading quote.
fn line(fields: impl Iterator<Item = String>) -> String {
    let field = |text: String| {
        let formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
        let text = if formula { format!("'{text}") } else { text };
        match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text,
        }
    };
    fields.map(field).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::groups_of;
    use crate::compare::tests_support::trial;

    fn result() -> Vec<Trial> {
        let of = |label: &str, round: u32, seconds: f64| {
            let mut t = trial(label, round, seconds);
            t.measures.insert("journal_commits".into(), seconds);
            t
        };
        (0..4u8)
            .flat_map(|r| {
                let slow = f64::from(r) * 0.01;
                [of("engine,a=1", r.into(), 1.0 + slow), of("b \"x\"", r.into(), 2.0 + slow)]
            })
            .collect()
    }

    #[test]
    fn csv_and_json_have_the_signs_of_the_table() {
        let groups = groups_of(result()).unwrap();
        let csv = comparison_csv(&groups);
        let row = |figure: &str| csv.lines().find(|l| l.contains(figure) && l.contains("b \"\"x")).unwrap().to_owned();
        assert!(row("work.ops_per_s").contains(",worse,-4"), "{csv}");
        assert!(row("work.seconds").contains(",worse,-9"), "{csv}");
        let neither = row("journal_commits");
        assert!(neither.contains(",neither,") && neither.contains(",,different,1.9"), "{neither}");
        assert!(neither.contains(",times,"), "{neither}");
        let json = comparison_json(&groups);
        let figures = json["comparisons"][0]["figures"].as_array().unwrap();
        let of = |name: &str| figures.iter().find(|f| f["name"] == name).unwrap()["contestants"][1].clone();
        assert!(of("work.seconds")["change_percent"].as_f64().unwrap() < -90.0);
        assert!(of("journal_commits")["change_percent"].is_null());
        assert_eq!(of("work.seconds")["comparison"]["verdict"], "worse");
    }

    #[test]
    fn every_line_of_csv_has_all_fields() {
        let mut trials = result();
        trials[0].point.insert("threads".into(), "16".into());
        trials[1].outcome = Outcome::Failed("a, \"b\"".into());
        for text in [trials_csv(&trials), comparison_csv(&groups_of(result()).unwrap())] {
            let fields = |l: &str| {
                let mut quoted = false;
                1 + l
                    .chars()
                    .filter(|c| {
                        quoted ^= *c == '"';
                        *c == ',' && !quoted
                    })
                    .count()
            };
            let names = fields(text.lines().next().unwrap());
            assert!(text.lines().all(|l| fields(l) == names), "{text}");
            assert!(text.lines().count() > 10);
        }
        assert_eq!(line(["=1+2", "-3", "a"].map(str::to_owned).into_iter()), "'=1+2,-3,a\r\n");
    }
}
