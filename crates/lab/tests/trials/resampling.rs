//! Whether comparisons keep their promised error rates on real figures.
//!
//! Pools are A/A trials: one contestant, repeatedly. Both sides of a comparison come from the same pool, so every
//! difference that is "shown" is a false positive. Two pools were recorded (the command is in their files); the others
//! are artificial, and worse than a disk.
//!
//! Rounds of one run are drawn with replacement: a round's two trials are paired, and effects that rounds share cancel.
//! Runs are consecutive parts of the recorded pools, because successive trials resemble each other. (The correlation of
//! neighbours is 0.3 and 0.4; that of trials ten apart is still 0.2 in memory.) The same draws with one side slowed
//! down show which differences are found.

use extant_lab::figure::Direction;
use extant_lab::stats::{Comparison, POWER, SITTINGS_MIN, Sample, Sitting, Verdict, compare, compare_runs};
use serde::Deserialize;

const RESAMPLINGS: usize = 10_000;

/// There are fewer if each is two runs of a thousand rounds.
const RUNS: usize = 2_000;

/// A small generator with a fixed seed, so that the rates below are the same on every machine (SplitMix64: Steele, Lea,
/// Flood, OOPSLA 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number between 0 and 1, excluding both.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn from(&mut self, pool: &[f64], n: usize) -> Vec<f64> {
        (0..n).map(|_| pool[(self.next() % pool.len() as u64) as usize]).collect()
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[derive(Deserialize)]
struct Recorded {
    seconds: Vec<f64>,
}

fn recorded(text: &str) -> Vec<f64> {
    let pool = serde_json::from_str::<Recorded>(text).unwrap().seconds;
    assert_eq!(pool.len(), 200);
    pool
}

fn memory() -> Vec<f64> {
    recorded(include_str!("../data/pool-memory.json"))
}

fn file() -> Vec<f64> {
    recorded(include_str!("../data/pool-file.json"))
}

/// One trial in ten takes on average half as long again, exponentially distributed: at times it takes two or three
/// times as long, or more.
fn heavy() -> Vec<f64> {
    let mut draw = Draw(3);
    (0..1000)
        .map(|_| {
            let quiet = (0.02 * draw.normal()).exp();
            if draw.unit() < 0.1 { quiet * (1.0 - 0.5 * draw.unit().ln()) } else { quiet }
        })
        .collect()
}

/// Pareto-distributed with exponent 1.5: the variance is infinite.
fn pareto() -> Vec<f64> {
    let mut draw = Draw(4);
    (0..1000).map(|_| draw.unit().powf(-1.0 / 1.5)).collect()
}

/// A run of `n` rounds.
fn one(draw: &mut Draw, pool: &[f64], n: usize, factor: f64) -> Comparison {
    let a = draw.from(pool, n);
    let b: Vec<f64> = draw.from(pool, n).into_iter().map(|v| v * factor).collect();
    compare(&Sample::rounds(&a), &Sample::rounds(&b), Direction::LowerIsBetter).expect("rounds enough")
}

/// The fraction of resamplings in which a contestant is reported as different from itself.
fn false_positives(pool: &[f64], n: usize) -> f64 {
    let mut draw = Draw(1);
    let shown = (0..RESAMPLINGS).filter(|_| one(&mut draw, pool, n, 1.0).verdict != Verdict::NoDifferenceShown);
    shown.count() as f64 / RESAMPLINGS as f64
}

/// The fraction in which a slowdown by 5 % is found (as worse) when a pilot of `pilot` rounds proposes how many to run,
/// and the median of the proposals.
fn found(pool: &[f64], pilot: usize) -> (f64, usize) {
    let mut draw = Draw(2);
    let mut proposals = Vec::new();
    let mut worse = 0;
    for _ in 0..RUNS {
        let rounds = one(&mut draw, pool, pilot, 1.0).rounds_to_show(0.05).unwrap_or(10_000);
        worse += usize::from(one(&mut draw, pool, rounds, 1.05).verdict == Verdict::Worse);
        proposals.push(rounds);
    }
    proposals.sort_unstable();
    (worse as f64 / RUNS as f64, proposals[RUNS / 2])
}

/// The promise: 4 to 6 % at the 5 % level, on recorded trials, with ten rounds or more; never above 6 %.
#[test]
fn a_contestant_differs_from_itself_once_in_twenty() {
    for (name, pool) in [("memory", memory()), ("file", file())] {
        for n in [5, 10, 20] {
            let rate = false_positives(&pool, n);
            println!("{name} n={n} rounds: {:.2} %", rate * 100.0);
            // The bounds hold from ten rounds on. With five rounds, a t test on bimodal times (those of the file) is
            // too cautious; docs/lab.md has the amount. It must not err in the other direction.
            let least = if n < 10 { 0.0 } else { 0.04 };
            assert!((least..=0.06).contains(&rate), "{name}, {n} rounds: {rate}");
        }
    }
}

/// The trials of a run that began at `at`; the pool is cyclic.
fn stretch(pool: &[f64], at: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| pool[(at + i) % pool.len()]).collect()
}

fn shown(base: &[Sitting], other: &[Sitting]) -> bool {
    let c = compare_runs(base, other, Direction::LowerIsBetter).expect("trials enough");
    !matches!(c.verdict, Verdict::NoDifferenceShown | Verdict::NotJudged)
}

/// A run before a change and a run after it, where nothing changed: two consecutive parts of the pool, as the machine
/// produced them. Welch's test of their trials reports 4, 11 and 29 % of such pairs as different (memory), and 15, 25
/// and 38 % (file).
#[test]
fn two_runs_one_behind_the_other_do_not_differ() {
    for (name, pool) in [("memory", memory()), ("file", file())] {
        for n in [5, 10, 20] {
            let pairs = pool.len() - 2 * n + 1;
            let sitting = |at| [Sitting { started_ns: at as u64, figures: pool[at..at + n].to_vec() }];
            let rate = (0..pairs).filter(|&at| shown(&sitting(at), &sitting(at + n))).count() as f64 / pairs as f64;
            println!("{name} n={n} before and after: {:.2} %", rate * 100.0);
            assert!(rate <= 0.06, "{name}, runs of {n} rounds: {rate}");
        }
    }
}

/// Five runs of each side: ten consecutive parts, from a random place in the pool. In each turn, which side comes first
/// is random. `factor` slows one side down.
fn sittings(draw: &mut Draw, pool: &[f64], n: usize, factor: f64) -> (Vec<Sitting>, Vec<Sitting>) {
    let at = (draw.next() % pool.len() as u64) as usize;
    let mut sides = (Vec::new(), Vec::new());
    for turn in 0..SITTINGS_MIN {
        let first = draw.unit() < 0.5;
        for (place, base) in [(2 * turn, first), (2 * turn + 1, !first)] {
            let factor = if base { 1.0 } else { factor };
            let figures = stretch(pool, at + place * n, n).iter().map(|v| v * factor).collect();
            let side = if base { &mut sides.0 } else { &mut sides.1 };
            side.push(Sitting { started_ns: place as u64, figures });
        }
    }
    sides
}

/// Sittings that take turns get a verdict, which is false in at most 6 % of cases. The verdict also has power: it finds
/// a side that takes a quarter longer.
#[test]
fn sittings_by_turns_are_judged() {
    for (name, pool) in [("memory", memory()), ("file", file())] {
        for n in [5, 10, 20] {
            let rate = |factor| {
                let mut draw = Draw(5);
                let found = (0..RESAMPLINGS).filter(|_| {
                    let (base, other) = sittings(&mut draw, &pool, n, factor);
                    shown(&base, &other)
                });
                found.count() as f64 / RESAMPLINGS as f64
            };
            let (same, slow) = (rate(1.0), rate(1.25));
            println!("{name} n={n} five sittings by turns: {:.2} % false, {:.1} % found", same * 100.0, slow * 100.0);
            assert!(same <= 0.06, "{name}, sittings of {n} rounds: {same}");
            assert!(slow >= POWER, "{name}, sittings of {n} rounds, slower by a quarter: {slow}");
        }
    }
}

/// The same sittings, but all of one side before the other's. Welch's test of them errs in 47 % of cases, because the
/// machine drifts. So they get no verdict.
#[test]
fn sittings_one_side_first_are_not_judged() {
    let (pool, n) = (memory(), 10);
    for at in 0..pool.len() {
        let side = |from: usize| -> Vec<Sitting> {
            let places = from..from + SITTINGS_MIN;
            places.map(|p| Sitting { started_ns: p as u64, figures: stretch(&pool, at + p * n, n) }).collect()
        };
        assert!(!shown(&side(0), &side(SITTINGS_MIN)), "from {at}");
    }
}

/// A t test on tails that no disk has finds fewer differences, but does not report more false ones.
#[test]
fn heavy_tails_make_it_cautious() {
    for (name, pool) in [("heavy", heavy()), ("pareto", pareto())] {
        for n in [5, 10, 20] {
            let rate = false_positives(&pool, n);
            println!("{name} n={n} rounds: {:.2} %", rate * 100.0);
            assert!(rate <= 0.06, "{name}, {n} rounds: {rate}");
        }
    }
}

/// The other promise: a slowdown by 5 % is found in at least four of five runs with as many rounds as were proposed, on
/// the recorded pools.
#[test]
fn five_percent_are_found_with_the_rounds_proposed() {
    for (name, pool) in [("memory", memory()), ("file", file()), ("heavy", heavy())] {
        for pilot in [5, 10] {
            let (rate, rounds) = found(&pool, pilot);
            println!("{name} pilot={pilot}: {:.1} % found, {rounds} rounds (median)", rate * 100.0);
            // A pilot without any of the rare slow trials cannot account for them, so no promise holds there.
            assert!(rate >= if name == "heavy" { 0.6 } else { POWER }, "{name}, pilot of {pilot}: {rate}");
        }
    }
}
