//! The caller's side of a copy: it learns of each event, and decides what the copy cannot.
//!
//! Main types: [`Watch`]; [`Silent`], which ends a copy at its first error.
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{self, Read};

use crate::copy::Id;
use crate::error::{Error, Place, Result};

/// Receives the events of a copy. Each method has a default that does nothing, for programs that have no user to talk
/// to.
pub trait Watch {
    /// Whether the copy is to end. It is called between files, and between the pieces of one.
    fn is_stopped(&self) -> bool {
        false
    }

    /// The file `name` of `size` bytes begins.
    fn begins(&self, _name: &[u8], _size: u64) {}

    /// `bytes` of it are copied.
    fn advances(&self, _bytes: u64) {}

    /// A file or a directory is copied, or another name for one is made.
    ///
    /// # Errors
    /// The output failed, which ends the copy.
    fn copied(&self, _from: &Place, _to: &Place) -> io::Result<()> {
        Ok(())
    }

    /// A file that is not a directory is copied, with everything in it. `image`: of the source.
    fn is_whole(&self, _image: Option<usize>) {}

    /// One file could not be copied, or not all of it.
    ///
    /// # Errors
    /// The copy ends with this error. Otherwise it goes on with the next file.
    fn failed(&self, _image: Option<usize>, e: Error) -> Result<()> {
        Err(e)
    }

    /// A socket is not exported: archives have none.
    fn socket_left_out(&self, _socket: &Place) {}

    /// The host does not store this extended attribute; the file is copied without it.
    fn attribute_refused(&self, _name: &[u8], _why: &io::Error) {}

    /// Whether this file of the host is an image that the program has open: a copy must not empty or replace it.
    fn is_image(&self, _file: Id) -> bool {
        false
    }

    /// Whether this file of the host is an image that the program writes: a copy must not read it.
    fn is_written_image(&self, _file: Id) -> bool {
        false
    }

    /// The content of a fifo or a device that the user named.
    fn input<'a>(&'a self, file: &'a File) -> Box<dyn Read + 'a> {
        Box::new(file)
    }
}

/// A caller without a user: the first error ends the copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Watch for Silent {}
