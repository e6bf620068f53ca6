//! Figures over named values as SVG: a group of horizontal bars for each name.
//!
//! ```text
//!            Overspill   DuckDB   | bound
//!       a    ██████████████|█ 312
//! 2M x 32M   ███ 22
//! ```

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figure::{Figure, Series, SeriesSource, number};
use crate::{Error, Result};

const WIDTH: i32 = 960;
const MARGIN: i32 = 20;
/// The left end of the bars; names are to the left of it.
const LEFT: i32 = 220;
/// The space to the right of the longest bar, for its value.
const RIGHT: i32 = 70;
/// The height of title and machine.
const HEAD: i32 = 78;
/// The height of a line of the legend.
const LINE: i32 = 22;
const BAR: i32 = 13;
const GAP: i32 = 16;
/// The estimated width of a character of the legend.
const CHARACTER: i32 = 8;

const TEXT: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(101, 109, 118);
/// The first line has a strong color, the others have quiet ones.
const COLORS: [RGBColor; 6] = [
    RGBColor(207, 80, 32),
    RGBColor(84, 118, 160),
    RGBColor(134, 160, 136),
    RGBColor(176, 178, 184),
    RGBColor(196, 168, 104),
    RGBColor(150, 124, 164),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Figure {
    /// The picture of a figure whose x axis has names.
    pub(crate) fn to_bars(&self) -> Result<String> {
        let (bounds, bars): (Vec<&Series>, Vec<&Series>) =
            self.series.iter().partition(|series| series.source == SeriesSource::Bound);
        let group = BAR * bars.len().max(2) as i32 + GAP;
        let legend = legend(bars.iter().chain(&bounds).copied());
        let top = legend.last().map_or(HEAD, |last| last.1.1) + LINE;
        let height = top + group * self.x.names.len() as i32 + MARGIN - GAP;
        let longest = self.series.iter().flat_map(|series| &series.points).map(|point| point.1).fold(0.0, f64::max);
        let right = |value: f64| LEFT + (value / longest * f64::from(WIDTH - LEFT - RIGHT)) as i32;
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(Error::plot)?;
        text(&area, &format!("{}: {}", self.title, self.y.label), (MARGIN, 24), 22, TEXT, HPos::Left)?;
        text(&area, &format!("{}; {}", self.machine, self.paper), (MARGIN, 48), 15, FAINT, HPos::Left)?;
        text(&area, self.x.label, (LEFT - 12, HEAD), 15, FAINT, HPos::Right)?;
        for (number, (series, (x, y))) in legend.into_iter().enumerate() {
            let (left, color) = if number < bars.len() { (x, color(series, number)) } else { (x + 9, TEXT) };
            rectangle(&area, (left, y - 6), (x + 12, y + 6), color)?;
            text(&area, &series.title(), (x + 18, y), 15, TEXT, HPos::Left)?;
        }
        for (place, name) in self.x.names.iter().enumerate() {
            let top = top + group * place as i32;
            let at = |series: &Series| series.points.iter().find(|point| point.0 == place as f64).map(|point| point.1);
            let (name, detail) = name.split_once('\n').unwrap_or((name, ""));
            text(&area, name, (LEFT - 12, top + 7), 17, TEXT, HPos::Right)?;
            text(&area, detail, (LEFT - 12, top + 25), 13, FAINT, HPos::Right)?;
            for (bar, series) in bars.iter().enumerate() {
                let Some(value) = at(series) else { continue };
                let y = top + BAR * bar as i32;
                rectangle(&area, (LEFT, y), (right(value), y + BAR - 2), color(series, bar))?;
            }
            for value in bounds.iter().filter_map(|bound| at(bound)) {
                rectangle(&area, (right(value) - 1, top - 3), (right(value) + 1, top + group - GAP), TEXT)?;
            }
            for (bar, series) in bars.iter().enumerate() {
                let Some(value) = at(series) else { continue };
                let (x, y) = (right(value) + 6, top + BAR * bar as i32);
                let value = number(value);
                // On white, in case that a bound lies behind it.
                rectangle(&area, (x - 2, y), (x + CHARACTER * value.len() as i32, y + BAR - 1), WHITE)?;
                text(&area, &value, (x, y + BAR / 2), 14, if bar == 0 { TEXT } else { FAINT }, HPos::Left)?;
            }
        }
        area.present().map_err(Error::plot)?;
        drop(area);
        Ok(svg)
    }
}

/// The places of the lines' names, on as many lines as they need.
fn legend<'a>(lines: impl Iterator<Item = &'a Series>) -> Vec<(&'a Series, (i32, i32))> {
    let (mut x, mut y) = (LEFT, HEAD);
    let mut places = vec![];
    for series in lines {
        let width = 36 + CHARACTER * series.title().chars().count() as i32;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + LINE);
        }
        places.push((series, (x, y)));
        x += width;
    }
    places
}

fn color(series: &Series, number: usize) -> RGBColor {
    if series.source == SeriesSource::Paper { RGBColor(208, 208, 208) } else { COLORS[number % COLORS.len()] }
}

fn rectangle(area: &Area, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<()> {
    area.draw(&Rectangle::new([from, to], color.filled())).map_err(Error::plot)
}

/// Draws text beside a point, centered vertically.
fn text(area: &Area, text: &str, at: (i32, i32), size: i32, color: RGBColor, side: HPos) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text, at, style)).map_err(Error::plot)
}
