//! Every device against a model, and the promises of the special ones.

mod crash;
mod file;
pub(crate) mod model;
mod wrappers;
