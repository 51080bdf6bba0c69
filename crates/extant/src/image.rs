//! Which image, which part of it, and how it is used.
//!
//! Main type: [`Image`].
//!
//! # Locking
//! None.

use std::path::Path;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::task;
use extant_block::device::OffsetDevice;
#[cfg(target_os = "linux")]
use extant_block::device::{FileDevice, IoMode, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
#[cfg(target_os = "linux")]
use extant_build::content::{ContentPlan, add_lost_found, digest};
use extant_build::erase;
use extant_build::options::{Fact, Request, SizeAsked, UuidAsked};
use extant_build::skeleton::Empty;
#[cfg(target_os = "linux")]
use extant_build::source::{self, Source, Word};
use extant_build::write::write_with_progress;
use extant_check::Report;
use extant_fs::{Cred, Filesystem, JournalDevice, KeyRing, Messages, MountOptions};
use extant_image::{Access, ImageSpec, Part};
#[cfg(target_os = "linux")]
use extant_ondisk::time::Timestamp;

use crate::error::{Error, Result, number};
use crate::fs::Fs;
use crate::shared::Shared;

/// Writes of at least this many bytes go straight to an image file: the host caches them.
const WRITE_THROUGH_BYTES: u64 = 65536;

/// An image and how it is to be used. Nothing is opened before [`Image::mount`] or another call that uses it.
///
/// ```no_run
/// let fs = extant::Image::open("disk.img").partition(2).read_only().mount()?;
/// print!("{}", fs.read_to_string("/etc/os-release")?);
/// # Ok::<(), extant::Error>(())
/// ```
#[derive(Clone)]
pub struct Image {
    place: Place,
    read_only: bool,
    rescue: bool,
    keys: KeyRing,
    cred: Cred,
    cache_bytes: Option<u64>,
    messages: Option<Messages>,
    /// The journal, if it is not in the image.
    journal: Option<Place>,
}

#[derive(Clone)]
enum Place {
    Named(ImageSpec),
    Device(Arc<dyn BlockDevice>, Part),
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("name", &self.name()).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

impl Image {
    fn new(place: Place) -> Image {
        let cred = Cred::default();
        let keys = KeyRing::default();
        Image { place, read_only: false, rescue: false, cred, keys, cache_bytes: None, messages: None, journal: None }
    }

    /// The image file or block device at `path`. The words of the command line work, too: `disk.img@2` is a partition,
    /// `disk.img?offset=1M` a place.
    ///
    /// ```
    /// let error = extant::Image::open("no/such.img").mount().unwrap_err();
    /// assert_eq!(error.raw_os_error(), 2); // ENOENT
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Image {
        Image::new(Place::Named(ImageSpec::parse(path.as_ref().as_os_str())))
    }

    /// A device of the caller; see [`crate::device`].
    pub fn device(device: Arc<dyn BlockDevice>) -> Image {
        Image::new(Place::Device(device, Part::Any))
    }

    /// Memory of `size` bytes, all zeroes. [`Image::format`] makes a file system in it.
    pub fn memory(size: u64) -> Image {
        Image::device(crate::device::memory(size))
    }

    fn part(mut self, part: Part) -> Image {
        match &mut self.place {
            Place::Named(spec) => spec.part = part,
            Place::Device(_, of) => *of = part,
        }
        self
    }

    /// The partition of this number. Without it, a disk's only partition with ext2, ext3 or ext4 is used.
    #[must_use]
    pub fn partition(self, number: u32) -> Image {
        self.part(Part::Partition(number))
    }

    /// The file system begins at this byte, a multiple of 512.
    #[must_use]
    pub fn offset(self, byte: u64) -> Image {
        self.part(Part::Offset(byte))
    }

    /// Nothing is written to the image. A journal is replayed in memory.
    ///
    /// ```
    /// let disk = extant::device::memory(16 << 20);
    /// let image = extant::Image::device(disk).format()?.read_only();
    /// let error = image.mount()?.write("/a", "").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    /// # Ok::<(), extant::Error>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self) -> Image {
        self.read_only = true;
        self
    }

    /// The keys of encrypted files (fscrypt). Without its key, such a file has a name in other letters, and reading it
    /// is ENOKEY.
    ///
    /// ```
    /// let mut keys = extant::KeyRing::default();
    /// let key = extant::Secret::new(&[7; 64]).expect("short enough");
    /// keys.add(key, None).expect("16 to 64 bytes");
    /// let image = extant::Image::memory(16 << 20).format()?.keys(keys);
    /// # Ok::<(), extant::Error>(())
    /// ```
    #[must_use]
    pub fn keys(mut self, keys: KeyRing) -> Image {
        self.keys = keys;
        self
    }

    /// Reads what can be read of a damaged image; implies [`Image::read_only`]. Parts that are lost fail when they are
    /// used. Files without a name are in `lost+found`.
    #[must_use]
    pub fn rescue(mut self) -> Image {
        self.rescue = true;
        self
    }

    /// The owner and the group of files that are created; root if not given.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Image {
        self.cred = Cred { uid, gid, ..self.cred };
        self
    }

    /// The memory for the mount's caches, 256 MiB if not given.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Image {
        self.cache_bytes = Some(bytes);
        self
    }

    /// The device or file of the file system's journal, for one that has it elsewhere (`mkfs -J device=`). An image
    /// that is only read needs it if it was not unmounted. No other process may use it.
    #[must_use]
    pub fn journal(mut self, path: impl AsRef<Path>) -> Image {
        self.journal = Some(Place::Named(ImageSpec::parse(path.as_ref().as_os_str())));
        self
    }

    /// As [`Image::journal`], a device of the caller.
    #[must_use]
    pub fn journal_device(mut self, device: Arc<dyn BlockDevice>) -> Image {
        self.journal = Some(Place::Device(device, Part::Any));
        self
    }

    /// A function that gets the mount's messages: damage that was met, writes that were lost. They are for people.
    #[must_use]
    pub fn messages(mut self, say: impl Fn(&str) + Send + Sync + 'static) -> Image {
        self.messages = Some(Messages::new(say));
        self
    }

    /// The image's name for messages.
    pub fn name(&self) -> String {
        match &self.place {
            Place::Named(spec) => spec.shown(),
            Place::Device(device, _) => device.name().to_owned(),
        }
    }

    /// The device of the file system itself.
    fn opened(&self, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        let failed = |e| Error::image_error(self.name(), e);
        match &self.place {
            Place::Named(spec) => Ok(extant_image::open(spec, &Access::tool(read_only)).map_err(failed)?.device),
            Place::Device(device, part) => extant_image::part_of(device, *part).map_err(failed),
        }
    }

    fn opened_journal(&self, read_only: bool) -> Result<Option<Arc<dyn BlockDevice>>> {
        match &self.journal {
            None => Ok(None),
            Some(Place::Device(device, _)) => Ok(Some(device.clone())),
            Some(Place::Named(spec)) => {
                // A journal has no file system to look for.
                let access = Access { by_superblock: true, ..Access::tool(read_only) };
                let opened = extant_image::open(spec, &access).map_err(|e| Error::image_error(spec.shown(), e))?;
                Ok(Some(opened.device))
            }
        }
    }

    /// Mounts the file system. A journal that needs it is replayed first.
    ///
    /// # Errors
    /// ENOENT and the like if the file cannot be opened; EINVAL if it has no ext2, ext3 or ext4; EBUSY if another
    /// process, or another mount of this one, uses it; EROFS if it may only be read; EOPNOTSUPP for a feature that is
    /// unknown; EUCLEAN if it is damaged.
    pub fn mount(&self) -> Result<Fs> {
        let read_only = self.read_only || self.rescue;
        let device = self.opened(read_only)?;
        let image = device.name().to_owned();
        let defaults = MountOptions::default();
        let options = MountOptions {
            read_only,
            rescue: self.rescue,
            keys: self.keys.clone(),
            counted: false,
            write_through_bytes: matches!(self.place, Place::Named(_)).then_some(WRITE_THROUGH_BYTES),
            cache_bytes: self.cache_bytes.unwrap_or(defaults.cache_bytes),
            messages: self.messages.clone().unwrap_or_default(),
            journal_device: self.opened_journal(read_only)?.map(JournalDevice),
            ..defaults
        };
        let looked_at = device.clone();
        let mounted = Filesystem::mount(device, options).map_err(|e| {
            let error = Error::fs(&image, None, e);
            // As mount(2) answers, if there is nothing that could be damaged.
            let is_other = error.is_damage() && !extant_image::has_magic(&*looked_at);
            if is_other { error.with_number(number::EINVAL) } else { error }
        })?;
        Ok(Fs::new(Shared::new(mounted, self.cred)))
    }

    /// Checks the file system, and changes nothing.
    ///
    /// ```
    /// let report = extant::Image::memory(16 << 20).format()?.check()?;
    /// assert!(report.complete && !report.is_damaged());
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Image::mount`], except that damage is in the report.
    pub fn check(&self) -> Result<Report> {
        let device = self.opened(true)?;
        let now = Clock::real().wall().sec;
        let journal = self.opened_journal(true)?.map(extant_check::JournalDevice);
        let options =
            extant_check::Options { threads: task::processors(), now, journal, ..extant_check::Options::default() };
        extant_check::check(&device, &options).map_err(|e| Error::check(self.name(), e))
    }

    /// Makes an empty ext4 file system, with `mke2fs`'s defaults, over whatever is there. An image file must exist and
    /// have its size.
    ///
    /// # Errors
    /// EINVAL if it is too small; EBUSY if it is in use; otherwise the error of the write.
    pub fn format(self) -> Result<Image> {
        let device = self.opened_to_write()?;
        let failed = |e| Error::build(self.name(), e);
        let request = request(SizeAsked::Device);
        let options = request.resolve(&fact(device.size_bytes(), None)?).map_err(failed)?;
        let plan = Empty::plan(&options).map_err(failed)?;
        let bytes = options.wanted.blocks_count * u64::from(options.wanted.block_size);
        erase::clear(&*device, bytes, BioFlags::UNMAP).map_err(failed)?;
        write_with_progress(&*device, &plan, task::processors(), &|_| ()).map_err(failed)?;
        drop(device);
        Ok(self)
    }

    /// The device to make a file system on: its content does not matter.
    fn opened_to_write(&self) -> Result<Arc<dyn BlockDevice>> {
        let failed = |e| Error::image_error(self.name(), e);
        match &self.place {
            Place::Named(spec) => {
                let (start, len) = extant_image::place(spec).map_err(failed)?;
                let whole = extant_image::open_whole(spec, &Access::tool(false)).map_err(failed)?.device;
                if spec.part == Part::Any {
                    return Ok(whole);
                }
                let len = len.unwrap_or(whole.size_bytes().saturating_sub(start));
                let window = OffsetDevice::new(whole, start, len).map_err(|e| failed(e.into()))?;
                Ok(Arc::new(window))
            }
            Place::Device(device, part) => extant_image::part_of_any(device, *part).map_err(failed),
        }
    }

    /// Makes an image file of `size` bytes with the files of `tree`: a directory, a tar archive (compressed or not), or
    /// an OCI image, as `extant mkfs --from TREE IMAGE SIZE` does. `image` must not exist. UUID and hash seed come from
    /// the content, and `time` (seconds since 1970) is that of the file system's own structures: the same tree gives
    /// the same bytes.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// std::fs::create_dir(dir.path().join("tree"))?;
    /// std::fs::write(dir.path().join("tree/file"), "text")?;
    /// let image = dir.path().join("disk.img");
    /// let fs = extant::Image::build(dir.path().join("tree"), &image, 16 << 20, 1_700_000_000)?.mount()?;
    /// assert_eq!(fs.read("/file")?, b"text");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// EEXIST; ENOSPC or EINVAL if the tree does not fit; an error that names the entry that cannot be stored.
    #[cfg(target_os = "linux")]
    pub fn build(tree: impl AsRef<Path>, image: impl AsRef<Path>, size: u64, time: i64) -> Result<Image> {
        let made = Image::open(image.as_ref());
        let failed = |e| Error::build(made.name(), e);
        let word = Word::parse(tree.as_ref().as_os_str()).map_err(failed)?;
        let now = Timestamp::from_seconds(time);
        let tree = extant_build::tree::Options {
            default_time: now,
            clamp: Some(now),
            ..extant_build::tree::Options::default()
        };
        let mut source = Source::open(&word, source::Options { tree, ..source::Options::default() }).map_err(failed)?;
        add_lost_found(&mut source.tree).map_err(failed)?;
        let mut fact = fact(size, Some(time))?;
        fact.random = digest(&source.tree, Some(&*source.content)).map_err(failed)?;
        let options = request(SizeAsked::Bytes(size)).resolve(&fact).map_err(failed)?;
        let plan = ContentPlan::new(&options, &source.tree, &*source.content).map_err(failed)?;
        // Nothing that exists is overwritten.
        let new = std::fs::File::options().write(true).create_new(true).open(image.as_ref());
        new.map_err(|e| {
            let (path, source) = (image.as_ref().to_path_buf(), Arc::new(e));
            Error::image_error(made.name(), extant_image::Error::Host { path, source })
        })?;
        let to = OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() };
        let bytes = options.wanted.blocks_count * u64::from(options.wanted.block_size);
        let written = FileDevice::create(image.as_ref(), bytes, to)
            .map_err(extant_build::Error::from)
            .and_then(|device| write_with_progress(&device, &plan, task::processors(), &|_| ()));
        if let Err(e) = written {
            // Half an image is none.
            let _ = std::fs::remove_file(image.as_ref());
            return Err(failed(e));
        }
        Ok(made)
    }
}

fn request(size: SizeAsked) -> Request {
    Request { fs_type: Some("ext4".to_owned()), uuid: UuidAsked::default(), size, ..Request::default() }
}

/// `time`: reproducible, so root owns the tree. Otherwise the facts of this moment.
fn fact(bytes: u64, time: Option<i64>) -> Result<Fact> {
    let mut random = [0; 32];
    if time.is_none() {
        fill_random(&mut random)?;
    }
    let now = time.unwrap_or_else(|| Clock::real().wall().sec);
    Ok(Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now, random, user: (0, 0) })
}

/// Random numbers for a UUID and a hash seed.
#[cfg(target_os = "linux")]
fn fill_random(to: &mut [u8; 32]) -> Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let failed = |_| Error::wrong_use("mkfs", None, number::EIO, "no random numbers");
    getrandom(to, GetRandomFlags::empty()).map(drop).map_err(failed)
}

/// Random numbers for a UUID and a hash seed: from the keys of `std`'s hash tables, which the system has chosen.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
fn fill_random(to: &mut [u8; 32]) -> Result<()> {
    use std::hash::{BuildHasher, RandomState};
    for (i, part) in to.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&RandomState::new().hash_one(i).to_le_bytes());
    }
    Ok(())
}
