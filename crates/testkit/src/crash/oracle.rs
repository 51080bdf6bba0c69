//! Whether a recovered tree is one that the workload allows.
//!
//! With a journal: names, link counts, symbolic links and attributes are exactly those after some operation. That
//! operation is not older than the newest acknowledged one ([`History::names_floor`]). So no operation is ever visible
//! in part, and their order is preserved. Without a journal, names that were acknowledged and not changed since exist.
//!
//! For content, in any case, every byte of every file is the acknowledged byte, or one written to that place of that
//! file since. Zero is allowed only if the byte was a hole, or beyond the end, at some time since, or if the size was
//! set explicitly over data that may not have been on the device yet. Appending never exposes zeros. Bytes that a
//! truncation or punch removed do not reappear once a later operation is visible. A file that replaced another was
//! completely on the device before the rename.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use crate::crash::history::{ContentChange, Cut, History, Names, NodeId, NodeKind};
use crate::crash::pattern;
use crate::crash::seen::{SeenNode, SeenTree};

/// Checks the tree; the message describes the error. `unjournalled`: the block size if there is no journal.
pub fn check(history: &History, seen: &SeenTree, cut: Cut, unjournalled: Option<u32>) -> Result<(), String> {
    let Some(block_size) = unjournalled else {
        let (op, names) = find_names(history, seen, cut)?;
        check_links(seen)?;
        for (path, node) in seen {
            let id = names.paths[path];
            check_content(history, id, node, cut, op, None).map_err(|e| format!("{path}: {e}"))?;
        }
        return Ok(());
    };
    check_acknowledged_names(history, seen, cut)?;
    for (path, node) in seen {
        let Some(id) = identity(history, node) else { continue };
        check_content(history, id, node, cut, history.names_floor(cut), Some(u64::from(block_size)))
            .map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// Checks only data that was acknowledged as durable before the cut and cannot have changed since. If the device failed
/// requests, nothing else is guaranteed.
pub fn check_acknowledged(history: &History, seen: &SeenTree, cut: Cut) -> Result<(), String> {
    check_acknowledged_names(history, seen, cut)?;
    let last = history.last_possible(cut);
    for (path, node) in seen {
        let Some(id) = identity(history, node) else { continue };
        let Some(floor) = history.content_floor(id, cut) else { continue };
        let changed = history.nodes[id as usize].changes.iter().any(|c| c.op > floor && c.op <= last);
        if !changed {
            check_content(history, id, node, cut, floor, None).map_err(|e| format!("{path}: {e}"))?;
        }
    }
    Ok(())
}

/// The node of the workload that matches; `None` if that is ambiguous.
fn identity(history: &History, seen: &SeenNode) -> Option<NodeId> {
    if let Some(generation) = seen.generation {
        return history.find(seen.ino, generation);
    }
    let mut all = history.nodes.iter().enumerate().filter(|(_, n)| n.ino == seen.ino);
    let (id, _) = all.next()?;
    all.next().is_none().then_some(id as NodeId)
}

/// The oldest operation after which the namespace was the observed one.
fn find_names<'a>(history: &'a History, seen: &SeenTree, cut: Cut) -> Result<(usize, &'a Names), String> {
    let (floor, last) = (history.names_floor(cut), history.last_possible(cut));
    let mut nearest: Option<(usize, usize, String)> = None;
    for op in floor..=last {
        let names = &history.ops[op].names;
        let differences = names_diff(history, names, seen);
        if differences.is_empty() {
            return Ok((op, names));
        }
        if nearest.as_ref().is_none_or(|(n, _, _)| differences.len() < *n) {
            nearest = Some((differences.len(), op, differences.join("\n    ")));
        }
    }
    let (_, op, text) = nearest.unwrap_or_default();
    Err(format!(
        "the namespace is not one that existed between op {floor} (acknowledged) and op {last}; the nearest is that of op \
         {op}:\n    {text}\n{}",
        history.around(last, 25)
    ))
}

fn names_diff(history: &History, names: &Names, seen: &SeenTree) -> Vec<String> {
    let mut out = Vec::new();
    for (path, id) in &names.paths {
        let node = &history.nodes[*id as usize];
        let Some(s) = seen.get(path) else {
            out.push(format!("{path} is missing (inode {})", node.ino));
            continue;
        };
        if s.ino != node.ino || s.generation.is_some_and(|g| g != node.generation) {
            out.push(format!("{path} is inode {}, generation {:?}, not {}", s.ino, s.generation, node.ino));
        }
        if s.kind != node.kind || s.target != node.target {
            out.push(format!("{path} is a {:?} to {:?}", s.kind, s.target));
        }
        let none = BTreeMap::new();
        let attrs = names.attrs.get(id).unwrap_or(&none);
        if *attrs != s.attrs {
            let short = |m: &BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<String> {
                m.iter().map(|(k, v)| format!("{}={}…{}", k.escape_ascii(), v.len(), v.len() % 7)).collect()
            };
            out.push(format!("{path} has attributes {:?}, not {:?}", short(&s.attrs), short(attrs)));
        }
    }
    out.extend(seen.keys().filter(|p| !names.paths.contains_key(*p)).map(|p| format!("{p} is there")));
    out
}

/// Checks that files have as many links as names.
fn check_links(seen: &SeenTree) -> Result<(), String> {
    let mut names: BTreeMap<u32, u64> = BTreeMap::new();
    for s in seen.values().filter(|s| s.kind != NodeKind::Directory) {
        *names.entry(s.ino).or_default() += 1;
    }
    for (path, s) in seen.iter().filter(|(_, s)| s.kind != NodeKind::Directory) {
        if s.nlink != names[&s.ino] {
            return Err(format!("{path} has {} links and {} names", s.nlink, names[&s.ino]));
        }
    }
    Ok(())
}

/// Checks names that were durable and that no later operation can have changed.
fn check_acknowledged_names(history: &History, seen: &SeenTree, cut: Cut) -> Result<(), String> {
    let (floor, last) = (history.names_floor(cut), history.last_possible(cut));
    for (path, id) in &history.ops[floor].names.paths {
        if (floor..=last).any(|op| history.ops[op].names.paths.get(path) != Some(id)) {
            continue;
        }
        let node = &history.nodes[*id as usize];
        match seen.get(path) {
            Some(s) if s.ino == node.ino && s.kind == node.kind && s.target == node.target => {}
            other => {
                let what = other.map(|s| (s.ino, s.kind));
                return Err(format!(
                    "{path} was durable since op {floor} as inode {}, now it is {what:?}\n{}",
                    node.ino,
                    history.around(last, 25)
                ));
            }
        }
    }
    Ok(())
}

/// The state of a byte after some operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Beyond,
    Zero,
    Data(usize),
}

/// Checks the content of a file. `seen_op`: an operation whose metadata is known to be on the device, along with all
/// earlier ones. `loose`: the block size, if there is no journal that makes operations atomic.
fn check_content(
    history: &History,
    id: NodeId,
    seen: &SeenNode,
    cut: Cut,
    seen_op: usize,
    loose: Option<u64>,
) -> Result<(), String> {
    let node = &history.nodes[id as usize];
    if seen.kind != NodeKind::File {
        return Ok(());
    }
    let last = history.last_possible(cut);
    let floor = history.content_floor(id, cut).unwrap_or(0);
    let evidence = if loose.is_some() { 0 } else { size_evidence(node, seen.content.len() as u64, floor, last) };
    let seen_op = seen_op.max(floor).max(evidence);
    // Replacing another file made everything written so far durable.
    let replaced = node.replaced.iter().copied().filter(|r| *r <= seen_op && loose.is_none()).max();
    let solid = replaced.unwrap_or(0).max(floor);
    let changes: Vec<_> = node.changes.iter().filter(|c| c.op <= last).collect();

    // The possible sizes: any since the last durable one, except those before a truncation that is visible.
    let (mut size, mut least, mut most) = (0u64, 0u64, 0u64);
    for c in &changes {
        size = match c.what {
            ContentChange::Write { to, .. } => size.max(to),
            ContentChange::Size { to, .. } => to,
            ContentChange::Zero { .. } => size,
        };
        (least, most) = match c.what {
            _ if c.op <= solid => (size, size),
            ContentChange::Size { to, .. } if c.op <= seen_op => (to, to),
            _ => (least.min(size), most.max(size)),
        };
    }
    if let Some(bs) = loose {
        // If blocks are mapped before the size is updated, e2fsck raises the size to whole blocks.
        most = most.next_multiple_of(bs);
    }
    let found = seen.content.len() as u64;
    if found < least || found > most {
        return Err(format!(
            "{found} bytes long, should be {least}..={most} (durable at op {floor}, solid at op {solid}, \
             seen op {seen_op})\n{}",
            describe(history, id, last)
        ));
    }

    let mut marks: Vec<u64> = vec![0, found];
    for c in &changes {
        match c.what {
            ContentChange::Write { from, to } => marks.extend([from, to]),
            ContentChange::Zero { from, to, whole_from, whole_to } => marks.extend([from, to, whole_from, whole_to]),
            ContentChange::Size { to, zeroed_to } => marks.extend([to, zeroed_to]),
        }
    }
    marks.retain(|m| *m <= found);
    marks.sort_unstable();
    marks.dedup();
    for pair in marks.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (candidates, zero) = allowed(&changes, from, floor, solid, seen_op, loose.is_some());
        let bytes = &seen.content[from as usize..to as usize];
        if zero && bytes.iter().all(|b| *b == 0) {
            continue;
        }
        // The newest pattern is the most likely.
        let mut patterns: Vec<Vec<u8>> = Vec::with_capacity(candidates.len());
        let whole = candidates.iter().rev().any(|v| {
            patterns.push(pattern::bytes(history.first + id, *v as u32, from, to));
            patterns.last().is_some_and(|p| p == bytes)
        });
        if whole {
            continue;
        }
        for (i, b) in bytes.iter().enumerate() {
            if (*b == 0 && zero) || patterns.iter().any(|p| p[i] == *b) {
                continue;
            }
            let at = from + i as u64;
            return Err(format!(
                "byte {at} (in {from}..{to}) is {}; allowed are the writes of ops {candidates:?}{} (durable at op {floor}, \
                 solid at op {solid}, seen op {seen_op}, size {found})\n{}",
                identify(history, &seen.content, at),
                if zero { " and zero" } else { ", not zero" },
                describe(history, id, last)
            ));
        }
    }
    Ok(())
}

/// Operations whose write may be visible at byte `at`, and whether zero may be.
fn allowed(
    changes: &[&crate::crash::history::Change],
    at: u64,
    floor: usize,
    solid: usize,
    seen_op: usize,
    loose: bool,
) -> (Vec<usize>, bool) {
    let mut cell = Cell::Beyond;
    let mut size = 0u64;
    let mut candidates: Vec<usize> = Vec::new();
    let mut zero = false;
    // Beyond the end at some time since the file was last durable, so that setting a size may expose it before later
    // data is on the device.
    let mut was_beyond = true;
    for c in changes {
        let (mut removes, mut zeroed) = (false, false);
        match c.what {
            ContentChange::Write { from, to } => {
                if (from..to).contains(&at) {
                    cell = Cell::Data(c.op);
                } else if to > at && cell == Cell::Beyond {
                    cell = Cell::Zero;
                }
                size = size.max(to);
            }
            ContentChange::Zero { from, to, whole_from, whole_to } => {
                if (from..to).contains(&at) && cell != Cell::Beyond {
                    cell = Cell::Zero;
                    removes = (whole_from..whole_to).contains(&at);
                }
            }
            ContentChange::Size { to, zeroed_to } => {
                if to <= at {
                    cell = Cell::Beyond;
                    removes = true;
                    zeroed = at < zeroed_to || loose;
                } else if cell == Cell::Beyond {
                    cell = Cell::Zero;
                }
                size = to;
            }
        }
        if c.op <= floor {
            candidates.clear();
        }
        if removes && c.op <= seen_op {
            candidates.clear();
        }
        if let Cell::Data(op) = cell
            && !candidates.contains(&op)
        {
            candidates.push(op);
        }
        if c.op <= solid {
            zero = cell == Cell::Zero;
            was_beyond = cell == Cell::Beyond;
        } else {
            zero |= cell == Cell::Zero || zeroed;
            was_beyond |= cell == Cell::Beyond;
            // An explicitly set size is on the device before data that is still delayed.
            zero |= was_beyond && size > at && !matches!(c.what, ContentChange::Write { .. });
        }
    }
    // Mapped blocks, sizes and inodes reach the device one by one, so there may be a hole where data was not durable.
    (candidates, zero || (loose && was_beyond))
}

/// If only one operation can have given the file this size, and it set the size explicitly, then that operation is on
/// the device. The durable state is also a candidate.
fn size_evidence(node: &crate::crash::history::Node, found: u64, floor: usize, last: usize) -> usize {
    let (mut size, mut by, mut durable) = (0u64, None, 0);
    for c in node.changes.iter().filter(|c| c.op <= last) {
        let before = size;
        match c.what {
            ContentChange::Write { to, .. } => size = size.max(to),
            ContentChange::Size { to, .. } => size = to,
            ContentChange::Zero { to, .. } if to == found && c.op > floor => return 0,
            ContentChange::Zero { .. } => {}
        }
        if c.op <= floor {
            (by, durable) = (None, size);
            continue;
        }
        match c.what {
            ContentChange::Size { to, .. } if to == found && to > before && by.is_none() => by = Some(c.op),
            // Any other change that passes through this size makes it ambiguous.
            ContentChange::Write { .. } | ContentChange::Size { .. }
                if size == found || (before < found && found < size) =>
            {
                return 0;
            }
            _ => {}
        }
    }
    by.filter(|_| durable != found).unwrap_or(0)
}

/// A description of the bytes at `at`, if they come from the workload.
fn identify(history: &History, content: &[u8], at: u64) -> String {
    let bytes = &content[at as usize..(at as usize + 8).min(content.len())];
    if bytes[0] == 0 {
        let zeros = content[at as usize..].iter().take_while(|b| **b == 0).count();
        return format!("zero, as {zeros} bytes from there on");
    }
    if pattern::is_poison(bytes, at) {
        return "POISON: never written".into();
    }
    for (id, node) in history.nodes.iter().enumerate() {
        for c in &node.changes {
            if let ContentChange::Write { from, to } = c.what {
                let n = bytes.len() as u64;
                if pattern::bytes(history.first + id as u32, c.op as u32, at, at + n) == bytes {
                    return format!("of node {id} (inode {}), op {}", node.ino, c.op);
                }
                // The bytes belong to another offset: blocks were mixed up.
                let mut place = from - from % 8 + at % 8;
                while place + n <= to {
                    if pattern::bytes(history.first + id as u32, c.op as u32, place, place + n) == bytes {
                        return format!("of node {id} (inode {}), op {}, offset {place}", node.ino, c.op);
                    }
                    place += 8;
                }
            }
        }
    }
    format!("{bytes:02x?}, of nothing known")
}

/// Everything that happened to the node.
fn describe(history: &History, id: NodeId, last: usize) -> String {
    let node = &history.nodes[id as usize];
    let mut out =
        format!("    node {id}, inode {}, durable {:?}, replaced {:?}\n", node.ino, node.durable, node.replaced);
    for c in node.changes.iter().filter(|c| c.op <= last + 2) {
        out.push_str(&format!(
            "    op {} [{}..{}] {:?}\n",
            c.op, history.ops[c.op].start, history.ops[c.op].end, c.what
        ));
    }
    out.push_str("  operations before the cut:\n");
    out.push_str(&history.around(last, 20));
    out
}
