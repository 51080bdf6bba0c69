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
    let help = extant(&["mount", "--help"]).ok();
    for table in extant_lab::target::policies() {
        assert!(help.contains(&format!("{}=NAME", table.option)), "{}", table.option);
        for row in table.rows {
            assert!(list.contains(row.name) && list.contains(row.summary), "{}", row.name);
        }
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
fn a_model_is_run_compared_and_reported() {
    let dir = Dir::new();
    let out = dir.text("result");
    let args =
        ["lab", "model", "group-search", "--set", "groups=64", "--set", "requests=20", "--rounds", "2", "-o", &out];
    let ran = extant(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said = String::from_utf8(ran.out).expect("text");
    let line = |word: &str| said.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {said}"));
    let visited: Vec<u64> =
        line("groups_visited").split_whitespace().skip(1).map(|n| n.parse().expect("a count")).collect();
    assert!(visited.len() == 2 && visited.iter().all(|n| *n >= 20), "{said}");
    assert!(line("mb_policy=").contains("vanilla") && said.find("groups_visited") < said.find("empty [ns"), "{said}");
    let all = trials(&out);
    assert_eq!((all.len(), &all[0]["contestant"]["kind"]), (4, &"model".into()));
    // Who skips what cannot be met visits fewer: every round says so, and exit status 3 with it.
    let worse = extant(&["lab", "compare", &out]);
    assert_eq!(worse.code, Some(3), "{}{}", String::from_utf8_lossy(&worse.out), worse.err);
    extant(&["lab", "report", &out]).ok();
    assert!(Path::new(&out).join("report.html").exists());
    extant(&["lab", "model", "crystal-ball"]).fails(1, &["group-search", "tags"]);
    extant(&["lab", "model", "tags", "-p", "best", "-o", &out]).fails(1, &["tag_policy", "vanilla"]);
    extant(&["lab", "model", "tags", "-o", &out]).fails(1, &["another"]);
}

/// Nothing is fsynced: most blocks are allocated at the unmount.
#[test]
fn the_kernel_s_allocator_is_heard_to_the_end() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs root and loop devices");
        return;
    }
    let dir = Dir::new();
    let (out, image) = (dir.text("result"), format!("kernel:{}", dir.text("k.img")));
    let ran = extant(&[
        "lab",
        "run",
        "untar",
        "-t",
        &image,
        "--scale=0.002",
        "--size=256M",
        "--rounds=1",
        "--warmup=0",
        "--record=events",
        "--quiet",
        "-o",
        &out,
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let measures = &trials(&out)[0]["measures"];
    let measure = |name: &str| measures[name].as_f64().unwrap_or(-1.0);
    assert!(measure("files_left") > 20.0, "{measures}");
    if Path::new("/proc/fs/ext4").exists() && measures.get("mballoc_reqs").is_some() {
        assert!(measure("mballoc_success") >= measure("files_left"), "{measures}");
        assert!(measure("mballoc_success") >= measure("allocations"), "{measures}");
    }
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
        // Of the kernel too, wherever its tracefs is: --record asked for it.
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
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains("extant-lab-"), "{mounts}");
}
