//! The result of a command with `--rescue`: the damaged files, and one line about all files at its end.
//!
//! Main types: [`Tally`].
//!
//! # Locking
//! None.

use std::collections::HashMap;

use extant_fs::{Filesystem, InodeRef};
pub use extant_transfer::content::{doubt, image_id as id};

use crate::failure::{Failure, HURT, warn};
use crate::image;

/// The kind of access of a command, for its last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessKind {
    /// The command has read each file to its end.
    #[default]
    Read,
    /// The command has looked at names and attributes.
    Looked,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Files without damage. Directories do not count.
    whole: u64,
    /// Files, directories and names that are incomplete, or may be wrong.
    hurt: u64,
}

/// The files of a command, for each image.
#[derive(Debug, Default)]
pub struct Tally {
    did: AccessKind,
    counts: HashMap<usize, Counts>,
}

impl Tally {
    pub fn new(did: AccessKind) -> Tally {
        Tally { did, counts: HashMap::new() }
    }

    fn of(&mut self, image: usize) -> &mut Counts {
        self.counts.entry(image).or_default()
    }

    pub fn whole(&mut self, image: usize) {
        self.of(image).whole += 1;
    }

    pub fn hurt(&mut self, image: usize) {
        self.of(image).hurt += 1;
    }

    /// Counts a name that a walk has found, and returns its damage. A directory's damage is known when the walk leaves
    /// it.
    pub fn found(&mut self, fs: &Filesystem, path: &[u8], inode: &InodeRef) -> Option<Failure> {
        if inode.is_dir() {
            return None;
        }
        let failure = failure(fs, path, inode);
        match &failure {
            Some(_) => self.hurt(id(fs)),
            None => self.whole(id(fs)),
        }
        failure
    }

    /// Returns the damage of a directory whose names have been listed.
    pub fn left(&mut self, fs: &Filesystem, path: &[u8], dir: &InodeRef) -> Option<Failure> {
        let failure = failure(fs, path, dir);
        if failure.is_some() {
            self.hurt(id(fs));
        }
        failure
    }

    /// Prints the line about an image if it is rescued.
    pub fn print(&self, fs: &Filesystem) {
        if !fs.rescues() {
            return;
        }
        let Counts { whole, hurt } = self.counts.get(&id(fs)).copied().unwrap_or_default();
        let files = if whole == 1 { "file" } else { "files" };
        let what = if self.did == AccessKind::Read { "whole" } else { "found" };
        let nameless = match fs.nameless() {
            None => String::new(),
            Some(0) => ", none without a name".into(),
            Some(n) => format!(", {n} without a name (#INODE in /lost+found)"),
        };
        // First, so that the line below is the last one.
        fs.say_suppressed_messages();
        warn(&format!("{}: {whole} {files} {what}, {hurt} hurt{nameless}", fs.image()));
    }
}

fn failure(fs: &Filesystem, path: &[u8], inode: &InodeRef) -> Option<Failure> {
    doubt(fs, inode).map(|e| image::at(fs, path, e.clone()).with_status(HURT))
}
