//! One HTML file about a sweep: a picture of each figure over each swept value, and a table of all points.
//!
//! Main items: [`html`], [`is_sweep`]. It is a page like that of `report`: no script, no external files, light and dark
//! themes, and all text of a result escaped. If several values are swept, a picture over one of them is drawn for each
//! combination of the others.
//!
//! It computes no statistics.
//!
//! # Locking
//! None.

use std::fmt::Write as _;

use crate::compare::{self, Group};
use crate::figure;
use crate::names::{self, Names, digits};
use crate::plot;
use crate::report::{chip, escape, figure as picture, page_begins};
use crate::stats::Verdict;

/// The maximum number of pictures of one figure.
const PICTURES_MAX: usize = 60;

/// Whether these groups are the points of a sweep.
pub fn is_sweep(groups: &[Group]) -> bool {
    groups.iter().any(|g| !g.point().is_empty())
}

/// A contestant's label without the swept options, which differ between points.
fn label(group: &Group, i: usize) -> String {
    let of_point = |part: &&str| !group.point().iter().any(|(name, value)| *part == format!("{name}={value}"));
    group.series[i].label.split(',').filter(of_point).collect::<Vec<_>>().join(",")
}

/// All points of a sweep.
struct View<'a> {
    groups: &'a [Group],
    /// Swept names with their values, in the order of the points.
    axes: Vec<(String, Vec<String>)>,
    /// Labels of all contestants, and their short names.
    labels: Vec<String>,
    names: Names,
}

impl<'a> View<'a> {
    fn new(groups: &'a [Group]) -> View<'a> {
        let (mut axes, mut labels): (Vec<(String, Vec<String>)>, Vec<String>) = (Vec::new(), Vec::new());
        for group in groups {
            for (name, value) in group.point() {
                let at = axes.iter().position(|(n, _)| n == name).unwrap_or_else(|| {
                    axes.push((name.clone(), Vec::new()));
                    axes.len() - 1
                });
                if !axes[at].1.contains(value) {
                    axes[at].1.push(value.clone());
                }
            }
            for i in 0..group.series.len() {
                let label = label(group, i);
                if !labels.contains(&label) {
                    labels.push(label);
                }
            }
        }
        let names = Names::new(&labels);
        View { groups, axes, labels, names }
    }

    /// Axes with enough values for a picture.
    fn drawn(&self) -> impl Iterator<Item = &(String, Vec<String>)> {
        self.axes.iter().filter(|(_, values)| values.len() > 1)
    }

    /// The median of a figure, by contestant.
    fn medians(&self, group: &Group, figure: &str) -> Vec<Option<f64>> {
        let of = |wanted: &String| {
            let i = (0..group.series.len()).find(|i| label(group, *i) == *wanted)?;
            Some(group.summary(i, figure)?.median)
        };
        self.labels.iter().map(of).collect()
    }

    /// The other values of a point, as text.
    fn others(&self, group: &Group, axis: &str) -> String {
        let others = self.drawn().filter(|(name, _)| name != axis);
        let words = others.filter_map(|(name, _)| Some(format!("{name}={}", group.point().get(name)?)));
        words.collect::<Vec<_>>().join(", ")
    }
}

/// The page. `figures`: drawn in addition to the headline.
pub fn html(name: &str, groups: &[Group], figures: &[String]) -> String {
    let view = View::new(groups);
    let mut page = String::new();
    let Some(first) = groups.first() else { return page };
    let axes: Vec<&str> = view.drawn().map(|(name, _)| name.as_str()).collect();
    let over = if axes.is_empty() { String::new() } else { format!(" over {}", axes.join(" and ")) };
    let contestants = view.names.short.join(", ");
    let heading = format!("{}: {contestants}{over}", first.workload.name);
    page_begins(&mut page, name, &heading, &names::style(&view.labels));
    let swept: Vec<String> = view.axes.iter().map(|(name, values)| format!("{name}={}", values.join(","))).collect();
    let _ = writeln!(
        page,
        "<p>{} points: <code>{}</code>. Every point of a line is the median of its trials.</p>",
        groups.len(),
        escape(&swept.join(" "))
    );
    let constant =
        first.workload.parameters.iter().filter(|(name, _)| !view.axes.iter().any(|(axis, _)| axis == *name));
    let constant: Vec<String> = constant.map(|(k, v)| format!("{}={}", escape(k), escape(&v.to_string()))).collect();
    let _ = writeln!(
        page,
        "<p class=\"dim\">scale {} · seed {} · {}</p>",
        first.workload.scale,
        first.workload.seed,
        constant.join(" · ")
    );
    notes(&mut page, groups);
    legend(&mut page, &view);
    let mut drawn: Vec<&str> = vec![&first.headline];
    drawn.extend(figures.iter().map(String::as_str).filter(|f| *f != first.headline));
    for figure in drawn {
        pictures(&mut page, &view, figure);
        table(&mut page, &view, figure);
    }
    let command = first.series.iter().flat_map(compare::Series::trials).next().map(|t| t.environment.command.join(" "));
    let _ = write!(
        page,
        "<h3>Configuration of the first point</h3><pre>{}</pre>\n</main></body></html>\n",
        escape(&command.unwrap_or_default())
    );
    page
}

/// Notes that concern several points appear once, with the number of points.
fn notes(page: &mut String, groups: &[Group]) {
    let mut all: Vec<(&String, usize)> = Vec::new();
    for note in groups.iter().flat_map(|g| &g.notes) {
        match all.iter_mut().find(|(n, _)| *n == note) {
            Some((_, n)) => *n += 1,
            None => all.push((note, 1)),
        }
    }
    for (note, n) in all {
        let points = if n == groups.len() { "all points".to_owned() } else { format!("{n} points") };
        let _ = writeln!(page, "<p class=\"note\">{}: {}</p>", points, escape(note));
    }
}

fn legend(page: &mut String, view: &View<'_>) {
    page.push_str("<p>");
    for i in 0..view.labels.len() {
        let _ = write!(page, "{} ", chip(&view.names.short, i));
    }
    if !view.names.common.is_empty() {
        let _ = write!(page, "<span class=\"dim\">all of them: <code>{}</code></span>", escape(&view.names.common));
    }
    page.push_str("</p>\n");
}

fn title(view: &View<'_>, name: &str) -> String {
    let workload = view.groups.first().map_or("", |g| g.workload.name.as_str());
    format!("{name} [{}]", names::unit(workload, name))
}

fn pictures(page: &mut String, view: &View<'_>, name: &str) {
    let _ = writeln!(page, "<h2>{}</h2><div class=\"grid\">", escape(&title(view, name)));
    let (mut pictured, mut left) = (0, 0);
    for (axis, values) in view.drawn() {
        let mut combinations: Vec<String> = Vec::new();
        for group in view.groups {
            let others = view.others(group, axis);
            if !combinations.contains(&others) {
                combinations.push(others);
            }
        }
        for others in combinations {
            let here: Vec<&Group> = view.groups.iter().filter(|g| view.others(g, axis) == others).collect();
            // Values that were swept together (--zip) leave only a single point here.
            if here.len() < 2 {
                continue;
            }
            if pictured == PICTURES_MAX {
                left += 1;
                continue;
            }
            pictured += 1;
            let mut lines = vec![vec![None; values.len()]; view.labels.len()];
            for group in &here {
                let at = group.point().get(axis).and_then(|value| values.iter().position(|v| v == value));
                let Some(at) = at else { continue };
                for (line, median) in lines.iter_mut().zip(view.medians(group, name)) {
                    line[at] = median;
                }
            }
            let heading = if others.is_empty() { format!("over {axis}") } else { format!("over {axis}, {others}") };
            picture(page, &heading, plot::lines(&format!("{name} {heading}"), values, &lines, figure::unit(name)), "");
        }
    }
    page.push_str("</div>\n");
    if pictured == 0 {
        zipped(page, view, name);
    }
    if left > 0 {
        let _ = writeln!(page, "<p class=\"dim\">{left} more combinations are in the table only.</p>");
    }
}

/// Draws values that were swept together: the points in their order.
fn zipped(page: &mut String, view: &View<'_>, name: &str) {
    if view.groups.len() < 2 {
        return;
    }
    let text = |g: &Group| g.point().values().cloned().collect::<Vec<_>>().join(" ");
    let values: Vec<String> = view.groups.iter().map(text).collect();
    let mut lines = vec![Vec::new(); view.labels.len()];
    for group in view.groups {
        lines.iter_mut().zip(view.medians(group, name)).for_each(|(line, median)| line.push(median));
    }
    let axes: Vec<&str> = view.drawn().map(|(name, _)| name.as_str()).collect();
    let heading = format!("over {}", axes.join(" and "));
    picture(page, &heading, plot::lines(&format!("{name} {heading}"), &values, &lines, figure::unit(name)), "");
}

/// One line per point. A cell is coloured if a difference from the first contestant is shown, although all points share
/// a 5 % chance of error.
fn table(page: &mut String, view: &View<'_>, name: &str) {
    let cells: Vec<_> = view.groups.iter().flat_map(|g| g.comparisons(name)).collect();
    let mut verdicts = compare::family(&cells).into_iter();
    page.push_str("<details><summary>All points</summary><div class=\"scroll\"><table><thead><tr>");
    for (axis, _) in &view.axes {
        let _ = write!(page, "<th>{}</th>", escape(axis));
    }
    for i in 0..view.labels.len() {
        let _ = write!(page, "<th>{}</th>", chip(&view.names.short, i));
    }
    page.push_str("</tr></thead><tbody>\n");
    for group in view.groups {
        page.push_str("<tr>");
        for (axis, _) in &view.axes {
            let _ = write!(page, "<td>{}</td>", escape(group.point().get(axis).map_or("", String::as_str)));
        }
        let shown: Vec<Option<Verdict>> = verdicts.by_ref().take(group.series.len()).collect();
        for (wanted, median) in view.labels.iter().zip(view.medians(group, name)) {
            let at = (0..group.series.len()).find(|i| label(group, *i) == *wanted);
            let class = match at.and_then(|i| shown.get(i).copied().flatten()) {
                Some(Verdict::Better) => " class=\"good\"",
                Some(Verdict::Worse) => " class=\"bad\"",
                _ => "",
            };
            let _ = write!(page, "<td{class}>{}</td>", median.map(digits).unwrap_or_default());
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div><p class=\"dim\">Medians. Coloured where a difference to ");
    let _ = writeln!(page, "{} is shown.</p></details>", chip(&view.names.short, 0));
}
