//! One manual page, in the language of man(7).
//!
//! Main function: [`of`]. `clap_mangen` makes name, synopsis, description and options. The text after a command's help
//! is divided into the usual sections.
//!
//! # Locking
//! None.

use std::fmt::Write;

use clap::Command;
use clap_mangen::Man;

use super::notes;
use crate::failure::Result;
use crate::mount_options::help::{self, Part};

/// The width of an example: a terminal's, less the indentation.
const EXAMPLE_WIDTH: usize = 73;

/// The page's name, such as `extant-lab-run`.
pub fn name_of(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// The page as text.
pub fn of(command: &Command, section: &str) -> Result<String> {
    let name = name_of(command);
    let man = Man::new(command.clone());
    let mut head = Vec::new();
    man.render_name_section(&mut head)?;
    man.render_synopsis_section(&mut head)?;
    man.render_description_section(&mut head)?;
    man.render_options_section(&mut head)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut head)?;
    }
    let head = String::from_utf8_lossy(&head);
    // Each part begins with a definition of the apostrophe.
    let (definitions, head): (Vec<&str>, Vec<&str>) =
        head.lines().partition(|line| line.starts_with(".ie ") || line.starts_with(".el "));
    let mut out = String::new();
    for definition in definitions.iter().take(2) {
        let _ = writeln!(out, "{definition}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(out, ".TH {name} {section} \"{}\" \"Extant {version}\" \"Extant\"", env!("EXTANT_DATE"));
    for line in head {
        let _ = writeln!(out, "{line}");
    }

    if notes::has_mount_options(&name) {
        mount_options(&mut out);
    }
    let text = Text::of(command);
    if !text.notes.is_empty() {
        heading(&mut out, "NOTES");
        for paragraph in &text.notes {
            let _ = writeln!(out, ".PP\n{}", escaped(paragraph));
        }
    }
    if !text.examples.is_empty() {
        heading(&mut out, "EXAMPLES");
        let _ = writeln!(out, ".nf");
        for line in &text.examples {
            for line in fold(line, EXAMPLE_WIDTH) {
                let _ = writeln!(out, "{}", escaped(&line));
            }
        }
        let _ = writeln!(out, ".fi");
    }
    heading(&mut out, "EXIT STATUS");
    let _ = writeln!(out, "{}", escaped(text.exit_status.as_deref().unwrap_or(notes::EXIT_STATUS)));
    for (title, rows) in [
        ("DIAGNOSTICS", notes::diagnostics(&name)),
        ("FILES", notes::files(&name)),
        ("ENVIRONMENT", notes::environment(&name)),
    ] {
        if !rows.is_empty() {
            heading(&mut out, title);
        }
        for (head, text) in rows {
            tagged(&mut out, head, text);
        }
    }
    heading(&mut out, "SEE ALSO");
    let pages: Vec<String> = notes::see_also(&name, command).iter().map(|page| escaped(page)).collect();
    let _ = writeln!(out, "{}", pages.join(",\n"));
    Ok(out)
}

fn heading(out: &mut String, title: &str) {
    let _ = writeln!(out, ".SH \"{title}\"");
}

/// A paragraph with a heading, or a plain one.
fn tagged(out: &mut String, head: &str, text: &str) {
    let _ = match head {
        "" => writeln!(out, ".PP\n{}", escaped(text)),
        head => writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(head), escaped(text)),
    };
}

/// The table of mount options. Options for administrators belong to the section of options; each other kind has a
/// section of its own.
fn mount_options(out: &mut String) {
    for part in Part::ALL {
        let _ = match part {
            Part::Administrator => {
                writeln!(out, ".SS \"{}\"\nAfter \\fB\\-o\\fR, separated by commas; the last wins.", part.title())
            }
            _ => writeln!(out, ".SH \"{}\"", part.title().to_uppercase()),
        };
        for (names, text) in help::rows(part) {
            tagged(out, &names.join(", "), &text);
        }
    }
}

/// The text after a command's help.
#[derive(Default)]
struct Text {
    examples: Vec<String>,
    exit_status: Option<String>,
    notes: Vec<String>,
}

impl Text {
    fn of(command: &Command) -> Text {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut parts = Text::default();
        let mut in_examples = false;
        // The paragraph that the next line continues.
        let mut open: Option<String> = None;
        for line in text.lines().chain([""]) {
            let status = line.strip_prefix("Exit status: ");
            if line.is_empty() || status.is_some() || line.starts_with("Example") {
                parts.notes.extend(open.take());
            }
            match status {
                _ if line.starts_with("Example") => in_examples = true,
                Some(status) => parts.exit_status = Some(sentence(status)),
                None if line.is_empty() => in_examples = false,
                None if in_examples => parts.examples.push(line.strip_prefix("  ").unwrap_or(line).to_owned()),
                None => {
                    let paragraph = open.get_or_insert_default();
                    if !paragraph.is_empty() {
                        paragraph.push(' ');
                    }
                    paragraph.push_str(line.trim());
                }
            }
        }
        parts
    }
}

/// The text with a capital letter at its start.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Breaks an example at spaces outside quotes into lines of at most `width` columns, which a shell reads as one
/// command.
fn fold(line: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > width {
        let mut quote = None;
        let mut at = None;
        for (i, c) in rest.char_indices().take(width - 1) {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                // Do not break in the indentation of a continuation line.
                (None, ' ') if !rest[..i].trim().is_empty() => at = Some(i),
                _ => {}
            }
        }
        let Some(at) = at else { break };
        lines.push(format!("{} \\", &rest[..at]));
        rest = format!("    {}", rest[at..].trim_start());
    }
    lines.push(rest);
    lines
}

/// Escapes `text` for man(7), so that no character is a command.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if line.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        for c in line.chars() {
            match c {
                '\\' => out.push_str("\\e"),
                '-' => out.push_str("\\-"),
                '\'' => out.push_str("\\(aq"),
                '`' => out.push_str("\\(ga"),
                '^' => out.push_str("\\(ha"),
                '~' => out.push_str("\\(ti"),
                c => out.push(c),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_text_is_a_command() {
        assert_eq!(escaped(".so x\n'a' \\fB-o"), "\\&.so x\n\\&\\(aqa\\(aq \\efB\\-o");
    }

    #[test]
    fn a_folded_example_is_the_same_command() {
        let line = "extant one 'two three' four";
        assert_eq!(fold(line, 40), [line]);
        assert_eq!(fold(line, 19), ["extant one \\", "    'two three' \\", "    four"]);
        assert_eq!(fold("'one two three four'", 8), ["'one two three four'"], "a quoted text stays whole");
    }

    #[test]
    fn help_is_divided_into_sections() {
        let help = "Examples:\n  a\n  b\n\nA note\non two lines.\nExit status: 0, 1.";
        let text = Text::of(&Command::new("x").after_help(help));
        assert_eq!(text.examples, ["a", "b"]);
        assert_eq!(text.notes, ["A note on two lines."]);
        assert_eq!(text.exit_status.as_deref(), Some("0, 1."));
    }
}
