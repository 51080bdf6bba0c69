//! `extant cp`: copies between the host's files and images.
//!
//! Both sides have the same interface ([`side`]): a source is read ([`local`] files or an [`inside`] of an image), a
//! sink is written ([`local_sink`], [`inside`]). The copy itself ([`tree`]) knows neither; [`stream`] is standard
//! input and output.
//!
//! Images are not trusted. Names that could lead out of the destination are refused, host directories are opened
//! without following links, and a directory that is reached twice is left out. Privileges are copied to the host only
//! on request.
//!
//! # Locking
//! None.

mod inside;
mod local;
mod local_sink;
mod progress;
mod side;
mod stream;
mod tree;

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_fs::{Filesystem, Mounted};
use extant_ondisk::inode::FileType;
use rustix::process::geteuid;

use self::inside::{ImageSink, ImageSource};
use self::local::LocalSource;
use self::local_sink::LocalSink;
use self::side::Sink;
use self::tree::Copy;
use crate::args::{CpArgs, ImageArgs};
use crate::failure::{Failure, Result, both};
use crate::image::{self, ImageSpec, open_image};
use crate::owner::Owner;
use crate::place::Place;
use crate::rescued::{self, Tally};
use crate::server::signals::Stop;
use crate::text::shown;

/// Bytes moved at once.
const CHUNK_BYTES: usize = 1 << 20;

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
        Place::Local(path) => copy_all(args, from, &LocalSink::new(args.privileges), path, &stop, &mut images),
        Place::Inside(spec, path) => {
            let spec = spec.clone().or(how.part());
            let fs = open_image(&spec, &how.for_destination(), false)?;
            images.add(&spec, Arc::clone(&fs));
            let sink = ImageSink::new(Arc::clone(&fs), Owner::default().within(args.owner.owner), keeps_owners(args))?;
            copy_all(args, from, &sink, path, &stop, &mut images)
        }
    };
    copied?;
    image::refuse_damage(images.open.iter().map(|(_, fs)| fs))
}

/// Whether files keep the owners of the source.
fn keeps_owners(args: &CpArgs) -> bool {
    args.archive || args.preserve || geteuid().is_root()
}

/// A script's `put`: the last argument is a path in `fs`, the others are the host's.
pub fn put(args: &CpArgs, owner: Owner, fs: &Arc<Filesystem>, stop: &Stop) -> Result<()> {
    let Some((to, from)) = args.paths.split_last() else { return Err(Failure::usage("nothing to copy")) };
    let from: Vec<Place> = from.iter().map(|path| Place::Local(path.as_bytes().to_vec())).collect();
    if from.iter().any(Place::is_stream) {
        return Err(Failure::usage("the standard input is the script's"));
    }
    let sink = ImageSink::new(fs.clone(), owner.within(args.owner.owner), keeps_owners(args))?;
    copy_each(args, &from, &sink, to.as_bytes(), stop, &mut Images::default())
}

/// A script's `get`: the last argument is the host's, the others are paths in `fs`.
pub fn get(args: &CpArgs, fs: &Arc<Filesystem>, stop: &Stop) -> Result<()> {
    let Some((to, from)) = args.paths.split_last() else { return Err(Failure::usage("nothing to copy")) };
    let mut images = Images::default();
    let spec = ImageSpec::whole(fs.image());
    images.add(&spec, fs.clone());
    let from: Vec<Place> = from.iter().map(|path| Place::Inside(spec.clone(), path.as_bytes().to_vec())).collect();
    if to == "-" {
        return stream::out(&from, stop, &mut images);
    }
    copy_all(args, &from, &LocalSink::new(args.privileges), to.as_bytes(), stop, &mut images)
}

/// The open images. None may be opened twice, and inode numbers identify files only while an image stays open.
#[derive(Default)]
struct Images {
    how: ImageArgs,
    open: Vec<(ImageSpec, Arc<Filesystem>)>,
    /// The images that this opened.
    own: Vec<Mounted>,
    /// The files that were copied from each.
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
}

/// Copies every source, prints an error for each that fails, and ends the sink. Finished copies stay.
fn copy_all<S: Sink>(
    args: &CpArgs,
    from: &[Place],
    sink: &S,
    to: &[u8],
    stop: &Stop,
    images: &mut Images,
) -> Result<()> {
    let copied = copy_each(args, from, sink, to, stop, images);
    let ended = sink.end();
    // Last, so that it is not overlooked.
    images.open.iter().for_each(|(_, fs)| images.tally.print(fs));
    both(copied, ended)
}

fn copy_each<S: Sink>(
    args: &CpArgs,
    from: &[Place],
    sink: &S,
    to: &[u8],
    stop: &Stop,
    images: &mut Images,
) -> Result<()> {
    let into_dir = sink.existing(to).map_err(|e| e.at(|| sink.show(to)))? == Some(FileType::Directory);
    if from.len() > 1 && !into_dir {
        return Err(Failure::op(format!("{}: not a directory", shown(to))));
    }
    let local = LocalSource::new(stop);
    let mut copy = Copy::new(sink, args, stop);
    for place in from {
        let mut image = None;
        let copied = match place {
            Place::Local(_) if place.is_stream() => copy.stream(to, into_dir),
            Place::Local(path) => copy.source(&local, path, to, into_dir),
            Place::Inside(spec, path) => images.get(spec).and_then(|fs| {
                image = Some(rescued::id(&fs));
                copy.source(&ImageSource::new(fs), path, to, into_dir)
            }),
        };
        copy.went_well(image, copied)?;
    }
    local.end();
    let (tally, copied) = copy.end();
    images.tally = tally;
    copied
}
