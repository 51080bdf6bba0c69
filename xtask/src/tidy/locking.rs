//! docs/locking.md lists every lock class of the code, with its rank, and no class that no longer exists.
//!
//! A row of its tables reads `| 35 | journal state | … |`. Classes in test code are excluded.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

const DOC: &str = "docs/locking.md";
const CALL: &str = concat!("LockClass", "::new(");

/// One class: where it is declared, its name and its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    file: String,
    line: usize,
    name: String,
    rank: u32,
}

/// The classes that `file` declares.
fn classes(file: &SourceFile) -> Vec<Class> {
    let mut found = Vec::new();
    for (line, text) in file.code_lines() {
        for (at, _) in text.match_indices(CALL) {
            let rest = &text[at + CALL.len()..];
            let mut quoted = rest.splitn(3, '"');
            let (Some(""), Some(name), Some(after)) = (quoted.next(), quoted.next(), quoted.next()) else { continue };
            let digits: String =
                after.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
            if let Ok(rank) = digits.parse() {
                found.push(Class { file: file.path.clone(), line, name: name.to_owned(), rank });
            }
        }
    }
    found
}

/// The rows of the document: line, rank, name.
fn rows(doc: &str) -> Vec<(usize, u32, String)> {
    let mut rows = Vec::new();
    for (i, line) in doc.lines().enumerate() {
        let mut cells = line.trim().trim_start_matches('|').split('|').map(str::trim);
        let (Some(rank), Some(name)) = (cells.next(), cells.next()) else { continue };
        if let (true, Ok(rank)) = (line.trim().starts_with('|'), rank.parse()) {
            rows.push((i + 1, rank, name.trim_matches('`').to_owned()));
        }
    }
    rows
}

/// Classes that the document lacks, or lists with a different rank; and rows without a class.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let code = files.iter().filter(|f| f.is_rust() && !f.is_test() && f.path.starts_with("crates/"));
    let classes: Vec<Class> = code.flat_map(classes).collect();
    let Some(doc) = files.iter().find(|f| f.path == DOC) else {
        return vec![Finding::new(DOC, 0, "is missing: it lists every lock class")];
    };
    let rows = rows(&doc.text);
    let mut findings = Vec::new();
    for c in &classes {
        if !rows.iter().any(|(_, rank, name)| *rank == c.rank && *name == c.name) {
            let message = format!("lock class '{}' with rank {} is not in {DOC}", c.name, c.rank);
            findings.push(Finding::new(&c.file, c.line, message));
        }
    }
    for (line, rank, name) in rows {
        if !classes.iter().any(|c| c.rank == rank && c.name == name) {
            findings.push(Finding::new(DOC, line, format!("no lock class '{name}' with rank {rank} in the code")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(doc: &str) -> Vec<SourceFile> {
        let code =
            format!("//! x\nstatic A: LockClass = {CALL}\"alpha\", 10);\nstatic B: LockClass = {CALL}\"beta\", 20);\n");
        let test = format!("static C: LockClass = {CALL}\"test\", 1);\n");
        vec![
            SourceFile { path: "crates/a/src/lib.rs".into(), text: code },
            SourceFile { path: "crates/a/src/tests/x.rs".into(), text: test },
            SourceFile { path: DOC.into(), text: doc.into() },
        ]
    }

    #[test]
    fn a_complete_document_passes() {
        let doc = "| rank | name |\n|---|---|\n| 10 | `alpha` | x |\n| 20 | beta | y |\n";
        assert_eq!(check(&files(doc)), []);
    }

    #[test]
    fn missing_stale_and_wrong_ranks_are_found() {
        let found: Vec<_> = check(&files("| 10 | alpha |\n| 21 | beta |\n")).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("crates/a/src/lib.rs:3: ") && found[0].contains("'beta' with rank 20"),
            "{found:?}"
        );
        assert!(found[1].starts_with("docs/locking.md:2: "), "{found:?}");
        assert_eq!(check(&files("")[..2]).len(), 1);
    }
}
