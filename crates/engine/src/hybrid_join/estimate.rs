//! The rows that are estimated of a join.

use std::fmt;

use datafusion::common::human_readable_count;

/// The factor from which the true rows are said to be others than the estimated ones.
const CLOSE: f64 = 1.05;

/// How many rows a join was estimated to read and to return when it was planned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimatedRows {
    /// Of the build side.
    pub build: f64,
    /// Of the probe side.
    pub probe: f64,
    /// Of the output.
    pub output: f64,
}

impl EstimatedRows {
    /// What EXPLAIN shows. Where the true rows of an execution are known (build side, probe side, output), also the factor by which they
    /// are more.
    pub(super) fn words(&self, truth: [Option<usize>; 3]) -> impl fmt::Display {
        let estimates = [("build", self.build), ("probe", self.probe), ("rows", self.output)];
        fmt::from_fn(move |f| {
            for (number, (name, estimate)) in estimates.into_iter().enumerate() {
                let separator = if number == 0 { "" } else { ", " };
                write!(f, "{separator}{name}~{}", human_readable_count(estimate.round() as usize))?;
                if let Some(truth) = truth[number] {
                    write!(f, " ({})", times(estimate, truth))?;
                }
            }
            Ok(())
        })
    }
}

/// How many times the estimate the true rows are: `x3.2`, or `/3.2` where they are fewer. One row is as good as none.
fn times(estimate: f64, truth: usize) -> String {
    let factor = (truth as f64).max(1.0) / estimate.max(1.0);
    match factor {
        factor if factor >= CLOSE => format!("x{}", short(factor)),
        factor if factor <= 1.0 / CLOSE => format!("/{}", short(1.0 / factor)),
        _ => "x1".to_owned(),
    }
}

/// A factor with two digits, if it has no more before the point.
fn short(factor: f64) -> String {
    if factor < 9.95 { format!("{factor:.1}") } else { human_readable_count(factor.round() as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_shown_in_either_direction() {
        let estimate = EstimatedRows { build: 1000.4, probe: 1_500_000.0, output: 1.0 };
        assert_eq!(estimate.words([None; 3]).to_string(), "build~1.00 K, probe~1.50 M, rows~1");
        let shown = estimate.words([3200, 1_500_000, 0].map(Some)).to_string();
        assert_eq!(shown, "build~1.00 K (x3.2), probe~1.50 M (x1), rows~1 (x1)");
        let shown = estimate.words([Some(40), None, Some(123_456)]).to_string();
        assert_eq!(shown, "build~1.00 K (/25), probe~1.50 M, rows~1 (x123.5 K)");
    }
}
