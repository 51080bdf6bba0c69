//! Tests: logs made with the writers of `ondisk` (synthetic), logs made by e2fsprogs and the kernel (golden), and the
//! reader.

mod disk;
mod golden;
mod history;
mod log_writer;
mod read;
mod synthetic;
