//! `postmark`: the mail server of 1997, used here as a workload on which no difference is expected.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;
use crate::vfs::Worker;

pub(super) struct PostMark;

/// PostMark's file sizes and buffer size, bytes.
const SIZE_MIN: u64 = 500;
const SIZE_MAX: u64 = 10_000;
const BUFFER: u64 = 512;

impl Workload for PostMark {
    fn name(&self) -> &'static str {
        "postmark"
    }

    fn summary(&self) -> &'static str {
        "one process: files of 500 to 10,000 bytes created, read, appended to, deleted (a negative control)"
    }

    fn source(&self) -> &'static str {
        "PostMark 1.5's sizes and biases; \"postmark, fsmark and largedd showed up nothing useful\" (Mel Gorman, 2013)"
    }

    fn headline(&self) -> &'static str {
        "transactions"
    }

    fn counted(&self, phase: &str) -> &'static str {
        if phase == "transactions" { "transactions" } else { "files" }
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("files", scaled(20_000, scale, 2))
            .with("transactions", scaled(50_000, scale, 2))
            .with("subdirectories", 10)
    }

    fn small_scale(&self) -> f64 {
        0.05
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("files") + p.get("transactions");
        Needs { bytes: files.saturating_mul(16 << 10), files: files + p.get("subdirectories"), ..Needs::default() }
    }

    fn durable(&self, _parameters: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (files, transactions) = (context.get("files"), context.get("transactions"));
        let directories = context.get("subdirectories").max(1);
        let name = |i: u64| format!("s{}/{i}", i % directories);
        context.prepare(1, |w, _| (0..directories).try_for_each(|d| w.mkdir(&format!("s{d}"))))?;
        context.phase("create", 1, |w, _| {
            for i in 0..files {
                new(w, &name(i))?;
                w.done(1);
            }
            Ok(())
        })?;
        let survivors = std::sync::OnceLock::new();
        context.phase("transactions", 1, |w, _| {
            let mut alive: Vec<u64> = (0..files).collect();
            let mut next = files;
            for _ in 0..transactions {
                let which = w.rng.below(alive.len() as u64) as usize;
                if let Some(&file) = alive.get(which) {
                    let file = name(file);
                    if w.rng.one_in(2) { read(w, &file)? } else { append(w, &file)? }
                }
                if w.rng.one_in(2) || alive.is_empty() {
                    new(w, &name(next))?;
                    alive.push(next);
                    next += 1;
                } else {
                    let which = w.rng.below(alive.len() as u64) as usize;
                    let gone = alive.swap_remove(which);
                    w.unlink(&name(gone))?;
                }
                w.done(1);
            }
            let _ = survivors.set(alive);
            Ok(())
        })?;
        context.phase("delete", 1, |w, _| {
            for i in survivors.get().into_iter().flatten() {
                w.unlink(&name(*i))?;
                w.done(1);
            }
            Ok(())
        })
    }
}

fn new(w: &mut Worker<'_>, name: &str) -> Result<()> {
    let size = SIZE_MIN + w.rng.below(SIZE_MAX - SIZE_MIN);
    let file = w.create(name)?;
    pieces(w, &file, 0, size)?;
    w.close(file)
}

fn pieces(w: &mut Worker<'_>, file: &crate::vfs::Node, from: u64, size: u64) -> Result<()> {
    let mut at = 0;
    while at < size {
        let n = (size - at).min(BUFFER);
        w.write(file, from + at, n)?;
        at += n;
    }
    Ok(())
}

fn read(w: &mut Worker<'_>, name: &str) -> Result<()> {
    let file = w.open(name)?;
    let mut at = 0;
    loop {
        match w.read(&file, at, BUFFER as usize)? {
            0 => break,
            n => at += n as u64,
        }
    }
    w.close(file)
}

fn append(w: &mut Worker<'_>, name: &str) -> Result<()> {
    let size = w.stat(name)?.size;
    let more = w.rng.below(SIZE_MAX.saturating_sub(size).max(1));
    let file = w.open(name)?;
    pieces(w, &file, size, more)?;
    w.close(file)
}
