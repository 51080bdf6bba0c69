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

const USAGE: &str = "usage: cargo xtask tidy\n\n  tidy   checks floors, layers, dependencies, unsafe code, module docs, file sizes, policies, wording and docs";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::main(),
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
