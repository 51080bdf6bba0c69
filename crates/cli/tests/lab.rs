//! `extant lab`: refusals, a run on real mounts, and a repeated run.

mod common;

use std::path::Path;

use common::{Dir, extant, extant_path, install, tool, wait_until};
use extant_testkit::mount::{fuse_works, loop_mounts_work};
use extant_testkit::tests_of_cases;

/// The records of a directory of results.
fn trials(dir: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(Path::new(dir).join("trials.ndjson")).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

#[test]
fn list_names_all_parts_of_the_lab() {
    let list = extant(&["lab", "list", "--parameters"]).ok();
    for word in
        ["small-files", "reaim-disk", "kernel:IMAGE", "mb_policy", "bitmaps_per_transaction", "bytes=22528", "net-5ms"]
    {
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
fn invalid_arguments_are_refused() {
    let dir = Dir::new();
    let image = format!("engine:{}", dir.text("e.img"));
    let mount = format!("mount:{},frobnicate", dir.text("m.img"));
    let out = dir.text("result");
    extant(&["lab", "run", "smallfiles", "-t", &image, "-o", &out]).fails(1, &["small-files", "replay"]);
    extant(&["lab", "run", "untar", "-t", "zfs:/x", "-o", &out]).fails(1, &["engine, mount, kernel"]);
    extant(&["lab", "run", "untar", "-t", &image, "-p", "mb_policy=x", "-o", &out]).fails(1, &["goal-first"]);
    extant(&["lab", "run", "untar", "-t", &mount, "-o", &out]).fails(1, &["frobnicate"]);
    extant(&["lab", "matrix", &image, "-o", &out]).fails(1, &["--against"]);
    // Options for the location of an image, and for its storage, do not count as a difference.
    let place = format!("{image},io=memory,device=hdd,store=metadata");
    extant(&["lab", "matrix", &place, "-o", &out]).fails(1, &["--against"]);
    extant(&["lab", "rerun", &out]).fails(8, &["trials.ndjson"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn the_same_seed_ages_an_image_into_the_same_bytes_on_one_processor_and_on_all() {
    let dir = Dir::new();
    let fresh = dir.text("fresh.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext3", &fresh, "48M"]);
    let age = |name: &str, seed: &str, one: bool, json: &str| {
        let image = dir.text(name);
        std::fs::copy(&fresh, &image).expect("copy");
        let program = extant_path().to_str().expect("UTF-8");
        let settings = ["--set=directories=3", "--set=sync_bytes=4194304", "--set=growing=8"];
        let args =
            [&["lab", "age", &image, "--fill=60", "--turnovers=1", "--seed", seed, "--json", json], &settings[..]]
                .concat();
        let ran = match one {
            true => common::run("taskset", &[&["-c", "0", program], &args[..]].concat()),
            false => extant(&args),
        };
        (ran.ok(), std::fs::read(&image).expect("image"))
    };
    let (json, other) = (dir.text("a.ndjson"), dir.text("b.ndjson"));
    let (said, bytes) = age("a.img", "1", false, &json);
    let alone = age("b.img", "1", true, &other);
    assert!(said == alone.0, "{said}{}", alone.0);
    assert!(bytes == alone.1, "the images differ");
    assert!(age("c.img", "2", false, &other).1 != bytes, "the seed has no effect");
    assert_eq!(said.lines().count(), 4, "{said}");
    let text = std::fs::read_to_string(&json).expect("figures");
    let points: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(
        points.iter().map(|p| p["phase"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["fill", "turn-0.5", "turn-1.0"]
    );
    let figures: serde_json::Value =
        serde_json::from_str(&extant(&["lab", "layout", "--json", &dir.text("a.img")]).ok()).expect("JSON");
    assert_eq!(points[2]["layout"], figures);
    let shown = extant(&["lab", "layout", &dir.text("a.img")]).ok();
    assert!(shown.contains(&format!("Runs of both:      {}", figures["map_runs"])), "{shown}");
}

#[test]
fn images_that_cannot_be_aged_are_refused() {
    let dir = Dir::new();
    let image = dir.empty_image("e.img", &[]);
    extant(&["lab", "age", &image, "--fill", "0"]).fails(1, &["fill=0", "from 1 to 99"]);
    extant(&["lab", "age", &image, "--fill", "120"]).fails(1, &["fill=120", "from 1 to 99"]);
    extant(&["lab", "age", &image, "--option", "meta=x"]).fails(1, &["meta=x", "exact"]);
    extant(&["lab", "age", &dir.text("none.img")]).fails(1, &["none.img"]);
    extant(&["lab", "layout", &dir.text("none.img")]).fails(8, &["none.img"]);
    let out = dir.text("result");
    let directory = format!("dir:{}", dir.text("."));
    extant(&["lab", "run", "age", "-t", &directory, "-o", &out]).fails(1, &["fills an image"]);
}

#[test]
fn a_model_is_run_compared_and_reported() {
    let dir = Dir::new();
    let out = dir.text("result");
    let args =
        ["lab", "model", "group-search", "-p", "size-classes,vanilla", "--set", "groups=64", "--set", "requests=20"];
    let args = [&args[..], &["--rounds", "2", "-o", &out]].concat();
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
    // A policy that skips entries visits fewer: every round shows it, and the exit status is 3.
    let worse = extant(&["lab", "compare", &out]);
    assert_eq!(worse.code, Some(3), "{}{}", String::from_utf8_lossy(&worse.out), worse.err);
    extant(&["lab", "report", &out]).ok();
    assert!(Path::new(&out).join("report.html").exists());
    extant(&["lab", "model", "crystal-ball"]).fails(1, &["group-search", "tags"]);
    extant(&["lab", "model", "tags", "-p", "best", "-o", &out]).fails(1, &["tag_policy", "sbitmap"]);
    extant(&["lab", "model", "tags", "-o", &out]).fails(1, &["another"]);
}

/// Without fsync, most blocks are allocated at the unmount.
#[test]
fn the_kernels_allocator_is_recorded_to_the_end() {
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
fn a_run_on_real_mounts_can_be_repeated() {
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
        // Also for the kernel, if its tracefs is available: --record requests it.
        assert!(measure("journal_commits") > 0.0 && measure("blocks_allocated") >= 80.0, "{trial}");
        assert!(measure("bitmaps_per_transaction") > 0.0, "{trial}");
        // The block layer's events agree with its counters.
        assert_eq!(kind == "kernel", measure("device_issued_writes") > 0.0, "{trial}");
        if kind == "kernel" {
            assert!(measure("device_issued_sectors") * 512.0 >= measure("device_write_bytes"), "{trial}");
            assert!(measure("device_issued_flushes") > 0.0 && measure("device_merges") >= 0.0, "{trial}");
            let (median, longest) = (measure("device_request_p50_us"), measure("device_request_longest_us"));
            assert!(0.0 < median && median <= longest && longest <= measure("device_request_sum_us"), "{trial}");
        }
    }
    let again = dir.text("again");
    let ran = extant(&["lab", "rerun", &out, "-o", &again]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let order = |all: &[serde_json::Value]| -> Vec<String> {
        all.iter().map(|t| t["contestant"]["label"].to_string()).collect()
    };
    assert_eq!(order(&all), order(&trials(&again)), "the same seed, the same order");
    assert_eq!(std::fs::read_dir(dir.text("")).expect("list").count(), 2, "images are gone");
    // Mounts of other tests may exist meanwhile.
    let mounts = || std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("mounts");
    wait_until("the lab's mounts to go", || !mounts().contains("extant-lab-"));
}

/// An executable shell script.
fn script(dir: &Dir, name: &str, body: &str) -> String {
    let (text, path) = (dir.text(&format!("{name}.sh")), dir.text(name));
    std::fs::write(&text, format!("#!/bin/sh\n{body}\n")).expect("written");
    install(&text, &path);
    path
}

/// Runs it, and asserts success.
fn done(args: &[&str]) {
    let ran = extant(args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

/// The arguments of `extant lab run fsmark` for a small run on the engine in memory.
fn small<'a>(out: &'a str, target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["lab", "run", "fsmark", "--quiet", "--overwrite", "--set=files_per_process=5", "-o", out, "-t"];
    args.push(target);
    if !more.iter().any(|m| m.starts_with("--size")) {
        args.push("--size=64M");
    }
    args.extend(more);
    args
}

#[test]
fn a_directory_contains_one_run() {
    let dir = Dir::new();
    let (out, list) = (dir.text("r"), dir.text("list"));
    let target = format!("engine:{},io=memory", dir.text("e.img"));
    let one = ["--rounds=1", "--warmup=0"];
    done(&small(&out, &target, &one));
    let other = |more: &[&str], what: &str| {
        let more = [&one[..], more].concat();
        let more: Vec<&str> = more.into_iter().collect();
        extant(&small(&out, &target, &more)).fails(1, &["another run", what]);
    };
    other(&["--size=96M"], "image bytes: 67108864 there, 100663296 here");
    other(&["--seed=2"], "seed: 1 there, 2 here");
    other(&["--set=bytes=100"], "parameter bytes");
    other(&["--mkfs=-t ext3"], "image: ");
    let both = ["--mkfs=-t ext3", "--image", &list];
    extant(&small(&out, &target, &both)).fails(1, &["--image", "--mkfs"]);
    other(&["--record=none"], "recorded: latency there, none here");
    let named = format!("{target},name=engine,noatime");
    let plain = format!("{target},name=engine");
    let named_out = dir.text("named");
    done(&small(&named_out, &plain, &one));
    extant(&small(&named_out, &named, &one)).fails(1, &["the contestant engine there has other options"]);
    let second = format!("engine:{},io=memory,name=late", dir.text("late.img"));
    other(&["-t", &second], "contestants: engine,io=memory there, engine,io=memory | late here");
    // More rounds continue after the existing ones, with a message unless --quiet is given.
    let mut more = small(&out, &target, &["--rounds=3", "--warmup=0"]);
    more.retain(|a| *a != "--quiet");
    let ran = extant(&more);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("1 rounds are there, going on to 3"), "{}", ran.err);
    assert_eq!(trials(&out).len(), 3);
    // Lists of operations are compared by their content.
    let replay_out = dir.text("replay");
    let replay = ["lab", "run", "replay", "--quiet", "--overwrite", "--rounds=1", "--warmup=0", "--size=256M"];
    let replay = [&replay[..], &["--operations", &list, "-t", &target, "-o", &replay_out]].concat();
    std::fs::write(&list, "{\"op\":\"create\",\"path\":\"a\"}\n").expect("list");
    let ran = extant(&replay);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    std::fs::write(&list, "{\"op\":\"create\",\"path\":\"b\"}\n").expect("list");
    extant(&replay).fails(1, &["operations (SHA-256)"]);
    let again = dir.text("replay-again");
    extant(&["lab", "rerun", &replay_out, "--overwrite", "-o", &again])
        .fails(1, &["another run", "operations (SHA-256)"]);
}

#[test]
fn a_command_of_the_user_is_a_workload_on_each_target_with_a_directory() {
    let dir = Dir::new();
    let (out, target) = (dir.text("r"), format!("dir:{}", dir.text("there")));
    std::fs::create_dir(dir.text("there")).expect("directory");
    let run = |command: &str, target: &str, out: &str| {
        extant(&["lab", "run", "--command", command, "-t", target, "--rounds=2", "--quiet", "-o", out])
    };
    let ran = run("echo round >> said; head -c 3000 /dev/zero > data", &target, &out);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all = trials(&out);
    assert_eq!(all.len(), 2);
    assert_eq!(all[0]["workload"]["name"], "command");
    assert_eq!(all[0]["phases"][0]["operations"], 1);
    run("echo no room >&2; exit 3", &target, &dir.text("failed")).fails(8, &["no room", "exit status: 3"]);
    // Programs that the command starts in the background end with it, and with a trial that times out.
    let left = dir.text("left");
    let command = format!("sleep 1000 & echo $! >> {left}");
    assert_eq!(run(&command, &target, &dir.text("behind")).code, Some(0));
    let command = format!("sleep 1000 & echo $! >> {left}; wait");
    let late = ["lab", "run", "--command", &command, "-t", &target, "--rounds=1", "--timeout=1", "-q", "-o"];
    extant(&[&late[..], &[&dir.text("late")]].concat()).fails(8, &["--timeout"]);
    let pids = std::fs::read_to_string(&left).expect("numbers");
    assert_eq!(pids.lines().count(), 3);
    for pid in pids.lines() {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command.contains("sleep"), "{pid} is still there");
    }
    let engine = format!("engine:{}", dir.text("e.img"));
    run("true", &engine, &dir.text("none")).fails(1, &["a command needs a directory", "kernel:"]);
    assert!(!std::path::Path::new(&dir.text("e.img")).exists(), "nothing was made");
    extant(&["lab", "run", "-t", &target]).fails(1, &["no workload is named", "--command"]);
    extant(&["lab", "run", "stream", "--command", "true", "-t", &target]).fails(1, &["command"]);
}

#[test]
fn the_seed_determines_the_image_and_the_places_in_it() {
    let dir = Dir::new();
    // Without flexible groups each directory of the root goes to a random group.
    let drawn = ["--rounds=2", "--warmup=0", "--record=events", "--mkfs=-t ext4 -b 1024 -O ^flex_bg", "--size=256M"];
    let run = |kind: &str, seed: &str| {
        // With a policy that waits for a group's lock, results are exact; others choose another group if the lock is
        // taken at that moment.
        let target = format!("{kind}:{},mb_policy=vanilla", dir.text("i.img"));
        let out = dir.text(&format!("r-{kind}{seed}"));
        done(&small(&out, &target, &[&drawn[..], &[seed]].concat()));
        let used = |t: &serde_json::Value| t["groups"].as_object().expect("groups").keys().cloned().collect::<Vec<_>>();
        let all = trials(&out);
        assert!(used(&all[0]).len() > 3, "{kind}: {}", all[0]["groups"]);
        assert_eq!(used(&all[0]), used(&all[1]), "{kind}: the same seed, the same groups");
        (all[0]["environment"]["mkfs"].to_string(), used(&all[0]))
    };
    for kind in ["engine", "mount"] {
        if kind == "mount" && !fuse_works() {
            eprintln!("skipped: needs root and /dev/fuse");
            continue;
        }
        let (one, again, two) = (run(kind, "--seed=1"), run(kind, "--seed=01"), run(kind, "--seed=2"));
        assert_eq!(one, again, "{kind}");
        assert!(one.0 != two.0 && one.1 != two.1, "{kind}: {:?}", one.1);
        assert!(one.0.contains("-U ") && one.0.contains("hash_seed="), "{}", one.0);
    }
}

#[test]
fn only_parts_of_one_run_are_merged() {
    let dir = Dir::new();
    // On another machine the image has another path.
    let (here, there) =
        (format!("engine:{},io=memory", dir.text("a.img")), format!("engine:{},io=memory", dir.text("b.img")));
    let [a, b, other, whole] = ["a", "b", "other", "whole"].map(|name| dir.text(name));
    done(&small(&a, &here, &["--rounds=4", "--warmup=0", "--shard=0/2"]));
    done(&small(&b, &there, &["--rounds=4", "--warmup=0", "--shard=1/2"]));
    done(&small(&other, &here, &["--rounds=1", "--warmup=0", "--size=96M"]));
    extant(&["lab", "merge", &a, &other, "-o", &whole]).fails(1, &["not of the same run", "image bytes"]);
    extant(&["lab", "merge", &a, &a, "-o", &whole]).fails(1, &["round 1 of engine,io=memory is in"]);
    done(&["lab", "merge", &a, &b, "-o", &whole]);
    let rounds: Vec<u64> = trials(&whole).iter().map(|t| t["round"].as_u64().expect("a round")).collect();
    assert_eq!(rounds, [0, 1, 2, 3]);
    extant(&["lab", "merge", &a, &b, "-o", &whole]).fails(1, &["new directory"]);
}

#[test]
fn a_run_records_its_environment() {
    let dir = Dir::new();
    let out = dir.text("r");
    let target = format!("engine:{},io=memory", dir.text("e.img"));
    done(&small(&out, &target, &["--rounds=1", "--warmup=0"]));
    let trial = trials(&out).pop().expect("a trial");
    let version = extant(&["--version"]).ok();
    let of = &trial["environment"];
    let stamped = format!("extant {} ({}, {})\n", of["version"], of["commit"], of["profile"]).replace('"', "");
    assert_eq!(version, stamped);
    assert!(of["tools"]["mke2fs"].as_str().is_some_and(|v| v.contains("1.")), "{of}");
    let group = std::fs::read_to_string("/proc/self/cgroup").expect("control groups");
    let limited = group.contains(":memory:") && Path::new("/sys/fs/cgroup/memory").is_dir();
    assert!(!limited || of["cgroup"]["memory.limit_in_bytes"].is_string(), "{of}");
    assert!(of["sysctls"]["vm.dirty_ratio"].is_string() && of["load"].is_number(), "{of}");
    assert_eq!(of["directory"], std::env::current_dir().expect("cwd").to_str().expect("UTF-8"));
}

#[test]
fn another_build_is_a_contestant() {
    if !fuse_works() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let other = script(
        &dir,
        "other",
        &format!(
            "[ \"$1\" = --version ] && echo 'extant 9.9 (other)' && exit\nexec {} \"$@\"",
            extant_path().display()
        ),
    );
    let out = dir.text("r");
    let engine = format!("engine:{},io=memory,program={other}", dir.text("e.img"));
    let mount = format!("mount:{},name=old,program={other}", dir.text("m.img"));
    let ran = extant(&small(&out, &engine, &["--rounds=2", "--warmup=0", "-t", &mount]));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all = trials(&out);
    assert_eq!(all.len(), 4);
    for trial in &all {
        assert_eq!(trial["outcome"]["state"], "checked", "{trial}");
        assert_eq!(trial["contestant"]["program"], "extant 9.9 (other)", "{trial}");
        assert!(trial["measures"]["files_left"].as_f64().is_some_and(|n| n == 80.0), "{trial}");
        let label = trial["contestant"]["label"].as_str().expect("a label");
        assert!(["engine,io=memory,program=other", "old"].contains(&label), "{label}");
    }
    let absent = format!("engine:{},program={}", dir.text("e.img"), dir.text("absent"));
    extant(&small(&dir.text("none"), &absent, &[])).fails(1, &["absent"]);
}

/// `serves`: the commands of a server at the request to mount; `why`: the reason that its failed trials give.
fn fail_and_leave_nothing((serves, timeout, why): (&str, &str, &str)) {
    if !fuse_works() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let says = "[ \"$1\" = --version ] && echo fake && exit";
    let served = format!("exec {} \"$@\"", extant_path().display());
    let program = script(&dir, "fake", &format!("{says}\n[ \"$2\" = --foreground ] && {serves}\n{served}"));
    let out = dir.text("result");
    let bad = format!("mount:{},name=fake,program={program}", dir.text("m.img"));
    let good = format!("engine:{},io=memory", dir.text("e.img"));
    // Long enough that the server dies during the work.
    let more = ["--rounds=1", "--warmup=0", timeout, "-t", &good, "--set=files_per_process=8000", "--size=2G"];
    let more = if why == "os error" { &more[..] } else { &more[..5] };
    let ran = extant(&small(&out, &bad, more));
    assert_eq!(ran.code, Some(8), "{why}: {}", ran.err);
    let all = trials(&out);
    assert_eq!(all.len(), 2, "{why}: the others ran");
    for trial in all {
        let failed = trial["outcome"]["state"] == "failed";
        assert_eq!(failed, trial["contestant"]["label"] == "fake", "{trial}");
        assert!(!failed || trial["outcome"]["why"].as_str().is_some_and(|w| w.contains(why)), "{trial}");
    }
    let mounts = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("mounts");
    assert!(!mounts.contains(&dir.text("m.img")), "{why}: nothing is left mounted");
}

tests_of_cases!(
    contestants_fail_and_leave_nothing,
    fail_and_leave_nothing,
    if_they_die_instead_of_mounting: ("echo 'no, sir' >&2 && exit 32", "--timeout=600", "no, sir"),
    if_they_hang_instead_of_mounting: ("exec sleep 1000", "--timeout=6", "--timeout"),
    if_they_die_while_they_serve: ("(sleep 1; kill -9 $$) & ", "--timeout=600", "os error"),
);

#[test]
fn an_interrupted_run_leaves_finished_trials_and_nothing_else() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs root and loop devices");
        return;
    }
    let dir = Dir::new();
    let out = dir.text("r");
    let kernel = format!("kernel:{}", dir.text("k.img"));
    let args = small(&out, &kernel, &["--rounds=1000", "--warmup=0"]);
    let mut run = std::process::Command::new(extant_path()).args(&args).spawn().expect("started");
    let file = Path::new(&out).join("trials.ndjson");
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() >= 2) {
        assert!(run.try_wait().expect("status").is_none(), "it ended by itself");
        extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    assert_eq!(run.wait().expect("ended").code(), Some(130));
    assert!(trials(&out).iter().all(|t| t["outcome"]["state"] == "checked"));
    assert!(!Path::new(&dir.text("k.img")).exists(), "the image is gone");
    let mounts = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("mounts");
    let loops = std::process::Command::new("losetup").arg("-a").output().expect("losetup").stdout;
    let image = dir.text("k.img");
    assert!(!mounts.contains(&image) && !String::from_utf8_lossy(&loops).contains(&image));
}

#[test]
fn a_run_reports_a_full_disk_and_continues_later() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs root");
        return;
    }
    let dir = Dir::new();
    let full = dir.text("full");
    std::fs::create_dir(&full).expect("made");
    common::tool("mount", &["-t", "tmpfs", "-o", "size=16k", "none", &full]);
    let out = format!("{full}/r");
    let target = format!("engine:{},io=memory", dir.text("e.img"));
    let args = small(&out, &target, &["--rounds=20", "--warmup=0", "--record=none"]);
    let ran = extant(&args);
    // Finished trials are kept, and half a line does not count as a trial.
    let kept = std::fs::read_to_string(format!("{out}/trials.ndjson")).expect("results");
    let whole = kept.lines().filter(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()).count();
    common::tool("mount", &["-o", "remount,size=1m", &full]);
    let again = extant(&args);
    let all = trials(&out).len();
    common::umount(&[&full]);
    assert_eq!(ran.code, Some(8), "{}", ran.err);
    assert!(ran.err.contains("trials.ndjson") && ran.err.contains("No space left"), "{}", ran.err);
    assert!((1..20).contains(&whole), "{whole} of 20 rounds fit");
    assert_eq!((again.code, all), (Some(0), 20), "{}", again.err);
}

#[test]
fn all_contestants_get_the_same_memory() {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs root, loop devices and /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let out = dir.text("r");
    let engine = format!("engine:{}", dir.text("e.img"));
    let (kernel, mount) = (format!("kernel:{}", dir.text("k.img")), format!("mount:{}", dir.text("m.img")));
    let more = ["--rounds=1", "--warmup=0", "--memory=128M", "-t", &kernel, "-t", &mount];
    let ran = extant(&small(&out, &engine, &more));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for trial in trials(&out) {
        assert_eq!(trial["environment"]["memory_limit_bytes"], 128 << 20, "{trial}");
        assert_eq!(trial["outcome"]["state"], "checked", "{trial}");
        assert_eq!(trial["identity"]["memory"], (128u32 << 20).to_string(), "{trial}");
    }
    // A contestant killed for lack of memory is reported, and leaves nothing.
    let tiny = ["--rounds=1", "--warmup=0", "--memory=4M", "-t", &kernel, "-t", &mount];
    extant(&small(&dir.text("tiny"), &engine, &tiny)).fails(8, &["out of memory"]);
    let loops = std::process::Command::new("losetup").arg("-a").output().expect("losetup").stdout;
    let mounts = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("mounts");
    let root = dir.text("");
    assert!(!String::from_utf8_lossy(&loops).contains(&root) && !mounts.contains(&root), "{mounts}");
    for image in ["e.img", "k.img", "m.img"] {
        assert!(!Path::new(&dir.text(image)).exists(), "{image}");
    }
}

#[test]
fn a_run_is_repeated_from_anywhere() {
    let dir = Dir::new();
    let run_in = |cwd: &str, args: &[&str]| {
        let out = std::process::Command::new(extant_path()).args(args).current_dir(cwd).output().expect("run");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    let (here, elsewhere) = (dir.text("here"), dir.text("elsewhere"));
    std::fs::create_dir(&here).expect("made");
    std::fs::create_dir(&elsewhere).expect("made");
    run_in(&here, &small("r", "engine:e.img,io=memory", &["--rounds=1", "--warmup=0"]));
    let (first, again) = (format!("{here}/r"), format!("{elsewhere}/again"));
    run_in(&elsewhere, &["lab", "rerun", &first, "-o", &again]);
    assert_eq!(trials(&first)[0]["identity"], trials(&again)[0]["identity"]);
}

/// Writes a run of three rounds that began at `started_s`; its trials took about `seconds`.
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

/// Twice the time. For two runs this is a difference; for five alternating runs it is a regression, with exit status 3.
#[test]
fn alternating_runs_get_a_verdict() {
    let dir = Dir::new();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for turn in 0..5 {
        // Before, after, after, before...
        let (b, a) = if turn % 2 == 0 { (0, 60) } else { (60, 0) };
        before.push(write_run(&dir, &format!("before{turn}"), 1000 * turn + b, 1.0 + turn as f64 / 50.0));
        after.push(write_run(&dir, &format!("after{turn}"), 1000 * turn + a, 2.0 + turn as f64 / 50.0));
    }
    let two = extant(&["lab", "compare", &before[0], &after[0]]).ok();
    assert!(two.contains("no verdict: -99.") && two.contains("untar.seconds [s]"), "{two}");
    let against = |count: usize| -> Vec<&str> {
        let mut args = vec!["lab", "compare"];
        args.extend(after[..count].iter().map(String::as_str));
        args.push("--against");
        args.extend(before[..count].iter().map(String::as_str));
        args
    };
    let four = extant(&against(4)).ok();
    assert!(four.contains("no verdict: -9") && four.contains("5 turns of a run of each, and here are 4"), "{four}");
    let five = extant(&against(5));
    let said = String::from_utf8(five.out.clone()).expect("UTF-8");
    assert!(said.contains("worse: -9") && said.contains("(5 and 5 runs, a value each, p < 0.0001)"), "{said}");
    five.fails(3, &["worse than the baseline: untar: after0..after4#engine:my image, #1.img"]);
    // A duplicated line.
    let file = Path::new(&after[0]).join("trials.ndjson");
    let text = std::fs::read_to_string(&file).expect("results");
    std::fs::write(&file, format!("{text}{text}")).expect("results");
    let place = format!("{}:4: round 0 of \"engine:my image, #1.img\" in untar is in line 1 already", file.display());
    extant(&["lab", "report", &after[0]]).fails(8, &[&place]);
}

/// The same check in two programs. The reads of e2fsck are served in the order in which it issued them.
#[test]
fn checks_and_recorded_requests_are_timed_on_modelled_devices() {
    let dir = Dir::new();
    let image = dir.text("e.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext3", &image, "64M"]);
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&extant(&[&["lab"], args, &["--json"]].concat()).ok().into_bytes()).expect("JSON")
    };
    let check = ["check-time", &image, "-d", "hdd-2007"];
    let ours = json(&check);
    assert_eq!(json(&check), ours, "exact");
    assert!(ours["extant"]["device_seconds"].as_f64().is_some_and(|s| s > 0.01 && s < 10.0), "{ours}");
    let words = extant(&[&["lab"], &check[..]].concat()).ok();
    assert!(words.starts_with("extant: hdd-2007: ") && words.contains(" seeks, "), "{words}");
    let trace = dir.text("trace");
    let strace = std::process::Command::new("strace")
        .args(["-f", "-y", "-o", &trace, "-e", "trace=pread64", "e2fsck", "-fn", &image])
        .output();
    if strace.is_ok_and(|out| out.status.success()) {
        let both = json(&[&check[..], &["--e2fsck"]].concat());
        assert_eq!(both["extant"], ours["extant"]);
        let whole = std::fs::canonicalize(&image).expect("there").display().to_string();
        let replay = ["replay-trace", &trace, "-d", "hdd-2007", "--size", "64M", "--only", &whole];
        assert_eq!(json(&replay), both["e2fsck"]);
        extant(&["lab", "replay-trace", &trace, "-d", "flash"]).fails(1, &["trace:", "--only", &whole]);
        extant(&["lab", "replay-trace", &trace, "-d", "flash", "--size", "1M", "--only", &whole])
            .fails(1, &["behind the end of the device", "--size"]);
    } else {
        eprintln!("skipped: needs strace");
    }
    extant(&["lab", "check-time", &image, "-d", "tape"]).fails(1, &["tape", "hdd-2007, hdd, flash, net-5ms"]);
    extant(&["lab", "check-time", &dir.text("none.img"), "-d", "hdd"]).fails(8, &["none.img"]);
    extant(&["lab", "replay-trace", &image, "-d", "hdd"]).fails(1, &["e.img:1:", "pread64", "block_rq_issue"]);
    extant(&["lab", "replay-trace", &dir.text("none"), "-d", "hdd"]).fails(8, &["none"]);
    let device = format!("engine:{image},device=floppy");
    extant(&["lab", "run", "small-files", "-t", &device, "--overwrite", "-o", &dir.text("result")])
        .fails(1, &["floppy", "net-5ms"]);
}

#[test]
fn on_modelled_devices_the_headline_is_the_devices_time() {
    let dir = Dir::new();
    let (a, b) = (format!("engine:{},device=hdd,name=a", dir.text("a.img")), format!("engine:{}", dir.text("b.img")));
    let on = |out: &str, more: &[&str]| {
        let ran = extant(&small(out, &a, &[&["--rounds=1", "--warmup=0"], more].concat()));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        (String::from_utf8(ran.out).expect("UTF-8"), ran.err)
    };
    let (said, hint) = on(&dir.text("alone"), &[]);
    assert!(said.contains("a: fsync.device_seconds "), "{said}");
    assert!(!hint.contains("--figure"), "{hint}");
    let out = dir.text("both");
    let (said, hint) = on(&out, &["-t", &b]);
    assert!(said.contains("fsync.ops_per_s [1/s]"), "{said}");
    assert!((said + &hint).contains(&format!("extant lab compare {out} --figure fsync.device_seconds")), "{hint}");
    let compared = extant(&["lab", "compare", &out, "--figure", "fsync.device_seconds"]).ok();
    assert!(compared.contains("fsync.device_seconds"), "{compared}");
}

#[test]
fn a_trial_does_not_overwrite_the_image_that_is_copied() {
    let dir = Dir::new();
    let image = dir.text("x.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &image, "64M"]);
    let (hard, symbolic) = (dir.text("hard.img"), dir.text("symbolic.img"));
    std::fs::hard_link(&image, &hard).expect("linked");
    std::os::unix::fs::symlink(&image, &symbolic).expect("linked");
    let before = std::fs::read(&image).expect("image");
    for (copied, target) in [(&image, &image), (&image, &hard), (&symbolic, &image), (&image, &symbolic)] {
        let (target, out) = (format!("engine:{target}"), dir.text("r"));
        let run = ["lab", "run", "fsmark", "--quiet", "--set=files_per_process=5", "--rounds=1", "--overwrite"];
        extant(&[&run[..], &["--image", copied, "-t", &target, "-o", &out]].concat())
            .fails(1, &["that is copied (--image ", "name another file"]);
        assert!(std::fs::read(&image).is_ok_and(|now| now == before), "{copied} {target}");
    }
}

#[test]
fn figures_of_lab_age_replace_a_file_only_when_there_are_some_and_never_the_image() {
    let dir = Dir::new();
    let image = dir.empty_image("c.img", &[]);
    let (hard, symbolic, json) = (dir.text("hard.img"), dir.text("symbolic.img"), dir.text("figures"));
    std::fs::hard_link(&image, &hard).expect("linked");
    std::os::unix::fs::symlink(&image, &symbolic).expect("linked");
    let before = std::fs::read(&image).expect("image");
    for file in [&image, &hard, &symbolic] {
        extant(&["lab", "age", &image, "--json", file]).fails(1, &[file, "--json", "another file"]);
        assert!(std::fs::read(&image).is_ok_and(|now| now == before), "{file}");
    }
    std::fs::write(&json, "of before").expect("written");
    extant(&["lab", "age", &image, "--fill=120", "--json", &json]).fails(1, &["fill=120"]);
    assert_eq!(std::fs::read_to_string(&json).expect("there"), "of before");
}

#[test]
fn a_build_without_a_measured_feature_fails_its_trial() {
    let dir = Dir::new();
    let image = dir.text("worn.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &image, "64M"]);
    let engine = format!("engine:{}", dir.text("e.img"));
    for (option, more) in [("--image", ["--image", &image]), ("--set", ["--size", "64M"])] {
        let help = "[ \"$*\" = 'lab run --help' ]";
        let real = extant_path().display();
        let older = format!("{help} && {real} \"$@\" | grep -v -- {option} && exit\nexec {real} \"$@\"");
        let older = script(&dir, &format!("older{option}"), &older);
        let (target, out) = (format!("{engine},program={older}"), dir.text(&format!("r{option}")));
        let run = ["lab", "run", "fsmark", "--quiet", "--set=files_per_process=5", "--rounds=1", "--warmup=0"];
        extant(&[&run[..], &more, &["-t", &target, "-o", &out]].concat()).fails(8, &[]);
        let why = trials(&out)[0]["outcome"]["why"].as_str().unwrap_or_default().to_owned();
        assert!(why.contains(&format!("does not know {option}")) && why.contains("newer build"), "{why}");
    }
}

#[test]
fn check_time_refuses_an_image_in_use() {
    let dir = Dir::new();
    let image = dir.empty_image("u.img", &[]);
    let open = extant_block::device::OpenOptions::default();
    let _held = extant_block::device::FileDevice::open(Path::new(&image), open).expect("opened");
    extant(&["lab", "check-time", &image, "-d", "hdd"]).fails(8, &["u.img", "in use"]);
    extant(&["lab", "check-time", &image, "-d", "hdd", "--e2fsck"]).fails(8, &["u.img", "in use"]);
}

#[test]
fn images_with_unusual_names_are_checked_and_aged() {
    let dir = Dir::new();
    let image = dir.text("a, b<c>\u{fc}\\d.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext3", &image, "64M"]);
    let age = ["lab", "age", &image, "--fill=90", "--turnovers=0", "--set=directories=1"];
    if Path::new("/usr/bin/strace").exists() {
        let words = extant(&["lab", "check-time", &image, "-d", "hdd-2007", "--e2fsck"]).ok();
        assert!(words.contains("\ne2fsck: hdd-2007: "), "{words}");
        extant(&[&age[..], &["--check-on=hdd-2007"]].concat()).ok();
    } else {
        extant(&age).ok();
    }
}
