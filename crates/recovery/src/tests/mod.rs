//! Tests: logs made with the writers of `ondisk` (synthetic), and logs made by e2fsprogs and the kernel (golden).

mod disk;
mod golden;
mod history;
mod log_writer;
mod synthetic;
