//! `extant info --scan`: superblocks, backups and partitions on a damaged disk, and the next steps.
//!
//! `extant_image` does the search; this module turns its result into tables, commands to try next, or JSON.
//!
//! # Locking
//! None.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::OffsetDevice;
use extant_image::{FileSystem, Scan, Sighting, look, partition_table, place, scan};
use extant_ondisk::partition::{Source, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::args::{ImageArgs, InfoArgs};
use crate::commands::info::{generation, table_name};
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec};
use crate::record::escaped;
use crate::size::human;
use crate::text::{self, Output, argument};

pub fn run(args: &InfoArgs, how: &ImageArgs) -> Result<()> {
    if how.sb.is_some() || how.rescue {
        let message = "--scan looks for all superblocks and repairs nothing: it takes neither --sb nor --rescue";
        return Err(Failure::usage(message));
    }
    let spec = how.spec(&args.image);
    let whole = look(&spec)?;
    let (base, len) = place(&spec)?;
    let len = len.unwrap_or(whole.size_bytes().saturating_sub(base));
    // A truncated image may end at any byte.
    let len = len - len % u64::from(whole.limits().logical_block);
    // If the table is damaged, the search continues anyway.
    let table = partition_table(&*whole).unwrap_or_else(|e| {
        warn(&e.to_string());
        Table { partitions: Vec::new(), source: Source::None }
    });
    let size = whole.size_bytes();
    let part: Arc<dyn BlockDevice> = Arc::new(OffsetDevice::new(whole, base, len)?);
    let bar = progress(len);
    let found = scan(&*part, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let answer = Answer { spec: &spec, base, size, table: &table, found: &found };
    let mut out = Output::new();
    if args.json {
        writeln!(out, "{}", escaped(&format!("{:#}", answer.json())))?;
    } else {
        answer.print(&mut out)?;
    }
    out.flush()?;
    if found.filesystems.is_empty() {
        return Err(Failure::op(format!(
            "{}: no superblock of ext2/3/4 with a file system behind it in {len} bytes; photorec(8) looks for files by \
             their contents",
            spec.shown()
        )));
    }
    Ok(())
}

fn progress(bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    let style =
        ProgressStyle::with_template("{bytes:>11}/{total_bytes:11} {binary_bytes_per_sec:>14} [{wide_bar}] {eta}");
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

struct Answer<'a> {
    spec: &'a ImageSpec,
    /// Where the searched part starts in the image.
    base: u64,
    /// The size of the whole image.
    size: u64,
    table: &'a Table,
    found: &'a Scan,
}

impl Answer<'_> {
    fn print(&self, out: &mut Output) -> Result<()> {
        writeln!(out, "Image:       {}", self.spec.shown())?;
        writeln!(out, "Size:        {} ({} bytes)", human(self.size), self.size)?;
        if self.table.source == Source::BackupGpt {
            writeln!(out, "Table:       {}", image::BACKUP_GPT)?;
        }
        if !self.table.partitions.is_empty() {
            writeln!(out, "Partitions:  {}\n", self.table.partitions.len())?;
            writeln!(out, "{}", image::list(&self.table.partitions).join("\n"))?;
        }
        if self.found.unreadable > 0 {
            writeln!(out, "Unreadable:  {} bytes", self.found.unreadable)?;
        }
        for fs in self.found.filesystems.iter().filter(|fs| fs.inside.is_none()) {
            self.print_one(out, fs)?;
        }
        let mut inside = self.found.filesystems.iter().filter(|fs| fs.inside.is_some()).peekable();
        if inside.peek().is_some() {
            writeln!(out, "\nIn the range of another one: image files in it, or one of both is older")?;
        }
        for fs in inside {
            self.print_one(out, fs)?;
        }
        if let [first, ..] = &*self.found.strays {
            let (count, byte) = (self.found.strays.len(), self.base + first.byte);
            writeln!(
                out,
                "\nCopies of superblocks that belong to none of these, as in journals and files: {count}, the first at \
                 byte {byte}"
            )?;
        }
        if self.found.more > 0 {
            writeln!(out, "\nAnd {} more superblocks, which are not listed", self.found.more)?;
        }
        Ok(())
    }

    fn print_one(&self, out: &mut Output, fs: &FileSystem) -> Result<()> {
        let Some(best) = fs.best() else { return Ok(()) };
        let start = self.base + fs.start;
        let label = text::shown(best.sb.volume_name().as_bytes());
        let label = if label.is_empty() { label } else { format!(" \"{label}\"") };
        let partition = self.partition(fs).map_or(String::new(), |number| format!(" (partition {number})"));
        write!(out, "\nFile system: {}{label}, UUID {}", generation(&best.sb), text::uuid(&best.sb.uuid()))?;
        writeln!(out, "\nBegins at:   byte {start}{partition}")?;
        if let Some(around) = fs.inside {
            writeln!(out, "Inside:      that at byte {}", self.base + around)?;
        }
        let (blocks, block_size) = (best.sb.blocks_count, best.sb.block_size);
        writeln!(out, "Holds:       {} in {blocks} blocks of {block_size} bytes", human(fs.size()))?;
        if fs.sightings.iter().all(|s| s.group.0 > 0) {
            writeln!(out, "Primary:     gone")?;
        }
        let columns = ("GROUP", "BLOCK", "BYTE", "LAST WRITTEN", "DESCRIPTORS", "SUPERBLOCK");
        writeln!(
            out,
            "\n{:>7} {:>12} {:>16}  {:<19} {:>13}  {}",
            columns.0, columns.1, columns.2, columns.3, columns.4, columns.5
        )?;
        for s in &fs.sightings {
            let written = text::second(s.sb.write_time());
            let descriptors = format!("{} of {}", s.descriptors.sound, s.descriptors.looked_at);
            let byte = self.base + s.byte;
            let state = if s.damage.is_empty() { "sound".to_owned() } else { damage(s).join("; ") };
            writeln!(out, "{:>7} {:>12} {byte:>16}  {written:<19} {descriptors:>13}  {state}", s.group.0, s.block().0)?;
        }
        writeln!(out, "\nTo try next:")?;
        for command in self.commands(fs, best) {
            writeln!(out, "  {command}")?;
        }
        Ok(())
    }

    /// The partition that begins where the file system does and contains all of it, except for less than a block.
    fn partition(&self, fs: &FileSystem) -> Option<u32> {
        const PART_OF_A_BLOCK: u64 = 4096;
        let start = self.base + fs.start;
        let holds = |len: u64| len.saturating_add(PART_OF_A_BLOCK) > fs.size();
        self.table.partitions.iter().find(|p| p.start == start && holds(p.len)).map(|p| p.number)
    }

    /// The commands that check and mount the file system with its best superblock.
    fn commands(&self, fs: &FileSystem, best: &Sighting) -> [String; 3] {
        let (start, path) = (self.base + fs.start, self.spec.path.as_os_str().as_bytes());
        let offset = if start > 0 { format!("?offset={start}") } else { String::new() };
        let e2fsck = argument(path, &offset);
        let part = match self.partition(fs) {
            Some(number) => argument(path, &format!("@{number}")),
            None => e2fsck.clone(),
        };
        let (block, size) = (best.block().0, best.sb.block_size);
        let kib = (best.byte - fs.start) >> 10;
        let (by, sb) = match best.group.0 {
            0 => (String::new(), String::new()),
            _ => (format!(" -b {block} -B {size}"), format!(",sb={kib}")),
        };
        [
            format!("extant fsck -fn{by} {part}"),
            format!("extant mount -o ro{sb} {part} DIR"),
            format!("e2fsck -fn{by} {e2fsck}"),
        ]
    }

    fn json(&self) -> Value {
        let partition = |p: &extant_ondisk::partition::Partition| json!({ "number": p.number, "start": p.start, "size": p.len, "type": p.type_name, "label": p.label });
        let copy = |s: &Sighting| json!({ "byte": self.base + s.byte, "uuid": text::uuid(&s.sb.uuid()) });
        json!({
            "image": self.spec.shown(),
            "size": self.size,
            "table": table_name(self.table.source),
            "partitions": self.table.partitions.iter().map(partition).collect::<Vec<_>>(),
            "unreadable_bytes": self.found.unreadable,
            "filesystems": self.found.filesystems.iter().map(|fs| self.filesystem(fs)).collect::<Vec<_>>(),
            "copies": self.found.strays.iter().map(copy).collect::<Vec<_>>(),
            "superblocks_not_listed": self.found.more,
        })
    }

    fn filesystem(&self, fs: &FileSystem) -> Value {
        let Some(best) = fs.best() else { return Value::Null };
        let superblock = |s: &Sighting| {
            json!({
                "group": s.group.0,
                "block": s.block().0,
                "byte": self.base + s.byte,
                "written": (s.sb.write_time() != 0).then(|| text::utc(s.sb.write_time())),
                "sound": s.damage.is_empty(),
                "damage": damage(s),
                "descriptors": s.descriptors.looked_at,
                "descriptors_sound": s.descriptors.sound,
            })
        };
        json!({
            "filesystem": generation(&best.sb),
            "uuid": text::uuid(&best.sb.uuid()),
            "label": best.sb.volume_name(),
            "start": self.base + fs.start,
            "partition": self.partition(fs),
            "inside": fs.inside.map(|start| self.base + start),
            "size": fs.size(),
            "block_size": best.sb.block_size,
            "superblocks": fs.sightings.iter().map(superblock).collect::<Vec<_>>(),
            "commands": self.commands(fs, best),
        })
    }
}

fn damage(sighting: &Sighting) -> Vec<String> {
    sighting.damage.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_contains_the_quoted_name_of_the_image() {
        let argument = |path: &[u8], part| argument(path, part);
        assert_eq!(argument(b"a/b-1.img", "@2"), "a/b-1.img@2");
        assert_eq!(argument(b"a.img", "?offset=512"), "'a.img?offset=512'");
        assert_eq!(argument(b"it's", ""), r"'it'\''s'");
        assert_eq!(argument(b"-x.img", ""), "./-x.img");
        assert_eq!(argument(b"\xe4\t'.img", "@1"), r"$'\xe4\x09\'.img@1'");
    }
}
