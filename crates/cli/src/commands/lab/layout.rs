//! `extant lab layout`.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use extant_image::{Access, ImageSpec};
use extant_lab::layout::Layout;

use crate::failure::Result;
use crate::image;
use crate::record::escaped;
use crate::text::Output;

/// Show where the mapping blocks of an image lie, and how fragmented its free space is
///
/// A run is a maximal set of physically adjacent blocks. When a checker reads file by file, it jumps wherever the
/// next block does not follow the last.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab layout disk.img
  extant lab layout --json disk.img

Exit status: 0, 1 (usage), 8 (the image cannot be read, or is damaged).")]
pub struct LayoutArgs {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &LayoutArgs) -> Result<()> {
    let device = image::open_device(&ImageSpec::parse(&args.image), &Access::tool(true))?;
    let layout = Layout::of(&*device).map_err(|e| crate::failure::Failure::op(e.to_string()))?;
    let mut out = Output::new();
    if args.json {
        let json = serde_json::to_string_pretty(&layout).map_err(std::io::Error::other)?;
        writeln!(out, "{}", escaped(&json))?;
    } else {
        print(&mut out, &layout)?;
    }
    out.flush()?;
    Ok(())
}

fn print(out: &mut Output, layout: &Layout) -> Result<()> {
    let Layout { single_indirect, double_indirect, triple_indirect, .. } = layout;
    let indirect = layout.indirect_blocks();
    writeln!(
        out,
        "Indirect blocks:   {indirect} ({single_indirect} single, {double_indirect} double, {triple_indirect} triple)"
    )?;
    writeln!(out, "Extent nodes:      {}", layout.extent_nodes)?;
    writeln!(out, "Runs of both:      {} ({:.3} a block)", layout.map_runs, layout.map_runs_per_block)?;
    writeln!(out, "Jumps:             {} when they are read file by file", layout.map_jumps)?;
    let (most, mean) = (layout.map_blocks_per_group_max, layout.map_blocks_per_group);
    writeln!(out, "In a block group:  {mean:.1} of them on average, {most} at most ({} groups)", layout.groups)?;
    writeln!(out, "Directory blocks:  {} in {} runs", layout.directory_blocks, layout.directory_runs)?;
    writeln!(out, "Files with blocks: {} ({} with several)", layout.files, layout.files_of_several_blocks)?;
    let (mean, most) = (layout.fragments_per_file, layout.fragments_per_file_max);
    writeln!(out, "Fragments a file:  {mean:.2} of those with several blocks, {most} at most")?;
    let runs: u64 = layout.free_runs.iter().sum();
    writeln!(out, "Free blocks:       {} of {} bytes in {runs} runs", layout.free_blocks, layout.block_bytes)?;
    writeln!(out, "\n{:>12}  {:>12}", "FREE BLOCKS", "RUNS")?;
    for (order, runs) in layout.free_runs.iter().enumerate() {
        let (from, to) = (1u64 << order, (2u64 << order) - 1);
        let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
        writeln!(out, "{range:>12}  {runs:>12}")?;
    }
    Ok(())
}
