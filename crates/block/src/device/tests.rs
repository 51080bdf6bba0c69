//! Every device against a model, and the promises of the special ones.

mod crash;
mod file;
mod gate;
mod held;
pub(crate) mod model;
mod wrappers;
