//! The options of the server.

use std::time::Duration;

use super::direct::DirectIo;
use crate::types::FOREVER;

/// How the kernel sees a file system. The default is the fastest configuration that loses no data silently. It requires
/// that nothing else changes the device.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The kernel collects writes and sends them later. Without it every write(2) is a request, and write(2) itself
    /// reports a full disk. With it, close(2) or fsync(2) reports that, and programs often ignore errors of these
    /// calls.
    pub writeback_cache: bool,
    /// Opening and closing a file sends no request: a creation is one request (MKNOD) instead of two.
    pub no_open: bool,
    /// Which files bypass the kernel's page cache. [`DirectIo::From`] needs `no_open` to be off. None does with the
    /// writeback cache, or before Linux 6.9.
    pub direct_io: DirectIo,
    /// As `no_open`, for directories; the kernel then caches their entries.
    pub no_opendir: bool,
    pub readdirplus: bool,
    /// Extended attributes, including ACLs. Without them, the kernel does not request `security.capability` before the
    /// first write to each file: one request less for each new file.
    pub xattrs: bool,
    /// ACLs are enforced (by the kernel, from the image) and inherited.
    pub posix_acl: bool,
    /// Inodes can be named by number and generation (NFS handles, open_by_handle_at).
    pub export_support: bool,
    /// The kernel may learn where files are on its device (FIBMAP, swap files). Requires that the image is the
    /// device, from its first byte.
    pub bmap: bool,
    /// The directory that is shown as the root, as a path in the image; symbolic links are followed. `None`: the root
    /// of the image.
    pub root: Option<Vec<u8>>,
    /// The owner and group that every inode shows. The image keeps its own: a new file gets the owner (group) that the
    /// directory has in the image. Changing the owner to the one shown has no effect; any other change is refused.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// A write, or a change of attributes, is durable before its reply.
    pub sync: bool,
    /// A change of names is durable before its reply.
    pub dirsync: bool,
    /// How long the kernel may believe names, attributes (of a directory: for a second at most), and that there is no
    /// such name. Where directories may ignore case, it asks for names of files, and for missing ones, each time.
    pub entry_timeout: Duration,
    pub attr_timeout: Duration,
    pub negative_timeout: Duration,
    /// Largest WRITE, in bytes.
    pub max_write: u32,
    /// Requests in the background (readahead, writeback) at once.
    pub max_background: u16,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            writeback_cache: false,
            no_open: true,
            direct_io: DirectIo::Never,
            no_opendir: true,
            readdirplus: true,
            xattrs: true,
            posix_acl: true,
            export_support: true,
            bmap: false,
            root: None,
            uid: None,
            gid: None,
            sync: false,
            dirsync: false,
            entry_timeout: FOREVER,
            attr_timeout: FOREVER,
            negative_timeout: FOREVER,
            max_write: 1 << 20,
            max_background: 64,
        }
    }
}

impl ServerOptions {
    /// For a mount without privilege: the mounting user owns everything.
    pub fn owned_by(uid: u32, gid: u32) -> ServerOptions {
        ServerOptions { uid: Some(uid), gid: Some(gid), ..ServerOptions::default() }
    }
}
