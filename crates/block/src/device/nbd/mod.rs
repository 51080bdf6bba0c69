//! A device that an NBD server provides: qemu-nbd, nbdkit and others.
//!
//! Main types: [`NbdDevice`], [`NbdAddress`] (the name of an export), [`NbdOptions`].
//!
//! The server may permit several connections; then requests are spread over them. Many requests are in progress on
//! each. A device opened without threads answers within the call, and sends the requests of one batch before it waits
//! for the first answer. With threads, bios complete on a thread of their connection. One more thread carries out those
//! that take several requests of the protocol (those that need a flush first, or more than one transfer).
//!
//! The server is not trusted. If it sends wrong data, is silent or disappears, requests fail, and nothing else happens.
//!
//! What it does not do: TLS, or connect again. After a lost connection it is unknown which writes are durable, so the
//! device has failed permanently.
//!
//! # Locking
//! `block nbd jobs` (955) protects the bios for the thread that takes several requests; see [`connection`] for the
//! others.

mod address;
mod connection;
#[cfg(test)]
mod tests;
mod wire;

pub use address::{NbdAddress, NbdServer};

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, Mutex};
use extant_base::task::{self, JoinHandle};

use self::connection::{Answer, Call, Connection};
use self::wire::{Export, Stream, cmd, handshake, wrong};
use super::{
    BlockDevice, IoCounters, IoStats, Limits, check_range, check_shape, submit_inline, total_len, zero_in_steps,
};
use crate::bio::{Bio, BioData, BioFlags, BioOp};
use crate::buf::AlignedBuf;
use crate::error::{Error, Result};
use crate::ranks::NBD_JOBS;

/// The maximum size of a transfer in bytes, even if the server permits more.
const TRANSFER_MAX: u32 = 1 << 20;
/// The number of requests in one batch that are sent before the first answer is read. Servers process this many
/// concurrently.
const IN_FLIGHT: usize = 16;
/// The maximum length of a trim or zeroing in one request, because the time limit applies to each request.
const RANGE_MAX: u64 = 64 << 20;
/// The maximum number of queries for holes in one search. A server that reports tiny extents would otherwise prolong it
/// for hours.
const QUESTIONS_MAX: usize = 4096;
/// The flag of an extent that reads as zeros (`NBD_STATE_ZERO`).
const STATE_ZERO: u32 = 2;

/// The options for opening an export.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Whether nothing may be written.
    pub read_only: bool,
    /// The number of connections, if the server permits more than one.
    pub connections: usize,
    /// Whether bios complete later, on threads of the device.
    pub threads: bool,
    /// The maximum time for connecting and the handshake.
    pub connect_limit: Duration,
    /// The maximum time for which the server may be silent while a request is in progress.
    pub answer_limit: Duration,
    /// The device's name, instead of the address.
    pub shown_as: Option<String>,
}

impl Default for NbdOptions {
    fn default() -> NbdOptions {
        NbdOptions {
            read_only: false,
            connections: 4,
            threads: false,
            connect_limit: Duration::from_secs(10),
            answer_limit: Duration::from_secs(60),
            shown_as: None,
        }
    }
}

/// An export of an NBD server.
pub struct NbdDevice {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

struct Core {
    name: Arc<str>,
    export: Export,
    limits: Limits,
    read_only: bool,
    connections: Vec<Connection>,
    turn: AtomicUsize,
    counters: IoCounters,
    jobs: Mutex<Jobs>,
    jobs_changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    bios: VecDeque<Bio>,
    closing: bool,
}

impl NbdDevice {
    /// Connects to the server and opens the export.
    ///
    /// # Errors
    /// [`Error::Open`]: there is no server, no such export, another protocol or no answer within the time limit; or the
    /// export should be written but is read-only, or its server cannot flush, so that nothing could be made durable.
    pub fn open(address: &NbdAddress, options: &NbdOptions) -> Result<NbdDevice> {
        let name: Arc<str> = options.shown_as.clone().unwrap_or_else(|| format!("{address:?}")).into();
        Core::open(address, options, name.clone()).map_err(|e| Error::open(&name, e)).and_then(|core| {
            let mut device = NbdDevice { core: Arc::new(core), threads: Vec::new() };
            if options.threads {
                device.start_threads().map_err(|e| Error::open(&name, e))?;
            }
            Ok(device)
        })
    }

    fn start_threads(&mut self) -> io::Result<()> {
        for at in 0..self.core.connections.len() {
            let core = self.core.clone();
            self.threads.push(task::spawn("extant-nbd", move || core.connections[at].serve_bios())?);
        }
        let core = self.core.clone();
        self.threads.push(task::spawn("extant-nbd-steps", move || core.serve_jobs())?);
        Ok(())
    }

    /// Whether bios complete on threads of the device.
    fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.core.jobs.lock().closing = true;
        self.core.jobs_changed.notify_all();
        // The thread of the jobs needs the connections.
        if let Some(jobs) = self.threads.pop() {
            let _ = jobs.join();
        }
        self.core.connections.iter().for_each(Connection::close);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn connect(address: &NbdAddress, options: &NbdOptions) -> io::Result<(Stream, Export)> {
    let stream = Stream::connect(&address.server, options.connect_limit)?;
    stream.limit(options.connect_limit)?;
    let export = handshake(&stream, address, options.connect_limit)?;
    stream.limit(options.answer_limit)?;
    Ok((stream, export))
}

impl Core {
    fn open(address: &NbdAddress, options: &NbdOptions, name: Arc<str>) -> io::Result<Core> {
        let (stream, export) = connect(address, options)?;
        let any_dead = Arc::new(AtomicBool::new(false));
        let with = |stream, export| Connection::new(stream, export, options.answer_limit, any_dead.clone());
        if !options.read_only && export.read_only() {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the server's export is read-only"));
        }
        if !options.read_only && !export.flush() {
            return Err(io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "the server cannot flush, so nothing could be made durable; it may be read",
            ));
        }
        let logical_block = export.block_min.max(512);
        let max_transfer = export.transfer_max.min(TRANSFER_MAX);
        let max_transfer = max_transfer - max_transfer % logical_block;
        if max_transfer == 0 {
            return Err(wrong("the server's transfers are smaller than a block"));
        }
        if export.size > i64::MAX as u64 {
            return Err(wrong("the server's export is larger than any disk"));
        }
        let limits = Limits {
            logical_block,
            physical_block: logical_block.max(4096),
            max_transfer,
            discard: export.trim(),
            volatile_cache: export.flush(),
        };
        let mut connections = vec![with(stream, export.clone())];
        let wanted = if export.multi_conn() { options.connections } else { 1 };
        while connections.len() < wanted {
            // A server that permits several connections may still have none left.
            let Ok((stream, again)) = connect(address, options) else { break };
            if (again.size, again.block_min, again.read_only()) != (export.size, export.block_min, export.read_only()) {
                return Err(wrong("the server's export differs from one connection to the next"));
            }
            connections.push(with(stream, again));
        }
        Ok(Core {
            name,
            limits,
            read_only: options.read_only,
            export,
            connections,
            turn: AtomicUsize::new(0),
            counters: IoCounters::default(),
            jobs: Mutex::new(&NBD_JOBS, Jobs::default()),
            jobs_changed: Condvar::new(),
        })
    }

    fn connection(&self) -> &Connection {
        match &self.connections[..] {
            [only] => only,
            all => &all[self.turn.fetch_add(1, Ordering::Relaxed) % all.len()],
        }
    }

    fn error(&self, op: BioOp, offset: u64, len: u64, e: io::Error) -> Error {
        Error::io(&self.name, op, offset, len, e)
    }

    /// Sends requests without data, in batches.
    fn call_all(&self, op: BioOp, calls: &[Call<'_>]) -> Result<()> {
        for batch in calls.chunks(IN_FLIGHT) {
            let answers = self.connection().call_all(batch, batch.iter().map(|_| None).collect());
            for (call, answer) in batch.iter().zip(answers) {
                answer.result.map_err(|e| self.error(op, call.offset, call.len.into(), e))?;
            }
        }
        Ok(())
    }

    /// The same as [`BlockDevice::flush`]; errors contain the request that needs it.
    fn flush_for(&self, op: BioOp, offset: u64, len: u64) -> Result<()> {
        if !self.export.flush() {
            return Ok(());
        }
        let call = Call { command: cmd::FLUSH, flags: 0, offset: 0, len: 0, pieces: &[] };
        let answer = self.connection().call_all(&[call], vec![None]).pop();
        answer.map_or(Ok(()), |answer| answer.result).map_err(|e| self.error(op, offset, len, e))
    }

    /// The flag of a durable write, and whether a flush must follow instead.
    fn durable(&self, flags: BioFlags) -> (u16, bool) {
        match (flags.contains(BioFlags::FUA), self.export.fua()) {
            (false, _) => (0, false),
            (true, true) => (cmd::FUA, false),
            (true, false) => (0, true),
        }
    }

    /// Trims or zeroes a range, in requests of limited length.
    fn change_range(&self, op: BioOp, command: u16, flags: u16, offset: u64, len: u64) -> Result<()> {
        let parts = (0..len.div_ceil(RANGE_MAX)).map(|i| i * RANGE_MAX);
        let calls: Vec<Call<'_>> = parts
            .map(|at| {
                let part = (len - at).min(RANGE_MAX) as u32;
                Call { command, flags, offset: offset + at, len: part, pieces: &[] }
            })
            .collect();
        self.call_all(op, &calls)
    }

    /// Whether one request of the protocol suffices for the bio.
    fn is_single(&self, bio: &Bio) -> bool {
        let aligned = bio.offset.is_multiple_of(self.export.block_min.into())
            && bio.len.is_multiple_of(self.export.block_min.into());
        let fits = bio.len > 0 && bio.len <= self.limits.max_transfer.into() && aligned;
        match bio.op {
            BioOp::Read => fits,
            BioOp::Write => fits && !bio.flags.contains(BioFlags::PREFLUSH) && !self.durable(bio.flags).1,
            BioOp::Flush => self.export.flush(),
            _ => false,
        }
    }

    fn count(&self, bio: &Bio) {
        match bio.op {
            BioOp::Read => self.counters.read(bio.len),
            BioOp::Write => self.counters.write(bio.len, bio.flags),
            _ => self.counters.flush(),
        }
    }

    /// The first bios of one kind that are single requests, as many as are sent before the first answer is read.
    fn carry_out_run(&self, bios: &mut VecDeque<Bio>) {
        let Some(op) = bios.front().map(|bio| bio.op) else { return };
        let fits = |bio: &Bio| {
            bio.op == op
                && self.is_single(bio)
                && check_shape(self, bio).is_ok()
                && check_range(self, op, bio.offset, bio.len).is_ok()
        };
        let run = bios.iter().take(IN_FLIGHT).take_while(|bio| fits(bio)).count();
        if run < 2 || op == BioOp::Flush {
            if let Some(bio) = bios.pop_front() {
                submit_inline(self, bio);
            }
            return;
        }
        let mut run: Vec<Bio> = bios.drain(..run).collect();
        run.iter().for_each(|bio| self.count(bio));
        let mut buffers = Vec::with_capacity(run.len());
        for bio in &mut run {
            buffers.push(match std::mem::replace(&mut bio.data, BioData::None) {
                BioData::Read(buf) => Some(buf),
                data => {
                    bio.data = data;
                    None
                }
            });
        }
        let pieces: Vec<Vec<&[u8]>> = run
            .iter()
            .map(|bio| match &bio.data {
                BioData::Write(vecs) => vecs.iter().map(|v| v.bytes()).collect(),
                _ => Vec::new(),
            })
            .collect();
        let command = if op == BioOp::Read { cmd::READ } else { cmd::WRITE };
        let calls: Vec<Call<'_>> = run
            .iter()
            .zip(&pieces)
            .map(|(bio, pieces)| {
                let flags = self.durable(bio.flags).0;
                Call { command, flags, offset: bio.offset, len: bio.len as u32, pieces }
            })
            .collect();
        let answers = self.connection().call_all(&calls, buffers);
        drop(calls);
        drop(pieces);
        for (mut bio, Answer { data, result, .. }) in run.into_iter().zip(answers) {
            if let Some(data) = data {
                bio.data = BioData::Read(data);
            }
            let result = result.map_err(|e| self.error(op, bio.offset, bio.len, e));
            bio.complete(result);
        }
    }

    /// The thread for bios that take several requests.
    fn serve_jobs(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            match jobs.bios.pop_front() {
                Some(bio) => {
                    drop(jobs);
                    submit_inline(self, bio);
                    jobs = self.jobs.lock();
                }
                None if jobs.closing => return,
                None => self.jobs_changed.wait(&mut jobs),
            }
        }
    }

    /// Reads whole blocks of the server.
    fn read_blocks(&self, offset: u64, len: u64, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let step = u64::from(self.limits.max_transfer);
        let mut done = 0;
        while done < len {
            let mut calls = Vec::with_capacity(IN_FLIGHT);
            while done < len && calls.len() < IN_FLIGHT {
                let part = (len - done).min(step);
                calls.push(Call { command: cmd::READ, flags: 0, offset: offset + done, len: part as u32, pieces: &[] });
                done += part;
            }
            let buffers = calls.iter().map(|call| Some(AlignedBuf::zeroed(call.len as usize))).collect();
            for (call, answer) in calls.iter().zip(self.connection().call_all(&calls, buffers)) {
                answer.result.map_err(|e| self.error(BioOp::Read, call.offset, call.len.into(), e))?;
                each(call.offset, &answer.data.ok_or(Error::Lost)?);
            }
        }
        Ok(())
    }
}

impl BlockDevice for Core {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.export.size - self.export.size % u64::from(self.limits.logical_block)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        check_range(self, BioOp::Read, offset, len)?;
        self.counters.read(len);
        if len == 0 {
            return Ok(());
        }
        let block = u64::from(self.export.block_min);
        let start = offset - offset % block;
        // Inside of the device: its size is whole blocks.
        let end = (offset + len).next_multiple_of(block);
        self.read_blocks(start, end - start, |at, bytes| {
            let from = at.max(offset);
            let to = (at + bytes.len() as u64).min(offset + len);
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        })
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.size_bytes();
        if offset >= size {
            return Ok(None);
        }
        if self.export.context.is_none() {
            return Ok(Some(offset));
        }
        let block = u64::from(self.export.block_min);
        let mut at = offset - offset % block;
        for _ in 0..QUESTIONS_MAX {
            let len = (size - at).min(1 << 30) as u32;
            let call = Call { command: cmd::BLOCK_STATUS, flags: 0, offset: at, len, pieces: &[] };
            let answer = self.connection().call_all(&[call], vec![None]).pop().ok_or(Error::Lost)?;
            let failed = |e| self.error(BioOp::Read, at, len.into(), e);
            answer.result.map_err(failed)?;
            let before = at;
            for (len, state) in answer.extents {
                if state & STATE_ZERO == 0 {
                    return Ok((at < size).then_some(at.max(offset)));
                }
                at = at.saturating_add(len.into());
            }
            if at >= size {
                return Ok(None);
            }
            if at == before || !at.is_multiple_of(block) {
                return Err(self.error(BioOp::Read, at, 0, wrong("the server's extents lead nowhere")));
            }
        }
        // Anything not known to be zeros is data.
        Ok(Some(at.max(offset)))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        self.counters.write(len, flags);
        if flags.contains(BioFlags::PREFLUSH) || len == 0 && flags.contains(BioFlags::FUA) {
            self.flush_for(BioOp::Write, offset, len)?;
        }
        let (command_flags, flush_after) = self.durable(flags);
        let parts = in_transfers(pieces, self.limits.max_transfer as usize);
        let mut at = offset;
        let mut calls = Vec::with_capacity(parts.len());
        for part in &parts {
            let len = total_len(part);
            calls.push(Call { command: cmd::WRITE, flags: command_flags, offset: at, len: len as u32, pieces: part });
            at += len;
        }
        self.call_all(BioOp::Write, &calls)?;
        if flush_after && len > 0 { self.flush_for(BioOp::Write, offset, len) } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        self.flush_for(BioOp::Flush, 0, 0)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.counters.discard();
        if self.export.trim() { self.change_range(BioOp::Discard, cmd::TRIM, 0, offset, len) } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, len: u64, mut flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        if !self.export.zeroes() {
            return zero_in_steps(offset, len, |at, pieces| {
                self.write_at(at, pieces, flags)?;
                flags.remove(BioFlags::PREFLUSH);
                Ok(())
            });
        }
        self.counters.write_zeroes(flags);
        if flags.contains(BioFlags::PREFLUSH) {
            self.flush_for(BioOp::WriteZeroes, offset, len)?;
        }
        let (durable, flush_after) = self.durable(flags);
        let keep = if flags.contains(BioFlags::UNMAP) { 0 } else { cmd::NO_HOLE };
        self.change_range(BioOp::WriteZeroes, cmd::WRITE_ZEROES, durable | keep, offset, len)?;
        if flush_after { self.flush_for(BioOp::WriteZeroes, offset, len) } else { Ok(()) }
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}

/// Cuts pieces into groups of at most `max` bytes.
fn in_transfers<'p>(pieces: &[&'p [u8]], max: usize) -> Vec<Vec<&'p [u8]>> {
    let (mut groups, mut room) = (Vec::new(), 0);
    for piece in pieces {
        let mut piece = *piece;
        while !piece.is_empty() {
            if room == 0 {
                groups.push(Vec::new());
                room = max;
            }
            let (part, rest) = piece.split_at(piece.len().min(room));
            if let Some(group) = groups.last_mut() {
                group.push(part);
            }
            room -= part.len();
            piece = rest;
        }
    }
    groups
}

impl BlockDevice for NbdDevice {
    fn name(&self) -> &str {
        self.core.name()
    }

    fn size_bytes(&self) -> u64 {
        self.core.size_bytes()
    }

    fn limits(&self) -> &Limits {
        self.core.limits()
    }

    fn read_only(&self) -> bool {
        self.core.read_only
    }

    fn completes_later(&self) -> bool {
        self.has_threads()
    }

    fn submit(&self, bio: Bio) {
        if !self.has_threads() {
            return self.core.submit(bio);
        }
        let in_order = check_shape(self, &bio).and_then(|()| match bio.op {
            BioOp::Flush => Ok(()),
            op => check_range(self, op, bio.offset, bio.len),
        });
        if let Err(e) = in_order {
            return bio.complete(Err(e));
        }
        if !self.core.is_single(&bio) {
            self.core.jobs.lock().bios.push_back(bio);
            return self.core.jobs_changed.notify_all();
        }
        self.core.count(&bio);
        let command = match bio.op {
            BioOp::Read => cmd::READ,
            BioOp::Write => cmd::WRITE,
            _ => cmd::FLUSH,
        };
        let flags = if bio.op == BioOp::Write { self.core.durable(bio.flags).0 } else { 0 };
        self.core.connection().start(command, flags, bio, self.core.name.clone());
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        if self.has_threads() {
            bios.into_iter().for_each(|bio| self.submit(bio));
            return;
        }
        let mut bios = VecDeque::from(bios);
        while !bios.is_empty() {
            self.core.carry_out_run(&mut bios);
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.core.read_at(offset, buf, flags)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.core.next_data(offset)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.core.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.core.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.core.write_zeroes(offset, len, flags)
    }

    fn stats(&self) -> IoStats {
        self.core.stats()
    }
}
