//! Damage as values: the common part of the damage enums of all structures.
//!
//! Each structure has a `Copy` enum of its faults: the field, the found and the expected value, as numbers. Its
//! `damage` function states all rules of the format once, reports each violation to a sink, and continues. A decoder
//! runs the same function and fails with the first damage that is *fatal*, which means that the structure cannot be
//! read safely. Only a checker reports the others (a stray flag, a high half that must be zero), because a mount that
//! refused them would lose files that the Linux kernel shows.
//!
//! Main type: [`Damage`].
//!
//! # Locking
//! None.

use std::fmt;

use crate::{Error, Result, Structure};

/// One violation of the format.
pub trait Damage: Copy + fmt::Debug + fmt::Display + PartialEq {
    /// Whether a decoder refuses the structure because of it.
    fn is_fatal(&self) -> bool;
}

/// Fails with the first fatal damage that `check` reports to its sink.
pub(crate) fn refuse<D: Damage>(
    structure: Structure,
    number: impl Into<u64>,
    check: impl FnOnce(&mut dyn FnMut(D)),
) -> Result<()> {
    match first(check) {
        Some(damage) => Err(Error::corrupt(structure, number, damage.to_string())),
        None => Ok(()),
    }
}

/// The first fatal damage that `check` reports to its sink.
pub(crate) fn first<D: Damage>(check: impl FnOnce(&mut dyn FnMut(D))) -> Option<D> {
    let mut first = None;
    check(&mut |damage: D| {
        if first.is_none() && damage.is_fatal() {
            first = Some(damage);
        }
    });
    first
}

/// All damage that `check` reports to its sink.
#[cfg(test)]
pub(crate) fn all<D: Damage>(check: impl FnOnce(&mut dyn FnMut(D))) -> Vec<D> {
    let mut found = Vec::new();
    check(&mut |damage| found.push(damage));
    found
}
