//! Contestants by short names, and the result of a run in one sentence.
//!
//! Main items: [`Names`] (labels without their common parts), [`colours`], [`sentence`].
//!
//! It computes no statistics and draws nothing.
//!
//! # Locking
//! None.

use std::fmt::Write as _;

use extant_base::policy::Table;
use extant_fs::POLICIES;

use crate::compare::{self, Group, Series};
use crate::figure::{self, Direction};
use crate::plot::COLOURS;
use crate::stats::{Form, Verdict};
use crate::workload;

/// The maximum length of a short name, in letters.
const LETTERS_MAX: usize = 28;

/// The labels of a run's contestants, split into common and distinguishing parts.
pub struct Names {
    /// The parts that all labels share, in their order; empty for a single contestant.
    pub common: String,
    /// The parts that distinguish each label from the others. All differ.
    pub short: Vec<String>,
}

/// The colour of each contestant, by its label. A policy has the same one in every picture: that of its place among the
/// policies of its mechanism. Contestants without one, and those that would share one, get those that are left.
pub fn colours(labels: &[String]) -> Vec<usize> {
    let named = |label: &str, table: &Table| {
        let name =
            label.split(',').find_map(|part| part.strip_prefix(table.option)?.strip_prefix('=').map(str::to_owned));
        name.and_then(|name| table.rows.iter().position(|row| row.name == name))
    };
    let place = |label: &String, table: &Table| {
        named(label, table).or_else(|| table.rows.iter().position(|row| row.name == table.default))
    };
    let is_about = |table: &&Table| {
        let first = labels.first().and_then(|label| place(label, table));
        // A single contestant has the colour of the first policy that it names.
        labels.iter().any(|label| place(label, table) != first || labels.len() == 1 && named(label, table).is_some())
    };
    let table = POLICIES.iter().map(|policy| &policy.table).find(is_about);
    let wanted: Vec<_> = labels.iter().map(|label| table.and_then(|table| place(label, table))).collect();
    let mut found: Vec<Option<usize>> = Vec::new();
    for place in wanted {
        let own = place.map(|place| place % COLOURS);
        found.push(own.filter(|colour| !found.contains(&Some(*colour))));
    }
    let mut left = (0..COLOURS).filter(|colour| !found.contains(&Some(*colour))).collect::<Vec<_>>().into_iter();
    found.iter().enumerate().map(|(i, own)| own.or_else(|| left.next()).unwrap_or(i % COLOURS)).collect()
}

/// The colours as the style of an element: what `plot` draws for the contestant `i` is its colour.
pub fn style(labels: &[String]) -> String {
    let each = colours(labels).into_iter().take(COLOURS).enumerate();
    each.map(|(i, colour)| format!("--s{i}:var(--p{colour});")).collect()
}

impl Names {
    /// Shortens labels like `engine,cache=64M,mb_policy=vanilla`: comma-separated parts that all labels share are left
    /// out. If each label has one part left, all with the same key, only the values are kept.
    pub fn new(labels: &[String]) -> Names {
        let parts: Vec<Vec<&str>> = labels.iter().map(|label| label.split(',').collect()).collect();
        let shared = |part: &str| labels.len() > 1 && parts.iter().all(|other| other.contains(&part));
        let mut rest: Vec<Vec<&str>> =
            parts.iter().map(|all| all.iter().copied().filter(|part| !shared(part)).collect()).collect();
        let key = |parts: &[&str]| match parts {
            [one] => one.split_once('=').map(|(key, _)| key.to_owned()),
            _ => None,
        };
        let keys: Vec<Option<String>> = rest.iter().map(|parts| key(parts)).collect();
        let bare = rest.iter().any(Vec::is_empty);
        if bare {
            // A contestant without any distinguishing part is called by its first part, so the others keep theirs, too.
            for (rest, all) in rest.iter_mut().zip(&parts) {
                rest.splice(0..0, all.first().copied().filter(|part| shared(part)));
            }
        }
        let same_key = labels.len() > 1 && keys[0].is_some() && keys.iter().all(|key| *key == keys[0]);
        let name = |parts: &Vec<&str>| match parts.as_slice() {
            [one] if same_key => one.split_once('=').map_or(*one, |(_, value)| value).to_owned(),
            several => several.join(","),
        };
        let mut short: Vec<String> = rest.iter().map(name).collect();
        let differ = |names: &[String]| (1..names.len()).all(|i| !names[..i].contains(&names[i]));
        let cut = |name: &String| -> String {
            let letters = name.chars().count();
            if letters <= LETTERS_MAX {
                name.clone()
            } else {
                name.chars().take(LETTERS_MAX - 1).chain(['\u{2026}']).collect()
            }
        };
        let cut_short: Vec<String> = short.iter().map(cut).collect();
        if differ(&cut_short) {
            short = cut_short;
        } else if !differ(&short) {
            short = labels.to_vec();
        }
        let first = parts.first().map(Vec::as_slice).unwrap_or_default();
        let common = first.iter().copied().filter(|part| shared(part)).collect::<Vec<_>>().join(",");
        Names { common, short }
    }
}

/// A figure for readers: three significant digits, with separators for thousands.
pub fn digits(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if !(1e-6..1e15).contains(&a) => format!("{v:.2e}"),
        a if a >= 100.0 => {
            let whole = format!("{:.0}", a);
            let apart = whole.as_bytes().rchunks(3).rev().map(|three| String::from_utf8_lossy(three).into_owned());
            let sign = if v < 0.0 { "-" } else { "" };
            format!("{sign}{}", apart.collect::<Vec<_>>().join(","))
        }
        a => format!("{v:.*}", (2 - a.log10().floor() as i32).max(0) as usize),
    }
}

/// The unit of a figure, with the noun for the workload's operations: `files/s`.
pub fn unit(workload: &str, name: &str) -> String {
    match name.strip_suffix(".ops_per_s") {
        Some(phase) => {
            let counted = workload::find(workload).map_or("operations", |w| w.counted(phase));
            format!("{counted}/s")
        }
        None => figure::unit(name).to_owned(),
    }
}

/// The maximum length of a command in a title, in letters.
const COMMAND_MAX: usize = 60;

/// The work and the contestants in one line: `small-files: optimize-scan and sure-fit against vanilla (engine)`.
pub fn title(group: &Group) -> String {
    let names = Names::new(&group.labels());
    let mut text = match group.workload.parameters.get("command").and_then(|v| v.as_str()) {
        Some(command) if command.chars().count() > COMMAND_MAX => {
            command.chars().take(COMMAND_MAX - 1).chain(['\u{2026}']).collect()
        }
        Some(command) => command.to_owned(),
        None => group.workload.name.clone(),
    };
    if !group.point().is_empty() {
        let _ = write!(text, " with {}", crate::export::point_text(group.point()));
    }
    let listed = |all: &[String]| match all {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => all.join(", "),
    };
    match names.short.split_first() {
        Some((base, others)) if !others.is_empty() => {
            let _ = write!(text, ": {} against {base}", listed(others));
        }
        _ => {
            let _ = write!(text, ": {}", names.short.join(", "));
        }
    }
    if !names.common.is_empty() {
        let _ = write!(text, " ({})", names.common);
    }
    text
}

/// The result of a run in one sentence, based on its headline figure.
pub fn sentence(group: &Group, names: &Names) -> String {
    let figure = &group.headline;
    let Some(base) = group.summary(0, figure) else { return "No trial of the baseline can be used.".into() };
    let baseline = &names.short[0];
    let mut text = format!("{baseline}: {} {}", digits(base.mean), unit(&group.workload.name, figure));
    let comparisons = group.comparisons(figure);
    let shown = compare::family(&comparisons);
    let (mut same, mut none) = (Vec::new(), Vec::new());
    for (i, comparison) in comparisons.iter().enumerate().skip(1) {
        match (comparison, shown[i]) {
            (Some(c), Some(Verdict::Better | Verdict::Worse | Verdict::Different)) => {
                let how = match c.form {
                    Form::Ratio => difference(1.0 + c.estimate, figure::direction(figure) == Direction::HigherIsBetter),
                    Form::Difference => format!("{} more", digits(c.estimate)),
                };
                let _ = write!(text, "; {}: {how}", names.short[i]);
            }
            (Some(c), _) if c.verdict != Verdict::NotJudged => same.push(names.short[i].as_str()),
            _ => none.push(names.short[i].as_str()),
        }
    }
    if !same.is_empty() {
        let _ = write!(text, "; {}: no difference shown", same.join(", "));
    }
    if !none.is_empty() {
        let _ = write!(text, "; {}: no verdict", none.join(", "));
    }
    text.push('.');
    let first = group.series.iter().flat_map(Series::trials).min_by_key(|t| (t.started_s, t.started_ns));
    if let Some(environment) = first.map(|t| &t.environment)
        && environment.load > environment.cores as f64
        && !same.is_empty()
    {
        let load = digits(environment.load);
        let _ = write!(
            text,
            " The machine was busy when this began (load {load} on {} processors), so that a difference may have been missed.",
            environment.cores
        );
    }
    text
}

/// A ratio to the baseline in words.
fn difference(ratio: f64, rate: bool) -> String {
    let (more, less) = if rate { ("times as fast", "times slower") } else { ("times as much", "times less") };
    let percent = digits(100.0 * (ratio - 1.0).abs());
    match ratio {
        r if r >= 2.0 => format!("{} {more}", digits(r)),
        r if r <= 0.5 => format!("{} {less}", digits(1.0 / r)),
        r if r >= 1.0 => format!("{percent} % {}", if rate { "faster" } else { "more" }),
        _ => format!("{percent} % {}", if rate { "slower" } else { "less" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::groups_of;
    use crate::compare::tests_support::trial;

    fn short(labels: &[&str]) -> (String, Vec<String>) {
        let names = Names::new(&labels.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        (names.common, names.short)
    }

    #[test]
    fn a_policy_has_one_colour_in_every_picture() {
        let colours = |labels: &[&str]| colours(&labels.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        let all: Vec<String> =
            POLICIES[0].table.rows.iter().map(|r| format!("{}={}", POLICIES[0].table.option, r.name)).collect();
        let places = super::colours(&all);
        assert_eq!(places[..6.min(places.len())], [0, 1, 2, 3, 4, 5][..6.min(places.len())]);
        // Alone, beside others, and in another order.
        for (place, label) in all.iter().enumerate().take(COLOURS) {
            assert_eq!(colours(&[label]), [place]);
            let next = (place + 1) % all.len().min(COLOURS);
            assert_eq!(colours(&[&all[next], &format!("engine,{label}")]), [next, place]);
        }
        // The default is the one of a contestant that names none.
        let default = POLICIES[0].table.rows.iter().position(|r| r.name == POLICIES[0].table.default);
        let other = usize::from(default == Some(0));
        assert_eq!(colours(&["engine", &format!("engine,{}", all[other])]), [default.unwrap_or(9), other]);
        assert_eq!(colours(&["kernel", "engine", "mount"]), [0, 1, 2]);
        assert_eq!(colours(&["engine,mb_policy=vanilla", "engine,mb_policy=vanilla,cache=1M"]).len(), 2);
        assert_eq!(style(&["kernel".into()]), "--s0:var(--p0);");
    }

    #[test]
    fn shared_parts_are_said_once() {
        let all = short(&["engine,cache=64M,mb_policy=vanilla", "engine,cache=64M,mb_policy=sure-fit"]);
        assert_eq!(all, ("engine,cache=64M".into(), vec!["vanilla".into(), "sure-fit".into()]));
        let all = short(&["kernel", "kernel,mb_optimize_scan=1", "engine"]);
        assert_eq!(all, (String::new(), vec!["kernel".into(), "kernel,mb_optimize_scan=1".into(), "engine".into()]));
        let all = short(&["kernel", "kernel,mb_optimize_scan=1"]);
        assert_eq!(all, ("kernel".into(), vec!["kernel".into(), "kernel,mb_optimize_scan=1".into()]));
        assert_eq!(short(&["engine,io=direct"]), (String::new(), vec!["engine,io=direct".into()]));
        let long = "x".repeat(40);
        let all = short(&[&format!("{long}1"), &format!("{long}2")]).1;
        assert_ne!(all[0], all[1], "cut only where they still differ");
    }

    #[test]
    fn three_digits() {
        for (v, text) in [
            (0.0, "0"),
            (10340.58, "10,341"),
            (1234567.0, "1,234,567"),
            (-999.6, "-1,000"),
            (12.345, "12.3"),
            (0.012_34, "0.0123"),
        ] {
            assert_eq!(digits(v), text);
        }
    }

    /// Five rounds of a baseline, of a contestant that takes 1.3 times as long, and of one that varies around the
    /// baseline.
    fn result(load: f64) -> Group {
        let seconds = [("engine,p=a", [1.0; 5]), ("engine,p=b", [1.3; 5]), ("engine,p=c", [0.9, 1.2, 0.8, 1.1, 1.0])];
        let trials = (0..5).flat_map(|round| {
            seconds.map(|(label, seconds)| {
                let mut t = trial(label, round, seconds[round as usize] + f64::from(round) * 0.01);
                (t.environment.cores, t.environment.load) = (2, if round == 0 { load } else { 9.0 });
                t
            })
        });
        groups_of(trials.collect()).expect("comparable").remove(0)
    }

    #[test]
    fn a_result_is_a_sentence_that_names_a_busy_machine_where_that_may_hide_a_difference() {
        let group = result(0.5);
        let text = sentence(&group, &Names::new(&group.labels()));
        assert!(text.starts_with("a: 98") && text.contains(" files/s; b: 22.") && text.contains(" % slower"), "{text}");
        assert!(text.ends_with("; c: no difference shown."), "{text}");
        let group = result(2.5);
        let text = sentence(&group, &Names::new(&group.labels()));
        assert!(text.contains("load 2.50 on 2 processors"), "{text}");
    }

    #[test]
    fn titles_name_the_work_and_the_contestants() {
        let mut group = result(0.5);
        assert_eq!(title(&group), "small-files: b and c against a (engine)");
        group.workload.parameters.insert("command".into(), "tar -xf a.tar".into());
        assert_eq!(title(&group), "tar -xf a.tar: b and c against a (engine)");
        group.series.truncate(1);
        assert_eq!(title(&group), "tar -xf a.tar: engine,p=a");
    }

    #[test]
    fn units_have_the_noun_of_the_workload() {
        assert_eq!(unit("fsmark", "fsync-2.ops_per_s"), "fsyncs/s");
        assert_eq!(unit("fsmark", "write.seconds"), "s");
        assert_eq!(unit("of another build", "x.ops_per_s"), "operations/s");
    }

    #[test]
    fn ratios_in_words() {
        assert_eq!(difference(5.0, true), "5.00 times as fast");
        assert_eq!(difference(0.2, true), "5.00 times slower");
        assert_eq!(difference(0.879, true), "12.1 % slower");
        assert_eq!(difference(1.3, false), "30.0 % more");
    }
}
