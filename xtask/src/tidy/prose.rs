//! Finds sentences and names of tests that do not name their subject.
//!
//! Comments and documents name the agent: a thread, a request, a caller. A sentence that begins with "who" or "what"
//! makes a reader search for it. Questions may begin with these words, and so may the label "What it does not do".
//!
//! What it does not do: it does not check the middle of a sentence, or messages in code.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

/// Subjects that name no agent.
const SUBJECTS: &[&str] =
    &["Who", "Whoever", "Whom", "Whose", "Nobody", "Somebody", "Anybody", "Everybody", "What", "Whatever"];

/// The first words that are not allowed in names of tests either.
const NAME_STARTS: &[&str] = &[
    "who",
    "whoever",
    "whom",
    "whose",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "what",
    "whatever",
    "nor",
    "and",
];

/// The label in the head of every module.
const LABEL: &str = "What it does not do";

/// Adds the sentences that break the rule in a paragraph that begins at `line`.
fn paragraph(file: &SourceFile, line: usize, text: &str, findings: &mut Vec<Finding>) {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.match_indices(['.', '!', '?', ':', ';']).find(|(at, _)| {
            let mut after = rest[at + 1..].chars();
            after.next() == Some(' ') && after.next().is_some_and(|c| c.is_uppercase() || matches!(c, '`' | '[' | '*'))
        });
        let (sentence, next) = match end {
            Some((at, _)) => (&rest[..=at], rest[at + 1..].trim_start()),
            None => (rest, ""),
        };
        let first =
            sentence.trim_start_matches(['*', '_', '"', '(']).split([' ', ',', '\'']).next().unwrap_or_default();
        if SUBJECTS.contains(&first) && !sentence.trim_end().ends_with('?') && !sentence.starts_with(LABEL) {
            let start: String = sentence.chars().take(60).collect();
            findings.push(Finding::new(
                &file.path,
                line,
                format!("\"{start}…\": name the subject instead of '{first}'"),
            ));
        }
        rest = next;
    }
}

/// The text of a line of a comment, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text))
}

/// Whether a line belongs to no paragraph: an empty line, a heading, a row of a table.
fn is_apart(text: &str) -> bool {
    matches!(text.trim_start().chars().next(), None | Some('#' | '|'))
}

/// The text after the mark of a list item or a quotation.
fn item(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let mark = if digits > 0 { text[digits..].strip_prefix(". ") } else { None };
    mark.or_else(|| ["- ", "* ", "> "].iter().find_map(|mark| text.strip_prefix(mark)))
}

/// Groups lines into paragraphs; `None` ends one.
fn paragraphs<'a>(
    file: &SourceFile,
    lines: impl Iterator<Item = (usize, Option<&'a str>)>,
    findings: &mut Vec<Finding>,
) {
    let (mut begin, mut text, mut in_code) = (0, String::new(), false);
    for (number, line) in lines.chain([(0, None)]) {
        let fence = line.is_some_and(|line| line.trim_start().starts_with("```"));
        in_code = line.is_some() && (in_code != fence);
        let ends = fence || in_code || line.is_none_or(|line| is_apart(line) || item(line).is_some());
        if ends && !text.is_empty() {
            paragraph(file, begin, &text, findings);
            text.clear();
        }
        let Some(line) = line.filter(|line| !fence && !in_code && !is_apart(line)) else { continue };
        if text.is_empty() {
            begin = number;
        } else {
            text.push(' ');
        }
        text.push_str(item(line).unwrap_or(line).trim());
    }
}

/// The name of the function that `line` declares.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let declares = before.split_whitespace().all(|word| matches!(word, "pub" | "const" | "async" | "extern"));
    declares.then(|| after.split(['(', '<']).next().unwrap_or_default())
}

/// The sentences and names in `file` that break the rule.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbered = file.text.lines().enumerate().map(|(i, line)| (i + 1, line));
    if file.is_rust() {
        paragraphs(file, numbered.clone().map(|(number, line)| (number, comment(line))), &mut findings);
        let mut test = false;
        for (number, line) in numbered {
            test |= line.trim() == "#[test]";
            let Some(name) = function(line) else { continue };
            let first = name.split('_').next().unwrap_or_default();
            if test && NAME_STARTS.contains(&first) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("{name}: a test is named by a property: subject and verb"),
                ));
            }
            test = false;
        }
    } else if file.path.ends_with(".md") {
        paragraphs(file, numbered.map(|(number, line)| (number, Some(line))), &mut findings);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&SourceFile { path: path.into(), text: text.into() }).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_sentence_without_an_agent_is_found_wherever_it_begins() {
        assert_eq!(found("a.rs", "//! Locks.\n//!\n//! Who waits holds nothing.\n"), [3]);
        assert_eq!(
            found("a.rs", "/// A lock. Nobody\n/// waits for it.\nfn f() {}\n// It goes on: What is left\n// goes.\n"),
            [1, 4]
        );
        assert_eq!(found("a.md", "One.\n\n- What is lost\n  is lost.\n- Fine.\n"), [3]);
    }

    #[test]
    fn questions_labels_tables_and_code_may_begin_so() {
        assert!(
            found("a.rs", "//! What it does not do: I/O.\n// Who is it? It is root.\nlet s = \"Who\";\n").is_empty()
        );
        assert!(
            found("a.md", "| What | Who |\n\n```\nWhat is this\n```\n\n# What follows\n\nWhatsoever.\n").is_empty()
        );
    }

    #[test]
    fn a_test_is_named_by_a_property() {
        assert_eq!(found("a.rs", &format!("#[test]\nfn {0}_is_lost() {{}}\nfn {0}_for() {{}}\n", "what")), [2]);
    }
}
