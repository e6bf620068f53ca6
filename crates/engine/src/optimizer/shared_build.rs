//! Lets all streams of a join share one build side, instead of partitioning both sides.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::tree_node::PlanContext;
use datafusion::physical_plan::{Distribution, ExecutionPlan};
use overspill_join::hash_table::JoinTable;

use overspill_advisor::Strategy;

use crate::config::{IndexUse, OverspillConfig};
use crate::hybrid_join::{HybridJoinExec, key_codec};
use crate::index_lookup::index_lookup;
use crate::planning::PlanningSession;

/// The memory limit divided by this number is the largest estimated size of a shared build side: estimates are often too low,
/// and several joins run at the same time.
const SHARE: usize = 4;

/// The assumed bytes of a value without a fixed width: a string of some words, with its view or offset.
const VARIABLE_WIDTH: usize = 48;

/// Turns [`PartitionMode::Partitioned`] into [`PartitionMode::CollectLeft`] if the join then runs without partitioning (paper
/// 2, section 2.1: the no-partitioning join): threads build one hash table together and probe it with the rows as they
/// arrive. This saves the cost of partitioning both sides and avoids the skew of partitions.
///
/// Two kinds of joins are left alone: those with a build side that is estimated not to fit memory, as their partitions spill
/// independently; and those with partitions that an operator above can use, such as an aggregate by the join key.
#[derive(Debug)]
pub struct SharedBuild;

/// The names of columns that an operator above wants rows to be partitioned by.
type Wanted = Vec<String>;

/// Whether all streams of the join should share its build side. `limit` is the memory limit of the session in bytes.
fn should_share(join: &HashJoinExec, wanted: &Wanted, config: &OverspillConfig, limit: Option<usize>) -> Result<bool> {
    if *join.partition_mode() != PartitionMode::Partitioned || !HybridJoinExec::supports(join) {
        return Ok(false);
    }
    match config.strategy.0 {
        // A GPU joins all rows of a side at once.
        Some(strategy) => Ok(strategy != Strategy::Hybrid),
        None => {
            let keys = join.on().iter().flat_map(|(build, probe)| names([build, probe]));
            let is_wanted = { keys }.any(|key| wanted.contains(&key));
            // Rows that are looked up are few: partitions of them are worth less than the lookup.
            let can_look_up = config.indexes.0 != Some(IndexUse::Never)
                && index_lookup(join, join.null_aware, &config.index_dir).is_some();
            // Without an estimate, a lookup that turns out to be worth it gains more than partitions would.
            Ok((!is_wanted || can_look_up) && fits(join, config, limit)?.unwrap_or(can_look_up))
        }
    }
}

/// Whether the build side is estimated to fit memory with room to spare; `None` without an estimate.
fn fits(join: &HashJoinExec, config: &OverspillConfig, limit: Option<usize>) -> Result<Option<bool>> {
    let of_join = Some(config.join_memory_limit).filter(|limit| *limit > 0);
    let Some(limit) = limit.into_iter().chain(of_join).min() else { return Ok(Some(true)) };
    let statistics = StatisticsContext::new().compute(join.left().as_ref(), &StatisticsArgs::new())?;
    let Some(rows) = statistics.num_rows.get_value() else { return Ok(None) };
    let bytes = row_bytes(&statistics, *rows, &join.left().schema());
    let table = rows.saturating_mul(JoinTable::row_bytes(&key_codec(join)?));
    Ok(Some(table.saturating_add(bytes) <= limit / SHARE))
}

/// The estimated bytes of `rows` rows of an input. Columns of variable width count with an assumed width unless the total
/// size is known.
fn row_bytes(statistics: &Statistics, rows: usize, schema: &Schema) -> usize {
    if let Some(bytes) = statistics.total_byte_size.get_value() {
        return *bytes;
    }
    rows.saturating_mul(schema.fields().iter().map(|field| width(field.data_type())).sum())
}

/// The estimated bytes of a value.
pub(super) fn width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Boolean => 1,
        DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).unwrap_or(0),
        DataType::FixedSizeList(field, length) => usize::try_from(*length).unwrap_or(0) * width(field.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| width(field.data_type())).sum(),
        // The dictionary's values are stored only once.
        DataType::Dictionary(keys, _) => width(keys),
        other => other.primitive_width().unwrap_or(VARIABLE_WIDTH),
    }
}

fn names<'a>(expressions: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Wanted {
    let columns = expressions.into_iter().flat_map(collect_columns);
    columns.map(|column| column.name().to_owned()).collect()
}

/// The partitioning columns that a node requires of each of its inputs. A node with one input and no requirement passes on
/// what is required of its own output.
fn wanted_below(plan: &dyn ExecutionPlan, wanted: &Wanted) -> Vec<Wanted> {
    let requirements = plan.input_distribution_requirements().into_per_child();
    let passes_on = plan.children().len() == 1;
    requirements
        .into_iter()
        .map(|requirement| match requirement {
            Distribution::KeyPartitioned(keys) => names(&keys),
            Distribution::UnspecifiedDistribution if passes_on => wanted.clone(),
            _ => Wanted::new(),
        })
        .collect()
}

impl PhysicalOptimizerRule for SharedBuild {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(overspill) = config.extensions.get::<OverspillConfig>().filter(|config| config.enabled) else {
            return Ok(plan);
        };
        let limit = PlanningSession::memory_limit(config);
        let shared = PlanContext::<Wanted>::new_default(plan).transform_down(|mut node| {
            let mut changed = false;
            if let Some(join) = node.plan.downcast_ref::<HashJoinExec>()
                && should_share(join, &node.data, overspill, limit)?
            {
                node.plan = join
                    .builder()
                    .with_partition_mode(PartitionMode::CollectLeft)
                    .recompute_properties()
                    .build_exec()?;
                changed = true;
            }
            for (child, wanted) in node.children.iter_mut().zip(wanted_below(node.plan.as_ref(), &node.data)) {
                child.data = wanted;
            }
            Ok(if changed { Transformed::yes(node) } else { Transformed::no(node) })
        })?;
        // Children have changed below their parents.
        Ok(shared.data.transform_up(|node| node.update_plan_from_children().map(Transformed::yes))?.data.plan)
    }

    fn name(&self) -> &str {
        "shared_build"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
