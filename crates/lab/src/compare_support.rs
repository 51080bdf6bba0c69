//! Trials for the tests of comparisons.

use std::collections::BTreeMap;

use crate::result::{Contestant, Environment, Latency, Outcome, Phase, SCHEMA, Trial, WorkloadRun};

/// A trial whose headline phase took `seconds`.
pub fn trial(label: &str, round: u32, seconds: f64) -> Trial {
    Trial {
        schema: SCHEMA,
        workload: WorkloadRun {
            name: "small-files".into(),
            scale: 0.5,
            seed: 7,
            parameters: BTreeMap::from([("processes".into(), 16.into())]),
            headline: "work".into(),
        },
        contestant: Contestant {
            label: label.into(),
            kind: "engine".into(),
            options: String::new(),
            policies: BTreeMap::new(),
            program: None,
        },
        point: BTreeMap::new(),
        round,
        place: 0,
        started_s: 1_700_000_000,
        started_ns: 0,
        environment: Environment {
            command: ["extant", "lab", "run", "small-files", "--target", "engine:b", "--target", "engine:a"]
                .map(String::from)
                .to_vec(),
            image_bytes: 1 << 30,
            ..Environment::default()
        },
        recorded: Some("latency".into()),
        identity: None,
        outcome: Outcome::Checked,
        flaws: Vec::new(),
        output: String::new(),
        phases: vec![Phase { name: "work".into(), seconds, operations: 1000, ..Phase::default() }],
        latency: BTreeMap::from([(
            "fsync".into(),
            Latency {
                count: 10,
                mean_ns: seconds * 1e6,
                p50_ns: 1,
                p90_ns: 2,
                p99_ns: 3,
                p999_ns: 4,
                max_ns: 5,
                histogram: String::new(),
            },
        )]),
        measures: BTreeMap::new(),
        locks: Vec::new(),
        groups: BTreeMap::new(),
        chunks: Vec::new(),
    }
}
