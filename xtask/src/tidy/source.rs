//! Rules that concern a single file.
//!
//! Modules begin with `//!`. Files have a limited length, and comments the width of code. No placeholders remain,
//! `unsafe` is only where ARCHITECTURE.md allows it, and texts name no path of a particular machine.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

/// A longer file should be two modules.
const LINES_MAX: usize = 1000;

/// The width of code in rustfmt.toml.
const COLUMNS_MAX: usize = 120;

/// The files that may contain `unsafe`; ARCHITECTURE.md gives the reasons. Their crates deny it everywhere else.
pub(super) const UNSAFE: &[&str] = &[
    "crates/base/src/secret.rs",
    "crates/block/src/device/file/uring.rs",
    "crates/block/src/device/file/ioctl.rs",
    "crates/capi/src/border.rs",
    "crates/cli/src/server/allocator.rs",
    "crates/fuse/src/sys.rs",
    "crates/fuse/src/transport/ring/queue.rs",
];

/// Macros that mark unfinished code. Each is in two pieces, so that this file does not break its own rule.
const PLACEHOLDERS: &[&str] = &[concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")];

/// Words that no text in the repository may contain, with the reason.
const WORDS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "write an issue, not a note"),
    (concat!("FIX", "ME"), "write an issue, not a note"),
    (concat!("XX", "X"), "write an issue, not a note"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("any", "how"), "libraries have error enums with named fields"),
    (concat!("language ", "model"), "texts speak of the project alone"),
];

/// Module names without meaning.
const EMPTY_NAMES: &[&str] = &["utils.rs", "util.rs", "helpers.rs", "misc.rs", "common.rs"];

/// Whether `word` at `line[at..]` is a whole word.
fn whole_word(line: &str, at: usize, word: &str) -> bool {
    let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !joined(line[..at].chars().next_back()) && !joined(line[at + word.len()..].chars().next())
}

fn contains_word(line: &str, word: &str) -> bool {
    let alphabetic = word.chars().all(char::is_alphanumeric);
    line.match_indices(word).any(|(at, _)| !alphabetic || whole_word(line, at, word))
}

/// Whether a file is a crate's root, where `forbid(unsafe_code)` belongs.
fn is_crate_root(path: &str) -> bool {
    (path.starts_with("crates/") || path.starts_with("xtask/"))
        && (path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/"))
}

fn crate_of(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(c, _)| c)
}

/// The findings in `file`.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut say = |line: usize, message: String| findings.push(Finding::new(&file.path, line, message));
    for (i, line) in file.text.lines().enumerate() {
        for (word, why) in WORDS {
            if contains_word(line, word) {
                say(i + 1, format!("'{word}': {why}"));
            }
        }
    }
    if !file.is_rust() {
        return findings;
    }
    for (i, line) in file.text.lines().enumerate() {
        let text = line.trim_start();
        // A row of a table cannot be broken.
        if text.starts_with("//") && !text.contains("| ") && line.chars().count() > COLUMNS_MAX {
            say(i + 1, format!("a comment of more than {COLUMNS_MAX} columns"));
        }
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        say(0, format!("{lines} lines; more than {LINES_MAX} is two modules"));
    }
    // The first line is the module's doc, so that the first ten lines show the purpose of the file.
    if !file.text.starts_with("//!") {
        say(1, "a module opens with its doc (//!): purpose, main types, what it does not do, locking".into());
    }
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if EMPTY_NAMES.contains(&name) {
        say(0, format!("'{name}' says nothing about its contents"));
    }
    let may_be_unsafe = UNSAFE.contains(&file.path.as_str());
    for (number, line) in file.code_lines() {
        for placeholder in PLACEHOLDERS {
            if line.contains(placeholder) {
                say(number, format!("{placeholder}…) is not finished code"));
            }
        }
        let hands_off = line.contains(concat!("allow(un", "safe_code)"));
        let uses = line.match_indices(concat!("un", "safe")).any(|(at, w)| {
            whole_word(line, at, w) && line[at + w.len()..].trim_start().starts_with(['{', 'f', 'i', 'e', 't'])
        });
        if (hands_off || uses) && !may_be_unsafe {
            say(number, "unsafe code outside the files that ARCHITECTURE.md names".into());
        }
    }
    if is_crate_root(&file.path) {
        let partly = UNSAFE.iter().any(|u| crate_of(u) == crate_of(&file.path));
        let wanted = if partly { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        if !file.text.lines().any(|l| l.trim() == wanted) {
            say(1, format!("the crate's root lacks {wanted}"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&SourceFile { path: path.into(), text: text.into() }).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_file_passes() {
        assert!(messages("crates/fs/src/lib.rs", "//! Doc.\n#![forbid(unsafe_code)]\nfn f() {}\n").is_empty());
        assert!(messages("crates/block/src/lib.rs", "//! Doc.\n#![deny(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn violations_are_found_with_their_lines() {
        let bad = format!("//! Doc.\nfn f() {{\n    {}\"later\")\n}}\n", PLACEHOLDERS[0]);
        let found = messages("crates/fs/src/a.rs", &bad);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/fs/src/a.rs:3: "), "{found:?}");
        assert!(messages("crates/fs/src/a.rs", "fn f() {}\n")[0].contains("opens with its doc"));
        assert!(messages("crates/fs/src/lib.rs", "//! Doc.\n")[0].contains("forbid"));
        assert!(messages("crates/fs/src/util.rs", "//! Doc.\n")[0].contains("says nothing"));
        let long = "//! Doc.\n".to_owned() + &"\n".repeat(LINES_MAX);
        assert!(messages("crates/fs/src/a.rs", &long)[0].contains("1001 lines"));
        let wide =
            |text: &str| messages("crates/fs/src/a.rs", &format!("//! Doc.\n    // {text}{}\n", "x".repeat(115)));
        assert!(wide("")[0].starts_with("crates/fs/src/a.rs:2: "), "{:?}", wide(""));
        assert!(wide("| ").is_empty());
    }

    #[test]
    fn unsafe_code_stays_in_its_files() {
        let text = format!("//! Doc.\nlet x = {} {{ f() }};\n", concat!("un", "safe"));
        assert!(messages(UNSAFE[0], &text).is_empty());
        assert!(messages("crates/fs/src/a.rs", &text)[0].contains("unsafe code"));
        assert!(messages("crates/fs/src/a.rs", "//! Doc.\nlet unsafely = 1; // none\n").is_empty());
    }

    #[test]
    fn wording() {
        assert!(messages("README.md", concat!("see /ho", "me/me/x\n"))[0].contains("one machine"));
        assert!(messages("a.sh", concat!("# TO", "DO: more\n"))[0].starts_with("a.sh:1: "));
        assert!(messages("a.sh", "mktemp -d /tmp/demo.XXXXXX\n").is_empty());
    }
}
