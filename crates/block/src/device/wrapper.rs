//! [`Wrapper`]: a device in front of another one, which implements only the calls that it changes.
//!
//! What it does not do: forward a call that could bypass a change of the wrapper. The defaults carry out bios through
//! the wrapper's own waiting calls, and zeroing through its own writes. Flushed state, holes and late completion are
//! those of an unknown device, unless the wrapper forwards them.
//!
//! # Locking
//! None.

use super::{BlockDevice, IoStats, Limits, check_fixed, check_range, submit_inline, zero_in_steps};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::error::Result;

/// A device in front of [`Wrapper::inner`]. The methods are those of [`BlockDevice`], which every wrapper implements.
#[allow(clippy::missing_errors_doc, reason = "the errors are those of the methods of BlockDevice")]
pub trait Wrapper: Send + Sync {
    /// The wrapped device.
    fn inner(&self) -> &dyn BlockDevice;

    /// The name of the inner device.
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// The size of the inner device.
    fn size_bytes(&self) -> u64 {
        self.inner().size_bytes()
    }

    /// By default the size does not change. A wrapper that can follow a longer inner device forwards this and
    /// [`Wrapper::grow`].
    fn measure(&self) -> Result<u64> {
        Ok(self.size_bytes())
    }

    /// Rejected by default.
    fn grow(&self, bytes: u64) -> Result<()> {
        check_fixed(self, bytes)
    }

    /// The limits of the inner device.
    fn limits(&self) -> &Limits {
        self.inner().limits()
    }

    /// Whether the inner device is read-only.
    fn read_only(&self) -> bool {
        self.inner().read_only()
    }

    /// False by default.
    fn completes_later(&self) -> bool {
        false
    }

    /// False by default.
    fn is_flushed(&self) -> bool {
        false
    }

    /// Carries out the bio through the waiting calls of this wrapper.
    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    /// Submits each bio to this wrapper.
    fn submit_all(&self, bios: Vec<Bio>) {
        bios.into_iter().for_each(|bio| self.submit(bio));
    }

    /// As [`Wrapper::submit_all`].
    fn submit_all_and_wait(&self, bios: Vec<Bio>) {
        self.submit_all(bios);
    }

    /// Forwarded by default.
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.inner().read_at(offset, buf, flags)
    }

    /// Reports no holes by default.
    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok((offset < self.size_bytes()).then_some(offset))
    }

    /// Forwarded by default.
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.inner().write_at(offset, pieces, flags)
    }

    /// Forwarded by default.
    fn flush(&self) -> Result<()> {
        self.inner().flush()
    }

    /// Forwarded by default.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner().discard(offset, len)
    }

    /// Writes zeros through this wrapper.
    fn write_zeroes(&self, offset: u64, len: u64, mut flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        zero_in_steps(offset, len, |at, pieces| {
            self.write_at(at, pieces, flags)?;
            flags.remove(BioFlags::PREFLUSH);
            Ok(())
        })
    }

    /// The counts of the inner device: a request that this wrapper stops is not counted.
    fn stats(&self) -> IoStats {
        self.inner().stats()
    }
}

macro_rules! by_wrapper {
    ($(fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $result:ty)?;)*) => {
        impl<W: Wrapper + ?Sized> BlockDevice for W {
            $(fn $name(&self $(, $arg: $of)*) $(-> $result)? {
                Wrapper::$name(self $(, $arg)*)
            })*
        }
    };
}

by_wrapper! {
    fn name(&self) -> &str;
    fn size_bytes(&self) -> u64;
    fn measure(&self) -> Result<u64>;
    fn grow(&self, bytes: u64) -> Result<()>;
    fn limits(&self) -> &Limits;
    fn read_only(&self) -> bool;
    fn completes_later(&self) -> bool;
    fn is_flushed(&self) -> bool;
    fn submit(&self, bio: Bio);
    fn submit_all(&self, bios: Vec<Bio>);
    fn submit_all_and_wait(&self, bios: Vec<Bio>);
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()>;
    fn next_data(&self, offset: u64) -> Result<Option<u64>>;
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()>;
    fn flush(&self) -> Result<()>;
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()>;
    fn stats(&self) -> IoStats;
}
