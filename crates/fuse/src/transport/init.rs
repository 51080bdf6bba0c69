//! INIT: the kernel's offer, the server's wishes, and the result for both.
//!
//! # Locking
//! None.

use zerocopy::FromBytes;

use crate::abi::{InitFlags, InitIn, InitInExt, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, OLDEST_MINOR_VERSION};
use crate::server::{Config, InitOffer};

/// Requested regardless of the server. Never `ASYNC_DIO`: with it, the kernel would keep stale pages that a buffered
/// reader filled during a direct write.
const ALWAYS: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

const PAGE: u32 = 4096;
/// Bounds of `max_write`. The kernel refuses less; more would only enlarge each worker's buffer.
const MAX_WRITE_BOUNDS: (u32, u32) = (PAGE, 4 << 20);

/// The negotiated settings that decoding needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    /// The server's wishes, without those that the kernel does not offer.
    pub config: Config,
    pub flags: InitFlags,
}

/// An INIT request, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InitRequest {
    Offer(InitOffer),
    /// A newer major version: answer with ours and wait for another INIT.
    NewerMajor,
    TooOld {
        major: u32,
        minor: u32,
    },
    Malformed,
}

pub(crate) fn decode(body: &[u8], block_device: bool) -> InitRequest {
    let Ok((init, rest)) = InitIn::read_from_prefix(body) else { return InitRequest::Malformed };
    if init.major > KERNEL_VERSION {
        return InitRequest::NewerMajor;
    }
    if init.major < KERNEL_VERSION || init.minor < OLDEST_MINOR_VERSION {
        return InitRequest::TooOld { major: init.major, minor: init.minor };
    }
    let mut flags = u64::from(init.flags);
    if flags & InitFlags::INIT_EXT.bits() != 0 {
        let Ok((ext, _)) = InitInExt::read_from_prefix(rest) else { return InitRequest::Malformed };
        flags |= u64::from(ext.flags2) << 32;
    }
    InitRequest::Offer(InitOffer {
        minor: init.minor.min(KERNEL_MINOR_VERSION),
        flags: InitFlags::from_bits_retain(flags),
        max_readahead: init.max_readahead,
        block_device,
    })
}

pub(crate) fn newer_major_reply() -> InitOut {
    InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() }
}

/// Negotiates the settings. `rings`: whether rings exist; if io_uring were granted without them, the mount would hang.
pub(crate) fn negotiate(offer: &InitOffer, wish: &Config, rings: bool) -> (InitOut, Negotiated) {
    let mut config = *wish;
    let mut want = ALWAYS;
    let offered = |f: InitFlags| offer.flags.contains(f);
    config.writeback_cache &= offered(InitFlags::WRITEBACK_CACHE);
    config.no_open &= offered(InitFlags::NO_OPEN_SUPPORT);
    config.no_opendir &= offered(InitFlags::NO_OPENDIR_SUPPORT);
    config.readdirplus &= offered(InitFlags::DO_READDIRPLUS);
    config.readdirplus_auto &= config.readdirplus && offered(InitFlags::READDIRPLUS_AUTO);
    config.posix_acl &= offered(InitFlags::POSIX_ACL | InitFlags::DONT_MASK);
    config.export_support &= offered(InitFlags::EXPORT_SUPPORT);
    config.cache_symlinks &= offered(InitFlags::CACHE_SYMLINKS);
    config.handle_killpriv &= offered(InitFlags::HANDLE_KILLPRIV_V2);
    want.set(InitFlags::WRITEBACK_CACHE, config.writeback_cache);
    want.set(InitFlags::NO_OPEN_SUPPORT, config.no_open);
    // Without OPEN, the truncation of O_TRUNC must arrive as a SETATTR. Otherwise the kernel would leave it to an OPEN
    // that it never sends.
    want.set(InitFlags::ATOMIC_O_TRUNC, !config.no_open);
    want.set(InitFlags::NO_OPENDIR_SUPPORT, config.no_opendir);
    want.set(InitFlags::DO_READDIRPLUS, config.readdirplus);
    want.set(InitFlags::READDIRPLUS_AUTO, config.readdirplus_auto);
    want.set(InitFlags::POSIX_ACL | InitFlags::DONT_MASK, config.posix_acl);
    want.set(InitFlags::EXPORT_SUPPORT, config.export_support);
    want.set(InitFlags::CACHE_SYMLINKS, config.cache_symlinks);
    want.set(InitFlags::HANDLE_KILLPRIV_V2, config.handle_killpriv);
    want.set(InitFlags::OVER_IO_URING, rings);
    let flags = want & offer.flags;

    config.max_write = config.max_write.clamp(MAX_WRITE_BOUNDS.0, MAX_WRITE_BOUNDS.1) / PAGE * PAGE;
    config.max_readahead = config.max_readahead.min(offer.max_readahead);
    config.max_background = config.max_background.max(1);
    config.congestion_threshold = config.congestion_threshold.clamp(1, config.max_background);
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: offer.minor,
        max_readahead: config.max_readahead,
        flags: flags.bits() as u32,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        max_write: config.max_write,
        time_gran: config.time_gran,
        max_pages: (config.max_write / PAGE) as u16,
        flags2: (flags.bits() >> 32) as u32,
        ..InitOut::default()
    };
    (out, Negotiated { config, flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn offer(flags: InitFlags) -> InitOffer {
        InitOffer { minor: 45, flags, max_readahead: 131_072, block_device: false }
    }

    #[test]
    fn no_open_disables_atomic_truncation() {
        let wish = Config { no_open: true, ..Config::default() };
        let (out, n) = negotiate(&offer(InitFlags::all()), &wish, false);
        assert!(n.config.no_open);
        assert!(!n.flags.contains(InitFlags::ATOMIC_O_TRUNC));
        assert!(!n.flags.contains(InitFlags::OVER_IO_URING));
        assert!(negotiate(&offer(InitFlags::all()), &wish, true).1.flags.contains(InitFlags::OVER_IO_URING));
        assert_eq!(out.max_pages, 256);
        assert_eq!(out.max_readahead, 131_072);
        let (_, n) = negotiate(&offer(InitFlags::all() - InitFlags::NO_OPEN_SUPPORT), &wish, false);
        assert!(!n.config.no_open && n.flags.contains(InitFlags::ATOMIC_O_TRUNC));
    }

    #[test]
    fn only_offered_flags_are_granted() {
        let wish = Config { writeback_cache: true, posix_acl: true, ..Config::default() };
        let (out, n) = negotiate(&offer(InitFlags::ASYNC_READ), &wish, true);
        assert_eq!((out.flags, out.flags2), (InitFlags::ASYNC_READ.bits() as u32, 0));
        assert!(!n.config.writeback_cache && !n.config.posix_acl && !n.config.readdirplus);
    }

    #[test]
    fn old_and_newer_versions_are_recognized() {
        let init = |major, minor| InitIn { major, minor, max_readahead: 0, flags: 0 };
        assert!(matches!(decode(init(8, 0).as_bytes(), false), InitRequest::NewerMajor));
        assert!(matches!(decode(init(7, 27).as_bytes(), false), InitRequest::TooOld { minor: 27, .. }));
        let newer = decode(init(7, 99).as_bytes(), false);
        assert!(matches!(newer, InitRequest::Offer(InitOffer { minor: KERNEL_MINOR_VERSION, .. })));
        assert!(matches!(decode(&[0; 12], false), InitRequest::Malformed));
    }
}
