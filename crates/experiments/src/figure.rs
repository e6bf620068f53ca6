//! What an experiment gives: lines over an axis, ours and the paper's.

use std::fmt::{Display, Formatter};

use serde::Serialize;

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesSource {
    /// Measured in this run.
    Measured,
    /// What bounds the others, measured in this run.
    Bound,
    /// Told in the paper's text, of its machines.
    Paper,
}

/// A line.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: SeriesSource,
    /// Points by growing x.
    pub points: Vec<(f64, f64)>,
}

/// An axis.
#[derive(Debug, Clone, Serialize)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: &'static str,
    /// Whether distances on it are ratios.
    pub logarithmic: bool,
    /// Names of the values 0, 1, … where these are not numbers.
    pub names: Vec<&'static str>,
}

impl Axis {
    /// An axis whose distances are ratios.
    pub fn logarithmic(label: &'static str) -> Self {
        Self { label, logarithmic: true, names: Vec::new() }
    }

    /// An axis from 0 on.
    pub fn linear(label: &'static str) -> Self {
        Self { label, logarithmic: false, names: Vec::new() }
    }
}

/// The result of an experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The experiment.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The figure of a paper that it is an experiment of.
    pub paper: &'static str,
    /// What it ran on.
    pub machine: String,
    /// Whether what is told of a GPU comes from the stand-in.
    pub emulated: bool,
    /// What was varied.
    pub x: Axis,
    /// What was measured.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

impl Figure {
    /// Adds a line, unless it has no points.
    pub fn add(&mut self, source: SeriesSource, name: impl Into<String>, points: Vec<(f64, f64)>) {
        if !points.is_empty() {
            self.series.push(Series { name: name.into(), source, points });
        }
    }

    fn x_value(&self, x: f64) -> String {
        match self.x.names.get(x as usize) {
            Some(name) => (*name).to_owned(),
            None => number(x),
        }
    }
}

/// Four digits, and no more zeros than it needs.
fn number(value: f64) -> String {
    let digits = if value >= 1000.0 || value == value.trunc() { 0 } else { 3 - value.abs().max(1.0).log10() as usize };
    format!("{value:.digits$}")
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} ({})", self.title, self.paper)?;
        writeln!(f, "{}", self.machine)?;
        writeln!(f, "{} by {}", self.y.label, self.x.label)?;
        let mut values: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let titles = self.series.iter().map(|series| match series.source {
            SeriesSource::Paper => format!("{} (paper)", series.name),
            SeriesSource::Bound => format!("{} (bound)", series.name),
            SeriesSource::Measured => series.name.clone(),
        });
        let mut rows: Vec<Vec<String>> = vec![std::iter::once(String::new()).chain(titles).collect()];
        for x in values {
            let at = |series: &Series| {
                let found = series.points.iter().find(|point| point.0 == x);
                found.map_or_else(|| "-".to_owned(), |point| number(point.1))
            };
            rows.push(std::iter::once(self.x_value(x)).chain(self.series.iter().map(at)).collect());
        }
        let widths: Vec<usize> =
            (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}", width = *width)).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut figure = Figure {
            name: "example",
            title: "An example",
            paper: "paper 0, figure 1",
            machine: "Imaginary 9000, 2 threads".to_owned(),
            emulated: false,
            x: Axis::logarithmic("bytes"),
            y: Axis::linear("GB/s"),
            series: vec![],
            notes: vec!["nothing was left out".to_owned()],
        };
        figure.add(SeriesSource::Measured, "CPU", vec![(4.0, 1.25), (8.0, 12345.6)]);
        figure.add(SeriesSource::Paper, "V100", vec![(8.0, 63.0), (16.0, 0.1234)]);
        figure.add(SeriesSource::Measured, "left out", vec![]);
        figure
    }

    #[test]
    fn a_figure_is_a_table() {
        let expected = "\
An example (paper 0, figure 1)
Imaginary 9000, 2 threads
GB/s by bytes
      CPU  V100 (paper)
 4  1.250             -
 8  12346            63
16      -         0.123
nothing was left out
";
        assert_eq!(figure().to_string(), expected);
    }

    #[test]
    fn a_figure_is_json() {
        let json = serde_json::to_value(figure()).unwrap();
        assert_eq!(json["series"][1]["source"], "paper");
        assert_eq!(json["series"][0]["points"][1][1], 12345.6);
    }

    #[test]
    fn a_figure_is_a_plot() {
        let svg = figure().to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in ["An example", "CPU", "V100", "bytes", "GB/s"] {
            assert!(svg.contains(text), "{text}");
        }
        let mut names = figure();
        names.x = Axis { label: "method", logarithmic: false, names: vec!["first", "second"] };
        names.series = vec![];
        names.add(SeriesSource::Measured, "GPU", vec![(0.0, 5.0), (1.0, 7.0)]);
        let svg = names.to_svg().unwrap();
        assert!(svg.contains("first") && svg.contains("second"));
    }
}
