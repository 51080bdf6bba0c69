//! Lists the tests that take longer than a test should: `cargo xtask tidy --slow`.
//!
//! Main function: [`main`]. It reads target/repeat/tests.txt, in which `scripts/repeat.py` stores the time of each test
//! of the last `make test`.
//!
//! What it does not do: it does not fail, because times depend on the machine and its load.
//!
//! # Locking
//! None.

use std::process::ExitCode;

const TIMES: &str = "target/repeat/tests.txt";
/// Seconds. A longer test belongs in `make soak`, or must be split.
const LONG: f64 = 10.0;

/// Prints the tests that took more than [`LONG`] seconds, the longest first.
pub fn main() -> ExitCode {
    let Ok(times) = std::fs::read_to_string(super::root().join(TIMES)) else {
        eprintln!("{TIMES} does not exist: run `make test` first");
        return ExitCode::FAILURE;
    };
    let long: Vec<&str> = times.lines().filter(|line| is_long(line)).collect();
    for line in &long {
        println!("{line}");
    }
    println!("{} of {} tests took more than {LONG} s", long.len(), times.lines().count());
    ExitCode::SUCCESS
}

/// Whether a line `SECONDS s NAME` describes a long test.
fn is_long(line: &str) -> bool {
    line.split_whitespace().next().and_then(|seconds| seconds.parse().ok()).is_some_and(|seconds: f64| seconds > LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_more_than_ten_seconds_is_long() {
        assert!(is_long("   10.1 s  testkit/crash: ext2"));
        assert!(!is_long("   10.0 s  testkit/crash: ext3"));
        assert!(!is_long("no time"));
    }
}
