//! The inputs and the output of a join.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;

use crate::error::Result;
use crate::join_type::JoinType;
use crate::keys::{KeyCodec, Keys};
use crate::memory::RowSizes;

/// A side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The left side, with the hash table (R in the papers).
    Build,
    /// The right side, which probes the hash table (S in the papers).
    Probe,
}

/// The source of a column of the output, or of the input of a residual filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnSource {
    /// The column with this index on the build side.
    Build(usize),
    /// The column with this index on the probe side.
    Probe(usize),
    /// The mark of a mark join.
    Mark,
}

impl ColumnSource {
    /// The index of the column, if it belongs to this side.
    pub(crate) fn of(self, side: Side) -> Option<usize> {
        match (self, side) {
            (Self::Build(index), Side::Build) | (Self::Probe(index), Side::Probe) => Some(index),
            _ => None,
        }
    }
}

/// Computes the join keys of one side.
pub trait KeyExpressions: fmt::Debug + Send + Sync {
    /// The key columns of a batch, in the order of the join condition.
    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>>;
}

/// The part of a join condition that is not an equality of keys.
pub trait ResidualFilter: fmt::Debug + Send + Sync {
    /// The columns the filter reads.
    fn columns(&self) -> &[ColumnSource];

    /// Which pairs pass; null counts as false. `columns` are those of [`Self::columns`], with `rows` rows each.
    fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray>;
}

/// A join: its condition, its type and its output.
#[derive(Debug)]
pub struct JoinSpec {
    /// The kind of join.
    pub join_type: JoinType,
    /// Whether nulls are treated as in SQL's `IN` and `NOT IN`. Only for joins with one key and without a filter.
    ///
    /// - [`JoinType::LeftAnti`] is `NOT IN`: a null among the probe keys empties the result, and a build row with a null key
    ///   is emitted only if there are no probe rows at all.
    /// - [`JoinType::LeftMark`] and [`JoinType::RightMark`] are `IN`: the mark of a row without a match is null if the
    ///   other side has rows and the row's key, or a key of the other side, is null.
    pub null_aware: bool,
    /// The layout of the keys of both sides.
    pub codec: KeyCodec,
    /// The keys of the build side.
    pub build_keys: Arc<dyn KeyExpressions>,
    /// The keys of the probe side.
    pub probe_keys: Arc<dyn KeyExpressions>,
    /// The condition besides the equality of keys.
    pub filter: Option<Arc<dyn ResidualFilter>>,
    /// The schema of the build side.
    pub build_schema: SchemaRef,
    /// The schema of the probe side.
    pub probe_schema: SchemaRef,
    /// The schema of the output.
    pub output_schema: SchemaRef,
    /// The source of each column of the output.
    pub output_columns: Vec<ColumnSource>,
}

/// What pairs must say of their rows. Decided by the type of a join, its filter and its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairForm {
    /// The numbers of both rows.
    Numbers,
    /// The number of the probe row. The build row's columns are enough, because it is emitted only in pairs.
    ProbeNumbers,
    /// The columns of both rows, because every pair of equal keys is an output row and nothing else is. So pairs may also be
    /// aggregated where they are found.
    Columns,
}

impl PairForm {
    /// The form for joins of this type.
    pub fn of(join_type: JoinType, has_filter: bool, codec: &KeyCodec) -> Self {
        if !codec.is_word() || !join_type.emits_pairs() || join_type.emits_build_at_end() {
            // Keys that are joined by their hashes are compared by row.
            Self::Numbers
        } else if join_type != JoinType::Inner || has_filter {
            Self::ProbeNumbers
        } else {
            Self::Columns
        }
    }
}

impl JoinSpec {
    /// The packed keys of a batch of one side.
    pub fn keys(&self, side: Side, batch: &RecordBatch) -> Result<Keys> {
        let expressions = match side {
            Side::Build => &self.build_keys,
            Side::Probe => &self.probe_keys,
        };
        self.codec.encode(&expressions.evaluate(batch)?)
    }

    /// What pairs must say of their rows.
    pub fn pair_form(&self) -> PairForm {
        PairForm::of(self.join_type, self.filter.is_some(), &self.codec)
    }

    /// The columns of one side that the join emits and that the filter reads; columns in both are repeated.
    pub(crate) fn copied_columns(&self, side: Side) -> impl Iterator<Item = usize> {
        let filtered = self.filter.iter().flat_map(|filter| filter.columns());
        self.output_columns.iter().chain(filtered).filter_map(move |source| source.of(side))
    }

    /// Bytes that copies of rows of one side take.
    pub(crate) fn row_sizes(&self, side: Side, batch: &RecordBatch) -> RowSizes {
        RowSizes::new(batch, self.copied_columns(side))
    }

    /// The schema of one side.
    pub fn schema(&self, side: Side) -> &SchemaRef {
        match side {
            Side::Build => &self.build_schema,
            Side::Probe => &self.probe_schema,
        }
    }
}
