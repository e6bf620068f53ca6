//! Figures as SVG.

use std::ops::Range;

use plotters::prelude::*;

use crate::figure::{Axis, Figure, Series, SeriesSource};
use crate::{Error, Result};

const SIZE: (u32, u32) = (960, 600);

impl Figure {
    /// The figure as an SVG picture: bars if the x axis has names, else lines. The paper's are grey, and bounds are thin.
    ///
    /// # Errors
    /// If the drawing library fails.
    pub fn to_svg(&self) -> Result<String> {
        if !self.x.names.is_empty() {
            return self.to_bars();
        }
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE).map_err(Error::plot)?;
            // All axes are drawn linearly, with logarithms of the values for logarithmic axes.
            let (xs, ys) = (self.range(|point| self.x.position(point.0)), self.range(|point| self.y.position(point.1)));
            let caption = format!("{} ({})", self.title, self.paper);
            let mut chart = ChartBuilder::on(&area)
                .caption(caption, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(48)
                .y_label_area_size(72)
                .build_cartesian_2d(xs, ys)
                .map_err(Error::plot)?;
            chart
                .configure_mesh()
                .x_desc(self.x.label)
                .y_desc(self.y.label)
                .x_labels(12)
                .x_label_formatter(&|x| label(if self.x.logarithmic { x.exp2() } else { *x }))
                .y_label_formatter(&|y| label(if self.y.logarithmic { y.exp2() } else { *y }))
                .draw()
                .map_err(Error::plot)?;
            for (number, series) in self.series.iter().enumerate() {
                let style = style(series, number);
                let points: Vec<(f64, f64)> =
                    series.points.iter().map(|point| (self.x.position(point.0), self.y.position(point.1))).collect();
                let line = LineSeries::new(points.iter().copied(), style);
                chart
                    .draw_series(line)
                    .map_err(Error::plot)?
                    .label(series.title())
                    .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
                chart
                    .draw_series(points.iter().map(|point| Circle::new(*point, 3, style.filled())))
                    .map_err(Error::plot)?;
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .map_err(Error::plot)?;
            area.present().map_err(Error::plot)?;
        }
        Ok(svg)
    }

    /// The slightly widened range of values, starting at 0 if the axis is linear.
    fn range(&self, position: impl Fn(&(f64, f64)) -> f64) -> Range<f64> {
        let values: Vec<f64> = self.series.iter().flat_map(|series| series.points.iter().map(&position)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() {
            return 0.0..1.0;
        }
        let margin = ((greatest - least) * 0.05).max(0.5);
        let from = if least >= 0.0 && least - margin < 0.0 { -margin.min(0.5) } else { least - margin };
        from..greatest + margin
    }
}

impl Axis {
    fn position(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(f64::MIN_POSITIVE).log2() } else { value }
    }
}

/// Formats a number with few characters, as a power of 1024 if it is one.
fn label(value: f64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti"];
    let mut scaled = value;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if scaled.fract().abs() < 0.005 {
        format!("{scaled:.0}{}", units[unit])
    } else {
        format!("{scaled:.1}{}", units[unit])
    }
}

fn style(series: &Series, number: usize) -> ShapeStyle {
    match series.source {
        SeriesSource::Measured | SeriesSource::Predicted => Palette99::pick(number).stroke_width(2),
        SeriesSource::Bound => BLACK.mix(0.6).stroke_width(1),
        SeriesSource::Paper => RGBColor(150, 150, 150).stroke_width(2),
    }
}
