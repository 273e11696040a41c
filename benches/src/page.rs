//! Pages of a report, as SVG: ratios and rates of the prefill table by sequence length, and every other suite.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::{OURS, Report, Row};

/// What stops a page from being drawn.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;

type Page<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "Helvetica, Arial, DejaVu Sans, sans-serif";
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(134, 142, 150);
const GRID: RGBColor = RGBColor(233, 236, 239);

/// What the vertical axis of a prefill page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Our speed over each peer's.
    Ratio,
    /// Speed of each implementation.
    Rate,
}

/// One line of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The implementation.
    pub name: String,
    /// Whether query heads share key heads; drawn apart, because it is other work.
    pub grouped: bool,
    /// Sequence length and value, by length.
    pub points: Vec<(usize, f64)>,
}

/// One small chart of a prefill page.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Head size of all its rows.
    pub head_dim: usize,
    /// Whether all its rows are causal.
    pub causal: bool,
    /// Its lines.
    pub series: Vec<Series>,
}

/// The prefill table in panels: a row of panels a head size, without and with a causal mask. Rows without a figure
/// leave a gap.
pub fn panels(report: &Report, quantity: Quantity) -> Vec<Panel> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.suite == "prefill").collect();
    let keys: BTreeSet<_> = rows.iter().map(|row| (row.head_dim, row.causal)).collect();
    keys.into_iter()
        .map(|(head_dim, causal)| {
            let mut series: Vec<Series> = Vec::new();
            for row in rows.iter().filter(|row| (row.head_dim, row.causal) == (head_dim, causal)) {
                for (name, value) in values(row, quantity) {
                    let point = (row.q_len, value);
                    let grouped = row.is_grouped();
                    match series.iter_mut().find(|one| one.name == name && one.grouped == grouped) {
                        Some(one) => one.points.push(point),
                        None => series.push(Series { name, grouped, points: vec![point] }),
                    }
                }
            }
            for one in &mut series {
                one.points.sort_by_key(|point| point.0);
            }
            // Ours is drawn last, on top.
            series.sort_by_key(|one| (one.name == OURS, one.name.clone(), one.grouped));
            Panel { head_dim, causal, series }
        })
        .collect()
}

fn values(row: &Row, quantity: Quantity) -> Vec<(String, f64)> {
    match quantity {
        Quantity::Ratio => row.ratios.iter().map(|(name, ratio)| (name.clone(), *ratio)).collect(),
        Quantity::Rate => row.implementations.iter().filter_map(|one| Some((one.name.clone(), one.rate?))).collect(),
    }
}

/// Draws the prefill table, a panel a head size and mask. `false` where the report has no prefill row with a figure.
///
/// # Errors
///
/// Where the file cannot be written.
pub fn draw_prefill(report: &Report, quantity: Quantity, path: &Path) -> Result<bool, DrawError> {
    let panels = panels(report, quantity);
    let lengths: Vec<usize> = {
        let points = panels.iter().flat_map(|panel| &panel.series).flat_map(|one| &one.points);
        points.map(|point| point.0).collect::<BTreeSet<_>>().into_iter().collect()
    };
    if lengths.is_empty() {
        return Ok(false);
    }
    let head_dims: Vec<usize> =
        panels.iter().map(|panel| panel.head_dim).collect::<BTreeSet<_>>().into_iter().collect();
    let height = 120 + 250 * head_dims.len() as u32;
    let page = SVGBackend::new(path, (1060, height)).into_drawing_area();
    page.fill(&WHITE)?;
    let axis = Axis::new(quantity, &panels);
    let title = match quantity {
        Quantity::Ratio => "Prefill: our speed over each peer's (above 1 we are faster)",
        Quantity::Rate => "Prefill: TFLOP/s",
    };
    heading(&page, report, title)?;
    let names = panels.iter().flat_map(|panel| &panel.series).map(|one| one.name.as_str());
    let has_grouped = panels.iter().flat_map(|panel| &panel.series).any(|one| one.grouped);
    legend(&page, &names.collect::<BTreeSet<_>>(), has_grouped)?;
    let (_, body) = page.split_vertically(114);
    let cells = body.split_evenly((head_dims.len(), 2));
    for (row, head_dim) in head_dims.iter().enumerate() {
        for (column, causal) in [false, true].into_iter().enumerate() {
            let panel = panels.iter().find(|panel| panel.head_dim == *head_dim && panel.causal == causal);
            draw_panel(&cells[row * 2 + column], *head_dim, causal, panel, &lengths, &axis)?;
        }
    }
    page.present()?;
    Ok(true)
}

fn heading(page: &Page<'_>, report: &Report, title: &str) -> Result<(), DrawError> {
    let machine = &report.machine;
    let mut facts = vec![machine.device.clone()];
    facts.extend(machine.driver.iter().map(|driver| format!("driver {driver}")));
    facts.extend(machine.cuda.iter().map(|cuda| format!("CUDA {cuda}")));
    facts.push(format!("PyTorch {}", machine.torch));
    facts.push(report.date.split('T').next().unwrap_or_default().to_owned());
    facts.extend(report.commit.iter().map(|commit| format!("commit {commit}")));
    page.draw_text(title, &text(20, &INK).pos(Pos::new(HPos::Left, VPos::Top)), (24, 16))?;
    page.draw_text(&facts.join("  ·  "), &text(13, &FAINT).pos(Pos::new(HPos::Left, VPos::Top)), (24, 46))?;
    Ok(())
}

fn legend(page: &Page<'_>, names: &BTreeSet<&str>, has_grouped: bool) -> Result<(), DrawError> {
    const RIGHT: i32 = 1040;
    // No font is at hand to measure with: a generous width of a letter.
    let width = |text: &str| 33 + 7 * text.len() as i32 + 14;
    let (mut x, mut y) = (24, 78);
    let style = text(13, &INK).pos(Pos::new(HPos::Left, VPos::Center));
    for name in names {
        if x + width(label(name)) > RIGHT {
            (x, y) = (24, y + 20);
        }
        let color = color(name);
        page.draw(&PathElement::new(vec![(x, y), (x + 26, y)], color.stroke_width(stroke(name))))?;
        page.draw(&Circle::new((x + 13, y), 4, color.filled()))?;
        page.draw_text(label(name), &style, (x + 33, y))?;
        x += width(label(name));
    }
    if has_grouped {
        let note = "hollow: grouped queries, 32/8 heads";
        if x + width(note) > RIGHT {
            (x, y) = (24, y + 20);
        }
        page.draw(&Circle::new((x + 8, y), 5, FAINT.stroke_width(2)))?;
        page.draw_text(note, &style, (x + 20, y))?;
    }
    Ok(())
}

/// The vertical axis that all panels of a page share. Ratios are logarithmic: twice as fast and half as fast lie
/// equally far from 1.
struct Axis {
    quantity: Quantity,
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn new(quantity: Quantity, panels: &[Panel]) -> Self {
        let values = || panels.iter().flat_map(|panel| &panel.series).flat_map(|one| &one.points).map(|point| point.1);
        let high = values().fold(0.0, f64::max);
        match quantity {
            Quantity::Ratio => {
                let low = values().fold(0.9, f64::min) * 0.95;
                let high = high.max(1.1) * 1.05;
                let marks = [0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0];
                let ticks = marks.into_iter().filter(|mark| (low..high).contains(mark));
                Self {
                    quantity,
                    range: low.log2()..high.log2(),
                    ticks: ticks.map(|mark| (mark, mark.to_string())).collect(),
                }
            }
            Quantity::Rate => {
                let high = high * 1.08;
                let step =
                    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0].into_iter().find(|step| high / step < 7.0);
                let step = step.unwrap_or(1000.0);
                let ticks = (0..).map(|index| f64::from(index) * step).take_while(|mark| *mark < high);
                Self { quantity, range: 0.0..high, ticks: ticks.map(|mark| (mark, mark.to_string())).collect() }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        match self.quantity {
            Quantity::Ratio => value.log2(),
            Quantity::Rate => value,
        }
    }

    fn marks_parity(&self, value: f64) -> bool {
        self.quantity == Quantity::Ratio && value == 1.0
    }
}

fn draw_panel(
    cell: &Page<'_>,
    head_dim: usize,
    causal: bool,
    panel: Option<&Panel>,
    lengths: &[usize],
    axis: &Axis,
) -> Result<(), DrawError> {
    // Lengths stand side by side, whatever they are, with a place to spare at both ends.
    let place = |length: usize| lengths.iter().position(|other| *other == length).map_or(-1, |index| index as i32);
    let end = lengths.len() as i32;
    let caption = format!("head_dim {head_dim}, {}", if causal { "causal" } else { "full" });
    let mut chart = ChartBuilder::on(cell)
        .margin_left(16)
        .margin_right(20)
        .margin_top(4)
        .caption(caption, text(14, &INK))
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(-1..end, axis.range.clone())?;
    chart
        .configure_mesh()
        .disable_mesh()
        .disable_y_axis()
        .axis_style(FAINT)
        .label_style(text(12, &FAINT))
        .x_labels(lengths.len() + 2)
        .x_label_formatter(&|x| {
            usize::try_from(*x).ok().and_then(|x| lengths.get(x)).map_or_else(String::new, length_name)
        })
        .draw()?;
    let tick = text(12, &FAINT).pos(Pos::new(HPos::Right, VPos::Center));
    for (value, name) in &axis.ticks {
        let y = axis.place(*value);
        let line = if axis.marks_parity(*value) { INK } else { GRID };
        chart.draw_series([PathElement::new(vec![(-1, y), (end, y)], line.stroke_width(1))])?;
        chart.draw_series([EmptyElement::at((-1, y)) + Text::new(name.clone(), (-8, 0), tick.clone())])?;
    }
    for one in panel.into_iter().flat_map(|panel| &panel.series) {
        let color = color(&one.name);
        let points = one.points.iter().map(|(length, value)| (place(*length), axis.place(*value)));
        if one.grouped {
            chart.draw_series(points.map(|point| Circle::new(point, 5, color.stroke_width(2))))?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(stroke(&one.name))))?;
            chart.draw_series(points.map(|point| Circle::new(point, 3, color.filled())))?;
        }
    }
    Ok(())
}

/// Draws every suite but prefill: a line a row, a dot a peer, our speed over the peer's on a logarithmic axis. `false`
/// where the report has no such row with a ratio.
///
/// # Errors
///
/// Where the file cannot be written.
pub fn draw_suites(report: &Report, path: &Path) -> Result<bool, DrawError> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.suite != "prefill" && !row.ratios.is_empty()).collect();
    let suites: Vec<&str> = rows.iter().fold(Vec::new(), |mut suites, row| {
        if !suites.contains(&row.suite.as_str()) {
            suites.push(&row.suite);
        }
        suites
    });
    if suites.is_empty() {
        return Ok(false);
    }
    const LINE: i32 = 19;
    const LEFT: i32 = 410;
    const WIDTH: i32 = 560;
    let height = 152 + (rows.len() as i32) * LINE + (suites.len() as i32) * 34;
    let page = SVGBackend::new(path, (1060, height as u32)).into_drawing_area();
    page.fill(&WHITE)?;
    heading(&page, report, "Our speed over each peer's (right of 1 we are faster)")?;
    legend(&page, &rows.iter().flat_map(|row| row.ratios.keys().map(String::as_str)).collect(), false)?;

    let ratios = || rows.iter().flat_map(|row| row.ratios.values().copied());
    // Whole octaves, and 1 always in sight.
    let low = ratios().fold(0.5, f64::min).log2().floor();
    let high = ratios().fold(2.0, f64::max).log2().ceil();
    let place = |ratio: f64| LEFT + ((ratio.log2() - low) / (high - low) * f64::from(WIDTH)) as i32;
    let bottom = height - 34;
    for octave in low as i32..=high as i32 {
        let x = place(2f64.powi(octave));
        let style = if octave == 0 { INK.stroke_width(1) } else { GRID.stroke_width(1) };
        page.draw(&PathElement::new(vec![(x, 126), (x, bottom)], style))?;
        let name = if octave < 0 { format!("1/{}", 1 << -octave) } else { format!("{}", 1 << octave) };
        for y in [118, bottom + 10] {
            page.draw_text(&name, &text(12, &FAINT).pos(Pos::new(HPos::Center, VPos::Center)), (x, y))?;
        }
    }
    let mut y = 124;
    for suite in suites {
        page.draw_text(suite, &text(14, &INK).pos(Pos::new(HPos::Left, VPos::Center)), (24, y + 16))?;
        y += 34;
        for row in rows.iter().filter(|row| row.suite == suite) {
            page.draw(&PathElement::new(vec![(LEFT, y), (LEFT + WIDTH, y)], GRID.stroke_width(1)))?;
            page.draw_text(&row.case, &text(12, &INK).pos(Pos::new(HPos::Right, VPos::Center)), (LEFT - 12, y))?;
            for (name, ratio) in &row.ratios {
                page.draw(&Circle::new((place(*ratio), y), 5, color(name).filled()))?;
            }
            if let Some(best) = row.best_peer.as_ref().and_then(|best| row.ratios.get(best)) {
                let style = text(12, &FAINT).pos(Pos::new(HPos::Left, VPos::Center));
                page.draw_text(&format!("{best:.2}"), &style, (LEFT + WIDTH + 14, y))?;
            }
            y += LINE;
        }
    }
    page.present()?;
    Ok(true)
}

fn text(size: u32, color: &RGBColor) -> TextStyle<'_> {
    TextStyle::from((FONT, size).into_font()).color(color)
}

fn length_name(length: &usize) -> String {
    if *length >= 1024 && length.is_multiple_of(1024) { format!("{}k", length / 1024) } else { length.to_string() }
}

fn stroke(name: &str) -> u32 {
    if name == OURS { 3 } else { 2 }
}

/// One colour an implementation on every page, told apart by people who see red and green alike.
fn color(name: &str) -> RGBColor {
    match name {
        OURS => RGBColor(213, 94, 0),
        "fa3" => RGBColor(0, 114, 178),
        "fa3-fwd" => RGBColor(86, 180, 233),
        "cudnn" => RGBColor(0, 158, 115),
        "fa2" | "fa2-varlen" => RGBColor(204, 121, 167),
        "efficient" => RGBColor(230, 159, 0),
        "unfused" => RGBColor(100, 81, 160),
        _ => RGBColor(134, 142, 150),
    }
}

fn label(name: &str) -> &str {
    match name {
        OURS => "cuattn",
        "fa3" => "FlashAttention-3",
        "fa3-fwd" => "FlashAttention-3 (fa3-fwd)",
        "cudnn" => "cuDNN",
        "fa2" => "FlashAttention-2",
        "fa2-varlen" => "PyTorch varlen_attn",
        "efficient" => "PyTorch mem-efficient",
        "math" => "PyTorch math",
        "unfused" => "PyTorch baddbmm, softmax, bmm",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Figures made up for this test alone.
    fn report() -> Report {
        let row = |suite: &str, q_len: usize, kv_heads: usize, ours: Option<f64>| {
            let implementations = [("ours", ours), ("fa3", Some(500.0)), ("cudnn", Some(400.0))];
            let ratios: serde_json::Map<String, serde_json::Value> = ours
                .map(|ours| {
                    [("fa3", 500.0), ("cudnn", 400.0)].map(|(name, rate)| (name.to_owned(), (ours / rate).into()))
                })
                .into_iter()
                .flatten()
                .collect();
            serde_json::json!({
                "suite": suite, "case": format!("{suite} {q_len} {kv_heads}"), "q_heads": 16, "kv_heads": kv_heads,
                "q_len": q_len, "head_dim": 128, "dtype": "bf16", "causal": true, "unit": "TFLOP/s",
                "implementations": implementations.map(|(name, rate)| serde_json::json!({"name": name, "rate": rate})),
                "best_peer": "fa3", "ratios": ratios, "error": ours.is_none().then_some("ours is off by 1.0e0"),
            })
        };
        let rows = [
            row("prefill", 4096, 16, Some(600.0)),
            row("prefill", 1024, 16, Some(550.0)),
            row("prefill", 2048, 16, None),
            row("prefill", 4096, 4, Some(650.0)),
            row("masks", 4096, 16, Some(800.0)),
        ];
        let text = serde_json::json!({
            "schema": SCHEMA, "date": "2000-01-01T00:00:00Z", "commit": null,
            "machine": {"device": "made up <GPU> & co", "driver": null, "cuda": null, "torch": "0.0"}, "rows": rows,
        });
        Report::parse(&text.to_string()).unwrap()
    }

    use crate::report::{ReadError, SCHEMA};

    #[test]
    fn panels_order_points_by_length_and_leave_gaps_for_failures() {
        let panels = panels(&report(), Quantity::Ratio);
        assert_eq!(panels.len(), 1);
        let fa3 = panels[0].series.iter().find(|one| one.name == "fa3" && !one.grouped).unwrap();
        assert_eq!(fa3.points, [(1024, 1.1), (4096, 1.2)]);
        let grouped: Vec<_> = panels[0].series.iter().filter(|one| one.grouped).collect();
        assert_eq!(grouped.len(), 2);
    }

    #[test]
    fn a_rate_panel_draws_ours_on_top_of_the_peers() {
        let panels = panels(&report(), Quantity::Rate);
        assert!(panels[0].series.last().unwrap().name == OURS);
        // A peer that was timed in a row where ours failed still has its point.
        let fa3 = panels[0].series.iter().find(|one| one.name == "fa3" && !one.grouped).unwrap();
        assert_eq!(fa3.points.len(), 3);
    }

    #[test]
    fn pages_are_whole_svg_with_every_panel_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.svg");
        for quantity in [Quantity::Ratio, Quantity::Rate] {
            assert!(draw_prefill(&report(), quantity, &path).unwrap());
            let text = std::fs::read_to_string(&path).unwrap();
            for part in ["head_dim 128, causal", "head_dim 128, full", "FlashAttention-3", "4k", "</svg>"] {
                assert!(text.contains(part), "{part} is missing");
            }
        }
        assert!(draw_suites(&report(), &path).unwrap());
        assert!(std::fs::read_to_string(&path).unwrap().contains("masks 4096 16"));
    }

    #[test]
    fn nothing_to_draw_is_said_and_no_file_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.svg");
        let mut report = report();
        report.rows.retain(|row| row.suite == "masks");
        assert!(!draw_prefill(&report, Quantity::Ratio, &path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        assert!(matches!(Report::parse("{}"), Err(ReadError::Shape(_))));
        let empty = r#"{"schema": 1, "date": "", "commit": null, "rows": [],
            "machine": {"device": "", "driver": null, "cuda": null, "torch": ""}}"#;
        assert!(matches!(Report::parse(empty), Err(ReadError::Empty)));
        let newer = empty.replace("\"schema\": 1", "\"schema\": 2");
        assert!(matches!(Report::parse(&newer), Err(ReadError::Schema { found: 2 })));
    }
}
