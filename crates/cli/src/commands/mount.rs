//! `extant mount`: mounts, and leaves a server in the background.
//!
//! The background server is this binary again, started before anything is opened: threads and rings do not survive a
//! fork. It says "mounted" through its standard output, which is a pipe, or complains on its standard error, which is
//! ours, and ends with the status that we end with.
//!
//! # Locking
//! None.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use extant_lab::measure::Recorded;

use crate::args::{MountArgs, MountHelper};
use crate::failure::{Failure, MOUNT, Result, SYSTEM, USAGE, plain};
use crate::image::ImageSpec;
use crate::mount_options::MountConfig;
use crate::mount_table;
use crate::serve::{self, Job, MOUNTED};

pub fn run(args: MountArgs) -> Result<()> {
    let config = MountConfig::parse(&args.options, args.sloppy).map_err(Failure::usage)?;
    let mut spec = ImageSpec::parse(&args.image, config.partition);
    if spec.partition.is_some() && config.offset.is_some() {
        return Err(Failure::usage("an offset and a partition exclude each other"));
    }
    // The server leaves our directory, and unmounting goes by the image's whole name.
    spec.path = spec.path.canonicalize().map_err(|e| {
        let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
        Failure::io(&spec.path, e).with_status(if denied { USAGE } else { MOUNT })
    })?;
    let dir = mount_table::absolute(&args.dir);
    let job = Job {
        spec,
        dir,
        config,
        verbose: args.verbose,
        background: args.background_server,
        stats: args.stats.clone().map(|file| (file, args.stats_of)),
    };
    if args.foreground || args.background_server {
        return serve::serve(job);
    }
    start_server(&args, &job)
}

/// As mount(8) calls its helpers.
pub fn run_helper(args: MountHelper) -> Result<()> {
    if args.fake {
        MountConfig::parse(&args.options, args.sloppy).map_err(Failure::usage)?;
        return Ok(());
    }
    run(MountArgs {
        image: args.source,
        dir: args.target,
        options: args.options,
        foreground: false,
        verbose: args.verbose,
        sloppy: args.sloppy,
        stats: None,
        stats_of: Recorded::NONE,
        background_server: false,
    })
}

fn start_server(args: &MountArgs, job: &Job) -> Result<()> {
    let system = |what: &str, e: std::io::Error| Failure::new(SYSTEM, format!("{what}: {}", plain(&e)));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("extant").args(["mount", "--background-server"]);
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    if let Some(number) = job.spec.partition {
        command.arg("-o").arg(format!("partition={number}"));
    }
    if args.sloppy {
        command.arg("-s");
    }
    command.arg("--").arg(&job.spec.path).arg(&job.dir);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| system("cannot start the server", e))?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said).map_err(|e| system("cannot hear the server", e))?;
    }
    if said == MOUNTED {
        if args.verbose {
            println!("{} mounted on {}, served by process {}", job.spec.shown(), job.dir.display(), child.id());
        }
        return Ok(());
    }
    let status = child.wait().map_err(|e| system("cannot wait for the server", e))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        // It has said why.
        Some(code) if code != 0 => Err(Failure::silent(code)),
        _ => Err(Failure::new(SYSTEM, format!("the server ended before it had mounted: {status}"))),
    }
}
