//! Files that are begun, and go away if the command fails or a signal ends it.
//!
//! Main type: [`Unfinished`]. A source that waits, a plan or a device cannot be interrupted, so a signal ends the whole
//! process, on a thread of its own, and leaves no file behind.
//!
//! # Locking
//! `unfinished files`: their paths. It is held while one is made or removed, and by the thread that ends the process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_base::sync::{LockClass, Mutex};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

use crate::signals::{ended_by, ending};

static CLASS: LockClass = LockClass::new("unfinished files", 964);
static FILES: Mutex<Vec<PathBuf>> = Mutex::new(&CLASS, Vec::new());

/// From now on a signal that ends the command removes what is unfinished.
pub fn watch_signals() {
    // Without a handler the signal ends the command, too, but leaves the file: no reason to refuse.
    let Ok(mut signals) = Signals::new(ending()) else { return };
    let _ = extant_base::task::spawn("extant-signals", move || {
        if let Some(signal) = signals.forever().next() {
            let files = FILES.lock();
            for file in &*files {
                let _ = std::fs::remove_file(file);
            }
            let end = ended_by(signal);
            end.print();
            // With the lock: nobody makes another file now.
            std::process::exit(end.status.into());
        }
    });
}

/// At most one file.
#[derive(Default)]
pub struct Unfinished {
    path: Option<PathBuf>,
}

impl Unfinished {
    /// Makes the file at `path`.
    pub fn make(&mut self, path: &Path, make: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
        let mut files = FILES.lock();
        let file = make()?;
        files.push(path.to_owned());
        self.path = Some(path.to_owned());
        Ok(file)
    }

    /// Makes a file that finds its own name.
    pub fn make_named(&mut self, make: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
        let mut files = FILES.lock();
        let file = make()?;
        files.push(file.path().to_owned());
        self.path = Some(file.path().to_owned());
        Ok(file)
    }

    /// It is whole, or has another name.
    pub fn keep(&mut self) {
        if let Some(path) = self.path.take() {
            FILES.lock().retain(|file| *file != path);
        }
    }

    pub fn remove(&mut self) {
        if let Some(path) = self.path.take() {
            let mut files = FILES.lock();
            let _ = std::fs::remove_file(&path);
            files.retain(|file| *file != path);
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove();
    }
}
