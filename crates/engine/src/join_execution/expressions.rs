//! Join keys and residual filters, evaluated by DataFusion.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DataFusionError, JoinSide};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use overspill_join::JoinError;
use overspill_join::spec::{ColumnSource, KeyExpressions, ResidualFilter};

/// The keys of one side of a join.
#[derive(Debug)]
pub(crate) struct Keys(pub Vec<PhysicalExprRef>);

impl KeyExpressions for Keys {
    fn evaluate(&self, batch: &RecordBatch) -> overspill_join::Result<Vec<ArrayRef>> {
        evaluate_expressions_to_arrays(&self.0, batch).map_err(JoinError::host)
    }
}

/// The condition of a join besides its keys.
#[derive(Debug)]
pub(crate) struct Residual {
    filter: JoinFilter,
    columns: Vec<ColumnSource>,
}

impl Residual {
    pub fn new(filter: JoinFilter) -> Self {
        let columns = filter.column_indices().iter().map(column_source).collect();
        Self { filter, columns }
    }
}

impl ResidualFilter for Residual {
    fn columns(&self) -> &[ColumnSource] {
        &self.columns
    }

    fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> overspill_join::Result<BooleanArray> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(self.filter.schema()), columns, &options)?;
        let evaluate = || {
            let passed = self.filter.expression().evaluate(&batch)?.into_array(rows)?;
            Ok::<_, DataFusionError>(as_boolean_array(&passed)?.clone())
        };
        evaluate().map_err(JoinError::host)
    }
}

/// Where a column of a join's schema comes from.
pub(crate) fn column_source(column: &ColumnIndex) -> ColumnSource {
    match column.side {
        JoinSide::Left => ColumnSource::Build(column.index),
        JoinSide::Right => ColumnSource::Probe(column.index),
        JoinSide::None => ColumnSource::Mark,
    }
}

/// The original DataFusion error if there is one.
pub(crate) fn to_datafusion(error: JoinError) -> DataFusionError {
    match error {
        JoinError::Arrow(error) => error.into(),
        JoinError::Host(error) => match error.downcast::<DataFusionError>() {
            Ok(error) => *error,
            Err(error) => DataFusionError::External(error),
        },
        JoinError::Limit(text) => DataFusionError::ResourcesExhausted(text),
        JoinError::Unspillable(text) => DataFusionError::ResourcesExhausted(format!(
            "{text}; set overspill.spill = true and overspill.max_recursion_depth above 0"
        )),
    }
}
