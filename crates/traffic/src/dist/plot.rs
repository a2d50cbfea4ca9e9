//! A picture of a distribution and its model: the share of each size, and the cumulative curves.
//!
//! The picture is SVG, whose text is set by the program that shows it, so no fonts are needed here.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::Length;

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 800;
const SOURCE: RGBColor = RGBColor(31, 119, 180);
const MODEL: RGBColor = RGBColor(214, 39, 40);
/// The rarest share that is drawn: rarer sizes look like none.
const RAREST: f64 = 1e-9;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws a distribution against its model; both are sizes and their probabilities, smallest first.
///
/// # Errors
/// Where the drawing library fails, with its words.
pub fn svg(
    title: &str,
    length: Length,
    source: &[(u16, f64)],
    model: &[(u16, f64)],
) -> Result<String, String> {
    let mut text = String::new();
    let drawn = || -> Drawn {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.titled(title, ("sans-serif", 22))?;
        let (upper, lower) = root.split_vertically(HEIGHT / 2);
        shares(&upper, length, source, model)?;
        cumulative(&lower, length, source, model)?;
        root.present()?;
        Ok(())
    }();
    drawn.map_err(|e| e.to_string())?;
    Ok(text)
}

fn largest(source: &[(u16, f64)], model: &[(u16, f64)]) -> f64 {
    let last = |of: &[(u16, f64)]| of.last().map_or(1.0, |(size, _)| f64::from(*size));
    last(source).max(last(model))
}

fn shares(area: &Area, length: Length, source: &[(u16, f64)], model: &[(u16, f64)]) -> Drawn {
    let all = || source.iter().chain(model).map(|(_, p)| *p);
    let floor = all().fold(1.0, f64::min).max(RAREST) / 2.0;
    let top = all().fold(0.0, f64::max) * 1.5;
    let mut chart =
        ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..largest(source, model) * 1.02, (floor..top).log_scale())?;
    mesh(&mut chart, length, "share of packets, %", percent)?;
    chart
        .draw_series(LineSeries::new(spikes(source, floor), SOURCE.stroke_width(2)))?
        .label("source")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], SOURCE.stroke_width(2)));
    chart
        .draw_series(LineSeries::new(plateaus(model, floor), MODEL.stroke_width(1)))?
        .label("two-stage model")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], MODEL.stroke_width(1)));
    legend(&mut chart, SeriesLabelPosition::UpperMiddle)
}

fn cumulative(area: &Area, length: Length, source: &[(u16, f64)], model: &[(u16, f64)]) -> Drawn {
    let end = largest(source, model) * 1.02;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..end, 0.0..1.0)?;
    mesh(&mut chart, length, "packets up to this size, %", percent)?;
    let curves = [(source, SOURCE, 3, "source"), (model, MODEL, 1, "two-stage model")];
    for (of, color, width, label) in curves {
        chart
            .draw_series(LineSeries::new(steps(of, end), color.stroke_width(width)))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], color.stroke_width(width))
            });
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// Returns the cumulative distribution as a staircase.
fn steps(of: &[(u16, f64)], end: f64) -> Vec<(f64, f64)> {
    let mut sum = 0.0;
    let mut line = vec![(0.0, 0.0)];
    for (size, p) in of {
        let x = f64::from(*size);
        line.push((x, sum));
        sum += p;
        line.push((x, sum));
    }
    line.push((end, sum));
    line
}

/// Returns a line for each size by itself.
fn spikes(of: &[(u16, f64)], floor: f64) -> Vec<(f64, f64)> {
    let spike = |(size, p): &(u16, f64)| {
        let x = f64::from(*size);
        [(x, floor), (x, p.max(floor)), (x, floor)]
    };
    of.iter().flat_map(spike).collect()
}

/// Returns sizes that follow one another as one line: a bin is level.
fn plateaus(of: &[(u16, f64)], floor: f64) -> Vec<(f64, f64)> {
    let mut line = Vec::new();
    for run in of.chunk_by(|a, b| a.0 + 1 == b.0) {
        let (first, last) = (f64::from(run[0].0), f64::from(run[run.len() - 1].0));
        line.push((first, floor));
        line.extend(run.iter().map(|(size, p)| (f64::from(*size), p.max(floor))));
        line.push((last, floor));
    }
    line
}

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

/// Draws axes, their names and units.
fn mesh<Y>(
    chart: &mut Chart<'_, '_, Y>,
    length: Length,
    what: &str,
    show: fn(&f64) -> String,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(format!("{length} size, bytes"))
        .y_desc(what)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&show)
        .axis_desc_style(("sans-serif", 16))
        .label_style(("sans-serif", 13))
        .light_line_style(BLACK.mix(0.04))
        .draw()?;
    Ok(())
}

fn legend<'a, Y>(chart: &mut Chart<'a, 'a, Y>, position: SeriesLabelPosition) -> Drawn
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}

/// Returns a share as a percentage, without zeros at the end.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the drawing library wants it so")]
fn percent(share: &f64) -> String {
    let percent = share * 100.0;
    if percent >= 0.01 || percent == 0.0 {
        let text = format!("{percent:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{percent:.0e}")
    }
}
