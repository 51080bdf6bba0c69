//! Layers inside a crate: the parts of the code that a module may name.
//!
//! In `fs`, directories, maps and attributes use abstract stores. They know bytes and locks, but not the journal, the
//! cache, the allocator or the mounted file system.
//!
//! What it does not do: it does not check tests, which use real stores. It does not check `super::`, which stays in the
//! directory unless a path has one too many.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

/// A directory, the crates of the workspace that it may name, and the only module of its own crate that it may name.
struct Layer {
    folder: &'static str,
    crates: &'static [&'static str],
    module: &'static str,
}

const BYTES: &[&str] = &["ondisk", "base"];

/// The layers; the first match counts.
const LAYERS: &[Layer] = &[
    Layer { folder: "crates/fs/src/dir/", crates: BYTES, module: "dir" },
    Layer { folder: "crates/fs/src/map/", crates: BYTES, module: "map" },
    Layer { folder: "crates/fs/src/xattr/", crates: BYTES, module: "xattr" },
];

/// The words that follow `prefix` in `line`.
fn words_after<'a>(line: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(prefix).filter_map(move |(at, _)| {
        let before = line[..at].chars().next_back();
        let rest = &line[at + prefix.len()..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        (!before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$')).then_some(&rest[..end])
    })
}

/// Names in a module that its layer does not allow.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.is_rust() && !f.is_test()) {
        let Some(layer) = LAYERS.iter().find(|l| file.path.starts_with(l.folder)) else { continue };
        for (number, line) in file.code_lines() {
            // Stops at the tests at the end of a file.
            if line.trim() == "#[cfg(test)]" && file.text.lines().nth(number).is_some_and(|l| l.ends_with("tests {")) {
                break;
            }
            for name in words_after(line, "extant_").filter(|n| !layer.crates.contains(n)) {
                let message = format!("{} must not know extant_{name}", layer.module);
                findings.push(Finding::new(&file.path, number, message));
            }
            for name in words_after(line, "crate::").filter(|n| *n != layer.module) {
                let message = format!("{} must not know the crate's '{name}'", layer.module);
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&[SourceFile { path: path.into(), text: text.into() }]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_module_stays_in_its_layer() {
        let own = "use extant_ondisk::BlockNr;\nuse extant_base::sync::Mutex;\nuse crate::dir::add;\n";
        assert!(found("crates/fs/src/dir/edit.rs", own).is_empty());
        assert!(found("crates/fs/src/ops/data.rs", "use extant_journal::Handle;\n").is_empty());
        let tests = "#[cfg(test)]\nmod tests {\n    use extant_block::device::MemDevice;\n";
        assert!(found("crates/fs/src/dir/edit.rs", tests).is_empty());
        assert!(found("crates/fs/src/dir/tests/image.rs", "use extant_block::device::MemDevice;\n").is_empty());
    }

    #[test]
    fn a_forbidden_name_is_found() {
        let found_here =
            found("crates/fs/src/map/mod.rs", "//! x\nuse extant_cache::Budget;\nuse crate::error::Error;\n");
        let expected = [
            "crates/fs/src/map/mod.rs:2: map must not know extant_cache",
            "crates/fs/src/map/mod.rs:3: map must not know the crate's 'error'",
        ];
        assert_eq!(found_here, expected);
        assert_eq!(found("crates/fs/src/xattr/ops.rs", "fn f(h: &mut extant_journal::Handle) {}\n").len(), 1);
        assert_eq!(found("crates/fs/src/dir/add.rs", "use crate::map::MapRoot;\n").len(), 1);
    }
}
