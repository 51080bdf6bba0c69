//! The files of an ext2, ext3 or ext4 image as the source of a new one: another size, type, block size or features.
//!
//! Main function: [`read`], which gives the tree and reads the files' bytes from the image when they are written.
//!
//! The new image has the names, content, holes, owners, modes, modification times, attributes, flags and hard links of
//! the old one. Inode numbers, generations, and times of access and creation are new, as after an export.
//!
//! What it does not do: it copies no encrypted files and no damaged image. Both fail before anything is written, or
//! before the new image is finished.
//!
//! # Locking
//! None of its own: threads that write the image read files concurrently.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use extant_build::source::{Options, Source};
use extant_build::tree::{Attributes, Builder, Content, ReadAt};
use extant_build::{Error as BuildError, Result as BuildResult};
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Damage, Error, Filesystem, InodeRef, Mounted, Unsupported};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_transfer::content;

use crate::args::ImageArgs;
use crate::failure::{Failure, Result};
use crate::image::{self, ImageSpec, open_image};
use crate::rescued;
use crate::text::shown;

/// The flags of an inode that describe how its image stores it.
const LAYOUT: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA).union(InodeFlags::INDEX);

/// The image that the word of a source names, if the word begins with `image:`.
pub fn named(word: &OsStr) -> Option<ImageSpec> {
    word.as_bytes().strip_prefix(b"image:").map(|rest| ImageSpec::parse(OsStr::from_bytes(rest)))
}

/// The tree of an image, which stays open as long as the source.
pub fn read(spec: &ImageSpec, options: Options) -> Result<Source> {
    let fs = open_image(spec, &ImageArgs::default(), true)?;
    let mut copy = Copy { fs: &fs, builder: Builder::new(options.tree), links: HashMap::new() };
    copy.tree()?;
    image::refuse_damage([&*fs])?;
    let tree = copy.builder.finish().map_err(|e| Failure::op(e.to_string()))?;
    Ok(Source { tree, content: Box::new(Files { fs }), warnings: Vec::new() })
}

struct Copy<'a> {
    fs: &'a Filesystem,
    builder: Builder,
    /// The first name of each file that has several.
    links: HashMap<InodeNr, Vec<u8>>,
}

impl Copy<'_> {
    fn tree(&mut self) -> Result<()> {
        let fs = self.fs;
        let failed = |path: &[u8], e| image::at(fs, path, e);
        let root = fs.root().map_err(|e| failed(b"/", e))?;
        self.entry(b"/", &root)?;
        let mut walk = Walk::new(fs, b"/", root);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => self.entry(walk.path(), &inode)?,
                Ok(Visit::Left(dir)) => {
                    if let Some(e) = rescued::doubt(fs, &dir) {
                        return Err(failed(walk.path(), e.clone()));
                    }
                }
                Err(e) => return Err(failed(walk.path(), e)),
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], inode: &InodeRef) -> Result<()> {
        let (fs, attr) = (self.fs, self.fs.getattr(inode));
        let failed = |e| image::at(fs, path, e);
        let refused = |e: BuildError| Failure::op(format!("{}: {e}", fs.image()));
        let Some(kind) = inode.file_type() else {
            return Err(failed(Error::corrupt(Damage::Inode, format!("mode {:#o}", attr.mode)).of(attr.ino)));
        };
        let flags = InodeFlags::from_bits_retain(attr.flags);
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(failed(Error::Unsupported(Unsupported::Content { ino: attr.ino })));
        }
        let has_names = attr.nlink > 1 && kind != FileType::Directory;
        if has_names && let Some(first) = self.links.get(&attr.ino) {
            return self.builder.hard_link(path, first).map_err(refused);
        }
        let (xattrs, missed) = image::xattrs(fs, inode);
        if let Some(e) = missed {
            return Err(failed(e));
        }
        let attributes = Attributes {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime,
            flags: flags - LAYOUT,
            xattrs: xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        };
        let device = attr.rdev.map_or((0, 0), |device| (device.major, device.minor));
        let added = match kind {
            FileType::Directory => self.builder.directory(path, attributes),
            FileType::Symlink => {
                let target = fs.read_link(inode).map_err(failed)?;
                self.builder.symlink(path, attributes, &target)
            }
            FileType::CharDevice | FileType::BlockDevice => self.builder.device(path, attributes, device.0, device.1),
            FileType::Fifo | FileType::Socket => self.builder.special(path, attributes),
            FileType::Regular => {
                let data = holes(fs, inode, &attr).map_err(failed)?;
                self.builder.file(path, attributes, attr.size, data, u64::from(attr.ino.0))
            }
        };
        added.map_err(refused)?;
        if has_names {
            self.links.insert(attr.ino, path.to_vec());
        }
        rescued::doubt(fs, inode).cloned().map_or(Ok(()), |e| Err(failed(e)))
    }
}

/// The ranges of a file that contain data; `None` if all of it does.
fn holes(
    fs: &Filesystem,
    inode: &InodeRef,
    attr: &Attr,
) -> std::result::Result<Option<Vec<std::ops::Range<u64>>>, Error> {
    let data = content::data(fs, inode, attr.size)?;
    let is_whole = data.first() == Some(&(0..attr.size));
    Ok((!is_whole).then_some(data))
}

/// The bytes of files by their inodes' numbers.
struct Files {
    fs: Mounted,
}

impl Content for Files {
    fn open(&self, content: u64) -> BuildResult<Box<dyn ReadAt + '_>> {
        let number = InodeNr(content as u32);
        let inode = self.fs.iget_by_number(number).map_err(|e| failed(&self.fs, number, &e))?;
        Ok(Box::new(File { fs: &self.fs, inode }))
    }
}

struct File<'a> {
    fs: &'a Filesystem,
    inode: InodeRef,
}

fn failed(fs: &Filesystem, number: InodeNr, e: &Error) -> BuildError {
    BuildError::Entry {
        entry: format!("{}: <{}>", shown(fs.image().to_string().as_bytes()), number.0),
        why: e.to_string(),
    }
}

impl ReadAt for File<'_> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> BuildResult<()> {
        let mut done = 0;
        while done < buf.len() {
            let read = self.fs.read(&self.inode, offset + done as u64, &mut buf[done..]);
            match read.map_err(|e| failed(self.fs, self.inode.ino, &e))? {
                // The writer requests whole blocks; behind the end there are zeros.
                0 => {
                    buf[done..].fill(0);
                    break;
                }
                n => done += n,
            }
        }
        Ok(())
    }

    fn finish(&self) -> BuildResult<()> {
        Ok(())
    }
}
