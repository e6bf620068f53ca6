//! Decides where a query runs, and plans it for there.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions};
use overspill::travel::{FileKind, encode_scalar};
use overspill_distributed::planning::{for_processes, is_sink, loses_window_properties, plan_here, scans_tables};

use super::Cluster;
use super::analyze::ClusterAnalyzeExec;
use super::query::ClusterQueryExec;
use crate::error::refused;
use crate::settings::travelling;

/// Partitions of a query, unless the session has more. A task runs as many of them as its executor has threads.
const PARTITIONS: usize = 8;

/// Plans queries for a cluster where they can run there, and else for this process.
#[derive(Debug)]
pub struct ClusterPlanner {
    /// The session's own planner; DataFusion's if there is none.
    pub here: Option<Arc<dyn QueryPlanner + Send + Sync>>,
    pub cluster: Cluster,
}

#[async_trait]
impl QueryPlanner for ClusterPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>().filter(|_| scans_tables(plan)) else {
            return self.plan_with(plan, session).await;
        };
        let partitions = state.config().target_partitions().max(PARTITIONS);
        let for_cluster = for_processes(state, partitions);
        let planned = self.plan_with(plan, &for_cluster).await?;
        if let LogicalPlan::Explain(explain) = plan {
            let explained = self.plan_with(&explain.plan, &for_cluster).await?;
            if self.on_cluster(explained, for_cluster.config_options())?.is_some() {
                return Ok(planned);
            }
        } else if let Some(planned) = self.on_cluster(planned, for_cluster.config_options())? {
            return Ok(planned);
        }
        self.plan_with(plan, session).await
    }
}

impl ClusterPlanner {
    async fn plan_with(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        plan_here(self.here.as_deref(), plan, session).await
    }

    /// The plan with the part below its sinks on the cluster. `None` if it reads what only this process has.
    fn on_cluster(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &ConfigOptions,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if is_sink(&plan) {
            let [input] = plan.children()[..] else { return Ok(None) };
            let Some(input) = self.on_cluster(Arc::clone(input), options)? else { return Ok(None) };
            let recomputed = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            return plan.replace_children(vec![input], recomputed).map(Some);
        }
        if let Some(analyze) = plan.downcast_ref::<AnalyzeExec>() {
            if is_sink(analyze.input()) {
                return Ok(None);
            }
            let query = self.query(analyze.input(), options)?;
            return Ok(query.map(|query| Arc::new(ClusterAnalyzeExec::new(Arc::new(query), analyze.schema())) as _));
        }
        Ok(self.query(&plan, options)?.map(|query| Arc::new(query) as _))
    }

    /// The query of a plan, if it can run on the cluster.
    fn query(&self, plan: &Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Option<ClusterQueryExec>> {
        if !reads_files_only(plan)? {
            return Ok(None);
        }
        refuse(plan)?;
        // The scheduler cuts the plan with the settings that it was made with.
        ClusterQueryExec::try_new(self.cluster.clone(), Arc::clone(plan), travelling(options)?).map(Some)
    }
}

/// Whether a plan reads files, and nothing else that has rows.
fn reads_files_only(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let (mut files, mut others) = (false, false);
    plan.apply(|node| {
        if node.children().is_empty() {
            let is_scan = file_scan(node).is_some();
            files |= is_scan;
            others |= !is_scan && !node.is::<EmptyExec>() && !node.is::<PlaceholderRowExec>();
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(files && !others)
}

fn file_scan(node: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    node.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref()
}

/// Refuses what a cluster cannot run, or Ballista would answer wrongly.
fn refuse(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    plan.apply(|node| {
        if let Some(scan) = file_scan(node) {
            let source = scan.file_source();
            if !source.is::<ParquetSource>() && FileKind::of(source.as_ref()).is_none() {
                return refused(format!(
                    "Files of kind {} are not read on a cluster: write them as Parquet with COPY (FROM …) TO \
                     'FILE.parquet' without --cluster, or run the query without it",
                    source.file_type()
                ));
            }
        }
        if loses_window_properties(node) {
            return refused(
                "FILTER and IGNORE NULLS of window functions, and windows in both directions of one order, do not run on a cluster, as \
                 DataFusion 55 loses them when it sends a plan: use CASE or WHERE in a subquery, or run the query without --cluster",
            );
        }
        let skip = node.downcast_ref::<GlobalLimitExec>().map_or(0, GlobalLimitExec::skip);
        if node.fetch().unwrap_or(0).max(skip) > u32::MAX as usize {
            return refused(format!(
                "LIMIT and OFFSET reach to {} on a cluster: leave a larger LIMIT out, or run the query without --cluster",
                u32::MAX
            ));
        }
        if node.is::<HashJoinExec>() {
            return refused(
                "This join does not run on a cluster, as its keys are of a type that Overspill's joins do not take: cast them, \
                 or run the query without --cluster",
            );
        }
        if let Some(repartition) = node.downcast_ref::<RepartitionExec>()
            && let Partitioning::Hash(keys, _) = repartition.partitioning()
            && keys.iter().any(calls_our_functions)
        {
            return refused(
                "A cluster does not partition rows by an expression of arithmetic or of casts: compute it in a subquery, as \
                 PARTITION BY a column of (SELECT …)",
            );
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn calls_our_functions(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    call.is_some_and(|call| !matches!(encode_scalar(call.fun()), Ok(None)))
        || expr.children().into_iter().any(calls_our_functions)
}
