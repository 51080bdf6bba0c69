//! Whole runs on the engine and on a directory, continued runs, and refusals, which write nothing.

use std::sync::atomic::AtomicBool;

use crate::common::{config, go, trials};
use extant_lab::measure::Recorded;
use extant_lab::result::{Outcome, TRIALS};
use extant_lab::run;

/// One test: lock statistics and trace points are process-wide.
#[test]
fn engine_and_directory() {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("e.img");
    let engine = format!("engine:{},io=memory", image.display());
    let mut c = config(dir.path(), "small-files", &[engine, format!("dir:{}", dir.path().display())]);
    c.policies = vec!["mb_policy=vanilla,goal-first".into()];
    // A warm-up round leaves nothing behind.
    c.warmup = 1;
    // In three parts, one of which runs twice and one is empty: a part consists of whole rounds.
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
    // All trials exist: nothing more to do.
    c.shard = None;
    let summary = go(&c).expect("run");
    assert_eq!((summary.usable, summary.skipped), (0, 6));
    // Half a line that a crash has left is cut off, and more rounds are appended.
    let file = c.output.join(TRIALS);
    let mut text = std::fs::read(&file).expect("results");
    text.extend_from_slice(b"{\"schema\":1,");
    std::fs::write(&file, text).expect("results");
    c.rounds = 3;
    assert_eq!(go(&c).expect("run").usable, 3);
    assert_eq!(trials(&c).len(), 9);
    // Results of another configuration are not mixed in, nor are results with other recorded parts.
    c.recorded = Recorded::FAIR;
    assert!(
        go(&c).expect_err("other parts").to_string().contains("recorded: latency,locks,events there, latency here")
    );
    c.recorded = Recorded::ALL;
    c.scale = 0.03;
    assert!(go(&c).expect_err("other scale").to_string().contains("another run (parameter "));

    // With cold caches, files that are kept, and an image file as the device.
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

    // Without optional parts: only times.
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
