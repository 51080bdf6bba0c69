//! Policy folders have one shape: `<mechanism>/policy/{mod,vanilla,<idea>,contract}.rs`.
//!
//! `mod.rs` declares the enum with `extant_base::policies!` and has the table that compares; `vanilla.rs` is what Linux
//! does; `contract.rs` is what every policy must satisfy. A rival is named by its idea.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use super::{Finding, SourceFile};

const REQUIRED: &[&str] = &["mod.rs", "vanilla.rs", "contract.rs"];
/// Names that say when instead of what.
const NOT_IDEAS: &[&str] = &["new", "improved", "better", "fast", "v1", "v2", "v3", "old"];

/// Policy folders that lack a part, or hold a rival without an idea.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        if let Some((folder, _)) = file.path.rsplit_once('/').filter(|(d, _)| d.ends_with("/policy")) {
            folders.entry(folder).or_default().push(file);
        }
    }
    let mut findings = Vec::new();
    for (folder, members) in folders {
        let named = |name: &str| members.iter().find(|f| f.path == format!("{folder}/{name}"));
        for name in REQUIRED {
            if named(name).is_none() {
                findings.push(Finding::new(format!("{folder}/{name}"), 0, "a policy folder has this file"));
            }
        }
        if let Some(module) = named("mod.rs") {
            for (part, what) in [
                ("extant_base::policies!", "the declaration by extant_base::policies!"),
                ("//! |", "the table of policies in its doc"),
            ] {
                if !module.text.contains(part) {
                    findings.push(Finding::new(&module.path, 0, format!("lacks {what}")));
                }
            }
        }
        for file in members {
            let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            if NOT_IDEAS.contains(&stem) || stem.ends_with("_v2") {
                findings.push(Finding::new(&file.path, 0, format!("'{stem}' does not name an idea")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_complete_folder_passes_and_a_broken_one_is_found() {
        let mut files = vec![
            file("crates/a/src/m/policy/mod.rs", "//! | a | b |\nextant_base::policies! {}"),
            file("crates/a/src/m/policy/vanilla.rs", "//! x"),
            file("crates/a/src/m/policy/contract.rs", "//! x"),
            file("crates/a/src/m/policy/goal_first.rs", "//! x"),
        ];
        assert_eq!(check(&files), []);
        files[0].text = "//! nothing".into();
        files[2].path = "crates/a/src/m/policy/v2.rs".into();
        let found: Vec<_> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("contract.rs"), "{found:?}");
        assert!(found[3].contains("does not name an idea"), "{found:?}");
    }
}
