//! `extant mknod`: makes devices, fifos and sockets.
//!
//! # Locking
//! None.

use extant_fs::{NewNode, SetAttr};
use extant_ondisk::inode::{DeviceNr, FileType};

use super::verb::Images;
use crate::args::{MknodArgs, NodeKind};
use crate::failure::{Failure, Result};
use crate::mode;
use crate::owner::umask;

pub fn run(args: &MknodArgs, images: &mut Images) -> Result<()> {
    let (kind, device) = match (args.kind, args.major, args.minor) {
        (NodeKind::Block, Some(major), Some(minor)) => (FileType::BlockDevice, Some(DeviceNr { major, minor })),
        (NodeKind::Char, Some(major), Some(minor)) => (FileType::CharDevice, Some(DeviceNr { major, minor })),
        (NodeKind::Fifo, None, None) => (FileType::Fifo, None),
        (NodeKind::Socket, None, None) => (FileType::Socket, None),
        (NodeKind::Block | NodeKind::Char, ..) => return Err(Failure::usage("a device takes MAJOR and MINOR")),
        _ => return Err(Failure::usage("only devices have MAJOR and MINOR")),
    };
    // An invalid mode fails before anything has changed.
    let mode = args.mode.as_deref().map(|mode| mode::apply(mode, kind.mode_bits() | 0o666, 0)).transpose()?;
    let file = images.file(&args.path)?;
    let (dir, name) = file.parent_of_file()?;
    let node = NewNode { mode: kind.mode_bits() | 0o666, rdev: device, target: None };
    let inode = images.owner(&args.owner).create(&file.fs, &dir, name, node, umask()).map_err(|e| file.failed(e))?;
    if mode.is_some() {
        let set = SetAttr { mode, ..SetAttr::default() };
        file.fs.setattr(&inode, &set).map_err(|e| file.failed(e))?;
    }
    Ok(())
}
