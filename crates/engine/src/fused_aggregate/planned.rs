//! The nodes that were planned.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use overspill_join::selection::Aggregate;

use super::expressions::{aggregate, is_first_without_groups};

/// A planned aggregate, with the projection of columns between it and its input if there is one. These nodes are never
/// executed; they provide statistics and distribution.
#[derive(Debug, Clone)]
pub(crate) struct PlannedAggregate {
    aggregate: Arc<AggregateExec>,
    projection: Option<Arc<dyn ExecutionPlan>>,
}

impl PlannedAggregate {
    /// Splits an aggregate without groups, the first of its kind (partial or single), into this and the node below it and its
    /// projection. Returns `None` for other aggregates.
    pub(crate) fn new(aggregate: &AggregateExec) -> Option<(Self, Arc<dyn ExecutionPlan>)> {
        if !is_first_without_groups(aggregate) {
            return None;
        }
        let above = aggregate.input();
        let (projection, below) = match above.downcast_ref::<ProjectionExec>() {
            Some(projection) => (Some(Arc::clone(above)), projection.input()),
            None => (None, above),
        };
        Some((Self { aggregate: Arc::new(aggregate.clone()), projection }, Arc::clone(below)))
    }

    pub(crate) fn node(&self) -> &Arc<AggregateExec> {
        &self.aggregate
    }

    /// For each column of the aggregate's input, its position among the `below` columns. `None` if the projection computes
    /// other expressions than columns.
    pub(crate) fn columns(&self, below: usize) -> Option<Vec<usize>> {
        let Some(projection) = &self.projection else { return Some((0..below).collect()) };
        let columns = projection.downcast_ref::<ProjectionExec>()?.expr().iter();
        columns.map(|column| Some(column.expr.downcast_ref::<Column>()?.index())).collect()
    }

    /// The aggregates. `place` maps a column of the aggregate's input to its new number. `None` if an aggregate is not
    /// supported or one of its columns has no place.
    pub(crate) fn aggregates(&self, place: impl Fn(usize) -> Option<usize>) -> Option<Vec<Aggregate>> {
        let schema = self.aggregate.input().schema();
        let aggregates = self.aggregate.aggr_expr().iter().map(|planned| {
            Some(match aggregate(planned, &schema)? {
                Aggregate::CountRows => Aggregate::CountRows,
                Aggregate::Count(column) => Aggregate::Count(place(column)?),
                Aggregate::Sum(column) => Aggregate::Sum(place(column)?),
                Aggregate::SumOfProducts(left, right) => Aggregate::SumOfProducts(place(left)?, place(right)?),
                Aggregate::Min(column) => Aggregate::Min(place(column)?),
                Aggregate::Max(column) => Aggregate::Max(place(column)?),
            })
        });
        aggregates.collect()
    }

    /// Visits the expressions over the columns below.
    pub(crate) fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        match &self.projection {
            Some(projection) => projection.apply_expressions(f),
            None => self.aggregate.apply_expressions(f),
        }
    }

    /// The same nodes over another input.
    ///
    /// # Errors
    /// Fails if the input has other columns.
    pub(crate) fn over(&self, below: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let anew = || ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let mut node = below;
        if let Some(projection) = &self.projection {
            node = Arc::clone(projection).replace_children(vec![node], anew())?;
        }
        let aggregate: Arc<dyn ExecutionPlan> = Arc::clone(&self.aggregate) as _;
        aggregate.replace_children(vec![node], anew())
    }

    /// The statistics of the aggregate's output, given those of the node below.
    ///
    /// # Errors
    /// Returns the errors of the nodes.
    pub(crate) fn statistics(&self, below: Arc<Statistics>, args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let input = match &self.projection {
            Some(projection) => projection.statistics_from_inputs(&[below], args)?,
            None => below,
        };
        self.aggregate.statistics_from_inputs(&[input], args)
    }
}

/// Formats a planned node as EXPLAIN shows it.
pub(crate) fn displayed(node: &dyn DisplayAs, format: DisplayFormatType) -> String {
    fmt::from_fn(|f| node.fmt_as(format, f)).to_string()
}
