//! `extant df`: the free and used space of images.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_fs::StatFs;
use serde_json::json;

use super::verb::{Images, Report};
use crate::args::DfArgs;
use crate::failure::Result;
use crate::record::{Format, Records};
use crate::{size, text};

pub fn run(args: &DfArgs, images: &mut Images) -> Result<()> {
    let mut records = Records::new(Format { json: args.json, null: false })?;
    let mut report = Report::default();
    let mut rows = Vec::new();
    for image in &args.images {
        match images.file_or_image(image) {
            Ok(file) => rows.push((file.fs.image().to_owned(), file.fs.statfs())),
            Err(e) => report.note(Err(e))?,
        }
    }
    if args.json {
        for (image, s) in &rows {
            records.value(&json!({
                "image": image,
                "block_size": s.block_size,
                "blocks": s.blocks,
                "blocks_free": s.blocks_free,
                "blocks_available": s.blocks_available,
                "inodes": s.inodes,
                "inodes_free": s.inodes_free,
            }))?;
        }
    } else {
        table(args, &rows, &mut records)?;
    }
    records.end()?;
    report.end()
}

fn table(args: &DfArgs, rows: &[(String, StatFs)], records: &mut Records) -> Result<()> {
    let heads = match () {
        () if args.inodes => ["Image", "Inodes", "IUsed", "IFree", "IUse%"],
        () if args.human => ["Image", "Size", "Used", "Avail", "Use%"],
        () => ["Image", "1K-blocks", "Used", "Available", "Use%"],
    };
    let mut lines = vec![heads.map(str::to_owned)];
    for (image, s) in rows {
        let amount = |blocks: u64| {
            let bytes = blocks * u64::from(s.block_size);
            if args.human { size::short(bytes) } else { bytes.div_ceil(1024).to_string() }
        };
        let (all, used, free) = if args.inodes {
            (s.inodes, s.inodes - s.inodes_free.min(s.inodes), s.inodes_free)
        } else {
            (s.blocks, s.blocks - s.blocks_free.min(s.blocks), s.blocks_available)
        };
        let percent = match used + free {
            0 => "-".into(),
            most => format!("{}%", (used * 100).div_ceil(most)),
        };
        let shown = |n: u64| if args.inodes { n.to_string() } else { amount(n) };
        lines.push([text::shown(image.as_bytes()), shown(all), shown(used), shown(free), percent]);
    }
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    for line in &lines {
        write!(records.out, "{:<w$}", line[0], w = widths[0])?;
        for i in 1..5 {
            write!(records.out, " {:>w$}", line[i], w = widths[i])?;
        }
        writeln!(records.out)?;
    }
    Ok(())
}
