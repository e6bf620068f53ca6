//! Builds output batches from rows of both sides.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::take;
use arrow::datatypes::DataType;

use super::payload::PackedPayload;
use crate::error::Result;
use crate::hash_table::VisitedRows;
use crate::memory::RowSizes;
use crate::spec::{ColumnSource, JoinSpec};

/// Which rows of a batch go to the output.
#[derive(Debug)]
pub enum Rows {
    /// Consecutive rows, which need no copy: first row and length.
    Range(usize, usize),
    /// Rows by their numbers.
    Numbers(UInt32Array),
    /// This number of rows of nulls.
    Nulls(usize),
}

impl Rows {
    /// The rows with these numbers, as a range if they are consecutive.
    pub(crate) fn from_numbers(numbers: ScalarBuffer<u32>) -> Self {
        // No early exit at the first difference, so that many numbers are compared at once.
        let differ = |first: u32| numbers.iter().zip(first..).fold(0, |bits, (number, row)| bits | (number ^ row));
        match (numbers.first(), numbers.last()) {
            (Some(&first), Some(&last))
                if last.wrapping_sub(first) as usize == numbers.len() - 1 && differ(first) == 0 =>
            {
                Self::Range(first as usize, numbers.len())
            }
            _ => Self::Numbers(UInt32Array::new(numbers, None)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range(_, rows) | Self::Nulls(rows) => *rows,
            Self::Numbers(numbers) => numbers.len(),
        }
    }

    fn of(&self, column: &ArrayRef) -> Result<ArrayRef> {
        Ok(match self {
            Self::Range(0, rows) if *rows == column.len() => Arc::clone(column),
            Self::Range(first, rows) => column.slice(*first, *rows),
            Self::Numbers(numbers) => take(column, numbers, None)?,
            Self::Nulls(rows) => new_null_array(column.data_type(), *rows),
        })
    }
}

/// Rows of one side that an output batch is built from.
pub enum SideRows<'a> {
    /// Rows of a batch.
    Of(&'a RecordBatch, Rows),
    /// Rows as words that hold their packed columns.
    Packed(&'a PackedPayload, ScalarBuffer<u64>),
}

impl SideRows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Of(_, rows) => rows.len(),
            Self::Packed(_, words) => words.len(),
        }
    }

    fn column(&self, index: usize) -> Result<ArrayRef> {
        match self {
            Self::Of(batch, rows) => rows.of(batch.column(index)),
            Self::Packed(payload, words) => payload.unpack(index, words),
        }
    }
}

/// The build rows that pairs are made of.
pub trait BuildRows: Debug + Send + Sync {
    /// Rows by their numbers.
    fn numbered(&self, rows: ScalarBuffer<u32>) -> SideRows<'_>;

    /// Rows as their packed columns.
    fn packed(&self, words: ScalarBuffer<u64>) -> SideRows<'_>;

    /// Rows of nulls.
    fn nulls(&self, rows: usize) -> SideRows<'_>;

    /// Bytes that copies of rows take.
    fn sizes(&self) -> &RowSizes;

    /// The rows that have found a match.
    fn visited(&self) -> &VisitedRows;
}

/// Rows of the build and the probe side, paired one by one.
pub(super) struct Pairs<'a> {
    pub(super) build: SideRows<'a>,
    pub(super) probe: SideRows<'a>,
    /// The flags of a mark join.
    pub(super) mark: Option<BooleanArray>,
}

impl Pairs<'_> {
    /// The output batch of these pairs.
    pub(crate) fn output(&self, spec: &JoinSpec) -> Result<RecordBatch> {
        let columns = self.columns(&spec.output_columns)?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&spec.output_schema), columns, &options)?)
    }

    /// Returns these columns of the pairs.
    pub(crate) fn columns(&self, sources: &[ColumnSource]) -> Result<Vec<ArrayRef>> {
        sources
            .iter()
            .map(|source| match source {
                ColumnSource::Build(index) => self.build.column(*index),
                ColumnSource::Probe(index) => self.probe.column(*index),
                ColumnSource::Mark => Ok(match &self.mark {
                    Some(mark) => Arc::new(mark.clone()),
                    None => new_null_array(&DataType::Boolean, self.rows()),
                }),
            })
            .collect()
    }

    fn rows(&self) -> usize {
        self.build.len()
    }
}
