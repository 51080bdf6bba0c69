//! One canary for each pass: a source file with rules is the only one to report some states that mutations show, and
//! `problems.rs` demands each of those states. So the tests fail when a pass no longer checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use extant_testkit::damage;

const TABLE: &str = include_str!("../../src/problem/table.rs");
/// Folders with rules.
const FOLDERS: [&str; 2] = ["pass", "view"];
/// Files there without rules.
const WITHOUT_RULES: [&str; 3] = ["pass/mod.rs", "pass/dir_runs.rs", "view/mod.rs"];
/// A file that reports only problems which another file reports, too; `directories.rs` demands them.
const SHARED: [&str; 1] = ["pass/names.rs"];
/// Problems that no mutation shows, beyond those that `damage::WITHOUT` excuses: a second journal on another device,
/// features that no e2fsck knows, a device that fails (`devices.rs`), and three that `details.rs` shows.
const WITHOUT_MUTATION: [&str; 6] =
    ["CANT_FIND_JOURNAL", "UNKNOWN_FEATURES", "UNREADABLE", "INVALID_BAD_INODE", "SET_FILETYPE", "EXTENT_TOO_DEEP"];

/// The name of each problem, by the constant that the sources use.
fn names() -> BTreeMap<&'static str, &'static str> {
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        words.next().filter(|code| code.starts_with("0x"))?;
        Some((words.next()?, words.next()?.trim_matches('"')))
    };
    TABLE.lines().filter_map(row).collect()
}

/// The problems that each source file names outside of its tests, by the path in `src`.
fn reporters() -> BTreeMap<String, BTreeSet<&'static str>> {
    let names = names();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut reporters = BTreeMap::new();
    for folder in FOLDERS.iter().chain(&["."]) {
        for entry in std::fs::read_dir(sources.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source file");
            let code = text.split("#[cfg(test)]").next().expect("text");
            let constant = |after: &str| {
                let end = after.find(|c: char| !c.is_alphanumeric()).unwrap_or(after.len());
                names.get(&after[..end]).copied()
            };
            let problems = code.split("Problem::").skip(1).filter_map(constant).collect();
            let file = path.file_name().expect("a name").to_string_lossy();
            reporters.insert(format!("{folder}/{file}"), problems);
        }
    }
    reporters
}

#[test]
fn each_pass_alone_reports_states_that_mutations_show() {
    let shown: BTreeSet<&str> = damage::table().flat_map(|mutation| mutation.expected).copied().collect();
    let reporters = reporters();
    let with_rules = |file: &String| {
        let excused = WITHOUT_RULES.contains(&file.as_str()) || SHARED.contains(&file.as_str());
        FOLDERS.iter().any(|folder| file.starts_with(folder)) && !excused
    };
    let mut passes = 0;
    for (file, problems) in reporters.iter().filter(|(file, _)| with_rules(file)) {
        let elsewhere =
            |problem: &str| reporters.iter().any(|(other, theirs)| other != file && theirs.contains(problem));
        let canaries = problems.iter().filter(|problem| shown.contains(*problem) && !elsewhere(problem)).count();
        assert!(canaries > 0, "no test fails when {file} reports nothing");
        passes += 1;
    }
    assert!(passes >= 15, "{passes} files with rules in {:?}", reporters.keys());
}

#[test]
fn each_problem_of_the_table_is_shown_by_a_mutation_or_excused() {
    let shown = damage::table().flat_map(|mutation| mutation.expected).copied();
    let excused = damage::WITHOUT.iter().map(|(name, _)| *name).chain(WITHOUT_MUTATION);
    let accounted: BTreeSet<&str> = shown.chain(excused).collect();
    let all: BTreeSet<&str> = names().into_values().collect();
    assert_eq!(all.difference(&accounted).collect::<Vec<_>>(), Vec::<&&str>::new());
}
