//! Checks statements of documents about the code: files, tests, the files with `unsafe`, and the operations of
//! io_uring.
//!
//! The documents are those of the repository's root and of `docs`. CHANGELOG.md is excluded, because it contains names
//! that no longer exist. A fact is checked where it is written as code, in backticks.
//!
//! What it does not do: it does not check files that tidy does not read, or types and functions other than tests. Of
//! numbers it checks only that of the files with `unsafe`.
//!
//! # Locking
//! None.

use super::source::UNSAFE;
use super::{Finding, SKIPPED, SourceFile, TEXT};

/// The first directories of the repository's paths.
const FOLDERS: &[&str] = &["crates", "docs", "experiments", "fuzz", "scripts", "xtask"];

/// Parts of a path that are placeholders.
const BLANKS: &[&str] = &["NAME", "a_name"];

/// A name with at least this many underscores is that of a test: names in the kernel and of Extant's functions have
/// fewer.
const UNDERSCORES: usize = 5;

/// The documents that count the files with `unsafe`.
const COUNTED: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The document that lists these files.
const MAP: &str = "ARCHITECTURE.md";

/// The beginning of the sentence before that list.
const LIST: &str = "`unsafe` is in ";

/// The words for numbers; the index is the number.
const NUMBERS: &[&str] =
    &["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/// The document that states which operations a ring of io_uring allows.
const PROMISES: &str = "SECURITY.md";

/// The label of its item about io_uring.
const ITEM: &str = "*io_uring*";

/// The files that restrict a ring to some operations.
const RINGS: &[&str] = &["crates/block/src/device/file/uring.rs", "crates/fuse/src/transport/ring/queue.rs"];

/// The operations of crate `io_uring`, and their names in that document.
const OPERATIONS: &[(&str, &str)] = &[
    ("Fsync", "fsync"),
    ("Nop", "no-ops"),
    ("Read", "reads"),
    ("Readv", "reads"),
    ("UringCmd80", "commands of FUSE"),
    ("Writev", "writes"),
];

fn find<'a>(files: &'a [SourceFile], path: &str) -> Option<&'a SourceFile> {
    files.iter().find(|file| file.path == path)
}

fn is_document(path: &str) -> bool {
    let name = path.strip_prefix("docs/").unwrap_or(path);
    name.ends_with(".md") && !name.contains('/') && name != "CHANGELOG.md"
}

/// The lines outside code blocks, with their numbers.
fn prose(document: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    document.text.lines().enumerate().map(|(i, line)| (i + 1, line)).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code = in_code != fence;
        !in_code && !fence
    })
}

/// The texts between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The paths of the repository that `span` names: none, one, or several with `{a,b}`.
fn paths(span: &str) -> Vec<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-./{},".contains(c);
    let begins = span.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
    if !begins || !span.chars().all(allowed) {
        return Vec::new();
    }
    let span = span.trim_end_matches('/');
    let braces =
        span.split_once('{').and_then(|(head, rest)| rest.split_once('}').map(|(names, tail)| (head, names, tail)));
    match braces {
        Some((head, names, tail)) => names.split(',').map(|name| format!("{head}{name}{tail}")).collect(),
        None => vec![span.to_owned()],
    }
}

/// Whether `path` is a file or directory among `files`, or one that tidy does not read.
fn exists(path: &str, files: &[SourceFile]) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let unread = name.rsplit_once('.').is_some_and(|(_, ending)| !TEXT.contains(&ending));
    let left_out = |part: &str| SKIPPED.contains(&part) || BLANKS.contains(&part.trim_end_matches(".rs"));
    let folder = format!("{path}/");
    unread || path.split('/').any(left_out) || files.iter().any(|f| f.path == path || f.path.starts_with(&folder))
}

fn is_test_name(span: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    span.matches('_').count() >= UNDERSCORES && span.chars().all(allowed)
}

fn is_function(name: &str, files: &[SourceFile]) -> bool {
    let declaration = format!("fn {name}(");
    files.iter().any(|file| file.is_rust() && file.text.contains(&declaration))
}

/// The words of `text`, separated by single spaces.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words before "files" in the sentences of `text` that begin at the word `unsafe`.
fn counts(text: &str) -> Vec<&str> {
    let rests = text.match_indices("unsafe").map(|(at, _)| &text[at..]);
    let words = rests.filter_map(|rest| {
        let (before, _) = rest.split(". ").next()?.split_once(" files")?;
        before.rsplit(' ').next()
    });
    words.filter(|word| NUMBERS.contains(word)).collect()
}

/// Documents whose count or list of the files with `unsafe` differs from [`UNSAFE`], and a list that is too long.
fn confined(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in COUNTED.iter().filter_map(|path| find(files, path)) {
        let text = joined(&document.text);
        let counts = counts(&text);
        if counts.is_empty() || counts.iter().any(|count| Some(count) != NUMBERS.get(UNSAFE.len())) {
            let message = format!("says {counts:?} files hold `unsafe`: there are {}", UNSAFE.len());
            findings.push(Finding::new(&document.path, 0, message));
        }
    }
    if let Some(map) = find(files, MAP) {
        let behind = map.text.lines().skip_while(|line| !line.starts_with(LIST)).skip(1);
        let list = behind.take_while(|line| line.is_empty() || line.starts_with(['-', ' ']));
        let listed: Vec<&str> = list.filter_map(|line| spans(line.strip_prefix("- ")?).next()).collect();
        for path in UNSAFE.iter().filter(|path| !listed.contains(path)) {
            findings.push(Finding::new(MAP, 0, format!("the list of files with `unsafe` lacks {path}")));
        }
        for path in listed.iter().filter(|path| !UNSAFE.contains(path)) {
            findings.push(Finding::new(MAP, 0, format!("{path} may not hold `unsafe`, but is in the list")));
        }
    }
    let block = concat!("un", "safe {");
    for file in UNSAFE.iter().filter_map(|path| find(files, path)) {
        if !file.code_lines().any(|(_, line)| line.contains(block)) {
            findings.push(Finding::new(&file.path, 0, "holds no `unsafe` any more: take it off the list"));
        }
    }
    findings
}

/// The operations that a line allows on a ring.
fn codes(line: &str) -> impl Iterator<Item = &str> {
    line.split("opcode::").skip(1).filter_map(|rest| rest.split_once("::CODE").map(|(name, _)| name))
}

/// Operations of the rings that [`PROMISES`] does not name, and named operations that no ring allows.
fn rings(files: &[SourceFile]) -> Vec<Finding> {
    let Some(document) = find(files, PROMISES) else { return Vec::new() };
    let behind = document.text.split_once(ITEM).map_or("", |(_, behind)| behind);
    let item = joined(behind.split("\n  - ").next().unwrap_or_default());
    let lines = RINGS.iter().filter_map(|path| find(files, path)).flat_map(|file| file.code_lines());
    let taken: Vec<&str> = lines.flat_map(|(_, line)| codes(line)).collect();
    let mut problems = Vec::new();
    for code in taken.iter().filter(|code| !OPERATIONS.iter().any(|(known, _)| known == *code)) {
        problems.push(format!("a ring takes {code}, for which xtask/src/tidy/facts.rs has no word"));
    }
    for (_, word) in OPERATIONS {
        let is_taken = OPERATIONS.iter().any(|(code, same)| same == word && taken.contains(code));
        match (is_taken, item.contains(word)) {
            (true, false) => problems.push(format!("a ring takes {word}, which the item {ITEM} does not say")),
            (false, true) => problems.push(format!("the item {ITEM} names {word}, which no ring takes")),
            _ => {}
        }
    }
    problems.dedup();
    problems.into_iter().map(|problem| Finding::new(PROMISES, 0, problem)).collect()
}

/// The statements of documents that the code contradicts.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = confined(files);
    findings.extend(rings(files));
    for document in files.iter().filter(|file| is_document(&file.path)) {
        for (number, span) in prose(document).flat_map(|(number, line)| spans(line).map(move |span| (number, span))) {
            for path in paths(span).into_iter().filter(|path| !exists(path, files)) {
                findings.push(Finding::new(&document.path, number, format!("there is no {path}")));
            }
            if is_test_name(span) && !is_function(span, files) {
                findings.push(Finding::new(&document.path, number, format!("there is no test {span}")));
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

    fn found(files: &[SourceFile]) -> Vec<String> {
        check(files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_path_without_a_file_is_found() {
        let text = "see `crates/a/src/b.rs`, `crates/a/src/`, `crates/a/{c,d}.md`\n```\n`crates/gone.rs`\n```\n\
            and `crates/NAME`, `fuzz/artifacts`, `docs/bench.json`, `b.rs`, `crates/a is`\n";
        let files = [file("docs/x.md", text), file("crates/a/src/b.rs", ""), file("crates/a/c.md", "")];
        assert_eq!(found(&files), ["docs/x.md:1: there is no crates/a/d.md"]);
        let history = [file("CHANGELOG.md", text), file("experiments/001/README.md", text)];
        assert!(found(&history).is_empty());
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let text = "`a_link_that_leads_to_itself_is_refused` and\n`a_link_that_leads_away_is_refused`, `fuse_fill_write_pages`\n";
        let files =
            [file("README.md", text), file("crates/a/tests/b.rs", "fn a_link_that_leads_to_itself_is_refused() {}")];
        assert_eq!(found(&files), ["README.md:2: there is no test a_link_that_leads_away_is_refused"]);
    }

    /// A document with a list of `paths`, which begins like that of ARCHITECTURE.md.
    fn map(number: &str, paths: &[&str]) -> SourceFile {
        let items: String = paths.iter().map(|path| format!("- `{path}` does it,\n  as `x` says.\n")).collect();
        file(MAP, &format!("{LIST}{number} files:\n\n{items}\nAll others forbid it.\n\n- `y`\n"))
    }

    /// The findings about the list, without those about missing files.
    fn about_the_list(map: SourceFile) -> Vec<String> {
        confined(&[map]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wrong_number_or_list_of_files_with_unsafe_code_is_found() {
        let number = NUMBERS[UNSAFE.len()];
        assert!(about_the_list(map(number, UNSAFE)).is_empty());
        let found = about_the_list(map("two", UNSAFE));
        assert!(found.len() == 1 && found[0].contains("[\"two\"]"), "{found:?}");
        let mut paths = UNSAFE.to_vec();
        paths[0] = "crates/fs/src/a.rs";
        let found = about_the_list(map(number, &paths));
        assert!(found.len() == 2 && found[0].contains(UNSAFE[0]) && found[1].contains(paths[0]), "{found:?}");
    }

    #[test]
    fn a_count_is_read_across_lines_and_from_its_own_sentence() {
        let rules = "No knot has more than two files.\n- **unsafe** stays\n  in the six files of the map. A knot has two files.\n";
        assert_eq!(counts(&joined(rules)), ["six"]);
        assert!(counts("Nothing is `unsafe`. Two files.").is_empty());
    }

    #[test]
    fn a_file_on_the_list_that_is_safe_is_found() {
        let safe = file(UNSAFE[0], concat!("//! Doc.\n#![allow(un", "safe_code)]\nfn f() {}\n"));
        let found = confined(&[safe]);
        assert!(found.len() == 1 && found[0].file == UNSAFE[0], "{found:?}");
        let used = file(UNSAFE[0], concat!("//! Doc.\nlet x = un", "safe { f() };\n"));
        assert!(confined(&[used]).is_empty());
    }

    #[test]
    fn an_operation_that_the_promises_do_not_name_is_found() {
        let device = "let codes = [opcode::Nop::CODE, opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];\n\
            let entry = opcode::Openat::new(fd).build();\n";
        let mount = "let codes = [opcode::UringCmd80::CODE, opcode::Read::CODE];\n";
        let all = "- x\n  - *io_uring*: reads, writes, fsync and no-ops;\n    reads and the commands\n    of FUSE.\n  - *Files*: x\n";
        let files =
            |device: &str, promises: &str| [file(RINGS[0], device), file(RINGS[1], mount), file(PROMISES, promises)];
        assert_eq!(rings(&files(device, all)), []);
        let found = rings(&files(device, &all.replace(" and no-ops", "")));
        assert!(found.len() == 1 && found[0].message.contains("no-ops, which the item"), "{found:?}");
        let found = rings(&files(&device.replace("opcode::Fsync::CODE", "opcode::Send::CODE"), all));
        assert!(found.len() == 2 && found[0].message.contains("Send"), "{found:?}");
        assert!(found[1].message.contains("fsync, which no ring takes"), "{found:?}");
    }
}
