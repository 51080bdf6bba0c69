//! Tests of [`super`], against tables as printed in mailing-list threads.

use super::*;
use crate::stats::{Sample, Sitting, compare, compare_runs};

/// Lines of the table in "Reduce system disruption due to kswapd followup V3" (Mel Gorman, 2013-05-30).
#[test]
fn percentages_as_mmtests() {
    let higher = |a, b| (change(a, b, Direction::HigherIsBetter).unwrap() * 1e4).round() / 100.0;
    let lower = |a, b| (change(a, b, Direction::LowerIsBetter).unwrap() * 1e4).round() / 100.0;
    assert_eq!(higher(23117.0, 22780.0), -1.46);
    assert_eq!(higher(4208.0, 24154.0), 474.0);
    assert_eq!(higher(4104.0, 25130.0), 512.33);
    assert_eq!(lower(12.0, 7.0), 41.67);
    assert_eq!(lower(385682.0, 0.0), 100.0);
    assert_eq!(lower(65.0, 71.0), -9.23);
    // The page cache shrank by less: worse.
    assert_eq!(lower(-100.0, -50.0), -50.0);
    assert_eq!(change(0.0, 0.0, Direction::LowerIsBetter), Some(0.0));
    assert_eq!(change(0.0, 1.0, Direction::LowerIsBetter), None);
    assert_eq!(change(2.0, 3.0, Direction::Neither), None);
}

#[test]
fn mmtests_table() {
    let row = |name: &str, unit, direction, means: &[Option<f64>]| Row {
        name: name.into(),
        unit,
        direction,
        means: means.to_vec(),
    };
    let text = mmtests(
        &["vanilla".into(), "mm1-mmotm-20130522".into(), "kernel:/var/tmp/disk.img,mb_optimize_scan=1".into()],
        &[
            row("memcachetest-2385M", "1/s", Direction::HigherIsBetter, &[Some(4208.0), Some(24154.0), Some(23765.0)]),
            row("io-duration-715M", "s", Direction::LowerIsBetter, &[Some(12.0), Some(7.0), None]),
            row("majorfaults-0M", "count", Direction::LowerIsBetter, &[Some(0.0), Some(1.0), Some(0.0)]),
        ],
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[lines.len() - 3],
        "Ops memcachetest-2385M [1/s]       4208.00 (   0.00%)      24154.00 ( 474.00%)      23765.00 ( 464.76%)"
    );
    assert_eq!(
        lines[lines.len() - 2],
        "Ops io-duration-715M [s]             12.00 (   0.00%)          7.00 (  41.67%)"
    );
    assert_eq!(
        lines[lines.len() - 1],
        "Ops majorfaults-0M [count]            0.00 (   0.00%)          1.00                     0.00 (   0.00%)"
    );
    assert!(lines.iter().all(|l| l.chars().count() <= 28 + 3 * 25), "{text}");
    assert!(lines[lines.len() - 4].contains("vanilla"), "{text}");
}

#[test]
fn ministat_block() {
    let vanilla = [10.0, 11.0, 9.5, 10.4];
    let patched = [7.0, 7.9, 6.6, 7.1];
    let rows = [
        ("vanilla".to_owned(), Summary::of(&vanilla)),
        ("pat\u{1b}[31mched".to_owned(), Summary::of(&patched)),
        ("failed".to_owned(), None),
    ];
    let c = compare(&Sample::rounds(&vanilla), &Sample::rounds(&patched), Direction::LowerIsBetter);
    let text = ministat("es_shrink_scan", "count", &rows, &[None, c, None], 0.05);
    assert!(!text.contains('\u{1b}'), "no escape reaches the terminal");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "- es_shrink_scan [count] -");
    assert!(lines[5].starts_with("x   4"), "{text}");
    assert!(lines[6].starts_with("+   4"), "{text}");
    assert_eq!(lines[7], "*   0");
    assert!(lines[8].starts_with("+ pat\u{fffd}[31mched: better: +30."), "{text}");
    assert_eq!(lines[9], "* failed: no verdict: it takes two rounds on each side");
}

#[test]
fn advice_is_for_what_was_not_found() {
    let a = Sample::rounds(&[10.0, 11.0, 9.5, 10.4]);
    let b = Sample::rounds(&[10.2, 10.6, 10.0, 10.1]);
    let c = compare(&a, &b, Direction::LowerIsBetter).unwrap();
    let text = advice(&c, 0.05, "s").unwrap();
    assert!(text.contains("could have shown a difference of") && text.contains("5.00 % takes "), "{text}");
    let far = compare(&a, &Sample::rounds(&[20.0, 22.0, 19.0, 21.0]), Direction::LowerIsBetter).unwrap();
    assert_eq!(advice(&far, 0.05, "s"), None);
}

#[test]
fn two_rounds_have_no_interval() {
    let of = |n: usize| {
        let (a, b) = ([10.0, 11.0, 9.5], [10.2, 10.6, 10.0]);
        compare(&Sample::rounds(&a[..n]), &Sample::rounds(&b[..n]), Direction::LowerIsBetter).unwrap()
    };
    let text = answer(Some(&of(2)), "s");
    assert!(text.contains("(too few for an interval: 2 rounds, paired") && !text.contains('['), "{text}");
    assert_eq!(advice(&of(2), 0.05, "s"), None);
    assert!(answer(Some(&of(3)), "s").contains("] at 95% confidence") && advice(&of(3), 0.05, "s").is_some());
}

/// A verdict and the table must not show two signs for one figure.
#[test]
fn percentages_of_verdicts_have_the_signs_of_the_table() {
    let (a, b) = (Sample::rounds(&[10.0, 11.0, 9.0]), Sample::rounds(&[5.0, 5.5, 4.5]));
    for (direction, word) in [
        (Direction::LowerIsBetter, "better: +50.00 % [+50.00 %, +50.00 %]"),
        (Direction::HigherIsBetter, "worse: -50.00 % [-50.00 %, -50.00 %]"),
        (Direction::Neither, "different: 0.500 times [0.500 times, 0.500 times]"),
    ] {
        let c = compare(&a, &b, direction);
        assert!(answer(c.as_ref(), "s").starts_with(word), "{}", answer(c.as_ref(), "s"));
        let table = change(10.0, 5.0, direction).map(percent);
        assert!(table.is_none_or(|t| word.contains(&t)), "{word}");
    }
}

/// A difference without a percentage has the figure's unit. A comparison that is not judged has no p, and names the
/// unit that it compares.
#[test]
fn words_carry_their_unit_and_ground() {
    let c = compare(&Sample::rounds(&[0.0; 3]), &Sample::rounds(&[5.0; 3]), Direction::LowerIsBetter);
    assert!(answer(c.as_ref(), "B").starts_with("worse: +5 B [+5 B, +5 B] at 95%"), "{}", answer(c.as_ref(), "B"));
    let run = |v: f64| [Sitting { started_ns: 0, figures: vec![v, v * 1.1, v * 0.9] }];
    let text = answer(compare_runs(&run(1.0), &run(9.0), Direction::LowerIsBetter).as_ref(), "s");
    assert!(text.starts_with("no verdict: -800.00 % [") && !text.contains("p ="), "{text}");
    assert!(text.ends_with("(3 and 3 trials, as if every run were like these)"), "{text}");
}

#[test]
fn long_labels_are_wrapped_where_they_may() {
    assert_eq!(wrap("short", 10), ["short"]);
    assert_eq!(wrap("kernel:/tmp/a.img,x=1", 12), ["kernel:/tmp/", "a.img,x=1"]);
    assert_eq!(wrap("aaaaaaaaaaaaaaaaaaaaaaaaa", 10), ["aaaaaaaaaa", "aaaaaaaaaa", "aaaaa"]);
}
