//! Builds output batches from pairs or from rows of one side.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::DataType;

use super::spec::ThetaSpec;
use crate::error::Result;
use crate::hash_table::VisitedRows;
use crate::join_type::JoinType;
use crate::spec::{ColumnSource, Side};

/// The rows of a batch that have matched; several threads may mark them concurrently.
#[derive(Debug, Default)]
pub struct MatchedRows {
    rows: usize,
    bits: VisitedRows,
}

impl MatchedRows {
    /// Creates a set of `rows` rows without a match.
    pub fn new(rows: usize) -> Self {
        Self { rows, bits: VisitedRows::new(rows) }
    }

    /// Bytes of the bits of `rows` rows.
    pub fn bytes(rows: usize) -> usize {
        VisitedRows::bytes(rows)
    }

    /// The number of rows, matched or not.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn get(&self, row: u32) -> bool {
        self.bits.get(row)
    }

    pub(super) fn set(&self, row: u32) {
        self.bits.set(row);
    }

    /// Marks all rows of these ranges, which must be sorted.
    pub(super) fn set_ranges(&self, ranges: impl Iterator<Item = Range<u32>>) {
        let mut done = 0;
        for range in ranges {
            self.bits.set_range(range.start.max(done)..range.end);
            done = done.max(range.end);
        }
    }
}

/// The source of the columns of one side.
pub(super) enum SideRows<'a> {
    /// These rows of a batch.
    Rows(&'a RecordBatch, &'a UInt32Array),
    /// Nulls.
    Nulls,
}

/// Rows of the output, or of the input of a filter.
pub(super) struct OutputRows<'a> {
    pub(super) build: SideRows<'a>,
    pub(super) probe: SideRows<'a>,
    pub(super) mark: Option<BooleanArray>,
    pub(super) rows: usize,
}

impl<'a> OutputRows<'a> {
    /// Pairs of a row of `side` and one of the other side.
    pub(super) fn pairs(
        side: Side,
        (batch, rows): (&'a RecordBatch, &'a UInt32Array),
        (other, other_rows): (&'a RecordBatch, &'a UInt32Array),
    ) -> Self {
        let pairs = rows.len();
        let (rows, other_rows) = (SideRows::Rows(batch, rows), SideRows::Rows(other, other_rows));
        match side {
            Side::Build => Self { build: rows, probe: other_rows, mark: None, rows: pairs },
            Side::Probe => Self { build: other_rows, probe: rows, mark: None, rows: pairs },
        }
    }

    /// Returns these columns.
    pub(super) fn columns(
        &self,
        schema: impl Fn(usize) -> DataType,
        sources: &[ColumnSource],
    ) -> Result<Vec<ArrayRef>> {
        let column = |(place, source): (usize, &ColumnSource)| match source {
            ColumnSource::Build(index) => self.column(&self.build, *index, || schema(place)),
            ColumnSource::Probe(index) => self.column(&self.probe, *index, || schema(place)),
            ColumnSource::Mark => Ok(match &self.mark {
                Some(mark) => Arc::new(mark.clone()),
                None => new_null_array(&DataType::Boolean, self.rows),
            }),
        };
        sources.iter().enumerate().map(column).collect()
    }

    fn column(&self, side: &SideRows<'_>, index: usize, data_type: impl Fn() -> DataType) -> Result<ArrayRef> {
        Ok(match side {
            SideRows::Rows(batch, rows) => take(batch.column(index), *rows, None)?,
            SideRows::Nulls => new_null_array(&data_type(), self.rows),
        })
    }

    /// The output batch of these rows.
    pub(super) fn output(&self, spec: &ThetaSpec) -> Result<RecordBatch> {
        let columns =
            self.columns(|place| spec.output_schema.field(place).data_type().clone(), &spec.output_columns)?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&spec.output_schema), columns, &options)?)
    }
}

/// The output rows of one side that depend on whether they matched, for `range` of the batch.
///
/// Returns `None` if there are none, or if the join emits no such rows of the side.
///
/// # Errors
/// Fails if an Arrow kernel does.
pub fn rows_by_match(
    spec: &ThetaSpec,
    side: Side,
    batch: &RecordBatch,
    matched: &MatchedRows,
    range: Range<usize>,
) -> Result<Option<RecordBatch>> {
    if !spec.tracks(side) {
        return Ok(None);
    }
    let range = range.start as u32..range.end as u32;
    let rows: UInt32Array = match spec.join_type {
        JoinType::LeftSemi | JoinType::RightSemi => range.filter(|row| matched.get(*row)).collect::<Vec<_>>().into(),
        JoinType::LeftMark | JoinType::RightMark => range.collect::<Vec<_>>().into(),
        _ => range.filter(|row| !matched.get(*row)).collect::<Vec<_>>().into(),
    };
    if rows.is_empty() {
        return Ok(None);
    }
    let mark = matches!(spec.join_type, JoinType::LeftMark | JoinType::RightMark)
        .then(|| rows.values().iter().map(|row| Some(matched.get(*row))).collect());
    let own = SideRows::Rows(batch, &rows);
    let rows = match side {
        Side::Build => OutputRows { build: own, probe: SideRows::Nulls, mark, rows: rows.len() },
        Side::Probe => OutputRows { build: SideRows::Nulls, probe: own, mark, rows: rows.len() },
    };
    rows.output(spec).map(Some)
}
