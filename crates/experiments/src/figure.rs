//! The result of an experiment: our lines and the paper's over an axis.

use std::fmt::{Display, Formatter};

use serde::Serialize;

/// The source of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesSource {
    /// Measured in this run.
    Measured,
    /// A bound on the other lines, measured in this run.
    Bound,
    /// Stated in the paper's text for its machines.
    Paper,
    /// Predicted by a model for another machine.
    Predicted,
}

/// A line of a figure.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The source.
    pub source: SeriesSource,
    /// Points by increasing x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// The name, with the source unless it was measured.
    pub(crate) fn title(&self) -> String {
        match self.source {
            SeriesSource::Paper => format!("{} (paper)", self.name),
            SeriesSource::Bound => format!("{} (bound)", self.name),
            SeriesSource::Predicted => format!("{} (model)", self.name),
            SeriesSource::Measured => self.name.clone(),
        }
    }
}

/// An axis of a figure.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Axis {
    /// The quantity with its unit.
    pub label: &'static str,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
    /// Names of the values 0, 1, … if they are not numbers. Pictures show what follows a line break in small letters.
    pub names: Vec<String>,
}

impl Axis {
    /// An axis of named values.
    pub fn named(label: &'static str, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { label, logarithmic: false, names: names.into_iter().map(Into::into).collect() }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: &'static str) -> Self {
        Self { label, logarithmic: true, ..Self::default() }
    }

    /// A linear axis that starts at 0.
    pub fn linear(label: &'static str) -> Self {
        Self { label, ..Self::default() }
    }
}

/// The result of an experiment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// The experiment.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The paper's figure that the experiment reproduces.
    pub paper: &'static str,
    /// The machine that it ran on.
    pub machine: String,
    /// Whether the GPU's lines come from the stand-in.
    pub emulated: bool,
    /// The varied quantity.
    pub x: Axis,
    /// The measured quantity.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

impl Figure {
    /// Adds a line unless it has no points.
    pub fn add(&mut self, source: SeriesSource, name: impl Into<String>, points: Vec<(f64, f64)>) {
        if !points.is_empty() {
            self.series.push(Series { name: name.into(), source, points });
        }
    }

    fn x_value(&self, x: f64) -> String {
        match self.x.names.get(x as usize) {
            Some(name) => name.replace('\n', ", "),
            None => number(x),
        }
    }
}

/// Formats a number with four digits and without trailing zeros.
pub(crate) fn number(value: f64) -> String {
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
        let titles = self.series.iter().map(Series::title);
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
        names.x = Axis::named("method", ["first", "second"]);
        names.series = vec![];
        names.add(SeriesSource::Measured, "GPU", vec![(0.0, 5.0), (1.0, 7.0)]);
        let svg = names.to_svg().unwrap();
        for text in ["first", "second", "GPU", "method", "GB/s"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
