//! Unfinished images. If the command fails or a signal ends it, a new file is removed. If an existing image was
//! overwritten, the message says that its content is lost.
//!
//! Main type: [`Unfinished`]. Waiting for a source, a plan or a device cannot be interrupted. So a thread receives the
//! signals, removes the file, and then ends the whole process. Once the image is almost complete
//! ([`Unfinished::settle`]), a signal has no effect: the command ends by itself, and its status is that of the image.
//!
//! # Locking
//! `unfinished files`: their list. It is held while a file is removed, and by the thread that ends the process. That
//! thread waits while a new file is being claimed ([`Claiming`]), because until then the file may belong to another
//! command.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use signal_hook::iterator::Signals;

use crate::opened::FileId;
use crate::server::signals::{ended_by, ending};

static CLASS: LockClass = LockClass::new("unfinished files", 964);
static BEGUN: Mutex<List> = Mutex::new(&CLASS, List { all: Vec::new(), claiming: false, settled: false });
/// A claim takes some milliseconds, unless another command is about to end.
const CLAIM_PAUSE: Duration = Duration::from_millis(5);

struct List {
    all: Vec<StartedImage>,
    /// Whether a file is being created or claimed.
    claiming: bool,
    /// Whether signals no longer end the command.
    settled: bool,
}

/// Added to the reason why overwriting an image failed.
const LOST: &str = "; what it held is lost, and it has no file system: make it again";

#[derive(Clone, PartialEq)]
enum StartedImage {
    /// A new file, which this command has claimed.
    Made(PathBuf, FileId),
    /// An existing image, by its name for messages.
    Overwritten(String),
}

impl StartedImage {
    /// Removes a new file, unless another file has its name by now.
    fn remove(&self) {
        if let StartedImage::Made(path, file) = self
            && path.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == *file)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes a signal that ends the command remove unfinished files first.
pub fn watch_signals() {
    // Without a handler, the signal also ends the command, but leaves the file. That is no reason to refuse.
    let Ok(mut signals) = Signals::new(ending()) else { return };
    let _ = extant_base::task::spawn("extant-signals", move || {
        for signal in signals.forever() {
            let mut list = BEGUN.lock();
            while list.claiming {
                drop(list);
                Clock::real().sleep(CLAIM_PAUSE);
                list = BEGUN.lock();
            }
            if list.settled {
                continue;
            }
            let mut end = ended_by(signal);
            for begun in &list.all {
                begun.remove();
                if let StartedImage::Overwritten(name) = begun {
                    let how = end.message;
                    end.message = format!("{name}: {how}{LOST}");
                }
            }
            end.print();
            // Under the lock, so that the command cannot settle now.
            std::process::exit(end.status.into());
        }
    });
}

/// While this exists, no signal ends the command.
pub struct Claiming(());

impl Claiming {
    pub fn begin() -> Claiming {
        BEGUN.lock().claiming = true;
        Claiming(())
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        BEGUN.lock().claiming = false;
    }
}

/// The unfinished image of this command, if there is one.
#[derive(Default)]
pub struct Unfinished {
    begun: Option<StartedImage>,
}

impl Unfinished {
    fn begin(&mut self, begun: StartedImage) {
        BEGUN.lock().all.push(begun.clone());
        self.begun = Some(begun);
    }

    /// Registers the file at `path`, which is new and used by no other command.
    pub fn made(&mut self, path: &Path, file: FileId) {
        self.begin(StartedImage::Made(path.to_owned(), file));
    }

    /// Registers the image `name`, whose old content is lost from here on.
    pub fn overwrite(&mut self, name: &str) {
        self.begin(StartedImage::Overwritten(name.into()));
    }

    /// From now on, no signal ends the command, because the next writes complete the image.
    pub fn settle(&self) {
        BEGUN.lock().settled = true;
    }

    /// Keeps the image, which is complete.
    pub fn keep(&mut self) {
        if let Some(begun) = self.begun.take() {
            BEGUN.lock().all.retain(|other| *other != begun);
        }
    }

    /// Removes a new file. Returns a text to append to the message.
    pub fn remove(&mut self) -> &'static str {
        let Some(begun) = self.begun.take() else { return "" };
        let mut list = BEGUN.lock();
        list.all.retain(|other| *other != begun);
        begun.remove();
        match begun {
            StartedImage::Made(..) => "",
            StartedImage::Overwritten(_) => LOST,
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove();
    }
}
