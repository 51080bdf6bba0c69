//! Unfinished images. If the command fails or a signal ends it, a new file is removed. If an existing image was
//! overwritten, the message says that its content is lost.
//!
//! Main type: [`Unfinished`]. A wait for a source, a plan or a device cannot be interrupted. So a signal ends the
//! whole process, from a thread of its own, which removes the file first.
//!
//! # Locking
//! `unfinished files`: the list of them. It is held while one is made or removed, and by the thread that ends the
//! process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use extant_base::sync::{LockClass, Mutex};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

use crate::server::signals::{ended_by, ending};

static CLASS: LockClass = LockClass::new("unfinished files", 964);
static BEGUN: Mutex<Vec<Begun>> = Mutex::new(&CLASS, Vec::new());

/// Added to the reason why overwriting an image failed.
const LOST: &str = "; what it held is lost, and it has no file system: make it again";

#[derive(PartialEq)]
enum Begun {
    /// A new file.
    Made(PathBuf),
    /// An existing image, by its name for messages.
    Overwritten(String),
}

/// From now on, a signal that ends the command removes unfinished files.
pub fn watch_signals() {
    // Without a handler the signal ends the command, too, but leaves the file. That is no reason to refuse.
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
            // Under the lock, so that no other thread makes a file now.
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

    /// From here on the image `name` has lost its old content.
    pub fn overwrite(&mut self, name: &str) {
        BEGUN.lock().push(Begun::Overwritten(name.into()));
        self.begun = Some(Begun::Overwritten(name.into()));
    }

    /// Makes a file that chooses its own name.
    pub fn make_named(&mut self, make: impl FnOnce() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
        let mut all = BEGUN.lock();
        let file = make()?;
        all.push(Begun::Made(file.path().to_owned()));
        self.begun = Some(Begun::Made(file.path().to_owned()));
        Ok(file)
    }

    /// The image is complete, or has another name.
    pub fn keep(&mut self) {
        if let Some(begun) = self.begun.take() {
            BEGUN.lock().retain(|other| *other != begun);
        }
    }

    /// Removes a new file. Returns text to add to a message.
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
