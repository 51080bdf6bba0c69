//! Policy folders have one shape: `<mechanism>/policy/{mod,vanilla,<idea>,contract}.rs`.
//!
//! `mod.rs` declares the enum with `extant_base::policies!` and has the table that compares the policies. `vanilla.rs`
//! does what Linux did at the time of the comparison, unless `mod.rs` says that Linux did several things. `contract.rs`
//! tests the rules that every policy must satisfy. A rival policy is named by its idea. If there are rivals, a mount
//! can choose between them: the enum's table is among `POLICIES` of `fs`, from which mount options, the lab and lists
//! are generated.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use super::{Finding, SourceFile};

const REQUIRED: &[&str] = &["mod.rs", "vanilla.rs", "contract.rs"];
/// With this line, `mod.rs` gives the reason why there is no `vanilla.rs`.
const NO_VANILLA: &str = "//! No `vanilla`: ";
/// Names that describe when a policy was written instead of how it works.
const NOT_IDEAS: &[&str] = &["new", "improved", "better", "fast", "v1", "v2", "v3", "old"];

/// The file with the tables of policies that a mount can choose.
const CHOSEN: &str = "crates/fs/src/options/mod.rs";
/// The file in which `fs` renames enums.
const RENAMED: &str = "crates/fs/src/lib.rs";

/// The enum that a module declares with the macro, and how many policies it has.
fn declared(module: &SourceFile) -> Option<(&str, usize)> {
    let (_, macro_body) = module.text.split_once("extant_base::policies!")?;
    let (head, rows) = macro_body.split_once("pub enum ")?.1.split_once('{')?;
    let rows = rows.split_once("\n}").map_or(rows, |(rows, _)| rows);
    let is_row = |l: &&str| l.split_once(" = ").is_some_and(|(name, _)| name.trim().chars().all(char::is_alphanumeric));
    Some((head.split(':').next()?.trim(), rows.lines().filter(is_row).count()))
}

/// Policies that a mount cannot choose.
fn check_chosen(files: &[SourceFile]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|f| f.path == path).map_or("", |f| f.text.as_str());
    let modules = files.iter().filter(|f| f.path.ends_with("/policy/mod.rs"));
    let mut findings = Vec::new();
    for module in modules {
        let Some((name, policies)) = declared(module) else { continue };
        let package = module.path.split('/').nth(1).unwrap_or_default();
        let renamed = text(RENAMED).lines().find_map(|l| l.split_once(&format!("extant_{package}::{name} as ")));
        let name = renamed.map_or(name, |(_, other)| other.trim_end_matches(';'));
        if policies > 1 && !text(CHOSEN).contains(&format!("table: {name}::TABLE")) {
            let message = format!("a mount cannot choose: {name}::TABLE is not among POLICIES in {CHOSEN}");
            findings.push(Finding::new(&module.path, 0, message));
        }
    }
    findings
}

/// Policy directories that lack a part, or have a rival without an idea in its name.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        if let Some((folder, _)) = file.path.rsplit_once('/').filter(|(d, _)| d.ends_with("/policy")) {
            folders.entry(folder).or_default().push(file);
        }
    }
    let mut findings = check_chosen(files);
    for (folder, members) in folders {
        let named = |name: &str| members.iter().copied().find(|f| f.path == format!("{folder}/{name}"));
        for name in REQUIRED {
            let several = |module: &SourceFile| *name == "vanilla.rs" && module.text.contains(NO_VANILLA);
            if named(name).is_none() && !named("mod.rs").is_some_and(several) {
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
        let vanilla = files.remove(1);
        assert!(check(&files)[0].to_string().contains("vanilla.rs"));
        files[0].text.insert_str(0, "//! No `vanilla`: Linux did three things.\n");
        assert_eq!(check(&files), []);
        files.insert(1, vanilla);
        files[0].text = "//! nothing".into();
        files[2].path = "crates/a/src/m/policy/v2.rs".into();
        let found: Vec<_> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("contract.rs"), "{found:?}");
        assert!(found[3].contains("does not name an idea"), "{found:?}");
    }

    #[test]
    fn policies_that_no_mount_can_choose_are_found() {
        let two = "extant_base::policies! {\n    /// x\n    pub enum Kind: \"k\", \"x\", default A {\n        A = \"a\", \"x\";\n        B = \"b\", \"y\";\n    }\n}\n";
        let files = |text: &str, options: &str, lib: &str| {
            [file("crates/a/src/m/policy/mod.rs", text), file(CHOSEN, options), file(RENAMED, lib)]
        };
        assert_eq!(check_chosen(&files(two, "table: Kind::TABLE,", "")), []);
        let renamed = "pub use extant_a::Kind as OtherKind;";
        assert_eq!(check_chosen(&files(two, "table: OtherKind::TABLE,", renamed)), []);
        assert_eq!(check_chosen(&files(two, "table: Kind::TABLE,", renamed)).len(), 1);
        let found = check_chosen(&files(two, "", ""));
        assert!(found.len() == 1 && found[0].message.contains("Kind::TABLE"), "{found:?}");
        let one = two.replace("        B = \"b\", \"y\";\n", "");
        assert_eq!(check_chosen(&files(&one, "", "")), [], "a single policy leaves no choice");
    }
}
