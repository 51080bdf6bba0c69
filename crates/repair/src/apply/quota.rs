//! Quota files.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;

use crate::error::{Done, Refusal};
use crate::view::Image;

/// Makes a quota file anew, with the usage of the files.
pub fn renew(image: &mut Image, ino: InodeNr) -> Done {
    let _ = (image, ino);
    Err(Refusal::Lost("quota files cannot be made anew yet"))
}
