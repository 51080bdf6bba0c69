//! Tests every device with a model, and the guarantees of the special devices.

mod calibration;
mod crash;
mod file;
mod held;
pub(crate) mod model;
mod sim;
mod wrappers;
