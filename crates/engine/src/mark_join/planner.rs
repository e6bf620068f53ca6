//! Plans the logical node as a physical operator.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{JoinType, NullEquality, Result, not_impl_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::node::NullAwareMarkJoin;
use crate::hybrid_join::HybridJoinExec;

/// Plans [`NullAwareMarkJoin`]s.
#[derive(Debug, Default)]
pub struct MarkJoinPlanner {}

impl MarkJoinPlanner {
    /// The planner; it has no state.
    pub fn new() -> Self {
        Self {}
    }
}

#[async_trait]
impl ExtensionPlanner for MarkJoinPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (Some(node), [input, members]) = (node.as_any().downcast_ref::<NullAwareMarkJoin>(), physical_inputs)
        else {
            return Ok(None);
        };
        let key = |column, schema| planner.create_physical_expr(&Expr::Column(column), schema, session, context);
        let value = key(node.value().clone(), node.input().schema())?;
        let member = key(node.member(), node.members().schema())?;
        // The build side is collected, so it should be the smaller one. If the members are the probe side, they are probed as
        // they arrive.
        let (input, members) = (Arc::clone(input), Arc::clone(members));
        let input_is_smaller =
            matches!((bytes_of(&input), bytes_of(&members)), (Some(input), Some(members)) if input < members);
        let (sides, on, join_type) = if input_is_smaller {
            ([input, members], (value, member), JoinType::LeftMark)
        } else {
            ([members, input], (member, value), JoinType::RightMark)
        };
        let [left, right] = sides;
        let mode = PartitionMode::CollectLeft;
        let nulls = NullEquality::NullEqualsNothing;
        let join = HashJoinExec::try_new(left, right, vec![on], None, &join_type, None, mode, nulls, false)?;
        if !HybridJoinExec::supports(&join) {
            return not_impl_err!(
                "IN over a subquery is not supported for {} = {}: the operands are of a type that joins do not take, or are \
                 of an unbounded table; as the only condition of a WHERE clause it is",
                node.value(),
                node.member()
            );
        }
        Ok(Some(Arc::new(HybridJoinExec::try_new_null_aware_mark(&join)?)))
    }
}

/// The estimated size of a plan's rows, or a substitute that orders plans in the same way.
fn bytes_of(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    let bytes = statistics.total_byte_size.get_value().copied();
    bytes.or_else(|| Some(statistics.num_rows.get_value()?.saturating_mul(8 * plan.schema().fields().len().max(1))))
}

/// Plans queries as the session's planner does, and queries with a [`NullAwareMarkJoin`] as DataFusion does.
///
/// A custom planner does not need it if it adds [`MarkJoinPlanner`] to its extension planners.
#[derive(Debug)]
pub struct MarkJoinQueryPlanner {
    others: Option<Arc<dyn QueryPlanner + Send + Sync>>,
}

impl MarkJoinQueryPlanner {
    /// `others` plans the queries without such joins; if it is missing, DataFusion plans them.
    pub fn new(others: Option<Arc<dyn QueryPlanner + Send + Sync>>) -> Self {
        Self { others }
    }
}

#[async_trait]
impl QueryPlanner for MarkJoinQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match &self.others {
            Some(others) if !has_mark_join(logical_plan)? => others.create_physical_plan(logical_plan, session).await,
            _ => {
                let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(MarkJoinPlanner::new())]);
                planner.create_physical_plan(logical_plan, session).await
            }
        }
    }
}

fn has_mark_join(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        let is_mark_join = |node: &dyn UserDefinedLogicalNode| node.as_any().is::<NullAwareMarkJoin>();
        found |= matches!(node, LogicalPlan::Extension(extension) if is_mark_join(extension.node.as_ref()));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
