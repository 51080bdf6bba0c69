//! Merging: adjacent writes become one request, whose completion completes each of them.
//!
//! Linux: `blk_attempt_plug_merge`, `bio_attempt_back_merge` and `bio_attempt_front_merge`. Because bios are sorted
//! first, there is no difference between front and back merges.
//!
//! If a merged request fails, it is not known which part failed. Each part is sent once more separately, so that no
//! part fails because of another.
//!
//! What it does not do: merge requests that flush (PREFLUSH, FUA), other operations, or bios with different flags.

use std::sync::Arc;

use super::Path;
use crate::bio::{Bio, BioData, BioFlags, BioOp, BioVec, Completion, EndIo};

/// The maximum number of pieces of memory per request: the limit of one writev (`UIO_MAXIOV`).
const SEGMENTS_MAX: usize = 1024;

/// Sorts by operation and offset, then merges adjacent writes, up to `max_transfer` bytes. Overlapping bios are not
/// merged, because a caller that needs an order waits for one before it sends the other.
pub(super) fn sort_and_merge(mut bios: Vec<Bio>, max_transfer: u32, path: &Arc<Path>) -> Vec<Bio> {
    if bios.len() < 2 {
        return bios;
    }
    bios.sort_by_key(|b| (b.op != BioOp::Read, b.op != BioOp::Write, b.offset));
    let mut out = Vec::with_capacity(bios.len());
    let mut group: Vec<Bio> = Vec::new();
    let (mut len, mut segments) = (0u64, 0usize);
    for bio in bios {
        let pieces = segments_of(&bio);
        let fits = group.last().is_some_and(|last| {
            pieces > 0
                && segments_of(last) > 0
                && last.flags == bio.flags
                && last.offset + last.len == bio.offset
                && len + bio.len <= u64::from(max_transfer)
                && segments + pieces <= SEGMENTS_MAX
        });
        if !fits {
            out.extend(join(std::mem::take(&mut group), path));
            (len, segments) = (0, 0);
        }
        len += bio.len;
        segments += pieces;
        group.push(bio);
    }
    out.extend(join(group, path));
    out
}

/// The number of pieces of a write that may be merged; 0 for everything else.
fn segments_of(bio: &Bio) -> usize {
    match &bio.data {
        BioData::Write(vecs) if bio.len > 0 && !bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) => vecs.len(),
        _ => 0,
    }
}

/// One request for a group of adjacent bios; `None` for an empty group.
fn join(mut group: Vec<Bio>, path: &Arc<Path>) -> Option<Bio> {
    if group.len() < 2 {
        return group.pop();
    }
    let (offset, flags) = (group[0].offset, group[0].flags);
    let mut vecs = Vec::new();
    let mut parts = Vec::with_capacity(group.len());
    for bio in group {
        let Bio { offset, data, end_io, .. } = bio;
        let before = vecs.len();
        if let BioData::Write(more) = data {
            vecs.extend(more);
        }
        parts.push(Part { offset, segments: vecs.len() - before, end_io });
    }
    Some(Bio::write(offset, vecs, flags, Box::new(Merged { path: path.clone(), flags, parts })))
}

struct Part {
    offset: u64,
    segments: usize,
    end_io: Box<dyn EndIo>,
}

/// Completes every bio of a merged request with its own memory.
struct Merged {
    path: Arc<Path>,
    flags: BioFlags,
    parts: Vec<Part>,
}

impl EndIo for Merged {
    fn end_io(self: Box<Self>, done: Completion) {
        let mut vecs = match done.data {
            BioData::Write(vecs) => vecs.into_iter(),
            BioData::None | BioData::Read(_) => Vec::new().into_iter(),
        };
        for part in self.parts {
            let own: Vec<BioVec> = vecs.by_ref().take(part.segments).collect();
            if done.result.is_err() && own.len() == part.segments {
                let bio = Bio::write(part.offset, own, self.flags, part.end_io);
                self.path.count(&bio);
                self.path.start(bio);
                continue;
            }
            part.end_io.end_io(Completion {
                op: BioOp::Write,
                offset: part.offset,
                data: BioData::Write(own),
                result: done.result.clone(),
            });
        }
    }
}
