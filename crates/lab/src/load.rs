//! Reads results: `trials.ndjson` of a directory, or a file of that form. Kept ones may end in `.gz`, compressed.
//!
//! Main items: [`Source`] (the trials that one argument of `compare` names), [`load`]. An argument is a directory, a
//! file, or either with `#LABEL` for one contestant of it.
//!
//! A last line that was cut off (the process was killed while writing) is left out and noted. Any other unreadable line
//! is an error. So is a trial that occurs twice, because it is unknown which of its figures belong to the round. It
//! judges nothing.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::result::{SCHEMA, TRIALS, Trial};
use crate::table::plain;
use crate::target::{Target, policies};

/// The longest line that is read, bytes. Histograms of a dozen operations and ten thousand groups take less than a
/// mebibyte.
const LINE_MAX: u64 = 64 << 20;

/// Why results cannot be read or compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: not a trial: {why}", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error("{}: no trials{}", path.display(), if *cut { ": its only line was cut off" } else { "" })]
    Empty { path: PathBuf, cut: bool },
    #[error("{}:{line}: written with schema {found}, this program reads {SCHEMA} (--force tries anyway)", path.display())]
    Schema { path: PathBuf, line: usize, found: u64 },
    #[error("{}:{line}: round {round} of {} in {} is in line {first} already", path.display(), quoted(label), plain(workload))]
    Twice { path: PathBuf, line: usize, first: usize, label: String, round: u32, workload: String },
    #[error("{} and {} hold the same trials: a copy is no other run", path.display(), copy.display())]
    Copy { path: PathBuf, copy: PathBuf },
    #[error("{}: no contestant {}; there are: {}", path.display(), quoted(wanted), list(known))]
    NoContestant { path: PathBuf, wanted: String, known: Vec<String> },
    #[error("{}: {} may be any of: {}", path.display(), quoted(wanted), list(known))]
    Ambiguous { path: PathBuf, wanted: String, known: Vec<String> },
    #[error("not comparable ({workload}): {}. --force compares anyway", differences.join("; "))]
    Different { workload: String, differences: Vec<String> },
    #[error("no figure \"{wanted}\"; there are: {}", known.join(", "))]
    NoFigure { wanted: String, known: Vec<String> },
    #[error("nothing to compare: {why}")]
    Nothing { why: String },
    #[error("writing: {source}")]
    Write { source: io::Error },
}

impl Error {
    /// Whether other arguments would help, as opposed to other files.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::NoContestant { .. }
                | Error::Ambiguous { .. }
                | Error::Copy { .. }
                | Error::NoFigure { .. }
                | Error::Different { .. }
                | Error::Nothing { .. }
                | Error::Schema { .. }
        )
    }
}

/// A label for a message; it may contain spaces and commas.
fn quoted(label: &str) -> String {
    format!("\"{}\"", plain(label))
}

fn list(labels: &[String]) -> String {
    labels.iter().map(|l| quoted(l)).collect::<Vec<_>>().join(", ")
}

/// Trials that one argument names.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the directory or file, for labels.
    pub name: String,
    /// The canonical path of the file: trials of one file are rounds of one run.
    pub file: PathBuf,
    pub trials: Vec<Trial>,
    /// Notes that a reader of the comparison needs.
    pub notes: Vec<String>,
}

/// Reads the results that `what` names. `force`: also reads lines of another schema, if possible.
pub fn load(what: &Path, force: bool) -> Result<Source, Error> {
    let (path, label) = split(what);
    let file = match path.join(TRIALS) {
        _ if !path.is_dir() => path.clone(),
        plain if plain.exists() => plain,
        // An error names the plain file if there is neither.
        plain => Some(path.join(format!("{TRIALS}.gz"))).filter(|kept| kept.exists()).unwrap_or(plain),
    };
    let mut source = read(&file, force)?;
    // Also for "." and "..".
    let spelt = path.canonicalize().unwrap_or_else(|_| path.clone());
    source.name = spelt.file_name().unwrap_or(spelt.as_os_str()).to_string_lossy().into_owned();
    if source.trials.is_empty() {
        return Err(Error::Empty { path: file, cut: !source.notes.is_empty() });
    }
    if let Some(wanted) = label {
        keep(&mut source, &path, &wanted)?;
    }
    order(&mut source.trials);
    Ok(source)
}

/// Splits `DIR#LABEL`; both a label and a path may contain a `#`.
fn split(what: &Path) -> (PathBuf, Option<String>) {
    let text = what.to_string_lossy();
    if !what.exists() {
        for (at, _) in text.match_indices('#') {
            let path = PathBuf::from(&text[..at]);
            if path.exists() {
                return (path, Some(text[at + 1..].to_owned()));
            }
        }
    }
    (what.to_owned(), None)
}

fn keep(source: &mut Source, path: &Path, wanted: &str) -> Result<(), Error> {
    let mut known: Vec<String> = Vec::new();
    for t in &source.trials {
        if !known.contains(&t.contestant.label) {
            known.push(t.contestant.label.clone());
        }
    }
    let chosen = choose(path, wanted, known)?;
    source.trials.retain(|t| t.contestant.label == chosen);
    Ok(())
}

/// The label that equals `wanted`, or the only label that contains it.
pub fn choose(path: &Path, wanted: &str, known: Vec<String>) -> Result<String, Error> {
    if known.iter().any(|k| k == wanted) {
        return Ok(wanted.to_owned());
    }
    let (path, wanted_text) = (path.to_owned(), wanted.to_owned());
    let mut part: Vec<String> = known.iter().filter(|k| k.contains(wanted)).cloned().collect();
    match part.len() {
        0 => Err(Error::NoContestant { path, wanted: wanted_text, known }),
        1 => Ok(part.remove(0)),
        _ => Err(Error::Ambiguous { path, wanted: wanted_text, known: part }),
    }
}

fn read(file: &Path, force: bool) -> Result<Source, Error> {
    let failed = |source| Error::Read { path: file.to_owned(), source };
    let opened = std::fs::File::open(file).map_err(failed)?;
    let mut reader: Box<dyn BufRead> = match file.extension() {
        Some(end) if end == "gz" => Box::new(BufReader::new(MultiGzDecoder::new(opened))),
        _ => Box::new(BufReader::new(opened)),
    };
    let mut source = Source {
        name: String::new(),
        file: file.canonicalize().map_err(failed)?,
        trials: Vec::new(),
        notes: Vec::new(),
    };
    let mut bytes = Vec::new();
    let mut lines = HashMap::new();
    for line in 1.. {
        bytes.clear();
        let read = io::Read::take(&mut reader, LINE_MAX).read_until(b'\n', &mut bytes).map_err(failed)?;
        if read == 0 {
            break;
        }
        let whole = bytes.last() == Some(&b'\n');
        let text = bytes.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match parse(text, force) {
            Ok(trial) => {
                let (workload, label, round) =
                    (trial.workload.name.clone(), trial.contestant.label.clone(), trial.round);
                let key = (workload.clone(), label.clone(), trial.point.clone(), round);
                if let Some(first) = lines.insert(key, line) {
                    return Err(Error::Twice { path: file.to_owned(), line, first, label, round, workload });
                }
                source.trials.push(trial);
            }
            Err(Bad::Schema(found)) => return Err(Error::Schema { path: file.to_owned(), line, found }),
            Err(Bad::Text(_)) if !whole && (read as u64) < LINE_MAX => {
                source.notes.push(format!("{}:{line}: the last line was cut off and is left out", file.display()));
            }
            Err(Bad::Text(why)) => return Err(Error::Line { path: file.to_owned(), line, why }),
        }
    }
    Ok(source)
}

enum Bad {
    Schema(u64),
    Text(String),
}

/// Checks the schema first: a line of another schema need not look like a trial of this one.
fn parse(text: &[u8], force: bool) -> Result<Trial, Bad> {
    let text = std::str::from_utf8(text).map_err(|e| Bad::Text(e.to_string()))?;
    // The parser sees a single line, and calls it line 1.
    let json = |e: serde_json::Error| Bad::Text(e.to_string().replace(" at line 1 column ", " at column "));
    let value: serde_json::Value = serde_json::from_str(text).map_err(json)?;
    let schema = value.get("schema").and_then(serde_json::Value::as_u64).ok_or(Bad::Text("no schema".into()))?;
    if schema != u64::from(SCHEMA) && !force {
        return Err(Bad::Schema(schema));
    }
    serde_json::from_value(value).map_err(json)
}

/// Puts trials in the order of the contestants on the command line (the order within a round is random), then by round:
/// the first contestant is the baseline.
pub fn order(trials: &mut [Trial]) {
    let mut seen: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for t in trials.iter() {
        let next = seen.len();
        seen.entry(t.contestant.label.clone()).or_insert_with(|| rank(t, next));
    }
    trials.sort_by(|a, b| {
        let (i, j) = (&seen[&a.contestant.label], &seen[&b.contestant.label]);
        i.cmp(j).then(a.round.cmp(&b.round))
    });
}

/// The position of a trial's target on the command line, then those of its policies; `last` breaks ties.
fn rank(trial: &Trial, last: usize) -> Vec<usize> {
    let words: Vec<&str> = trial
        .environment
        .command
        .iter()
        .map(|w| w.strip_prefix("--target=").or_else(|| w.strip_prefix("--policy=")).unwrap_or(w))
        .collect();
    let label = &trial.contestant.label;
    // The longest word that is a prefix of the label: `mount` is also a prefix of `mount,noatime`. Older labels are the
    // words of the command line.
    let begins = |word: &str| {
        let called = word.parse::<Target>().ok()?.label();
        [word, &called].into_iter().filter(|l| label.starts_with(*l)).map(str::len).max()
    };
    let target = words
        .iter()
        .enumerate()
        .filter_map(|(i, w)| Some((i, begins(w)?)))
        .max_by_key(|(i, length)| (*length, usize::MAX - i));
    let mut rank = vec![target.map_or(usize::MAX, |(i, _)| i)];
    for (name, value) in &trial.contestant.policies {
        let place = |values: &str| values.split(',').position(|v| v == value);
        let at = match trial.contestant.kind.as_str() {
            "model" => place_in_model(&trial.environment.command, place).or_else(|| {
                // All policies compete, the default first.
                let table = policies().find(|t| t.option == name.as_str())?;
                table.default_first().position(|row| row.name == value)
            }),
            _ => words.iter().find_map(|w| w.strip_prefix(name.as_str())?.strip_prefix('=')).and_then(place),
        };
        rank.push(at.unwrap_or(usize::MAX));
    }
    rank.push(last);
    rank
}

/// In a model, `--policy a,b` does not name the mechanism.
fn place_in_model(command: &[String], place: impl Fn(&str) -> Option<usize>) -> Option<usize> {
    let named = |w: &str| w == "-p" || w == "--policy";
    let next = command.windows(2).filter(|w| named(&w[0])).map(|w| w[1].as_str());
    let glued = command.iter().filter_map(|w| w.strip_prefix("--policy=").or_else(|| w.strip_prefix("-p")));
    next.chain(glued.map(|v| v.strip_prefix('=').unwrap_or(v))).find_map(place)
}
