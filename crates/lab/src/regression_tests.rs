//! Tests of [`super`]: which losses are regressions, which are excluded, and the messages.

use super::*;
use crate::compare::groups_of;
use crate::compare::tests_support::trial;
use crate::result::Trial;

/// Ten rounds in which the contestant takes `factor` times as long, alternately plus and minus `noise`; also the counts
/// of its trials.
fn group(factor: f64, noise: f64, counts: impl Fn(&mut Trial)) -> Vec<Group> {
    let mut all = Vec::new();
    for round in 0..10 {
        let swing = if round % 2 == 0 { 1.0 + noise } else { 1.0 / (1.0 + noise) };
        all.push(trial("engine:b", round, 1.0));
        all.push(trial("engine:a", round, factor * swing));
    }
    for t in &mut all {
        t.measures.insert("device_writes".into(), 120.0);
        t.measures.insert("files_left".into(), 5.0);
        counts(t);
    }
    groups_of(all).unwrap()
}

fn answer(groups: &[Group]) -> (Answer, String) {
    let findings = judge(groups);
    assert_eq!(findings.len(), 1);
    let line = findings[0].to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
    (findings[0].answer, line)
}

fn one_write_more(t: &mut Trial) {
    if t.contestant.label == "engine:a" {
        t.measures.insert("device_writes".into(), 121.0);
    }
}

#[test]
fn an_interval_above_the_limit_excludes_it() {
    // Slower by 2 %, shown with certainty (`compare` says "worse"): no regression by [`LIMIT`].
    let groups = group(1.02, 0.001, one_write_more);
    assert_eq!(crate::compare::judge(&groups).regressions.len(), 1);
    let (is, line) = answer(&groups);
    assert_eq!(is, Answer::NoRegression, "{line}");
    assert!(line.starts_with("small-files    no regression  work.ops_per_s -1.96 % ["), "{line}");
    assert!(line.ends_with("counts not equal: device_writes"), "{line}");
}

#[test]
fn an_interval_below_the_limit_is_a_regression() {
    let (is, line) = answer(&group(1.10, 0.01, one_write_more));
    assert_eq!(is, Answer::Regressed, "{line}");
    assert!(line.contains("REGRESSED"), "{line}");
    // The same work in more time is a regression, too.
    let (is, line) = answer(&group(1.10, 0.01, |_| ()));
    assert_eq!(is, Answer::Regressed, "{line}");
}

#[test]
fn counts_decide_what_times_cannot() {
    let (is, line) = answer(&group(1.0, 0.2, |_| ()));
    assert_eq!(is, Answer::CountsEqual, "{line}");
    assert!(line.contains(" counts equal  ") && line.ends_with("all 2 counts equal"), "{line}");
    let (is, line) = answer(&group(1.0, 0.2, one_write_more));
    assert_eq!(is, Answer::Undecided, "{line}");
    assert!(line.contains("undecided") && line.contains("; about ") && line.ends_with("would decide"), "{line}");
    // A count that varies between rounds proves nothing, even if it is the same on both sides.
    let scatter = |t: &mut Trial| {
        t.measures.insert("device_writes".into(), f64::from(t.round));
    };
    assert_eq!(answer(&group(1.0, 0.2, scatter)).0, Answer::Undecided);
    // Nor does a count that a target lacks, nor the number of files.
    let lacks = |t: &mut Trial| {
        if t.contestant.label == "engine:a" {
            t.measures.remove("device_writes");
        }
    };
    assert_eq!(answer(&group(1.0, 0.2, lacks)).0, Answer::Undecided);
    let (is, line) = answer(&group(1.0, 0.2, |t| t.measures.retain(|name, _| name == "files_left")));
    assert_eq!((is, line.contains("no counts")), (Answer::Undecided, true), "{line}");
}

#[test]
fn the_exit_status_tells_worse_from_undecided() {
    let fine = judge(&group(1.0, 0.2, |_| ()));
    let undecided = judge(&group(1.0, 0.2, one_write_more));
    let worse = judge(&group(1.10, 0.01, |_| ()));
    assert_eq!(status(&[]), 0);
    assert_eq!(status(&fine), 0);
    assert_eq!(status(&[&fine[..], &undecided].concat()), 4);
    assert_eq!(status(&[fine, worse, undecided].concat()), 3);
}

/// A headline whose lower values are better is judged the same way.
#[test]
fn times_are_read_as_rates() {
    let as_time = |t: &mut Trial| {
        one_write_more(t);
        t.phases[0].operations = 1;
    };
    let (is, line) = answer(&group(1.10, 0.01, as_time));
    assert_eq!(is, Answer::Regressed, "{line}");
    assert!(line.contains("work.seconds -9."), "{line}");
    assert_eq!(answer(&group(0.5, 0.01, as_time)).0, Answer::NoRegression);
}

#[test]
fn one_round_decides_nothing() {
    let mut trials = vec![trial("engine:b", 0, 1.0), trial("engine:a", 0, 9.0)];
    let (is, line) = answer(&groups_of(trials.clone()).unwrap());
    assert_eq!((is, line.contains("without an interval")), (Answer::Undecided, true), "{line}");
    trials[1].workload.name = "no\u{1b}[2J".into();
    trials[0].workload.name = "no\u{1b}[2J".into();
    assert!(!answer(&groups_of(trials).unwrap()).1.contains('\u{1b}'));
}
