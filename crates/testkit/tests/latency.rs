//! A large background write delays no other client beyond the limits: `extant_testkit::latency`, in virtual time.
//!
//! Each cache size is combined with each device rate, for twenty seeds: two of them here, the rest in the soak test.
//! `EXTANT_LATENCY_SEEDS` sets how many `survey` prints.

use std::time::Duration;

use extant_testkit::latency::{Figures, Operation, PIECE_BYTES, Setting, measure};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn settings(seed: u64) -> impl Iterator<Item = Setting> {
    let cells = [(64, 25), (64, 100), (256, 25), (256, 100)];
    cells.into_iter().map(move |(cache_mib, megabytes)| Setting {
        cache_bytes: cache_mib * MIB,
        rate: megabytes * 1_000_000,
        seed,
        beside: None,
        hot_readings: 3,
        time: Duration::from_secs(10),
    })
}

/// The limits that the figures exceed.
fn broken(setting: &Setting, figures: &Figures) -> Vec<String> {
    let mut broken = Vec::new();
    let mut bar = |what: &str, value: u64, most: u64| {
        if value > most {
            broken.push(format!("{what}: {value}, at most {most}"));
        }
    };
    let max = |operation| figures.of(operation).max_ns();
    bar("a write of 1 MiB, ns", max(Operation::Stream), PIECE_BYTES * 1_000_000_000 / setting.rate + 100 * MS);
    bar("a write of 4 KiB, ns", max(Operation::Write), 100 * MS);
    bar("p99 of fsyncs, ns", figures.of(Operation::WriteAndSync).quantile_ns(990), 250 * MS);
    bar("a read that misses, ns", max(Operation::ReadCold), 150 * MS);
    bar("lookup and stat, ns", max(Operation::Stat), 250 * MS);
    bar("create, ns", max(Operation::Create), 250 * MS);
    // Bulk data, and one request of each other client.
    let window = setting.rate * 70 / 1000 + MIB / 2;
    bar("bytes that wait for the device", figures.waiting_bytes_max, window.max(PIECE_BYTES));
    // One write per mount may be in progress.
    let writes = 1 + u64::from(setting.beside.is_some());
    bar("memory, bytes", figures.used_max, figures.limit + writes * MIB);
    bar("the rate that the stream does not get, permille", 1000u64.saturating_sub(figures.stream_permille), 30);
    bar("hot reads that reach the device", figures.of(Operation::ReadHot).reached, 0);
    broken
}

fn check(settings: impl Iterator<Item = Setting>) {
    let mut failed = Vec::new();
    for setting in settings {
        let figures = measure(setting);
        let broken = broken(&setting, &figures);
        if !broken.is_empty() {
            failed.push(format!("{setting:?}: {}\n{figures}", broken.join("; ")));
        }
    }
    assert!(failed.is_empty(), "{} runs fail:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_stream_delays_no_other_client_beyond_the_bars() {
    check((1..=2).flat_map(settings));
}

/// A device of 100 MB/s beside one of 5 MB/s that shares its budget: the figures are the same as without it.
fn with_a_slow_neighbour(seed: u64) -> impl Iterator<Item = Setting> {
    settings(seed).filter(|s| s.rate > 50_000_000).map(|s| Setting { beside: Some(5_000_000), ..s })
}

#[test]
fn a_slow_device_in_the_same_budget_delays_no_other_client() {
    check((1..=2).flat_map(with_a_slow_neighbour));
}

#[test]
#[ignore = "long: eighteen more seeds, a minute"]
fn soak_a_stream_delays_nobody_beyond_the_bars() {
    check((3..=20).flat_map(|seed| settings(seed).chain(with_a_slow_neighbour(seed))));
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    for setting in settings(7).take(2) {
        let figures = measure(setting);
        assert_eq!(figures, measure(setting));
        assert_ne!(figures.fingerprint, measure(Setting { seed: 8, ..setting }).fingerprint);
    }
}

/// Prints the figures.
#[test]
#[ignore = "a tool: the figures of each setting"]
fn survey() {
    let seeds = std::env::var("EXTANT_LATENCY_SEEDS").map_or(1, |v| v.parse().expect("a number"));
    let first = |setting| [setting, Setting { hot_readings: 1, ..setting }];
    for setting in (1..=seeds).flat_map(settings).flat_map(first) {
        let figures = measure(setting);
        let (mib, megabytes, readings) = (setting.cache_bytes / MIB, setting.rate / 1_000_000, setting.hot_readings);
        println!("cache {mib} MiB, {megabytes} MB/s, hot data read {readings} times: {figures}");
        broken(&setting, &figures).iter().for_each(|bar| println!("  BROKEN {bar}"));
    }
}
