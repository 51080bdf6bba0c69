//! Runs on copies of images and on modelled devices, and of `age`. They have a separate process, because the tests in
//! `runs` count the whole process's operations.

use crate::common::{config, go, trials};
use extant_lab::measure::Recorded;
use extant_lab::result::{Outcome, Trial};
use extant_lab::run;

/// The work finds the image's files, and the image does not change.
#[test]
fn a_run_can_begin_with_a_copy_of_an_image() {
    let dir = tempfile::tempdir().expect("directory");
    let original = dir.path().join("worn.img");
    extant_oracle::mke2fs(&original, &["-t", "ext3"], "64M");
    extant_oracle::debugfs_write(&original, "mkdir worn").expect("changed");
    let before = std::fs::read(&original).expect("image");
    let image = dir.path().join("e.img");
    let mut c = config(dir.path(), "small-files", &[format!("engine:{}", image.display())]);
    (c.image, c.image_bytes, c.rounds) = (Some(original.clone()), None, 1);
    assert_eq!(go(&c).expect("runs").usable, 1);
    assert_eq!(std::fs::read(&original).expect("image"), before);
    let trial = &trials(&c)[0];
    assert!(!trial.environment.features.iter().any(|f| f == "extent"), "{:?}", trial.environment.features);
    assert!(trial.environment.mkfs.starts_with("cp --sparse=always worn.img IMAGE # SHA-256 "));
    assert!(trial.flaws.is_empty(), "{:?}", trial.flaws);
    // With a changed image, it is another run.
    extant_oracle::debugfs_write(&original, "mkdir more").expect("changed");
    c.rounds = 2;
    assert!(go(&c).expect_err("another image").to_string().contains("another run"));
    std::fs::write(&original, [1; 4096]).expect("no image");
    assert!(run::check(&c).expect_err("no file system").to_string().contains("worn.img"));
}

#[test]
fn trials_of_age_have_exact_counts_and_the_same_work_for_every_policy() {
    let dir = tempfile::tempdir().expect("directory");
    let engine = format!("engine:{},io=memory,exact,store=metadata,device=hdd", dir.path().join("e.img").display());
    let mut c = config(dir.path(), "age", &[engine]);
    c.policies = vec!["meta_policy=vanilla,inline".into()];
    (c.mkfs, c.image_bytes) = (Some("-t ext3".into()), Some(48 << 20));
    c.settings =
        ["turnovers=1", "directories=3", "read_files_bytes=1000000", "random_reads=20"].map(str::to_owned).into();
    assert_eq!(go(&c).expect("run").failed, []);
    let all = trials(&c);
    let of = |policy: &str| {
        let all = all.iter().filter(move |t| t.contestant.policies["meta_policy"] == policy);
        all.map(|t| {
            let phases =
                t.phases.iter().map(|p| (p.name.clone(), p.operations, p.bytes, p.measures.get("device_seconds")));
            let maps =
                ["map_blocks", "map_runs", "map_jumps", "device_writes", "files_left"].map(|name| t.measures[name]);
            (t.outcome.clone(), phases.collect::<Vec<_>>(), maps)
        })
        .collect::<Vec<_>>()
    };
    let (vanilla, inline) = (of("vanilla"), of("inline"));
    assert!(vanilla[0] == vanilla[1] && inline[0] == inline[1], "{vanilla:?} {inline:?}");
    assert_eq!(vanilla[0].0, Outcome::Checked);
    let names: Vec<&str> = vanilla[0].1.iter().map(|phase| phase.0.as_str()).collect();
    let turns =
        ["fill", "read-0.0", "random-0.0", "turn-0.5", "read-0.5", "random-0.5", "turn-1.0", "read-1.0", "random-1.0"];
    assert_eq!(names, [&turns[..], &["unmount"]].concat());
    let work = |trial: &Vec<(String, u64, u64, Option<&f64>)>| -> Vec<(String, u64, u64)> {
        trial.iter().map(|(name, operations, bytes, _)| (name.clone(), *operations, *bytes)).collect()
    };
    assert_eq!(work(&vanilla[0].1), work(&inline[0].1));
    assert!(vanilla[0].2[0] == inline[0].2[0] && vanilla[0].2[1] < inline[0].2[1], "{vanilla:?} {inline:?}");
}

/// The modelled device's figures depend only on the requests. They are the same in a file and in memory, in each round,
/// and when data is dropped.
#[test]
fn device_seconds_are_exact_for_one_process() {
    let dir = tempfile::tempdir().expect("directory");
    let targets = ["", ",io=memory", ",store=metadata", ",io=memory,store=metadata"];
    let targets = targets.map(|how| format!("engine:{},device=hdd-2007{how}", dir.path().join("e.img").display()));
    let mut c = config(dir.path(), "small-files", &targets);
    (c.recorded, c.settings) = (Recorded::NONE, vec!["processes=1".into()]);
    assert_eq!(go(&c).expect("runs").usable, 8);
    let trials = trials(&c);
    let of = |t: &Trial| {
        let mut figures = extant_lab::figure::figures(t);
        let dropped = |name: &str| name.contains("device_dropped");
        figures.retain(|(name, _)| name.contains("device_") && !dropped(name));
        figures
    };
    for t in &trials {
        assert_eq!((of(t), &t.flaws), (of(&trials[0]), &Vec::new()), "{} {}", t.contestant.label, t.round);
        let measures = &t.measures;
        assert!(measures["device_seconds"] > 0.01 && measures["device_seeks"] > 0.0, "{measures:?}");
        let parts: f64 = t.phases.iter().map(|p| p.measures.get("device_seconds").copied().unwrap_or_default()).sum();
        assert!(parts > 0.0 && parts <= measures["device_seconds"], "{parts} of {measures:?}");
        let bytes = measures.get("device_dropped_bytes").copied();
        assert_eq!(bytes.is_some(), t.contestant.label.contains("store="), "{}", t.contestant.label);
        assert!(bytes.is_none_or(|bytes| bytes > 1000.0), "{bytes:?}");
    }
    // With several processes it varies like a time, but it is a figure all the same.
    let mut several = config(&dir.path().join("several"), "small-files", &targets[..1]);
    (several.recorded, several.settings, several.rounds) = (Recorded::NONE, vec!["processes=2".into()], 1);
    assert_eq!(go(&several).expect("runs").usable, 1);
    assert!(self::trials(&several)[0].flaws.is_empty());
}
