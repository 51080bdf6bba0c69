//! The image that is made or overwritten: its exclusive claim, the protection of existing content, and its removal
//! after a failure.
//!
//! Main types: [`Target`], [`Raw`] (the image that becomes one in Android's sparse format).
//!
//! The order is: claim (nothing is written, so a refusal changes nothing), empty, write, keep. The claim excludes every
//! other program from the file, from before the first change until after the last. So a file that this command removes
//! is its own, even if another mkfs wants the same name.
//!
//! # Locking
//! None.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use extant_block::device::{Engine, FileDevice, IoMode, Locking, OpenOptions as DeviceOptions, is_locked};
use extant_block::{BioFlags, BlockDevice, Error as DeviceError};
use extant_build::options::{Request, SizeAsked};
use extant_build::{erase, sparse};
use extant_image::{has_magic, identify_unpartitioned, is_remote, member, partition_table, probe};
use tempfile::NamedTempFile;

use super::failed;
use super::unfinished::{Claiming, Unfinished};
use crate::failure::{Failure, Result, plain, plain_text};
use crate::image::{Access, Claim, ImageSpec, Part, open_device, open_whole};
use crate::opened::FileId;

/// How often to retry the claim of a file that other programs remove or replace.
const TRIES: u32 = 16;

/// The image that is made or overwritten.
pub struct Target {
    pub spec: ImageSpec,
    pub name: String,
    /// Size of the chosen part; 0 if it does not exist.
    pub bytes: u64,
    pub sector_size: u32,
    /// The size is computed, not given: the file is truncated to it.
    pub fits: bool,
    /// A server provides the image, so its file is not the image itself.
    remote: bool,
    /// Whether the storage of zeroed ranges may be unmapped.
    discards: bool,
    /// Removes the file if this command made it and fails. Dropped before the claim.
    unfinished: Unfinished,
    /// Excludes other users. For a whole file, the device still has the file's old size.
    claim: Option<Claimed>,
}

struct Claimed {
    device: Arc<dyn BlockDevice>,
    file: FileId,
}

/// A temporary image beside the target.
pub struct Raw {
    pub device: Arc<dyn BlockDevice>,
    file: NamedTempFile,
    unfinished: Unfinished,
}

impl Target {
    /// Examines the target.
    pub fn prepare(spec: ImageSpec, request: &Request, dry: bool) -> Result<Target> {
        let name = spec.shown();
        let discards = request.discards().map_err(failed)?;
        let unfinished = Unfinished::default();
        let mut target = Target {
            spec,
            name,
            bytes: 0,
            sector_size: 0,
            fits: false,
            remote: false,
            discards,
            unfinished,
            claim: None,
        };
        target.remote = is_remote(&target.spec);
        match target.spec.path.metadata() {
            _ if target.remote => {
                let access = Access { claim: Claim::None, ..Access::tool(true) };
                target.bytes = target.open(&access)?.size_bytes();
            }
            Ok(meta) if meta.is_file() && target.spec.part == Part::Any => target.bytes = meta.len(),
            Ok(meta) if meta.is_dir() => {
                return Err(Failure::op(format!("{}: it is a directory; give a file in it", target.name)));
            }
            Ok(_) if dry && request.size != SizeAsked::Device => {}
            Ok(_) => {
                let access = Access { claim: Claim::None, ..Access::tool(true) };
                let device = target.open(&access)?;
                target.bytes = device.size_bytes();
                if target.spec.is_block_device() {
                    target.sector_size = device.limits().logical_block;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && target.spec.part == Part::Any => {
                if request.size == SizeAsked::Device {
                    let text = format!(
                        "{}: it does not exist; give a size after it, such as 1G, or --size auto with a source",
                        target.name
                    );
                    return Err(Failure::op(text));
                }
            }
            Err(e) => return Err(Failure::io(&target.spec.path, e)),
        }
        Ok(target)
    }

    fn open(&self, access: &Access) -> Result<Arc<dyn BlockDevice>> {
        match self.spec.part {
            Part::Any => Ok(open_whole(&self.spec, access)?.device),
            _ => open_device(&self.spec, access),
        }
    }

    /// Excludes other users of the image, which is created if it does not exist. Refuses an image with other content.
    /// Nothing is written.
    pub fn claim(&mut self, bytes: u64, guarded: bool) -> Result<()> {
        let claimed = if self.is_file() {
            self.claim_file()?
        } else {
            let device = self.open(&for_writing())?;
            Claimed { device, file: (0, 0) }
        };
        let has = claimed.device.size_bytes();
        if guarded {
            self.refuse_overwriting(&*claimed.device)?;
        }
        if !self.is_file() && has < bytes {
            return Err(Failure::op(format!("{}: it has {has} bytes, not {bytes}; give a smaller size", self.name)));
        }
        self.bytes = has;
        self.claim = Some(claimed);
        Ok(())
    }

    /// Claims a whole file. Another command may claim the name first, or remove it meanwhile.
    fn claim_file(&mut self) -> Result<Claimed> {
        let path = self.spec.path.clone();
        let there = |file: FileId| path.metadata().is_ok_and(|meta| id(&meta) == file);
        for _ in 0..TRIES {
            let _claiming = Claiming::begin();
            // The descriptor is closed again: a second writable descriptor would look like another writer's.
            let made = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => Some(id(&file.metadata().map_err(|e| Failure::io(&path, e))?)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => None,
                Err(e) => return Err(Failure::io(&path, e)),
            };
            if made.is_none() {
                self.refuse_read_only()?;
            }
            let opened = open_whole(&self.spec, &for_writing()).inspect_err(|_| {
                // If the file is locked, it belongs to another command by now.
                let is_ours = made.is_some_and(there) && path.metadata().is_ok_and(|meta| meta.len() == 0);
                if is_ours && !is_locked(&path, 0, None).unwrap_or(false) {
                    let _ = std::fs::remove_file(&path);
                }
            })?;
            // The file's owner may have removed it while the claim waited.
            if there(opened.file) {
                // If it has content, another command claimed it first, and has finished.
                if made == Some(opened.file) && opened.device.size_bytes() == 0 {
                    self.unfinished.made(&path, opened.file);
                }
                return Ok(Claimed { device: opened.device, file: opened.file });
            }
        }
        Err(Failure::op(format!("{}: another program replaces it all the time; name another file", self.name)))
    }

    /// The device, with room for `bytes` zero bytes. From here on, the old content is lost.
    pub fn empty(&mut self, bytes: u64) -> Result<Arc<dyn BlockDevice>> {
        if self.is_file() {
            let file = self.emptied()?;
            // As in mke2fs, a file that is longer than requested keeps its length.
            let bytes = if self.fits { bytes } else { bytes.max(self.bytes) };
            file.set_len(bytes).map_err(|e| {
                let lost = self.unfinished.remove();
                Failure::op(format!("{}: it cannot get {bytes} bytes: {}{lost}", self.name, plain(&e)))
            })?;
            let device = unlocked(&self.spec.path, &self.name)?;
            self.is_claimed(device.host_file()?)?;
            return Ok(Arc::new(device));
        }
        let device = self.claimed()?.device.clone();
        self.unfinished.overwrite(&self.name);
        // Unmapping is immediate, and uses no space on thin storage.
        let how = if self.discards { BioFlags::UNMAP } else { BioFlags::empty() };
        erase::clear(&*device, bytes, how).map_err(|e| self.failed(e))?;
        Ok(device)
    }

    /// The claimed file, emptied: all of it becomes a hole.
    fn emptied(&mut self) -> Result<File> {
        let path = self.spec.path.clone();
        let file = OpenOptions::new().write(true).open(&path).map_err(|e| Failure::io(&path, e))?;
        self.is_claimed(id(&file.metadata().map_err(|e| Failure::io(&path, e))?))?;
        if self.bytes > 0 {
            self.unfinished.overwrite(&self.name);
        }
        file.set_len(0).map_err(|e| Failure::io(&path, e))?;
        Ok(file)
    }

    fn claimed(&self) -> Result<&Claimed> {
        self.claim.as_ref().ok_or_else(|| Failure::op(format!("{}: it is not claimed", self.name)))
    }

    fn is_claimed(&self, file: FileId) -> Result<()> {
        match self.claimed()?.file == file {
            true => Ok(()),
            false => Err(Failure::op(format!("{}: another program has replaced it; try again", self.name))),
        }
    }

    /// A file beside the target for an image that is packed into it.
    pub fn raw(&mut self, bytes: u64) -> Result<Raw> {
        let made = || -> io::Result<Raw> {
            // Follows a symbolic link to the image's own directory.
            let path = std::fs::canonicalize(&self.spec.path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let file = NamedTempFile::with_prefix_in(".extant-", dir)?;
            let mut unfinished = Unfinished::default();
            unfinished.made(file.path(), id(&file.as_file().metadata()?));
            file.as_file().set_len(bytes)?;
            let device = unlocked(file.path(), &self.name).map_err(|e| io::Error::other(e.message))?;
            Ok(Raw { device: Arc::new(device), file, unfinished })
        };
        made().map_err(|e| Failure::write(&self.name, &e))
    }

    /// Writes the sparse form of an image into the target. Its header comes last.
    pub fn pack(&mut self, raw: &mut Raw, block_size: u32) -> Result<()> {
        let mut file = self.emptied()?;
        let packed = sparse::write(raw.file.as_file_mut(), block_size, &mut file, &mut |file| {
            file.sync_all()?;
            self.settle();
            Ok(())
        });
        raw.unfinished.remove();
        packed.and_then(|()| file.sync_all()).map_err(|e| {
            let mut failure = Failure::write(&self.name, &e);
            failure.message.push_str(self.unfinished.remove());
            failure
        })
    }

    /// From here on no signal ends the command: the next writes complete the image.
    pub fn settle(&self) {
        self.unfinished.settle();
    }

    /// Keeps the image, which is complete.
    pub fn keep(&mut self) {
        self.unfinished.keep();
    }

    fn refuse_read_only(&self) -> Result<()> {
        match OpenOptions::new().write(true).open(&self.spec.path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(Failure::op(format!(
                "{}: the file is not writable; change its mode, or name another file",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the target is a whole image file.
    pub fn is_file(&self) -> bool {
        self.spec.part == Part::Any && !self.spec.is_block_device() && !self.remote
    }

    fn refuse_overwriting(&self, device: &dyn BlockDevice) -> Result<()> {
        let is_whole = self.spec.part == Part::Any;
        let what = if device.size_bytes() == 0 {
            return Ok(());
        } else if has_magic(device) {
            "has an ext2/3/4 file system".to_owned()
        } else if is_whole && partition_table(device).is_ok_and(|table| !table.partitions.is_empty()) {
            "has a partition table".to_owned()
        } else if let Some(member) = member(device, 0) {
            format!("is {}", member.name)
        } else if let Some(format) = identify_unpartitioned(device) {
            format!("holds data ({})", format.name())
        } else if probe(device).is_ok() {
            "has a backup of an ext2/3/4 file system".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::op(format!("{}: it {what}; -F overwrites it", self.name)))
    }

    /// Removes an unfinished image.
    pub fn failed(&mut self, e: extant_build::Error) -> Failure {
        let lost = self.unfinished.remove();
        if let extant_build::Error::Device(DeviceError::Io { source, .. }) = &e
            && source.kind() == io::ErrorKind::StorageFull
        {
            let mut failure = Failure::write(&self.name, source);
            failure.message.push_str(lost);
            return failure;
        }
        // The error of a device begins with the device's name.
        let text = plain_text(&e.to_string());
        let text = text.strip_prefix(&format!("{}: ", self.name)).unwrap_or(&text);
        Failure::op(format!("{}: {text}{lost}", self.name))
    }
}

/// The target checks for existing content itself ([`Target::refuse_overwriting`]).
fn for_writing() -> Access {
    Access { write_member: true, ..Access::tool(false) }
}

fn id(meta: &Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// Opens a file that already excludes other users.
fn unlocked(path: &Path, name: &str) -> Result<FileDevice> {
    let options = DeviceOptions {
        io: IoMode::Buffered,
        engine: Engine::Psync,
        lock: Locking::None,
        shown_as: Some(name.to_owned()),
        ..DeviceOptions::default()
    };
    Ok(FileDevice::open(path, options)?)
}
