//! The side of a join that an index may stand in for.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::index_scan::IndexScanExec;

type Plan = Arc<dyn ExecutionPlan>;

/// The scan that a column of a plan comes from, and its number there, if each row of the plan is a row of the scan, and nothing but
/// the row itself decides whether it is there.
pub(super) fn scanned(plan: &Plan, column: usize) -> Option<(&DataSourceExec, usize)> {
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        return Some((scan, column));
    }
    let below = if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        filter.projection().as_ref().map_or(column, |projection| projection[column])
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        projection.expr()[column].expr.downcast_ref::<Column>()?.index()
    } else if passes_rows_on(plan) {
        column
    } else {
        return None;
    };
    let [input] = plan.children()[..] else { return None };
    if plan.fetch().is_some() { None } else { scanned(input, below) }
}

/// Whether a node only moves rows, or leaves out some that a filter above it would. It must promise nothing of the partition that a
/// row is in: operators above may rely on partitions by
/// hash, and lookups do not keep them.
fn passes_rows_on(plan: &Plan) -> bool {
    let repartition = plan.downcast_ref::<RepartitionExec>();
    let is_dealt_out = repartition.is_some_and(|node| matches!(node.partitioning(), Partitioning::RoundRobinBatch(_)));
    is_dealt_out || plan.is::<CoalescePartitionsExec>() || plan.is::<CooperativeExec>() || plan.is::<IndexScanExec>()
}

/// The plan over other rows than those of the scan, and without what only moves rows.
pub(super) fn over(plan: &Plan, rows: Plan) -> Result<Plan> {
    match plan.children()[..] {
        [input] if passes_rows_on(plan) => over(input, rows),
        [input] => {
            let input = over(input, rows)?;
            Arc::clone(plan)
                .replace_children(vec![input], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }
        _ => Ok(rows),
    }
}

/// The plan over another scan with as many partitions.
pub(super) fn replaced(plan: &Plan, scan: Plan) -> Result<Plan> {
    match plan.children()[..] {
        // Its filter is another one than that of the scan.
        [input] if plan.is::<IndexScanExec>() => replaced(input, scan),
        [input] => {
            let input = replaced(input, scan)?;
            Arc::clone(plan)
                .replace_children(vec![input], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        }
        _ => Ok(scan),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_expr::PhysicalExprRef;

    use super::*;

    #[test]
    fn partitions_by_hash_are_not_looked_through() {
        let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]));
        let scan: Plan = MemorySourceConfig::try_new_exec(&[vec![]], schema, None).unwrap();
        let over =
            |partitioning| -> Plan { Arc::new(RepartitionExec::try_new(Arc::clone(&scan), partitioning).unwrap()) };
        assert!(scanned(&scan, 0).is_some() && scanned(&over(Partitioning::RoundRobinBatch(2)), 0).is_some());
        let key: PhysicalExprRef = Arc::new(Column::new("k", 0));
        assert!(scanned(&over(Partitioning::Hash(vec![key], 2)), 0).is_none());
    }
}
