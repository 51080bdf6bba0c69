//! `extant lab`: what is refused, a run on real mounts, and a run that is repeated.

mod common;

use std::path::Path;

use common::{Dir, extant};
use extant_testkit::mount::{fuse_works, loop_mounts_work};

/// The records of a directory of results.
fn trials(dir: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(Path::new(dir).join("trials.ndjson")).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

#[test]
fn what_there_is() {
    let list = extant(&["lab", "list", "--parameters"]).ok();
    for word in ["small-files", "reaim-disk", "kernel:IMAGE", "mb_policy", "bitmaps_per_transaction", "bytes=22528"] {
        assert!(list.contains(word), "{word}");
    }
}

#[test]
fn refusals() {
    let dir = Dir::new();
    let image = format!("engine:{}", dir.text("e.img"));
    let mount = format!("mount:{},frobnicate", dir.text("m.img"));
    let out = dir.text("result");
    extant(&["lab", "run", "smallfiles", "-t", &image, "-o", &out]).fails(1, &["small-files", "replay"]);
    extant(&["lab", "run", "untar", "-t", "zfs:/x", "-o", &out]).fails(1, &["engine, mount, kernel"]);
    extant(&["lab", "run", "untar", "-t", &image, "-p", "mb_policy=x", "-o", &out]).fails(1, &["goal_first"]);
    extant(&["lab", "run", "untar", "-t", &mount, "-o", &out]).fails(1, &["frobnicate"]);
    extant(&["lab", "matrix", &image, "-o", &out]).fails(1, &["--against"]);
    extant(&["lab", "rerun", &out]).fails(8, &["trials.ndjson"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn rounds_on_real_mounts_and_again() {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs root, loop devices and /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let out = dir.text("result");
    let at = |kind: &str| format!("{kind}:{}", dir.text(&format!("{kind}.img")));
    let targets = [at("kernel"), at("mount"), at("engine")];
    let mut args = vec![
        "lab",
        "run",
        "fsmark",
        "--quiet",
        "--rounds=2",
        "--size=256M",
        "--set=files_per_process=5",
        "--record=all",
        "-o",
        &out,
    ];
    targets.iter().for_each(|t| args.extend(["-t", t]));
    let ran = extant(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all = trials(&out);
    assert_eq!(all.len(), 6);
    for trial in &all {
        assert_eq!(trial["outcome"]["state"], "checked", "{trial}");
        assert_eq!((&trial["recorded"], &trial["flaws"]), (&"latency,locks,events".into(), &serde_json::Value::Null));
        assert_eq!(trial["latency"]["fsync"]["count"], 80, "{trial}");
        let measure = |name: &str| trial["measures"][name].as_f64().unwrap_or(-1.0);
        assert_eq!((measure("files_left"), measure("extents_per_file")), (80.0, 1.0), "{trial}");
        assert!(measure("device_writes") > 0.0 && measure("device_flushes") > 0.0, "{trial}");
        let kind = trial["contestant"]["kind"].as_str().expect("kind");
        assert_eq!(kind == "mount", measure("memory_server_rss_bytes") > 0.0, "{trial}");
        if kind == "kernel" && !Path::new("/sys/kernel/tracing/instances").exists() {
            continue;
        }
        assert!(measure("journal_commits") > 0.0 && measure("blocks_allocated") >= 80.0, "{trial}");
        assert!(measure("bitmaps_per_transaction") > 0.0, "{trial}");
    }
    let again = dir.text("again");
    let ran = extant(&["lab", "rerun", &out, "-o", &again]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let order = |all: &[serde_json::Value]| -> Vec<String> {
        all.iter().map(|t| t["contestant"]["label"].to_string()).collect()
    };
    assert_eq!(order(&all), order(&trials(&again)), "the same seed, the same order");
    assert_eq!(std::fs::read_dir(dir.text("")).expect("list").count(), 2, "images are gone");
}

/// Writes a run of three rounds, that began at `started_s`; its trials took about `seconds`.
fn write_run(dir: &Dir, name: &str, started_s: u64, seconds: f64) -> String {
    let trial = |round: u32| {
        serde_json::json!({
            "schema": 1, "round": round, "place": 0, "started_s": started_s + u64::from(round),
            "workload": { "name": "untar", "scale": 1.0, "seed": 1, "parameters": {}, "headline": "untar" },
            "contestant": { "label": "engine:my image, #1.img", "kind": "engine", "options": "", "policies": {} },
            "environment": { "version": "0", "commit": "0", "kernel": "6", "cpu": "c", "cores": 1, "memory_bytes": 1,
                "device": "d", "mkfs": "", "image_bytes": 1, "features": [], "command": [] },
            "recorded": "none", "outcome": { "state": "checked" }, "latency": {}, "measures": {},
            "phases": [{ "name": "untar", "seconds": seconds + 0.01 * f64::from(round), "operations": 1, "bytes": 0 }],
        })
    };
    let path = dir.text(name);
    std::fs::create_dir(&path).expect("directory");
    let lines: String = (0..3).map(|round| trial(round).to_string() + "\n").collect();
    std::fs::write(Path::new(&path).join("trials.ndjson"), lines).expect("results");
    path
}

/// Twice the time: of two runs that is a difference, of five turns of runs it is worse, and exit status 3.
#[test]
fn runs_before_and_after() {
    let dir = Dir::new();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for turn in 0..5 {
        // Before, after, after, before...
        let (b, a) = if turn % 2 == 0 { (0, 60) } else { (60, 0) };
        before.push(write_run(&dir, &format!("before{turn}"), 1000 * turn + b, 1.0 + turn as f64 / 50.0));
        after.push(write_run(&dir, &format!("after{turn}"), 1000 * turn + a, 2.0 + turn as f64 / 50.0));
    }
    let two = extant(&["lab", "compare", &before[0], &after[0]]).ok();
    assert!(two.contains("no verdict: +99.") && two.contains("untar.seconds [s]"), "{two}");
    let against = |count: usize| -> Vec<&str> {
        let mut args = vec!["lab", "compare"];
        args.extend(after[..count].iter().map(String::as_str));
        args.push("--against");
        args.extend(before[..count].iter().map(String::as_str));
        args
    };
    let four = extant(&against(4)).ok();
    assert!(four.contains("no verdict: +9") && four.contains("5 turns of a run of each, and here are 4"), "{four}");
    let five = extant(&against(5));
    let said = String::from_utf8(five.out.clone()).expect("UTF-8");
    assert!(said.contains("worse: +9") && said.contains("(5 and 5 runs, a value each, p < 0.0001)"), "{said}");
    five.fails(3, &["worse than the baseline: untar: after0..after4#engine:my image, #1.img"]);
    // A line that is there twice.
    let file = Path::new(&after[0]).join("trials.ndjson");
    let text = std::fs::read_to_string(&file).expect("results");
    std::fs::write(&file, format!("{text}{text}")).expect("results");
    let place = format!("{}:4: round 0 of \"engine:my image, #1.img\" in untar is in line 1 already", file.display());
    extant(&["lab", "report", &after[0]]).fails(8, &[&place]);
}
