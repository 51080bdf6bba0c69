//! Charts as inline SVG, in the colours of their page.
//!
//! Main items: [`boxes`] (one box with its points per contestant), [`lines`] (a figure over swept values), [`curves`]
//! (latency by percentile, both axes logarithmic), [`strips`] (the blocks written to each block group). Axes and scales
//! are drawn by `plotters`, in marker colours. These are replaced by CSS variables afterwards, so one picture serves
//! light and dark themes.
//!
//! Contestants are letters here (A is the baseline): labels are long, and belong in the page's legend. It computes
//! nothing.
//!
//! # Locking
//! None.

use std::error::Error;

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::stats::Summary;

/// The number of colours in the page's style sheet, `--s0` to `--s7`; then they repeat.
pub const COLOURS: usize = 8;

/// The width of a chart in its own units, chosen so that letters are legible on a phone.
const WIDTH: u32 = 460;

const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);

/// A marker colour that is replaced by `--s{i}`.
fn colour(i: usize) -> RGBColor {
    RGBColor(1, 2, (i % COLOURS) as u8)
}

/// The space for names at the left of a picture.
fn room(names: &[String]) -> u32 {
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0) as u32;
    (12 + 8 * longest).clamp(34, 190)
}

/// A name truncated to the space in a picture. Names usually differ at their ends.
fn drawn(name: &str) -> String {
    let letters: Vec<char> = name.chars().filter(|c| !c.is_control()).collect();
    match letters.len() {
        ..=22 => letters.iter().collect(),
        n => letters[..7].iter().chain(&['\u{2026}']).chain(&letters[n - 14..]).collect(),
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Draws, and inserts the page's colours. `alt` is the text alternative.
fn svg(height: u32, alt: &str, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area).ok()?;
        area.present().ok()?;
    }
    text = text.replace("#010101", "var(--ink)").replace("#010102", "var(--grid)");
    for i in 0..COLOURS {
        text = text.replace(&format!("#01020{i}"), &format!("var(--s{i})"));
    }
    let open = format!("<svg role=\"img\" aria-label=\"{}\" viewBox=", crate::report::escape(alt));
    let at = text.find("viewBox=")?;
    Some(open + &text[at + "viewBox=".len()..])
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// A number for an axis.
fn tick(v: f64) -> String {
    let a = v.abs();
    let (scaled, unit) = match a {
        _ if a >= 1e9 => (v / 1e9, "G"),
        _ if a >= 1e6 => (v / 1e6, "M"),
        _ if a >= 1e4 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    let digits = if scaled.abs() >= 100.0 || scaled == 0.0 {
        0
    } else if scaled.abs() >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// Nanoseconds in a readable unit.
pub fn duration(ns: f64) -> String {
    match ns {
        _ if ns >= 1e9 => format!("{} s", tick(ns / 1e9)),
        _ if ns >= 1e6 => format!("{} ms", tick(ns / 1e6)),
        _ if ns >= 1e3 => format!("{} µs", tick(ns / 1e3)),
        _ => format!("{} ns", tick(ns)),
    }
}

/// Quartiles, median, extremes and every point of each contestant, from 0 on; only the points if there are fewer than
/// four. None stands for a contestant without figures.
pub fn boxes(title: &str, names: &[String], series: &[(Option<Summary>, Vec<f64>)]) -> Option<String> {
    let all: Vec<f64> = series.iter().flat_map(|(_, v)| v.iter().copied()).collect();
    let low = all.iter().copied().fold(f64::INFINITY, f64::min);
    let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if all.is_empty() || !low.is_finite() || !high.is_finite() {
        return None;
    }
    // The axis includes 0, so that a difference looks as large as it is.
    let (low, high) = (low.min(0.0), high.max(0.0));
    let margin = if high > low { (high - low) * 0.04 } else { 1.0 };
    let left = if low < 0.0 { low - margin } else { 0.0 };
    let rows = series.len();
    svg(60 + 38 * rows as u32, title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(18)
            .x_label_area_size(30)
            .y_label_area_size(room(names))
            .build_cartesian_2d(left..high + margin, 0.0..rows as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .x_labels(5)
            .y_labels(0)
            .label_style(font(14))
            .x_label_formatter(&|v| tick(*v))
            .draw()?;
        for (i, (summary, values)) in series.iter().enumerate() {
            // The first contestant is on top.
            let y = (rows - i) as f64 - 0.5;
            let name = font(16).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Center,
            ));
            let at = chart.backend_coord(&(left, y));
            area.draw(&Text::new(drawn(&names[i]), (at.0 - 8, at.1), name))?;
            let Some(s) = summary else { continue };
            let line = colour(i).stroke_width(2);
            let path = |points: Vec<(f64, f64)>| PathElement::new(points, line);
            if values.len() >= 4 {
                chart.draw_series([
                    path(vec![(s.min, y), (s.lower_quartile, y)]),
                    path(vec![(s.upper_quartile, y), (s.max, y)]),
                    path(vec![(s.min, y - 0.12), (s.min, y + 0.12)]),
                    path(vec![(s.max, y - 0.12), (s.max, y + 0.12)]),
                ])?;
                let corners = [(s.lower_quartile, y - 0.28), (s.upper_quartile, y + 0.28)];
                chart.draw_series([Rectangle::new(corners, colour(i).mix(0.22).filled())])?;
                chart.draw_series([Rectangle::new(corners, line)])?;
            }
            chart.draw_series([PathElement::new(
                vec![(s.median, y - 0.28), (s.median, y + 0.28)],
                colour(i).stroke_width(4),
            )])?;
            // Points are shifted up and down alternately, so that equal figures do not hide each other.
            let dots = values
                .iter()
                .enumerate()
                .map(|(k, v)| Circle::new((*v, y + 0.09 * ((k % 3) as f64 - 1.0)), 3, INK.mix(0.55).filled()));
            chart.draw_series(dots)?;
        }
        Ok(())
    })
}

/// The maximum length of a value under an axis, in letters.
const VALUE_MAX: usize = 12;

/// From this ratio of the largest figure to the smallest on, [`lines`] has a logarithmic axis: lines at the bottom of a
/// linear one could not be told apart.
const WIDE: f64 = 30.0;

/// A figure at each of some values, evenly spaced; one line per contestant. None stands for a missing point. The axis
/// begins at 0, or is logarithmic and says so.
pub fn lines(title: &str, values: &[String], series: &[Vec<Option<f64>>], unit: &str) -> Option<String> {
    let all = || series.iter().flatten().flatten().copied();
    let least = all().fold(f64::INFINITY, f64::min);
    let (low, high) = (least.min(0.0), all().fold(f64::NEG_INFINITY, f64::max).max(0.0));
    if all().next().is_none() || !low.is_finite() || !high.is_finite() || values.is_empty() {
        return None;
    }
    let x = -0.2..(values.len() - 1) as f64 + 0.2;
    svg(280, title, |area| {
        let mut chart = ChartBuilder::on(area);
        chart.margin(6).margin_right(22).x_label_area_size(32).y_label_area_size(66);
        if least > 0.0 && high >= WIDE * least {
            let bottom = least * 0.7;
            let chart = chart.build_cartesian_2d(x, (bottom..high * 1.4).log_scale())?;
            area.draw(&Text::new("logarithmic", (76, 8), font(14)))?;
            draw_lines(area, chart, bottom, values, series, unit)
        } else {
            let margin = if high > low { (high - low) * 0.06 } else { 1.0 };
            let bottom = if low < 0.0 { low - margin } else { 0.0 };
            draw_lines(area, chart.build_cartesian_2d(x, bottom..high + margin)?, bottom, values, series, unit)
        }
    })
}

/// Draws what [`lines`] describes on a chart whose vertical axis begins at `bottom`.
fn draw_lines<'a, Y>(
    area: &Area<'a>,
    mut chart: ChartContext<'_, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>,
    bottom: f64,
    values: &[String],
    series: &[Vec<Option<f64>>],
    unit: &str,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_labels(0)
        .y_labels(6)
        .label_style(font(14))
        .x_label_formatter(&|_| String::new())
        .y_label_formatter(&|v| if unit == "ns" { duration(*v) } else { tick(*v) })
        .draw()?;
    // Labels that would overlap are left out.
    let longest = values.iter().map(|v| v.chars().count().min(VALUE_MAX)).max().unwrap_or(1);
    let every = (values.len() * (longest * 8 + 8)).div_ceil(WIDTH as usize - 94).max(1);
    for (i, value) in values.iter().enumerate().filter(|(i, _)| i % every == 0) {
        let (x, y) = chart.backend_coord(&(i as f64, bottom));
        let centre = font(14).pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Top,
        ));
        let text: String = value.chars().filter(|c| !c.is_control()).take(VALUE_MAX).collect();
        area.draw(&Text::new(text, (x, y + 8), centre))?;
    }
    for (i, line) in series.iter().enumerate() {
        let points: Vec<(f64, f64)> = line.iter().enumerate().filter_map(|(k, v)| Some((k as f64, (*v)?))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(i).stroke_width(2)))?;
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour(i).filled())))?;
    }
    Ok(())
}

/// The percentiles that are marked on the axis, and their positions: 1 / (1 - p).
const MARKS: &[(f64, &str)] = &[
    (1.0, "0"),
    (2.0, "50%"),
    (10.0, "90%"),
    (100.0, "99%"),
    (1e3, "99.9%"),
    (1e4, "99.99%"),
    (1e5, "99.999%"),
    (1e6, "99.9999%"),
];

/// Latency up to each percentile. None stands for a contestant without samples.
pub fn curves(title: &str, names: &[String], histograms: &[Option<Histogram<u64>>]) -> Option<String> {
    let there: Vec<(usize, &Histogram<u64>)> = histograms
        .iter()
        .enumerate()
        .filter_map(|(i, h)| Some((i, h.as_ref()?)))
        .filter(|(_, h)| !h.is_empty())
        .collect();
    let longest = there.iter().map(|(_, h)| h.len()).max()?;
    let right = (longest as f64).clamp(20.0, 1e6);
    let low = there.iter().map(|(_, h)| h.min()).min()?.max(1) as f64;
    let high = there.iter().map(|(_, h)| h.max()).max()?.max(2) as f64;
    svg(300, title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(22)
            .x_label_area_size(32)
            .y_label_area_size(66)
            .build_cartesian_2d((1.0..right * 1.15).log_scale(), (low * 0.8..high * 1.3).log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .x_labels(0)
            .y_labels(6)
            .label_style(font(14))
            .x_label_formatter(&|_| String::new())
            .y_label_formatter(&|v| duration(*v))
            .draw()?;
        for (at, name) in MARKS.iter().filter(|(at, _)| *at <= right) {
            chart.draw_series([PathElement::new(vec![(*at, low * 0.8), (*at, high * 1.3)], GRID)])?;
            let (x, y) = chart.backend_coord(&(*at, low * 0.8));
            let centre = font(14).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Top,
            ));
            area.draw(&Text::new(*name, (x, y + 8), centre))?;
        }
        let mut ends = Vec::new();
        for (i, h) in &there {
            chart.draw_series(LineSeries::new(steps(h, right), colour(*i).stroke_width(2)))?;
            let last = (right.min(h.len() as f64), h.max().max(1) as f64);
            chart.draw_series([Circle::new(last, 4, colour(*i).filled())])?;
            let (x, y) = chart.backend_coord(&last);
            ends.push((y, x, *i));
        }
        // Names of curves with equal ends are listed one below the other, beside the curves.
        ends.sort_unstable();
        let mut free = i32::MIN;
        for (y, x, i) in ends {
            let y = (y - 8).max(free);
            let name = font(14).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Top,
            ));
            area.draw(&Text::new(drawn(&names[i]), (x - 8, y), name.color(&colour(i))))?;
            free = y + 14;
        }
        Ok(())
    })
}

/// Points of a curve, evenly spaced on its axis.
fn steps(h: &Histogram<u64>, right: f64) -> Vec<(f64, f64)> {
    let end = right.min(h.len() as f64).max(1.0);
    (0..=240)
        .map(|k| {
            let x = end.powf(f64::from(k) / 240.0);
            (x, h.value_at_quantile(1.0 - 1.0 / x).max(1) as f64)
        })
        .chain([(end, h.max().max(1) as f64)])
        .collect()
}

/// The maximum number of columns of a strip; if there are more groups, several share a column.
const COLUMNS: u64 = 128;

/// The number of blocks in each block group: one strip per contestant, in stronger colour for more blocks. `groups` is
/// one past the last.
pub fn strips(title: &str, names: &[String], groups: u32, series: &[Vec<(u32, u64)>]) -> Option<String> {
    if groups == 0 || series.iter().all(Vec::is_empty) {
        return None;
    }
    let per_column = u64::from(groups).div_ceil(COLUMNS).max(1);
    let rows = series.len();
    svg(52 + 30 * rows as u32, title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(18)
            .x_label_area_size(30)
            .y_label_area_size(room(names))
            .build_cartesian_2d(0.0..f64::from(groups), 0.0..rows as f64)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .axis_style(GRID)
            .x_labels(6)
            .y_labels(0)
            .label_style(font(14))
            .x_label_formatter(&|v| tick(*v))
            .draw()?;
        for (i, counts) in series.iter().enumerate() {
            let y = (rows - i) as f64;
            let at = chart.backend_coord(&(0.0, y - 0.5));
            let name = font(16).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Center,
            ));
            area.draw(&Text::new(drawn(&names[i]), (at.0 - 8, at.1), name))?;
            let frame = [(0.0, y - 0.9), (f64::from(groups), y - 0.1)];
            chart.draw_series([Rectangle::new(frame, GRID.mix(0.35).filled())])?;
            let mut columns = std::collections::BTreeMap::<u64, u64>::new();
            for (group, blocks) in counts {
                let sum = columns.entry(u64::from(*group) / per_column).or_default();
                *sum = sum.saturating_add(*blocks);
            }
            let most = columns.values().copied().max().unwrap_or(1).max(1) as f64;
            let cells = columns.iter().filter(|(_, blocks)| **blocks > 0).map(|(column, blocks)| {
                let x = (column * per_column) as f64;
                let end = (x + per_column as f64).min(f64::from(groups));
                // The smallest amount must still be visible.
                let shade = 0.2 + 0.8 * (*blocks as f64 / most).sqrt();
                Rectangle::new([(x, y - 0.9), (end, y - 0.1)], colour(i).mix(shade).filled())
            });
            chart.draw_series(cells)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_far_apart_have_a_logarithmic_axis() {
        let values = ["1".to_owned(), "2".to_owned()];
        let picture = |high, low| lines("t", &values, &[vec![Some(high), None], vec![None, Some(low)]], "ns").unwrap();
        assert!(picture(3_000.0, 100.0).contains("logarithmic"));
        assert!(!picture(2_900.0, 100.0).contains("logarithmic"));
        assert!(!picture(3_000.0, 0.0).contains("logarithmic"), "0 has no logarithm");
    }
}
