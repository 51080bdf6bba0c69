//! docs/sources.md promises commands. Each must be valid for this program. On a machine that has the programs of the
//! contestants, each must be able to run.

use std::collections::BTreeSet;

use crate::common::{Dir, extant};
use extant_lab::{model, target, workload};
use extant_testkit::mount::{fuse_works, loop_mounts_work};

/// Splits a command line like a shell, as far as the document needs: at spaces, with double quotes.
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

/// The values of an option, in both spellings.
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

/// The command of a line, and the name in its comment: ` # ES1`.
fn command(line: &str) -> (Vec<String>, String) {
    let (command, name) = line.split_once('#').unwrap_or_else(|| panic!("{line}: no name"));
    (words(command), name.trim().to_owned())
}

/// The maximum space that a command of the document may need, bytes.
const ROOM_BYTES: u64 = 60_000_000_000;

/// Checks the contestants of a command in an empty directory, and writes nothing.
fn plan(args: &[&str], line: &str) {
    if !loop_mounts_work() || !fuse_works() || crate::common::run("sh", &["-c", "command -v fuse2fs"]).code != Some(0) {
        eprintln!("not planned: needs root, loop devices, /dev/fuse and fuse2fs: {line}");
        return;
    }
    let dir = Dir::new();
    let mut command = std::process::Command::new(crate::common::extant_path());
    let ran = command.args(args).arg("--plan").current_dir(dir.path("")).output().expect("extant");
    let said = String::from_utf8_lossy(&ran.stderr);
    // The document's work is limited above, but this disk may be smaller.
    if said.contains("MiB are free") {
        eprintln!("not planned: {said}");
        return;
    }
    assert!(ran.status.success(), "{line}: {said}");
    assert_eq!(std::fs::read_dir(dir.path("")).expect("list").count(), 0, "{line}: it wrote something");
}

fn check(words: &[String], line: &str, made: &mut BTreeSet<String>) {
    let words = words.strip_prefix(&["sudo".to_owned()][..]).unwrap_or(words);
    assert_eq!(words.first().map(String::as_str), Some("extant"), "{line}");
    // With --help last, all arguments before it are parsed, and nothing runs.
    let mut args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    args.push("--help");
    let help = extant(&args);
    assert_eq!(help.code, Some(0), "{line}: {}", help.err);
    args.pop();
    assert_eq!(args[0], "lab", "{line}");
    let policies = values(words, "--policy");
    match args[1] {
        "run" => {
            let found = workload::find(args[2]).unwrap_or_else(|e| panic!("{line}: {e}"));
            let scale = values(words, "--scale").first().map_or(1.0, |s| s.parse().expect("a number"));
            let mut parameters = found.parameters(scale);
            for setting in values(words, "--set") {
                parameters.set(&setting).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
            let bytes = found.needs(&parameters).bytes;
            let targets = values(words, "--target");
            // With this option, the data is dropped.
            let sparse = targets.iter().all(|t| t.contains("store=metadata"));
            assert!(sparse || bytes <= ROOM_BYTES, "{line}: the work takes {bytes} bytes");
            target::contestants(&targets, &policies).unwrap_or_else(|e| panic!("{line}: {e}"));
            plan(&args, line);
        }
        "matrix" => {
            target::contestants(&[args[2].to_owned()], &policies).unwrap_or_else(|e| panic!("{line}: {e}"));
            plan(&args, line);
        }
        "model" => {
            let found = model::find(args[2]).unwrap_or_else(|e| panic!("{line}: {e}"));
            let mut parameters = found.parameters();
            for setting in values(words, "--set") {
                parameters.set(&setting).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
            found.check(&parameters).unwrap_or_else(|e| panic!("{line}: {e}"));
            for name in policies.iter().flat_map(|list| list.split(',')) {
                assert!(found.policies().find(name).is_ok(), "{line}: {name}");
            }
        }
        "compare" | "report" => assert!(made.contains(args[2]), "{line}: no command above makes {}", args[2]),
        "rerun" | "list" | "age" => {}
        other => panic!("{line}: {other}"),
    }
    made.extend(values(words, "-o"));
}

/// The names after `waits:`.
fn parts(cell: &str) -> Option<Vec<&str>> {
    Some(cell.trim().strip_prefix("waits:")?.split(',').map(str::trim).collect())
}

#[test]
fn every_row_has_a_command_or_waits_for_a_part_that_is_named() {
    let text = include_str!("../../../../docs/sources.md");
    let (mut commands, mut rows, mut in_block) = (0, 0, false);
    let (mut names, mut made) = (BTreeSet::new(), BTreeSet::new());
    let (mut known, mut awaited) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            let (words, name) = command(line);
            check(&words, line, &mut made);
            assert!(names.insert(name), "{line}: this name is taken");
            commands += 1;
        } else if let Some((part, _)) = line.strip_prefix("- `").and_then(|l| l.split_once('`')) {
            assert!(known.insert(part), "{line}: this part is named twice");
        } else if line.starts_with("| ") && !line.starts_with("| kind") {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(|c| c.trim_matches([' ', '|'])).collect();
            assert_eq!(cells.len(), 5, "{line}");
            assert!(["p", "t", "q"].contains(&cells[0]), "{line}");
            for part in cells[3].split(';') {
                if let Some(parts) = parts(part) {
                    awaited.extend(parts);
                    continue;
                }
                // `MB7, MB8, ...`: names first, then the figures to read.
                let name = part.trim().split([',', ':', ' ']).next().unwrap_or_default();
                assert!(names.contains(name), "{line}: neither a command above nor what it waits for: '{name}'");
            }
            // A typed figure proves nothing: a result must be "open", or a link to an experiment.
            assert!(cells[4] == "open" || cells[4].contains("](../experiments/"), "{line}");
            let reason = cells[4].strip_prefix("nominal").and_then(|rest| rest.split('[').next());
            assert!(reason.is_none_or(|reason| reason.starts_with(": ") && reason.len() > 12), "{line}: why nominal?");
            let waits = cells[3].split(';').any(|part| parts(part).is_some());
            assert!(cells[4] == "open" || !waits, "{line}: it has a result of what it waits for");
            rows += 1;
        }
    }
    assert_eq!(known, awaited, "parts that are named, and parts that rows wait for");
    assert!(commands >= 20 && rows >= 240, "{commands} commands, {rows} rows");
}

/// Runs a script of the repository that prints differences from the stored trials.
fn agrees_with_the_trials(script: &str) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = root.join("scripts").join(script);
    let ran = std::process::Command::new("python3").arg(script).arg("--check").output().expect("python3");
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_page_of_the_threads_is_what_the_trials_say() {
    agrees_with_the_trials("threads.py");
}

#[test]
fn each_experiment_names_the_commit_the_machine_and_the_date_of_its_trials() {
    agrees_with_the_trials("experiments_age.py");
}
