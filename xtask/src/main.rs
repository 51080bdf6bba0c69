//! Automation of the repository: `cargo xtask tidy`.
//!
//! Main module: [`tidy`], the rules that neither the compiler nor clippy can check.
//!
//! What it does not do: anything that a user of Extant needs. Nothing depends on this package.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--slow]

  tidy          checks floors, layers, dependencies, unsafe code, module docs, file sizes, policies, wording and docs
  tidy --slow   lists the tests that took more than ten seconds in the last `make test`";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::main(),
        ["tidy", "--slow"] => tidy::slow::main(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
