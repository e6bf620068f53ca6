//! The inputs and the output of a theta join.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::join_type::JoinType;
use crate::memory::RowSizes;
use crate::spec::{ColumnSource, KeyExpressions, ResidualFilter, Side};

/// A join on any condition.
#[derive(Debug)]
pub struct ThetaSpec {
    /// The kind of join.
    pub join_type: JoinType,
    /// The whole condition; `None` if every pair matches.
    pub condition: Option<Arc<dyn ResidualFilter>>,
    /// How blocks of the build side are searched; `None` if every row is compared.
    pub build_search: Option<BlockSearch>,
    /// How blocks of the probe side are searched; `None` if every row is compared.
    pub probe_search: Option<BlockSearch>,
    /// The schema of the build side.
    pub build_schema: SchemaRef,
    /// The schema of the probe side.
    pub probe_schema: SchemaRef,
    /// The schema of the output.
    pub output_schema: SchemaRef,
    /// The source of each column of the output.
    pub output_columns: Vec<ColumnSource>,
    /// Maximum rows of an output batch.
    pub batch_size: usize,
}

impl ThetaSpec {
    /// The schema of one side.
    pub fn schema(&self, side: Side) -> &SchemaRef {
        match side {
            Side::Build => &self.build_schema,
            Side::Probe => &self.probe_schema,
        }
    }

    /// Bytes that copies of rows of one side take when they are compared and emitted.
    pub(super) fn row_sizes(&self, side: Side, batch: &RecordBatch) -> RowSizes {
        let compared = self.condition.iter().flat_map(|condition| condition.columns());
        RowSizes::new(batch, self.output_columns.iter().chain(compared).filter_map(|source| source.of(side)))
    }

    pub(super) fn search(&self, block: Side) -> Option<&BlockSearch> {
        match block {
            Side::Build => self.build_search.as_ref(),
            Side::Probe => self.probe_search.as_ref(),
        }
    }

    /// Whether the output depends on which rows of a side have matched.
    pub(super) fn tracks(&self, side: Side) -> bool {
        match side {
            Side::Build => self.join_type.emits_build_at_end(),
            Side::Probe => self.join_type.emits_probe_by_match(),
        }
    }
}

/// How inequalities find the rows of a block that match a row of the other side.
#[derive(Debug)]
pub struct BlockSearch {
    /// The expressions of the block's side that are searched: one or two.
    pub block_keys: Arc<dyn KeyExpressions>,
    /// The expressions of the stream side that the block keys are compared with, one for each of `bounds`.
    pub stream_keys: Arc<dyn KeyExpressions>,
    /// The inequalities; a match satisfies all of them. At least one is about the first block key.
    pub bounds: Vec<Bound>,
    /// The rest of the condition.
    pub residual: Option<Arc<dyn ResidualFilter>>,
}

/// `block key OP stream key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The index of the block key.
    pub key: usize,
    /// The operator.
    pub comparison: Comparison,
}

/// The operator of an inequality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    /// The operator with its operands swapped.
    pub fn swap(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// Whether the left operand is bounded from above.
    pub fn is_upper_bound(self) -> bool {
        matches!(self, Self::Less | Self::LessOrEqual)
    }
}
