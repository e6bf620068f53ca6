//! Finds the coefficients that explain measured times.

use crate::scheduler::{ByKind, Kind};

/// A query that has run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Rows that each of its threads processed, by the kind of operator.
    pub rows: ByKind,
    /// Nanoseconds in which its operators start.
    pub start: f64,
    /// Nanoseconds that it took.
    pub took: f64,
}

/// How much it counts that a coefficient differs from its estimate, beside the errors of queries. It decides only where queries tell
/// nothing of an operator, or of two of them only together.
const PRIOR: f64 = 1e-3;

/// The least coefficient, as a share of its estimate. An operator that takes no time at all would have no part in any plan.
const LEAST: f64 = 0.05;

/// Rounds over all coefficients. Each round brings all of them closer to the best.
const ROUNDS: usize = 5_000;

/// The coefficients for which the sum of squares of relative errors is least. Those of operators that no query has stay as estimated.
/// By coordinate descent.
pub(super) fn fitted(samples: &[Sample]) -> ByKind {
    let estimated = ByKind::estimated();
    // As multiples of the estimates, and errors as shares of the times.
    let share = |sample: &Sample, kind: Kind| estimated[kind] * sample.rows[kind] / sample.took;
    let mut factors = Kind::ALL.map(|_| 1.0);
    let explained = |sample: &Sample, factors: &[f64]| {
        let of_kinds = Kind::ALL.into_iter().zip(factors).map(|(kind, factor)| share(sample, kind) * factor);
        of_kinds.sum::<f64>() + sample.start / sample.took
    };
    for _ in 0..ROUNDS {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            let (mut square, mut product) = (PRIOR, PRIOR * (1.0 - factors[number]));
            for sample in samples {
                let own = share(sample, kind);
                square += own * own;
                product += own * (1.0 - explained(sample, &factors));
            }
            factors[number] = (factors[number] + product / square).max(LEAST);
        }
    }
    let mut costs = estimated;
    for (kind, factor) in Kind::ALL.into_iter().zip(factors) {
        costs[kind] *= factor;
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_found_and_others_stay() {
        let mut truth = ByKind::estimated();
        truth[Kind::Build] *= 3.0;
        truth[Kind::Probe] *= 0.4;
        truth[Kind::Sort] *= 1.5;
        let sample = |rows: &[(Kind, f64)]| {
            let mut of = ByKind::default();
            rows.iter().for_each(|(kind, rows)| of[*kind] = *rows);
            let start = 60_000.0;
            Sample { rows: of, start, took: start + truth.dot(&of) }
        };
        let samples = [
            sample(&[(Kind::Build, 1e6), (Kind::Probe, 1e6), (Kind::ScanMemory, 2e6)]),
            sample(&[(Kind::Build, 1e4), (Kind::Probe, 2e6), (Kind::ScanMemory, 2e6)]),
            sample(&[(Kind::Sort, 1e6), (Kind::ScanMemory, 1e6)]),
            sample(&[(Kind::ScanMemory, 5e6)]),
        ];
        let found = fitted(&samples);
        for kind in Kind::ALL {
            assert!((found[kind] / truth[kind] - 1.0).abs() < 0.02, "{kind:?}: {} for {}", found[kind], truth[kind]);
        }
    }

    #[test]
    fn nothing_costs_less_than_nothing() {
        let mut rows = ByKind::default();
        rows[Kind::Filter] = 1e6;
        let found = fitted(&[Sample { rows, start: 1e6, took: 1e5 }]);
        assert!(found[Kind::Filter] > 0.0);
        assert_eq!(fitted(&[]), ByKind::estimated());
    }
}
