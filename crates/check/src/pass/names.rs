//! Finds names that are twice in a directory without an index, in different blocks. Duplicates in one block are found
//! when the block is read; in an index, identical names are adjacent.
//!
//! Main functions: [`key`] (eight bytes for each name, collected when the block is read), [`check`] (reads the
//! directories again in which a key is repeated, and compares the names).
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::InodeNr;

use super::dir_runs::DirRun;
use super::entries;
use crate::context::Check;
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;
use crate::scan::{self, Output};

/// A name whose key is repeated.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    dir: u32,
    name: Vec<u8>,
    lblk: u32,
    offset: u32,
    ino: u32,
}

#[derive(Default)]
struct Out {
    sink: Sink,
    names: Vec<Name>,
}

impl Output for Out {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// The key of a name: its directory and its hash.
pub fn key(dir: u32, hash: u32) -> u64 {
    u64::from(dir) << 32 | u64::from(hash)
}

/// The keys that occur more than once, sorted.
fn repeated(mut keys: Vec<u64>) -> Vec<u64> {
    keys.sort_unstable();
    let mut twice: Vec<u64> = keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    twice.dedup();
    twice
}

/// Reports the names that are in two of the blocks of a directory. `pieces` are all blocks of directories; `folded` are
/// the directories that look up names case-insensitively, sorted.
pub fn check(check: &Arc<Check>, keys: Vec<u64>, folded: Vec<u32>, pieces: &[DirRun], sink: &mut Sink) -> Result<()> {
    let twice = repeated(keys);
    if twice.is_empty() {
        return Ok(());
    }
    let concerned = |dir: u32| {
        let at = twice.partition_point(|one| *one < key(dir, 0));
        twice.get(at).is_some_and(|one| *one <= key(dir, u32::MAX))
    };
    let mut pieces: Vec<DirRun> = pieces.iter().filter(|piece| concerned(piece.ino)).copied().collect();
    pieces.sort_unstable();
    let runs = scan::runs(&pieces, check.geo.block_bits, |piece| (piece.block, piece.blocks.into()));
    let outs = scan::wave(check, runs, move |check, run, data, out: &mut Out| {
        let size = check.geo.block_size as usize;
        for piece in &pieces[run.items.0..run.items.1] {
            let is_folded = folded.binary_search(&piece.ino).is_ok();
            for step in 0..piece.blocks {
                let at = (piece.block - run.first + u64::from(step)) as usize * size;
                entries::names(&data[at..at + size], is_folded, |offset, ino, hash, name| {
                    if twice.binary_search(&key(piece.ino, hash)).is_ok() {
                        let (dir, lblk) = (piece.ino, piece.lblk + step);
                        out.names.push(Name { dir, name: name.to_vec(), lblk, offset, ino });
                    }
                });
            }
        }
        // Unreadable blocks were reported the first time.
        out.sink = Sink::default();
    })?;
    let mut names: Vec<Name> = outs.into_iter().flat_map(|out| out.names).collect();
    names.sort_unstable();
    report(&names, sink);
    Ok(())
}

/// Reports each of the sorted names that is also in an earlier block.
fn report(names: &[Name], sink: &mut Sink) {
    for pair in names.windows(2) {
        let (one, twin) = (&pair[0], &pair[1]);
        if one.dir == twin.dir && one.name == twin.name && one.lblk != twin.lblk {
            let (dir, ino) = (InodeNr(twin.dir), InodeNr(twin.ino));
            let place = Place::Entry { dir, lblk: twin.lblk, offset: twin.offset, ino };
            sink.push(Finding::at(Problem::DuplicateDirent, place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(dir: u32, name: &[u8], lblk: u32) -> Name {
        Name { dir, name: name.to_vec(), lblk, offset: 0, ino: 12 }
    }

    #[test]
    fn only_equal_names_in_two_blocks_of_one_directory_are_reported() {
        let names =
            [name(2, b"other", 0), name(2, b"same", 0), name(2, b"same", 0), name(2, b"same", 3), name(5, b"same", 4)];
        let mut sink = Sink::default();
        report(&names, &mut sink);
        let (findings, _) = sink.finish();
        let places: Vec<_> = findings.iter().map(|finding| (finding.place.ino(), finding.place.lblk())).collect();
        assert_eq!(places, [(Some(InodeNr(2)), Some(3))]);
    }

    #[test]
    fn keys_of_other_directories_are_no_twins() {
        assert_eq!(repeated(vec![key(3, 7), key(2, 7), key(2, 8), key(2, 7), key(2, 7)]), [key(2, 7)]);
    }
}
