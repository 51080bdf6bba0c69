//! `replay`: a recorded list of operations.
//!
//! The list is NDJSON, one operation a line: `{"op":"write","path":"a/b","offset":0,"bytes":4096,"process":0}`. `op` is
//! a name of [`crate::vfs::Op`]. `create` and `open` leave the file open under its path until `close`; `write`, `read`,
//! `fsync`, `fdatasync` and `truncate` (to `bytes`) name it by that path. For `rename`, `to` is the new name; for
//! `symlink`, the link's target. The lines of one process run in order; processes run concurrently.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;

use super::{Context, Needs, Parameters, Workload};
use crate::error::{Error, Result};
use crate::vfs::{Node, Op, Worker};

pub(super) struct Replay;

/// The maximum number of processes in a list.
const PROCESSES_MAX: u64 = 1024;

/// A line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    op: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    to: String,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    process: u64,
}

impl Workload for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn summary(&self) -> &'static str {
        "a recorded list of operations (--operations FILE, NDJSON)"
    }

    fn source(&self) -> &'static str {
        "the list; its form is in docs/lab.md"
    }

    fn headline(&self) -> &'static str {
        "replay"
    }

    fn parameters(&self, _scale: f64) -> Parameters {
        Parameters::new().with("times", 1)
    }

    fn needs(&self, _: &Parameters) -> Needs {
        Needs { bytes: 64 << 20, files: 1000, ..Needs::default() }
    }

    fn durable(&self, _parameters: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let Some(list) = context.operations() else {
            return Err(Error::Usage("replay needs a list: --operations FILE".into()));
        };
        let times = context.get("times");
        let lists = load(list)?;
        context.phase("replay", lists.len() as u64, |w, process| {
            let mut open = HashMap::new();
            for _ in 0..times {
                for (op, line) in &lists[process as usize] {
                    one(w, *op, line, &mut open)?;
                    w.done(1);
                }
            }
            open.into_values().try_for_each(|node| w.close(node))
        })
    }
}

/// Reads and checks a list: returns the lines of each process.
fn load(path: &Path) -> Result<Vec<Vec<(Op, Line)>>> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let mut lists: BTreeMap<u64, Vec<(Op, Line)>> = BTreeMap::new();
    for (number, text) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |why: String| Error::Usage(format!("{}:{}: {why}", path.display(), number + 1));
        let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let op = Op::ALL.iter().find(|op| op.name() == line.op).copied();
        let op = op.ok_or_else(|| {
            wrong(Error::unknown("operation", &line.op, Op::ALL.iter().map(|o| o.name())).to_string())
        })?;
        let inside = |p: &str| !p.starts_with('/') && !p.split('/').any(|part| part == "..");
        if !inside(&line.path) || (op == Op::Rename && !inside(&line.to)) {
            return Err(wrong(format!("'{}' leads out of the target", line.path)));
        }
        if line.process >= PROCESSES_MAX {
            return Err(wrong(format!("process {}; at most {PROCESSES_MAX} are allowed", line.process)));
        }
        lists.entry(line.process).or_default().push((op, line));
    }
    if lists.is_empty() {
        return Err(Error::Usage(format!("{}: no operations", path.display())));
    }
    Ok(lists.into_values().collect())
}

/// Checks a list before anything is written to a target.
pub(super) fn check(path: &Path) -> Result<()> {
    load(path).map(drop)
}

fn one(w: &mut Worker<'_>, op: Op, line: &Line, open: &mut HashMap<String, Node>) -> Result<()> {
    let path = line.path.as_str();
    let not_open = || Error::Failed(format!("{} {path}: it is not open", op.name()));
    match op {
        Op::Mkdir => w.mkdir(path),
        Op::Create | Op::Open => {
            let node = if op == Op::Create { w.create(path)? } else { w.open(path)? };
            match open.insert(path.to_owned(), node) {
                Some(before) => w.close(before),
                None => Ok(()),
            }
        }
        Op::Write => w.write(open.get(path).ok_or_else(not_open)?, line.offset, line.bytes),
        Op::Read => {
            // In steps, because the length comes from a file.
            let (mut at, mut left) = (line.offset, line.bytes);
            while left > 0 {
                let n = w.read(open.get(path).ok_or_else(not_open)?, at, left.min(1 << 20) as usize)? as u64;
                if n == 0 {
                    break;
                }
                at += n;
                left -= n.min(left);
            }
            Ok(())
        }
        Op::Fsync => w.fsync(open.get(path).ok_or_else(not_open)?),
        Op::Fdatasync => w.fdatasync(open.get(path).ok_or_else(not_open)?),
        Op::FsyncMany => {
            // Closes all open files, in the order of their names.
            let mut all: Vec<(String, Node)> = open.drain().collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            let (paths, nodes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            let result = w.fsync_many(&nodes, 1);
            open.extend(paths.into_iter().zip(nodes));
            result
        }
        Op::Truncate => w.truncate(open.get(path).ok_or_else(not_open)?, line.bytes),
        Op::Close => {
            let node = open.remove(path).ok_or_else(not_open)?;
            w.close(node)
        }
        Op::Unlink => w.unlink(path),
        Op::Rmdir => w.rmdir(path),
        Op::Rename => w.rename(path, &line.to),
        Op::Stat => w.stat(path).map(drop),
        Op::Readdir => w.readdir(path).map(drop),
        Op::Symlink => w.symlink(&line.to, path),
        Op::Sync => w.sync_all(),
    }
}
