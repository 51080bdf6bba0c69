//! `command`: a program of the user, run in the target's root directory.
//!
//! `sh -c COMMAND` runs with that directory as its working directory: a fio job, unpacking an archive, a build. The
//! trial records its standard output, shortened, and the figures in it (`measure::program`). If it fails, the message
//! contains the end of its standard error. Programs that it leaves running are ended with it, because they would
//! prevent the unmount of the target. It needs a target with a directory, so it cannot run on the engine in this
//! process.
//!
//! # Locking
//! None.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use extant_base::clock::Clock;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{Context, Needs, Parameters, Workload};
use crate::error::{Error, Result};
use crate::measure::program::{self, boundary};
use crate::vfs::Worker;

pub(super) struct Command;

/// The maximum length of standard error in a message, bytes.
const SAID_MAX: usize = 1024;
/// The maximum number of bytes of standard output that are read for figures, enough for the JSON of a thousand fio
/// jobs. The rest is discarded.
const OUTPUT_MAX: usize = 16 << 20;
/// How many bytes from the beginning, and from the end, of standard output are recorded in a trial.
const KEPT: usize = 32 << 10;
/// The interval of checks for the end of the program, which limits the precision of its time.
const LOOK: Duration = Duration::from_micros(500);

impl Workload for Command {
    fn name(&self) -> &'static str {
        "command"
    }

    fn summary(&self) -> &'static str {
        "a program of your own (--command 'CMD'), run by sh in the target's root directory"
    }

    fn source(&self) -> &'static str {
        "the command line"
    }

    fn headline(&self) -> &'static str {
        "command"
    }

    fn parameters(&self, _scale: f64) -> Parameters {
        Parameters::new().with_text("command", "")
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        match parameters.text("command") {
            "" => Err(Error::Usage(
                "no workload is named: `extant lab list` has them, and --command 'CMD' runs one of your own".into(),
            )),
            _ => Ok(()),
        }
    }

    fn needs(&self, _: &Parameters) -> Needs {
        Needs { bytes: 1 << 30, files: 10_000, guess: true, ..Needs::default() }
    }

    fn needs_directory(&self) -> bool {
        true
    }

    fn durable(&self, _parameters: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let directory = context.directory()?;
        let command = context.parameters().text("command").to_owned();
        let output = OnceLock::new();
        let done = context.phase("command", 1, |w, _| {
            one(w, &command, &directory, &output)?;
            w.done(1);
            Ok(())
        });
        let output = output.into_inner().unwrap_or_default();
        // Also if the program failed: the output may say why.
        context.output = output.kept();
        if done.is_ok() {
            context.said = program::figures(&output.text);
            if output.discarded > 0 {
                let (read, discarded) = (OUTPUT_MAX >> 20, output.discarded);
                context.said.flaws.push(format!(
                    "figures come from the first {read} MiB of its output; {discarded} bytes behind them were discarded"
                ));
            }
        }
        done
    }
}

/// A program's standard output.
#[derive(Default)]
struct Output {
    text: String,
    discarded: u64,
}

impl Output {
    fn read(mut from: impl Read) -> Output {
        let (mut bytes, mut discarded, mut piece) = (Vec::new(), 0, vec![0; 64 << 10]);
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let fits = n.min(OUTPUT_MAX - bytes.len());
            bytes.extend_from_slice(&piece[..fits]);
            discarded += (n - fits) as u64;
        }
        Output { text: String::from_utf8_lossy(&bytes).into_owned(), discarded }
    }

    /// The part that is recorded in the trial.
    fn kept(&self) -> String {
        let text = &self.text;
        if text.len() <= 2 * KEPT {
            return text.clone();
        }
        let (begin, end) = (boundary(text, KEPT), boundary(text, text.len() - KEPT));
        format!("{}\n[... {} bytes left out ...]\n{}", &text[..begin], end - begin, &text[end..])
    }
}

fn one(worker: &Worker<'_>, command: &str, directory: &Path, output: &OnceLock<Output>) -> Result<()> {
    let failed = |why: String| Error::Failed(format!("{command}: {why}"));
    let mut program = Program::new("sh");
    // A separate process group, so that all of it can be ended.
    program
        .process_group(0)
        .args(["-c", command])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = program.spawn().map_err(|e| failed(e.to_string()))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (status, said, printed) = std::thread::scope(|scope| {
        let printed = scope.spawn(move || stdout.map(Output::read).unwrap_or_default());
        let said = scope.spawn(move || stderr.map(end_of).unwrap_or_default());
        let status = wait(&mut child, worker);
        (status, said.join().unwrap_or_default(), printed.join().unwrap_or_default())
    });
    output.get_or_init(|| printed);
    match status {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(failed(format!("{status}: {}", said.trim_end()))),
        Ok(None) => Err(Error::Interrupted),
        Err(e) => Err(failed(e.to_string())),
    }
}

/// Waits for the end of the shell, and ends its process group. `None` if the run must stop.
fn wait(child: &mut Child, worker: &Worker<'_>) -> std::io::Result<Option<ExitStatus>> {
    let clock = Clock::real();
    let pid = Pid::from_child(child);
    // The shell has not been reaped yet, so its ID cannot belong to another group.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let mut stopped = false;
    while waitid(WaitId::Pid(pid), ended)?.is_none() && !stopped {
        stopped = worker.is_stopped();
        clock.sleep(LOOK);
    }
    kill_process_group(pid, Signal::KILL)?;
    let status = child.wait()?;
    Ok((!stopped).then_some(status))
}

/// The last bytes that arrive, as text.
fn end_of(mut from: impl Read) -> String {
    let (mut end, mut piece) = (VecDeque::new(), [0; 4096]);
    while let Ok(n @ 1..) = from.read(&mut piece) {
        end.extend(&piece[..n]);
        end.drain(..end.len().saturating_sub(SAID_MAX));
    }
    String::from_utf8_lossy(end.make_contiguous()).into_owned()
}
