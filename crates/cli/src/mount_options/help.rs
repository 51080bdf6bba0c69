//! The words of `-o`, printed: for `extant help mount`, for the manual pages, for completions.
//!
//! Main items: [`on_screen`], [`rows`], [`words`], [`completions`].
//!
//! # Locking
//! None.

use super::table::WORDS;
use super::word::{Audience, Fate, Word};

/// The usual width of a terminal.
const WIDTH: usize = 80;
/// The column at which the texts begin.
const INDENT: usize = 27;

/// The parts of a page about words: those with an effect, ignored ones, and refused ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Administrator,
    Researcher,
    Ignored,
    Refused,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::Administrator, Part::Researcher, Part::Ignored, Part::Refused];

    /// The heading of the part.
    pub fn title(self) -> &'static str {
        match self {
            Part::Administrator => "Mount options",
            Part::Researcher => "Mount options for measurements",
            Part::Ignored => "Mount options without effect",
            Part::Refused => "Mount options that are refused",
        }
    }

    fn of(word: &Word) -> Part {
        match (word.fate, word.audience) {
            (Fate::Ignored, _) => Part::Ignored,
            (Fate::Refused, _) => Part::Refused,
            (_, Audience::Administrator) => Part::Administrator,
            (_, Audience::Researcher) => Part::Researcher,
        }
    }
}

/// The words of a part, each with its synonyms, in their written form, and its text.
pub fn rows(part: Part) -> impl Iterator<Item = (Vec<String>, String)> {
    WORDS.iter().filter(move |word| Part::of(word) == part).map(|word| {
        let names = word.names.iter().map(|name| word.written(name)).collect();
        let mut text = word.text.to_owned();
        if matches!(word.fate, Fate::Policy) {
            text = format!("{text}: {}", word.choices().join(", "));
        }
        (names, text)
    })
}

/// The part of `extant help mount` about options: two lists for two kinds of users.
pub fn on_screen() -> String {
    let mut out = String::new();
    for part in [Part::Administrator, Part::Researcher] {
        out += &format!("{} (-o), separated by commas:\n", part.title());
        for (names, text) in rows(part) {
            let head = format!("  {}", names.join(", "));
            let gap = if head.len() < INDENT - 1 { INDENT - head.len() } else { 1 };
            let first = WIDTH.saturating_sub(head.len() + gap);
            let own_line = head.len() >= INDENT - 1;
            let lines = wrap(&text, if own_line { WIDTH - INDENT } else { first });
            if own_line {
                out += &format!("{head}\n");
            }
            for (i, line) in lines.iter().enumerate() {
                let before =
                    if i == 0 && !own_line { format!("{head}{}", " ".repeat(gap)) } else { " ".repeat(INDENT) };
                out += &format!("{before}{line}\n");
            }
        }
        out.push('\n');
    }
    let more = "The other words of ext4(5), of mount(8) and of FUSE are taken without effect, or refused with the reason: \
                extant-mount(1) lists them.";
    for line in wrap(more, WIDTH) {
        out += &format!("{line}\n");
    }
    out.push('\n');
    out
}

/// Each word with an effect: its name, the form of its value, the possible values if there are few, and its text.
pub fn words() -> impl Iterator<Item = (&'static str, &'static str, Vec<&'static str>, &'static str)> {
    let words = WORDS.iter().filter(|word| word.has_effect());
    words.flat_map(|word| word.names.iter().map(|name| (*name, word.value, word.choices(), word.text)))
}

/// Each word with an effect, once for each of its values, as a user types it, and its text.
pub fn completions() -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    for (name, value, choices, text) in words() {
        if !value.starts_with('=') {
            all.push((name.to_owned(), text));
        } else if choices.is_empty() {
            all.push((format!("{name}="), text));
        }
        all.extend(choices.iter().map(|choice| (format!("{name}={choice}"), text)));
    }
    all
}

/// `text` as lines of at most `width` columns, broken at spaces.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
