//! An OCI image layout on disk with one image of one layer, which is the archive in gzip.
//!
//! Main types: [`Layout`] (the directory), [`Layer`] (takes the archive).
//!
//! Like the archive, the layout depends only on the tree, except for the architecture in the configuration: the
//! host's. `index.json` is written last, and an incomplete layout is removed.
//!
//! # Locking
//! None.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use extant_build::source::{HIDES, architecture};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

const BLOBS: &str = "blobs/sha256";
/// The key of an image's tag in the index.
const TAG: &str = "org.opencontainers.image.ref.name";

/// Whether a path in a layer would hide another one, or has a special meaning.
pub fn hides(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name.starts_with(HIDES))
}

/// A file without a name, and with the mode of any new file; it is removed unless it gets a name.
///
/// # Errors
/// Those of the host, whose text may name a temporary file.
pub fn unnamed(dir: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(".extant-").permissions(PermissionsExt::from_mode(0o666)).tempfile_in(dir)
}

/// Why a layout cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The directory is not empty.
    #[error("{}: it is not empty", dir.display())]
    NotEmpty {
        /// The layout's directory.
        dir: PathBuf,
    },
    /// The directory cannot be made or read.
    #[error("{}: {source}", dir.display())]
    Directory {
        /// The layout's directory.
        dir: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Something in it cannot be written.
    #[error("{}: {source}", dir.display())]
    Write {
        /// The layout's directory.
        dir: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, LayoutError>;

/// A layout in progress.
pub struct Layout {
    dir: PathBuf,
    /// This command made the directory.
    made: bool,
    whole: bool,
}

/// Receives an archive.
pub struct Layer {
    archive: Sha256,
    gzip: GzEncoder<Blob>,
}

/// A file named by the hash of its content.
struct Blob {
    file: NamedTempFile,
    hash: Sha256,
    bytes: u64,
}

impl Write for Blob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Write for Layer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.gzip.write(bytes)?;
        self.archive.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.gzip.flush()
    }
}

impl Layout {
    /// Begins a layout in a directory that is empty or does not exist.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn make(dir: &Path) -> Result<Layout> {
        let failed = |source| LayoutError::Directory { dir: dir.to_owned(), source };
        let made = match fs::create_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true).map_err(failed)?,
        };
        if fs::read_dir(dir).map_err(failed)?.next().is_some() {
            return Err(LayoutError::NotEmpty { dir: dir.to_owned() });
        }
        let layout = Layout { dir: dir.to_owned(), made, whole: false };
        fs::create_dir_all(dir.join(BLOBS)).map_err(failed)?;
        Ok(layout)
    }

    /// Begins the layer.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn layer(&self) -> Result<Layer> {
        let blob = self.blob()?;
        // The gzip header has neither a name nor a time, so that equal trees give equal bytes.
        let gzip = GzBuilder::new().write(blob, Compression::default());
        Ok(Layer { archive: Sha256::new(), gzip })
    }

    fn blob(&self) -> Result<Blob> {
        let file = unnamed(&self.dir.join(BLOBS))
            .map_err(|source| LayoutError::Directory { dir: self.dir.clone(), source })?;
        Ok(Blob { file, hash: Sha256::new(), bytes: 0 })
    }

    /// Writes the documents that turn a layer into an image.
    ///
    /// # Errors
    /// See [`LayoutError`]; the layout is removed then.
    pub fn finish(mut self, layer: Layer, tag: Option<&str>) -> Result<()> {
        let diff_id = digest(layer.archive);
        let layer = layer.gzip.finish().map_err(|e| self.failed(e))?;
        let layer = self.keep(layer, "layer.v1.tar+gzip")?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config = self.document(&config, "config.v1+json")?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type("manifest.v1+json"),
            "config": config,
            "layers": [layer],
        });
        let mut manifest = self.document(&manifest, "manifest.v1+json")?;
        if let Some(tag) = tag {
            manifest["annotations"] = json!({ TAG: tag });
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": media_type("index.v1+json"),
            "manifests": [manifest],
        });
        let written = fs::write(self.dir.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())
            .and_then(|()| fs::write(self.dir.join("index.json"), index.to_string()));
        written.map_err(|e| self.failed(e))?;
        self.whole = true;
        Ok(())
    }

    fn document(&self, value: &Value, kind: &str) -> Result<Value> {
        let mut blob = self.blob()?;
        blob.write_all(value.to_string().as_bytes()).map_err(|e| self.failed(e))?;
        self.keep(blob, kind)
    }

    /// Gives a blob its name; returns its descriptor.
    fn keep(&self, blob: Blob, kind: &str) -> Result<Value> {
        let digest = digest(blob.hash);
        let hex = digest.trim_start_matches("sha256:");
        blob.file.persist(self.dir.join(BLOBS).join(hex)).map_err(|e| self.failed(e.error))?;
        Ok(json!({"mediaType": media_type(kind), "digest": digest, "size": blob.bytes}))
    }

    fn failed(&self, source: io::Error) -> LayoutError {
        LayoutError::Write { dir: self.dir.clone(), source }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        if self.whole {
            return;
        }
        let _ = fs::remove_dir_all(self.dir.join("blobs"));
        for name in ["oci-layout", "index.json"] {
            let _ = fs::remove_file(self.dir.join(name));
        }
        if self.made {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn digest(hash: Sha256) -> String {
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
