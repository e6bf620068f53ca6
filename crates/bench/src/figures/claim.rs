//! Ratios that a paper states, beside ours.

use overspill_experiments::{Figure, SeriesSource};

/// A ratio stated in a paper's text that can be compared across machines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) says: &'static str,
    /// The ratio in the paper's words.
    pub(super) paper: &'static str,
    pub(super) ratio: Ratio,
}

/// The rates that a claim compares.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ratio {
    /// Rates of two lines at each x that both have, or at one x.
    Lines { of: &'static str, to: &'static str, at: Option<f64> },
    /// The highest and the lowest rate of a line.
    Spread { of: &'static str },
    /// Rates of a line at two x: the first divided by the second.
    Points { of: &'static str, at: f64, to: f64 },
}

/// The least and the most of some values: infinity and its negative if there are none.
pub(super) fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
}

impl Claim {
    /// A claim that compares the rates of two lines.
    pub(super) fn lines(says: &'static str, paper: &'static str, of: &'static str, to: &'static str) -> Self {
        Self { says, paper, ratio: Ratio::Lines { of, to, at: None } }
    }

    /// A claim that compares the rates of one line.
    pub(super) fn spread(says: &'static str, paper: &'static str, of: &'static str) -> Self {
        Self { says, paper, ratio: Ratio::Spread { of } }
    }

    /// The paper's ratio and, if both lines were measured, ours.
    pub(super) fn beside(&self, figure: Option<&Figure>) -> String {
        let line = |name: &str| {
            let mut series = figure.into_iter().flat_map(|figure| &figure.series);
            series.find(|series| series.source == SeriesSource::Measured && series.name == name)
        };
        let ratios: Vec<f64> = match self.ratio {
            Ratio::Lines { of, to, at } => match (line(of), line(to)) {
                (Some(of), Some(to)) => of
                    .points
                    .iter()
                    .filter(|point| at.is_none_or(|at| point.0 == at))
                    .filter_map(|point| Some(point.1 / to.points.iter().find(|other| other.0 == point.0)?.1))
                    .collect(),
                _ => vec![],
            },
            Ratio::Spread { of } => line(of).map_or(vec![], |of| {
                let (least, most) = extremes(of.points.iter().map(|point| point.1));
                if of.points.len() > 1 { vec![most / least] } else { vec![] }
            }),
            Ratio::Points { of, at, to } => line(of).map_or(vec![], |of| {
                let rate = |x: f64| of.points.iter().find(|point| point.0 == x).map(|point| point.1);
                rate(at).zip(rate(to)).map(|(of, to)| of / to).into_iter().collect()
            }),
        };
        let (least, most) = extremes(ratios.iter().copied());
        let ours = match ratios.len() {
            0 => "not measured here".to_owned(),
            1 => format!("here {least:.2} x"),
            _ => format!("here {least:.2} to {most:.2} x"),
        };
        format!("{}: paper {}, {ours}", self.says, self.paper)
    }
}

#[cfg(test)]
mod tests {
    use overspill_experiments::Axis;

    use super::*;

    fn figure() -> Figure {
        let mut figure = Figure { name: "example", x: Axis::linear("x"), y: Axis::linear("y"), ..Figure::default() };
        figure.add(SeriesSource::Measured, "fast", vec![(1.0, 30.0), (2.0, 20.0), (3.0, 15.0)]);
        figure.add(SeriesSource::Measured, "slow", vec![(1.0, 10.0), (2.0, 10.0)]);
        figure.add(SeriesSource::Paper, "other", vec![(1.0, 10.0)]);
        figure
    }

    #[test]
    fn claims_are_compared_where_both_lines_are() {
        let claim = |ratio| Claim { says: "it is faster", paper: "2 x", ratio }.beside(Some(&figure()));
        let lines = |of, to, at| claim(Ratio::Lines { of, to, at });
        assert_eq!(lines("fast", "slow", None), "it is faster: paper 2 x, here 2.00 to 3.00 x");
        assert_eq!(lines("fast", "slow", Some(1.0)), "it is faster: paper 2 x, here 3.00 x");
        for (of, to, at) in [("fast", "slow", Some(3.0)), ("fast", "other", None), ("none", "slow", None)] {
            assert_eq!(lines(of, to, at), "it is faster: paper 2 x, not measured here");
        }
        assert_eq!(claim(Ratio::Spread { of: "fast" }), "it is faster: paper 2 x, here 2.00 x");
        assert_eq!(claim(Ratio::Spread { of: "other" }), "it is faster: paper 2 x, not measured here");
        let points = |at, to| claim(Ratio::Points { of: "fast", at, to });
        assert_eq!(points(1.0, 7.0), "it is faster: paper 2 x, not measured here");
        assert_ne!(points(1.0, 2.0), points(2.0, 1.0));
    }
}
