//! A large background write disturbs nobody: `extant_testkit::latency`, in virtual time.

use std::time::Duration;

use extant_testkit::latency::{Setting, measure};

const MIB: u64 = 1 << 20;

/// Says what there is.
#[test]
#[ignore = "a tool: the figures of each setting"]
fn survey() {
    for cache in [64 * MIB, 256 * MIB] {
        for rate in [25_000_000, 100_000_000] {
            let setting = Setting { cache_bytes: cache, rate, seed: 1, time: Duration::from_secs(10) };
            let begin = std::time::Instant::now();
            println!("cache {} MiB, {} MB/s: {}", cache >> 20, rate / 1_000_000, measure(setting));
            println!("took {:?}", begin.elapsed());
        }
    }
}
