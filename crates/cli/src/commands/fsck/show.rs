//! Findings, plans and losses as lines or JSON.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::io::Write;

use extant_check::{Finding, Place, Preen, Report, Severity};
use extant_repair::{End, Loss, LossKind, Outcome, Step};
use serde_json::{Value, json};

use crate::failure::Result;
use crate::text::Output;

/// Prints a report.
pub fn print(out: &mut Output, name: &str, report: &Report, verbose: bool) -> Result<()> {
    for finding in &report.findings {
        let advice = if finding.problem.severity() == Severity::Advice { " (harmless)" } else { "" };
        writeln!(out, "{finding}{advice}")?;
    }
    let mut kept = BTreeMap::new();
    for finding in &report.findings {
        *kept.entry(finding.problem).or_insert(0u64) += 1;
    }
    for (problem, count) in &report.counts {
        let more = count - kept.get(problem).copied().unwrap_or(0);
        if more > 0 {
            writeln!(out, "{} {more} times more", problem.name())?;
        }
    }
    let totals = &report.totals;
    if verbose {
        writeln!(out, "{} inodes in use, {} of them directories", totals.inodes_used, totals.directories)?;
        writeln!(out, "{} blocks in use", totals.blocks_used)?;
    }
    let state = match (report.is_damaged(), report.complete) {
        (false, true) => "no damage",
        (true, true) => "damaged",
        (true, false) => "damaged, and only the superblock could be checked",
        (false, false) => "not checked: the superblock cannot be used",
    };
    let count: u64 = report.counts.values().sum();
    let findings = match count {
        0 => String::new(),
        1 => ", 1 finding".to_owned(),
        _ => format!(", {count} findings"),
    };
    writeln!(
        out,
        "{name}: {state}{findings}, {}/{} files, {}/{} blocks",
        totals.inodes_used, totals.inodes, totals.blocks_used, totals.blocks
    )?;
    Ok(())
}

/// A report as JSON.
pub fn as_json(name: &str, report: &Report) -> Value {
    let totals = &report.totals;
    json!({
        "image": name,
        "damaged": report.is_damaged(),
        "complete": report.complete,
        "notes": report.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "counts": report.counts.iter().map(|(problem, count)| (problem.name(), *count)).collect::<BTreeMap<_, _>>(),
        "inodes_used": totals.inodes_used,
        "inodes": totals.inodes,
        "directories": totals.directories,
        "blocks_used": totals.blocks_used,
        "blocks": totals.blocks,
        "requests": totals.reads,
        "read_bytes": totals.read_bytes,
    })
}

fn finding(finding: &Finding) -> Value {
    let mut value = json!({
        "code": format!("{:#08x}", finding.problem.code()),
        "name": finding.problem.name(),
        "damage": finding.problem.severity() == Severity::Damage,
        "automatic": finding.problem.preen() == Preen::Fix,
        "found": finding.found,
        "expected": finding.expected,
        "text": finding.to_string(),
    });
    if let Place::Field(name) = finding.place {
        value["field"] = name.into();
    }
    let mut put = |key: &str, number: u64| value[key] = number.into();
    match finding.place {
        Place::Volume | Place::Field(_) | Place::Journal => {}
        Place::Group(group) => put("group", group.0.into()),
        Place::Blocks(block) => put("block", block.0),
        Place::Inode(ino) => put("inode", ino.0.into()),
        Place::Usage { file, id, .. } => {
            put("inode", file.0.into());
            put("owner", id.into());
        }
        Place::Mapped { ino, lblk, block } => {
            put("inode", ino.0.into());
            put("logical_block", lblk);
            put("block", block.0);
        }
        Place::Node { ino, node, lblk, block } => {
            put("inode", ino.0.into());
            put("node", node.0);
            put("logical_block", lblk);
            put("block", block.0);
        }
        Place::Attributes { ino, block } => {
            put("inode", ino.0.into());
            put("block", block.0);
        }
        Place::Entry { dir, lblk, offset, ino } => {
            put("directory", dir.0.into());
            put("logical_block", lblk.into());
            put("offset", offset.into());
            put("inode", ino.0.into());
        }
    }
    value
}

/// Prints the steps of a plan, its losses, and the damage that it leaves.
pub fn plan(out: &mut Output, outcome: &Outcome) -> Result<()> {
    for step in &outcome.steps {
        writeln!(out, "plan: {}", self::step(step))?;
    }
    losses(out, &outcome.losses)?;
    left(out, outcome)
}

/// A step and its cause as a line.
pub fn step(step: &Step) -> String {
    let more = if step.findings > 1 { format!(", and {} findings more", step.findings - 1) } else { String::new() };
    format!("{step} ({}: {}{more})", step.cause.problem.name(), step.cause)
}

/// Prints losses.
pub fn losses(out: &mut Output, losses: &[Loss]) -> Result<()> {
    for loss in losses {
        writeln!(out, "loses: {loss}")?;
    }
    Ok(())
}

/// Prints the damage that remains.
pub fn left(out: &mut Output, outcome: &Outcome) -> Result<()> {
    for (finding, why) in &outcome.left {
        writeln!(out, "stays: {finding}: {why}")?;
    }
    Ok(())
}

/// A plan as JSON.
pub fn plan_as_json(outcome: &Outcome) -> Value {
    let end = match outcome.end {
        End::Sound => "sound",
        End::Proved => "repaired",
        End::Partial => "partly repaired",
        End::Refused => "refused",
    };
    let step = |step: &Step| {
        let layer = format!("{:?}", step.layer).to_lowercase();
        json!({ "layer": layer, "text": step.to_string(), "safe": step.is_safe, "cause": finding(&step.cause), "findings": step.findings })
    };
    let loss = |loss: &Loss| {
        let kind = match loss.lost {
            LossKind::File { .. } => "file",
            LossKind::Name { .. } => "name",
            LossKind::Bytes { .. } => "bytes",
            LossKind::Size { .. } => "size",
            LossKind::Target => "target",
            LossKind::Attributes { .. } => "attributes",
        };
        let path = String::from_utf8_lossy(&loss.path).into_owned();
        json!({ "path": path, "inode": loss.ino.0, "kind": kind, "text": loss.to_string() })
    };
    let left = |(one, why): &(Finding, String)| json!({ "finding": finding(one), "reason": why });
    json!({
        "end": end,
        "rounds": outcome.rounds,
        "replayed_transactions": outcome.replayed,
        "steps": outcome.steps.iter().map(step).collect::<Vec<_>>(),
        "losses": outcome.losses.iter().map(loss).collect::<Vec<_>>(),
        "left": outcome.left.iter().map(left).collect::<Vec<_>>(),
    })
}
