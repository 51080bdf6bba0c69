//! An image layout on disk: its index, manifests and blobs.
//!
//! Main types: [`Layout`], [`Image`] (the layers of the chosen image), [`Verified`] (a blob whose digest is compared
//! while it is read), [`Hashed`] (a reader that hashes).
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::super::compressed::{self, Compression};
use super::super::{plain, regular, source_error};
use crate::error::shown;
use crate::{Error, Result};

/// The largest document; registries take no larger ones.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Indexes in indexes.
const DEPTH_MAX: u32 = 8;
/// The annotation with the name of an image in an index.
const NAME: &str = "org.opencontainers.image.ref.name";

/// A directory with an image layout.
pub struct Layout {
    dir: PathBuf,
}

/// The image that was chosen.
pub struct Image {
    /// The lowest first: each blob, and the digest of its uncompressed archive.
    pub layers: Vec<(Descriptor, String)>,
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

impl Layout {
    /// Opens a directory that must be a layout.
    ///
    /// # Errors
    /// It is none, or of a version that is not known.
    pub fn open(dir: &Path) -> Result<Layout> {
        let layout = Layout { dir: dir.to_owned() };
        let bytes = layout.file("oci-layout")?;
        let file: LayoutFile = parse(&bytes).map_err(|why| layout.wrong("oci-layout", why))?;
        let version = file.image_layout_version;
        if version.split('.').next() != Some("1") {
            let why = format!("version {} of image layouts is not known", shown(version.as_bytes()));
            return Err(layout.wrong("oci-layout", why));
        }
        Ok(layout)
    }

    /// For messages.
    pub fn name(&self) -> String {
        shown(self.dir.as_os_str().as_bytes())
    }

    fn wrong(&self, part: &str, why: String) -> Error {
        Error::Source { name: format!("{}/{part}", self.name()), why }
    }

    fn file(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = regular(&self.dir.join(name));
        let read = file.and_then(|file| file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|e| self.wrong(name, format!("{}; is this an OCI image layout?", plain(&e))))?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(self.wrong(name, format!("is larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    }

    /// The image with a tag, or the only one, and if there is a choice that of the host's platform.
    ///
    /// # Errors
    /// There is none or more than one, or a document is damaged.
    pub fn image(&self, tag: Option<&str>) -> Result<Image> {
        let index: Index = parse(&self.file("index.json")?).map_err(|why| self.wrong("index.json", why))?;
        let mut chosen = self.chosen(index.manifests, tag)?;
        for _ in 0..DEPTH_MAX {
            let name = blob_name(&chosen);
            let bytes = self.document(&chosen)?;
            let document: Document = parse(&bytes).map_err(|why| self.wrong(&name, why))?;
            if let Some(manifests) = document.manifests {
                chosen = self.of_platform(manifests, &name)?;
                continue;
            }
            let (Some(config), Some(layers)) = (document.config, document.layers) else {
                return Err(self.wrong(&name, "is neither a manifest with layers nor an index".into()));
            };
            let config_name = blob_name(&config);
            let parsed: Config = parse(&self.document(&config)?).map_err(|why| self.wrong(&config_name, why))?;
            let named = parsed.rootfs.diff_ids.len();
            if named != layers.len() {
                let why = format!("names {named} layers, but the manifest {}", layers.len());
                return Err(self.wrong(&config_name, why));
            }
            if let Some(layer) = layers.iter().find(|layer| !layer.media_type.contains("tar")) {
                let kind = shown(layer.media_type.as_bytes());
                return Err(self.wrong(&blob_name(layer), format!("is of type {kind}, which is no layer of files")));
            }
            return Ok(Image { layers: layers.into_iter().zip(parsed.rootfs.diff_ids).collect() });
        }
        Err(self.wrong("index.json", format!("leads through more than {DEPTH_MAX} indexes")))
    }

    fn chosen(&self, manifests: Vec<Descriptor>, tag: Option<&str>) -> Result<Descriptor> {
        let name = |descriptor: &Descriptor| descriptor.annotations.get(NAME).cloned();
        let mut tags: Vec<String> = manifests.iter().filter_map(name).collect();
        tags.sort();
        tags.dedup();
        let there = match &tags[..] {
            [] => "it has no tags".to_owned(),
            tags => format!("there are: {}", shown(tags.join(", ").as_bytes())),
        };
        let candidates = match tag {
            Some(tag) => manifests.into_iter().filter(|descriptor| name(descriptor).as_deref() == Some(tag)).collect(),
            None if tags.len() > 1 => {
                return Err(self.wrong("index.json", format!("has more than one image; name a tag: {there}")));
            }
            None => manifests,
        };
        if let (Some(tag), true) = (tag, candidates.is_empty()) {
            let why = format!("has no image with the tag {}; {there}", shown(tag.as_bytes()));
            return Err(self.wrong("index.json", why));
        }
        self.of_platform(candidates, "index.json")
    }

    /// The only one, or that of the host.
    fn of_platform(&self, mut manifests: Vec<Descriptor>, name: &str) -> Result<Descriptor> {
        // Attestations beside the images belong to no platform.
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

    /// A blob, to be read once.
    ///
    /// # Errors
    /// The digest is of a kind that is not known, or the blob is not there or not of its size.
    pub fn blob(&self, descriptor: &Descriptor) -> Result<Verified> {
        let name = blob_name(descriptor);
        let hex = hex_of(&descriptor.digest);
        let hex = hex.ok_or_else(|| self.wrong(&name, "its digest is not of SHA-256".into()))?;
        let full = format!("{}/{name}", self.name());
        let file = regular(&self.dir.join("blobs/sha256").join(hex)).map_err(|e| source_error(full.clone(), &e))?;
        let size = file.metadata().map_err(|e| source_error(full.clone(), &e))?.len();
        if size != descriptor.size {
            return Err(self.wrong(&name, format!("has {size} bytes, and should have {}", descriptor.size)));
        }
        Ok(Verified { file: Hashed::new(file), name: full, expected: hex.to_owned(), size })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        if descriptor.size > DOCUMENT_BYTES_MAX {
            return Err(self.wrong(&blob_name(descriptor), format!("is larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let mut blob = self.blob(descriptor)?;
        let mut bytes = Vec::new();
        blob.by_ref()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| source_error(blob.name.clone(), &e))?;
        blob.finish()?;
        Ok(bytes)
    }
}

/// Bytes that are counted and hashed while they are read.
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

/// A blob that is hashed while it is read.
pub struct Verified {
    file: Hashed<File>,
    pub name: String,
    expected: String,
    size: u64,
}

impl Read for Verified {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read(buf)
    }
}

impl Verified {
    /// By its first bytes. Nothing has been read yet.
    pub fn compression(&mut self) -> io::Result<Compression> {
        let (compression, _) = compressed::peeked(&mut self.file.reader)?;
        self.file.reader.rewind()?;
        Ok(compression)
    }

    /// Reads the rest, and compares. Returns the file and its digest.
    ///
    /// # Errors
    /// Size or digest is another.
    pub fn finish(mut self) -> Result<(File, String)> {
        let mut buf = vec![0; 1 << 17];
        // The loop ends even if the file grows all the time.
        while self.file.read <= self.size {
            match self.read(&mut buf) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(source_error(self.name, &e)),
            }
        }
        let Hashed { reader, hash, read } = self.file;
        let found = hex(hash);
        if (read, &found) == (self.size, &self.expected) {
            return Ok((reader, found));
        }
        let why = format!("its digest is sha256:{found}: it is damaged, or was changed");
        Err(Error::Source { name: self.name, why })
    }
}

/// Compares the digest of a layer's archive with that of the image's configuration. `name` is the blob's.
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

/// The host's architecture, by the name that Go has for it, and image configurations with it.
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
