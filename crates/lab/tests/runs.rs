//! Whole runs: on the engine and on a directory; going on where a run ended; what is refused, and that it writes
//! nothing.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use extant_lab::environment::Build;
use extant_lab::measure::Recorded;
use extant_lab::result::{Outcome, TRIALS, Trial};
use extant_lab::run::{self, Config};

fn config(dir: &Path, workload: &str, targets: &[String]) -> Config {
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

fn go(config: &Config) -> extant_lab::Result<run::Summary> {
    run::run(config, &AtomicBool::new(false))
}

fn trials(config: &Config) -> Vec<Trial> {
    run::load(&config.output).expect("results")
}

/// One test: lock statistics and trace points are the process's.
#[test]
fn engine_and_directory() {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("e.img");
    let engine = format!("engine:{},io=memory", image.display());
    let mut c = config(dir.path(), "small-files", &[engine, format!("dir:{}", dir.path().display())]);
    c.policies = vec!["mb_policy=vanilla,goal-first".into()];
    // It leaves nothing behind.
    c.warmup = 1;
    // In three parts, one of them twice, one of them empty: a part is made of whole rounds.
    for (part, usable) in [(0, 3), (1, 3), (1, 0), (2, 0)] {
        c.shard = Some((part, 3));
        let summary = go(&c).expect("run");
        assert_eq!((summary.usable, summary.failed), (usable, vec![]), "part {part}");
    }
    let all = trials(&c);
    assert_eq!(all.len(), 6);
    assert!(all[..3].iter().all(|t| t.round == 0) && all[3..].iter().all(|t| t.round == 1));
    assert!(all.iter().all(|t| t.recorded.as_deref() == Some("latency,locks,events") && t.flaws.is_empty()));
    for t in &all {
        let phase = t.phase("files").expect("phase");
        assert_eq!((phase.operations, phase.bytes), (32, 32 * 22_528));
        assert!(phase.seconds > 0.0 && t.phase("unmount").is_some());
        assert_eq!(t.latency["fsync"].count, 32);
        assert!(t.measures["cpu_user_s"] >= 0.0 && t.measures["switches_voluntary"] > 0.0);
        if t.contestant.kind == "dir" {
            assert_eq!(t.outcome, Outcome::Unchecked);
            assert!(t.locks.is_empty() && !t.measures.contains_key("device_writes"), "it cannot tell");
        } else {
            assert_eq!(t.outcome, Outcome::Checked);
            // 22,528 bytes in blocks of 1 KiB.
            assert_eq!(t.measures["blocks_freed"], 32.0 * 22.0);
            assert!(t.measures["journal_commits"] > 0.0 && t.measures["device_flushes"] > 0.0);
            assert!(t.measures["bitmaps_per_transaction"] > 0.0);
            assert_eq!(t.measures["files_left"], 0.0);
            assert!(!t.groups.is_empty() && t.locks.iter().any(|l| l.name == "inode" && l.acquired > 0));
            assert!(t.environment.features.contains(&"extent".into()));
        }
    }
    assert!(!image.exists(), "images are deleted");
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1, "only the results are left");
    // All is there: nothing more to do.
    c.shard = None;
    let summary = go(&c).expect("run");
    assert_eq!((summary.usable, summary.skipped), (0, 6));
    // Half a line, left by a crash, is cut off; more rounds go on behind it.
    let file = c.output.join(TRIALS);
    let mut text = std::fs::read(&file).expect("results");
    text.extend_from_slice(b"{\"schema\":1,");
    std::fs::write(&file, text).expect("results");
    c.rounds = 3;
    assert_eq!(go(&c).expect("run").usable, 3);
    assert_eq!(trials(&c).len(), 9);
    // Another configuration does not mix, nor does what was recorded another way.
    c.recorded = Recorded::FAIR;
    assert!(
        go(&c).expect_err("other parts").to_string().contains("recorded: latency,locks,events there, latency here")
    );
    c.recorded = Recorded::ALL;
    c.scale = 0.03;
    assert!(go(&c).expect_err("other scale").to_string().contains("another run (parameter "));

    // With cold caches, files that stay, and an image file below.
    let mut c = config(dir.path(), "kernel-tree", &[format!("engine:{},io=buffered", image.display())]);
    c.output = dir.path().join("tree");
    c.settings = vec!["files=60".into()];
    c.rounds = 1;
    assert_eq!(go(&c).expect("run").failed, []);
    let all = trials(&c);
    assert_eq!(
        all[0].phases.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
        ["create", "build", "read", "stat", "unmount"]
    );
    assert!(all[0].measures["files_left"] > 60.0 && all[0].measures["extents_per_file"] >= 1.0);
    assert!(all[0].measures["device_read_bytes"] > 60.0 * 1000.0, "it was read cold");

    // Bare: times, no more.
    c.recorded = Recorded::NONE;
    c.output = dir.path().join("bare");
    assert_eq!(go(&c).expect("run").failed, []);
    let all = trials(&c);
    assert!(all[0].latency.is_empty() && all[0].locks.is_empty() && all[0].phase("build").is_some());

    // A workload that fails is a failed trial, not a failed run.
    let list = dir.path().join("list.ndjson");
    std::fs::write(&list, "{\"op\":\"unlink\",\"path\":\"none\"}\n").expect("list");
    let mut c = config(dir.path(), "replay", &[format!("engine:{}", image.display())]);
    c.image_bytes = Some(256 << 20);
    c.output = dir.path().join("failed");
    c.operations = Some(list);
    assert_eq!(go(&c).expect("run").failed.len(), 2);
    assert!(matches!(&trials(&c)[0].outcome, Outcome::Failed(why) if why.contains("unlink none")));
    assert!(!trials(&c)[0].usable() && !image.exists());

    an_interrupted_run_cleans_up();
}

#[test]
fn refusals_write_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let there = dir.path().join("there.img");
    std::fs::write(&there, b"mine").expect("file");
    let at = |text: &str| text.replace("DIR", dir.path().to_str().expect("path"));
    let cases: &[(&str, &str, &str)] = &[
        ("small-file", "engine:DIR/e.img", "known are: small-files"),
        ("small-files", "extent4:DIR/e.img", "engine, mount, kernel"),
        ("small-files", "engine:DIR/none/e.img", "no such directory"),
        ("small-files", "engine:DIR/there.img", "--overwrite"),
        ("small-files", "engine:/dev/null", "no regular file"),
        ("small-files", "engine:DIR/e.img,shape=round", "known to the engine"),
        ("small-files", "dir:DIR/none", "no such directory"),
        ("stream", "engine:DIR/e.img", "too small"),
        ("replay", "engine:DIR/e.img", "--operations"),
        ("age", "dir:DIR", "a directory is none"),
    ];
    for (workload, target, why) in cases {
        let mut c = config(dir.path(), workload, &["dir:/tmp".into(), at(target)]);
        c.scale = 1.0;
        let e = go(&c).expect_err(target);
        assert!(e.is_usage() && e.to_string().contains(why), "{workload} {target}: {e}");
        assert!(!c.output.exists(), "{target}");
    }
    let mut c = config(dir.path(), "small-files", &[at("engine:DIR/e.img")]);
    c.image_bytes = None;
    c.scale = 1000.0;
    c.settings = vec!["batch=100000000".into()];
    assert!(go(&c).expect_err("room").to_string().contains("are free"));
    for (scale, rounds) in [(0.0, 1), (f64::NAN, 1), (-1.0, 1), (1.0, 0)] {
        let mut c = config(dir.path(), "small-files", &[at("engine:DIR/e.img")]);
        (c.scale, c.rounds) = (scale, rounds);
        assert!(go(&c).is_err_and(|e| e.is_usage()));
    }
    assert_eq!(std::fs::read(&there).expect("file"), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
}

fn an_interrupted_run_cleans_up() {
    let dir = tempfile::tempdir().expect("directory");
    let c = config(dir.path(), "small-files", &[format!("engine:{}", dir.path().join("e.img").display())]);
    let e = run::run(&c, &AtomicBool::new(true)).expect_err("stopped");
    assert!(matches!(e, extant_lab::Error::Interrupted), "{e}");
    assert!(trials(&c).is_empty() && !dir.path().join("e.img").exists());
}

/// The work finds what the image had, and the image keeps nothing of the work.
#[test]
fn a_run_can_begin_with_a_copy_of_an_image() {
    let dir = tempfile::tempdir().expect("directory");
    let original = dir.path().join("worn.img");
    let file = std::fs::File::create(&original).expect("image");
    file.set_len(64 << 20).expect("sparse");
    let made = std::process::Command::new("mke2fs").args(["-q", "-F", "-t", "ext3"]).arg(&original).status();
    assert!(made.expect("mke2fs").success());
    let debugfs = |request: &str, image: &Path| {
        let ran = std::process::Command::new("debugfs").args(["-w", "-R", request]).arg(image).output();
        String::from_utf8_lossy(&ran.expect("debugfs").stdout).into_owned()
    };
    debugfs("mkdir worn", &original);
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
    // What changes in the image makes it another run.
    debugfs("mkdir more", &original);
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

/// The modelled device's figures are those of the requests alone: the same in a file and in memory, in each round, and
/// also when data is dropped.
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
    let mut several = config(&dir.path().join("several"), "small-files", &targets[..1]);
    (several.recorded, several.settings, several.rounds) = (Recorded::NONE, vec!["processes=2".into()], 1);
    assert_eq!(go(&several).expect("runs").usable, 1);
    let flaws = &self::trials(&several)[0].flaws;
    assert!(flaws.len() == 1 && flaws[0].contains("2 processes"), "{flaws:?}");
}
