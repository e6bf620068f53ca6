//! `COPY … PARTITIONED BY` a column with NULLs.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::dml::CopyTo;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit, when};

/// The value in a folder name `key=value` that represents NULL.
pub const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Writes the rows with NULL in a partition column into a folder of their own, named as Hive names it.
///
/// DataFusion 55 writes them into the folder of 0, of the empty text, or of whatever value is stored below the NULL.
pub(super) fn null_partitions(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    // A partition column that also stays in the files keeps its NULLs and its type there.
    if config.execution.keep_partition_by_columns {
        return Ok(plan);
    }
    plan.transform_down(|node| match node {
        LogicalPlan::Copy(copy) if has_nullable_partitions(&copy) => {
            Ok(Transformed::yes(LogicalPlan::Copy(with_null_named(copy)?)))
        }
        node => Ok(Transformed::no(node)),
    })
    .data()
}

fn has_nullable_partitions(copy: &CopyTo) -> bool {
    let fields = copy.input.schema().fields();
    fields.iter().any(|field| field.is_nullable() && copy.partition_by.contains(field.name()))
}

fn with_null_named(mut copy: CopyTo) -> Result<CopyTo> {
    let columns = copy.input.schema().iter().map(|(qualifier, field)| {
        let column = Expr::Column(Column::from((qualifier, field)));
        if !field.is_nullable() || !copy.partition_by.contains(field.name()) {
            return Ok(column);
        }
        // Only the folder's name uses the text.
        let named = when(column.clone().is_null(), lit(NULL_PARTITION)).otherwise(cast(column, DataType::Utf8))?;
        Ok(named.alias(field.name()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let input = LogicalPlanBuilder::from(copy.input.as_ref().clone()).project(columns)?.build()?;
    copy.input = Arc::new(input);
    Ok(copy)
}
