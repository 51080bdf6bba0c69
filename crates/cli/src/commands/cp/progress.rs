//! A progress bar, for terminals and long copies.
//!
//! # Locking
//! None of its own.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;

use extant_base::clock::Clock;
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::shown;

/// How long a copy runs before a bar is shown.
const QUIET_NS: u64 = 700_000_000;

pub struct Progress {
    clock: Clock,
    terminal: bool,
    bar: RefCell<Option<ProgressBar>>,
    name: RefCell<String>,
    size: Cell<u64>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress {
            clock: Clock::real(),
            terminal: std::io::stderr().is_terminal(),
            bar: RefCell::new(None),
            name: RefCell::default(),
            size: Cell::new(0),
        }
    }

    /// Starts the next file.
    pub fn file(&self, name: &[u8], size: u64) {
        if !self.terminal {
            return;
        }
        self.size.set(size);
        *self.name.borrow_mut() = shown(name);
        if let Some(bar) = &*self.bar.borrow() {
            bar.set_length(size);
            bar.set_position(0);
            bar.set_message(self.name.borrow().clone());
        }
    }

    /// Reports that `bytes` of the current file are copied.
    pub fn at(&self, bytes: u64) {
        if !self.terminal || self.clock.now_ns() < QUIET_NS {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{bytes:>11}/{total_bytes:11} {binary_bytes_per_sec:>14} {bar:24} {wide_msg}",
            );
            let bar = ProgressBar::new(self.size.get());
            bar.set_message(self.name.borrow().clone());
            if let Ok(style) = style { bar.with_style(style) } else { bar }
        });
        bar.set_position(bytes);
    }

    /// Runs `print` while the bar is hidden.
    pub fn aside(&self, print: impl FnOnce()) {
        match &*self.bar.borrow() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub fn end(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}
