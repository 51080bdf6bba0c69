//! One HTML file about a result: verdicts, box plots, latency curves, maps of block groups, tables, and the
//! configuration.
//!
//! Main items: [`command`] (`extant lab report`), [`html`], [`escape`]. The file is self-contained: style and pictures
//! are inline, there is no script, and a content security policy enforces that in the browser. It follows the reader's
//! light or dark setting, and is legible on a phone.
//!
//! Strings of a result are untrusted, so every one goes through [`escape`]. It computes no statistics.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;

use crate::compare::{self, Error, Group, Series, TableRow};
use crate::measure::latency::histogram;
use crate::measure::program::boundary;
use crate::names::{self, Names, digits};
use crate::plot::{self, COLOURS, duration};
use crate::result::{LockRow, Outcome, TRIALS, Trial};
use crate::stats::{DEFAULT_EFFECT, Verdict};
use crate::sweep::page;
use crate::table::{advice, answer, change, number, percent};

/// Name of the report in a directory of results.
pub const REPORT: &str = "report.html";

/// How many workloads of a result its title names.
const TITLES_MAX: usize = 3;

/// Bytes of a program's output that the page shows.
const OUTPUT_MAX: usize = 8 << 10;

/// The maximum number of trials that are listed individually.
const LISTED_MAX: usize = 500;

/// Writes the report of `result` to `output`, or beside the trials. Returns its path.
pub fn command(result: &Path, output: Option<&Path>) -> Result<PathBuf, Error> {
    let groups = compare::open(&[vec![result.to_owned()]], None, false)?;
    let output = match output {
        Some(path) => path.to_owned(),
        None if result.is_dir() => result.join(REPORT),
        None => result.with_extension("html"),
    };
    if output.file_name().is_some_and(|n| n == TRIALS) {
        return Err(Error::Nothing { why: format!("{} would be overwritten", output.display()) });
    }
    // Also for "." and "..".
    let spelt = result.canonicalize().unwrap_or_else(|_| result.to_owned());
    let name = spelt.file_name().unwrap_or(spelt.as_os_str()).to_string_lossy().into_owned();
    std::fs::write(&output, html(&name, &groups)).map_err(|source| Error::Read { path: output.clone(), source })?;
    Ok(output)
}

/// Text for HTML, in content and in quoted attributes. Control characters, which can reorder text, are replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            c if c.is_control() => out.push('\u{fffd}'),
            // Marks that reorder the following text.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The page.
pub fn html(name: &str, groups: &[Group]) -> String {
    if page::is_sweep(groups) {
        return page::html(name, groups, &[]);
    }
    let mut page = String::new();
    let mut work: Vec<String> = groups.iter().map(names::title).collect();
    if let more @ 1.. = work.len().saturating_sub(TITLES_MAX) {
        work.truncate(TITLES_MAX);
        work.push(format!("{more} more"));
    }
    page_begins(&mut page, name, &work.join("; "), "");
    for group in groups {
        section(&mut page, group);
    }
    page.push_str("</main></body></html>\n");
    page
}

/// The head of a page, its heading, and the name of the result. `colours`: the page's own ([`names::style`]).
pub(crate) fn page_begins(page: &mut String, name: &str, heading: &str, colours: &str) {
    let heading = escape(heading);
    let title = format!("{heading} - extant lab");
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main style=\"{colours}\">\n<h1>{heading}</h1>\n\
         <p class=\"dim\">Result <code>{}</code></p>\n",
        escape(name)
    );
}

fn section(page: &mut String, group: &Group) {
    let colours = names::style(&group.labels());
    let _ = writeln!(page, "<section style=\"{colours}\"><h2>{}</h2>", escape(&group.workload.name));
    let w = &group.workload;
    let parameters: Vec<String> =
        w.parameters.iter().map(|(k, v)| format!("{}={}", escape(k), escape(&v.to_string()))).collect();
    let _ = writeln!(page, "<p class=\"dim\">scale {} · seed {} · {}</p>", w.scale, w.seed, parameters.join(" · "));
    for note in &group.notes {
        let loud = if note.starts_with("NOT THE SAME WORK") || note.contains(" failed ") || note.contains("FLAWED") {
            " class=\"note loud\""
        } else {
            " class=\"note\""
        };
        let _ = writeln!(page, "<p{loud}>{}</p>", escape(note));
    }
    let names = Names::new(&group.labels());
    let _ = writeln!(page, "<p class=\"result\">{}</p>", escape(&names::sentence(group, &names)));
    if !names.common.is_empty() {
        let _ = writeln!(page, "<p class=\"dim\">All of them: <code>{}</code></p>", escape(&names.common));
    }
    let names = &names.short;
    verdicts(page, group, names);
    let values: Vec<_> = (0..group.series.len())
        .map(|i| (group.summary(i, &group.headline), group.series[i].values(&group.headline)))
        .collect();
    figure(
        page,
        &format!("{} [{}]", group.headline, unit_of(group)),
        plot::boxes(&group.headline, names, &values),
        "Every point is a trial; the box holds the middle half, the thick line is the median.",
    );
    latencies(page, group, names);
    map(page, group, names);
    table(page, group, names);
    locks(page, group, names);
    outputs(page, group, names);
    let _ = writeln!(
        page,
        "<details><summary>ministat</summary><pre>{}</pre></details>",
        escape(&group.ministat(&group.headline, DEFAULT_EFFECT))
    );
    trials(page, group, names);
    configuration(page, group, names);
    page.push_str("</section>\n");
}

/// A contestant by its short name, in its colour.
pub(crate) fn chip(names: &[String], i: usize) -> String {
    format!("<b class=\"chip c{}\">{}</b>", i % COLOURS, escape(&names[i]))
}

fn unit_of(group: &Group) -> String {
    names::unit(&group.workload.name, &group.headline)
}

/// The headline of each contestant, which is also the legend of the pictures.
fn verdicts(page: &mut String, group: &Group, names: &[String]) {
    let unit = &unit_of(group);
    let comparisons = group.comparisons(&group.headline);
    let shown = compare::family(&comparisons);
    page.push_str("<div class=\"cards\">");
    for (i, s) in group.series.iter().enumerate() {
        let summary = group.summary(i, &group.headline);
        let _ = write!(page, "<div class=\"card\">{}", chip(names, i));
        if names[i] != s.label {
            let _ = write!(page, " <code>{}</code>", escape(&s.label));
        }
        match &summary {
            Some(m) => {
                let spread = m.sd.map_or(String::new(), |sd| {
                    let cv = m.cv.map_or(String::new(), |cv| format!(" ({:.1} % of the mean)", cv * 100.0));
                    format!(" · standard deviation {} {unit}{cv}", digits(sd))
                });
                let _ = write!(
                    page,
                    "<div class=\"big\">{} {unit}<small> · mean of {}, {} trials{spread}</small></div>",
                    digits(m.mean),
                    escape(&group.headline),
                    m.n
                );
            }
            None => page.push_str("<div class=\"big\">-</div>"),
        }
        if i == 0 {
            page.push_str("<div class=\"dim\">baseline</div>");
        } else {
            let c = comparisons[i].as_ref();
            let class = match shown[i] {
                Some(Verdict::Better) => "good",
                Some(Verdict::Worse) => "bad",
                _ => "dim",
            };
            let _ = write!(page, "<div class=\"{class}\">{}</div>", escape(&answer(c, unit)));
            if let Some(advice) = c.and_then(|c| advice(c, DEFAULT_EFFECT, unit)) {
                let _ = write!(page, "<div class=\"dim\">{}</div>", escape(&advice));
            }
        }
        page.push_str("</div>");
    }
    page.push_str("</div>\n");
}

pub(crate) fn figure(page: &mut String, title: &str, svg: Option<String>, caption: &str) {
    if let Some(svg) = svg {
        let _ = writeln!(
            page,
            "<figure><h3>{}</h3>{svg}<figcaption>{}</figcaption></figure>",
            escape(title),
            escape(caption)
        );
    }
}

fn latencies(page: &mut String, group: &Group, names: &[String]) {
    let mut operations: Vec<&String> = Vec::new();
    for name in group.series.iter().flat_map(Series::trials).flat_map(|t| t.latency.keys()) {
        if !operations.contains(&name) {
            operations.push(name);
        }
    }
    if operations.is_empty() {
        return;
    }
    page.push_str("<h3>Latency</h3><p class=\"dim\">Up to which percentile an operation took at most how long; all trials of a contestant together, the dot is the longest.</p><div class=\"grid\">");
    for name in operations {
        let merged: Vec<Option<Histogram<u64>>> = group.series.iter().map(|s| merged(s, name)).collect();
        let svg = plot::curves(&format!("latency of {name}"), names, &merged);
        figure(page, name, svg, "");
    }
    page.push_str("</div>\n");
}

/// All samples of one operation of a contestant. An unreadable record counts as missing.
fn merged(series: &Series, operation: &str) -> Option<Histogram<u64>> {
    let mut all: Option<Histogram<u64>> = None;
    for h in series.trials().filter_map(|t| histogram(t.latency.get(operation)?).ok()) {
        match &mut all {
            Some(sum) => sum.add(&h).ok()?,
            None => {
                all = Some(h);
                all.as_mut()?.auto(true);
            }
        }
    }
    all
}

fn map(page: &mut String, group: &Group, names: &[String]) {
    let series: Vec<Vec<(u32, u64)>> = group
        .series
        .iter()
        .map(|s| {
            let mut sum = BTreeMap::<u32, u64>::new();
            for (g, blocks) in s.trials().flat_map(|t| &t.groups) {
                let total = sum.entry(*g).or_default();
                *total = total.saturating_add(*blocks);
            }
            sum.into_iter().collect()
        })
        .collect();
    let last = series.iter().flatten().map(|(g, _)| *g).max();
    // Groups of the usual 128 MiB: up to the end of the image, if the trials contain its size.
    let image =
        group.series.iter().flat_map(Series::trials).map(|t| t.environment.image_bytes.div_ceil(128 << 20)).max();
    let groups = last.map(|l| u64::from(l) + 1).max(image).and_then(|g| u32::try_from(g).ok());
    if let (Some(_), Some(groups)) = (last, groups) {
        figure(
            page,
            "Block groups that were written to",
            plot::strips("blocks by group", names, groups, &series),
            "From the first group to the last; the stronger the colour, the more blocks, each strip by its own strongest.",
        );
    }
    let chunks: Vec<_> = group.series.iter().map(|s| s.trials().find(|t| !t.chunks.is_empty())).collect();
    if chunks.iter().any(Option::is_some) {
        page.push_str("<h3>Where small files' preallocations went</h3><p class=\"dim\">Block groups of the first ones, in order, in the first round.</p>");
        for (i, trial) in chunks.iter().enumerate() {
            let Some(trial) = trial else { continue };
            let groups: Vec<String> = trial.chunks.iter().take(64).map(u32::to_string).collect();
            let _ = write!(page, "<p>{} <code>{}</code></p>", chip(names, i), groups.join(" "));
        }
    }
}

/// The mmtests table, with colours for differences that are shown.
fn table(page: &mut String, group: &Group, names: &[String]) {
    let (differ, rest): (Vec<TableRow>, Vec<TableRow>) = group
        .table()
        .into_iter()
        .partition(|row| row.row.name == group.headline || row.shown.iter().any(Option::is_some));
    page.push_str("<h3>Figures that differ</h3><p class=\"dim\">Means; in brackets the change against the baseline, positive is better. Coloured where a difference is shown although all cells share one chance in twenty to be wrong (Holm); without a colour a difference may be chance.</p>");
    rows(page, names, &differ);
    if !rest.is_empty() {
        let _ = write!(page, "<details><summary>{} figures of which no difference is shown</summary>", rest.len());
        rows(page, names, &rest);
        page.push_str("</details>\n");
    }
}

fn rows(page: &mut String, names: &[String], rows: &[TableRow]) {
    page.push_str("<div class=\"scroll\"><table><thead><tr><th></th>");
    for i in 0..names.len() {
        let _ = write!(page, "<th>{}</th>", chip(names, i));
    }
    page.push_str("</tr></thead><tbody>");
    for TableRow { row, shown } in rows {
        // A duration has its unit in each cell.
        let durations = row.unit == "ns";
        let unit = if durations { String::new() } else { format!(" <small>[{}]</small>", row.unit) };
        let _ = write!(page, "<tr><th>{}{unit}</th>", escape(&row.name));
        let base = row.means.first().copied().flatten();
        for (i, mean) in row.means.iter().enumerate() {
            let Some(mean) = mean else {
                page.push_str("<td></td>");
                continue;
            };
            let class = match shown[i] {
                Some(Verdict::Better) => " class=\"good\"",
                Some(Verdict::Worse) => " class=\"bad\"",
                _ => "",
            };
            let bracket = match base.and_then(|b| change(b, *mean, row.direction)).filter(|_| i > 0) {
                Some(c) => format!(" <small>({})</small>", percent(c)),
                None => String::new(),
            };
            let _ =
                write!(page, "<td{class}>{}{bracket}</td>", if durations { duration(*mean) } else { digits(*mean) });
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>\n");
}

/// The table of `perf lock`, over all trials of each contestant.
fn locks(page: &mut String, group: &Group, names: &[String]) {
    for (i, s) in group.series.iter().enumerate() {
        let mut rows: Vec<LockRow> = Vec::new();
        for l in s.trials().flat_map(|t| &t.locks) {
            match rows.iter_mut().find(|r| r.name == l.name) {
                Some(r) => {
                    r.acquired = r.acquired.saturating_add(l.acquired);
                    r.total_wait_ns = r.total_wait_ns.saturating_add(l.total_wait_ns);
                    r.max_wait_ns = r.max_wait_ns.max(l.max_wait_ns);
                    // If there was no wait, the minimum is not 0.
                    r.min_wait_ns = match (r.contended, l.contended) {
                        (0, _) => l.min_wait_ns,
                        (_, 0) => r.min_wait_ns,
                        _ => r.min_wait_ns.min(l.min_wait_ns),
                    };
                    r.contended = r.contended.saturating_add(l.contended);
                }
                None => rows.push(l.clone()),
            }
        }
        rows.sort_by(|a, b| b.total_wait_ns.cmp(&a.total_wait_ns).then(b.acquired.cmp(&a.acquired)));
        if rows.is_empty() {
            continue;
        }
        let _ = write!(
            page,
            "<h3>Locks of {} <code>{}</code></h3><div class=\"scroll\"><table><thead><tr><th></th><th>acquired <small>[count]</small></th><th>contended <small>[count]</small></th><th>avg wait</th><th>total wait</th><th>max wait</th><th>min wait</th></tr></thead><tbody>",
            chip(names, i),
            escape(&s.label)
        );
        for r in rows.iter().filter(|r| r.acquired > 0) {
            let wait = |ns: f64| if r.contended == 0 { String::new() } else { duration(ns) };
            let avg = r.total_wait_ns as f64 / r.contended.max(1) as f64;
            let _ = write!(
                page,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&r.name),
                r.acquired,
                r.contended,
                wait(avg),
                wait(r.total_wait_ns as f64),
                wait(r.max_wait_ns as f64),
                wait(r.min_wait_ns as f64)
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
}

/// The beginning of what the user's program printed in the first trial of each contestant.
fn outputs(page: &mut String, group: &Group, names: &[String]) {
    for (i, s) in group.series.iter().enumerate() {
        let Some(trial) = s.trials().find(|t| !t.output.is_empty()) else { continue };
        let shown = &trial.output[..boundary(&trial.output, OUTPUT_MAX)];
        let more = match trial.output.len() - shown.len() {
            0 => String::new(),
            more => format!("<p class=\"dim\">{more} bytes more in {TRIALS}</p>"),
        };
        let _ = writeln!(
            page,
            "<details><summary>Output of the program: {} round {}</summary><pre>{}</pre>{more}</details>",
            chip(names, i),
            trial.round + 1,
            escape(shown)
        );
    }
}

/// The headline of every trial, and the errors of failed ones.
fn trials(page: &mut String, group: &Group, names: &[String]) {
    page.push_str("<details><summary>Every trial</summary><div class=\"scroll\"><table><thead><tr><th>round</th><th></th><th>started <small>[s since 1970]</small></th>");
    let headline = format!("{} <small>[{}]</small>", escape(&group.headline), unit_of(group));
    let _ = write!(page, "<th>{headline}</th><th>outcome</th></tr></thead><tbody>");
    let mut listed: Vec<(u32, usize, String)> = Vec::new();
    for (i, s) in group.series.iter().enumerate() {
        for t in s.trials() {
            let value =
                crate::figure::figures(t).into_iter().find(|(n, _)| *n == group.headline).map(|(_, v)| number(v));
            let outcome = if t.outcome == Outcome::Checked { "checked" } else { "unchecked" };
            let cells = format!("<td>{}</td><td>{}</td><td>{outcome}</td>", t.started_s, value.unwrap_or_default());
            listed.push((t.round, i, cells));
        }
        for (round, why) in s.failed() {
            listed.push((*round, i, format!("<td></td><td></td><td class=\"bad\">{}</td>", escape(why))));
        }
    }
    listed.sort_by_key(|(round, i, _)| (*round, *i));
    for (round, i, cells) in listed.iter().take(LISTED_MAX) {
        let _ = write!(page, "<tr><td>{round}</td><td>{}</td>{cells}</tr>", chip(names, *i));
    }
    page.push_str("</tbody></table></div>");
    if listed.len() > LISTED_MAX {
        let _ = write!(page, "<p class=\"dim\">{} more in {TRIALS}</p>", listed.len() - LISTED_MAX);
    }
    page.push_str("</details>\n");
}

/// The whole configuration; values that contestants share appear once.
fn configuration(page: &mut String, group: &Group, names: &[String]) {
    page.push_str("<h3>Configuration</h3><div class=\"scroll\"><table class=\"left\"><tbody>");
    type Get = fn(&Trial) -> String;
    let rows: &[(&str, Get)] = &[
        ("command", |t| t.environment.command.join(" ")),
        ("extant", |t| format!("{} ({})", t.environment.version, t.environment.commit)),
        ("kernel", |t| t.environment.kernel.clone()),
        ("processor", |t| format!("{} ({} cores)", t.environment.cpu, t.environment.cores)),
        ("memory", |t| format!("{:.1} GiB", t.environment.memory_bytes as f64 / f64::from(1 << 30))),
        ("device", |t| t.environment.device.clone()),
        ("image", |t| {
            if t.environment.image_bytes == 0 {
                String::new()
            } else {
                format!("{} MiB", t.environment.image_bytes >> 20)
            }
        }),
        ("mkfs", |t| t.environment.mkfs.clone()),
        ("features", |t| t.environment.features.join(" ")),
        ("kind", |t| t.contestant.kind.clone()),
        ("options", |t| t.contestant.options.clone()),
        ("policies", |t| t.contestant.policies.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")),
    ];
    for (name, get) in rows {
        let values: Vec<(usize, String)> =
            group.series.iter().enumerate().filter_map(|(i, s)| Some((i, get(s.trials().next()?)))).collect();
        let same = values.windows(2).all(|w| w[0].1 == w[1].1);
        if values.iter().all(|(_, v)| v.is_empty()) {
            continue;
        }
        let shown: Vec<String> = if same {
            values.iter().take(1).map(|(_, v)| escape(v)).collect()
        } else {
            values.iter().map(|(i, v)| format!("{} {}", chip(names, *i), escape(v))).collect()
        };
        let _ = write!(page, "<tr><th>{name}</th><td><code>{}</code></td></tr>", shown.join("<br>"));
    }
    page.push_str("</tbody></table></div>\n");
}

/// Colours that also differ in lightness, for readers who cannot distinguish hues.
const STYLE: &str = "
:root{--ink:#1d2430;--paper:#fbfaf7;--card:#fff;--grid:#d9d6ce;--dim:#667085;--good:#0a7d4f;--bad:#b3261e;
--p0:#3659a8;--p1:#c4620a;--p2:#0f8a7e;--p3:#a23a8f;--p4:#6b7f16;--p5:#c2342f;--p6:#7657c9;--p7:#5e6573;
--s0:var(--p0);--s1:var(--p1);--s2:var(--p2);--s3:var(--p3);--s4:var(--p4);--s5:var(--p5);--s6:var(--p6);--s7:var(--p7)}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--paper:#14171c;--card:#1c2128;--grid:#3a414c;--dim:#9aa4b2;--good:#4fd19b;--bad:#ff8a80;
--p0:#84a9ff;--p1:#ffab5e;--p2:#4fd6c6;--p3:#e99bdb;--p4:#c3d863;--p5:#ff8d86;--p6:#b9a4ff;--p7:#aab2bf}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:70rem;margin:0 auto;padding:1.2rem 1rem 4rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.25rem;margin:2rem 0 0}h3{font-size:1rem;margin:1.6rem 0 .4rem}
p{margin:.3rem 0 .6rem}.dim,figcaption{color:var(--dim);font-size:.875rem}
.result{font-size:1.1rem;max-width:46rem}
.note{border-left:4px solid var(--grid);padding:.2rem .7rem;font-size:.9rem}.loud{border-color:var(--bad);color:var(--bad);font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr));gap:.8rem;margin:1rem 0}
.card{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:.8rem 1rem;font-size:.9rem;overflow-wrap:anywhere}
.big{font-size:1.6rem;font-weight:650;line-height:1.3;margin:.3rem 0}.big small{font-size:.8rem;font-weight:400;color:var(--dim)}
.good{color:var(--good)}.bad{color:var(--bad)}
.chip{display:inline-block;min-width:1.5em;padding:0 .35em;border-radius:.35em;color:var(--paper);text-align:center;font-size:.85em}
.c0{background:var(--s0)}.c1{background:var(--s1)}.c2{background:var(--s2)}.c3{background:var(--s3)}.c4{background:var(--s4)}.c5{background:var(--s5)}.c6{background:var(--s6)}.c7{background:var(--s7)}
figure{margin:0;max-width:46rem}figure h3{margin-top:.6rem}svg{display:block;width:100%;height:auto}
svg text{font-family:system-ui,sans-serif}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:.4rem 1.5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem .25rem 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
tbody th{text-align:left;font-weight:500;position:sticky;left:0;background:var(--paper);padding-right:1rem}
.left td{text-align:left;white-space:normal;overflow-wrap:anywhere}
code,pre{font:.85em/1.45 ui-monospace,monospace}pre{overflow-x:auto;background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:.8rem}
summary{cursor:pointer;margin:.8rem 0 .3rem;font-weight:600}
small{color:inherit;opacity:.85}
";

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
