//! A small run of the lab, and its trials.
//!
//! # Locking
//! None.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use extant_lab::environment::Build;
use extant_lab::measure::Recorded;
use extant_lab::result::Trial;
use extant_lab::run::{self, Config};

pub fn config(dir: &Path, workload: &str, targets: &[String]) -> Config {
    Config {
        workload: workload.into(),
        targets: targets.to_vec(),
        policies: Vec::new(),
        rounds: 2,
        seed: 1,
        scale: 0.02,
        settings: Vec::new(),
        operations: None,
        mkfs: None,
        image: None,
        image_bytes: Some(64 << 20),
        output: dir.join("result"),
        warmup: 0,
        shard: None,
        overwrite: false,
        devices: false,
        memory: None,
        timeout_s: None,
        recorded: Recorded::ALL,
        quiet: true,
        program: "/nonexistent".into(),
        repeats: None,
        build: Build { version: "0", commit: "unknown", profile: "test" },
        command: vec!["extant".into(), "lab".into()],
        mount_options: |_| Ok(()),
    }
}

pub fn go(config: &Config) -> extant_lab::Result<run::Summary> {
    run::run(config, &AtomicBool::new(false))
}

pub fn trials(config: &Config) -> Vec<Trial> {
    run::load(&config.output).expect("results")
}
