//! The progress of a check: a bar, or lines on a file descriptor as e2fsck writes them.
//!
//! # Locking
//! `fsck progress` (962), a leaf: the last progress shown. Held while a line is written.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_check::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use super::USAGE;
use crate::failure::{Failure, Result};

static CLASS: LockClass = LockClass::new("fsck progress", 962);

/// Where the progress is shown.
enum ProgressDisplay {
    Bar(ProgressBar),
    Lines(File, String),
}

struct ProgressState {
    pass: u32,
    done: u64,
    to: ProgressDisplay,
}

/// Reports the progress by a bar, or by lines on a file descriptor with pass, part, whole and image.
pub fn progress(fd: i32, name: &str) -> Result<Progress> {
    let to = if fd == 0 {
        let bar = ProgressBar::new(1000);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:50}] {percent}%") {
            bar.set_style(style);
        }
        ProgressDisplay::Bar(bar)
    } else {
        let path = format!("/proc/self/fd/{}", fd.unsigned_abs());
        let open = OpenOptions::new().append(true).open(&path).or_else(|_| OpenOptions::new().write(true).open(&path));
        ProgressDisplay::Lines(open.map_err(|e| Failure::new(USAGE, format!("-C {fd}: {e}")))?, name.to_owned())
    };
    let far = Mutex::new(&CLASS, ProgressState { pass: 0, done: 0, to });
    Ok(Progress(Arc::new(move |pass, done, total| tell(&mut far.lock(), pass, done, total))))
}

/// Threads are not in step, so only progress beyond the last report is shown.
fn tell(far: &mut ProgressState, pass: u32, done: u64, total: u64) {
    if (pass, done) <= (far.pass, far.done) {
        return;
    }
    (far.pass, far.done) = (pass, done);
    match &mut far.to {
        ProgressDisplay::Bar(bar) => {
            bar.set_message(format!("pass {pass}"));
            bar.set_position(done * 1000 / total.max(1));
        }
        // If the reader has closed the descriptor, the check continues.
        ProgressDisplay::Lines(file, name) => drop(writeln!(file, "{pass} {done} {total} {name}")),
    }
}
