//! The planned nodes that one pass replaces.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use overspill_join::selection::Selection;

use super::expressions::ranges;
use crate::fused_aggregate::PlannedAggregate;

/// A filter, and an aggregate above it.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub filter: Arc<dyn ExecutionPlan>,
    pub aggregate: PlannedAggregate,
}

impl Planned {
    /// Returns `None` unless the plan has such nodes.
    pub fn new(aggregate: &AggregateExec) -> Option<Self> {
        let (aggregate, filter) = PlannedAggregate::new(aggregate)?;
        filter.downcast_ref::<FilterExec>()?;
        Some(Self { filter, aggregate })
    }

    pub fn filter(&self) -> Result<&FilterExec> {
        let filter = self.filter.downcast_ref::<FilterExec>();
        filter.ok_or_else(|| internal_datafusion_err!("FilterAggregateExec without a filter"))
    }

    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        // A filter has one input.
        self.filter.children()[0]
    }

    /// For each column of the aggregate's input, its position in the filter's input.
    pub fn columns(&self) -> Option<Vec<usize>> {
        let filter = self.filter.downcast_ref::<FilterExec>()?;
        let filtered = match filter.projection() {
            Some(projection) => projection.to_vec(),
            None => (0..self.input().schema().fields().len()).collect(),
        };
        let columns = self.aggregate.columns(filtered.len())?.into_iter();
        columns.map(|column| filtered.get(column).copied()).collect()
    }

    /// The selection that the nodes compute, if they are a selection.
    pub fn selection(&self) -> Option<Selection> {
        let filter = self.filter.downcast_ref::<FilterExec>()?;
        let columns = self.columns()?;
        Some(Selection {
            ranges: ranges(filter.predicate(), &self.input().schema())?,
            aggregates: self.aggregate.aggregates(|column| columns.get(column).copied())?,
        })
    }
}
