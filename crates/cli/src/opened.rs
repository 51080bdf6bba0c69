//! Which files of the host this process has open as images.
//!
//! A copy must not empty or replace one of them, nor read the one that it writes. Names do not tell (links, `.`,
//! `IMAGE@N`), so files are compared by device and inode number, of the open descriptor. They are remembered here, once
//! for the process, where images are opened: no command can forget to say which it has.
//!
//! What it does not do: forget. A process is one command.
//!
//! # Locking
//! `opened images` (960), a leaf.

use extant_base::sync::{LockClass, Mutex};

static CLASS: LockClass = LockClass::new("opened images", 960);

/// Device and inode number.
pub type FileId = (u64, u64);

struct Opened {
    file: FileId,
    read_only: bool,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(&CLASS, Vec::new());

pub fn remember(file: FileId, read_only: bool) {
    OPENED.lock().push(Opened { file, read_only });
}

/// Whether an image lies in it, or a part of one.
pub fn is_image(file: FileId) -> bool {
    OPENED.lock().iter().any(|opened| opened.file == file)
}

/// As [`is_image`], one that is written.
pub fn is_written_image(file: FileId) -> bool {
    OPENED.lock().iter().any(|opened| opened.file == file && !opened.read_only)
}
