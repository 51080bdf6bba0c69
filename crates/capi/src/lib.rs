//! libextant: the crate `extant` for C.
//!
//! One file for each part of `extant.h`: `image`, `file`, `dir`, `names`, `attributes`. `types` has the
//! structures of the header, `border` the conversions of C's arguments, `handles` the table of what C has open,
//! `fault` the error numbers and texts, `device` the devices of the caller.
//!
//! `cargo xtask header` makes `include/extant.h` of the `export!` blocks, the structures and the constants, with their
//! comments; tidy compares it. A function returns 0 or a count, or a negative error number of Linux. A panic ends at
//! the border as -EIO.
//!
//! What it does not do: anything that the crate `extant` does not offer.
//!
//! # Locking
//! `c handles` (1) for a look into the table; `c position` (2) of a file for the length of a read or write at its
//! position, and `c listing` (2) of an open directory.
#![deny(unsafe_code)]

#[macro_use]
mod border;
mod attributes;
mod device;
mod dir;
mod fault;
mod file;
mod handles;
mod image;
mod names;
mod types;
