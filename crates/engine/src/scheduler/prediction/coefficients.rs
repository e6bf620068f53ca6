//! What a row costs each kind of operator (paper 5, section 4.2).

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// A kind of operator. Its work is a number of rows: of its inputs, unless the kind says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values that a scan of memory returns: rows times columns.
    ScanMemory,
    /// Values that a scan of files returns.
    ScanFile,
    Filter,
    /// Rows of a join's build side.
    Build,
    /// Rows of a join's probe side.
    Probe,
    /// Joins without an equality.
    Theta,
    Aggregate,
    Sort,
    Window,
    Exchange,
    Write,
    /// All else.
    Other,
}

impl Kind {
    pub const ALL: [Self; 12] = [
        Self::ScanMemory,
        Self::ScanFile,
        Self::Filter,
        Self::Build,
        Self::Probe,
        Self::Theta,
        Self::Aggregate,
        Self::Sort,
        Self::Window,
        Self::Exchange,
        Self::Write,
        Self::Other,
    ];

    /// The name in the file of measurements, and the estimate in nanoseconds of a thread for a machine that was not measured.
    fn described(self) -> (&'static str, f64) {
        match self {
            Self::ScanMemory => ("scan_memory", 0.5),
            Self::ScanFile => ("scan_file", 6.0),
            Self::Filter => ("filter", 4.0),
            Self::Build => ("build", 40.0),
            Self::Probe => ("probe", 20.0),
            Self::Theta => ("theta", 200.0),
            Self::Aggregate => ("aggregate", 20.0),
            Self::Sort => ("sort", 80.0),
            Self::Window => ("window", 100.0),
            Self::Exchange => ("exchange", 5.0),
            Self::Write => ("write", 100.0),
            Self::Other => ("other", 1.0),
        }
    }
}

/// A number for each kind of operator.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ByKind([f64; Kind::ALL.len()]);

impl ByKind {
    /// Estimated nanoseconds of a thread for a row.
    pub fn estimated() -> Self {
        Self(Kind::ALL.map(|kind| kind.described().1))
    }

    /// Measured nanoseconds by their names; estimates for those that have none.
    pub fn named(measured: &BTreeMap<String, f64>) -> Self {
        let known = |kind: Kind| measured.get(kind.described().0).filter(|cost| cost.is_finite() && **cost >= 0.0);
        Self(Kind::ALL.map(|kind| known(kind).copied().unwrap_or(kind.described().1)))
    }

    /// All numbers by their names.
    pub fn names(&self) -> BTreeMap<String, f64> {
        Kind::ALL.into_iter().map(|kind| (kind.described().0.to_owned(), self[kind])).collect()
    }

    /// What the GPU takes as a multiple of what is predicted: of joins, and of filters with aggregates.
    pub fn of_gpu(join: f64, aggregate: f64) -> Self {
        Self(Kind::ALL.map(|kind| match kind {
            Kind::Build | Kind::Probe => join,
            Kind::Filter => aggregate,
            _ => 1.0,
        }))
    }

    /// The product of the numbers of each kind.
    pub fn times(&self, other: &Self) -> Self {
        Self(Kind::ALL.map(|kind| self[kind] * other[kind]))
    }

    /// The sum of products: nanoseconds, of rows and coefficients.
    pub fn dot(&self, other: &Self) -> f64 {
        self.0.iter().zip(&other.0).map(|(one, other)| one * other).sum()
    }
}

impl Index<Kind> for ByKind {
    type Output = f64;

    fn index(&self, kind: Kind) -> &f64 {
        &self.0[kind as usize]
    }
}

impl IndexMut<Kind> for ByKind {
    fn index_mut(&mut self, kind: Kind) -> &mut f64 {
        &mut self.0[kind as usize]
    }
}
