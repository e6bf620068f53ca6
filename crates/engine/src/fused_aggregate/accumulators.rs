//! DataFusion's own aggregates, without groups.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateMode, aggregate_expressions, create_accumulators, evaluate_many, finalize_aggregation,
};
use datafusion::physical_plan::execution_plan::ExecutionPlan;
use overspill_join::selection::{Selection, SelectionState};

use crate::join_execution::to_datafusion;

/// DataFusion's accumulators for rows that no selection or kernel aggregates. The other aggregate states are merged into
/// them, so only DataFusion needs to know the form of a result.
pub(crate) struct Accumulators {
    aggregate: Arc<AggregateExec>,
    arguments: Vec<Vec<Arc<dyn PhysicalExpr>>>,
    accumulators: Vec<Box<dyn Accumulator>>,
}

impl Accumulators {
    /// Accumulators without rows, for an aggregate that is the first of its kind (partial or single).
    pub(crate) fn new(aggregate: &Arc<AggregateExec>) -> Result<Self> {
        Ok(Self {
            // The arguments as for input rows, whatever the mode of the output.
            arguments: aggregate_expressions(aggregate.aggr_expr(), &AggregateMode::Partial, 0)?,
            accumulators: create_accumulators(aggregate.aggr_expr())?,
            aggregate: Arc::clone(aggregate),
        })
    }

    /// The schema of [`Accumulators::finish`].
    pub(crate) fn schema(&self) -> SchemaRef {
        self.aggregate.schema()
    }

    /// Aggregates rows of the aggregate's input.
    pub(crate) fn take(&mut self, rows: &RecordBatch) -> Result<()> {
        let values = evaluate_many(&self.arguments, rows)?;
        for (accumulator, values) in self.accumulators.iter_mut().zip(&values) {
            accumulator.update_batch(values)?;
        }
        Ok(())
    }

    /// Adds the aggregate state of other rows.
    pub(crate) fn merge(&mut self, selection: &Selection, state: &SelectionState) -> Result<()> {
        let fields = self.aggregate.aggr_expr().iter().map(|aggregate| aggregate.state_fields());
        for (number, (fields, accumulator)) in fields.zip(&mut self.accumulators).enumerate() {
            // The state of each of these aggregates is one value; a sum also has a carry.
            let fields = fields?;
            let data_type = fields[0].data_type();
            let mut arrays = vec![state.to_array(selection, number, data_type).map_err(to_datafusion)?];
            if fields.len() > 1 {
                arrays.push(Arc::new(Int64Array::from(vec![state.carry(number, data_type)])));
            }
            accumulator.merge_batch(&arrays)?;
        }
        Ok(())
    }

    /// Returns the aggregate's single output row.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch> {
        let columns = finalize_aggregation(&mut self.accumulators, self.aggregate.mode())?;
        Ok(RecordBatch::try_new(self.aggregate.schema(), columns)?)
    }
}
