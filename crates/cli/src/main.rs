//! `extant`: mounts, inspects, and copies in and out of ext2/3/4 images.
//!
//! This crate parses arguments and prints; the crates below do everything else. One file per sub-command in
//! [`commands`]; around them: [`args`] (the command line), [`image`] (images, opened), [`mount_options`] (`-o`),
//! [`server`] (the process behind a mount, and the signals of all commands), [`mount_table`] (the mount of a path),
//! [`namespace`] (`-N`), [`beside`] (reads images in use), [`opened`] (the images that this process has open), [`keys`]
//! (of encrypted files), [`owner`] (the owners of new files), [`place`] (`IMAGE:PATH`), [`program`] (this binary,
//! started again), [`source_date`] (reproducible images), [`rescued`] (what is hurt), [`record`] (JSON), [`mode`],
//! [`when`], [`words`] (of a script's line), [`size`], [`text`] and [`failure`].
//!
//! Called as `mount.fuse.extant`, `mount.fuseblk.extant` or `mount.extant` (links to the binary), it takes the
//! arguments of a mount(8) helper; as `umount.…`, those of a umount(8) helper: umount(8) then returns when the server
//! has finished. As `mke2fs` or `mkfs.ext4` it takes the arguments of mke2fs, as `e2fsck` or `fsck.ext4` those of
//! e2fsck, as `tune2fs`, `e2label` and `resize2fs` those of these programs.
//!
//! # Exit status
//! The tools: 0, 1 (usage; a script's line that failed), 4 (`--rescue`: something is damaged), 8 (the image or the
//! system refused), 130 and 143 (SIGINT, SIGTERM), 141 (the reader of the output has ended). `mount` and `unmount`:
//! those of mount(8), see [`failure::Failure`].
//!
//! # Locking
//! None.
#![deny(unsafe_code)]
// Messages go through `failure`, output through `text::Output`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod beside;
mod claim;
mod commands;
mod failure;
mod image;
mod keys;
mod mode;
mod mount_options;
mod mount_table;
mod namespace;
mod opened;
mod owner;
mod place;
mod program;
mod record;
mod rescued;
mod server;
mod source_date;
mod text;
mod when;
mod words;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use extant_base::size;
use extant_fuse::Control;

/// Version, commit and build profile.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("EXTANT_COMMIT"), ", ", env!("EXTANT_PROFILE"), ")");

use crate::args::{
    Cli, Command, FsckProgram, LabelProgram, MkfsProgram, MountHelper, ResizeProgram, TuneProgram, UnmountHelper,
};
use crate::commands::verb::Images;
use crate::failure::{Failure, Result};
use crate::server::{log, sandbox, signals};

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    let args: Vec<OsString> = std::env::args_os().collect();
    let name = args.first().and_then(|a| Path::new(a).file_name()).unwrap_or(OsStr::new("extant"));
    let result = match name.to_str() {
        Some("mount.fuse.extant" | "mount.fuseblk.extant" | "mount.extant") => {
            parse::<MountHelper>(args).and_then(|helper| helper.map_or(Ok(()), commands::mount::run_helper))
        }
        Some("umount.fuse.extant" | "umount.fuseblk.extant" | "umount.extant") => {
            parse::<UnmountHelper>(args).and_then(|helper| helper.map_or(Ok(()), commands::unmount::run_helper))
        }
        Some(name) if commands::mkfs::is_name(name) => parse::<MkfsProgram>(args.clone())
            .and_then(|program| program.map_or(Ok(()), |program| commands::mkfs::run_program(name, program))),
        Some(name) if commands::fsck::is_name(name) => {
            parse::<FsckProgram>(args).and_then(|program| program.map_or(Ok(()), commands::fsck::run_program))
        }
        Some(name) if commands::tune::is_name(name) => {
            parse::<TuneProgram>(args).and_then(|program| program.map_or(Ok(()), commands::tune::run_program))
        }
        Some(name) if commands::tune::is_label_name(name) => {
            parse::<LabelProgram>(args).and_then(|program| program.map_or(Ok(()), commands::tune::run_label))
        }
        Some(name) if commands::resize::is_name(name) => {
            parse::<ResizeProgram>(args).and_then(|program| program.map_or(Ok(()), commands::resize::run_program))
        }
        Some(sandbox::AGENT) => sandbox::run_agent(&args[1..]),
        _ => parse::<Cli>(args).and_then(|cli| cli.map_or(Ok(()), |cli| run(cli.command))),
    };
    let status = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.status)
        }
    };
    log::end();
    status
}

/// `None` if help or the version was requested, and has been printed.
fn parse<P: Parser>(args: Vec<OsString>) -> Result<Option<P>> {
    let command = P::command();
    let verb = args.get(1).and_then(|verb| verb.to_str());
    let checks = verb == Some("fsck") || command.get_name() == "e2fsck";
    let usage = if checks { commands::fsck::USAGE } else { failure::USAGE };
    // The definitions of verbs are large, and changing one moves it, so the others are not touched.
    let command = match verb.filter(|verb| command.get_subcommands().any(|known| known.get_name() == *verb)) {
        Some(verb) => command.mut_subcommand(verb, args::as_getopt),
        None => args::as_getopt(command),
    };
    let matches = command.try_get_matches_from(args);
    match matches.and_then(|matches| P::from_arg_matches(&matches)) {
        Ok(parsed) => Ok(Some(parsed)),
        Err(e) => match e.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let _ = e.print();
                Ok(None)
            }
            _ => {
                failure::usage_error(e);
                Err(Failure::silent(usage))
            }
        },
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Mount(args) => commands::mount::run(args),
        Command::Unmount(args) => commands::unmount::run(&args),
        Command::Freeze(args) => commands::freeze::run(&args, Control::Freeze),
        Command::Thaw(args) => commands::freeze::run(&args, Control::Thaw),
        Command::Fsck(args) => commands::fsck::run(&args),
        Command::Mkfs(args) => commands::mkfs::run(*args),
        Command::Resize(args) => commands::resize::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::Undelete(args) => commands::undelete::run(&args),
        Command::Quota(args) => commands::quota::run(&args),
        Command::Image(args) => commands::metadata::run(&args),
        Command::Info(args) => commands::info::run(&args.verb, &args.how),
        Command::Ls(args) => Images::for_looking(&args.how).with(|images| commands::ls::run(&args.verb, images)),
        Command::Cat(args) => commands::cat::run(&args.verb, &mut Images::for_reading(&args.how)),
        Command::Stat(args) => Images::for_looking(&args.how).with(|images| commands::stat::run(&args.verb, images)),
        Command::Tree(args) => Images::for_looking(&args.how).with(|images| commands::tree::run(&args.verb, images)),
        Command::Find(args) => Images::for_looking(&args.how).with(|images| commands::find::run(&args.verb, images)),
        Command::Du(args) => Images::for_looking(&args.how).with(|images| commands::du::run(&args.verb, images)),
        Command::Df(args) => Images::for_looking(&args.how).with(|images| commands::df::run(&args.verb, images)),
        Command::Cp(args) => commands::cp::run(&args.verb, &args.how),
        Command::Export(args) => {
            commands::export::images(&args.verb, &args.how).with(|images| commands::export::run(&args.verb, images))
        }
        Command::Rm(args) => Images::for_writing(&args.how).with(|images| commands::rm::run(&args.verb, images)),
        Command::Mkdir(args) => Images::for_writing(&args.how).with(|images| commands::mkdir::run(&args.verb, images)),
        Command::Ln(args) => Images::for_writing(&args.how).with(|images| commands::ln::run(&args.verb, images)),
        Command::Mv(args) => Images::for_writing(&args.how).with(|images| commands::mv::run(&args.verb, images)),
        Command::Chmod(args) => Images::for_writing(&args.how).with(|images| commands::chmod::run(&args.verb, images)),
        Command::Chown(args) => Images::for_writing(&args.how).with(|images| commands::chown::run(&args.verb, images)),
        Command::Mknod(args) => Images::for_writing(&args.how).with(|images| commands::mknod::run(&args.verb, images)),
        Command::Touch(args) => Images::for_writing(&args.how).with(|images| commands::touch::run(&args.verb, images)),
        Command::Chattr(args) => {
            Images::for_writing(&args.how).with(|images| commands::attributes::change(&args.verb, images))
        }
        Command::Lsattr(args) => {
            Images::for_looking(&args.how).with(|images| commands::attributes::list(&args.verb, images))
        }
        Command::Encrypt(args) => {
            Images::for_writing(&args.how).with(|images| commands::encrypt::run(&args.verb, images))
        }
        Command::Trim(args) => Images::for_writing(&args.how).with(|images| commands::trim::run(&args.verb, images)),
        Command::Xattr(args) => {
            commands::xattr::images(&args.verb, &args.how).with(|images| commands::xattr::run(&args.verb, images))
        }
        Command::Script(args) => commands::script::run(&args.verb, &args.how),
        Command::Lab(args) => commands::lab::run(args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
    }
}
