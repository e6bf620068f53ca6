//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties,
};
use futures::{StreamExt, TryStreamExt};

use super::sorter::Sorter;

/// Sorts each partition of its input, in memory or by merging runs that it has moved to disk.
///
/// It replaces a [`SortExec`], and keeps it for its properties, distribution and statistics. With a fetch it returns only the
/// first rows, like the `SortExec`, but does not keep them in memory until then.
#[derive(Debug)]
pub struct SpillingSortExec {
    planned: Arc<SortExec>,
    metrics: ExecutionPlanMetricsSet,
}

impl SpillingSortExec {
    /// Replaces a planned sort.
    pub fn new(planned: SortExec) -> Self {
        Self { planned: Arc::new(planned), metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for SpillingSortExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (expressions, fetch) = (self.planned.expr(), self.planned.fetch());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "SpillingSortExec: ")?;
                if let Some(fetch) = fetch {
                    write!(f, "fetch={fetch}, ")?;
                }
                let preserve = self.planned.preserve_partitioning();
                write!(f, "expr=[{expressions}], preserve_partitioning=[{preserve}]")
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "{expressions}")?;
                fetch.map_or(Ok(()), |fetch| writeln!(f, "limit={fetch}"))
            }
        }
    }
}

impl ExecutionPlan for SpillingSortExec {
    fn name(&self) -> &str {
        "SpillingSortExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.planned.input_distribution_requirements()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.planned.input()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.planned.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = Arc::clone(&self.planned).replace_children(children, options)?;
        Ok(match planned.downcast_ref::<SortExec>() {
            Some(sort) => Arc::new(Self::new(sort.clone())),
            None => planned,
        })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.planned.input();
        if input.equivalence_properties().ordering_satisfy(self.planned.expr().clone())? {
            return self.planned.execute(partition, context);
        }
        let mut input = input.execute(partition, Arc::clone(&context))?;
        let mut sorter = Sorter::new(&self.planned, partition, &self.metrics, &context);
        let sorted = async move {
            while let Some(batch) = input.next().await.transpose()? {
                sorter.insert(batch).await?;
            }
            drop(input);
            sorter.finish().await
        };
        let sorted = futures::stream::once(sorted).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), sorted)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.planned.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.planned.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.planned.fetch()
    }
}
