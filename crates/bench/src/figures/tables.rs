//! Tables of the papers' sizes, or a fraction of them.

use crate::datagen::{TablePair, Workload};

/// The minimum number of rows of a side.
const LEAST_ROWS: u64 = 64;

/// The fraction of the papers' sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sizes {
    pub(super) scale: f64,
}

impl Sizes {
    /// Tables of `build` and `probe` million 16-byte tuples, with keys 1, 2, 3 ….
    pub(super) fn millions(self, build: u64, probe: u64) -> TablePair {
        self.millions_of(build as f64, probe as f64)
    }

    /// As `millions`, for fractions of a million.
    pub(super) fn millions_of(self, build: f64, probe: f64) -> TablePair {
        let rows = |millions: f64| ((millions * 1e6 * self.scale).round() as u64).max(LEAST_ROWS);
        TablePair::of_rows(rows(build), rows(probe))
    }

    /// A workload of paper 2.
    pub(super) fn workload(self, workload: Workload) -> TablePair {
        let pair = TablePair::of_workload(workload, self.scale);
        TablePair { build_rows: pair.build_rows.max(LEAST_ROWS), probe_rows: pair.probe_rows.max(LEAST_ROWS), ..pair }
    }

    /// The same tables with keys spread over 63 bits, for which hash tables use linear probing.
    pub(super) fn sparse(self, pair: &TablePair) -> TablePair {
        TablePair { sparse: true, ..pair.clone() }
    }
}
