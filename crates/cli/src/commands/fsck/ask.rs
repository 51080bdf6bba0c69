//! Asks on a terminal: one question for each step.
//!
//! Main type: [`Questions`]. `y` takes a step, `n` skips it, `a` takes all of its kind, `?` prints more.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::mem::{Discriminant, discriminant};

use extant_check::Report;
use extant_repair::{Action, Decision, End, Outcome, Step};

use super::show;
use crate::failure::Result;
use crate::text::Output;

/// Writes a line to the terminal. If that fails, reading the next answer fails, too.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The questions to a user, and the answers.
pub struct Questions {
    name: String,
    asked: bool,
    /// Kinds of steps of which all are taken.
    all: Vec<Discriminant<Action>>,
    /// Inodes that a line above a question has already named.
    shown: BTreeSet<u32>,
}

impl Questions {
    /// Questions about the image `name`; none has been asked yet.
    pub fn new(name: String) -> Questions {
        Questions { name, asked: false, all: Vec::new(), shown: BTreeSet::new() }
    }

    /// Asks about a step. Without an answer, the step is skipped.
    pub fn ask(&mut self, step: &Step, report: &Report) -> Decision {
        self.asked = true;
        let kind = discriminant(&step.action);
        if self.all.contains(&kind) {
            say(&format!("{}: yes", step));
            return Decision::Yes;
        }
        self.head(step, report);
        loop {
            match self.line(&format!("{step}? [y/n/a/?] ")).as_deref() {
                Some("y" | "yes") => return Decision::Yes,
                Some("a" | "all") => {
                    self.all.push(kind);
                    return Decision::Yes;
                }
                Some("n" | "no") | None => return Decision::No,
                Some("?") => {
                    say(&format!("  {}", show::step(step)));
                    say("  y: do it; n: leave it; a: do it and all others of this kind.");
                    say("  Nothing is written before all questions are answered and the losses are shown.");
                }
                Some(_) => say("  y, n, a or ?"),
            }
        }
    }

    /// Prints the findings about the step's inode, once.
    fn head(&mut self, step: &Step, report: &Report) {
        let Some(ino) = step.action.ino().filter(|ino| self.shown.insert(ino.0)) else {
            say(&format!("{}: {}", step.cause.problem.name(), step.cause));
            return;
        };
        for finding in report.findings.iter().filter(|finding| finding.place.ino() == Some(ino)).take(8) {
            say(&format!("{}: {finding}", finding.problem.name()));
        }
    }

    /// Reads a line from the terminal, in lower case; `None` at end of file.
    fn line(&self, prompt: &str) -> Option<String> {
        let mut out = std::io::stdout().lock();
        // If the question cannot be written, reading the answer fails, too.
        let _ = out.write_all(prompt.as_bytes()).and_then(|()| out.flush());
        drop(out);
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim().to_lowercase())
    }

    /// Asks whether to write. If the user was asked no question before, the answer is yes.
    pub fn confirm(&mut self, outcome: &Outcome) -> Result<bool> {
        if !self.asked {
            return Ok(true);
        }
        let mut out = Output::new();
        let (steps, losses) = (outcome.steps.len(), outcome.losses.len());
        let rest = match outcome.end {
            End::Partial => format!(", and {} findings stay", outcome.left.len()),
            _ => ", and then nothing is wrong".to_owned(),
        };
        writeln!(out, "{}: {steps} steps, {losses} losses{rest}", self.name)?;
        out.flush()?;
        drop(out);
        Ok(matches!(self.line("Write it? [y/n] ").as_deref(), Some("y" | "yes")))
    }
}
