//! The files of the host that this process has open as images.
//!
//! A copy must not empty or replace one of them, and must not read the image that it writes. Names do not identify
//! files (links, `.`, `IMAGE@N`), so files are compared by device and inode number of the open descriptor. The code
//! that opens images stores them here, once for the process, so that no command can forget one.
//!
//! What it does not do: it removes no entries, because a process runs one command.
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

/// Whether the file contains an open image, or a part of one.
pub fn is_image(file: FileId) -> bool {
    OPENED.lock().iter().any(|opened| opened.file == file)
}

/// As [`is_image`], for an image open for writing.
pub fn is_written_image(file: FileId) -> bool {
    OPENED.lock().iter().any(|opened| opened.file == file && !opened.read_only)
}
