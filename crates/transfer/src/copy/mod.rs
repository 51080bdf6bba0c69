//! Copies of files and trees between the host and images.
//!
//! Both sides have the same interface: a [`Source`] is read ([`LocalSource`], [`ImageSource`]), a [`Sink`] is written
//! ([`LocalSink`], [`ImageSink`]). The copy itself, [`struct@Copy`], knows neither. On other systems than Linux, the
//! host's side is `portable`, which has names, content, times and permissions alone.
//!
//! # Locking
//! None.

mod inside;
#[cfg(target_os = "linux")]
mod local;
#[cfg(target_os = "linux")]
mod local_sink;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;
mod side;
mod tree;

pub use inside::{ImageSink, ImageSource};
#[cfg(target_os = "linux")]
pub use local::{LocalEntry, LocalSource, LocalSource as HostSource};
#[cfg(target_os = "linux")]
pub use local_sink::{LeftOut, LocalDir, LocalSink, LocalSink as HostSink, closed};
#[cfg(not(target_os = "linux"))]
pub use portable::{PortableSink as HostSink, PortableSource as HostSource};
pub use side::{Content, Id, Node, Rules, Sink, Source};
pub use tree::{Copy, LINKS_MAX, Options};
