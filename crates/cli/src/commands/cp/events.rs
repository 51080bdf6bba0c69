//! The events of a copy as messages, counts and an exit status.
//!
//! Main type: [`Events`].
//!
//! # Locking
//! None.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write};

use extant_transfer::copy::Id;
use extant_transfer::{Cause, Error, Place, Watch};

use super::LINKS_MAX;
use super::progress::Progress;
use crate::args::CpArgs;
use crate::failure::{Failure, HURT, OPERATIONAL, Report, Result, warn};
use crate::opened;
use crate::rescued::{AccessKind, Tally};
use crate::server::signals::{Input, Stop};
use crate::text::{Output, shown};

/// The messages to the user, and the counts for the end.
pub struct Events<'a> {
    verbose: bool,
    stop: &'a Stop,
    progress: Progress,
    report: RefCell<Report>,
    tally: RefCell<Tally>,
    /// Whether the user has been told that attributes are left out.
    warned: Cell<bool>,
}

impl<'a> Events<'a> {
    pub fn new(args: &CpArgs, stop: &'a Stop) -> Events<'a> {
        Events {
            verbose: args.verbose,
            stop,
            progress: Progress::new(),
            report: RefCell::default(),
            tally: RefCell::new(Tally::new(AccessKind::Read)),
            warned: Cell::new(false),
        }
    }

    pub fn stop(&self) -> &'a Stop {
        self.stop
    }

    /// The error as a message and a status.
    pub fn failure(&self, e: Error) -> Failure {
        match e.cause {
            Cause::Stopped => self.stop.check().err().unwrap_or_else(|| Failure::op(e.to_string())),
            Cause::Output(e) => e.into(),
            Cause::Directory => Failure::op(format!("{e} (copy it with -r)")),
            _ => Failure::new(if e.is_hurt() { HURT } else { OPERATIONAL }, e.to_string()),
        }
    }

    /// Prints the error of one file; returns an error that ends the command. `image` is the source's.
    pub fn note(&self, image: Option<usize>, result: Result<()>) -> Result<()> {
        if let Some(image) = image.filter(|_| result.is_err()) {
            self.tally.borrow_mut().hurt(image);
        }
        self.report.borrow_mut().note_by(result, |e| self.progress.aside(|| e.print()))
    }

    /// The result of the whole copy, in which `parted` files were copied without their hard links.
    pub fn end(&self, parted: u64) -> (Tally, Result<()>) {
        self.progress.end();
        let mut report = self.report.take();
        if parted > 0 {
            report.complain(Failure::op(format!(
                "{parted} files with several names were copied once for each name: of more than {LINKS_MAX} files some \
                 names were still to come; copy smaller parts of the tree"
            )));
        }
        (self.tally.take(), report.end())
    }
}

impl Watch for Events<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.check().is_err()
    }

    fn begins(&self, name: &[u8], size: u64) {
        self.progress.file(name, size);
    }

    fn advances(&self, bytes: u64) {
        self.progress.at(bytes);
    }

    /// Prints as cp -v does.
    fn copied(&self, from: &Place, to: &Place) -> io::Result<()> {
        if self.verbose {
            let mut out = Output::new();
            writeln!(out, "'{from}' -> '{to}'")?;
            out.flush()?;
        }
        Ok(())
    }

    fn is_whole(&self, image: Option<usize>) {
        image.into_iter().for_each(|image| self.tally.borrow_mut().whole(image));
    }

    fn failed(&self, image: Option<usize>, e: Error) -> extant_transfer::Result<()> {
        // The error of one file never ends the command.
        let _ = self.note(image, Err(self.failure(e)));
        Ok(())
    }

    fn attribute_refused(&self, name: &[u8], why: &io::Error) {
        if !self.warned.replace(true) {
            let name = shown(name);
            warn(&format!("attribute {name}: {why} (further attributes are left out silently)"));
        }
    }

    fn is_image(&self, file: Id) -> bool {
        opened::is_image(file)
    }

    fn is_written_image(&self, file: Id) -> bool {
        opened::is_written_image(file)
    }

    fn input<'f>(&'f self, file: &'f File) -> Box<dyn Read + 'f> {
        Box::new(Input::new(file, self.stop))
    }
}
