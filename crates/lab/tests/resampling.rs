//! Does the judge keep its promises on figures as they are, not as a textbook has them?
//!
//! Pools of A/A trials (one contestant, again and again) are drawn from with replacement; both sides of a comparison come from
//! the same pool, so every difference that is "shown" is a false positive. Two pools were recorded (the command is in their
//! files); the others are made up, to be worse than a disk. The same draws with one side slowed by 5 % say what is found.

use extant_lab::figure::Direction;
use extant_lab::stats::{Comparison, POWER, Sample, Verdict, compare};
use serde::Deserialize;

const RESAMPLINGS: usize = 10_000;

/// Fewer where each is two runs of a thousand rounds.
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

    /// From 0 to 1, neither included.
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
    recorded(include_str!("data/pool-memory.json"))
}

fn file() -> Vec<f64> {
    recorded(include_str!("data/pool-file.json"))
}

/// One trial in ten is hit by something that adds a half of its time on average, exponentially: twice, thrice, at times more.
fn heavy() -> Vec<f64> {
    let mut draw = Draw(3);
    (0..1000)
        .map(|_| {
            let quiet = (0.02 * draw.normal()).exp();
            if draw.unit() < 0.1 { quiet * (1.0 - 0.5 * draw.unit().ln()) } else { quiet }
        })
        .collect()
}

/// Pareto with exponent 1.5: it has no variance at all.
fn pareto() -> Vec<f64> {
    let mut draw = Draw(4);
    (0..1000).map(|_| draw.unit().powf(-1.0 / 1.5)).collect()
}

fn one(draw: &mut Draw, pool: &[f64], n: usize, factor: f64, paired: bool) -> Comparison {
    let a = draw.from(pool, n);
    let b: Vec<f64> = draw.from(pool, n).into_iter().map(|v| v * factor).collect();
    let sample = |v: &[f64]| if paired { Sample::rounds(v) } else { Sample::unpaired(v) };
    compare(&sample(&a), &sample(&b), Direction::LowerIsBetter).expect("rounds enough")
}

/// Share of resamplings in which a contestant is called different from itself.
fn false_positives(pool: &[f64], n: usize, paired: bool) -> f64 {
    let mut draw = Draw(1);
    let shown =
        (0..RESAMPLINGS).filter(|_| one(&mut draw, pool, n, 1.0, paired).verdict != Verdict::NoDifferenceShown).count();
    shown as f64 / RESAMPLINGS as f64
}

/// The share in which a slowdown by 5 % is found (as worse) when a first look of `pilot` rounds proposes how many to run, and
/// the median of the proposals.
fn found(pool: &[f64], pilot: usize, paired: bool) -> (f64, usize) {
    let mut draw = Draw(2);
    let mut proposals = Vec::new();
    let mut worse = 0;
    for _ in 0..RUNS {
        let rounds = one(&mut draw, pool, pilot, 1.0, paired).rounds_to_show(0.05).unwrap_or(10_000);
        worse += usize::from(one(&mut draw, pool, rounds, 1.05, paired).verdict == Verdict::Worse);
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
            for paired in [true, false] {
                let rate = false_positives(&pool, n, paired);
                println!("{name} n={n} paired={paired}: {:.2} %", rate * 100.0);
                // The band holds from ten rounds on. With five, a t test on times with two humps (the file's) errs to the
                // cautious side; by how much is in docs/lab.md. It must not err to the other.
                let least = if n < 10 { 0.0 } else { 0.04 };
                assert!((least..=0.06).contains(&rate), "{name}, {n} rounds, paired {paired}: {rate}");
            }
        }
    }
}

/// What a t test does with tails that no disk has: it finds less, it does not lie more.
#[test]
fn heavy_tails_make_it_cautious() {
    for (name, pool) in [("heavy", heavy()), ("pareto", pareto())] {
        for n in [5, 10, 20] {
            for paired in [true, false] {
                let rate = false_positives(&pool, n, paired);
                println!("{name} n={n} paired={paired}: {:.2} %", rate * 100.0);
                assert!(rate <= 0.06, "{name}, {n} rounds, paired {paired}: {rate}");
            }
        }
    }
}

/// The other promise: a slowdown by 5 % is found in at least four of five runs of as many rounds as were proposed,
/// on the recorded pools.
#[test]
fn five_percent_are_found_with_the_rounds_proposed() {
    for (name, pool) in [("memory", memory()), ("file", file()), ("heavy", heavy())] {
        for pilot in [5, 10] {
            let (rate, rounds) = found(&pool, pilot, true);
            println!("{name} pilot={pilot}: {:.1} % found, {rounds} rounds (median)", rate * 100.0);
            // A first look that saw none of the rare slow trials cannot know of them: no promise holds there.
            assert!(rate >= if name == "heavy" { 0.6 } else { POWER }, "{name}, pilot of {pilot}: {rate}");
        }
    }
}
