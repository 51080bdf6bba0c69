//! The documents of an image: they specify the archives that are its layers, and their digests.
//!
//! Main types: [`Layout`], [`Image`] (the layers of the chosen image), [`Verified`] (a file whose digest is compared
//! while it is read), [`Hashed`] (a reader that hashes). Three forms are supported, and recognised by their files: an
//! OCI image layout; the output of `docker save` and `podman save`, whose `manifest.json` is a list; and skopeo's
//! `dir:`, in which `manifest.json` is the image's manifest itself.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::super::compressed::{self, Compression};
use super::super::{plain, source_error};
use super::store::{Store, Stored};
use crate::error::shown;
use crate::{Error, Result};

/// The maximum size of a document; registries accept no larger ones.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// The maximum nesting of indexes.
const DEPTH_MAX: u32 = 8;
/// The annotations with the name of an image in an index: usually only a tag, and a whole name.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// The documents that describe the layers.
pub struct Layout<'s> {
    store: &'s dyn Store,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An OCI image layout.
    Oci,
    /// A list of images with the paths of their layers.
    DockerArchive,
    /// A manifest together with its blobs.
    Flat,
}

/// The chosen image.
pub struct Image {
    /// The layers from the lowest on: each archive, and the digest of its uncompressed bytes.
    pub layers: Vec<(Layer, String)>,
}

/// An archive that contains a layer, compressed or not.
pub struct Layer {
    path: String,
    /// The name for messages.
    name: String,
    /// The digest and the size of the stored archive, if a document contains them.
    expected: Option<(String, u64)>,
}

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutFile {
    image_layout_version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

/// An image of a `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// A manifest, or an index that another one lists.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

const LAYOUT: &str = "oci-layout";
const INDEX: &str = "index.json";
const MANIFEST: &str = "manifest.json";

impl<'s> Layout<'s> {
    /// The image in a store, if the store contains an image, even if some of it is missing.
    pub fn recognize(store: &'s dyn Store) -> Option<Layout<'s>> {
        let of = |kind| Layout { store, kind };
        if of(Kind::Oci).parsed::<LayoutFile>(LAYOUT).is_ok() {
            return Some(of(Kind::Oci));
        }
        let layout = of(Kind::DockerArchive);
        if layout.parsed::<Vec<DockerImage>>(MANIFEST).is_ok_and(|images| !images.is_empty()) {
            return Some(layout);
        }
        let layout = of(Kind::Flat);
        let config = layout.parsed::<Document>(MANIFEST).ok()?.config?;
        store.open(&layout.path_of(&config)).is_ok().then_some(layout)
    }

    /// The same for a store that must contain an image.
    ///
    /// # Errors
    /// It contains none, or its version is unknown.
    pub fn open(store: &'s dyn Store) -> Result<Layout<'s>> {
        let layout = Layout::recognize(store).ok_or_else(|| {
            let layout = Layout { store, kind: Kind::Oci };
            let is_there = |name: &str| !store.open(name).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
            let wrong = |name: &str| layout.parsed::<serde_json::Value>(name).err().filter(|_| is_there(name));
            wrong(LAYOUT).or_else(|| wrong(MANIFEST)).unwrap_or_else(|| no_image(store.name()))
        })?;
        if layout.kind == Kind::Oci {
            let version = layout.parsed::<LayoutFile>(LAYOUT)?.image_layout_version;
            if version.split('.').next() != Some("1") {
                let why = format!("version {} of image layouts is not known", shown(version.as_bytes()));
                return Err(layout.wrong(LAYOUT, why));
            }
        }
        Ok(layout)
    }

    /// The name for messages.
    pub fn name(&self) -> String {
        self.store.name()
    }

    fn wrong(&self, part: &str, why: String) -> Error {
        Error::Source { name: format!("{}/{}", self.name(), shown(part.as_bytes())), why }
    }

    fn file(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.store.open(name);
        let read = file.and_then(|file| file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|e| self.wrong(name, plain(&e)))?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(self.wrong(name, format!("is larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    }

    fn parsed<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        parse(&self.file(name)?).map_err(|why| self.wrong(name, why))
    }

    /// The image with a tag, or the only one, and if there is a choice, that of the host's platform.
    ///
    /// # Errors
    /// There is none or more than one, or a document is damaged.
    pub fn image(&self, tag: Option<&str>) -> Result<Image> {
        match self.kind {
            Kind::DockerArchive => return self.docker_image(tag),
            Kind::Flat if tag.is_some() => {
                return Err(self.wrong(MANIFEST, "is of one image, which has no tag; leave the tag out".into()));
            }
            Kind::Flat => return self.image_of(self.parsed(MANIFEST)?, MANIFEST),
            Kind::Oci => {}
        }
        let index: Index = self.parsed(INDEX)?;
        let mut chosen = self.chosen(index.manifests, tag)?;
        for _ in 0..DEPTH_MAX {
            let name = blob_name(&chosen);
            let bytes = self.document(&chosen)?;
            let document: Document = parse(&bytes).map_err(|why| self.wrong(&name, why))?;
            match document.manifests {
                Some(manifests) => chosen = self.of_platform(manifests, &name)?,
                None => return self.image_of(document, &name),
            }
        }
        Err(self.wrong(INDEX, format!("leads through more than {DEPTH_MAX} indexes")))
    }

    /// The image of a manifest, which is called `name`.
    fn image_of(&self, document: Document, name: &str) -> Result<Image> {
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(self.wrong(name, "is neither a manifest with layers nor an index".into()));
        };
        if let Some(layer) = layers.iter().find(|layer| !layer.media_type.contains("tar")) {
            let kind = shown(layer.media_type.as_bytes());
            return Err(self.wrong(&blob_name(layer), format!("is of type {kind}, which is no layer of files")));
        }
        let parsed = parse(&self.document(&config)?).map_err(|why| self.wrong(&blob_name(&config), why))?;
        let layers = layers.iter().map(|layer| self.layer(layer)).collect::<Result<_>>()?;
        self.with_ids(layers, parsed, &blob_name(&config))
    }

    fn docker_image(&self, tag: Option<&str>) -> Result<Image> {
        let images: Vec<DockerImage> = self.parsed(MANIFEST)?;
        let tags_of = |image: &DockerImage| image.repo_tags.clone().unwrap_or_default();
        let there = listed(images.iter().flat_map(tags_of).collect());
        let fits = |image: &DockerImage| tag.is_none_or(|tag| tags_of(image).iter().any(|named| is_meant(named, tag)));
        let mut fitting = images.into_iter().filter(fits);
        let image = match (fitting.next(), fitting.next()) {
            (Some(image), None) => image,
            (Some(_), Some(_)) => {
                return Err(self.wrong(MANIFEST, format!("has more than one image; name a tag: {there}")));
            }
            (None, _) => {
                let tag = shown(tag.unwrap_or_default().as_bytes());
                return Err(self.wrong(MANIFEST, format!("has no image with the tag {tag}; {there}")));
            }
        };
        let of = |path: String| Layer { name: shown(path.as_bytes()), path, expected: None };
        let config = self.parsed(&image.config)?;
        self.with_ids(image.layers.into_iter().map(of).collect(), config, &shown(image.config.as_bytes()))
    }

    /// Combines layers with the digests in the configuration, which is called `name`.
    fn with_ids(&self, layers: Vec<Layer>, config: Config, name: &str) -> Result<Image> {
        let named = config.rootfs.diff_ids.len();
        if named != layers.len() {
            return Err(self.wrong(name, format!("names {named} layers, but the manifest {}", layers.len())));
        }
        Ok(Image { layers: layers.into_iter().zip(config.rootfs.diff_ids).collect() })
    }

    fn chosen(&self, mut manifests: Vec<Descriptor>, tag: Option<&str>) -> Result<Descriptor> {
        let names = |descriptor: &Descriptor| -> Vec<String> {
            NAMES.iter().filter_map(|name| descriptor.annotations.get(*name).cloned()).collect()
        };
        let there = listed(manifests.iter().flat_map(names).collect());
        if let Some(tag) = tag {
            manifests.retain(|descriptor| names(descriptor).iter().any(|name| is_meant(name, tag)));
            if manifests.is_empty() {
                let why = format!("has no image with the tag {}; {there}", shown(tag.as_bytes()));
                return Err(self.wrong(INDEX, why));
            }
        }
        // One image may have several names.
        let mut seen = HashSet::new();
        manifests.retain(|descriptor| seen.insert(descriptor.digest.clone()));
        if manifests.iter().any(|descriptor| names(descriptor) != names(&manifests[0])) {
            return Err(self.wrong(INDEX, format!("has more than one image; name a tag: {there}")));
        }
        self.of_platform(manifests, INDEX)
    }

    /// The only image, or that of the host.
    fn of_platform(&self, mut manifests: Vec<Descriptor>, name: &str) -> Result<Descriptor> {
        // Attestations next to the images belong to no platform.
        let unknown = |platform: &Platform| platform.os == "unknown" && platform.architecture == "unknown";
        manifests.retain(|descriptor| !descriptor.platform.as_ref().is_some_and(unknown));
        if manifests.len() > 1 {
            let here = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
            let of_host = |descriptor: &Descriptor| descriptor.platform.as_ref().is_some_and(here);
            if let Some(at) = manifests.iter().position(of_host) {
                return Ok(manifests.swap_remove(at));
            }
            let why = format!("has {} images, none of them for linux/{}", manifests.len(), architecture());
            return Err(self.wrong(name, why));
        }
        manifests.pop().ok_or_else(|| self.wrong(name, "has no image".into()))
    }

    fn path_of(&self, descriptor: &Descriptor) -> String {
        let hex = hex_of(&descriptor.digest).unwrap_or("");
        if self.kind == Kind::Flat { hex.to_owned() } else { format!("blobs/sha256/{hex}") }
    }

    fn layer(&self, descriptor: &Descriptor) -> Result<Layer> {
        let name = blob_name(descriptor);
        let hex = hex_of(&descriptor.digest);
        let hex = hex.ok_or_else(|| self.wrong(&name, "its digest is not of SHA-256".into()))?;
        Ok(Layer { path: self.path_of(descriptor), name, expected: Some((hex.to_owned(), descriptor.size)) })
    }

    /// Opens a layer, to be read once.
    ///
    /// # Errors
    /// It does not exist or has the wrong size.
    pub fn stored(&self, layer: &Layer) -> Result<Verified> {
        let name = format!("{}/{}", self.name(), layer.name);
        let file = self.store.open(&layer.path).map_err(|e| source_error(name.clone(), &e))?;
        if let Some((_, size)) = layer.expected.as_ref().filter(|(_, size)| *size != file.len()) {
            return Err(self.wrong(&layer.name, format!("has {} bytes, and should have {size}", file.len())));
        }
        Ok(Verified { file: Hashed::new(file), name, expected: layer.expected.clone() })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        if descriptor.size > DOCUMENT_BYTES_MAX {
            return Err(self.wrong(&blob_name(descriptor), format!("is larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let mut blob = self.stored(&self.layer(descriptor)?)?;
        let mut bytes = Vec::new();
        blob.by_ref()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| source_error(blob.name.clone(), &e))?;
        blob.finish()?;
        Ok(bytes)
    }
}

/// Whether a tag refers to the image with this name, as a whole or by its last parts: `HOST/NAME:TAG`, `NAME:TAG` or
/// `TAG`.
fn is_meant(name: &str, tag: &str) -> bool {
    let ends = name.strip_suffix(tag).is_some_and(|before| before.is_empty() || before.ends_with(['/', ':']));
    ends && !tag.is_empty()
}

/// The names of images, for a message.
fn listed(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    match &names[..] {
        [] => "it has no tags".to_owned(),
        names => format!("there are: {}", shown(names.join(", ").as_bytes())),
    }
}

/// The error for a source that must be an image.
pub fn no_image(name: String) -> Error {
    let why = "is neither an OCI image layout nor a 'docker save' archive; leave the prefix out to take its files";
    Error::Source { name, why: why.into() }
}

/// Counts and hashes bytes while they are read.
pub struct Hashed<R> {
    reader: R,
    hash: Sha256,
    read: u64,
}

impl<R> Hashed<R> {
    pub fn new(reader: R) -> Hashed<R> {
        Hashed { reader, hash: Sha256::new(), read: 0 }
    }

    /// SHA-256 of the bytes read, in hexadecimal digits.
    pub fn digest(self) -> String {
        hex(self.hash)
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buf)?;
        self.hash.update(&buf[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

/// A stored file that is hashed while it is read.
pub struct Verified {
    file: Hashed<Stored>,
    pub name: String,
    expected: Option<(String, u64)>,
}

impl Read for Verified {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read(buf)
    }
}

impl Verified {
    /// The compression according to the first bytes. Nothing has been read yet.
    pub fn compression(&mut self) -> io::Result<Compression> {
        let (compression, _) = compressed::peeked(&mut self.file.reader)?;
        self.file.reader.rewind();
        Ok(compression)
    }

    /// Reads the rest, and compares it. Returns the file and its digest.
    ///
    /// # Errors
    /// The size or the digest differs.
    pub fn finish(mut self) -> Result<(Stored, String)> {
        let mut buf = vec![0; 1 << 17];
        loop {
            match self.read(&mut buf) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(source_error(self.name, &e)),
            }
        }
        let Hashed { reader, hash, read } = self.file;
        let found = hex(hash);
        match self.expected {
            Some(expected) if expected != (found.clone(), read) => {
                let why = format!("its digest is sha256:{found}: it is damaged, or was changed");
                Err(Error::Source { name: self.name, why })
            }
            _ => Ok((reader, found)),
        }
    }
}

/// Compares the digest of a layer's archive with the one in the image's configuration. `name` is the name of the blob.
///
/// # Errors
/// They differ.
pub fn check_archive(name: &str, found: &str, diff_id: &str) -> Result<()> {
    if hex_of(diff_id) == Some(found) {
        return Ok(());
    }
    let why = format!(
        "the digest of its archive is sha256:{found}, and that in the image's configuration {}: \
         the layer is of another image, or was damaged before it was compressed; make the layout again",
        shown(diff_id.as_bytes())
    );
    Err(Error::Source { name: name.into(), why })
}

/// The digits of a digest of SHA-256.
fn hex_of(digest: &str) -> Option<&str> {
    let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(lower))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn blob_name(descriptor: &Descriptor) -> String {
    format!("blob {}", shown(descriptor.digest.as_bytes()))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("is not understood: {}", shown(e.to_string().as_bytes())))
}

/// The name of the host's architecture in Go, and so in image configurations.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    }
}
