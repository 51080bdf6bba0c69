//! Images and mounts: the first part of `extant.h`.
//!
//! # Locking
//! None.

use std::ffi::{CString, c_int, c_void};

use extant::{Image, Severity};

use crate::border::{Out, SizedInput, Text, User};
use crate::device::Callbacks;
use crate::fault::{EINVAL, Fault, Result};
use crate::handles::{Handle, Object};
use crate::types::{
    EXTANT_READ_ONLY, EXTANT_RESCUE, extant_device, extant_fs, extant_image, extant_options, extant_problem_fn,
    extant_space,
};

/// The image as the options want it.
fn configured(image: Image, options: SizedInput<extant_options>) -> Result<Image> {
    let Some(options) = options.get()? else { return Ok(image) };
    if options.flags & !(EXTANT_READ_ONLY | EXTANT_RESCUE) != 0 {
        return Err(Fault::new(EINVAL, format!("unknown flags {:#x}", options.flags)));
    }
    if options.partition != 0 && options.offset != 0 {
        return Err(Fault::new(EINVAL, "both a partition and an offset: choose one"));
    }
    let mut image = image.owner(options.uid, options.gid);
    if options.partition != 0 {
        image = image.partition(options.partition);
    }
    if options.offset != 0 {
        image = image.offset(options.offset);
    }
    if options.cache_bytes != 0 {
        image = image.cache_bytes(options.cache_bytes);
    }
    if options.flags & EXTANT_READ_ONLY != 0 {
        image = image.read_only();
    }
    if options.flags & EXTANT_RESCUE != 0 {
        image = image.rescue();
    }
    if let Some(message) = options.message {
        let user = User::new(options.message_user);
        image = image.messages(move |text| message(user.get(), c_text(text).as_ptr()));
    }
    Ok(image)
}

/// A text for C, which ends at the first zero byte.
fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

export! {
    /// The image file or block device at path. The words of the command line work, too: "disk.img@2" is a partition.
    /// The file is opened when the image is mounted, formatted or checked. Release the image with extant_image_free.
    fn extant_image_open(path: Text, options: SizedInput<extant_options>, image: Out<Handle<extant_image>>) -> c_int {
        image.check()?;
        let path = path.path()?;
        if path.as_os_str().is_empty() {
            return Err(Fault::new(crate::fault::ENOENT, "an empty path"));
        }
        image.put(Handle::new(Object::Image(configured(Image::open(path), options)?)))?;
        Ok(0)
    }

    /// A device whose functions are the caller's. They are called until release is, which may be at the end of a mount.
    /// If this function fails, release is not called.
    fn extant_image_device(
        device: SizedInput<extant_device>, options: SizedInput<extant_options>, image: Out<Handle<extant_image>>
    ) -> c_int {
        image.check()?;
        let device = device.get()?.ok_or_else(|| Fault::new(crate::fault::EFAULT, "the device is NULL"))?;
        let callbacks = Callbacks::new(&device)?;
        let can_write = callbacks.can_write();
        // Before the device exists, so that a failure releases nothing.
        let options = match configured(Image::memory(0), options) {
            Ok(_) => options,
            Err(e) => {
                std::mem::forget(callbacks);
                return Err(e);
            }
        };
        let device = extant::device::from_io_with_sync("device", callbacks, Callbacks::sync)?;
        let mut made = configured(Image::device(device), options)?;
        if !can_write {
            made = made.read_only();
        }
        image.put(Handle::new(Object::Image(made)))?;
        Ok(0)
    }

    /// Memory of so many bytes, all zeroes; extant_image_format makes a file system in it.
    fn extant_image_memory(bytes: u64, options: SizedInput<extant_options>, image: Out<Handle<extant_image>>) -> c_int {
        image.check()?;
        image.put(Handle::new(Object::Image(configured(Image::memory(bytes), options)?)))?;
        Ok(0)
    }

    /// Makes an image file of so many bytes with the files of tree: a directory, a tar archive or an OCI image. The
    /// path must not exist. time, in seconds since 1970, is that of the file system's own structures: the same tree
    /// gives the same bytes.
    fn extant_image_build(tree: Text, path: Text, bytes: u64, time: i64) -> c_int {
        Image::build(tree.path()?, path.path()?, bytes, time)?;
        Ok(0)
    }

    /// Makes an empty ext4 file system with the defaults of mke2fs, over whatever is there.
    fn extant_image_format(image: Handle<extant_image>) -> c_int {
        image.get()?.format()?;
        Ok(0)
    }

    /// Checks the file system and changes nothing. Returns how many problems it has, and calls each, unless that is
    /// NULL, with user and each problem; of problems without number, only with the first ones of each kind.
    fn extant_image_check(image: Handle<extant_image>, each: extant_problem_fn, user: *mut c_void) -> i64 {
        let report = image.get()?.check()?;
        for finding in &report.findings {
            if let Some(each) = each {
                let damage = finding.problem.severity() >= Severity::Damage;
                each(user, c_int::from(damage), c_text(&finding.to_string()).as_ptr());
            }
        }
        Ok(i64::try_from(report.counts.values().sum::<u64>()).unwrap_or(i64::MAX))
    }

    /// Ends the use of an image. Its mounts stay.
    fn extant_image_free(image: Handle<extant_image>) -> c_int {
        image.take()?;
        Ok(0)
    }

    /// Mounts the file system of an image. A journal that needs it is replayed first. End it with extant_unmount: a
    /// program that exits without it leaves what a crash leaves.
    fn extant_mount(image: Handle<extant_image>, fs: Out<Handle<extant_fs>>) -> c_int {
        fs.check()?;
        fs.put(Handle::new(Object::Fs(image.get()?.mount()?)))?;
        Ok(0)
    }

    /// Makes everything durable, marks the image clean and ends the mount, also if it returns an error: -EIO or -ENOSPC
    /// with the first thing that could not be made durable. Open files and directories fail with -EBADF from then on,
    /// and keep the image locked until they are closed.
    fn extant_unmount(fs: Handle<extant_fs>) -> c_int {
        fs.take()?.unmount()?;
        Ok(0)
    }

    /// Makes durable everything that was written so far.
    fn extant_sync(fs: Handle<extant_fs>) -> c_int {
        fs.get()?.sync()?;
        Ok(0)
    }

    /// The space of the file system.
    fn extant_statfs(fs: Handle<extant_fs>, space: Out<extant_space>) -> c_int {
        let extant::Space { total, free, available, files, files_free } = fs.get()?.space()?;
        space.put(extant_space { total, free, available, files, files_free })?;
        Ok(0)
    }

    /// 1 if nothing can be changed, by request or after an error; otherwise 0.
    fn extant_is_read_only(fs: Handle<extant_fs>) -> c_int {
        Ok(c_int::from(fs.get()?.is_read_only()))
    }
}
