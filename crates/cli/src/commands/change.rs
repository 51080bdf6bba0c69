//! A verified change of an image on the host: where it is stored until it is written, and the file that undoes it.
//!
//! Main functions: [`layers`], [`write`], [`failed`], [`refuse_unfinished`], [`refuse_elsewhere`]. `extant fsck`,
//! `extant resize` and `extant tune` use them.
//!
//! # Locking
//! None.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::{CowDevice, FileDevice};
use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_image::probe;
use extant_ondisk::features::Incompat;
use extant_ondisk::mmp::{CHECK_MAX, INTERVAL, Mmp, SEQ_CLEAN, SEQ_FSCK};
use extant_ondisk::superblock::{SUPERBLOCK_SIZE, SuperBlock};
use extant_repair::{Layers, Outcome, Stamp, Undo, WriteMethod, commit, unfinished};

use crate::failure::{Failure, Result, warn};
use crate::image::{ImageSpec, Part};
use crate::text::{argument, image_argument, shown};

/// Changes beyond this many bytes go to a file.
const MEMORY_BYTES: u64 = 48 << 20;

/// Layers on the file system's blocks. They hold changes in memory up to a limit, and beyond it in an unnamed file.
pub fn layers() -> Layers {
    let make = |base: Arc<dyn BlockDevice>| {
        let spill = |size: u64| {
            let dir = std::env::temp_dir();
            let open = |e: std::io::Error| extant_block::Error::open(&dir.display().to_string(), e);
            let file = tempfile::NamedTempFile::new_in(&dir).map_err(open)?;
            file.as_file().set_len(size).map_err(open)?;
            let device = FileDevice::open(file.path(), extant_block::device::OpenOptions::default())?;
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        };
        CowDevice::spilling(base, MEMORY_BYTES, Box::new(spill))
    };
    Layers::by(Arc::new(make))
}

/// Refuses an image if writing a change to it was interrupted.
pub fn refuse_unfinished(device: &dyn BlockDevice, spec: &ImageSpec) -> Result<()> {
    let Some(record) = unfinished(device) else { return Ok(()) };
    Err(Failure::op(format!(
        "{}: a repair was interrupted while it was written; '{}' brings the image back to the state before it",
        spec.shown(),
        undo_command(Path::new(std::ffi::OsStr::from_bytes(&record)), spec)
    )))
}

/// Refuses an image if another host shows that it uses it (feature `mmp`). A host that starts later is not detected.
pub fn refuse_elsewhere(device: &dyn BlockDevice, spec: &ImageSpec) -> Result<()> {
    let Ok((sb, _)) = probe(device) else { return Ok(()) };
    if !sb.incompat().contains(Incompat::MMP) {
        return Ok(());
    }
    // A block that cannot be used is the checker's concern.
    let Some(first) = sign_of(device, &sb) else { return Ok(()) };
    let refusal = |sign: &Mmp, what: &str| {
        let (host, name) = (shown(&sign.host), spec.shown());
        let advice = "if no host uses it, clear the mark with 'tune2fs -f -E clear_mmp'";
        Failure::op(format!("{name}: {what} (host '{host}', feature 'mmp'); {advice}"))
    };
    match first.seq {
        SEQ_CLEAN => return Ok(()),
        SEQ_FSCK => return Err(refusal(&first, "a checker uses it, or was interrupted")),
        _ => {}
    }
    // A live host updates its sequence number within the interval that its last update names.
    let seconds = 2 * u64::from(first.check_interval.clamp(INTERVAL, CHECK_MAX)) + 1;
    warn(&format!("{}: it was not unmounted; waiting for signs of life of another host ({seconds} s)", spec.shown()));
    Clock::real().sleep(Duration::from_secs(seconds));
    match sign_of(device, &sb) {
        Some(sign) if sign.seq != first.seq => Err(refusal(&sign, "another host has it mounted")),
        _ => Ok(()),
    }
}

fn sign_of(device: &dyn BlockDevice, sb: &SuperBlock) -> Option<Mmp> {
    let (geo, block) = (sb.geometry(), sb.raw().s_mmp_block.get());
    let mut bytes = AlignedBuf::zeroed(geo.block_size as usize);
    let within = block > geo.first_data_block && block < geo.blocks_count;
    let read = within.then(|| device.read_at(block << geo.block_bits, &mut bytes, BioFlags::META));
    read?.ok()?;
    Mmp::parse(sb, &bytes).ok()
}

/// The command that undoes a change.
pub fn undo_command(record: &Path, spec: &ImageSpec) -> String {
    let image = image_argument(spec);
    format!("extant fsck --undo {} {image}", argument(record.as_os_str().as_bytes(), ""))
}

/// The failure of a change that was not written, with the state of the image. `old`: its superblock before the change;
/// `record`: the file with the old blocks.
pub fn failed(
    spec: &ImageSpec,
    device: &Arc<dyn BlockDevice>,
    old: &SuperBlock,
    record: Option<&Path>,
    e: &extant_repair::Error,
) -> Failure {
    let name = spec.shown();
    if is_as_before(&**device, old) {
        return Failure::op(format!("{name}: not changed: {e}; it is as it was"));
    }
    Failure::op(match record {
        Some(record) => format!(
            "{name}: the change may be written in part: {e}; '{}' brings back the state before it",
            undo_command(record, spec)
        ),
        None => format!(
            "{name}: the change is in the journal, but not in its place: {e}; 'extant fsck -p {}' puts it there",
            image_argument(spec)
        ),
    })
}

/// Whether the image still has the old superblock, with nothing to recover.
pub fn is_as_before(device: &dyn BlockDevice, old: &SuperBlock) -> bool {
    let now = probe(device).ok().filter(|(_, backup)| backup.is_none());
    let bytes = |sb: &SuperBlock| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        sb.encode_into(&mut bytes);
        bytes
    };
    now.is_some_and(|(sb, _)| bytes(&sb) == bytes(old) && unfinished(device).is_none())
}

/// Writes a verified change. `wanted`: the file for the old blocks. Without it, such a file is made if the journal
/// cannot be used, unless `no_undo`. Returns the file as well.
pub fn write(
    spec: &ImageSpec,
    device: &Arc<dyn BlockDevice>,
    outcome: &Outcome,
    wanted: Option<&Path>,
    no_undo: bool,
) -> (extant_repair::Result<WriteMethod>, Option<PathBuf>) {
    let now = Clock::real().wall();
    let stamp = Stamp { sec: now.sec.max(0) as u64, nsec: now.nsec };
    let mut record: Option<PathBuf> = None;
    let mut make = |bytes: u64| {
        let (path, file) = make_record(wanted, spec, bytes)?;
        record = Some(path.clone());
        Ok((file, path.as_os_str().as_bytes().to_vec()))
    };
    let undo = match (no_undo, wanted.is_some()) {
        (true, _) => Undo::Never,
        (false, true) => Undo::Always(&mut make),
        (false, false) => Undo::IfNeeded(&mut make),
    };
    let offset = if let Part::Offset(offset) = spec.part { offset } else { 0 };
    let written = commit(device, outcome, offset, stamp, undo);
    (written, record)
}

type RecordFile = (PathBuf, Arc<dyn BlockDevice>);

/// Creates the file of a record; the file and its directory entry are durable.
fn make_record(wanted: Option<&Path>, spec: &ImageSpec, bytes: u64) -> extant_repair::Result<RecordFile> {
    let places: Vec<PathBuf> = match wanted {
        Some(path) => vec![path.to_owned()],
        None => {
            let base = default_record(spec);
            let numbered = (1..1000).map(|number| PathBuf::from(format!("{}.{number}", base.display())));
            std::iter::once(base.clone()).chain(numbered).collect()
        }
    };
    let mut last = None;
    for path in places {
        let open = |e: std::io::Error| extant_block::Error::open(&path.display().to_string(), e);
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                let ready = file.set_len(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_folder(&path));
                ready.map_err(open)?;
                let device = FileDevice::open(&path, extant_block::device::OpenOptions::default())?;
                let path = path.canonicalize().unwrap_or(path);
                return Ok((path, Arc::new(device)));
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && wanted.is_none() => last = Some(open(e)),
            Err(e) => return Err(open(e).into()),
        }
    }
    let none = || extant_block::Error::open("a record", std::io::Error::from(std::io::ErrorKind::AlreadyExists));
    Err(last.unwrap_or_else(none).into())
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The default place: beside an image file; for a device, where e2fsprogs has such files, or in /var/tmp.
fn default_record(spec: &ImageSpec) -> PathBuf {
    if !spec.is_block_device() {
        let mut name = spec.path.clone().into_os_string();
        name.push(".undo");
        return name.into();
    }
    let usual = std::env::var_os("E2FSPROGS_UNDO_DIR").map_or_else(|| "/var/lib/e2fsprogs".into(), PathBuf::from);
    let folder = if usual.is_dir() { usual } else { "/var/tmp".into() };
    let mut name = std::ffi::OsString::from("fsck-");
    name.push(spec.path.file_name().unwrap_or_default());
    name.push(".undo");
    folder.join(name)
}
