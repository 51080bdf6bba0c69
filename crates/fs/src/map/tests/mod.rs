//! Tests of the mapping layer: against a model, under hostile bytes, and against e2fsprogs and the kernel.

mod fake;
mod fuzz;
mod model;
mod oracle;
