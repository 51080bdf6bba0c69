//! `extant script`: changes an image by a list of commands.
//!
//! The lines are the commands of the same names, with paths in the one image. No line waits for the disk, so many lines
//! share a transaction of the journal. With `--atomic` they change a [`Draft`], which is committed in one transaction.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use extant_block::BlockDevice;
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Draft, Filesystem, MountOptions};

use super::verb::Images;
use crate::args::{ImageArgs, Line, ScriptArgs, as_getopt};
use crate::commands;
use crate::failure::{Failure, Result, USAGE, both, warn};
use crate::image::{self, ImageSpec, WRITE_THROUGH_BYTES, open_device, open_image};
use crate::owner::Owner;
use crate::server::signals::{Input, Stop};
use crate::text::shown;
use crate::words;

pub fn run(args: &ScriptArgs, how: &ImageArgs) -> Result<()> {
    let spec = how.spec(&args.image);
    let (name, input): (String, OwnedFd) = match &args.file {
        Some(path) if path != OsStr::new("-") => {
            let file = std::fs::File::open(path).map_err(|e| Failure::io(path, e))?;
            (path.display().to_string(), file.into())
        }
        _ => {
            let name = "standard input";
            let input = std::io::stdin().as_fd().try_clone_to_owned();
            (name.into(), input.map_err(|e| Failure::io(Path::new(name), e))?)
        }
    };
    let stop = Stop::watch();
    let mut input = Input::new(input, &stop);
    if args.atomic {
        return at_once(args, how, &spec, &name, &mut input, &stop);
    }
    let fs = open_image(&spec, how, false)?;
    let ran = Script { args, name: &name, fs: fs.clone(), stop: &stop, done: 0 }.lines(&mut input);
    let closed = close(&fs);
    both(ran, closed)?;
    image::refuse_damage([&*fs])
}

fn close(fs: &Filesystem) -> Result<()> {
    let image = fs.image();
    fs.unmount().map_err(|e| Failure::op(format!("{image}: {e}")))
}

/// Runs all lines or none, on a draft of the image that is committed at the end.
fn at_once(
    args: &ScriptArgs,
    how: &ImageArgs,
    spec: &ImageSpec,
    name: &str,
    input: &mut dyn Read,
    stop: &Stop,
) -> Result<()> {
    let base = open_device(spec, &how.access(false))?;
    let options = MountOptions { write_through_bytes: Some(WRITE_THROUGH_BYTES), ..how.mount_options(spec, false)? };
    // Replays the log after a crash, and fails if the image cannot be written.
    close(&*image::mount(base.clone(), options.clone())?)?;
    let draft = Arc::new(Draft::new(base.clone(), side(base.size_bytes())?, options.clock.clone()));
    let fs = image::mount(draft.clone(), options.clone())?;
    let refused = |e: extant_fs::Error| Failure::op(format!("{}: {e}", spec.shown()));
    if fs.has_borrowed_journal() || fs.superblock().journal_inode().is_none() {
        let _ = fs.unmount();
        return Err(Failure::op(format!("{}: --atomic needs an image with a journal", spec.shown())));
    }
    let ran = Script { args, name, fs: fs.clone(), stop, done: 0 }.lines(input);
    // Closes only the draft: after a failure the image is unchanged.
    let closed = close(&fs);
    ran.and(closed)?;
    // The damage has been reported; a command may have missed files because of it.
    let whole = image::refuse_damage([&*fs]);
    whole.map_err(|e| Failure { message: format!("{}: damaged: nothing was changed", spec.shown()), ..e })?;
    drop(fs);
    draft.commit().map_err(refused)?;
    drop(draft);
    // The changes are committed, whatever happens now; this writes them from the journal to their home locations.
    close(&*image::mount(base, options)?)
}

/// The storage of a draft's changes: an unnamed file of their size.
fn side(size: u64) -> Result<Arc<dyn BlockDevice>> {
    let dir = std::env::temp_dir();
    let file = tempfile::NamedTempFile::new_in(&dir).map_err(|e| Failure::io(&dir, e))?;
    file.as_file().set_len(size).map_err(|e| Failure::io(file.path(), e))?;
    Ok(Arc::new(FileDevice::open(file.path(), OpenOptions::default())?))
}

struct Script<'a> {
    args: &'a ScriptArgs,
    name: &'a str,
    fs: Arc<Filesystem>,
    stop: &'a Stop,
    /// How many commands succeeded.
    done: u64,
}

impl Script<'_> {
    fn lines(&mut self, input: &mut dyn Read) -> Result<()> {
        let mut lines = BufReader::new(input).split(b'\n');
        for number in 1u64.. {
            let line = lines.next();
            // Checked after the line is read. A signal that ends the script's writer may reach this process, too; the
            // end of the input is then not the end of the script.
            self.stop.check().map_err(|e| self.failed(number, e))?;
            let Some(line) = line else { break };
            let line = line.map_err(|e| Failure::op(format!("{}: {e}", self.name)))?;
            if self.args.verbose {
                let _ = writeln!(std::io::stderr(), "{number}: {}", shown(&line));
            }
            match self.line(&line) {
                Ok(true) => self.done += 1,
                Ok(false) => {}
                Err(e) => return Err(self.failed(number, e)),
            }
        }
        Ok(())
    }

    /// Adds the line of the error and the state of the other lines to a message.
    fn failed(&self, number: u64, e: Failure) -> Failure {
        let place = format!("{}: line {number}", self.name);
        // A command with several files has already printed an error for each.
        let cause = if e.message.is_empty() { "failed, see above".into() } else { e.message };
        warn(&format!("{place}: {cause}"));
        let status = if e.status > 128 { e.status } else { USAGE };
        let done = match self.done {
            _ if self.args.atomic => "nothing was changed".into(),
            0 => "nothing was done before it".into(),
            1 => "1 command before it was done".into(),
            n => format!("{n} commands before it were done"),
        };
        Failure::new(status, format!("{place}: {done}"))
    }

    /// Runs one line. Returns false if it is empty.
    fn line(&self, line: &[u8]) -> Result<bool> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let parts = words::split(line).map_err(Failure::usage)?;
        if parts.is_empty() {
            return Ok(false);
        }
        let matches = as_getopt(Line::command()).try_get_matches_from(&parts);
        let parsed = matches.and_then(|matches| Line::from_arg_matches(&matches)).map_err(|e| {
            let text = e.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            Failure::usage(match e.kind() {
                ErrorKind::DisplayHelp => "no help in a script".to_owned(),
                _ => first.trim_start_matches("error: ").to_owned(),
            })
        })?;
        let owner = Owner::default().within(self.args.owner.owner);
        let images = &mut Images::inside(self.fs.clone(), owner, self.stop.clone());
        match &parsed {
            Line::Rm(args) => commands::rm::run(args, images),
            Line::Mkdir(args) => commands::mkdir::run(args, images),
            Line::Ln(args) => commands::ln::run(args, images),
            Line::Mv(args) => commands::mv::run(args, images),
            Line::Chmod(args) => commands::chmod::run(args, images),
            Line::Chown(args) => commands::chown::run(args, images),
            Line::Chattr(args) => commands::attributes::change(args, images),
            Line::Mknod(args) => commands::mknod::run(args, images),
            Line::Touch(args) => commands::touch::run(args, images),
            Line::Xattr(args) => commands::xattr::run(args, images),
            Line::Put(args) => commands::cp::put(args, owner, &self.fs, self.stop),
            Line::Get(args) => commands::cp::get(args, &self.fs, self.stop),
        }?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use extant_testkit::oracle::{MkfsOptions, make_image};

    use super::*;
    use crate::args::OwnerArg;

    /// Some lines, followed by the signal that ends both the writer and this process.
    struct SignalledInput<'a>(&'a [u8], &'a Stop);

    impl Read for SignalledInput<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                self.1.come(signal_hook::consts::SIGINT);
            }
            self.0.read(buf)
        }
    }

    #[test]
    fn a_script_cut_off_by_a_signal_fails() {
        let dir = tempfile::tempdir().expect("directory");
        let image = make_image(dir.path(), &MkfsOptions::new("ext4", 8 << 20)).expect("made");
        let args = ScriptArgs {
            image: image.clone().into(),
            file: None,
            atomic: false,
            verbose: false,
            owner: OwnerArg::default(),
        };
        let stop = Stop::default();
        let fs = open_image(&ImageSpec::whole(&image), &ImageArgs::default(), false).expect("mounted");
        let mut script = Script { args: &args, name: "lines", fs: fs.clone(), stop: &stop, done: 0 };
        let ended = script.lines(&mut SignalledInput(b"mkdir /a\n", &stop)).expect_err("cut off");
        assert_eq!((ended.status, script.done), (130, 1));
        close(&fs).expect("unmounted");
    }
}
