//! Tests of [`super`]: against published values, and properties.

use super::*;
use proptest::prelude::*;

const HIGHER: Direction = Direction::HigherIsBetter;
const LOWER: Direction = Direction::LowerIsBetter;

fn one_sitting(values: &[f64]) -> [Sitting; 1] {
    [Sitting { started_ns: 0, figures: values.to_vec() }]
}

fn near(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance, "{a} is not {b}");
}

/// The data sets of ministat(1)'s manual page, and its output.
#[test]
fn summary_as_ministat() {
    let iguana = Summary::of(&[50.0, 200.0, 150.0, 400.0, 750.0, 400.0, 150.0]).unwrap();
    assert_eq!((iguana.n, iguana.min, iguana.max, iguana.median), (7, 50.0, 750.0, 200.0));
    near(iguana.mean, 300.0, 1e-9);
    near(iguana.sd.unwrap(), 238.04761, 1e-5);
    near(iguana.cv.unwrap(), 0.793492, 1e-6);
    let chameleon = Summary::of(&[150.0, 400.0, 720.0, 500.0, 930.0]).unwrap();
    near(chameleon.mean, 540.0, 1e-9);
    near(chameleon.sd.unwrap(), 299.08193, 1e-5);
    let c = compare_runs(
        &one_sitting(&[50.0, 200.0, 150.0, 400.0, 750.0, 400.0, 150.0]),
        &one_sitting(&[150.0, 400.0, 720.0, 500.0, 930.0]),
        HIGHER,
    )
    .unwrap();
    assert_eq!((c.verdict, c.design, c.n), (Verdict::NotJudged, Design::Trials, (7, 5)));
}

/// Cushny and Peebles' sleep data (R's `sleep`): hours gained under two drugs. The values are those in R's manual:
/// `t.test(extra ~ group)`, and the same with `paired = TRUE`.
#[test]
fn student_and_welch_as_r() {
    let a = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    let b = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
    let paired = compare(&Sample::rounds(&a), &Sample::rounds(&b), HIGHER).unwrap();
    assert_eq!((paired.form, paired.design, paired.verdict), (Form::Difference, Design::Paired, Verdict::Better));
    near(paired.estimate, 1.58, 1e-9);
    near(paired.interval.0, 0.7001142, 1e-6);
    near(paired.interval.1, 2.4598858, 1e-6);
    near(paired.p, 0.002833, 1e-6);
    let welch = compare_runs(&one_sitting(&a), &one_sitting(&b), LOWER).unwrap();
    assert_eq!((welch.design, welch.verdict), (Design::Trials, Verdict::NotJudged));
    near(welch.freedom, 17.776, 1e-3);
    near(welch.interval.0, -0.2054832, 1e-6);
    near(welch.interval.1, 3.3654832, 1e-6);
    near(welch.p, 0.07939, 1e-5);
}

/// Ratios, against scipy's `ttest_rel` and `ttest_ind(equal_var=False)` of the logarithms.
#[test]
fn ratios_as_scipy() {
    let a = [10.0, 11.0, 9.5, 10.4, 12.1];
    let b = [10.9, 11.4, 10.3, 11.2, 12.6];
    let paired = compare(&Sample::rounds(&a), &Sample::rounds(&b), LOWER).unwrap();
    assert_eq!((paired.form, paired.verdict), (Form::Ratio, Verdict::Worse));
    near(paired.estimate, SCIPY_PAIRED[0], 1e-9);
    near(paired.interval.0, SCIPY_PAIRED[1], 1e-6);
    near(paired.interval.1, SCIPY_PAIRED[2], 1e-6);
    near(paired.p, SCIPY_PAIRED[3], 1e-7);
    let welch = compare_runs(&one_sitting(&a), &one_sitting(&b), LOWER).unwrap();
    near(welch.estimate, SCIPY_PAIRED[0], 1e-9);
    near(welch.interval.0, SCIPY_WELCH[0], 1e-6);
    near(welch.interval.1, SCIPY_WELCH[1], 1e-6);
    near(welch.p, SCIPY_WELCH[2], 1e-7);
}

const SCIPY_PAIRED: [f64; 4] = [0.06552692471497809, 0.034747762343234366, 0.09722163082673514, 0.0038544315925386945];
const SCIPY_WELCH: [f64; 3] = [-0.05832922213147289, 0.2056736324157989, 0.26796183747154495];

#[test]
fn too_little_to_say() {
    let one = Sample::rounds(&[1.0]);
    let three = Sample::rounds(&[1.0, 2.0, 3.0]);
    assert_eq!(compare(&one, &three, LOWER), None);
    assert_eq!(compare(&three, &one, LOWER), None);
    assert_eq!(compare(&Sample::default(), &Sample::default(), LOWER), None);
    assert_eq!(compare(&three, &Sample::rounds(&[1.0, f64::NAN, 1.0]), LOWER), None);
    assert_eq!(Summary::of(&[]), None);
    assert_eq!(Summary::of(&[f64::INFINITY]), None);
    let single = Summary::of(&[4.0]).unwrap();
    assert_eq!((single.sd, single.cv), (None, None));
    assert_eq!(Summary::of(&[0.0, 0.0]).unwrap().cv, None);
}

#[test]
fn only_rounds_of_both_are_paired() {
    let base = Sample { figures: vec![(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0)] };
    let other = Sample { figures: vec![(3, 8.8), (1, 2.2), (2, 4.4)] };
    let c = compare(&base, &other, LOWER).unwrap();
    assert_eq!((c.design, c.n), (Design::Paired, (3, 3)));
    near(c.estimate, 0.1, 1e-12);
    // A round that ran twice has no unique partner.
    let twice = Sample { figures: vec![(1, 2.2), (1, 2.3), (2, 4.4)] };
    assert_eq!(compare(&base, &twice, LOWER).unwrap().design, Design::Trials);
    // One common round is not enough for pairing.
    let apart = Sample { figures: vec![(3, 8.8), (4, 2.2)] };
    assert_eq!(compare(&base, &apart, LOWER).unwrap().design, Design::Trials);
}

/// Counts that are the same in every round: any difference is shown, and equal counts show none.
#[test]
fn exact_counts() {
    let c = compare(&Sample::rounds(&[120.0; 4]), &Sample::rounds(&[96.0; 4]), LOWER).unwrap();
    assert_eq!((c.verdict, c.p, c.detectable), (Verdict::Better, 0.0, 0.0));
    near(c.estimate, -0.2, 1e-12);
    near(c.interval.0, -0.2, 1e-12);
    assert_eq!(c.rounds_to_show(0.05), Some(2));
    let c = compare(&Sample::rounds(&[0.1, 0.2, 0.3]), &Sample::rounds(&[0.1, 0.2, 0.3]), LOWER).unwrap();
    assert_eq!((c.verdict, c.p), (Verdict::NoDifferenceShown, 1.0));
    let c = compare(&Sample::rounds(&[0.0; 3]), &Sample::rounds(&[5.0; 3]), Direction::Neither).unwrap();
    assert_eq!((c.form, c.verdict, c.estimate), (Form::Difference, Verdict::Different, 5.0));
    // 0.3/0.1 and 3 differ in the last bit only.
    let c = compare(&Sample::rounds(&[0.1, 0.2, 0.7]), &Sample::rounds(&[0.3, 0.6, 2.1]), LOWER).unwrap();
    assert_eq!((c.verdict, c.p), (Verdict::Worse, 0.0));
}

/// Holm 1979 by hand: 0.01 < 0.05/4, 0.013 < 0.05/3, 0.03 > 0.05/2 stops it.
#[test]
fn families() {
    assert_eq!(holm(&[0.03, 0.01, 0.013, 0.2], 0.05), [false, true, true, false]);
    assert_eq!(holm(&[0.04], 0.05), [true]);
    assert!(holm(&[], 0.05).is_empty());
}

/// Sittings of one trial each, in the order `a b b a a b ...`.
fn by_turns(a: &[f64], b: &[f64]) -> (Vec<Sitting>, Vec<Sitting>) {
    let side = |v: &[f64], odd: u64| {
        (0..).zip(v).map(|(i, v)| Sitting { started_ns: 2 * i + ((i % 2) ^ odd), figures: vec![*v] }).collect()
    };
    (side(a, 0), side(b, 1))
}

/// Rounds of one run, or alternating sittings of as many runs.
fn by(paired: bool, a: &[f64], b: &[f64]) -> Comparison {
    if paired {
        return compare(&Sample::rounds(a), &Sample::rounds(b), LOWER).unwrap();
    }
    let (a, b) = by_turns(a, b);
    compare_runs(&a, &b, LOWER).unwrap()
}

/// The order of the sittings decides whether there is a verdict.
#[test]
fn runs_are_judged_by_sittings_that_took_turns() {
    let (fast, slow) = ([1.0, 1.1, 0.9, 1.05, 0.95], [2.0, 2.1, 1.9, 2.05, 1.95]);
    let (a, b) = by_turns(&fast, &slow);
    let c = compare_runs(&a, &b, LOWER).unwrap();
    assert_eq!((c.design, c.n, c.verdict), (Design::Sittings, (5, 5), Verdict::Worse));
    assert!(c.rounds_to_show(0.5).unwrap() >= SITTINGS_MIN);
    // The trials of a sitting count as one value: ten times as many trials are not ten times the evidence.
    let often = |side: &[Sitting]| -> Vec<Sitting> {
        side.iter().map(|s| Sitting { figures: vec![s.figures[0]; 10], ..*s }).collect()
    };
    let many = compare_runs(&often(&a), &often(&b), LOWER).unwrap();
    assert_eq!((many.n, many.verdict), ((5, 5), Verdict::Worse));
    near(many.p, c.p, 1e-9);
    // Four turns, or all of one side first: the difference and its interval, but no verdict.
    let four = compare_runs(&a[..4], &b, LOWER).unwrap();
    assert_eq!((four.design, four.verdict, four.judged()), (Design::Sittings, Verdict::NotJudged, false));
    near(four.estimate, 0.9726, 0.05);
    assert!(four.interval.0 > 0.5 && four.interval.1 < 2.0);
    let later: Vec<Sitting> = b.iter().map(|s| Sitting { started_ns: s.started_ns + 100, ..s.clone() }).collect();
    assert_eq!(turns(&a, &later).len(), 1);
    assert_eq!(compare_runs(&a, &later, LOWER).unwrap().verdict, Verdict::NotJudged);
    // One sitting of each: the trials are the only values.
    let c = compare_runs(&one_sitting(&fast), &one_sitting(&slow), LOWER).unwrap();
    assert_eq!((c.design, c.n, c.verdict), (Design::Trials, (5, 5), Verdict::NotJudged));
    assert_eq!(c.rounds_to_show(0.05), None);
    assert_eq!(compare_runs(&[], &b, LOWER), None);
    assert_eq!(compare_runs(&one_sitting(&[]), &b, LOWER), None);
}

/// A sum beyond the largest number has no mean, and its comparison is None.
#[test]
fn figures_at_the_end_of_numbers() {
    let huge = Sample::rounds(&[f64::MAX, f64::MAX, 0.0]);
    assert_eq!(compare(&huge, &Sample::rounds(&[-f64::MAX, -f64::MAX, 0.0]), LOWER), None);
}

fn positive() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(1e-3f64..1e6, 2..12)
}

proptest! {
    #[test]
    fn a_summary_is_ordered(values in positive()) {
        let s = Summary::of(&values).unwrap();
        prop_assert!(s.min <= s.lower_quartile && s.lower_quartile <= s.median);
        prop_assert!(s.median <= s.upper_quartile && s.upper_quartile <= s.max);
        prop_assert!(s.min <= s.mean * (1.0 + 1e-12) && s.mean <= s.max * (1.0 + 1e-12));
    }

    /// Time and rate of the same work give the same answer, and so does another unit.
    #[test]
    fn ratios_do_not_know_units(times in positive(), factors in proptest::collection::vec(0.5f64..2.0, 12), unit in 1e-6f64..1e6) {
        let slower: Vec<f64> = times.iter().zip(&factors).map(|(t, f)| t * f).collect();
        let by_time = compare(&Sample::rounds(&times), &Sample::rounds(&slower), LOWER).unwrap();
        let rate = |v: &[f64]| Sample::rounds(&v.iter().map(|t| unit / t).collect::<Vec<_>>());
        let by_rate = compare(&rate(&times), &rate(&slower), HIGHER).unwrap();
        prop_assert_eq!(by_time.verdict, by_rate.verdict);
        prop_assert!((by_time.p - by_rate.p).abs() < 1e-6);
        prop_assert!(((1.0 + by_time.estimate) * (1.0 + by_rate.estimate) - 1.0).abs() < 1e-6);
        prop_assert_eq!(by_time.rounds_to_show(0.05), by_rate.rounds_to_show(0.05));
    }

    /// The choice of the baseline changes the sign, but not whether there is a difference.
    #[test]
    fn sides_can_be_swapped(a in positive(), b in positive(), paired: bool) {
        let there = by(paired, &a, &b);
        let back = by(paired, &b, &a);
        prop_assert!((there.p - back.p).abs() < 1e-9);
        let swapped = match there.verdict {
            Verdict::Better => Verdict::Worse,
            Verdict::Worse => Verdict::Better,
            v => v,
        };
        prop_assert_eq!(back.verdict, swapped);
    }

    /// The interval contains the estimate, and excludes "no difference" exactly if a difference is shown.
    #[test]
    fn interval_and_verdict_agree(a in positive(), b in positive(), paired: bool) {
        let c = by(paired, &a, &b);
        let (low, high) = c.interval;
        prop_assert!(low <= c.estimate && c.estimate <= high);
        let shown = c.verdict != Verdict::NoDifferenceShown;
        if c.judged() && (c.p - ALPHA).abs() > 1e-6 {
            prop_assert_eq!(shown, low > 0.0 || high < 0.0);
        }
        prop_assert!(c.detectable >= 0.0);
    }

    /// Smaller effects need more rounds.
    #[test]
    fn proposals_fall_with_the_effect(a in positive(), b in positive(), paired: bool) {
        let c = by(paired, &a, &b);
        let rounds = |e| c.rounds_to_show(e).unwrap_or(usize::MAX);
        prop_assert!(rounds(0.01) >= rounds(0.05) && rounds(0.05) >= rounds(0.5));
        prop_assert!(rounds(0.05) >= 2);
        prop_assert_eq!(c.rounds_to_show(0.0), None);
        prop_assert_eq!(c.rounds_to_show(f64::NAN), None);
    }
}
