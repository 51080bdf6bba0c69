//! Reads images that another process has mounted, for commands that only need names and attributes.
//!
//! Main type: [`InUseImage`]. The command sees the writer's commits, with the log replayed in memory, as in a read-only
//! mount. Uncommitted changes exist only in the writer's memory. The device changes meanwhile: checkpoints write blocks
//! to their home locations, and the log grows. No block is checkpointed before its commit. So if the log has not grown
//! since it was read, everything that the command saw is consistent; otherwise the command prints a warning.
//!
//! What it does not do: it reads no file content, which would be inconsistent while the writer changes it.
//!
//! # Locking
//! None.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BlockDevice;
use extant_fs::Mounted;
use extant_image::{Holder, OpenImage, probe};
use extant_ondisk::jbd2::Tid;
use extant_recovery::Replay;
use extant_recovery::locate::open_journal;

use crate::args::ImageArgs;
use crate::failure::{Result, warn};
use crate::image::{self, Access, Claim, ImageSpec};

/// How often to retry mounting an image that is inconsistent because it changes meanwhile.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// An image that is in use, and the end of its log at the time of the open.
pub struct InUseImage {
    dev: Arc<dyn BlockDevice>,
    log: Option<LogEnd>,
    pub holder: Holder,
}

/// The log's next transaction, and the number of fast commits since the last one.
type LogEnd = (Tid, usize);

/// Mounts an image in this process, read-only, even if it is in use; warns about its users.
pub fn open_image(spec: &ImageSpec, how: &ImageArgs) -> Result<(Mounted, Option<InUseImage>)> {
    let (dev, beside) = open(spec, how)?;
    let options = how.mount_options(spec, true)?;
    let Some(mut beside) = beside else { return Ok((image::mount(dev, options)?, None)) };
    for _ in 1..TRIES {
        match image::mount_quietly(dev.clone(), options.clone()) {
            Ok(fs) => return Ok((fs, Some(beside))),
            Err(_) => Clock::real().sleep(PAUSE),
        }
        beside.log = log_end(&dev);
    }
    Ok((image::mount_quietly(dev, options)?, Some(beside)))
}

/// Opens the device of an image, even if it is in use; warns about its users.
pub fn open(spec: &ImageSpec, how: &ImageArgs) -> Result<(Arc<dyn BlockDevice>, Option<InUseImage>)> {
    let access = Access { claim: Claim::OrBeside, ..how.access(true) };
    let OpenImage { device: dev, beside, .. } = image::open(spec, &access)?;
    let Some(holder) = beside else { return Ok((dev, None)) };
    warn(&format!("{}: {}: uncommitted changes are not shown", dev.name(), holder.who()));
    let log = log_end(&dev);
    Ok((dev.clone(), Some(InUseImage { dev, log, holder })))
}

impl InUseImage {
    /// Whether the image has been written since; if so, the output may be inconsistent. `None` if it has no log to
    /// compare.
    fn has_moved(&self) -> Option<bool> {
        Some(log_end(&self.dev)? != self.log?)
    }

    /// Warns if the image has changed. Must be called after the last read.
    pub fn end(&self) {
        let was = match self.has_moved() {
            Some(false) => return,
            Some(true) => "it was written",
            None => "it may have been written (it has no log to compare)",
        };
        let image = self.dev.name();
        warn(&format!("{image}: {was} while it was read: the output may mix older and newer data"));
    }
}

/// The end of the log; `None` if there is no log.
fn log_end(dev: &Arc<dyn BlockDevice>) -> Option<LogEnd> {
    let (sb, _) = probe(&**dev).ok()?;
    let journal = open_journal(dev.clone(), &sb).ok()??;
    let replay = Replay::load(&journal, &**dev, &mut |_| {}).ok()?;
    Some((replay.next_tid(), replay.fast_commits.len()))
}

#[cfg(test)]
mod tests {
    use extant_fs::{Cred, Filesystem, NewNode};
    use extant_testkit::oracle::{MkfsOptions, make_image};

    use super::*;

    fn create(fs: &Filesystem, name: &[u8]) {
        let root = fs.root().expect("root");
        drop(fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("created"));
    }

    #[test]
    fn look_shows_committed_changes_and_reports_later_writes() {
        let dir = tempfile::tempdir().expect("directory");
        let spec = ImageSpec::whole(make_image(dir.path(), &MkfsOptions::new("ext4", 32 << 20)).expect("image"));
        let how = ImageArgs::default();
        let writer = image::open_image(&spec, &how, false).expect("mounted");
        create(&writer, b"committed");
        writer.sync().expect("synced");
        create(&writer, b"in memory");
        let look = || {
            let (fs, beside) = open_image(&spec, &how).expect("beside");
            let has = |path: &[u8]| fs.walk(path, true).is_ok();
            ((has(b"/committed"), has(b"/in memory")), beside.expect("the image is in use"))
        };
        let (shown, beside) = look();
        assert_eq!((shown, beside.has_moved()), ((true, false), Some(false)));
        writer.sync().expect("synced");
        assert_eq!(beside.has_moved(), Some(true), "there was a commit");
        let (shown, beside) = look();
        assert_eq!((shown, beside.has_moved()), ((true, true), Some(false)));
        writer.unmount().expect("unmounted");
        drop(writer);
        assert!(open_image(&spec, &how).expect("free").1.is_none(), "the image is free again");
    }
}
