//! `age`: files are created, deleted, truncated, appended to and overwritten until an image has turned over.
//!
//! Main type: [`Age`]. First, files are created until `fill` per cent of the image are in use. Then the image turns
//! over: every write needs space, so random victims are deleted or truncated first, and the image stays as full as
//! before. After each half turnover it is full again, everything is made durable, and it is mounted again; this ends a
//! phase.
//!
//! Its operations depend only on the seed, the parameters, the size of the image and the format of its maps, not on
//! decisions of the target. So two policies get the same operations. For this purpose, the workload counts the blocks
//! in use itself, and queries the target only at the beginning.
//!
//! # Locking
//! `lab age` (3): the state, for the one process of each phase.

mod sizes;

use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::{Error, Result};
use crate::vfs::{Node, Worker};

use sizes::Sizes;

/// The size of the image at scale 1, in bytes.
const IMAGE_BYTES: u64 = 16 << 30;
/// The smallest image for any scale.
const IMAGE_LEAST: u64 = 64 << 20;
/// The minimum space that it works in, in bytes: files of many sizes must fit.
const ROOM_LEAST: u64 = 16 << 20;
/// The default size of the largest file is this fraction of the space.
const LARGEST_PART: u64 = 16;
/// How many blocks an inode maps without a map block, if blocks are mapped one by one.
const DIRECT: u64 = 12;
/// The number of bytes that are read at once from a whole file.
const READ_BYTES: u64 = 1 << 20;
/// The phase that fills the image.
const FILL: &str = "fill";

static CLASS: LockClass = LockClass::new("lab age", 3);

pub(super) struct Age;

impl Workload for Age {
    fn name(&self) -> &'static str {
        "age"
    }

    fn summary(&self) -> &'static str {
        "fills an image with files of all sizes, and then deletes, truncates and writes until it has turned over 4 times"
    }

    fn source(&self) -> &'static str {
        "sizes: Agrawal et al., Generating Realistic Impressions (FAST'09), after their five-year study (FAST'07); \
         ageing at a fixed fill: Geriatrix (ATC'18)"
    }

    fn headline(&self) -> &'static str {
        FILL
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("image_bytes", scaled(IMAGE_BYTES, scale, IMAGE_LEAST))
            .with("fill", 90)
            .with("turnovers", 4)
            .with_text("sizes", "log-normal")
            .with("mean_bytes", sizes::MEAN_BYTES)
            .with("largest_bytes", 0)
            .with("directories", 100)
            .with("growing", 4)
            .with("step_bytes", 256 << 10)
            .with("append", 20)
            .with("overwrite", 10)
            .with("truncate", 20)
            .with("fsync_each", 16)
            .with("sync_bytes", 64 << 20)
            .with("read_files_bytes", 0)
            .with("random_reads", 0)
            .with("random_read_bytes", 512)
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let bytes = (p.get("image_bytes") / 100).saturating_mul(p.get("fill"));
        let files = bytes / p.get("mean_bytes").max(1) + p.get("directories");
        Needs { bytes, files, fill: p.get("fill"), guess: false }
    }

    fn check(&self, p: &Parameters) -> Result<()> {
        let range = |name: &str, least: u64, most: u64| {
            let value = p.get(name);
            let message = || Error::Usage(format!("{name}={value}: it must be from {least} to {most}"));
            if (least..=most).contains(&value) { Ok(()) } else { Err(message()) }
        };
        range("fill", 1, 99)?;
        range("turnovers", 0, 1000)?;
        range("directories", 1, 100_000)?;
        range("growing", 1, 64)?;
        range("step_bytes", 4096, 1 << 30)?;
        range("truncate", 0, 100)?;
        range("fsync_each", 0, 1 << 30)?;
        range("random_read_bytes", 1, 1 << 30)?;
        if p.get("append") + p.get("overwrite") > 99 {
            return Err(Error::Usage(
                "append and overwrite are per cent of the writes: their sum must be below 100".into(),
            ));
        }
        Sizes::check(p.text("sizes"), p.get("mean_bytes"))
    }

    fn durable(&self, _: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let image = Mutex::new(&CLASS, Image::prepare(context)?);
        context.phase(FILL, 1, |w, _| image.lock().fill(w))?;
        context.cold()?;
        read(context, &image, 0)?;
        for half in 1..=2 * context.get("turnovers") {
            context.phase(&phase_of("turn", half), 1, |w, _| image.lock().turn(w, half))?;
            context.cold()?;
            read(context, &image, half)?;
        }
        Ok(())
    }
}

/// Reads files of the image after `half` half turnovers, with cold caches: whole files, then pieces of files. It
/// changes only access times.
fn read(context: &mut Context<'_>, image: &Mutex<Image>, half: u64) -> Result<()> {
    let (whole, pieces, bytes) =
        (context.get("read_files_bytes"), context.get("random_reads"), context.get("random_read_bytes"));
    if whole > 0 {
        context.phase(&phase_of("read", half), 1, |w, _| image.lock().read_files(w, whole))?;
        context.cold()?;
    }
    if pieces > 0 {
        context.phase(&phase_of("random", half), 1, |w, _| image.lock().read_pieces(w, pieces, bytes))?;
        context.cold()?;
    }
    Ok(())
}

/// The name of a phase after `half` half turnovers.
fn phase_of(what: &str, half: u64) -> String {
    format!("{what}-{}.{}", half / 2, half % 2 * 5)
}

/// A file without an operation in progress.
#[derive(Clone, Copy)]
struct File {
    id: u64,
    directory: u64,
    size: u64,
}

impl File {
    fn path(&self) -> String {
        format!("{}/f{}", directory(self.directory), self.id)
    }
}

/// A file that is being written, step by step.
struct Job {
    file: File,
    /// Open, unless the image has been mounted again since.
    node: Option<Node>,
    /// The offset of the next byte to write, and the end.
    at: u64,
    until: u64,
}

/// How blocks are counted.
#[derive(Clone, Copy)]
struct Cost {
    block: u64,
    /// How many blocks of data one map block serves; 0 if maps need hardly any blocks (extents).
    pointers: u64,
}

impl Cost {
    /// The number of blocks of a file of `bytes` bytes, including those of its map.
    fn of(&self, bytes: u64) -> u64 {
        let data = bytes.div_ceil(self.block);
        if self.pointers == 0 || data <= DIRECT {
            return data;
        }
        let (per, indirect) = (self.pointers, data - DIRECT);
        let doubly = indirect.saturating_sub(per);
        let triply = doubly.saturating_sub(per * per);
        data + indirect.div_ceil(per) + doubly.div_ceil(per * per) + u64::from(triply > 0)
    }
}

/// The files in the image, and the operations in progress.
struct Image {
    rng: Rng,
    sizes: Sizes,
    cost: Cost,
    directories: u64,
    step: u64,
    append: u64,
    overwrite: u64,
    truncate: u64,
    fsync_each: u64,
    sync_bytes: u64,
    files: Vec<File>,
    jobs: Vec<Option<Job>>,
    next: u64,
    /// The number of blocks in use, and its limit.
    used: u64,
    limit: u64,
    /// Bytes written to new blocks in total, and those that filled the image.
    written: u64,
    filled: u64,
    unsynced: u64,
}

impl Image {
    /// Creates the directories, and determines the properties of the image.
    fn prepare(context: &mut Context<'_>) -> Result<Image> {
        let directories = context.get("directories");
        let probe = format!("{}/probe", directory(0));
        context.prepare(1, |w, _| {
            (0..directories).try_for_each(|d| w.mkdir(&directory(d)))?;
            let file = w.create(&probe)?;
            w.close(file)?;
            w.sync_all()
        })?;
        let before = context.space()?;
        let block = before.block_bytes.max(1);
        // A file that is too large for the map in an inode shows whether its map has a block.
        context.prepare(1, |w, _| {
            let file = w.open(&probe)?;
            w.write(&file, 0, (DIRECT + 1) * block)?;
            w.close(file)?;
            w.sync_all()
        })?;
        let taken = before.free_blocks.saturating_sub(context.space()?.free_blocks);
        context.prepare(1, |w, _| {
            w.unlink(&probe)?;
            w.sync_all()
        })?;
        let pointers = if taken > DIRECT + 1 { block / 4 } else { 0 };
        let used = before.blocks.saturating_sub(before.free_blocks);
        let limit = before.blocks / 100 * context.get("fill") + before.blocks % 100 * context.get("fill") / 100;
        let room = limit.saturating_sub(used).saturating_mul(block);
        if room < ROOM_LEAST {
            return Err(Error::Usage(format!(
                "fill={}: that leaves {} KiB for files; age needs {} MiB: take a larger image, or a higher fill",
                context.get("fill"),
                room >> 10,
                ROOM_LEAST >> 20
            )));
        }
        let name = context.parameters().text("sizes");
        let largest = match context.get("largest_bytes") {
            // Their size is fixed.
            0 if name == sizes::FIXED => room / 2,
            0 => room / LARGEST_PART,
            bytes => bytes.min(room / 2),
        };
        let sizes = Sizes::new(name, context.get("mean_bytes"), largest)?;
        Ok(Image {
            rng: context.rng(),
            sizes,
            cost: Cost { block, pointers },
            directories,
            step: context.get("step_bytes"),
            append: context.get("append"),
            overwrite: context.get("overwrite"),
            truncate: context.get("truncate"),
            fsync_each: context.get("fsync_each"),
            sync_bytes: context.get("sync_bytes"),
            files: Vec::new(),
            jobs: (0..context.get("growing")).map(|_| None).collect(),
            next: 0,
            used,
            limit,
            written: 0,
            filled: 0,
            unsynced: 0,
        })
    }

    /// Creates files until the image is as full as allowed.
    fn fill(&mut self, w: &mut Worker<'_>) -> Result<()> {
        while self.used < self.limit {
            self.step(w, false)?;
        }
        self.filled = self.written;
        self.rest(w)
    }

    /// Turns the image over until `half` halves of the filling bytes have been rewritten, and it is full again.
    fn turn(&mut self, w: &mut Worker<'_>, half: u64) -> Result<()> {
        let until = self.filled + self.filled * half / 2;
        while self.written < until {
            self.step(w, true)?;
        }
        while self.used < self.limit {
            self.step(w, false)?;
        }
        self.rest(w)
    }

    /// Closes everything, because the image is about to be unmounted.
    fn rest(&mut self, w: &mut Worker<'_>) -> Result<()> {
        for job in self.jobs.iter_mut().flatten() {
            if let Some(node) = job.node.take() {
                w.close(node)?;
            }
        }
        w.sync_all()
    }

    /// Writes the next piece of one of the growing files. `removes`: if there is no space for it, other files are
    /// removed; otherwise the piece is shortened to the space available.
    fn step(&mut self, w: &mut Worker<'_>, removes: bool) -> Result<()> {
        let slot = self.rng.below(self.jobs.len() as u64) as usize;
        let mut job = match self.jobs[slot].take() {
            Some(job) => job,
            None => self.begin(w)?,
        };
        let mut piece = self.step.min(job.until - job.at);
        if removes {
            while self.used + self.growth(&job, piece) > self.limit {
                if self.files.is_empty() && !self.end_one(w)? {
                    job.until = job.at;
                    piece = 0;
                    break;
                }
                self.remove(w)?;
            }
        } else if self.used + self.growth(&job, piece) > self.limit {
            piece = piece.min((self.limit - self.used) * self.cost.block);
            while self.used + self.growth(&job, piece) > self.limit {
                piece = piece.saturating_sub(self.cost.block);
            }
            job.until = job.at + piece;
        }
        if piece > 0 {
            self.write(w, &mut job, piece)?;
        } else if !removes {
            // One block is left, and this file would need two.
            self.used = self.limit;
        }
        if job.at < job.until {
            self.jobs[slot] = Some(job);
        } else {
            self.end(w, job)?;
        }
        Ok(())
    }

    /// The number of blocks that a piece takes.
    fn growth(&self, job: &Job, piece: u64) -> u64 {
        self.cost.of(job.file.size.max(job.at + piece)) - self.cost.of(job.file.size)
    }

    fn write(&mut self, w: &mut Worker<'_>, job: &mut Job, piece: u64) -> Result<()> {
        self.used += self.growth(job, piece);
        let node = match job.node.take() {
            Some(node) => node,
            None => w.open(&job.file.path())?,
        };
        w.write(&node, job.at, piece)?;
        w.done(1);
        job.at += piece;
        if job.at > job.file.size {
            self.written += job.at - job.file.size.max(job.at - piece);
            job.file.size = job.at;
        }
        if self.fsync_each > 0 && self.rng.one_in(self.fsync_each) {
            w.fsync(&node)?;
            w.done(1);
        }
        job.node = Some(node);
        self.unsynced += piece;
        if self.sync_bytes > 0 && self.unsynced >= self.sync_bytes {
            w.sync_all()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Chooses the next write: a new file, an append, or an overwrite of a part of a file.
    fn begin(&mut self, w: &mut Worker<'_>) -> Result<Job> {
        let lot = self.rng.below(100);
        let bytes = self.sizes.draw(&mut self.rng);
        if self.written >= self.filled
            && self.filled > 0
            && lot < self.append + self.overwrite
            && !self.files.is_empty()
        {
            let file = self.take_random();
            let (at, until) = match lot < self.append {
                true => (file.size, file.size + bytes),
                false => {
                    let at = self.rng.below(file.size) / self.cost.block * self.cost.block;
                    (at, (at + bytes).min(file.size))
                }
            };
            return Ok(Job { file, node: None, at, until });
        }
        let file = File { id: self.next, directory: self.rng.below(self.directories), size: 0 };
        self.next += 1;
        let node = w.create(&file.path())?;
        w.done(1);
        Ok(Job { file, node: Some(node), at: 0, until: bytes })
    }

    fn end(&mut self, w: &mut Worker<'_>, mut job: Job) -> Result<()> {
        if let Some(node) = job.node.take() {
            w.close(node)?;
        }
        self.files.push(job.file);
        Ok(())
    }

    /// Ends one of the growing files, so that there is a victim. Returns false if there is none.
    fn end_one(&mut self, w: &mut Worker<'_>) -> Result<bool> {
        match self.jobs.iter_mut().find_map(Option::take) {
            Some(job) => self.end(w, job).map(|()| true),
            None => Ok(false),
        }
    }

    /// Reads files from beginning to end, until `bytes` bytes or all files have been read.
    fn read_files(&self, w: &mut Worker<'_>, bytes: u64) -> Result<()> {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        let mut read = 0;
        while read < bytes && !order.is_empty() {
            let next = w.rng.below(order.len() as u64) as usize;
            let file = self.files[order.swap_remove(next)];
            let node = w.open(&file.path())?;
            let mut at = 0;
            while at < file.size {
                let piece = READ_BYTES.min(file.size - at);
                w.read(&node, at, piece as usize)?;
                at += piece;
            }
            w.close(node)?;
            w.done(1);
            read += file.size;
        }
        Ok(())
    }

    /// Reads `pieces` pieces of `bytes` bytes; each byte of the files is equally likely.
    fn read_pieces(&self, w: &mut Worker<'_>, pieces: u64, bytes: u64) -> Result<()> {
        let mut ends = Vec::with_capacity(self.files.len());
        let mut total = 0;
        for file in &self.files {
            total += file.size;
            ends.push(total);
        }
        for _ in 0..pieces {
            let at = w.rng.below(total);
            let nth = ends.partition_point(|end| *end <= at);
            let Some(file) = self.files.get(nth) else { break };
            let within = (at - (ends[nth] - file.size)) / bytes * bytes;
            let node = w.open(&file.path())?;
            w.read(&node, within, bytes as usize)?;
            w.close(node)?;
            w.done(1);
        }
        Ok(())
    }

    fn take_random(&mut self) -> File {
        let victim = self.rng.below(self.files.len() as u64) as usize;
        self.files.swap_remove(victim)
    }

    /// Makes space: deletes a file, or truncates it at a random offset. Each file is equally likely, whatever its age.
    fn remove(&mut self, w: &mut Worker<'_>) -> Result<()> {
        let mut file = self.take_random();
        w.done(1);
        self.used -= self.cost.of(file.size);
        if self.rng.below(100) >= self.truncate || file.size <= self.cost.block {
            return w.unlink(&file.path());
        }
        file.size = 1 + self.rng.below(file.size - 1);
        self.used += self.cost.of(file.size);
        let node = w.open(&file.path())?;
        w.truncate(&node, file.size)?;
        w.close(node)?;
        self.files.push(file);
        Ok(())
    }
}

fn directory(number: u64) -> String {
    // A name that no other workload uses, because other workloads begin with this image.
    format!("a{number}")
}
