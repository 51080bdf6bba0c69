//! Points on the workers of HyperQueue.
//!
//! Main type: [`Hq`]. The points are the tasks of one job. An exact point takes one processor; any other takes all
//! processors of its worker, so that it runs alone there. A task prints its trials, and HyperQueue streams the output
//! of tasks into a directory; after the job, the trials are read from it. If a worker is lost, HyperQueue gives its
//! tasks to another worker, and discards the output of the lost ones.
//!
//! The server, the workers and the allocation on a cluster belong to HyperQueue, and are started by its users.
//!
//! # Locking
//! None.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Engine, Point, replace};
use crate::error::{Error, Result};
use crate::result::{TRIALS, Trial};
use crate::run::same_run;
use crate::target::{find, one_line};

/// The interval at which the server is queried.
const LOOK: Duration = Duration::from_millis(500);
/// After this many consecutive failed queries, the server counts as gone.
const FAILURES_MAX: u32 = 10;
/// The name of a sweep's directory of jobs.
const JOBS: &str = "hq";

/// A server of HyperQueue, which its program locates as usual (`HQ_SERVER_DIR`).
pub struct Hq {
    /// The `extant` binary, at the same path on every worker.
    pub program: PathBuf,
    /// Arguments of runs that do not affect a trial.
    pub extra: Vec<String>,
}

/// The job of an attempt, recorded for the next one.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    server_uid: String,
    id: u64,
    /// The directory that its tasks stream into.
    stream: PathBuf,
    /// Points of its tasks, in the order of task numbers.
    points: Vec<String>,
}

impl Engine for Hq {
    fn run(
        &self,
        due: &[&Point],
        output: &Path,
        _lock: &File,
        stop: &AtomicBool,
        done: &mut dyn FnMut(&Point, Option<String>),
    ) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        if find("hq").is_none() {
            return Err(Error::Usage(
                "hq is not in PATH: it is the program of HyperQueue, https://it4innovations.github.io/hyperqueue"
                    .into(),
            ));
        }
        let server = server_uid()?;
        let folder = output.join(JOBS);
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let folder = folder.canonicalize().map_err(Error::file(&folder))?;
        let mut left: Vec<&Point> = due.to_vec();
        // Earlier attempts may have finished some points; a job of theirs that is still running is no longer needed.
        let earlier = jobs(&folder)?;
        for job in &earlier {
            if job.server_uid == server {
                let _ = hq(&["job", "cancel", &job.id.to_string()]);
            }
            left = harvest(job, &left, output, done)?;
        }
        if left.is_empty() || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let job = self.submit(&left, &server, &folder, earlier.len())?;
        let waited = wait(&job, stop);
        if stop.load(Ordering::Relaxed) || waited.is_err() {
            let _ = hq(&["job", "cancel", &job.id.to_string()]);
        }
        let left = harvest(&job, &left, output, done)?;
        waited?;
        if !stop.load(Ordering::Relaxed) {
            for point in left {
                done(point, Some(said(&job, &point.id)));
            }
        }
        Ok(())
    }
}

impl Hq {
    fn submit(&self, due: &[&Point], server: &str, folder: &Path, attempt: usize) -> Result<Job> {
        let stream = folder.join(format!("{attempt}-stream"));
        std::fs::create_dir_all(&stream).map_err(Error::file(&stream))?;
        let cwd = std::env::current_dir().map_err(|e| Error::Failed(format!("the current directory: {e}")))?;
        let program = self.program.display().to_string();
        // Strings of JSON are valid in TOML, except for DEL.
        let text = |s: &str| Value::from(s.replace('\u{7f}', "\u{fffd}")).to_string();
        let mut file = format!("name = \"extant lab sweep\"\nstream = {}\n", text(&stream.display().to_string()));
        for (number, point) in due.iter().enumerate() {
            let mut words = vec![program.as_str()];
            words.extend(point.arguments.iter().map(String::as_str));
            words.extend(self.extra.iter().map(String::as_str));
            words.extend(["--output", "-"]);
            let words: Vec<String> = words.into_iter().map(text).collect();
            let cpus = if point.exact { "1" } else { "\"all\"" };
            file += &format!(
                "\n[[task]]\nid = {number}\ncwd = {}\ncommand = [{}]\n[[task.request]]\nresources = {{ \"cpus\" = {cpus} }}\n",
                text(&cwd.display().to_string()),
                words.join(", ")
            );
        }
        let path = folder.join(format!("{attempt}.toml"));
        replace(&path, file.as_bytes())?;
        let answer = json(&["job", "submit-file", &path.display().to_string()])?;
        let id = answer["id"].as_u64().ok_or_else(|| Error::Failed(format!("hq: no number of a job in {answer}")))?;
        let points = due.iter().map(|p| p.id.clone()).collect();
        let job = Job { server_uid: server.to_owned(), id, stream, points };
        let record = serde_json::to_vec(&job).map_err(|e| Error::Failed(e.to_string()))?;
        replace(&folder.join(format!("{attempt}.json")), &record)?;
        Ok(job)
    }
}

/// The jobs of earlier attempts, in order.
fn jobs(folder: &Path) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    loop {
        let path = folder.join(format!("{}.json", jobs.len()));
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(jobs),
            Err(e) => return Err(Error::file(&path)(e)),
        };
        jobs.push(serde_json::from_slice(&text).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?);
    }
}

fn server_uid() -> Result<String> {
    let info = json(&["server", "info"]).map_err(|e| {
        Error::Failed(format!(
            "no server of HyperQueue answers ({e}): start one with `hq server start`, and workers with `hq worker \
             start`; HQ_SERVER_DIR names its directory"
        ))
    })?;
    match info["server_uid"].as_str() {
        Some(uid) => Ok(uid.to_owned()),
        None => Err(Error::Failed(format!("hq server info: no server_uid in {info}: another version of HyperQueue?"))),
    }
}

/// Waits for the end of all tasks.
fn wait(job: &Job, stop: &AtomicBool) -> Result<()> {
    let clock = Clock::real();
    let mut failures = 0;
    while !stop.load(Ordering::Relaxed) {
        match json(&["job", "info", &job.id.to_string()]) {
            Ok(answer) => {
                failures = 0;
                let info = answer.get(0).unwrap_or(&answer);
                let stats = &info["info"]["task_stats"];
                let count = |name: &str| stats[name].as_u64();
                match (count("running"), count("waiting")) {
                    (Some(0), Some(0)) => return Ok(()),
                    (Some(_), Some(_)) => {}
                    _ => return Err(Error::Failed(format!("hq job info: no task_stats in {answer}"))),
                }
            }
            Err(e) => {
                failures += 1;
                if failures >= FAILURES_MAX {
                    return Err(Error::Failed(format!(
                        "the server of HyperQueue is gone ({e}); the points that have ended are kept: start it, and \
                         repeat the command"
                    )));
                }
            }
        }
        clock.sleep(LOOK);
    }
    Ok(())
}

/// Takes the trials of complete points from the stream of a job; returns the other points.
fn harvest<'a>(
    job: &Job,
    due: &[&'a Point],
    output: &Path,
    done: &mut dyn FnMut(&Point, Option<String>),
) -> Result<Vec<&'a Point>> {
    let mut left = Vec::new();
    for point in due {
        let Some(trials) = printed(job, point) else {
            left.push(*point);
            continue;
        };
        for trial in trials.lines() {
            let trial: Trial = serde_json::from_str(trial).map_err(|e| Error::Failed(format!("{}: {e}", point.id)))?;
            same_run(&point.identity, &trial).map_err(|what| {
                Error::Usage(format!("{}: a worker's results are of another run or program ({what})", point.id))
            })?;
        }
        let folder = point.folder(output);
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        replace(&folder.join(TRIALS), trials.as_bytes())?;
        done(point, None);
    }
    Ok(left)
}

/// The trials that a point's task has printed, if the task has ended and printed all of them.
fn printed(job: &Job, point: &Point) -> Option<String> {
    let text = stream(job, &point.id, "stdout", &[])?;
    let whole = text.ends_with('\n') && text.lines().count() >= point.trials;
    whole.then_some(text)
}

/// The output of a point's task on one channel.
fn stream(job: &Job, point: &str, channel: &str, more: &[&str]) -> Option<String> {
    let number = job.points.iter().position(|id| id == point)?.to_string();
    let (folder, id) = (job.stream.display().to_string(), job.id.to_string());
    let server = format!("--server-uid={}", job.server_uid);
    let task = format!("--task={number}");
    let words = [&["output-log", &server, &folder, "cat", &id, channel, &task], more].concat();
    hq(&words).ok()
}

/// The last message of a task that failed.
fn said(job: &Job, point: &str) -> String {
    let text = stream(job, point, "stderr", &["--allow-unfinished"]).unwrap_or_default();
    match text.lines().rfind(|l| !l.trim().is_empty()) {
        Some(line) => one_line(line),
        None => format!("its task did not end, see `hq task list {}`", job.id),
    }
}

fn json(words: &[&str]) -> Result<Value> {
    let text = hq(&[words, &["--output-mode", "json"]].concat())?;
    serde_json::from_str(&text).map_err(|e| Error::Failed(format!("hq {}: {e}", words.join(" "))))
}

/// Calls hq; returns its standard output.
fn hq(words: &[&str]) -> Result<String> {
    let program = find("hq").unwrap_or_else(|| "hq".into());
    let output = Command::new(&program).args(words).stdin(Stdio::null()).output().map_err(Error::file(&program))?;
    if !output.status.success() {
        let said = message(&String::from_utf8_lossy(&output.stderr), &String::from_utf8_lossy(&output.stdout));
        return Err(Error::Tool { command: format!("hq {}", words.join(" ")), output: one_line(&said) });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The error message of hq, which in JSON contains the stack of its calls, too.
fn message(stderr: &str, stdout: &str) -> String {
    let answer: Option<Value> = serde_json::from_str(stdout).ok();
    let said = answer.as_ref().and_then(|answer| answer["error"].as_str());
    let said = said.map_or_else(|| [stderr, stdout].concat(), str::to_owned);
    said.split("\n\nStack backtrace").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_no_stack() {
        let answer =
            r#"{ "error": "the server is unreachable.\n\nCaused by:\n    refused\n\nStack backtrace:\n   0: main" }"#;
        assert_eq!(message("", answer), "the server is unreachable.\n\nCaused by:\n    refused");
        assert_eq!(message("no such job\n", ""), "no such job\n");
        assert_eq!(message("", "[]"), "[]");
    }
}
