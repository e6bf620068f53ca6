//! Selection and aggregation in one pass: selects rows by ranges of columns and computes counts, sums, minima and maxima,
//! without materializing the selected rows.
//!
//! There are the two methods of paper 2, section 7.2.4. Branching reads a row's next column only if the row is still selected.
//! Predication computes everything and masks unselected rows. [`CpuSelection`] processes batch by batch, with vector
//! instructions if the processor has them, and produces a [`SelectionState`].

pub mod column;
mod cpu;
mod state;
#[cfg(test)]
mod tests;

use arrow::datatypes::DataType;

pub use column::{constant, takes_type};
pub use cpu::{CpuSelection, Evaluation};
pub use state::{SelectionState, Value};

/// Selects the rows with a column value in an inclusive range; nulls are not selected. Values are the numbers that Arrow
/// stores: days for a date, the unscaled integer for a decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnRange {
    /// The index of the column in the batches.
    pub column: usize,
    /// The lowest value of the range.
    pub lowest: i128,
    /// The highest value of the range.
    pub highest: i128,
}

/// An aggregate over all selected rows. Nulls do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The number of rows.
    CountRows,
    /// The number of values in a column.
    Count(usize),
    /// The exact sum of a column.
    Sum(usize),
    /// The sum of the products of two columns: both of 64-bit integers of one type, with products that fit the type, or both of
    /// decimals.
    SumOfProducts(usize, usize),
    /// The smallest value of a column.
    Min(usize),
    /// The largest value of a column.
    Max(usize),
}

impl Aggregate {
    /// The columns that the aggregate reads.
    pub fn columns(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Self::CountRows => (None, None),
            Self::Count(column) | Self::Sum(column) | Self::Min(column) | Self::Max(column) => (Some(column), None),
            Self::SumOfProducts(left, right) => (Some(left), Some(right)),
        };
        first.into_iter().chain(second)
    }
}

/// Which rows are selected, and how they are aggregated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// A row is selected if it is in all of these ranges.
    pub ranges: Vec<ColumnRange>,
    /// The aggregates.
    pub aggregates: Vec<Aggregate>,
}

impl Selection {
    /// The columns that the selection reads, in ascending order and without duplicates.
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
