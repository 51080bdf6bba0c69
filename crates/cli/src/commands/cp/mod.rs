//! `extant cp`: copies between the host's files and images.
//!
//! `extant_transfer::copy` copies; this module chooses the two sides from the command line. [`events`] turns the
//! copy's events into messages, counts and an exit status, [`stream`] is standard input and output.
//!
//! # Locking
//! None.

mod events;
mod progress;
mod stream;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_fs::{Filesystem, Mounted};
use extant_ondisk::inode::FileType;
use extant_transfer::copy::{Copy, ImageSink, ImageSource, LINKS_MAX, LocalSink, LocalSource, Options, Rules, Sink};
use extant_transfer::{Cause, Place as Spot};
use rustix::process::geteuid;

use self::events::Events;
use crate::args::{CpArgs, ImageArgs};
use crate::failure::{Failure, Result, both, warn};
use crate::image::{self, ImageSpec, open_image};
use crate::owner::{Owner, warn_of_fakeroot};
use crate::place::Place;
use crate::rescued::{self, Tally};
use crate::server::signals::{Input, Stop};
use crate::source_date::SourceDate;
use crate::text::shown;

pub fn run(args: &CpArgs, how: &ImageArgs) -> Result<()> {
    let places: Vec<Place> = args.paths.iter().map(|arg| Place::parse(arg)).collect();
    let Some((to, from)) = places.split_last() else { return Err(Failure::usage("nothing to copy")) };
    if from.iter().any(|place| !place.is_in_image()) && !to.is_in_image() {
        return Err(Failure::usage(
            "neither source nor destination is in an image (IMAGE:PATH); for copies between files of the host there is cp",
        ));
    }
    if from.iter().filter(|place| place.is_stream()).count() > 1 {
        return Err(Failure::usage("standard input can be copied once"));
    }
    for (given, option) in
        [(args.owner.owner.is_some(), "--owner"), (args.keep_directory_symlink, "--keep-directory-symlink")]
    {
        if given && !to.is_in_image() {
            return Err(Failure::usage(format!("{option} is for files that are copied into an image")));
        }
    }
    let stop = Stop::watch();
    let mut images = Images { how: how.clone(), ..Images::default() };
    let copied = match to {
        Place::Local(_) if to.is_stream() => stream::out(from, &stop, &mut images),
        Place::Local(path) => to_host(args, from, path, &stop, &mut images),
        Place::Inside(spec, path) => {
            let spec = spec.clone().or(how.part());
            let fs = open_image(&spec, &how.for_destination(), false)?;
            images.add(&spec, Arc::clone(&fs));
            let sink = sink(args, &fs, Owner::default().within(args.owner.owner))?;
            let copied = copy_each(args, from, &sink, path, &Events::new(args, &stop), &mut images);
            let ended = fs.unmount().map_err(|e| Failure::op(format!("{}: {e}", fs.image())));
            images.print_tally();
            both(copied, ended)
        }
    };
    copied?;
    image::refuse_damage(images.open.iter().map(|(_, fs)| fs))
}

/// The image that files are copied into.
fn sink<'f>(args: &CpArgs, fs: &'f Filesystem, owner: Owner) -> Result<ImageSink<'f>> {
    warn_of_fakeroot();
    let newest = SourceDate::from_environment()?.map(SourceDate::seconds);
    let keeps_owners = args.archive || args.preserve || geteuid().is_root();
    Ok(ImageSink { fs, owners: owner.rule(0), keeps_owners, newest, only_new: false })
}

/// A script's `put`: the last argument is a path in `fs`, the others are paths of the host.
pub fn put(args: &CpArgs, owner: Owner, fs: &Arc<Filesystem>, stop: &Stop) -> Result<()> {
    let Some((to, from)) = args.paths.split_last() else { return Err(Failure::usage("nothing to copy")) };
    let from: Vec<Place> = from.iter().map(|path| Place::Local(path.as_bytes().to_vec())).collect();
    if from.iter().any(Place::is_stream) {
        return Err(Failure::usage("the standard input is the script's"));
    }
    let sink = sink(args, fs, owner.within(args.owner.owner))?;
    copy_each(args, &from, &sink, to.as_bytes(), &Events::new(args, stop), &mut Images::default())
}

/// A script's `get`: the last argument is a path of the host, the others are paths in `fs`.
pub fn get(args: &CpArgs, fs: &Arc<Filesystem>, stop: &Stop) -> Result<()> {
    let Some((to, from)) = args.paths.split_last() else { return Err(Failure::usage("nothing to copy")) };
    let mut images = Images::default();
    let spec = ImageSpec::whole(fs.image());
    images.add(&spec, fs.clone());
    let from: Vec<Place> = from.iter().map(|path| Place::Inside(spec.clone(), path.as_bytes().to_vec())).collect();
    if to == "-" {
        return stream::out(&from, stop, &mut images);
    }
    to_host(args, &from, to.as_bytes(), stop, &mut images)
}

/// The open images. None may be opened twice, and inode numbers identify files only while their image stays open.
#[derive(Default)]
struct Images {
    how: ImageArgs,
    open: Vec<(ImageSpec, Arc<Filesystem>)>,
    /// The images that this object opened.
    own: Vec<Mounted>,
    /// The files that were copied from each image.
    tally: Tally,
}

impl Images {
    fn add(&mut self, spec: &ImageSpec, fs: Arc<Filesystem>) {
        self.open.push((spec.canonical(), fs));
    }

    /// Opens an image for reading, unless it is open already.
    fn get(&mut self, spec: &ImageSpec) -> Result<Arc<Filesystem>> {
        let spec = &spec.clone().or(self.how.part());
        let wanted = spec.canonical();
        if let Some((_, fs)) = self.open.iter().find(|(open, _)| *open == wanted) {
            return Ok(fs.clone());
        }
        let own = open_image(spec, &self.how, true)?;
        let fs = Arc::clone(&own);
        self.own.push(own);
        self.add(spec, fs.clone());
        Ok(fs)
    }

    /// Prints the lines about rescued images. Must be last, so that they are not overlooked.
    fn print_tally(&self) {
        self.open.iter().for_each(|(_, fs)| self.tally.print(fs));
    }
}

/// Copies every source to a path of the host.
fn to_host(args: &CpArgs, from: &[Place], to: &[u8], stop: &Stop, images: &mut Images) -> Result<()> {
    let events = Events::new(args, stop);
    let sink = LocalSink::new(Rules { privileges: args.privileges, ..Rules::default() }, &events);
    let copied = copy_each(args, from, &sink, to, &events, images);
    let left = sink.left_out();
    let counts = [(left.devices, "devices"), (left.modes, "set-ID modes"), (left.attributes, "attributes")];
    let counts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{what}: {n}")).collect();
    if !counts.is_empty() {
        warn(&format!("left out for safety: {} (--privileges copies them)", counts.join(", ")));
    }
    images.print_tally();
    copied
}

/// Copies every source, and prints an error for each that fails. Finished copies are kept.
fn copy_each<S: Sink>(
    args: &CpArgs,
    from: &[Place],
    sink: &S,
    to: &[u8],
    events: &Events<'_>,
    images: &mut Images,
) -> Result<()> {
    let failed = |e| events.failure(e);
    let there = |e: Cause| failed(e.at(|| sink.place(to)));
    let into_dir = sink.existing(to).map_err(there)? == Some(FileType::Directory);
    if from.len() > 1 && !into_dir {
        return Err(Failure::op(format!("{}: not a directory", shown(to))));
    }
    let options = Options {
        recursive: args.recursive || args.archive,
        no_clobber: args.no_clobber,
        keep_directory_symlink: args.keep_directory_symlink,
        ..Options::default()
    };
    let local = LocalSource::new(events);
    let mut copy = Copy::new(sink, options, events);
    for place in from {
        let mut image = None;
        let copied = match place {
            Place::Local(_) if place.is_stream() => from_stdin(&mut copy, sink, to, into_dir, events),
            Place::Local(path) => copy.source(&local, path, to, into_dir).map_err(failed),
            Place::Inside(spec, path) => images.get(spec).and_then(|fs| {
                image = Some(rescued::id(&fs));
                copy.source(&ImageSource::new(&fs), path, to, into_dir).map_err(failed)
            }),
        };
        events.note(image, copied)?;
    }
    if local.left_out() > 0 {
        warn(&format!("attributes that only root copies: {} left out", local.left_out()));
    }
    let (tally, copied) = events.end(copy.parted());
    images.tally = tally;
    copied
}

fn from_stdin<S: Sink>(copy: &mut Copy<'_, S>, sink: &S, to: &[u8], into_dir: bool, events: &Events<'_>) -> Result<()> {
    if into_dir {
        return Err(Failure::op(format!("{}: is a directory; standard input needs a name", sink.place(to))));
    }
    let stdin = Spot::host(b"-");
    let mut input = Input::new(io::stdin(), events.stop());
    copy.stream(&mut input, &stdin, &stream::node(), to).map_err(|mut e| {
        if *e.place == stdin {
            *e.place = Spot::host(b"standard input");
        }
        events.failure(e)
    })
}
