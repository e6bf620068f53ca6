//! Selection and aggregation in one pass: rows that lie in ranges of columns, and counts, sums, smallest and largest values
//! of them, without a batch of selected rows between.
//!
//! Either way of paper 2, section 7.2.4: branching looks at a row's next column only if the row is still in, predication
//! computes everything and masks what does not count. [`CpuSelection`] takes batch by batch, in vectors where the processor
//! has them; [`DeviceSelection`] gives chunks of batches to a GPU. Both come to the same [`SelectionState`].

mod column;
mod cpu;
mod device;
mod pages;
mod state;
#[cfg(test)]
mod tests;

use arrow::datatypes::DataType;

pub use column::{constant, takes_type};
pub use cpu::{CpuSelection, Evaluation};
pub use device::{BatchColumns, DeviceProblem, DeviceSelected, DeviceSelection};
pub use state::SelectionState;

/// Rows whose value of a column lies between two, both included; a null does not. Values are the numbers that Arrow stores:
/// days of a date, a decimal without its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnRange {
    /// Which column of the batches.
    pub column: usize,
    /// The lowest value.
    pub lowest: i128,
    /// The highest value.
    pub highest: i128,
}

/// An aggregate over all selected rows. Nulls do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// How many rows there are.
    CountRows,
    /// How many values a column has.
    Count(usize),
    /// The sum of a column, exact.
    Sum(usize),
    /// The sum of the products of two columns of one kind: both of 64-bit integers, whose products must fit
    /// them, or both of decimals.
    SumOfProducts(usize, usize),
    /// The smallest value of a column.
    Min(usize),
    /// The largest value of a column.
    Max(usize),
}

impl Aggregate {
    /// The columns that it reads.
    pub fn columns(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Self::CountRows => (None, None),
            Self::Count(column) | Self::Sum(column) | Self::Min(column) | Self::Max(column) => (Some(column), None),
            Self::SumOfProducts(left, right) => (Some(left), Some(right)),
        };
        first.into_iter().chain(second)
    }
}

/// Which rows are selected, and what they are aggregated to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// A row is selected if it is in all of them.
    pub ranges: Vec<ColumnRange>,
    /// The aggregates.
    pub aggregates: Vec<Aggregate>,
}

impl Selection {
    /// The columns that it reads, in order, each once.
    pub fn columns(&self) -> Vec<usize> {
        let ranges = self.ranges.iter().map(|range| range.column);
        let mut columns: Vec<_> =
            ranges.chain(self.aggregates.iter().flat_map(|aggregate| aggregate.columns())).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// Whether products of two columns of these types can be summed.
pub fn takes_product(left: &DataType, right: &DataType) -> bool {
    matches!(
        (left, right),
        (DataType::Int64, DataType::Int64)
            | (DataType::UInt64, DataType::UInt64)
            | (DataType::Decimal128(..), DataType::Decimal128(..))
    )
}
