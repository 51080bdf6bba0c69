//! docs/sources.md promises commands: each must be one that this program understands.

mod common;

use std::collections::BTreeSet;

use common::extant;
use extant_lab::{target, workload};

/// Words of a command line as a shell splits them, as far as the document goes: blanks, and double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Values of an option, both spellings.
fn values(words: &[String], option: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (i, w) in words.iter().enumerate() {
        if w == option {
            found.extend(words.get(i + 1).cloned());
        } else if let Some(v) = w.strip_prefix(option).and_then(|v| v.strip_prefix('=')) {
            found.push(v.to_owned());
        }
    }
    found
}

/// The name behind a command: ` # ES1`.
fn command(line: &str) -> (Vec<String>, String) {
    let (command, name) = line.split_once('#').unwrap_or_else(|| panic!("{line}: no name"));
    (words(command), name.trim().to_owned())
}

fn check(words: &[String], line: &str) {
    let words = words.strip_prefix(&["sudo".to_owned()][..]).unwrap_or(words);
    assert_eq!(words.first().map(String::as_str), Some("extant"), "{line}");
    // With --help last, everything before it is parsed and nothing is done.
    let mut args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    args.push("--help");
    let help = extant(&args);
    assert_eq!(help.code, Some(0), "{line}: {}", help.err);
    assert_eq!(args[0], "lab", "{line}");
    let policies = values(words, "--policy");
    match args[1] {
        "run" => {
            let found = workload::find(args[2]).unwrap_or_else(|e| panic!("{line}: {e}"));
            let mut parameters = found.parameters(1.0);
            for setting in values(words, "--set") {
                parameters.set(&setting).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
            target::contestants(&values(words, "--target"), &policies).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        "matrix" => {
            target::contestants(&[args[2].to_owned()], &policies).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        "compare" | "report" | "rerun" | "list" => {}
        other => panic!("{line}: {other}"),
    }
}

#[test]
fn every_command_of_the_sources_exists() {
    let text = include_str!("../../../docs/sources.md");
    let (mut commands, mut rows, mut in_block) = (0, 0, false);
    let mut names = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            let (words, name) = command(line);
            check(&words, line);
            assert!(names.insert(name), "{line}: this name is taken");
            commands += 1;
        } else if line.starts_with("| ") && !line.starts_with("| kind") {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(|c| c.trim_matches([' ', '|'])).collect();
            assert_eq!(cells.len(), 5, "{line}");
            assert!(["p", "t", "q"].contains(&cells[0]), "{line}");
            for part in cells[3].split(';').filter(|p| !p.trim().is_empty()) {
                let name = part.trim().split([',', ' ']).next().unwrap_or_default();
                assert!(names.contains(name), "{line}: no command {name} above");
            }
            // A figure that somebody typed in proves nothing: a result is open, or a link to an experiment.
            assert!(cells[4] == "open" || cells[4].contains("](../experiments/"), "{line}");
            rows += 1;
        }
    }
    assert!(commands >= 15 && rows >= 200, "{commands} commands, {rows} rows");
}
