//! `kernel-tree`: a source tree is written, built, read cold and searched.
//!
//! Building makes the calls of a compiler. For each source, it looks up the source and headers, reads them, writes an
//! object under a temporary name, and renames it.
//!
//! # Locking
//! None.

use super::tree::{MEAN_BYTES, Tree};
use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;
use crate::vfs::Worker;

pub(super) struct KernelTree;

impl Workload for KernelTree {
    fn name(&self) -> &'static str {
        "kernel-tree"
    }

    fn summary(&self) -> &'static str {
        "a tree like a kernel's: created, built (read sources and headers, write objects), read cold, stat'ed"
    }

    fn source(&self) -> &'static str {
        "compilebench's phases (create, compile, read, stat) on the tree of `untar`"
    }

    fn headline(&self) -> &'static str {
        "build"
    }

    fn counted(&self, _: &str) -> &'static str {
        "files"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new().with("files", scaled(70_000, scale, 3)).with("processes", 2).with("headers", 10)
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("files");
        Needs { bytes: files.saturating_mul(MEAN_BYTES * 3), files: files * 2 + files / 15 + 2, ..Needs::default() }
    }

    fn durable(&self, _parameters: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let tree = Tree::new(&mut context.rng(), context.get("files"));
        let (processes, headers) = (context.get("processes").max(1), context.get("headers"));
        let mine = |process: u64| {
            let every = processes as usize;
            tree.files.iter().skip(process as usize).step_by(every)
        };
        let includes: Vec<&str> = tree.files.iter().map(|(n, _)| n.as_str()).filter(|n| n.ends_with(".h")).collect();
        context.prepare(1, |w, _| tree.directories.iter().try_for_each(|d| w.mkdir(d)))?;
        context.phase("create", processes, |w, process| {
            for (name, size) in mine(process) {
                let file = w.create(name)?;
                w.write(&file, 0, *size)?;
                w.close(file)?;
                w.done(1);
            }
            Ok(())
        })?;
        context.phase("build", processes, |w, process| {
            for (name, size) in mine(process).filter(|(n, _)| n.ends_with(".c")) {
                w.stat(name)?;
                read(w, name, *size)?;
                for _ in 0..headers.min(includes.len() as u64) {
                    let header = includes[w.rng.below(includes.len() as u64) as usize];
                    w.stat(header)?;
                    read(w, header, MEAN_BYTES)?;
                }
                let object = format!("{name}.o");
                let temporary = format!("{name}.tmp");
                let file = w.create(&temporary)?;
                w.write(&file, 0, size * 2)?;
                w.close(file)?;
                w.rename(&temporary, &object)?;
                w.done(1);
            }
            Ok(())
        })?;
        context.cold()?;
        context.phase("read", processes, |w, process| {
            for (name, size) in mine(process) {
                read(w, name, *size)?;
                w.done(1);
            }
            Ok(())
        })?;
        context.cold()?;
        context.phase("stat", processes, |w, process| {
            for directory in tree.directories.iter().skip(process as usize).step_by(processes as usize) {
                w.readdir(directory)?;
            }
            for (name, _) in mine(process) {
                w.stat(name)?;
                w.done(1);
            }
            Ok(())
        })
    }
}

fn read(w: &mut Worker<'_>, name: &str, size: u64) -> Result<()> {
    let file = w.open(name)?;
    w.read(&file, 0, size as usize)?;
    w.close(file)
}
