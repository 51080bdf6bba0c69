//! Images that are begun. If the command fails or a signal ends it, a new file goes away, and the message says that an
//! image that was there is lost.
//!
//! Main type: [`Unfinished`]. A source that waits, a plan or a device cannot be interrupted, so a signal ends the whole
//! process, on a thread of its own, and leaves no file behind.
//!
//! # Locking
//! `unfinished files`: what is begun. It is held while one is made or removed, and by the thread that ends the process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_base::sync::{LockClass, Mutex};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

use crate::signals::{ended_by, ending};

static CLASS: LockClass = LockClass::new("unfinished files", 964);
static BEGUN: Mutex<Vec<Begun>> = Mutex::new(&CLASS, Vec::new());

/// Behind the reason why an image is not overwritten wholly.
const LOST: &str = "; what it held is lost, and it has no file system: make it again";

#[derive(PartialEq)]
enum Begun {
    /// A new file.
    Made(PathBuf),
    /// An image that was there, by its name for messages.
    Overwritten(String),
}

/// From now on a signal that ends the command removes what is unfinished.
pub fn watch_signals() {
    // Without a handler the signal ends the command, too, but leaves the file: no reason to refuse.
    let Ok(mut signals) = Signals::new(ending()) else { return };
    let _ = extant_base::task::spawn("extant-signals", move || {
        if let Some(signal) = signals.forever().next() {
            let all = BEGUN.lock();
            let mut end = ended_by(signal);
            for begun in &*all {
                match begun {
                    Begun::Made(path) => drop(std::fs::remove_file(path)),
                    Begun::Overwritten(name) => {
                        let how = end.message;
                        end.message = format!("{name}: {how}{LOST}");
                    }
                }
            }
            end.print();
            // With the lock: nobody makes another file now.
            std::process::exit(end.status.into());
        }
    });
}

/// At most one image.
#[derive(Default)]
pub struct Unfinished {
    begun: Option<Begun>,
}

impl Unfinished {
    /// Makes the file at `path`.
    pub fn make(&mut self, path: &Path, make: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
        let mut all = BEGUN.lock();
        let file = make()?;
        all.push(Begun::Made(path.to_owned()));
        self.begun = Some(Begun::Made(path.to_owned()));
        Ok(file)
    }

    /// From here on the image `name` does not hold what it held.
    pub fn overwrite(&mut self, name: &str) {
        BEGUN.lock().push(Begun::Overwritten(name.into()));
        self.begun = Some(Begun::Overwritten(name.into()));
    }

    /// Makes a file that finds its own name.
    pub fn make_named(&mut self, make: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
        let mut all = BEGUN.lock();
        let file = make()?;
        all.push(Begun::Made(file.path().to_owned()));
        self.begun = Some(Begun::Made(file.path().to_owned()));
        Ok(file)
    }

    /// It is whole, or has another name.
    pub fn keep(&mut self) {
        if let Some(begun) = self.begun.take() {
            BEGUN.lock().retain(|other| *other != begun);
        }
    }

    /// Removes a new file. What a message must add.
    pub fn remove(&mut self) -> &'static str {
        let Some(begun) = self.begun.take() else { return "" };
        let mut all = BEGUN.lock();
        all.retain(|other| *other != begun);
        match begun {
            Begun::Made(path) => {
                let _ = std::fs::remove_file(path);
                ""
            }
            Begun::Overwritten(_) => LOST,
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove();
    }
}
