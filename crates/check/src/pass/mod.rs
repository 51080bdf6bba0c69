//! The passes: the rules, one file for each kind of structure, and their order.
//!
//! [`metadata`] (the file system's own blocks), [`orphans`] (inodes to be deleted or truncated), [`inodes`] and
//! [`maps`] (the owners of blocks, in a second walk if a block is claimed twice), [`xattrs`], [`peeks`] (targets of
//! symlinks), [`directories`] (with [`dir_runs`]), [`names`] and [`htree`], [`connectivity`], [`links`], [`bitmaps`],
//! [`quota`].
//!
//! Every pass merges the findings of its threads, so that the result does not depend on their order.
//!
//! # Locking
//! None of its own.

pub mod bitmaps;
mod connectivity;
mod dir_runs;
pub mod directories;
mod entries;
mod htree;
mod inodes;
pub mod links;
mod maps;
mod metadata;
mod names;
mod orphans;
mod peeks;
pub mod quota;
mod walk;
mod xattrs;

use std::sync::Arc;

use crate::Options;
use crate::context::Check;
use crate::error::Result;
use crate::facts::Facts;
use crate::report::{Sink, Totals};
use crate::view::View;

/// Runs every pass.
pub fn run(view: View, options: &Options, mut sink: Sink) -> Result<(Totals, Sink, Facts)> {
    let mut check = Check::new(view, options)?;
    check.metadata = metadata::claim(&check, &mut sink)?;
    check.orphans = orphans::listed(&check, &mut sink);
    let check = Arc::new(check);
    let mut walked = walk::walk(&check, walk::Mode::Check, &mut sink)?;
    let sharers = match check.claims.has_doubles() {
        true => walk::walk(&check, walk::Mode::Owners, &mut sink)?.sharers,
        false => Vec::new(),
    };
    let large_files = walked.large_files;
    let usages = quota::Usages::new(std::mem::take(&mut walked.usage));
    let directories = directories::check(&check, walked, &mut sink)?;
    connectivity::check(&check, &directories, &mut sink);
    links::check(&check, &mut sink);
    links::features(&check, large_files, &directories, &mut sink);
    let mut totals = bitmaps::check(&check, &mut sink)?;
    quota::check(&check, &usages, &mut sink)?;
    orphans::file(&check, &mut sink);
    sink.merge(check.found());
    (totals.reads, totals.read_bytes) = check.reads();
    Ok((totals, sink, Facts::new(check, directories, usages, sharers)))
}
