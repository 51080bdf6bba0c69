//! `extant image`: a copy of the metadata, as a sparse file or as qcow2.
//!
//! `extant_repair::metadata` finds the blocks to copy. [`Qcow`] is a minimal subset of the qcow2 format (version 2):
//! one reference table, no compression, no snapshots (QEMU: docs/interop/qcow2.txt).
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::{size, task};
use extant_check::Options;
use extant_repair::metadata::Metadata;

use super::change;
use crate::args::{ImageArgs, MetadataArgs};
use crate::failure::{Failure, HURT, Result};
use crate::image;
use crate::text::Output;

pub fn run(args: &MetadataArgs) -> Result<()> {
    let how = ImageArgs { partition: args.partition, offset: args.offset, ..ImageArgs::default() };
    let spec = how.spec(&args.image);
    let device = image::open(&spec, &how.access(true))?.device;
    let check = Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() };
    let overlay = Arc::new(change::layers().over(device));
    let failed = |e| Failure::op(format!("{}: not copied: {e}", spec.shown()));
    let metadata = Metadata::of(overlay, &check, args.scramble).map_err(failed)?;
    let shown = args.output.display().to_string();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&args.output);
    let file = file.map_err(|e| Failure::io(&args.output, e))?;
    let written = if args.qcow { qcow(&file, &metadata) } else { raw(&file, &metadata) };
    let unread = written.and_then(|unread| file.sync_all().map(|()| unread)).map_err(|e| {
        // A partial copy looks like a damaged file system, so it is removed.
        let _ = std::fs::remove_file(&args.output);
        Failure::write(&shown, &e)
    })?;
    let mut out = Output::new();
    writeln!(out, "{shown}: {} of metadata of {}", size::human(metadata.copied()), size::human(metadata.bytes()))?;
    out.flush()?;
    match unread {
        0 => Ok(()),
        1 => Err(Failure::new(HURT, format!("{shown}: 1 block could not be read, and is zeros in the copy"))),
        many => Err(Failure::new(HURT, format!("{shown}: {many} blocks could not be read, and are zeros in the copy"))),
    }
}

/// Whether these bytes can be left as a hole.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn raw(file: &File, metadata: &Metadata) -> std::io::Result<u64> {
    const HOLE_BYTES: usize = 4096;
    file.set_len(metadata.bytes())?;
    metadata.read(|at, bytes| {
        for (index, part) in bytes.chunks(HOLE_BYTES).enumerate() {
            if !is_zero(part) {
                file.write_all_at(part, at + (index * HOLE_BYTES) as u64)?;
            }
        }
        Ok(())
    })
}

/// Bytes per cluster.
const CLUSTER: u64 = 1 << 16;
/// The flag of a cluster that has no second reference.
const COPIED: u64 = 1 << 63;

/// A qcow2 file: the header, the first-level table, then clusters and second-level tables in order of use, and the
/// references last.
struct Qcow<'a> {
    file: &'a File,
    /// The position in the file of each guest cluster.
    places: BTreeMap<u64, u64>,
    end: u64,
}

fn qcow(file: &File, metadata: &Metadata) -> std::io::Result<u64> {
    let per_table = CLUSTER / 8;
    let clusters = metadata.bytes().div_ceil(CLUSTER);
    let tables = clusters.div_ceil(per_table);
    let first_table_clusters = (tables * 8).div_ceil(CLUSTER).max(1);
    let mut qcow = Qcow { file, places: BTreeMap::new(), end: (1 + first_table_clusters) * CLUSTER };
    let unread = metadata.read(|at, bytes| qcow.put(at, bytes))?;
    qcow.finish(metadata.bytes(), tables, first_table_clusters)?;
    Ok(unread)
}

impl Qcow<'_> {
    fn take(&mut self) -> u64 {
        let place = self.end;
        self.end += CLUSTER;
        place
    }

    fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let len = bytes.len().min((CLUSTER - at % CLUSTER) as usize);
            let (part, rest) = bytes.split_at(len);
            if !is_zero(part) {
                let place = match self.places.get(&(at / CLUSTER)) {
                    Some(place) => *place,
                    None => {
                        let place = self.take();
                        self.places.insert(at / CLUSTER, place);
                        place
                    }
                };
                self.file.write_all_at(part, place + at % CLUSTER)?;
            }
            at += len as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Writes the tables. Each cluster of the file has one reference.
    fn finish(mut self, bytes: u64, tables: u64, first_table_clusters: u64) -> std::io::Result<()> {
        let per_table = CLUSTER / 8;
        let mut first = vec![0; (first_table_clusters * CLUSTER) as usize];
        let mut second: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (cluster, place) in &self.places {
            let table = second.entry(cluster / per_table).or_insert_with(|| vec![0; CLUSTER as usize]);
            let at = (cluster % per_table * 8) as usize;
            table[at..at + 8].copy_from_slice(&(place | COPIED).to_be_bytes());
        }
        for (index, table) in second {
            let place = self.take();
            self.file.write_all_at(&table, place)?;
            let at = (index * 8) as usize;
            first[at..at + 8].copy_from_slice(&(place | COPIED).to_be_bytes());
        }
        // References have 16 bits. Their blocks and their table count themselves.
        let per_block = CLUSTER / 2;
        let used = self.end / CLUSTER;
        let (mut blocks, mut table_clusters) = (1, 1);
        while blocks * per_block < used + blocks + table_clusters || table_clusters * per_table < blocks {
            blocks = (used + blocks + table_clusters).div_ceil(per_block);
            table_clusters = blocks.div_ceil(per_table);
        }
        let table_at = self.end;
        let blocks_at = table_at + table_clusters * CLUSTER;
        let total = used + table_clusters + blocks;
        let mut references = vec![0; (table_clusters * CLUSTER) as usize];
        for index in 0..blocks {
            let at = (index * 8) as usize;
            references[at..at + 8].copy_from_slice(&(blocks_at + index * CLUSTER).to_be_bytes());
            let mut block = vec![0; CLUSTER as usize];
            let count = (total - (index * per_block).min(total)).min(per_block) as usize;
            block[..2 * count].chunks_mut(2).for_each(|one| one.copy_from_slice(&1u16.to_be_bytes()));
            self.file.write_all_at(&block, blocks_at + index * CLUSTER)?;
        }
        self.file.write_all_at(&references, table_at)?;
        self.file.write_all_at(&first, CLUSTER)?;
        let mut header = vec![0; CLUSTER as usize];
        let words: [(usize, &[u8]); 9] = [
            (0, b"QFI\xfb"),
            (4, &2u32.to_be_bytes()),
            (20, &CLUSTER.ilog2().to_be_bytes()),
            (24, &bytes.to_be_bytes()),
            (36, &(tables as u32).to_be_bytes()),
            (40, &CLUSTER.to_be_bytes()),
            (48, &table_at.to_be_bytes()),
            (56, &(table_clusters as u32).to_be_bytes()),
            (60, &0u32.to_be_bytes()),
        ];
        for (at, value) in words {
            header[at..at + value.len()].copy_from_slice(value);
        }
        self.file.write_all_at(&header, 0)
    }
}
