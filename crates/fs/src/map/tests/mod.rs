//! Tests of the mapping layer against a model, with hostile bytes, and against e2fsprogs and the kernel.

mod damage;
mod fake;
mod fuzz;
mod model;
mod oracle;
