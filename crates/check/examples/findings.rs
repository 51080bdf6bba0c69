//! Checks image files and prints their problems: `cargo run -p extant-check --example findings -- IMAGE...`.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{FileDevice, IoMode, OpenOptions};
use extant_check::{Options, check};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for image in std::env::args_os().skip(1) {
        let options = OpenOptions { read_only: true, io: IoMode::Buffered, ..OpenOptions::default() };
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&image, options)?);
        let report = check(&device, &Options { threads: 2, ..Options::default() })?;
        for finding in &report.findings {
            println!("{:#08x} {:?} {finding}", finding.problem.code(), finding.problem);
        }
        println!("{}: damaged: {}, complete: {}", image.to_string_lossy(), report.is_damaged(), report.complete);
    }
    Ok(())
}
