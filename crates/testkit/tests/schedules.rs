//! Threads, power cuts and faults under one scheduler: `extant_testkit::sched`.

use std::time::Duration;

use extant_testkit::sched::{Plan, Search, Trick, explore, repeat_line, try_plan};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn search() -> Search {
    Search {
        series: number("EXTANT_SERIES", 1),
        plans: number("EXTANT_SCHEDULES", 200),
        at_most: Duration::from_secs(number("EXTANT_SCHEDULE_SECONDS", 3600)),
        threads: 2,
        only: std::env::var("EXTANT_SCHEDULE_CONFIG").ok(),
        trick: Trick::None,
        kinds_max: number("EXTANT_SCHEDULE_KINDS", 1000) as usize,
    }
}

/// Says what it finds, and how often.
#[test]
#[ignore = "a tool: EXTANT_SCHEDULES says how many"]
fn survey() {
    let report = explore(&search());
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
        panic!("{bad}");
    }
}
