//! Multi-mount protection: no second host writes to a file system that another host has mounted (Linux: fs/ext4/mmp.c).
//!
//! Main function: [`protect`], which waits long enough to notice the heartbeat of another host. [`Heart`] is the
//! heartbeat of a mount that writes.
//!
//! The MMP block changes outside of the journal, as in the kernel. If the host caches the device (an image file without
//! O_DIRECT on a network file system), another host's heartbeat may go unnoticed.
//!
//! What it does not do: protect from other processes of this host; the claim of the device does that.
//!
//! # Locking
//! `heart` (9), held while the MMP block is written.

use std::sync::Arc;
use std::time::Duration;

use extant_base::rng::Rng;
use extant_base::task::process_id;
use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::features::Incompat;
use extant_ondisk::mmp::{CHECK_MAX, INTERVAL, Mmp, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use extant_ondisk::superblock::SuperBlock;

use crate::error::{Damage, Error, Result};
use crate::heart::{Heart, Last};
use crate::lifecycle::Right;
use crate::options::MountOptions;
use crate::volume::Volume;

/// The name of the heartbeat thread.
pub(crate) const THREAD: &str = "extant-mmp";
/// How long the thread waits before it checks whether the mount still exists.
const STEP: Duration = Duration::from_millis(100);
const SECOND_NS: u64 = 1_000_000_000;

/// The time in seconds within which a live host must have written the MMP block (Linux: `ext4_multi_mount_protect`).
fn wait_s(update: u16, stored: u16) -> u64 {
    let check = u64::from(update.max(INTERVAL).max(stored.min(CHECK_MAX)));
    (2 * check + 1).min(check + 60)
}

/// The sequence number after `seq`.
fn next(seq: u32) -> u32 {
    if seq >= SEQ_MAX { 1 } else { seq + 1 }
}

/// The name of this host, if the system provides it.
fn host() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    if name.is_empty() { b"extant".to_vec() } else { name.to_vec() }
}

/// The MMP state of a file system that no other host uses.
pub(crate) struct Protected {
    block: BlockNr,
    interval_ns: u64,
    last: Last,
}

fn read_sign(dev: &dyn BlockDevice, sb: &SuperBlock, block: BlockNr) -> Result<Mmp> {
    let mut bytes = AlignedBuf::zeroed(sb.geometry().block_size as usize);
    dev.read_at(block.0 << sb.geometry().block_bits, &mut bytes, BioFlags::META)?;
    Mmp::parse(sb, &bytes).map_err(|damage| Error::corrupt(Damage::Mmp, damage.to_string()).at(block))
}

fn write_sign(dev: &dyn BlockDevice, sb: &SuperBlock, block: BlockNr, sign: &Mmp) -> Result<()> {
    let mut bytes = AlignedBuf::zeroed(sb.geometry().block_size as usize);
    sign.encode(sb, &mut bytes);
    Ok(dev.write_at(block.0 << sb.geometry().block_bits, &[&bytes], BioFlags::META | BioFlags::FUA)?)
}

/// Waits for the heartbeat of another host. Must run before the first change of an image with the feature `mmp`,
/// including the replay of its log. Returns `None` without the feature.
///
/// # Errors
/// [`Error::Elsewhere`] if another host has the image mounted or checks it; damage of the MMP block; errors of the
/// device.
pub(crate) fn protect(dev: &dyn BlockDevice, sb: &SuperBlock, options: &MountOptions) -> Result<Option<Protected>> {
    if !sb.incompat().contains(Incompat::MMP) {
        return Ok(None);
    }
    let geo = sb.geometry();
    let (block, update) = (BlockNr(sb.raw().s_mmp_block.get()), sb.raw().s_mmp_update_interval.get());
    if block.0 <= geo.first_data_block || block.0 >= geo.blocks_count {
        return Err(Error::corrupt(Damage::Mmp, "outside of the file system").at(block));
    }
    let found = read_sign(dev, sb, block)?;
    let wait = Duration::from_secs(wait_s(update, found.check_interval));
    let elsewhere = |sign: &Mmp, what: &str| {
        let (host, device) = (String::from_utf8_lossy(&sign.host), String::from_utf8_lossy(&sign.device));
        Error::Elsewhere { detail: format!("{what} (host '{host}', device '{device}', feature 'mmp')") }
    };
    if found.seq == SEQ_FSCK {
        let what = "a checker uses it, or was interrupted; if no host does, 'tune2fs -f -E clear_mmp' says so";
        return Err(elsewhere(&found, what));
    }
    let say = |why: &str| options.messages.say(format_args!("{}: {why} ({} s)", dev.name(), wait.as_secs()));
    if found.seq != SEQ_CLEAN {
        say("it was not unmounted; waiting for signs of life of another host");
        options.clock.sleep(wait);
        let now = read_sign(dev, sb, block)?;
        if now.seq != found.seq {
            return Err(elsewhere(&now, "another host has it mounted"));
        }
    }
    let now = options.clock.wall();
    let seed = options.seed.unwrap_or(now.sec as u64 ^ u64::from(now.nsec) << 20 ^ u64::from(process_id()));
    let sign = Mmp {
        seq: Rng::new(seed).next_u32() % SEQ_MAX + 1,
        time: now.sec.max(0) as u64,
        host: host(),
        device: dev.name().rsplit('/').next().unwrap_or_default().as_bytes().to_vec(),
        check_interval: update.clamp(INTERVAL, CHECK_MAX),
    };
    write_sign(dev, sb, block, &sign)?;
    say("waiting for signs of life of another host that mounts it now");
    options.clock.sleep(wait);
    let found = read_sign(dev, sb, block)?;
    if found.seq != sign.seq {
        return Err(elsewhere(&found, "another host mounts it"));
    }
    let interval_ns = u64::from(update.clamp(1, CHECK_MAX)) * SECOND_NS;
    Ok(Some(Protected { block, interval_ns, last: Last { sign, at_ns: options.clock.now_ns(), stopped: false } }))
}

impl Protected {
    /// Marks the image as unused after a failed mount, so that the next mount need not wait.
    pub(crate) fn give_up(&self, dev: &dyn BlockDevice, sb: &SuperBlock) {
        let _ = write_sign(dev, sb, self.block, &Mmp { seq: SEQ_CLEAN, ..self.last.sign.clone() });
    }
}

impl Heart {
    /// Starts the heartbeat of the mount.
    pub(crate) fn start(volume: &Arc<Volume>, protected: Protected) -> Result<()> {
        let Protected { block, interval_ns, last } = protected;
        let _ = volume.heart.set(Heart::new(block, interval_ns, last));
        let weak = Arc::downgrade(volume);
        let step = |volume: &Volume| volume.heart.get().is_some_and(|heart| heart.step(volume));
        volume.threads.start(THREAD, move || while weak.upgrade().is_some_and(|volume| step(&volume)) {})
    }

    fn write(&self, volume: &Volume, sign: &Mmp) -> Result<()> {
        write_sign(&*volume.dev, &volume.superblock(), self.block, sign)
    }

    /// One round of the thread. Returns false if the thread must end.
    fn step(&self, volume: &Volume) -> bool {
        let mut last = self.last.lock();
        if !last.stopped {
            self.wake.wait_for(&mut last, STEP);
        }
        if last.stopped || !volume.lifecycle.allows(Right::Work) {
            return false;
        }
        let now_ns = volume.options.clock.now_ns();
        let late_ns = now_ns.saturating_sub(last.at_ns);
        if late_ns < self.interval_ns {
            return true;
        }
        // After such a delay, another host may have concluded that this one is dead.
        let most_ns = u64::from(last.sign.check_interval) * SECOND_NS;
        let found = || read_sign(&*volume.dev, &volume.superblock(), self.block);
        let mine = late_ns <= most_ns || found().is_ok_and(|found| found.seq == last.sign.seq);
        let sign = Mmp { seq: next(last.sign.seq), time: volume.now().seconds.max(0) as u64, ..last.sign.clone() };
        if !mine || self.write(volume, &sign).is_err() {
            last.stopped = true;
            drop(last);
            volume
                .abort("no sign of life could be given in time (feature 'mmp'): another host may have the file system");
            return false;
        }
        (last.sign, last.at_ns) = (sign, now_ns);
        true
    }

    /// Stops the heartbeat and marks the image as unused.
    pub(crate) fn stop(&self, volume: &Volume) -> Result<()> {
        let sign = {
            let mut last = self.last.lock();
            if last.stopped {
                // The block may belong to another host now.
                return Ok(());
            }
            last.stopped = true;
            Mmp { seq: SEQ_CLEAN, time: volume.now().seconds.max(0) as u64, ..last.sign.clone() }
        };
        self.wake.notify_all();
        volume.threads.end(THREAD);
        self.write(volume, &sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_waits_longer_than_a_live_host_is_silent() {
        for (update, stored, seconds) in [(0, 0, 11), (5, 5, 11), (5, 30, 61), (100, 5, 160), (5, u16::MAX, 360)] {
            assert_eq!(wait_s(update, stored), seconds, "{update} {stored}");
        }
        assert_eq!((next(1), next(SEQ_MAX - 1), next(SEQ_MAX), next(SEQ_CLEAN)), (2, SEQ_MAX, 1, 1));
    }
}
