//! Every device against a model, and the promises of the special ones.

mod calibration;
mod crash;
mod file;
mod gate;
mod held;
pub(crate) mod model;
mod sim;
mod wrappers;
