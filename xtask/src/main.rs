//! Automation of the repository: `cargo xtask tidy` and `cargo xtask header`.
//!
//! Main module: [`tidy`], the rules that neither the compiler nor clippy can check; [`header`], the header of
//! the C library.
//!
//! What it does not do: nothing here is needed by users of Extant, and no other package depends on it.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

mod header;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--slow] | header

  tidy          checks floors, layers, dependencies, unsafe code, module docs, file sizes, policies, wording, docs and extant.h
  tidy --slow   lists the tests that took more than ten seconds in the last `make test`
  header        writes crates/capi/include/extant.h";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::main(),
        ["tidy", "--slow"] => tidy::slow::main(),
        ["header"] => write_header(),
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

fn write_header() -> ExitCode {
    let root = tidy::root();
    let made = header::text(|path| std::fs::read_to_string(root.join(path)).ok());
    match made.and_then(|text| std::fs::write(root.join(header::PATH), text).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("header: {e}");
            ExitCode::FAILURE
        }
    }
}
