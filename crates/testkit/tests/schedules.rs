//! Threads, power cuts and faults under one scheduler: `extant_testkit::sched`.
//!
//! `EXTANT_SCHEDULE='config=… seed=…'`, printed with a failure, repeats one schedule (test `repeat`);
//! `EXTANT_SCHEDULE_TRACE=FILE` then stores its trace, `EXTANT_SCHEDULE_SHRINK=300` makes it smaller in so many tries.
//! `EXTANT_SCHEDULES`, `EXTANT_SERIES`, `EXTANT_SCHEDULE_CONFIG` and `EXTANT_SCHEDULE_SECONDS` are the number of
//! schedules, their series, their configuration, and the time limit.

use std::time::Duration;

use extant_testkit::sched::{CONFIGS, Plan, Search, Trick, explore, repeat_line, shrink, try_plan};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn search(plans: u64) -> Search {
    Search {
        series: number("EXTANT_SERIES", 1),
        plans: number("EXTANT_SCHEDULES", plans),
        at_most: Duration::from_secs(number("EXTANT_SCHEDULE_SECONDS", 24 * 3600)),
        only: std::env::var("EXTANT_SCHEDULE_CONFIG").ok(),
        trick: Trick::None,
        kinds_max: number("EXTANT_SCHEDULE_KINDS", 3) as usize,
    }
}

/// The first of the twenty thousand schedules that `make soak` tries.
#[test]
fn six_hundred_schedules() {
    let report = explore(&search(600));
    println!("{}", report.summary());
    report.expect_clean();
}

/// The configurations of single features, which no series selects.
const FEATURES: &[&str] = &[
    "quota",
    "large-blocks",
    "inline",
    "bigalloc",
    "bigalloc-full",
    "bigalloc-through",
    "values",
    "casefold",
    "together",
    "encrypted",
    "journal-dev",
    "mmp",
    "verity",
    "uninit-csum",
    "meta-bg-resize",
    "fast-commit",
];

/// The first ones of the two thousand of each that `make soak` tries. For a sample, e2fsck compares the usage of owners
/// with the inodes.
#[test]
fn schedules_of_single_features() {
    of_features(30);
}

#[test]
#[ignore = "long: minutes"]
fn soak_two_thousand_schedules_of_each_feature() {
    of_features(2000);
}

fn of_features(each: u64) {
    for name in FEATURES {
        let report = explore(&Search { only: Some((*name).to_owned()), ..search(each) });
        println!("{name}: {}", report.summary());
        report.expect_clean();
    }
}

/// File systems that grow meanwhile: no write goes to a wrong place, and no block is allocated twice.
#[test]
fn schedules_of_growth() {
    for name in ["grow", "grow-1k"] {
        let report = explore(&Search { only: Some(name.to_owned()), ..search(50) });
        println!("{name}: {}", report.summary());
        report.expect_clean();
    }
}

#[test]
#[ignore = "long: minutes"]
fn soak_twenty_thousand_schedules() {
    let report = explore(&search(20_000));
    println!("{}", report.summary());
    report.expect_clean();
}

#[test]
#[ignore = "long: a million schedules, an hour and a half on two processors"]
fn soak_a_million_schedules() {
    let report = explore(&Search { series: number("EXTANT_SERIES", 1000), ..search(1_000_000) });
    println!("{}", report.summary());
    report.expect_clean();
}

/// Prints the kinds of failures, and how often each occurs.
#[test]
#[ignore = "a tool: EXTANT_SCHEDULES says how many"]
fn survey() {
    let report = explore(&Search { kinds_max: 1000, ..search(200) });
    println!("{}", report.summary());
    for f in report.found.values() {
        println!("---- {}\n{}\n", repeat_line(&f.plan), f.bad.text);
    }
}

/// One schedule, named by EXTANT_SCHEDULE.
#[test]
fn repeat() {
    let Ok(line) = std::env::var("EXTANT_SCHEDULE") else { return };
    let plan: Plan = line.parse().expect("EXTANT_SCHEDULE");
    let ran = try_plan(&plan, Trick::None, true);
    println!("{} steps, {} switches, trace {:x}", ran.steps, ran.switches, ran.fingerprint);
    if let Ok(file) = std::env::var("EXTANT_SCHEDULE_TRACE") {
        std::fs::write(file, ran.trace.to_string()).expect("the trace");
    }
    if let Err(bad) = ran.result {
        if let Ok(tries) = std::env::var("EXTANT_SCHEDULE_SHRINK") {
            let (smaller, bad) = shrink(&plan, &bad, tries.parse().expect("a number of tries"));
            panic!("{bad}\nsmaller: {}", repeat_line(&smaller));
        }
        panic!("{bad}");
    }
}

/// The whole stack, including mounts and images, is determined by the seed, regardless of other load on the machine.
#[test]
fn the_same_plan_gives_the_same_trace() {
    for config in CONFIGS {
        for n in 0..3 {
            let plan = Plan::nth(77, n, Some(config.name));
            let line: Plan = plan.to_string().parse().expect("it reads what it prints");
            let (a, b) = (try_plan(&plan, Trick::None, false), try_plan(&line, Trick::None, false));
            let key = |r: &extant_testkit::sched::PlanResult| (r.fingerprint, r.steps, r.switches, r.events, r.cuts);
            assert_eq!(key(&a), key(&b), "{plan}");
        }
    }
}

/// A run on a device that lies, or on a stack that answers before the flush, must find missing data.
#[test]
fn lies_are_found() {
    let lies =
        [(Trick::LoseFlushes, 12), (Trick::LoseWrites, 25), (Trick::AnswerOneEarly, 2), (Trick::AnswerManyEarly, 2)];
    for (trick, least) in lies {
        let plans = 50;
        let found =
            (0..plans).filter(|n| try_plan(&Plan::nth(5, *n, Some("mount")), trick, false).result.is_err()).count();
        assert!(found >= least, "{trick:?}: {found} of {plans}");
    }
}
