//! An image of layers as a source: an OCI image layout or a `docker save`, with its layers on top of each other.
//!
//! Layers are read concurrently, each into a list of entries, and applied in their order. The marks of a layer (`.wh.`
//! names) are applied first, regardless of their order in the archive, because a layer never hides its own names.
//!
//! # Locking
//! None: threads share the list of layers, and each has separate results.

mod layout;
mod store;

pub use layout::{architecture, no_image};
pub use store::{Archive, Directory, Store};

use std::collections::HashSet;
use std::io::BufReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use self::layout::{Hashed, Layer as LayerFile, Layout, check_archive};
use super::budget::Budget;
use super::compressed::{self, Compression};
use super::contents::{self, Contents, Part};
use super::left_out::LeftOut;
use super::tar::{self, Entry, Kind};
use super::{Options, STREAM_BUFFER, Source, source_error};
use crate::tree::Builder;
use crate::{Error, Result};

/// The prefix of a name that hides one of a lower layer.
pub const HIDES: &[u8] = b".wh.";
/// A name that hides everything in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The prefix of names that union file systems reserve.
const RESERVED: &[u8] = b".wh..wh.";

/// A layer that was read.
struct Layer {
    name: String,
    entries: Vec<Entry>,
    part: Option<Part>,
    left_out: LeftOut,
    warning: Option<String>,
}

/// Whether a store contains an image, and not other files.
pub(super) fn is_image(store: &dyn Store) -> bool {
    Layout::recognize(store).is_some()
}

/// The tree of the image with a tag, or of the only one.
pub(super) fn read(store: &dyn Store, tag: Option<&str>, options: Options) -> Result<Source> {
    let layout = Layout::open(store)?;
    let layers = layout.image(tag)?.layers;
    if layers.len() > contents::PARTS_MAX {
        return Err(Error::Source { name: layout.name(), why: format!("{} layers are too many", layers.len()) });
    }
    let read = read_layers(&layout, &layers, &options)?;
    let mut builder = Builder::new(options.tree);
    builder.follow_links();
    let (mut parts, mut warnings, mut all_left_out) = (Vec::new(), Vec::new(), LeftOut::default());
    for (number, layer) in read.into_iter().enumerate() {
        let Layer { name, entries, part, left_out, warning } = layer?;
        warnings.extend(warning);
        all_left_out.add(left_out);
        apply(&mut builder, number, entries).map_err(|e| tar::in_archive(e, &name))?;
        parts.push(part);
    }
    let tree = builder.finish().map_err(|e| tar::in_archive(e, &layout.name()))?;
    warnings.extend(all_left_out.warning(&layout.name()));
    Ok(Source { tree, content: Box::new(Contents { parts }), warnings })
}

/// All layers, as many at a time as there are processors.
fn read_layers(layout: &Layout<'_>, layers: &[(LayerFile, String)], options: &Options) -> Result<Vec<Result<Layer>>> {
    let next = AtomicUsize::new(0);
    let budget = Budget::default();
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((stored, diff_id)) = layers.get(number) else { return done };
            done.push((number, read_layer(layout, stored, diff_id, options, &budget)));
        }
    };
    let mut done = std::thread::scope(|threads| -> Result<_> {
        let mut others = Vec::new();
        for _ in 1..extant_base::task::processors().min(layers.len()) {
            let builder = std::thread::Builder::new().name("extant-layer".into());
            others.push(builder.spawn_scoped(threads, work).map_err(|e| Error::Thread(e.to_string()))?);
        }
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        Ok(done)
    })?;
    done.sort_unstable_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, layer)| layer).collect())
}

fn read_layer(
    layout: &Layout<'_>,
    stored: &LayerFile,
    diff_id: &str,
    options: &Options,
    budget: &Budget,
) -> Result<Layer> {
    let mut blob = layout.stored(stored)?;
    let name = blob.name.clone();
    let wrong = |e: std::io::Error| source_error(name.clone(), &e);
    let mut entries = Vec::new();
    let mut take = |mut entry: Entry| {
        entry.path.shrink_to_fit();
        entries.push(entry);
        Ok(())
    };
    let compression = blob.compression().map_err(wrong)?;
    let garbage = Arc::new(AtomicBool::new(false));
    let (seen, part) = if compression == Compression::None {
        // Its files are read in place, after its digest was found to be correct.
        let (stored, digest) = blob.finish()?;
        check_archive(&name, &digest, diff_id)?;
        let mut input = tar::Input::file(name.clone(), stored.file, stored.range, budget.clone()).map_err(wrong)?;
        (tar::read(&mut input, &mut take)?, input.finish()?)
    } else {
        let stream = BufReader::with_capacity(STREAM_BUFFER, budget.counted(&mut blob));
        let decoder = compressed::decoder(compression, stream, garbage.clone()).map_err(wrong);
        let read = decoder.and_then(|stream| {
            let mut archive = Hashed::new(stream);
            let stream = Box::new(&mut archive);
            let mut input = tar::Input::stream(name.clone(), stream, options.spool.clone(), budget.clone());
            let seen = tar::read(&mut input, &mut take)?;
            let part = input.finish()?;
            Ok((seen, part, archive.digest()))
        });
        // A wrong digest is the reason for the other error.
        blob.finish()?;
        let (seen, part, digest) = read?;
        check_archive(&name, &digest, diff_id)?;
        (seen, part)
    };
    let warning = garbage.load(Ordering::Relaxed).then(|| compressed::ignored_garbage(&name));
    Ok(Layer { name, entries, part, left_out: seen.left_out, warning })
}

/// The meaning of an entry's name for the layers below.
enum Mark<'e> {
    /// A directory hides everything from the layers below.
    Opaque { dir: &'e [u8] },
    /// The name is hidden.
    Hidden { dir: &'e [u8], name: &'e [u8] },
    /// A name that the format reserves and that has no meaning here.
    Reserved,
}

impl Mark<'_> {
    fn of(path: &[u8]) -> Option<Mark<'_>> {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let split = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (dir, name) = path.split_at(split);
        if dir.split(|byte| *byte == b'/').any(|part| part.starts_with(RESERVED)) {
            return Some(Mark::Reserved);
        }
        let dir = if dir.is_empty() { b"." } else { dir };
        match name {
            OPAQUE => Some(Mark::Opaque { dir }),
            name if name.starts_with(RESERVED) => Some(Mark::Reserved),
            name => name.strip_prefix(HIDES).map(|name| Mark::Hidden { dir, name }),
        }
    }
}

fn apply(builder: &mut Builder, number: usize, entries: Vec<Entry>) -> Result<()> {
    // The targets of hard links in the layers below, before any of them is hidden.
    let mut below = Vec::new();
    for entry in &entries {
        if let Kind::HardLink(target) = &entry.kind {
            below.push(builder.target(target));
        }
    }
    for entry in &entries {
        builder.set_position(entry.position);
        match Mark::of(&entry.path) {
            Some(Mark::Opaque { dir }) => builder.make_opaque(dir)?,
            Some(Mark::Hidden { name: b"" | b"." | b"..", .. }) => {
                let entry = crate::error::shown(&entry.path);
                return Err(Error::Entry { entry, why: "a whiteout of no name".into() });
            }
            Some(Mark::Hidden { dir, name }) => builder.remove(&[dir, b"/", name].concat())?,
            Some(Mark::Reserved) | None => {}
        }
    }
    // These are the layer's own names. A hard link may refer to one of them or to one that the layer hides.
    let linked = below.iter().any(Option::is_some);
    let own: HashSet<Vec<u8>> =
        if linked { entries.iter().map(|entry| trimmed(&entry.path)).collect() } else { HashSet::new() };
    let mut below = below.into_iter();
    for mut entry in entries {
        let Kind::HardLink(target) = &entry.kind else {
            if Mark::of(&entry.path).is_some() {
                continue;
            }
            if let Kind::File { content, .. } = &mut entry.kind {
                *content = contents::in_part(*content, number);
            }
            entry.add_to(builder)?;
            continue;
        };
        let below = below.next().flatten();
        if Mark::of(&entry.path).is_some() {
            continue;
        }
        match below {
            Some(node) if builder.target(target).is_none() && !own.contains(&trimmed(target)) => {
                builder.set_position(entry.position);
                builder.link_to(&entry.path, target, node)?;
            }
            _ => entry.add_to(builder)?,
        }
    }
    builder.settle()
}

/// A path without the parts that have no meaning.
fn trimmed(path: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}
