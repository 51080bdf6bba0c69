//! `extant lab` for researchers: sweeps, locally and on HyperQueue, output of programs, block devices, exported
//! figures.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Dir, extant, extant_path, wait_until};
use extant_testkit::mount::loop_mounts_work;
use rustix::process::{Pid, Signal, kill_process};

/// A program in PATH.
fn program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| p.is_file())
}

fn trials(dir: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(Path::new(dir).join("trials.ndjson")).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// A sweep of `threads` times `depth` of a modelled mechanism.
fn sweep<'a>(threads: &'a str, depth: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let model = ["lab", "sweep", "tags", "--set", "processors=4", "--set", "requests=100", "--rounds=2", "--quiet"];
    [&model[..], &["--set", threads, "--set", depth, "--policy", "tag_policy=sbitmap,hand-off", "-o", out], more]
        .concat()
}

/// Runs a command that reports on standard error and succeeds.
fn done(args: &[&str]) {
    let ran = extant(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
}

fn merged(out: &str) -> Vec<u8> {
    std::fs::read(Path::new(out).join("trials.ndjson")).expect("merged")
}

#[test]
fn a_sweep_has_the_same_bytes_whatever_runs_beside_and_after_an_interruption() {
    let dir = Dir::new();
    let (serial, beside, resumed) = (dir.text("serial"), dir.text("beside"), dir.text("resumed"));
    let (threads, depth) = ("threads=8,16,24", "depth=4,8,16,32");
    done(&sweep(threads, depth, &serial, &[]));
    done(&sweep(threads, depth, &beside, &["--jobs=2"]));
    assert!(merged(&serial) == merged(&beside));
    let all = trials(&serial);
    assert_eq!(all.len(), 3 * 4 * 2 * 2);
    assert_eq!(all[0]["point"], serde_json::json!({ "threads": "8", "depth": "4" }), "constants are no swept values");
    // The state that a kill leaves: the merged result is missing, a point is missing, and one is incomplete.
    std::fs::rename(&beside, &resumed).expect("rename");
    std::fs::remove_file(Path::new(&resumed).join("trials.ndjson")).expect("remove");
    let points = Path::new(&resumed).join("points");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&points).expect("points").map(|e| e.unwrap().path()).collect();
    folders.sort();
    std::fs::remove_dir_all(&folders[3]).expect("remove");
    let cut = folders[7].join("trials.ndjson");
    let text = std::fs::read(&cut).expect("trials");
    std::fs::write(&cut, &text[..text.len() / 2]).expect("cut");
    let kept = std::fs::metadata(folders[5].join("trials.ndjson")).expect("kept").modified().unwrap();
    let said = extant(&sweep(threads, depth, &resumed, &["--jobs=2"]));
    assert!(
        said.code == Some(0) && said.err.contains("2 points in") && said.err.contains("10 were there"),
        "{}",
        said.err
    );
    assert!(merged(&serial) == merged(&resumed));
    assert_eq!(std::fs::metadata(folders[5].join("trials.ndjson")).unwrap().modified().unwrap(), kept);
    // The page, and the result like any other.
    let page = std::fs::read_to_string(Path::new(&resumed).join("report.html")).expect("page");
    assert!(page.contains("over threads, depth=4") && page.contains("over depth, threads=24"));
    assert!(!page.contains("<script") && !page.contains(" src=") && page.contains("color-scheme"));
    let csv = String::from_utf8(extant(&["lab", "compare", &resumed, "--csv"]).out).expect("text");
    assert!(csv.contains("depth=4 threads=8,wakes_per_request,count,lower,tag_policy=hand-off,2,"), "{csv}");
    let csv = String::from_utf8(extant(&["lab", "export", &resumed]).out).expect("text");
    assert!(csv.starts_with("workload,") && csv.lines().next().unwrap().ends_with("value,depth,threads"), "{csv}");
    assert!(csv.lines().any(|l| l.contains("wakes_per_request") && l.ends_with(",32,24")), "{csv}");
}

#[test]
fn a_killed_sweep_is_not_resumed_beside_the_point_that_it_left_running() {
    let dir = Dir::new();
    let out = dir.text("r");
    let args = sweep("threads=64", "depth=8", &out, &["--set=latency_us=100"]);
    let args: Vec<&str> = args.into_iter().map(|a| if a == "requests=100" { "requests=300000" } else { a }).collect();
    let mut child = Command::new(extant_path()).args(&args).stderr(Stdio::null()).spawn().expect("extant");
    let point = |found: &mut Option<PathBuf>| {
        *found = std::fs::read_dir(Path::new(&out).join("points")).ok().and_then(|mut d| Some(d.next()?.ok()?.path()));
        found.as_ref().is_some_and(|p| p.join("trials.ndjson").exists())
    };
    let mut folder = None;
    wait_until("a point runs", || point(&mut folder));
    child.kill().expect("kill");
    child.wait().expect("wait");
    extant(&args).fails(1, &["another sweep is at work", "left running"]);
    // The process of the unfinished point: this test's grandchild.
    let folder = folder.expect("folder").display().to_string();
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if line.contains(&folder) {
            kill_process(Pid::from_raw(pid).expect("pid"), Signal::KILL).expect("kill");
        }
    }
}

#[test]
fn an_interrupted_sweep_keeps_what_it_has_and_goes_on_to_the_same_bytes() {
    let dir = Dir::new();
    let (serial, out) = (dir.text("serial"), dir.text("r"));
    let args = |out| -> Vec<&str> {
        let args = sweep("threads=8,16,24", "depth=4,8", out, &[]);
        args.into_iter().map(|a| if a == "requests=100" { "requests=2000" } else { a }).collect()
    };
    let points = |out: &str| std::fs::read_dir(Path::new(out).join("points")).map_or(0, Iterator::count);
    let mut child = Command::new(extant_path()).args(args(&out)).stderr(Stdio::null()).spawn().expect("extant");
    // The second point has begun, so the first one has ended.
    wait_until("the second point runs", || points(&out) >= 2);
    kill_process(Pid::from_child(&child), Signal::INT).expect("interrupt");
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    assert!(points(&out) < 6, "the sweep was over before it could be interrupted");
    assert!(!Path::new(&out).join("trials.ndjson").exists());
    let resumed = extant(&args(&out));
    assert!(resumed.code == Some(0) && !resumed.err.contains("6 points in"), "{}", resumed.err);
    done(&args(&serial));
    assert!(merged(&serial) == merged(&out));
}

#[test]
fn a_full_disk_is_named_and_costs_no_finished_point() {
    let dir = Dir::new();
    let (serial, small) = (dir.text("serial"), dir.text("small"));
    std::fs::create_dir(&small).expect("directory");
    let mount = |options: &str| {
        Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs", &small]).stderr(Stdio::null()).status()
    };
    if !mount("size=48k").expect("mount").success() {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    }
    let mounted = Mounted(small.clone());
    let out = format!("{small}/r");
    let args = |out| sweep("threads=8,16,24", "depth=4,8,16,32", out, &[]);
    extant(&args(&out)).fails(8, &["points are incomplete", "No space left on device", "the same command"]);
    assert!(mount("remount,size=16M").expect("mount").success());
    let resumed = extant(&args(&out));
    assert!(resumed.code == Some(0) && resumed.err.contains("were there already"), "{}", resumed.err);
    done(&args(&serial));
    assert!(merged(&serial) == merged(&out));
    drop(mounted);
}

#[test]
fn invalid_sweeps_are_refused_before_anything_is_written() {
    let dir = Dir::new();
    let out = dir.text("r");
    let engine = format!("engine:{},cache=64M", dir.text("e.img"));
    for (args, said) in [
        (&["tags", "--set", "threads=1,,2"][..], "value 2 of 3 is empty"),
        (&["tags", "--set", "threads=1,2,1"], "1 is there twice"),
        (&["tags", "--set", "threads=1", "--set", "threads=2"], "threads is set twice"),
        (&["tags", "--zip", "--set", "threads=1,2", "--set", "depth=1,2,3"], "threads has 2 values and depth has 3"),
        (&["tags", "--set", "threads=1,x"], "point threads=x"),
        (&["tags", "--set", "colour=1"], "colour"),
        (&["tags", "--policy", "mb_policy=vanilla"], "policies of tag_policy"),
        (&["tags", "--policy", "best"], "sbitmap"),
        (&["tags", "-t", "dir:/tmp"], "--target is for workloads"),
        (&["crystal-ball"], "es-shrink"),
        (&["stream"], "needs a --target"),
        (&["stream", "-t", "dir:/tmp", "--set", "cache=1M,2M"], "no parameter of stream"),
        (&["stream", "-t", &engine, "--set", "cache=32M,64M"], "the target"),
        (&["tags", "--jobs", "0"], "--jobs"),
    ] {
        let args = [&["lab", "sweep"], args, &["-o", &out]].concat();
        extant(&args).fails(1, &[said]);
        assert!(!Path::new(&out).exists(), "{args:?}");
    }
    let plan = extant(&[&sweep("threads=8,16", "depth=4", &out, &[])[..], &["--plan"]].concat());
    let said = String::from_utf8(plan.out).expect("text");
    assert!(said.contains("2 points, 8 trials") && said.contains("side by side"), "{said}");
    assert!(!Path::new(&out).exists());
    // A directory has one sweep.
    done(&sweep("threads=8,16", "depth=4", &out, &[]));
    extant(&sweep("threads=8,16", "depth=8", &out, &[]))
        .fails(1, &["another sweep", "parameter depth: 4 there, 8 here"]);
    extant(&["lab", "model", "tags", "-o", &out]).fails(1, &["another"]);
    extant(&sweep("threads=8,16", "depth=4", &out, &["--figure=crystal"]))
        .fails(1, &["no figure", "wakes_per_request"]);
}

#[test]
fn options_and_parameters_of_a_workload_are_swept() {
    let dir = Dir::new();
    let (out, engine) = (dir.text("r"), format!("engine:{},io=memory", dir.text("e.img")));
    let args = ["lab", "sweep", "stream", "-t", &engine, "--set", "cache=16M,32M", "--set", "processes=1,2", "--zip"];
    let args =
        [&args[..], &["--scale=0.001", "--size=256M", "--rounds=2", "--warmup=0", "--quiet", "-o", &out]].concat();
    done(&args);
    let all = trials(&out);
    let points: Vec<&serde_json::Value> = all.iter().map(|t| &t["point"]["cache"]).collect();
    assert_eq!(points, ["16M", "16M", "32M", "32M"]);
    assert!(all[0]["contestant"]["label"].as_str().unwrap().contains("cache=16M"));
    let before = merged(&out);
    done(&args);
    assert!(before == merged(&out), "trials of real time are kept as they are");
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).expect("page");
    assert!(page.contains("over cache and processes"), "the labels of the points are one line");
}

#[test]
fn figures_of_fio_and_of_lines_are_measures() {
    let dir = Dir::new();
    let target = format!("dir:{}", dir.text("there"));
    std::fs::create_dir(dir.text("there")).expect("directory");
    let fio = r#"echo starting; cat <<'E'
{ "fio version": "fio-3.33", "jobs": [ { "jobname": "mix", "read": { "total_ios": 1000, "iops": 5000.5, "bw": 20480,
  "clat_ns": { "mean": 10.5, "max": 99, "N": 1000, "percentile": { "50.000000": 9, "99.000000": 42 } } } } ] }
E
echo requests_per_s 17; head -c 100000 /dev/zero | tr '\0' x"#;
    let out = dir.text("r");
    done(&["lab", "run", "--command", fio, "-t", &target, "--rounds=2", "-q", "-o", &out]);
    let all = trials(&out);
    let measures = &all[0]["measures"];
    assert_eq!(measures["fio.mix.read.iops"], 5000.5);
    assert_eq!(measures["fio.mix.read.clat_p99_ns"], 42.0);
    assert_eq!(measures["program.requests_per_s"], 17.0);
    let output = all[1]["output"].as_str().expect("output");
    assert!(output.starts_with("starting") && output.contains("bytes left out") && output.len() < 70_000);
    let csv = String::from_utf8(extant(&["lab", "export", &out]).out).expect("text");
    assert!(csv.contains("fio.mix.read.iops,1/s,higher,5000.5"), "{csv}");
    done(&["lab", "report", &out]);
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).expect("page");
    assert!(page.contains("fio.mix.read.clat_p99_ns") && page.contains("Output of the program"));
    // Uses the real fio if it is installed.
    if program("fio").is_none() {
        eprintln!("the real fio is not tried: it is not installed");
        return;
    }
    let out = dir.text("real");
    let fio = "fio --output-format=json --name=a --rw=randwrite --size=1M --bs=4k --fsync=8 --directory=.";
    done(&["lab", "run", "--command", fio, "-t", &target, "--rounds=1", "-q", "-o", &out]);
    let measures = &trials(&out)[0]["measures"];
    for name in ["fio.a.write.iops", "fio.a.write.clat_p99_ns", "fio.a.sync.lat_mean_ns"] {
        assert!(measures[name].as_f64().is_some_and(|v| v > 0.0), "{name}: {measures}");
    }
}

#[test]
fn a_command_gets_an_image_of_the_size_that_is_asked_for() {
    let dir = Dir::new();
    let target = format!("mount:{}", dir.text("m.img"));
    let plan = ["lab", "run", "--command", "true", "-t", &target, "--size=64M", "--plan"];
    let said = extant(&plan);
    if said.err.contains("FUSE is missing") {
        eprintln!("skipped: {}", said.err);
        return;
    }
    let said = said.ok();
    assert!(said.contains("image bytes: 67108864"), "{said}");
}

#[test]
fn block_devices_are_targets_if_the_user_agrees() {
    if !loop_mounts_work() {
        eprintln!("skipped: loop devices cannot be used here");
        return;
    }
    let dir = Dir::new();
    let file = dir.text("disk");
    std::fs::File::create(&file).and_then(|f| f.set_len(128 << 20)).expect("file");
    let said = Command::new("losetup").args(["--find", "--show", &file]).output().expect("losetup");
    let device = String::from_utf8(said.stdout).expect("name").trim().to_owned();
    let detach = Detach(device.clone());
    let (engine, kernel) = (format!("engine:{device}"), format!("kernel:{device}"));
    let out = dir.text("r");
    let run = |more: &[&str]| {
        let args =
            ["lab", "run", "stream", "-t", &engine, "-t", &kernel, "--scale=0.001", "--rounds=1", "-q", "-o", &out];
        extant(&[&args[..], more].concat())
    };
    run(&["--size=64M"]).fails(1, &["block device", "what is there is lost", "--yes"]);
    run(&["--size=256M", "--yes"]).fails(1, &["has 128 MiB", "smaller --size"]);
    let ran = run(&["--size=96M", "--yes"]);
    assert!(
        ran.code == Some(0) && ran.err.contains("warning") && ran.err.contains(&device),
        "{:?} {}",
        ran.code,
        ran.err
    );
    assert!(trials(&out).iter().all(|t| t["outcome"]["state"] == "checked" && t["environment"]["device"] == device));
    assert!(Path::new(&device).exists(), "the device node stays");
    drop(detach);
}

/// A mount that ends with the test.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

struct Detach(String);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// HyperQueue with a server directory of its own.
struct HyperQueue {
    hq: PathBuf,
    server: String,
}

impl HyperQueue {
    /// None: its program is not here.
    fn new(dir: &Dir) -> Option<HyperQueue> {
        let Some(hq) = std::env::var_os("HQ").map(PathBuf::from).or_else(|| program("hq")) else {
            eprintln!("skipped: hq, the program of HyperQueue, is not in PATH, and HQ does not name it");
            return None;
        };
        Some(HyperQueue { hq, server: dir.text("server") })
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut command = Command::new(&self.hq);
        command.args(words).env("HQ_SERVER_DIR", &self.server).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().expect("hq"))
    }

    fn start_server(&self) -> Running {
        let server = self.start(&["server", "start"]);
        wait_until("the server answers", || {
            let mut info = Command::new(&self.hq);
            info.args(["server", "info"]).env("HQ_SERVER_DIR", &self.server).output().expect("hq").status.success()
        });
        server
    }

    fn start_worker(&self) -> Running {
        self.start(&["worker", "start", "--cpus=1"])
    }

    /// `extant` with these arguments, which finds this server and the program.
    fn extant(&self, args: &[&str]) -> Command {
        let path = std::env::var_os("PATH").expect("PATH");
        let own = self.hq.parent().map(Path::to_owned);
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).expect("path");
        let mut command = Command::new(extant_path());
        command.args(args).env("HQ_SERVER_DIR", &self.server).env("PATH", path).stderr(Stdio::piped());
        command
    }
}

/// Waits until the tasks of a sweep have streamed so many bytes into files; each does so as soon as it ends.
fn wait_for_results(out: &str, bytes: u64) {
    let stream = Path::new(out).join("hq/0-stream");
    wait_until("the first results", || {
        let files = std::fs::read_dir(&stream).into_iter().flatten().flatten();
        files.filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum::<u64>() > bytes
    });
}

/// The arguments of a sweep on HyperQueue, with one round, and those of the same sweep on this machine.
fn on_hq_and_here<'a>(threads: &'a str, depth: &'a str, out: &'a str, serial: &'a str) -> [Vec<&'a str>; 2] {
    [(out, &["--engine=hq"][..]), (serial, &[])].map(|(out, more)| {
        let args = sweep(threads, depth, out, more);
        args.into_iter().map(|a| if a == "--rounds=2" { "--rounds=1" } else { a }).collect()
    })
}

fn values(from: u32, n: u32) -> String {
    (from..from + n).map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}

/// 200 points on two workers of HyperQueue, one of which is killed in the middle. The bytes are those of the serial
/// run.
#[test]
fn a_sweep_on_hyperqueue_outlives_a_worker() {
    let dir = Dir::new();
    let Some(hq) = HyperQueue::new(&dir) else { return };
    let (serial, out) = (dir.text("serial"), dir.text("hq"));
    let (threads, depth) = (format!("threads={}", values(20, 20)), format!("depth={}", values(4, 10)));
    let [args, local] = on_hq_and_here(&threads, &depth, &out, &serial);
    let gone = hq.extant(&args).output().expect("extant");
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(gone.status.code() == Some(8) && said.contains("hq server start"), "{said}");
    let _server = hq.start_server();
    let mut first = hq.start_worker();
    let _second = hq.start_worker();
    let sweeping = hq.extant(&args).spawn().expect("extant");
    wait_for_results(&out, 1_000_000);
    first.0.kill().expect("kill a worker");
    let ended = sweeping.wait_with_output().expect("extant");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    done(&local);
    assert_eq!(trials(&serial).len(), 200 * 2);
    assert!(merged(&serial) == merged(&out));
}

/// The server is killed in the middle. Points that have ended are kept, and a new server gets the others.
#[test]
fn a_sweep_on_hyperqueue_outlives_its_server() {
    let dir = Dir::new();
    let Some(hq) = HyperQueue::new(&dir) else { return };
    let (serial, out) = (dir.text("serial"), dir.text("hq"));
    let (threads, depth) = (format!("threads={}", values(20, 10)), format!("depth={}", values(4, 10)));
    let [args, local] = on_hq_and_here(&threads, &depth, &out, &serial);
    let mut server = hq.start_server();
    let mut worker = hq.start_worker();
    let sweeping = hq.extant(&args).spawn().expect("extant");
    wait_for_results(&out, 300_000);
    server.0.kill().expect("kill the server");
    let ended = sweeping.wait_with_output().expect("extant");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(8) && said.contains("server of HyperQueue is gone"), "{said}");
    assert!(said.contains("repeat the command"), "{said}");
    assert!(!Path::new(&out).join("trials.ndjson").exists(), "an incomplete sweep has no merged result");
    worker.0.kill().expect("kill the worker");
    let kept = || -> Vec<(PathBuf, std::time::SystemTime)> {
        let points = std::fs::read_dir(Path::new(&out).join("points")).expect("points").flatten();
        let files = points.map(|point| point.path().join("trials.ndjson")).filter(|file| file.exists());
        files.map(|file| (file.clone(), file.metadata().and_then(|m| m.modified()).expect("time"))).collect()
    };
    let before = kept();
    assert!((1..100).contains(&before.len()), "{} of 100 points had ended", before.len());
    let _server = hq.start_server();
    let _worker = hq.start_worker();
    let resumed = hq.extant(&args).output().expect("extant");
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(resumed.status.success() && said.contains(&format!("{} were there", before.len())), "{said}");
    let after = kept();
    assert!(after.len() == 100 && before.iter().all(|file| after.contains(file)), "what had ended is not done again");
    done(&local);
    assert!(merged(&serial) == merged(&out));
}
