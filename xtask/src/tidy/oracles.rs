//! Only crate `oracle` runs e2fsprogs in tests, so that all run in the same locale, and a failure shows the output.
//!
//! The rule searches for the name of a program in function calls ([`RUNNERS`] are those of `oracle`) and in lines for a
//! shell. Product code of the lab runs the programs through its `Tool`. lsattr(1) and chattr(1) are not oracles: tests
//! run them on mounts, as users do.
//!
//! What it does not do: it does not find names in variables, or in shell scripts of several lines.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

/// The programs that make, check, print and change images.
const PROGRAMS: &[&str] = &[
    "mke2fs",
    "mkfs.ext2",
    "mkfs.ext3",
    "mkfs.ext4",
    "e2fsck",
    "fsck.ext4",
    "debugfs",
    "dumpe2fs",
    "tune2fs",
    "resize2fs",
    "e2label",
    "e2image",
];

/// The functions of `oracle` that run a program by name.
const RUNNERS: &[&str] = &["tool", "run_ok", "run_command", "on_copy"];

/// Directories whose code may run the programs directly.
const EXEMPT: &[&str] = &["crates/oracle/", "xtask/"];

/// The last name in `text`, at its end.
fn last_name(text: &str) -> &str {
    text.rsplit(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or_default()
}

/// Whether `line` runs `program` without `oracle`.
fn runs(line: &str, program: &str) -> bool {
    let calls = line.match_indices(&format!("(\"{program}\"")).any(|(at, found)| {
        let (name, rest) = (last_name(&line[..at]), &line[at + found.len()..]);
        // A name alone, or with other words, is a message or a key.
        name.ends_with("Command::new")
            || (rest.starts_with(", &") && !RUNNERS.contains(&name.rsplit(':').next().unwrap_or_default()))
    });
    let shell = line.match_indices('(').any(|(at, _)| ["sh", "shell"].contains(&last_name(&line[..at])));
    calls || (shell && line.contains(&format!("{program} ")))
}

/// Test code that runs the programs directly, and functions that wrap those of `oracle`.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() || EXEMPT.iter().any(|folder| file.path.starts_with(folder)) {
        return Vec::new();
    }
    let hides = |line: &str| RUNNERS.iter().find(|name| line.contains(&format!("fn {name}(program")));
    let mut findings = Vec::new();
    for (number, line) in file.code_lines() {
        if let Some(program) = PROGRAMS.iter().find(|program| runs(line, program)) {
            let message = format!("runs {program} by itself: extant_oracle does it");
            findings.push(Finding::new(&file.path, number, message));
        }
        if let Some(name) = hides(line) {
            findings.push(Finding::new(&file.path, number, format!("extant_oracle has a function {name}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&SourceFile { path: path.into(), text: text.into() }).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_functions_of_oracle_and_mere_names_pass() {
        for line in [
            "tool(\"mke2fs\", &[\"-q\"]);",
            "let (_, said) = memory::on_copy(\"dumpe2fs\", &[], &dev);",
            "let fsck = e2fsck(&image, &[\"-fn\"]).expect(\"e2fsck\");",
            "for (request, expected) in [(\"sif f size 1\", \"e2fsck\")] {",
            "for (program, seconds) in [(\"e2fsck\", theirs)] {",
            "let made = Tool::new(\"mke2fs\").arg(path).run()?;",
            "found.push(format!(\"e2fsck {code}\"));",
            "// sh(\"mke2fs a\")",
        ] {
            assert!(found("crates/fs/tests/a.rs", line).is_empty(), "{line}");
        }
        assert!(found("crates/oracle/src/lib.rs", "Command::new(\"mke2fs\")").is_empty());
    }

    #[test]
    fn a_program_that_runs_without_oracle_is_found() {
        for line in [
            "let out = Command::new(\"debugfs\").arg(image).output();",
            "let made = std::process::Command::new(\"mkfs.ext4\");",
            "run(\"e2fsck\", &[\"-fn\", path]);",
            "sh(&format!(\"mke2fs -q {path}\"));",
            "fn tool(program: &str, args: &[&str]) -> String {",
        ] {
            let found = found("crates/fs/src/dir/tests/a.rs", &format!("//! x\n{line}\n"));
            assert!(found.len() == 1 && found[0].starts_with("crates/fs/src/dir/tests/a.rs:2: "), "{line}: {found:?}");
        }
    }
}
